//! Policy while the index is being filled: nothing is answered from half of the objects, since what is still missing could be
//! what denies. Over real connections; the objects come in the order in which an API server may give them.

use std::{path::Path, time::Duration};

use linkerd2_proxy_api::{
    inbound::PortSpec,
    outbound::{TrafficSpec, traffic_spec::Target},
};
use tokio::time::timeout;
use tonic::Code;
use weft_cluster::manifests;

use crate::Running;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web, linkerd.io/control-plane-ns: linkerd}}
spec: {serviceAccountName: web, containers: [{name: app, ports: [{name: http, containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.1.0.1}
";
const DENY: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, port: http}
";
const DENY_EGRESS: &str = "
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: out, namespace: shop}
spec: {trafficPolicy: Deny}
";
/// Longer than an answer waits for the index; proxies wait for 3 s (contract 1.2).
const PATIENCE: Duration = Duration::from_secs(3);

fn apply(running: &Running, text: &str) {
    for object in manifests::parse(Path::new("test.yaml"), text).expect("valid") {
        let changed = running.shared.apply(&object);
        assert_eq!(changed.invalid, []);
    }
}

fn port() -> PortSpec {
    PortSpec {
        workload: "{\"ns\":\"shop\",\"pod\":\"web-0\"}".to_owned(),
        port: 8080,
    }
}

fn outside() -> TrafficSpec {
    let address: std::net::SocketAddr = "93.184.216.34:443".parse().expect("an address");
    TrafficSpec {
        source_workload: "{\"ns\":\"shop\",\"pod\":\"web-0\"}".to_owned(),
        target: Some(Target::Addr(address.into())),
    }
}

/// Until the index is filled every call is refused in time, and with a code that leaves proxies with what they knew.
#[tokio::test]
async fn half_an_index_answers_nothing() {
    let running = Running::start().await;
    apply(&running, POD);
    let (mut inbound, mut outbound) = (running.inbound(), running.outbound());
    let (mut unary, mut unary_outbound) = (running.inbound(), running.outbound());
    let answers = async {
        tokio::join!(
            inbound.watch_port(port()),
            unary.get_port(port()),
            outbound.watch(outside()),
            unary_outbound.get(outside()),
        )
    };
    let answers = timeout(PATIENCE, answers).await.expect("in time");
    let refused = [
        ("WatchPort", answers.0.map(|_| ())),
        ("GetPort", answers.1.map(|_| ())),
        ("Watch", answers.2.map(|_| ())),
        ("Get", answers.3.map(|_| ())),
    ];
    for (call, answer) in refused {
        let status = answer.expect_err(call);
        assert_eq!(status.code(), Code::Unavailable, "{call}");
        assert!(status.message().contains("/ready"), "{call}: {status}");
    }
    running.stop().await;
}

/// Pods are listed before Servers: the first answer is that of the Server, and it only comes a bit late.
#[tokio::test]
async fn a_server_that_comes_after_its_pods_is_in_the_first_answer() {
    let running = Running::start().await;
    apply(&running, POD);
    let (mut inbound, mut outbound) = (running.inbound(), running.outbound());
    let asked = tokio::spawn(async move { inbound.watch_port(port()).await });
    let asked_outside = tokio::spawn(async move { outbound.watch(outside()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!asked.is_finished() && !asked_outside.is_finished());
    apply(&running, DENY);
    apply(&running, DENY_EGRESS);
    running.shared.set_filled();

    let opened = asked.await.expect("no panic").expect("open");
    let first = timeout(PATIENCE, opened.into_inner().message()).await;
    let first = first.expect("in time").expect("open").expect("a message");
    let name = first.labels["name"].as_str();
    assert_eq!((name, first.authorizations.len()), ("web", 0));

    let opened = asked_outside.await.expect("no panic").expect("open");
    let first = timeout(PATIENCE, opened.into_inner().message()).await;
    let first = first.expect("in time").expect("open").expect("a message");
    let kind = first.metadata.expect("set").kind.expect("set");
    let linkerd2_proxy_api::meta::metadata::Kind::Resource(parent) = kind else {
        panic!("{kind:?}");
    };
    assert_eq!((&*parent.kind, &*parent.name), ("EgressNetwork", "out"));

    // Once filled it stays so, whatever comes after.
    let known = running.inbound().get_port(port()).await.expect("known");
    assert_eq!(known.into_inner().labels["name"], "web");
    running.stop().await;
}
