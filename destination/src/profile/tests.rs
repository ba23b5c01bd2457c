//! Profiles: each case of the contract's table.

mod object;
mod workloads;

use std::path::Path;

use linkerd2_proxy_api::{destination::WeightedAddr, meta};
use prost::Message;
use weft_cluster::{MeshSettings, Shared, Views, manifests};

use super::*;

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {config.linkerd.io/opaque-ports: '81'}}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: raw, port: 81}, {name: mysql, port: 3306}]}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: 10.96.0.11, ports: [{port: 3306}]}
---
apiVersion: v1
kind: Service
metadata: {name: one}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1], hostname: web-0, targetRef: {kind: Pod, name: p}}]
---
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {linkerd.io/control-plane-ns: linkerd}, annotations: {config.linkerd.io/opaque-ports: '9000'}}
spec: {containers: [{name: app}]}
status: {podIP: 10.1.0.1, conditions: [{type: Ready, status: 'False'}]}
";

fn views() -> (Arc<Shared>, Arc<Views<ProfileQuery>>) {
    let shared = Shared::new();
    for object in manifests::parse(Path::new("test.yaml"), OBJECTS).expect("valid") {
        assert_eq!(shared.apply(&object).invalid, []);
    }
    (
        Arc::clone(&shared),
        Views::new(shared, Settings::new(MeshSettings::default()), 100),
    )
}

fn query(target: ProfileTarget, port: u16) -> ProfileQuery {
    ProfileQuery {
        target,
        port,
        zone: None,
        namespace: None,
    }
}

fn ask(target: ProfileTarget, port: u16) -> DestinationProfile {
    match views().1.once(&query(target, port)) {
        Profile::Known(known) => known.profile.clone(),
        other => panic!("{other:?}"),
    }
}

async fn next(stream: &mut ProfileStream) -> DestinationProfile {
    let message = stream.next().await.expect("open");
    DestinationProfile::decode(message.get(5..).expect("a header")).expect("a message")
}

fn ip(text: &str) -> ProfileTarget {
    ProfileTarget::Address(text.parse().expect("an address"))
}

fn name(text: &str) -> ProfileTarget {
    ProfileTarget::Service(Name::new("default", text))
}

#[test]
fn services_by_address_and_by_name() {
    let by_ip = ask(ip("10.96.0.10"), 80);
    assert_eq!(by_ip, ask(name("web"), 80));
    assert_eq!(by_ip.fully_qualified_name, "web.default.svc.cluster.local");
    assert!(!by_ip.opaque_protocol && by_ip.endpoint.is_none());
    let budget = by_ip.retry_budget.expect("set");
    assert_eq!(
        (
            budget.retry_ratio,
            budget.min_retries_per_second,
            budget.ttl.map(|t| t.seconds)
        ),
        (0.2, 10, Some(10))
    );
    let Some(meta::metadata::Kind::Resource(parent)) = by_ip.parent_ref.and_then(|m| m.kind) else {
        panic!("a resource")
    };
    assert_eq!(
        (&*parent.group, &*parent.kind, &*parent.name, parent.port),
        ("core", "Service", "web", 80)
    );
}

#[test]
fn opaque_ports_of_services() {
    assert!(ask(name("web"), 81).opaque_protocol, "by annotation");
    assert!(
        !ask(name("web"), 3306).opaque_protocol,
        "the annotation replaces the default list"
    );
    assert!(ask(name("db"), 3306).opaque_protocol, "by the default list");
}

#[test]
fn what_a_service_does_not_have_is_empty() {
    assert_eq!(ask(ip("10.96.0.10"), 8080), DestinationProfile::default());
    assert_eq!(ask(name("missing"), 80), DestinationProfile::default());
}

#[test]
fn endpoints_have_no_name() {
    // A pod counts when it runs, even if it is not ready.
    let pod = ask(ip("10.1.0.1"), 8080);
    assert_eq!(pod.fully_qualified_name, "");
    assert!(pod.retry_budget.is_some() && !pod.opaque_protocol);
    let endpoint = pod.endpoint.expect("set");
    assert_eq!(
        endpoint.addr,
        Some(SocketAddr::from(([10, 1, 0, 1], 8080)).into())
    );
    assert!(endpoint.tls_identity.is_some());
    assert!(ask(ip("10.1.0.1"), 9000).opaque_protocol);

    let by_hostname = ask(
        ProfileTarget::Hostname(Name::new("default", "web"), "web-0".into()),
        80,
    );
    assert_eq!(by_hostname.endpoint, Some(endpoint));

    let unknown = ask(ip("10.1.0.99"), 8080);
    let bare = WeightedAddr {
        addr: Some(SocketAddr::from(([10, 1, 0, 99], 8080)).into()),
        weight: 10_000,
        ..Default::default()
    };
    assert_eq!(unknown.endpoint, Some(bare));
}

#[test]
fn refusals() {
    let (_, views) = views();
    let conflict = views.once(&query(ip("10.96.0.12"), 80));
    assert_eq!(
        message(&conflict).expect_err("two Services").code(),
        tonic::Code::FailedPrecondition
    );
    let host = ProfileTarget::Hostname(Name::new("default", "web"), "web-9".into());
    assert_eq!(
        message(&views.once(&query(host, 80)))
            .expect_err("no such pod")
            .code(),
        tonic::Code::NotFound
    );
}

#[tokio::test]
async fn an_address_may_become_a_service_and_back() {
    let (shared, views) = views();
    let mut stream =
        ProfileStream::new(views.subscribe(query(ip("10.96.0.50"), 80)).expect("room"))
            .expect("known");
    assert!(next(&mut stream).await.endpoint.is_some());
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {clusterIP: 10.96.0.50, ports: [{port: 80}]}\n";
    let new = manifests::parse(Path::new("test.yaml"), text)
        .expect("valid")
        .remove(0);
    shared.apply(&new);
    assert_eq!(
        next(&mut stream).await.fully_qualified_name,
        "new.default.svc.cluster.local"
    );
    shared.delete(&new.reference());
    assert!(next(&mut stream).await.endpoint.is_some());
    assert_eq!(
        futures_util::FutureExt::now_or_never(stream.next()).map(|_| ()),
        None
    );
}
