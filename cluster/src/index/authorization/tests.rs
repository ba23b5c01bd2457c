//! Authorizations and authentications as facts: what is kept, and what is refused with which field.

use std::path::Path;

use super::*;
use crate::{
    index::{Index, Invalid, Reader},
    manifests,
};

fn apply(text: &str) -> (Index, Vec<Invalid>) {
    let mut index = Index::default();
    let object = manifests::parse(Path::new("test.yaml"), text)
        .expect("valid")
        .remove(0);
    let invalid = index.apply(&object).invalid;
    (index, invalid)
}

fn object(kind: &str, spec: &str) -> String {
    let version = if kind == "ServerAuthorization" {
        "v1beta1"
    } else {
        "v1alpha1"
    };
    format!(
        "apiVersion: policy.linkerd.io/{version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n"
    )
}

#[test]
fn r11_a_reference_without_its_group_says_what_is_missing() {
    let spec = "{targetRef: {kind: Namespace, name: default}, requiredAuthenticationRefs: [{kind: NetworkAuthentication, name: n}]}";
    let (_, invalid) = apply(&object("AuthorizationPolicy", spec));
    assert_eq!(invalid[0].field, "spec.requiredAuthenticationRefs[0]");
    assert!(
        invalid[0].reason.contains("policy.linkerd.io"),
        "{}",
        invalid[0].reason
    );
}

#[test]
fn targets_of_policies() {
    for (target, expected) in [
        (
            "{group: policy.linkerd.io, kind: Server, name: x}",
            Some(AuthorizationTarget::Server("x".into())),
        ),
        (
            "{group: core, kind: Namespace, name: default}",
            Some(AuthorizationTarget::Namespace),
        ),
        (
            "{group: policy.linkerd.io, kind: HTTPRoute, name: x}",
            Some(AuthorizationTarget::Route(
                Kind::PolicyHttpRoute,
                "x".into(),
            )),
        ),
        (
            "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: x}",
            Some(AuthorizationTarget::Route(
                Kind::GatewayHttpRoute,
                "x".into(),
            )),
        ),
        (
            "{group: gateway.networking.k8s.io, kind: GRPCRoute, name: x}",
            Some(AuthorizationTarget::Route(Kind::GrpcRoute, "x".into())),
        ),
        (
            "{group: gateway.networking.k8s.io, kind: TCPRoute, name: x}",
            None,
        ),
        ("{kind: Server, name: x}", None),
        (
            "{group: policy.linkerd.io, kind: Server, name: x, namespace: other}",
            None,
        ),
    ] {
        let spec = format!("{{targetRef: {target}, requiredAuthenticationRefs: []}}");
        let (index, _) = apply(&object("AuthorizationPolicy", &spec));
        let reader = Reader::new(&index);
        let found = reader.authorizations(&"default".into());
        assert_eq!(
            found.first().map(|a| &a.target),
            expected.as_ref(),
            "{target}"
        );
    }
}

#[test]
fn names_that_no_certificate_carries_are_refused() {
    for (kind, spec, field) in [
        (
            "MeshTLSAuthentication",
            "{identities: ['*', 'a b']}",
            "spec.identities[1]",
        ),
        (
            "MeshTLSAuthentication",
            "{identities: ['*x.org']}",
            "spec.identities[0]",
        ),
        (
            "MeshTLSAuthentication",
            "{identities: ['']}",
            "spec.identities[0]",
        ),
        (
            "MeshTLSAuthentication",
            "{identityRefs: [{kind: Namespace, name: 'a b'}]}",
            "spec.identityRefs[0].name",
        ),
        ("MeshTLSAuthentication", "{identityRefs: []}", "spec"),
        (
            "ServerAuthorization",
            "{server: {name: x}, client: {meshTLS: {identities: ['10.0.0.1']}}}",
            "spec.client.meshTLS.identities[0]",
        ),
    ] {
        let (_, invalid) = apply(&object(kind, spec));
        let fields: Vec<_> = invalid
            .iter()
            .map(|i| (i.field.as_str(), i.refused))
            .collect();
        assert_eq!(fields, [(field, true)], "{spec}");
    }
    let good = "{identities: ['*', '*.x.org', '*.x.org.', a.b, 'spiffe://root/a'], identityRefs: [{kind: Namespace, name: shop}]}";
    assert_eq!(apply(&object("MeshTLSAuthentication", good)).1, []);
}

#[test]
fn r14_networks_of_both_families() {
    for (cidr, address, expected) in [
        ("10.0.0.0/8", "10.0.0.5", true),
        ("10.0.0.5", "10.0.0.5", true),
        ("10.0.0.5", "10.0.0.6", false),
        ("10.0.0.5/8", "10.1.0.1", true),
        ("::ffff:10.0.0.0/104", "10.9.9.9", true),
        ("::ffff:0:0/96", "192.168.0.1", true),
        ("fd00::/8", "fd00::1", true),
        ("::/0", "10.0.0.5", false),
    ] {
        let (index, invalid) = apply(&object(
            "NetworkAuthentication",
            &format!("{{networks: [{{cidr: '{cidr}'}}]}}"),
        ));
        assert_eq!(invalid, []);
        let reader = Reader::new(&index);
        let networks = reader.networks(&Name::new("default", "a")).expect("stored");
        let address = address.parse().expect("an address");
        assert_eq!(networks[0].contains(address), expected, "{cidr} {address}");
    }
    for bad in ["10.0.0.0/33", "10.0.0", "", "x/8"] {
        let (_, invalid) = apply(&object(
            "NetworkAuthentication",
            &format!("{{networks: [{{cidr: '{bad}'}}]}}"),
        ));
        assert_eq!(invalid[0].field, "spec.networks[0].cidr", "{bad}");
    }
}

#[test]
fn r06_labels_are_selected_as_in_kubernetes() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
    use std::collections::BTreeMap;

    let labels = |value: Option<&str>| -> BTreeMap<String, String> {
        value
            .iter()
            .map(|v| ("k".to_owned(), (*v).to_owned()))
            .collect()
    };
    let selects = |operator: &str, value: Option<&str>| {
        let needs_values = operator.ends_with("In");
        let selector = LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "k".to_owned(),
                operator: operator.to_owned(),
                values: needs_values.then(|| vec!["a".to_owned()]),
            }]),
            ..LabelSelector::default()
        };
        let reference = crate::ObjectRef {
            kind: Kind::Server,
            name: Name::new("default", "s"),
        };
        let mut notes = Notes::new(reference);
        let read = Selector::read(&selector, "spec.podSelector", &mut notes).expect("known");
        read.matches(&labels(value))
    };
    for (operator, absent, same, other) in [
        ("In", false, true, false),
        ("NotIn", true, false, true),
        ("Exists", false, true, true),
        ("DoesNotExist", true, false, false),
    ] {
        let found = (
            selects(operator, None),
            selects(operator, Some("a")),
            selects(operator, Some("b")),
        );
        assert_eq!(found, (absent, same, other), "{operator}");
    }
    assert!(
        Selector::default().matches(&labels(None)),
        "an empty selector selects everything"
    );
}
