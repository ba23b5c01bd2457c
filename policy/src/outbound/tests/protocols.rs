//! The protocol of a target by its routes, and routes that are not HTTPRoutes.

use linkerd2_proxy_api::{
    outbound::{grpc_route, opaque_route, tls_route},
    tls_route::sni_match,
};

use super::*;

const SERVICE: &str = "{group: core, kind: Service, name: web, namespace: default}";

/// A route of any kind with one rule.
fn of_kind(kind: &str, name: &str, parent: &str, rule: &str) -> String {
    let version = if kind == "TCPRoute" { "v1alpha2" } else { "v1" };
    format!(
        "apiVersion: gateway.networking.k8s.io/{version}
kind: {kind}
metadata: {{name: {name}}}
spec: {{parentRefs: [{parent}], rules: [{{{rule}}}]}}
"
    )
}

fn shown(policy: &OutboundPolicy) -> String {
    let shown = format!("{:?}", kind(policy));
    shown.split('(').next().unwrap_or_default().to_owned()
}

/// Names of the routes of a policy, of whatever kind.
fn names(policy: &OutboundPolicy) -> Vec<String> {
    let metadata: Vec<Option<&Metadata>> = match kind(policy) {
        Protocol::Grpc(g) => g.routes.iter().map(|r| r.metadata.as_ref()).collect(),
        Protocol::Tls(t) => t.routes.iter().map(|r| r.metadata.as_ref()).collect(),
        Protocol::Opaque(o) => o.routes.iter().map(|r| r.metadata.as_ref()).collect(),
        _ => routes(policy).iter().map(|r| r.metadata.as_ref()).collect(),
    };
    let name = |metadata| match meta(metadata) {
        Meta::Resource(resource) => format!("{} {}", resource.kind, resource.name),
        Meta::Default(name) => name,
    };
    metadata.into_iter().map(name).collect()
}

#[test]
fn the_most_specific_kind_of_route_decides() {
    let all = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"]
        .map(|kind| of_kind(kind, "r", SERVICE, ""));
    for (from, protocol, route) in [
        (0, "Grpc", "GRPCRoute r"),
        (1, "Detect", "HTTPRoute r"),
        (2, "Tls", "TLSRoute r"),
        (3, "Opaque", "TCPRoute r"),
        (4, "Detect", "http"),
    ] {
        let mut texts = vec![WEB];
        texts.extend(all[from..].iter().map(String::as_str));
        let policy = ask(&at("10.96.0.10:80"), &texts);
        assert_eq!(
            (shown(&policy), names(&policy)),
            (protocol.to_owned(), vec![route.to_owned()])
        );
    }
}

#[test]
fn what_a_port_is_declared_to_be_wins_over_its_routes() {
    let declared =
        |protocol: &str| WEB.replace("port: 80}", &format!("port: 80, appProtocol: {protocol}}}"));
    let opaque = WEB.replace(
        "{name: web}",
        "{name: web, annotations: {config.linkerd.io/opaque-ports: '80'}}",
    );
    for (service, kind, protocol, route) in [
        (declared("http"), "GRPCRoute", "Http1", "http"),
        (declared("http"), "HTTPRoute", "Http1", "HTTPRoute r"),
        (
            declared("kubernetes.io/h2c"),
            "GRPCRoute",
            "Grpc",
            "GRPCRoute r",
        ),
        (
            declared("kubernetes.io/h2c"),
            "HTTPRoute",
            "Http2",
            "HTTPRoute r",
        ),
        (declared("kubernetes.io/h2c"), "TCPRoute", "Http2", "http"),
        (declared("linkerd.io/tcp"), "HTTPRoute", "Opaque", "opaq"),
        (
            declared("linkerd.io/tcp"),
            "TCPRoute",
            "Opaque",
            "TCPRoute r",
        ),
        (declared("mysql"), "GRPCRoute", "Opaque", "opaq"),
        (opaque.clone(), "GRPCRoute", "Opaque", "opaq"),
        (opaque, "TCPRoute", "Opaque", "TCPRoute r"),
    ] {
        let policy = ask(
            &at("10.96.0.10:80"),
            &[&service, &of_kind(kind, "r", SERVICE, "")],
        );
        assert_eq!(
            (shown(&policy), names(&policy)),
            (protocol.to_owned(), vec![route.to_owned()]),
            "{service} {kind}"
        );
    }
}

const BACKENDS: &str = "backendRefs: [{name: web, port: 80, weight: 9}, {name: missing, port: 80}, {name: web}, {kind: Bucket, group: s3, name: b, port: 1}]";

/// Weight, where it leads, and whether it fails.
type Shown = (u32, String, bool);

fn expected() -> Vec<Shown> {
    let failing = || (1, String::new(), true);
    let reachable = (9, "web.default.svc.cluster.local:80".to_owned(), false);
    vec![reachable, failing(), failing(), failing()]
}

#[test]
fn grpc_routes_on_the_wire() {
    let rule = format!(
        "matches: [{{method: {{service: a.B, method: C}}, headers: [{{name: x, value: y}}]}}], \
         filters: [{{type: RequestHeaderModifier, requestHeaderModifier: {{remove: [z]}}}}], {BACKENDS}"
    );
    let route = of_kind("GRPCRoute", "r", SERVICE, &rule)
        .replace("rules:", "hostnames: ['*.Example.org'], rules:");
    let policy = ask(&at("10.96.0.10:80"), &[WEB, &route]);
    let Protocol::Grpc(grpc) = kind(&policy) else {
        panic!("gRPC")
    };
    let [route] = grpc.routes.as_slice() else {
        panic!("one route, and none for what it does not take")
    };
    let resource = resource("gateway.networking.k8s.io", "GRPCRoute", "r", 0);
    assert_eq!(meta(route.metadata.as_ref()), resource);
    assert!(format!("{:?}", route.hosts).contains("[\"org\", \"example\"]"));
    let rule = &route.rules[0];
    let rpc = rule.matches[0].rpc.clone().expect("set");
    assert_eq!((rpc.service.as_str(), rpc.method.as_str()), ("a.B", "C"));
    assert_eq!((rule.matches[0].headers.len(), rule.filters.len()), (1, 1));
    let Some(grpc_route::distribution::Kind::RandomAvailable(random)) =
        rule.backends.as_ref().and_then(|b| b.kind.as_ref())
    else {
        panic!("by weight")
    };
    let show = |weighted: &grpc_route::WeightedRouteBackend| {
        let backend = weighted.backend.as_ref().expect("set");
        let reached = reached(backend.backend.as_ref().expect("set"));
        // 13 is INTERNAL, what a 500 is in gRPC.
        let failing = format!("{:?}", backend.filters).contains("code: 13");
        (weighted.weight, reached, failing)
    };
    assert_eq!(
        random.backends.iter().map(show).collect::<Vec<_>>(),
        expected()
    );
}

#[test]
fn tls_routes_on_the_wire() {
    let route = of_kind("TLSRoute", "r", SERVICE, BACKENDS).replace(
        "rules:",
        "hostnames: [Example.org, '*.example.com'], rules:",
    );
    let policy = ask(&at("10.96.0.10:80"), &[WEB, &route]);
    let Protocol::Tls(tls) = kind(&policy) else {
        panic!("TLS")
    };
    let [route] = tls.routes.as_slice() else {
        panic!("one route")
    };
    let names: Vec<_> = route
        .snis
        .iter()
        .filter_map(|s| s.r#match.clone())
        .collect();
    let labels = vec!["com".to_owned(), "example".to_owned()];
    assert_eq!(
        names,
        [
            sni_match::Match::Exact("example.org".to_owned()),
            sni_match::Match::Suffix(sni_match::Suffix {
                reverse_labels: labels
            }),
        ]
    );
    let [rule] = route.rules.as_slice() else {
        panic!("proxies take exactly one rule")
    };
    let Some(tls_route::distribution::Kind::RandomAvailable(random)) =
        rule.backends.as_ref().and_then(|b| b.kind.as_ref())
    else {
        panic!("by weight")
    };
    let show = |weighted: &tls_route::WeightedRouteBackend| {
        let backend = weighted.backend.as_ref().expect("set");
        let reached = reached(backend.backend.as_ref().expect("set"));
        (
            weighted.weight,
            reached,
            format!("{:?}", backend.filters).contains("Invalid"),
        )
    };
    assert_eq!(
        random.backends.iter().map(show).collect::<Vec<_>>(),
        expected()
    );
}

#[test]
fn of_several_tcp_routes_the_oldest_counts() {
    let young = of_kind("TCPRoute", "a", SERVICE, "").replace(
        "{name: a}",
        "{name: a, creationTimestamp: '2026-02-01T00:00:00Z'}",
    );
    let old = of_kind("TCPRoute", "b", SERVICE, BACKENDS).replace(
        "{name: b}",
        "{name: b, creationTimestamp: '2026-01-01T00:00:00Z'}",
    );
    let policy = ask(&at("10.96.0.10:80"), &[WEB, &young, &old]);
    assert_eq!(names(&policy), ["TCPRoute b"]);
    let Protocol::Opaque(opaque) = kind(&policy) else {
        panic!("opaque")
    };
    let Some(opaque_route::distribution::Kind::RandomAvailable(random)) = opaque.routes[0].rules[0]
        .backends
        .as_ref()
        .and_then(|b| b.kind.as_ref())
    else {
        panic!("by weight")
    };
    let show = |weighted: &opaque_route::WeightedRouteBackend| {
        let backend = weighted.backend.as_ref().expect("set");
        let reached = reached(backend.backend.as_ref().expect("set"));
        (
            weighted.weight,
            reached,
            format!("{:?}", backend.filters).contains("Invalid"),
        )
    };
    assert_eq!(
        random.backends.iter().map(show).collect::<Vec<_>>(),
        expected()
    );
}

#[test]
fn a_route_of_a_lower_kind_counts_at_another_port() {
    let at_80 = SERVICE.replace("default}", "default, port: 80}");
    let at_3306 = SERVICE.replace("default}", "default, port: 3306}");
    let texts = [
        WEB,
        &of_kind("GRPCRoute", "g", &at_80, ""),
        &of_kind("TCPRoute", "t", &at_3306, ""),
    ];
    assert_eq!(names(&ask(&at("10.96.0.10:80"), &texts)), ["GRPCRoute g"]);
    assert_eq!(names(&ask(&at("10.96.0.10:3306"), &texts)), ["TCPRoute t"]);
}

#[test]
fn a_consumers_route_does_not_displace_those_of_others() {
    let consumer =
        of_kind("GRPCRoute", "g", SERVICE, "").replace("{name: g}", "{name: g, namespace: shop}");
    let producer = of_kind("HTTPRoute", "h", SERVICE, "");
    for (namespace, expected) in [("shop", "GRPCRoute g"), ("other", "HTTPRoute h")] {
        let query = OutboundQuery {
            client_namespace: Some(namespace.into()),
            ..at("10.96.0.10:80")
        };
        let policy = ask(&query, &[WEB, &consumer, &producer]);
        assert_eq!(names(&policy), [expected], "{namespace}");
    }
}

#[test]
fn r15_the_first_answer_is_whole_and_follows_a_backend_that_comes_later() {
    let split = of_kind(
        "HTTPRoute",
        "r",
        SERVICE,
        "backendRefs: [{name: canary, port: 8080}]",
    );
    let (shared, views) = views(&[WEB, &split]);
    let query = OutboundQuery {
        client_namespace: Some("b".into()),
        ..at("10.96.0.10:3306")
    };
    let opaque = views.once(&query);
    assert!(matches!(opaque, Outbound::Known(..)));
    let query = OutboundQuery {
        client_namespace: Some("b".into()),
        ..at("10.96.0.10:80")
    };
    let mut watched = views.subscribe(query).expect("room");
    let Outbound::Known(first, _) = watched.latest() else {
        panic!("known")
    };
    assert_eq!(
        names(&first),
        ["HTTPRoute r"],
        "a parent without a port is every port"
    );
    shared.apply(&objects(CANARY)[0]);
    let Outbound::Known(second, _) = watched.latest() else {
        panic!("known")
    };
    assert_ne!(first, second);
}
