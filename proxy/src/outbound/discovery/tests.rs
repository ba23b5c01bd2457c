//! What is known of destinations: limits and memory of the cache, and how answers are combined.

use super::*;
use crate::testing;
use linkerd2_proxy_api::{destination as dst, meta};
use std::net::Ipv4Addr;

const IDLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(10);

fn backends() -> Arc<Backends> {
    let (context, _) = testing::outbound(&[]);
    let client = DestinationClient::new(testing::dead_channel());
    Arc::new(Backends::new(
        context,
        client,
        String::new(),
        testing::watch(),
    ))
}

fn discovery() -> Discovery {
    let queries = Queries {
        policies: OutboundPoliciesClient::new(testing::dead_channel()),
        profiles: DestinationClient::new(testing::dead_channel()),
        workload: "test:test".into(),
        context_token: String::new(),
        profile_networks: Vec::new(),
        policy_watch: testing::watch(),
        profile_watch: testing::watch(),
    };
    Discovery::new(backends(), queries, IDLE)
}

fn addr(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 96, 0, 1), port).into()
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_waited_for_only_so_long() {
    let discovery = discovery();
    let start = Instant::now();
    let found = discovery.find(addr(80), LIMIT).await;
    assert!(matches!(found, Err(Error::Undiscovered(_))));
    assert_eq!(start.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_destination_is_forgotten_after_its_last_use() {
    let discovery = discovery();
    let known = || discovery.entries.lock().len();
    let used = Destination(discovery.entry(addr(1)).unwrap());
    drop(Destination(discovery.entry(addr(2)).unwrap()));
    assert_eq!(known(), 2);
    tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
    assert_eq!(known(), 2);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(known(), 1, "the other is in use");
    drop(used);
    tokio::time::sleep(IDLE + Duration::from_secs(2)).await;
    assert_eq!(known(), 0);
}

fn status(code: Code) -> Result<api::OutboundPolicy, Status> {
    Err(Status::new(code, "test"))
}

fn resource(name: &str) -> Option<meta::Metadata> {
    Some(meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(meta::Resource {
            kind: "Service".into(),
            name: name.into(),
            port: 80,
            ..Default::default()
        })),
    })
}

fn opaque(filter: Option<api::opaque_route::Filter>) -> Result<api::OutboundPolicy, Status> {
    let rule = api::opaque_route::Rule {
        backends: Some(api::opaque_route::Distribution {
            kind: Some(api::opaque_route::distribution::Kind::Empty(
                api::opaque_route::distribution::Empty {},
            )),
        }),
        filters: filter.into_iter().collect(),
    };
    let route = api::OpaqueRoute {
        metadata: resource("opaq"),
        rules: vec![rule],
    };
    Ok(api::OutboundPolicy {
        metadata: resource("web"),
        protocol: Some(api::ProxyProtocol {
            kind: Some(api::proxy_protocol::Kind::Opaque(
                api::proxy_protocol::Opaque {
                    routes: vec![route],
                },
            )),
        }),
    })
}

#[tokio::test]
async fn an_unknown_address_is_forwarded_to_as_it_is() {
    let backends = backends();
    for code in [Code::NotFound, Code::Unimplemented] {
        let policy = compile(addr(80), &backends, &status(code), None);
        assert_eq!(&*policy.parent.name, "fallback");
        assert!(matches!(policy.protocol, Protocol::Detect { .. }));
    }
}

#[tokio::test]
async fn a_profile_names_the_endpoint_of_an_unknown_address_and_may_make_it_opaque() {
    let profile = DestinationProfile {
        opaque_protocol: true,
        endpoint: Some(dst::WeightedAddr {
            addr: Some(addr(80).into()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let policy = compile(
        addr(80),
        &backends(),
        &status(Code::NotFound),
        Some(&profile),
    );
    assert_eq!(&*policy.parent.name, "endpoint");
    assert!(matches!(policy.protocol, Protocol::Opaque(_)));
}

#[tokio::test]
async fn a_refusal_lets_nothing_through() {
    let policy = compile(addr(80), &backends(), &status(Code::InvalidArgument), None);
    assert!(matches!(policy.protocol, Protocol::Invalid(_)));
}

#[tokio::test]
async fn a_policy_that_is_not_understood_lets_nothing_through() {
    let empty = Ok(api::OutboundPolicy::default());
    let policy = compile(addr(80), &backends(), &empty, None);
    assert!(matches!(policy.protocol, Protocol::Invalid(_)));
}

#[tokio::test]
async fn a_forbidden_route_stays_forbidden_whatever_the_profile_says() {
    let forbidden = api::opaque_route::Filter {
        kind: Some(api::opaque_route::filter::Kind::Forbidden(
            Default::default(),
        )),
    };
    let profile = DestinationProfile {
        dst_overrides: vec![dst::WeightedDst {
            authority: "other.test.svc.cluster.local:80".into(),
            weight: 1,
            backend_ref: None,
        }],
        ..Default::default()
    };
    let policy = compile(
        addr(80),
        &backends(),
        &opaque(Some(forbidden)),
        Some(&profile),
    );
    let Protocol::Opaque(route) = policy.protocol else {
        panic!("opaque stays opaque");
    };
    assert_eq!(route.refused, Some("forbidden"));
}

#[tokio::test]
async fn a_profile_can_send_traffic_elsewhere() {
    let dst = |authority: &str, weight| dst::WeightedDst {
        authority: authority.into(),
        weight,
        backend_ref: None,
    };
    let profile = DestinationProfile {
        dst_overrides: vec![
            dst("a.test.svc.cluster.local:80", 1),
            dst("b.test.svc.cluster.local:80", 3),
        ],
        ..Default::default()
    };
    let policy = compile(addr(80), &backends(), &opaque(None), Some(&profile));
    let Protocol::Opaque(route) = policy.protocol else {
        panic!("opaque stays opaque");
    };
    let Distribution::Random { weights, .. } = &route.backends else {
        panic!("weighted");
    };
    assert_eq!(weights, &[1, 3]);
}
