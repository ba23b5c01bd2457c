//! Routes of inbound ports: attached ones, the default and the probe route.

use super::*;

#[test]
fn default_and_probe_routes() {
    let server = ask(settings(), 8080, &[POD, SERVER]);
    let [default, probe] = routes_of(&server) else {
        panic!("two routes")
    };
    assert_eq!(default.metadata, Some(wire::default_meta("default")));
    assert_eq!(
        (
            default.rules[0].matches.as_slice(),
            default.authorizations.len()
        ),
        ([wire::match_all()].as_slice(), 0)
    );
    assert_eq!(probe.metadata, Some(wire::default_meta("probe")));
    let paths: Vec<_> = probe.rules[0]
        .matches
        .iter()
        .map(|m| format!("{:?} {:?}", m.path, m.method))
        .collect();
    assert!(
        paths.len() == 2 && paths[0].contains("\"/live\"") && paths[1].contains("\"/ready\""),
        "{paths:?}"
    );
    assert_eq!(
        show(&probe.authorizations[0]),
        (texts(&["0.0.0.0/0", "::/0"]), texts(&["*"]))
    );
    assert_eq!(
        routes_of(&ask(settings(), 8081, &[POD])).len(),
        1,
        "no probes on that port"
    );
}

pub(super) fn route(name: &str, created: &str, rule: &str) -> String {
    format!(
        "apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {{name: {name}, creationTimestamp: '{created}'}}
spec:
  parentRefs: [{{group: policy.linkerd.io, kind: Server, name: web}}]
  hostnames: ['*.Foo.io', web]
  rules: [{{{rule}}}]
"
    )
}

#[test]
fn attached_routes_replace_the_default_ones() {
    let to_route = "{group: policy.linkerd.io, kind: HTTPRoute, name: b}";
    let rule = "matches: [{path: {type: PathPrefix, value: /api}, method: POST}], filters: [\
        {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x, value: y}]}}, \
        {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [z]}}, \
        {type: RequestRedirect, requestRedirect: {scheme: https, hostname: h, port: 443}}]";
    let objects = [
        POD.to_owned(),
        SERVER.to_owned(),
        AUTHENTICATIONS.to_owned(),
        route("a", "2026-02-01T00:00:00Z", ""),
        route("b", "2026-01-01T00:00:00Z", rule),
        policy("for-b", to_route, ACCOUNTS),
        policy("for-all", TO_SERVER, ""),
    ];
    let all: Vec<&str> = objects.iter().map(String::as_str).collect();
    let server = ask(settings(), 8080, &all);
    let [b, a] = routes_of(&server) else {
        panic!("two routes, the older first")
    };
    let name = |route: &api::HttpRoute| match route.metadata.clone().and_then(|m| m.kind) {
        Some(linkerd2_proxy_api::meta::metadata::Kind::Resource(r)) => (r.group, r.kind, r.name),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (name(b), name(a)),
        (
            triple("policy.linkerd.io", "HTTPRoute", "b"),
            triple("policy.linkerd.io", "HTTPRoute", "a")
        )
    );
    // Hosts are compared without regard to case, so they are sent in lower case (case H17).
    assert!(
        format!("{:?}", b.hosts).contains("[\"io\", \"foo\"]"),
        "{:?}",
        b.hosts
    );
    assert_eq!(
        a.rules[0].matches,
        [wire::match_all()],
        "a rule without matches matches everything"
    );
    assert_eq!(
        b.rules[0].filters.len(),
        2,
        "inbound proxies change no response headers"
    );
    let names = |authorizations: &[Authz]| {
        authorizations
            .iter()
            .map(|a| a.labels["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&b.authorizations), names(&a.authorizations)),
        (texts(&["for-b"]), vec![])
    );
    assert_eq!(names(&server.authorizations), ["for-all"]);

    // Where statuses are written, they count.
    let strict = Settings {
        mesh: MeshSettings {
            assume_accepted: false,
            ..settings().mesh
        },
        ..settings()
    };
    assert_eq!(
        routes_of(&ask(strict.clone(), 8080, &all))[0].metadata,
        Some(wire::default_meta("default"))
    );
    let status = "status: {parents: [{parentRef: {group: policy.linkerd.io, kind: Server, name: web}, controllerName: linkerd.io/policy-controller, \
        conditions: [{type: Accepted, status: 'True', reason: Accepted, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]}]}";
    let accepted = format!("{}{status}\n", route("c", "2026-01-01T00:00:00Z", ""));
    let found = ask(strict, 8080, &[POD, SERVER, &objects[3], &accepted]);
    assert_eq!(
        routes_of(&found).iter().map(name).collect::<Vec<_>>(),
        [triple("policy.linkerd.io", "HTTPRoute", "c")]
    );
}
