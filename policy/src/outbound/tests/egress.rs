//! Traffic that leaves the cluster: which EgressNetwork speaks for an address, what happens without a route, and when a
//! watch ends.

use super::*;

fn allow(name: &str, networks: &str) -> String {
    egress_network(name, &format!("trafficPolicy: Allow{networks}"))
}

fn cidr(cidr: &str) -> String {
    format!(", networks: [{{cidr: {cidr}}}]")
}

/// From a client in `shop`.
fn from_shop(address: &str) -> OutboundQuery {
    OutboundQuery {
        client_namespace: Some("shop".into()),
        ..at(address)
    }
}

const GLOBAL: &str = "namespace: linkerd-egress, name";
const OUT: &str = "93.184.216.34:443";

fn speaker(texts: &[String], address: &str) -> String {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let policy = ask(&from_shop(address), &texts);
    match meta(policy.metadata.as_ref()) {
        Meta::Default(name) => name,
        Meta::Resource(resource) => {
            assert_eq!(
                (resource.group.as_str(), resource.kind.as_str()),
                ("policy.linkerd.io", "EgressNetwork")
            );
            let port: u32 = address
                .rsplit(':')
                .next()
                .expect("with a port")
                .parse()
                .expect("a port");
            assert_eq!(resource.port, port);
            format!("{}/{}", resource.namespace, resource.name)
        }
    }
}

#[test]
fn which_network_speaks_for_an_address() {
    let everything = allow(&format!("{GLOBAL}: all"), "");
    let own = allow("namespace: shop, name: own", &cidr("203.0.113.0/24"));
    let others = allow("namespace: other, name: all", "");
    for (texts, expected) in [
        (vec![], "egress-fallback"),
        (vec![others.clone()], "egress-fallback"),
        (vec![everything.clone()], "linkerd-egress/all"),
        (vec![everything.clone(), others], "linkerd-egress/all"),
        // A namespace with EgressNetworks of its own has only those.
        (vec![everything.clone(), own], "egress-fallback"),
        (
            vec![
                everything.clone(),
                allow("namespace: shop, name: own", &cidr("93.0.0.0/8")),
            ],
            "shop/own",
        ),
        (
            vec![
                allow(&format!("{GLOBAL}: a"), &cidr("93.0.0.0/8")),
                allow(&format!("{GLOBAL}: b"), &cidr("93.184.0.0/16")),
            ],
            "linkerd-egress/b",
        ),
        (
            vec![
                allow(
                    &format!("{GLOBAL}: a, creationTimestamp: '2026-02-01T00:00:00Z'"),
                    &cidr("93.0.0.0/8"),
                ),
                allow(
                    &format!("{GLOBAL}: b, creationTimestamp: '2026-01-01T00:00:00Z'"),
                    &cidr("93.0.0.0/8"),
                ),
            ],
            "linkerd-egress/b",
        ),
        (
            vec![
                allow(&format!("{GLOBAL}: b"), ""),
                allow(&format!("{GLOBAL}: a"), ""),
            ],
            "linkerd-egress/a",
        ),
        (
            vec![
                everything,
                allow(
                    &format!("{GLOBAL}: b"),
                    ", networks: [{cidr: 93.0.0.0/8, except: [93.184.216.34]}]",
                ),
            ],
            "linkerd-egress/all",
        ),
    ] {
        assert_eq!(speaker(&texts, OUT), expected, "{texts:?}");
    }
}

#[test]
fn an_address_of_the_cluster_is_in_no_egress_network() {
    let everything = allow(&format!("{GLOBAL}: all"), &cidr("0.0.0.0/0"));
    assert_eq!(
        views(&[&everything]).1.once(&from_shop("10.1.2.3:80")),
        Outbound::NotFound
    );
}

#[test]
fn without_a_route_the_traffic_policy_decides() {
    for (policy, suffix) in [("Allow", "allow"), ("Deny", "deny")] {
        let network = egress_network(
            &format!("{GLOBAL}: all"),
            &format!("trafficPolicy: {policy}"),
        );
        let answer = ask(&from_shop(OUT), &[&network]);
        let Protocol::Detect(detect) = kind(&answer) else {
            panic!("detected")
        };
        let [route] = routes(&answer) else {
            panic!("one route")
        };
        assert_eq!(
            meta(route.metadata.as_ref()),
            Meta::Default(format!("http-egress-{suffix}"))
        );
        let Some(rules::distribution::Kind::FirstAvailable(first)) = route.rules[0]
            .backends
            .as_ref()
            .and_then(|b| b.kind.as_ref())
        else {
            panic!("the address")
        };
        assert_eq!(
            reached(first.backends[0].backend.as_ref().expect("set")),
            OUT
        );
        let opaque = &detect.opaque.as_ref().expect("set").routes[0];
        assert_eq!(
            meta(opaque.metadata.as_ref()),
            Meta::Default(format!("tcp-egress-{suffix}"))
        );
        let http = format!("{:?}", route.rules[0].filters);
        let tcp = format!("{:?}", opaque.rules[0].filters);
        assert_eq!(
            (http.contains("status: 403"), tcp.contains("Forbidden")),
            (policy == "Deny", policy == "Deny"),
            "{http} {tcp}"
        );
    }
}

const PARENT: &str =
    "{group: policy.linkerd.io, kind: EgressNetwork, name: all, namespace: linkerd-egress}";

fn egress_route(kind: &str, name: &str, rule: &str) -> String {
    let version = if kind == "TCPRoute" { "v1alpha2" } else { "v1" };
    format!(
        "apiVersion: gateway.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{namespace: linkerd-egress, name: {name}}}\n\
         spec: {{parentRefs: [{PARENT}], rules: [{{{rule}}}]}}\n"
    )
}

#[test]
fn what_no_route_of_a_denying_network_takes_is_denied() {
    let network = egress_network(&format!("{GLOBAL}: all"), "trafficPolicy: Deny");
    for (kind, expected, denied) in [
        ("HTTPRoute", "http-egress-deny", "status: 403"),
        ("GRPCRoute", "grpc-egress-deny", "code: 7"),
        ("TLSRoute", "tls-egress-deny", "Forbidden"),
    ] {
        let policy = ask(&from_shop(OUT), &[&network, &egress_route(kind, "r", "")]);
        let shown = format!("{policy:?}");
        let (before, after) = shown.split_once(expected).expect(kind);
        assert!(
            before.contains(&format!("kind: \"{kind}\"")),
            "the route comes first: {before}"
        );
        assert!(
            !before.contains(denied) && after.contains(denied),
            "{shown}"
        );
    }
    // A TCPRoute takes everything.
    let policy = ask(
        &from_shop(OUT),
        &[&network, &egress_route("TCPRoute", "r", "")],
    );
    let shown = format!("{policy:?}");
    assert!(
        shown.contains("TCPRoute") && !shown.contains("egress-deny"),
        "{shown}"
    );
}

#[test]
fn an_egress_network_as_a_backend_is_the_address() {
    let network = allow(&format!("{GLOBAL}: all"), "");
    let other = allow(&format!("{GLOBAL}: other"), &cidr("203.0.113.0/24"));
    let backends = "backendRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: all, weight: 3}, \
        {group: policy.linkerd.io, kind: EgressNetwork, name: other}, \
        {group: policy.linkerd.io, kind: EgressNetwork, name: missing}, \
        {name: web, namespace: default, port: 80}]";
    let shown = |policy: &OutboundPolicy| -> Vec<(u32, String, bool)> {
        let rule = &routes(policy)[0].rules[0];
        let Some(rules::distribution::Kind::RandomAvailable(random)) =
            rule.backends.as_ref().and_then(|b| b.kind.as_ref())
        else {
            panic!("by weight")
        };
        let show = |weighted: &rules::WeightedRouteBackend| {
            let backend = weighted.backend.as_ref().expect("set");
            let reached = reached(backend.backend.as_ref().expect("set"));
            (
                weighted.weight,
                reached,
                format!("{:?}", backend.filters).contains("status: 500"),
            )
        };
        random.backends.iter().map(show).collect()
    };
    let failing = || (1, String::new(), true);
    let web = || (1, "web.default.svc.cluster.local:80".to_owned(), false);
    let policy = ask(
        &from_shop(OUT),
        &[
            WEB,
            &network,
            &other,
            &egress_route("HTTPRoute", "r", backends),
        ],
    );
    assert_eq!(
        shown(&policy),
        [(3, OUT.to_owned(), false), failing(), failing(), web()]
    );

    // On a Service there is no address to forward to.
    let on_service = route(
        GATEWAY,
        "name: r",
        "",
        &backends.replace("name: all", "name: all, namespace: linkerd-egress"),
    );
    let policy = ask(&at("10.96.0.10:80"), &[WEB, &network, &on_service]);
    let failing_3 = (3, String::new(), true);
    assert_eq!(shown(&policy), [failing_3, failing(), failing(), web()]);
}

#[test]
fn opaque_ports_of_an_egress_network() {
    let with = |annotations: &str| {
        allow(
            &format!("namespace: linkerd-egress, annotations: {{{annotations}}}, name: all"),
            "",
        )
    };
    let annotation = "config.linkerd.io/opaque-ports: '443'";
    for (annotations, port, opaque) in [
        ("", 443, false),
        ("", 3306, true),
        (annotation, 443, true),
        (annotation, 3306, false),
    ] {
        let policy = ask(
            &from_shop(&format!("93.184.216.34:{port}")),
            &[&with(annotations)],
        );
        assert_eq!(
            matches!(kind(&policy), Protocol::Opaque(_)),
            opaque,
            "{annotations} {port}"
        );
    }
}

#[tokio::test]
async fn a_watch_ends_when_something_else_speaks_for_the_address() {
    let network = allow(&format!("{GLOBAL}: all"), "");
    let denying = egress_network(&format!("{GLOBAL}: all"), "trafficPolicy: Deny");
    let smaller = allow(&format!("{GLOBAL}: small"), &cidr("93.0.0.0/8"));
    let elsewhere = allow(&format!("{GLOBAL}: else"), &cidr("203.0.113.0/24"));
    let service = WEB.replace("10.96.0.10", "93.184.216.34");
    for (before, change) in [
        (vec![], network.as_str()),
        (vec![network.as_str()], denying.as_str()),
        (vec![network.as_str()], smaller.as_str()),
        (vec![network.as_str()], service.as_str()),
    ] {
        let (shared, views) = views(&before);
        let mut stream =
            OutboundStream::new(views.subscribe(from_shop(OUT)).expect("room")).expect("known");
        stream.next().await.expect("open");
        // What changes nothing for this address ends nothing, and routes come within the stream.
        shared.apply(&objects(&elsewhere)[0]);
        if !before.is_empty() {
            shared.apply(&objects(&egress_route("HTTPRoute", "r", ""))[0]);
            assert_eq!(routes(&stream.next().await.expect("open")).len(), 2);
        }
        shared.apply(&objects(change)[0]);
        let ended = stream.next().await.expect_err(change);
        assert_eq!(ended.code(), tonic::Code::Ok, "{change}");
    }
}
