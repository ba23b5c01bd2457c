//! What is published and what is refused, and that refusals leave the certificate before in use.

use std::time::Duration;

use super::*;
use crate::testing::{Authority, HOUR, empty_store, id};

#[tokio::test]
async fn ready_after_the_first_certificate() {
    let root = Authority::root();
    let leaf = root.leaf("web.example");
    let store = empty_store(root.anchors(), "web.example", &leaf);
    assert!(store.current().is_none());
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.ready().await }
    });
    store
        .install(leaf.der, vec![], SystemTime::now() + HOUR)
        .unwrap();
    waiting.await.unwrap();
    assert!(store.current().is_some());
}

#[test]
fn the_earlier_end_counts() {
    let root = Authority::root();
    let soon = SystemTime::now() + Duration::from_secs(60);
    let leaf = root.leaf_until("web.example", soon);
    let store = empty_store(root.anchors(), "web.example", &leaf);
    store
        .install(leaf.der.clone(), vec![], SystemTime::now() + HOUR)
        .unwrap();
    assert!(store.current().unwrap().expires <= soon);
    let sooner = SystemTime::now() + Duration::from_secs(30);
    store.install(leaf.der, vec![], sooner).unwrap();
    assert_eq!(store.current().unwrap().expires, sooner);
}

#[test]
fn an_issuer_in_between_is_followed() {
    let root = Authority::root();
    let (issuer, leaf) = {
        let issuer = root.issuer();
        let leaf = issuer.leaf("web.example");
        (issuer, leaf)
    };
    let store = empty_store(root.anchors(), "web.example", &leaf);
    let until = SystemTime::now() + HOUR;
    let error = store.install(leaf.der.clone(), vec![], until).unwrap_err();
    assert!(matches!(error, InstallError::Chain { .. }), "{error}");
    store.install(leaf.der, vec![issuer.der], until).unwrap();
}

#[test]
fn a_bad_certificate_changes_nothing() {
    let root = Authority::root();
    let store = root.store("web.example");
    let before = store.current().unwrap();
    let until = SystemTime::now() + HOUR;
    let past = SystemTime::now() - Duration::from_secs(1);

    let garbage = store
        .install(b"garbage".to_vec(), vec![], until)
        .unwrap_err();
    assert!(matches!(garbage, InstallError::Leaf(_)), "{garbage}");
    let other = store
        .install(root.leaf("db.example").der, vec![], until)
        .unwrap_err();
    assert!(
        matches!(other, InstallError::WrongIdentity { .. }),
        "{other}"
    );
    let foreign = store.install(Authority::root().leaf("web.example").der, vec![], until);
    assert!(matches!(foreign, Err(InstallError::Chain { .. })));
    let stranger = store
        .install(root.leaf("web.example").der, vec![], until)
        .unwrap_err();
    assert!(matches!(stranger, InstallError::WrongKey(_)), "{stranger}");
    let ended = store.install(root.leaf_until("web.example", past).der, vec![], until);
    assert!(matches!(ended, Err(InstallError::Ended(_))));
    let stale = store
        .install(root.leaf("web.example").der, vec![], past)
        .unwrap_err();
    assert!(matches!(stale, InstallError::Ended(_)), "{stale}");

    assert!(Arc::ptr_eq(&before, &store.current().unwrap()));
}

#[test]
fn anchors_in_use_cannot_be_replaced_away() {
    let (old, new) = (Authority::root(), Authority::root());
    let store = old.store("web.example");
    let refused = store.replace_anchors(&new.anchors());
    assert!(matches!(refused, Err(InstallError::Chain { .. })));
    let both = TrustAnchors::from_pem(&format!("{}{}", old.pem, new.pem)).unwrap();
    store.replace_anchors(&both).unwrap();
}

#[test]
fn debug_names_the_identity_only() {
    let store = Authority::root().store("web.example");
    assert_eq!(store.id(), &id("web.example"));
    assert_eq!(store.server_name(), "web.example");
    let text = format!("{store:?} {:?}", store.current());
    assert!(text.contains("web.example"));
    assert!(!text.to_lowercase().contains("privatekey ["), "{text}");
}
