//! Rate limits of Servers: which policy counts, and what it says on the wire.

use linkerd2_proxy_api::inbound::HttpLocalRateLimit;

use super::*;

fn limit(name: &str, created: &str, target: &str, spec: &str) -> String {
    format!(
        "apiVersion: policy.linkerd.io/v1alpha1
kind: HTTPLocalRateLimitPolicy
metadata: {{name: {name}, creationTimestamp: '2026-01-{created}T00:00:00Z'}}
spec: {{targetRef: {{group: policy.linkerd.io, kind: Server, name: {target}}}, {spec}}}
"
    )
}

fn limit_of(server: &api::Server) -> Option<HttpLocalRateLimit> {
    match server.protocol.as_ref().and_then(|p| p.kind.as_ref()) {
        Some(Protocol::Detect(d)) => d.http_local_rate_limit.clone(),
        Some(Protocol::Http1(h)) => h.local_rate_limit.clone(),
        Some(Protocol::Http2(h)) => h.local_rate_limit.clone(),
        Some(Protocol::Grpc(_) | Protocol::Opaque(_) | Protocol::Tls(_)) => None,
        None => panic!("no protocol"),
    }
}

#[test]
fn a_rate_limit_on_the_wire() {
    let spec = "total: {requestsPerSecond: 100}, identity: {requestsPerSecond: 10}, \
        overrides: [{requestsPerSecond: 50, clientRefs: [{kind: ServiceAccount, name: api}, {kind: ServiceAccount, name: web, namespace: shop}, {kind: ServiceAccount, name: 'not a name'}]}]";
    for protocol in ["unknown", "HTTP/1", "HTTP/2"] {
        let server = SERVER.replace("HTTP/1", protocol);
        let limit = limit("a", "01", "web", spec);
        let found = limit_of(&ask(settings(), 8080, &[POD, &server, &limit])).expect("limited");
        let resource = wire::resource("policy.linkerd.io", "HTTPLocalRateLimitPolicy", "a");
        assert_eq!(found.metadata, Some(wire::resource_meta(resource)));
        assert_eq!(found.total.map(|l| l.requests_per_second), Some(100));
        assert_eq!(found.identity.map(|l| l.requests_per_second), Some(10));
        let [given] = found.overrides.as_slice() else {
            panic!("one override")
        };
        assert_eq!(given.limit.map(|l| l.requests_per_second), Some(50));
        let clients = given.clients.clone().expect("set").identities;
        let names: Vec<_> = clients.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "api.default.serviceaccount.identity.linkerd.cluster.local",
                "web.shop.serviceaccount.identity.linkerd.cluster.local",
            ]
        );
    }
}

#[test]
fn of_several_rate_limits_the_oldest_counts() {
    let total = |n: u32| format!("total: {{requestsPerSecond: {n}}}");
    let young = limit("a", "03", "web", &total(1));
    let old = limit("c", "01", "web", &total(2));
    let twin = limit("b", "01", "web", &total(3));
    let other = limit("d", "01", "other", &total(4));
    for (texts, expected) in [
        (vec![&young], Some(1)),
        (vec![&young, &old], Some(2)),
        (vec![&young, &old, &twin], Some(3)),
        (vec![&other], None),
        (vec![], None),
    ] {
        let mut all = vec![POD, SERVER];
        all.extend(texts.iter().map(|text| text.as_str()));
        let found = limit_of(&ask(settings(), 8080, &all));
        let total = found.and_then(|l| l.total).map(|l| l.requests_per_second);
        assert_eq!(total, expected, "{texts:?}");
    }
}

#[test]
fn ports_without_a_rate_limit() {
    let limit = limit("a", "01", "web", "total: {requestsPerSecond: 1}");
    for protocol in ["gRPC", "opaque", "TLS"] {
        let server = SERVER.replace("HTTP/1", protocol);
        let found = ask(settings(), 8080, &[POD, &server, &limit]);
        assert_eq!(limit_of(&found), None, "{protocol}");
    }
    assert_eq!(
        limit_of(&ask(settings(), 8081, &[POD, SERVER, &limit])),
        None
    );
}
