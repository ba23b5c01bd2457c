//! Outbound policy: lookups, protocols, routes, backends; and that watched states are never stale.

mod egress;
mod protocols;
mod traffic;

use std::path::Path;

use linkerd2_proxy_api::{
    http_route::Timeouts,
    meta::{Metadata, Resource, metadata::Kind as Meta},
    outbound::{self as api, backend, http_route as rules, proxy_protocol::Kind as Protocol},
};
use proptest::prelude::*;
use weft_cluster::{MeshSettings, Object, Shared, Views, manifests};

use super::*;
use crate::wire;

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

fn views(texts: &[&str]) -> (Arc<Shared>, Arc<Views<OutboundQuery>>) {
    let shared = Shared::new();
    for object in texts.iter().flat_map(|text| objects(text)) {
        assert_eq!(shared.apply(&object).invalid, []);
    }
    let settings = Settings::new(MeshSettings::default());
    (Arc::clone(&shared), Views::new(shared, settings, 100))
}

fn at(address: &str) -> OutboundQuery {
    OutboundQuery {
        target: OutboundTarget::Address(address.parse().expect("an address")),
        client_namespace: None,
    }
}

fn ask(query: &OutboundQuery, texts: &[&str]) -> OutboundPolicy {
    match views(texts).1.once(query) {
        Outbound::Known(policy, _) => OutboundPolicy::clone(&policy),
        Outbound::NotFound => panic!("not found"),
    }
}

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: db, port: 3306}]}
";
const CANARY: &str = "
apiVersion: v1
kind: Service
metadata: {name: canary}
spec: {clusterIP: 10.96.0.11, ports: [{port: 8080}]}
";

fn kind(policy: &OutboundPolicy) -> &Protocol {
    policy
        .protocol
        .as_ref()
        .and_then(|p| p.kind.as_ref())
        .expect("set")
}

fn routes(policy: &OutboundPolicy) -> &[api::HttpRoute] {
    match kind(policy) {
        Protocol::Detect(detect) => {
            let (http1, http2) = (
                detect.http1.as_ref().expect("set"),
                detect.http2.as_ref().expect("set"),
            );
            assert_eq!(http1.routes, http2.routes);
            &http1.routes
        }
        Protocol::Http1(http) => &http.routes,
        Protocol::Http2(http) => &http.routes,
        other => panic!("{other:?}"),
    }
}

fn resource(group: &str, kind: &str, name: &str, port: u32) -> Meta {
    let (group, kind, name, namespace) = (
        group.to_owned(),
        kind.to_owned(),
        name.to_owned(),
        "default".to_owned(),
    );
    Meta::Resource(Resource {
        group,
        kind,
        name,
        namespace,
        section: String::new(),
        port,
    })
}

fn meta(metadata: Option<&Metadata>) -> Meta {
    metadata
        .and_then(|m| m.kind.clone())
        .expect("metadata is mandatory")
}

/// Path that a backend is discovered by, or the address it is; nothing when it cannot be reached.
fn reached(backend: &api::Backend) -> String {
    match &backend.kind {
        Some(backend::Kind::Balancer(balancer)) => {
            match balancer.discovery.as_ref().and_then(|d| d.kind.as_ref()) {
                Some(backend::endpoint_discovery::Kind::Dst(dst)) => dst.path.clone(),
                None => panic!("no discovery"),
            }
        }
        Some(backend::Kind::Forward(to)) => SocketAddr::try_from(to.addr.expect("set"))
            .expect("valid")
            .to_string(),
        None => String::new(),
    }
}

#[test]
fn a_service_without_routes() {
    let policy = ask(&at("10.96.0.10:80"), &[WEB]);
    assert_eq!(
        meta(policy.metadata.as_ref()),
        resource("core", "Service", "web", 80)
    );
    let Protocol::Detect(detect) = kind(&policy) else {
        panic!("detected")
    };
    assert_eq!(detect.timeout.map(|t| t.seconds), Some(10));
    let opaque = &detect.opaque.as_ref().expect("set").routes[0];
    assert_eq!(
        meta(opaque.metadata.as_ref()),
        Meta::Default("opaq".to_owned())
    );
    assert_eq!(
        (
            detect.opaque.as_ref().expect("set").routes.len(),
            opaque.rules.len()
        ),
        (1, 1)
    );
    let [route] = routes(&policy) else {
        panic!("one route")
    };
    assert_eq!(
        meta(route.metadata.as_ref()),
        Meta::Default("http".to_owned())
    );
    assert_eq!(route.rules[0].matches, [wire::match_all()]);
    let Some(rules::distribution::Kind::FirstAvailable(first)) = route.rules[0]
        .backends
        .as_ref()
        .and_then(|b| b.kind.as_ref())
    else {
        panic!("the Service itself")
    };
    let backend = first.backends[0].backend.as_ref().expect("set");
    assert_eq!(reached(backend), "web.default.svc.cluster.local:80");
    assert_eq!(
        meta(backend.metadata.as_ref()),
        resource("core", "Service", "web", 80)
    );
    let Some(backend::Kind::Balancer(balancer)) = &backend.kind else {
        panic!("a balancer")
    };
    let Some(backend::balance_p2c::Load::PeakEwma(load)) = &balancer.load else {
        panic!("peak EWMA")
    };
    assert_eq!(
        (
            load.default_rtt.map(|d| d.nanos),
            load.decay.map(|d| d.seconds)
        ),
        (Some(30_000_000), Some(10))
    );
    let queue = backend.queue.as_ref().expect("set");
    assert_eq!(
        (queue.capacity, queue.failfast_timeout.map(|t| t.seconds)),
        (100, Some(3))
    );
}

#[test]
fn protocols() {
    for (service, port, expected) in [
        (WEB.to_owned(), 80, "Detect"),
        (WEB.to_owned(), 3306, "Opaque"),
        (
            WEB.replace("port: 3306", "port: 3306, appProtocol: http"),
            3306,
            "Http1",
        ),
        (
            WEB.replace("port: 80", "port: 80, appProtocol: http"),
            80,
            "Http1",
        ),
        (
            WEB.replace("port: 80", "port: 80, appProtocol: kubernetes.io/h2c"),
            80,
            "Http2",
        ),
        (
            WEB.replace("port: 80", "port: 80, appProtocol: linkerd.io/opaque"),
            80,
            "Opaque",
        ),
        (
            WEB.replace("port: 80", "port: 80, appProtocol: mysql"),
            80,
            "Opaque",
        ),
        (
            WEB.replace(
                "{name: web}",
                "{name: web, annotations: {config.linkerd.io/opaque-ports: '80'}}",
            ),
            80,
            "Opaque",
        ),
        (
            WEB.replace(
                "{name: web}",
                "{name: web, annotations: {config.linkerd.io/opaque-ports: '80'}}",
            ),
            3306,
            "Detect",
        ),
    ] {
        let shown = format!(
            "{:?}",
            kind(&ask(&at(&format!("10.96.0.10:{port}")), &[&service]))
        );
        assert!(shown.starts_with(expected), "{service} {port}: {shown}");
    }
}

#[test]
fn a_port_that_is_not_declared_is_closed_at_once() {
    let policy = ask(&at("10.96.0.10:8080"), &[WEB]);
    let Protocol::Opaque(opaque) = kind(&policy) else {
        panic!("opaque")
    };
    let [route] = opaque.routes.as_slice() else {
        panic!("one route")
    };
    assert_eq!(
        meta(route.metadata.as_ref()),
        Meta::Default("undefined-port".to_owned())
    );
    assert!(format!("{:?}", route.rules[0].filters).contains("Forbidden"));
    assert!(format!("{:?}", route.rules[0].backends).contains("Empty"));
}

#[test]
fn addresses_that_are_no_service() {
    let (_, views) = views(&[WEB]);
    assert_eq!(
        views.once(&at("10.96.0.99:80")),
        Outbound::NotFound,
        "in the cluster"
    );
    let policy = ask(&at("93.184.216.34:443"), &[WEB]);
    assert_eq!(
        meta(policy.metadata.as_ref()),
        Meta::Default("egress-fallback".to_owned())
    );
    let [route] = routes(&policy) else {
        panic!("one route")
    };
    let Some(rules::distribution::Kind::FirstAvailable(first)) = route.rules[0]
        .backends
        .as_ref()
        .and_then(|b| b.kind.as_ref())
    else {
        panic!("the address")
    };
    assert_eq!(
        reached(first.backends[0].backend.as_ref().expect("set")),
        "93.184.216.34:443"
    );
    let outside = "apiVersion: v1\nkind: Service\nmetadata: {name: out}\nspec: {type: ExternalName, externalName: x.org}\n";
    let named = |name| OutboundQuery {
        target: OutboundTarget::Service(Name::new("default", name), 80),
        client_namespace: None,
    };
    assert_eq!(
        self::views(&[outside]).1.once(&named("out")),
        Outbound::NotFound
    );
    assert_eq!(views.once(&named("none")), Outbound::NotFound);
    assert_eq!(views.once(&named("web")), views.once(&at("10.96.0.10:80")));
}

fn route(group: &str, metadata: &str, parent: &str, rule: &str) -> String {
    format!(
        "apiVersion: {group}
kind: HTTPRoute
metadata: {{{metadata}}}
spec: {{parentRefs: [{{group: core, kind: Service, name: web, namespace: default{parent}}}], rules: [{{{rule}}}]}}
"
    )
}

const GATEWAY: &str = "gateway.networking.k8s.io/v1";
const POLICY: &str = "policy.linkerd.io/v1beta3";

#[test]
fn weights_filters_and_backends_that_cannot_be_reached() {
    let rule = "matches: [{path: {type: Exact, value: /a}, headers: [{name: X-Y, value: z}], queryParams: [{type: RegularExpression, name: q, value: 'v.*'}]}], \
        filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: a, value: b}]}}], \
        backendRefs: [{name: web, port: 80, weight: 90}, \
          {name: canary, port: 8080, weight: 10, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [c]}}]}, \
          {name: missing, port: 80}, {name: web}, {kind: Bucket, group: s3, name: b, port: 1}]";
    for group in [GATEWAY, POLICY] {
        let policy = ask(
            &at("10.96.0.10:80"),
            &[WEB, CANARY, &route(group, "name: split", "", rule)],
        );
        let [route] = routes(&policy) else {
            panic!("the default route is for Services without routes")
        };
        let group = group.split_once('/').expect("with a version").0;
        assert_eq!(
            meta(route.metadata.as_ref()),
            resource(group, "HTTPRoute", "split", 0)
        );
        let rule = &route.rules[0];
        assert_eq!(
            (
                rule.matches[0].headers.len(),
                rule.matches[0].query_params.len()
            ),
            (1, 1)
        );
        assert!(
            matches!(
                rule.filters[0].kind,
                Some(rules::filter::Kind::ResponseHeaderModifier(_))
            ),
            "{group}"
        );
        let Some(rules::distribution::Kind::RandomAvailable(random)) =
            rule.backends.as_ref().and_then(|b| b.kind.as_ref())
        else {
            panic!("by weight")
        };
        let shown: Vec<_> = random
            .backends
            .iter()
            .map(|weighted| {
                let backend = weighted.backend.as_ref().expect("set");
                let failing = format!("{:?}", backend.filters).contains("FailureInjector");
                (
                    weighted.weight,
                    reached(backend.backend.as_ref().expect("set")),
                    backend.filters.len(),
                    failing,
                )
            })
            .collect();
        let none = || (1, String::new(), 1, true);
        assert_eq!(
            shown,
            [
                (90, "web.default.svc.cluster.local:80".to_owned(), 0, false),
                (
                    10,
                    "canary.default.svc.cluster.local:8080".to_owned(),
                    1,
                    false
                ),
                none(),
                none(),
                none(),
            ]
        );
        for weighted in &random.backends {
            let backend = weighted
                .backend
                .as_ref()
                .and_then(|b| b.backend.as_ref())
                .expect("set");
            meta(backend.metadata.as_ref());
        }
    }
}

#[test]
fn producer_and_consumer_routes() {
    let texts = [
        WEB,
        CANARY,
        &route(
            GATEWAY,
            "name: producer, creationTimestamp: '2026-01-02T00:00:00Z'",
            "",
            "",
        ),
        &route(
            GATEWAY,
            "name: consumer, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'",
            "",
            "",
        ),
        &route(
            GATEWAY,
            "name: on-3306, creationTimestamp: '2026-01-03T00:00:00Z'",
            ", port: 3306",
            "",
        ),
        &route(
            GATEWAY,
            "name: on-80, creationTimestamp: '2026-01-03T00:00:00Z'",
            ", port: 80",
            "",
        ),
    ];
    let names = |namespace: Option<&str>| -> Vec<String> {
        let query = OutboundQuery {
            client_namespace: namespace.map(Into::into),
            ..at("10.96.0.10:80")
        };
        let policy = ask(&query, &texts);
        let name = |route: &api::HttpRoute| match meta(route.metadata.as_ref()) {
            Meta::Resource(resource) => resource.name,
            Meta::Default(name) => name,
        };
        routes(&policy).iter().map(name).collect()
    };
    assert_eq!(names(None), ["producer", "on-80"]);
    assert_eq!(names(Some("other")), ["producer", "on-80"]);
    assert_eq!(
        names(Some("shop")),
        ["consumer", "producer", "on-80"],
        "oldest first"
    );
}

#[test]
fn time_limits() {
    let seconds = |timeouts: &Timeouts| {
        [&timeouts.request, &timeouts.response, &timeouts.idle]
            .map(|t| t.as_ref().map(|t| t.seconds))
    };
    let annotated = WEB.replace(
        "{name: web}",
        "{name: web, annotations: {timeout.linkerd.io/request: 9s, timeout.linkerd.io/idle: 8s}}",
    );
    let field = "timeouts: {request: 1s}";
    for (service, metadata, rule, expected) in [
        (WEB, "name: r", "", [None, None, None]),
        (WEB, "name: r", field, [Some(1), None, None]),
        (
            WEB,
            "name: r, annotations: {timeout.linkerd.io/request: 2s}",
            field,
            [Some(2), None, None],
        ),
        (
            WEB,
            "name: r, annotations: {timeout.linkerd.io/idle: 3s}",
            field,
            [Some(1), None, Some(3)],
        ),
        (&annotated, "name: r", "", [Some(9), None, Some(8)]),
        (&annotated, "name: r", field, [Some(1), None, None]),
        (
            &annotated,
            "name: r, annotations: {timeout.linkerd.io/response: 4s}",
            "",
            [None, Some(4), None],
        ),
    ] {
        // Case H18: the same in both groups.
        for group in [GATEWAY, POLICY] {
            let policy = ask(
                &at("10.96.0.10:80"),
                &[service, &route(group, metadata, "", rule)],
            );
            let timeouts = routes(&policy)[0].rules[0].timeouts.expect("set");
            assert_eq!(seconds(&timeouts), expected, "{group} {metadata} {rule}");
        }
    }
    let policy = ask(&at("10.96.0.10:80"), &[&annotated]);
    assert_eq!(
        seconds(routes(&policy)[0].rules[0].timeouts.as_ref().expect("set")),
        [Some(9), None, Some(8)]
    );
}

#[test]
fn a_headless_service_is_no_parent_and_a_bad_route_changes_nothing() {
    let headless = WEB.replace("10.96.0.10", "None");
    let query = OutboundQuery {
        target: OutboundTarget::Service(Name::new("default", "web"), 80),
        client_namespace: None,
    };
    let policy = ask(&query, &[&headless, &route(GATEWAY, "name: r", "", "")]);
    assert_eq!(
        meta(routes(&policy)[0].metadata.as_ref()),
        Meta::Default("http".to_owned())
    );

    let (shared, views) = views(&[
        WEB,
        &route(GATEWAY, "name: r", "", "timeouts: {request: 1s}"),
    ]);
    let before = views.once(&query);
    let changed =
        shared.apply(&objects(&route(GATEWAY, "name: r", "", "timeouts: {request: soon}"))[0]);
    assert!(changed.keys.is_empty() && changed.invalid[0].refused);
    assert_eq!(views.once(&query), before);
}

#[tokio::test]
async fn a_stream_ends_when_its_target_goes() {
    let (shared, views) = views(&[WEB]);
    let mut stream =
        OutboundStream::new(views.subscribe(at("10.96.0.10:80")).expect("room")).expect("known");
    stream.next().await.expect("open");
    shared.apply(&objects(&route(GATEWAY, "name: r", "", ""))[0]);
    assert_eq!(routes(&stream.next().await.expect("open")).len(), 1);
    shared.delete(&objects(WEB)[0].reference());
    assert_eq!(
        stream.next().await.expect_err("gone").code(),
        tonic::Code::NotFound
    );
}

fn egress_network(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: policy.linkerd.io/v1alpha1\nkind: EgressNetwork\nmetadata: {{{name}}}\nspec: {{{spec}}}\n"
    )
}

/// Everything that the policies below can depend on; each object in two versions.
fn universe() -> Vec<[Object; 2]> {
    let pair = |a: &str, b: &str| [objects(a).remove(0), objects(b).remove(0)];
    let split = |name: &str| format!("backendRefs: [{{name: {name}, port: 8080}}]");
    let grpc = route(GATEWAY, "name: g", "", "").replace("HTTPRoute", "GRPCRoute");
    let egress = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: all, namespace: linkerd-egress}]";
    let tcp = format!(
        "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {{name: t, namespace: linkerd-egress}}\n\
         spec: {{{egress}, rules: [{{}}]}}\n"
    );
    let global = "name: all, namespace: linkerd-egress";
    vec![
        pair(
            WEB,
            &WEB.replace("port: 80}", "port: 80, appProtocol: http}"),
        ),
        pair(CANARY, &CANARY.replace("10.96.0.11", "10.96.0.10")),
        pair(
            &route(GATEWAY, "name: r", "", ""),
            &route(GATEWAY, "name: r", "", &split("canary")),
        ),
        pair(
            &route(POLICY, "name: r, namespace: shop", "", ""),
            &route(POLICY, "name: r, namespace: shop", ", port: 81", ""),
        ),
        pair(
            &grpc,
            &grpc.replace("namespace: default", "namespace: default, port: 80"),
        ),
        pair(
            &egress_network(global, "trafficPolicy: Allow"),
            &egress_network(
                global,
                "trafficPolicy: Deny, networks: [{cidr: 10.0.0.0/7}]",
            ),
        ),
        pair(
            &egress_network(
                "name: own, namespace: shop",
                "trafficPolicy: Deny, networks: [{cidr: 93.0.0.0/8}]",
            ),
            &egress_network(
                "name: own, namespace: shop",
                "trafficPolicy: Deny, networks: [{cidr: 94.0.0.0/8}]",
            ),
        ),
        pair(
            &tcp,
            &tcp.replace(
                "rules: [{}]",
                "rules: [{backendRefs: [{name: web, namespace: default, port: 80}]}]",
            ),
        ),
    ]
}

proptest! {
    /// A watched state is what somebody who asks now gets, whatever has changed in which order: no dependency is missed.
    #[test]
    fn watched_policies_are_never_stale(steps in prop::collection::vec((0..8usize, 0..3usize), 1..40)) {
        let (shared, views) = views(&[]);
        let queries = ["10.96.0.10:80", "93.184.216.34:443"].map(|address| OutboundQuery {
            client_namespace: Some("shop".into()),
            ..at(address)
        });
        let mut watched = queries.clone().map(|query| views.subscribe(query).expect("room"));
        let universe = universe();
        for (object, what) in steps {
            match universe[object].get(what) {
                Some(version) => shared.apply(version),
                None => shared.delete(&universe[object][0].reference()),
            };
            for (query, watched) in queries.iter().zip(&mut watched) {
                prop_assert_eq!(watched.latest(), views.once(query));
            }
        }
    }
}
