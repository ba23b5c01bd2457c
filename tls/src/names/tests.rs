//! Names and validity of real certificates, and of damaged ones.

use proptest::prelude::*;

use super::*;
use crate::testing::{Authority, HOUR, id, san};

#[test]
fn names_are_compared_as_identities() {
    let sans = vec![san("Web.Prod.Example."), san("spiffe://td/ns/prod/sa/web")];
    let leaf = Authority::root().leaf_with(sans, SystemTime::now() + HOUR);
    let certificate = Certificate::from_der(&leaf.der).unwrap();

    assert!(certificate.is(&id("web.prod.example")));
    assert!(certificate.is(&id("spiffe://td/ns/prod/sa/web")));
    assert!(!certificate.is(&id("prod.example")));
    assert_eq!(certificate.first_identity(), Some(id("web.prod.example")));
}

#[test]
fn a_name_that_is_no_identity_is_passed_over() {
    let leaf = Authority::root().leaf_with(
        vec![san("*.example"), san("web.example")],
        SystemTime::now() + HOUR,
    );
    let certificate = Certificate::from_der(&leaf.der).unwrap();
    assert_eq!(certificate.first_identity(), Some(id("web.example")));
    assert!(!certificate.is(&id("other.example")));
    assert_eq!(certificate.found(), ["*.example", "web.example"]);
}

#[test]
fn a_dns_entry_is_not_a_uri() {
    assert_eq!(San::Dns("spiffe://td/admin".into()).identity(), None);
    assert_eq!(San::Uri("web.example".into()).identity(), None);
}

#[test]
fn validity_is_read_to_the_second() {
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let leaf = Authority::root().leaf_until("web.example", end);
    assert_eq!(Certificate::from_der(&leaf.der).unwrap().not_after, end);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut der = Authority::root().leaf("web.example").der;
        let at = at.index(der.len());
        der[at] = byte;
        if cut {
            der.truncate(at);
        }
        let _ = Certificate::from_der(&der);
        let _ = Request::from_der(&der);
    }
}
