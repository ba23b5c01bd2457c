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
        paths.len() == 4 && paths[0].contains("\"/live\"") && paths[2].contains("\"/ready\""),
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
}

#[test]
fn a_server_takes_routes_of_its_own_namespace_only() {
    let elsewhere = route("a", "2026-02-01T00:00:00Z", "")
        .replace("{name: a,", "{name: a, namespace: shop,")
        .replace("name: web}", "name: web, namespace: default}");
    let server = ask(settings(), 8080, &[POD, SERVER, &elsewhere]);
    let [default, _probe] = routes_of(&server) else {
        panic!("the default routes")
    };
    assert_eq!(default.metadata, Some(wire::default_meta("default")));
}

const GRPC_SERVER: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: gRPC}
";

pub(super) fn grpc_route(name: &str, rule: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {{name: {name}, creationTimestamp: '2026-01-01T00:00:00Z'}}
spec:
  parentRefs: [{{group: policy.linkerd.io, kind: Server, name: web}}]
  hostnames: [web]
  rules: [{{{rule}}}]
"
    )
}

fn grpc_routes_of(server: &api::Server) -> &[api::GrpcRoute] {
    match server.protocol.as_ref().and_then(|p| p.kind.as_ref()) {
        Some(Protocol::Grpc(grpc)) => &grpc.routes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn grpc_routes_of_a_grpc_server() {
    let default = ask(settings(), 8080, &[POD, GRPC_SERVER]);
    let [only] = grpc_routes_of(&default) else {
        panic!("one route")
    };
    assert_eq!(only.metadata, Some(wire::default_meta("default")));
    assert_eq!(only.rules[0].matches, [wire::grpc_match_all()]);

    let rule = "matches: [{method: {service: a.B, method: C}, headers: [{name: x, value: y}]}, {method: {service: a.D}}], \
        filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x, value: y}]}}]";
    let to_route = "{group: gateway.networking.k8s.io, kind: GRPCRoute, name: g}";
    let objects = [
        POD.to_owned(),
        GRPC_SERVER.to_owned(),
        AUTHENTICATIONS.to_owned(),
        grpc_route("g", rule),
        route("h", "2025-01-01T00:00:00Z", ""),
        policy("for-g", to_route, ACCOUNTS),
    ];
    let all: Vec<&str> = objects.iter().map(String::as_str).collect();
    let server = ask(settings(), 8080, &all);
    let [g] = grpc_routes_of(&server) else {
        panic!("one route")
    };
    let resource = wire::resource("gateway.networking.k8s.io", "GRPCRoute", "g");
    assert_eq!(g.metadata, Some(wire::resource_meta(resource)));
    assert_eq!((g.hosts.len(), g.rules.len()), (1, 1));
    let rpcs: Vec<_> = g.rules[0]
        .matches
        .iter()
        .map(|m| {
            let rpc = m.rpc.clone().expect("set");
            (rpc.service, rpc.method, m.headers.len())
        })
        .collect();
    assert_eq!(
        rpcs,
        [
            ("a.B".to_owned(), "C".to_owned(), 1),
            ("a.D".to_owned(), String::new(), 0)
        ]
    );
    assert_eq!(g.rules[0].filters.len(), 1);
    let names: Vec<_> = g.authorizations.iter().map(|a| &a.labels["name"]).collect();
    assert_eq!(names, ["for-g"]);
}

#[test]
fn r01_probes_are_let_in_under_deny_whatever_their_path_looks_like() {
    let pod = POD.replace("'/live?x=1'", "'live#top'");
    let server = ask(settings(), 8080, &[&pod, SERVER]);
    assert_eq!(server.authorizations, [], "default-deny");
    let [_, probe] = routes_of(&server) else {
        panic!("two routes")
    };
    let shown = format!("{:?}", probe.rules[0].matches);
    assert!(
        shown.contains("\"/live\"") && shown.contains("\"/ready\""),
        "{shown}"
    );
    assert_eq!(probe.authorizations.len(), 1);
}

/// Applications redirect one form to the other, and the kubelet follows.
#[test]
fn r02_a_probe_is_let_in_with_and_without_a_slash_at_its_end() {
    for (path, expected) in [
        ("/live", &["/live", "/live/", "/ready", "/ready/"][..]),
        ("/live/", &["/live", "/live/", "/ready", "/ready/"]),
        ("/ready/", &["/ready", "/ready/"]),
        ("/", &["/", "/ready", "/ready/"]),
    ] {
        let pod = POD.replace("/live?x=1", path);
        let server = ask(settings(), 8080, &[&pod, SERVER]);
        let [_, probe] = routes_of(&server) else {
            panic!("two routes")
        };
        let matches = &probe.rules[0].matches;
        let paths: Vec<_> = matches
            .iter()
            .filter_map(|m| match m.path.as_ref()?.kind.as_ref()? {
                linkerd2_proxy_api::http_route::path_match::Kind::Exact(path) => {
                    Some(path.as_str())
                }
                _ => None,
            })
            .collect();
        assert_eq!(paths, expected, "{path}");
        let get = Some(wire::method("GET"));
        assert!(matches.iter().all(|m| m.method == get), "{path}");
    }
}

/// Within TLS nobody sees the path.
#[test]
fn r03_a_probe_by_https_opens_nothing() {
    let pod = POD.replace("{path: /ready,", "{scheme: HTTPS, path: /ready,");
    let server = ask(settings(), 8080, &[&pod, SERVER]);
    let [_, probe] = routes_of(&server) else {
        panic!("two routes")
    };
    let shown = format!("{:?}", probe.rules[0].matches);
    assert!(
        shown.contains("\"/live\"") && !shown.contains("ready"),
        "{shown}"
    );
}

#[test]
fn r03_probes_by_grpc_are_let_in_where_clients_need_an_identity() {
    let pod = POD.replace(
        "livenessProbe: {httpGet: {path: '/live?x=1', port: http}}",
        "livenessProbe: {grpc: {port: 8080, service: app}}",
    );
    let server = ask(settings(), 8080, &[&pod, SERVER]);
    let [_, probe] = routes_of(&server) else {
        panic!("two routes")
    };
    let shown = format!("{:?}", probe.rules[0].matches);
    assert!(
        shown.contains("\"/grpc.health.v1.Health/Check\"") && shown.contains("\"/ready\""),
        "{shown}"
    );

    let server = ask(settings(), 8080, &[&pod, GRPC_SERVER]);
    let [_, probe] = grpc_routes_of(&server) else {
        panic!("two routes")
    };
    assert_eq!(probe.metadata, Some(wire::default_meta("probe")));
    let rpc = probe.rules[0].matches[0].rpc.clone().expect("set");
    assert_eq!(
        (rpc.service.as_str(), rpc.method.as_str()),
        ("grpc.health.v1.Health", "Check")
    );
    assert_eq!(
        show(&probe.authorizations[0]),
        (texts(&["0.0.0.0/0", "::/0"]), texts(&["*"]))
    );
    let unprobed = ask(settings(), 8080, &[POD, GRPC_SERVER]);
    assert_eq!(grpc_routes_of(&unprobed).len(), 1);
}
