//! Identities against the forms of contract 0 and 2, port sets against a plain set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::parse::ParseError;

#[test]
fn dns_identities_are_normalized() {
    let id = Identity::parse("Web.App.serviceaccount.identity.linkerd.cluster.local.");
    let expected = "web.app.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(id, Ok(Identity::Dns(Arc::from(expected))));
}

#[test]
fn uri_identities_are_kept() {
    let text = "spiffe://Root.linkerd.cluster.local/ns/App";
    let id = Identity::parse(text).expect("a SPIFFE ID");
    assert!(matches!(&id, Identity::Uri(_)));
    assert_eq!(id.to_string(), text);
}

#[test]
fn what_is_no_identity_is_named() {
    assert_eq!(Identity::parse(""), Err(IdentityError::Empty));
    assert_eq!(Identity::parse("."), Err(IdentityError::Empty));
    assert!(matches!(
        Identity::parse("10.0.0.1"),
        Err(IdentityError::Address(_))
    ));
    assert!(matches!(
        Identity::parse("::1"),
        Err(IdentityError::Address(_))
    ));
    for name in [
        "a..b", "*.a", "-a.b", "a-.b", "a b", "a:80", "ä.b", ".a", "a..",
    ] {
        let error = Identity::parse(name);
        assert!(
            matches!(error, Err(IdentityError::Label { .. })),
            "{name}: {error:?}"
        );
    }
    for uri in [
        "spiffe://",
        "://a",
        "1a://b",
        "spiffe:///path",
        "spiffe://a b",
        "spiffe://ä",
    ] {
        let error = Identity::parse(uri);
        assert!(
            matches!(error, Err(IdentityError::Uri(_))),
            "{uri}: {error:?}"
        );
    }
}

#[test]
fn lengths_are_limited() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    assert!(Identity::parse(&longest).is_ok());
    let too_long = IdentityError::TooLong {
        length: 254,
        limit: 253,
    };
    assert_eq!(Identity::parse(&format!("{longest}a")), Err(too_long));
    assert!(Identity::parse(&"a".repeat(64)).is_err());
    assert!(Identity::parse(&format!("spiffe://{}", "a".repeat(2039))).is_ok());
    assert!(Identity::parse(&format!("spiffe://{}", "a".repeat(2040))).is_err());
}

#[test]
fn workload_identities_have_the_documented_form() {
    let id = workload_identity("web", "app", "linkerd", "cluster.local").expect("valid parts");
    assert_eq!(
        id.as_str(),
        "web.app.serviceaccount.identity.linkerd.cluster.local"
    );
    for (sa, ns, control) in [
        ("a.b", "c", "d"),
        ("a", "b.c", "d"),
        ("a", "b", ""),
        ("A", "b", "c"),
    ] {
        let error = workload_identity(sa, ns, control, "cluster.local");
        assert!(
            matches!(error, Err(IdentityError::Part { .. })),
            "{error:?}"
        );
    }
    assert_eq!(
        workload_identity("a", "b", "c", ""),
        Err(IdentityError::Empty)
    );
}

#[test]
fn port_sets_read_the_forms_of_the_contract() {
    let set: PortSet = " 25, 80-82,,443 ,81, 83 - 84,".parse().expect("a port set");
    assert_eq!(set.to_string(), "25,80-84,443");
    assert_eq!(
        set.iter().collect::<Vec<_>>(),
        [25, 80, 81, 82, 83, 84, 443]
    );
    assert!("".parse::<PortSet>().expect("an empty set").is_empty());
    let all: PortSet = "0-65535".parse().expect("all ports");
    assert!(all.contains(0) && all.contains(65535));
    assert_eq!(all.iter().count(), 65536);
}

#[test]
fn port_sets_refuse_the_rest() {
    let reversed = ParseError::ReversedRange { first: 9, last: 8 };
    assert_eq!("9-8".parse::<PortSet>(), Err(reversed));
    for text in ["65536", "-1", "1-", "1-2-3", "http", "1;2", "+1", "1.5"] {
        assert!(text.parse::<PortSet>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn parsing_an_identity_never_panics_and_is_stable(text in "\\PC{0,40}") {
        if let Ok(id) = Identity::parse(&text) {
            prop_assert_eq!(Identity::parse(id.as_str()), Ok(id));
        }
    }

    #[test]
    fn port_set_is_the_set_of_its_ports(ranges in proptest::collection::vec((0u16..300, 0u16..20), 0..12)) {
        let text: Vec<_> = ranges.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
        let model: BTreeSet<u16> = ranges.iter().flat_map(|(first, more)| *first..=first + more).collect();
        let set: PortSet = text.join(",").parse().expect("ranges are in order");
        prop_assert!(set.iter().eq(model.iter().copied()));
        prop_assert_eq!(set.is_empty(), model.is_empty());
        for port in 0..400 {
            prop_assert_eq!(set.contains(port), model.contains(&port));
        }
        prop_assert_eq!(&model.into_iter().collect::<PortSet>(), &set);
        prop_assert_eq!(set.to_string().parse::<PortSet>(), Ok(set));
    }

    #[test]
    fn parsing_a_port_set_never_panics(text in "[-0-9, a]{0,20}") {
        let _ = text.parse::<PortSet>();
    }
}
