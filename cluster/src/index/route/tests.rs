//! Routes of all kinds as facts: what is kept, and what is refused with which field.

use std::path::Path;

use super::*;
use crate::{
    index::{Index, Reader},
    manifests,
};

fn apply(text: &str) -> (Index, Vec<(String, bool)>) {
    let mut index = Index::default();
    let object = manifests::parse(Path::new("test.yaml"), text)
        .expect("valid")
        .remove(0);
    let changed = index.apply(&object);
    let invalid = changed.invalid.into_iter().map(|i| (i.field, i.refused));
    (index, invalid.collect())
}

fn route(kind: &str, parents: &str, rules: &str) -> String {
    let version = if kind == "TCPRoute" { "v1alpha2" } else { "v1" };
    format!(
        "apiVersion: gateway.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: r}}\nspec: {{parentRefs: [{parents}], rules: {rules}}}\n"
    )
}

const SERVICE: &str = "{group: core, kind: Service, name: web}";

#[test]
fn a_route_of_another_controller_is_not_judged() {
    let cors = "[{filters: [{type: CORS}]}]";
    let gateway = "{name: front}";
    assert_eq!(apply(&route("HTTPRoute", gateway, cors)).1, []);
    let refused = apply(&route("HTTPRoute", SERVICE, cors)).1;
    assert_eq!(
        refused,
        [("spec.rules[0].filters[0].type".to_owned(), true)],
        "case R09"
    );
    let both = apply(&route("HTTPRoute", &format!("{gateway}, {SERVICE}"), "[]"));
    let name = Name::new("default", "r");
    let found = Reader::new(&both.0);
    let parents = &found
        .route(Kind::GatewayHttpRoute, &name)
        .expect("stored")
        .parents;
    assert_eq!(parents.len(), 1);
}

#[test]
fn what_a_route_cannot_mean_is_refused() {
    for (kind, rules, field) in [
        (
            "GRPCRoute",
            "[{filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}]}]",
            "spec.rules[0].filters[0].type",
        ),
        (
            "GRPCRoute",
            "[{matches: [{method: {type: RegularExpression, service: a}}]}]",
            "spec.rules[0].matches[0].method.type",
        ),
        (
            "GRPCRoute",
            "[{matches: [{method: {service: a/b}}]}]",
            "spec.rules[0].matches[0].method",
        ),
        (
            "GRPCRoute",
            "[{matches: [{headers: [{name: 'a b', value: c}]}]}]",
            "spec.rules[0].matches[0].headers[0]",
        ),
        ("TLSRoute", "[]", "spec.rules"),
        ("TLSRoute", "[{}, {}]", "spec.rules"),
        ("TCPRoute", "[]", "spec.rules"),
        (
            "TCPRoute",
            "[{backendRefs: [{name: a, port: 1, filters: [{type: RequestHeaderModifier}]}]}]",
            "spec.rules[0].backendRefs[0].filters[0].type",
        ),
        (
            "HTTPRoute",
            "[{matches: [{path: {type: Exact, value: /a}}], filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}]",
            "spec.rules[0]",
        ),
    ] {
        let (_, invalid) = apply(&route(kind, SERVICE, rules));
        assert_eq!(invalid, [(field.to_owned(), true)], "{kind} {rules}");
    }
    let annotated = |annotation: &str, kind: &str| {
        let text = route(kind, SERVICE, "[{}]");
        apply(&text.replace(
            "{name: r}",
            &format!("{{name: r, annotations: {{{annotation}}}}}"),
        ))
        .1
    };
    for (annotation, kind, refused) in [
        ("retry.linkerd.io/http: 5XX", "HTTPRoute", true),
        ("retry.linkerd.io/http: 5XX", "GRPCRoute", false),
        ("retry.linkerd.io/grpc: none", "GRPCRoute", true),
        ("retry.linkerd.io/grpc: none", "HTTPRoute", false),
        ("retry.linkerd.io/limit: '-1'", "GRPCRoute", true),
        ("timeout.linkerd.io/request: 1.5s", "TCPRoute", false),
    ] {
        assert_eq!(
            !annotated(annotation, kind).is_empty(),
            refused,
            "{annotation} {kind}"
        );
    }
}

#[test]
fn backends_by_kind() {
    let refs = "[{backendRefs: [{name: a, port: 1}, {group: core, kind: Service, name: b, port: 0}, {group: policy.linkerd.io, kind: EgressNetwork, name: c}, {group: x, kind: Y, name: d}]}]";
    let (index, invalid) = apply(&route("TLSRoute", SERVICE, refs));
    assert_eq!(invalid, []);
    let reader = Reader::new(&index);
    let route = reader
        .route(Kind::TlsRoute, &Name::new("default", "r"))
        .expect("stored");
    let kinds: Vec<_> = route
        .rules
        .backends()
        .into_iter()
        .map(|b| (b.kind.clone(), b.port))
        .collect();
    assert_eq!(
        kinds,
        [
            (BackendKind::Service, Some(1)),
            (BackendKind::Service, None),
            (BackendKind::EgressNetwork, None),
            (BackendKind::Other("Y.x".into()), None),
        ]
    );
}
