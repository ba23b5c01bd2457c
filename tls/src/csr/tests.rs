//! Files of the identity directory: made, found again, refused.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::testing::id;

const NAME: &str = "web.prod.serviceaccount.identity.linkerd.cluster.local";

#[test]
fn a_pair_is_made_once_and_found_again() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("end-entity");
    let made = load_or_create(&dir, &id(NAME), NAME).unwrap();
    let found = load_or_create(&dir, &id(NAME), NAME).unwrap();
    assert_eq!(made.csr_der, found.csr_der);
    assert_eq!(made.key.public_key_der(), found.key.public_key_der());

    let request = Request::from_der(&made.csr_der).unwrap();
    assert_eq!(request.sans, [crate::names::San::Dns(NAME.into())]);
    let mode = fs::metadata(dir.join(KEY_FILE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "no temporary files stay behind: {names:?}");
}

#[test]
fn the_common_name_is_the_identity() {
    use x509_parser::prelude::{FromDer, X509CertificationRequest};
    let dir = tempfile::tempdir().unwrap();
    let made = load_or_create(dir.path(), &id(NAME), NAME).unwrap();
    let (_, request) = X509CertificationRequest::from_der(&made.csr_der).unwrap();
    let subject = request.certification_request_info.subject.to_string();
    assert_eq!(subject, format!("CN={NAME}"));
}

#[test]
fn a_uri_identity_asks_by_its_server_name() {
    let dir = tempfile::tempdir().unwrap();
    let uri = id("spiffe://td/ns/prod/sa/web");
    let made = load_or_create(dir.path(), &uri, "web.example").unwrap();
    let request = Request::from_der(&made.csr_der).unwrap();
    assert_eq!(request.sans, [crate::names::San::Dns("web.example".into())]);
    load_or_create(dir.path(), &uri, "web.example").unwrap();
}

#[test]
fn half_a_pair_is_named() {
    for (gone, stays) in [(KEY_FILE, CSR_FILE), (CSR_FILE, KEY_FILE)] {
        let dir = tempfile::tempdir().unwrap();
        load_or_create(dir.path(), &id(NAME), NAME).unwrap();
        fs::remove_file(dir.path().join(gone)).unwrap();
        let error = load_or_create(dir.path(), &id(NAME), NAME).unwrap_err();
        assert!(matches!(error, CsrError::HalfPair { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("remove {}", dir.path().join(stays).display())),
            "{text}"
        );
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    load_or_create(one.path(), &id(NAME), NAME).unwrap();
    load_or_create(two.path(), &id(NAME), NAME).unwrap();
    fs::copy(two.path().join(KEY_FILE), one.path().join(KEY_FILE)).unwrap();
    let error = load_or_create(one.path(), &id(NAME), NAME).unwrap_err();
    assert!(matches!(error, CsrError::Csr { .. }), "{error}");

    let error = load_or_create(two.path(), &id("other.example"), "other.example").unwrap_err();
    assert!(
        error.to_string().contains("not for other.example"),
        "{error}"
    );
}

#[test]
fn garbage_is_named_by_file() {
    let dir = tempfile::tempdir().unwrap();
    load_or_create(dir.path(), &id(NAME), NAME).unwrap();
    fs::write(dir.path().join(CSR_FILE), b"garbage").unwrap();
    let error = load_or_create(dir.path(), &id(NAME), NAME).unwrap_err();
    assert!(matches!(error, CsrError::Csr { .. }), "{error}");
    fs::write(dir.path().join(KEY_FILE), b"garbage").unwrap();
    let error = load_or_create(dir.path(), &id(NAME), NAME).unwrap_err();
    assert!(matches!(error, CsrError::Key { .. }), "{error}");
}

#[test]
fn debug_does_not_show_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let made = load_or_create(dir.path(), &id(NAME), NAME).unwrap();
    assert!(format!("{made:?}").contains("not shown"));
}
