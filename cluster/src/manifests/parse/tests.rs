//! Parsing: what is read, and where faults are said to be.

use super::*;
use crate::objects::Name;

fn parse(name: &str, text: &str) -> Result<Vec<Object>, ManifestError> {
    file(Path::new(name), text)
}

const TWO: &str = "# a comment
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ports: [{port: 80}]
---
# nothing here
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  port: http
  proxyProtocol: HTTP/2
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
";

#[test]
fn documents_of_known_kinds_are_read() {
    let objects = parse("a.yaml", TWO).expect("valid");
    let names: Vec<_> = objects.iter().map(|o| (o.kind(), o.name())).collect();
    assert_eq!(
        names,
        [
            (Kind::Service, Name::new("default", "web")),
            (Kind::Server, Name::new("shop", "web"))
        ]
    );
}

#[test]
fn a_fault_is_named_with_document_line_and_field() {
    let broken = TWO.replace("proxyProtocol: HTTP/2", "proxyProtocol: HTTP/9");
    let error = parse("dir/a.yaml", &broken).expect_err("no such protocol");
    assert_eq!((error.document, error.line), (Some(2), Some(17)), "{error}");
    assert_eq!(error.field.as_deref(), Some("spec.proxyProtocol"));
    assert!(
        error
            .to_string()
            .starts_with("dir/a.yaml:17: document 2: spec.proxyProtocol: "),
        "{error}"
    );

    let broken = TWO.replace("{port: 80}", "{port: eighty}");
    let error = parse("a.yaml", &broken).expect_err("not a number");
    assert_eq!(
        (error.document, error.line, error.field.as_deref()),
        (Some(1), Some(7), Some("spec.ports[0].port"))
    );
    // The place is said once.
    assert!(error.reason.starts_with("invalid type") && !error.reason.contains(" at line "));
}

#[test]
fn broken_syntax_and_missing_parts_are_named() {
    let error =
        parse("a.yaml", "apiVersion: v1\nkind: [Service\n").expect_err("no closing bracket");
    assert_eq!(error.document, Some(1));
    assert!(error.line.is_some());
    let error = parse("a.yaml", "apiVersion: v1\nmetadata: {name: a}\n").expect_err("no kind");
    assert!(error.reason.contains("kind"), "{error}");
    let error = parse("a.yaml", "apiVersion: v1\nkind: Service\n").expect_err("no name");
    assert_eq!(error.field.as_deref(), Some("metadata.name"));
    let error = parse("a.yaml", "just text").expect_err("not an object");
    assert_eq!(error.document, Some(1));
}

#[test]
fn lists_and_json_are_read() {
    let list = "apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}
- {apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: app, ports: [{containerPort: x}]}]}}
";
    let error = parse("a.yml", list).expect_err("a port that is no number");
    assert_eq!(
        error.field.as_deref(),
        Some("items[2].spec.containers[0].ports[0].containerPort")
    );
    assert_eq!(
        parse(
            "a.yml",
            &list.replace("containerPort: x", "containerPort: 1")
        )
        .expect("valid")
        .len(),
        2
    );

    let json = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\",\n\t\"metadata\": {\"name\": \"a\"},\n\t\"spec\": {\"ports\": [{\"port\": 80}]}\n}\n";
    assert_eq!(parse("a.json", json).expect("valid").len(), 1);
    let error = parse("a.json", &json.replace("80", "\"80\"")).expect_err("a text");
    assert_eq!(
        (error.line, error.field.as_deref()),
        (Some(5), Some("spec.ports[0].port"))
    );
}

#[test]
fn both_groups_of_http_routes_have_one_shape() {
    let route = |version: &str| {
        format!(
            "apiVersion: {version}
kind: HTTPRoute
metadata: {{name: r}}
spec:
  parentRefs: [{{group: core, kind: Service, name: web, port: 80}}]
  rules:
  - matches: [{{path: {{value: /a}}, headers: [{{name: x, value: y}}]}}]
    filters: [{{type: RequestRedirect, requestRedirect: {{path: {{type: ReplaceFullPath, replaceFullPath: /b}}}}}}]
    timeouts: {{request: 100ms}}
"
        )
    };
    let read = |version| match parse("a.yaml", &route(version)).expect("valid").remove(0) {
        Object::HttpRoute(_, route) => *route,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        read("policy.linkerd.io/v1beta3"),
        read("gateway.networking.k8s.io/v1")
    );
}

#[test]
fn markers_split_only_at_the_start_of_a_line() {
    let text = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n    x: |\n      ---\n      y\n...\n--- {apiVersion: v1, kind: Service, metadata: {name: b}}\n";
    assert_eq!(parse("a.yaml", text).expect("valid").len(), 2);
    assert_eq!(parse("a.yaml", "").expect("nothing"), []);
    assert_eq!(parse("a.yaml", "---\n---\n").expect("nothing"), []);
}
