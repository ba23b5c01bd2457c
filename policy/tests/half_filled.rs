//! Policy while the index is being filled: nothing is answered from half of the objects, since what is still missing could be
//! what denies. Over real connections; the objects come in the order in which an API server may give them.

use std::{path::Path, sync::Arc, time::Duration};

use linkerd2_proxy_api::{
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    outbound::{
        TrafficSpec, outbound_policies_client::OutboundPoliciesClient, traffic_spec::Target,
    },
};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};
use weft_cluster::{MeshSettings, Shared, manifests};
use weft_policy::{Settings, serve_on};
use weft_runtime::grpc;

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

struct Running {
    shared: Arc<Shared>,
    channel: Channel,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start() -> Self {
        let shared = Shared::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let shutdown = CancellationToken::new();
        let serving = serve_on(
            listener,
            Settings::new(MeshSettings::default()),
            Arc::clone(&shared),
            grpc::Metrics::default(),
            shutdown.clone(),
        );
        let task = tokio::spawn(async { serving.await.expect("served") });
        let channel = Channel::from_shared(address).expect("an address");
        Self {
            shared,
            channel: channel.connect().await.expect("connected"),
            shutdown,
            task,
        }
    }

    fn apply(&self, text: &str) {
        for object in manifests::parse(Path::new("test.yaml"), text).expect("valid") {
            let changed = self.shared.apply(&object);
            assert_eq!(changed.invalid, []);
        }
    }

    fn inbound(&self) -> InboundServerPoliciesClient<Channel> {
        InboundServerPoliciesClient::new(self.channel.clone())
    }

    fn outbound(&self) -> OutboundPoliciesClient<Channel> {
        OutboundPoliciesClient::new(self.channel.clone())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        drop(self.channel);
        let ended = timeout(Duration::from_secs(8), self.task).await;
        ended.expect("in time").expect("served");
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
    running.apply(POD);
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
    running.apply(POD);
    let (mut inbound, mut outbound) = (running.inbound(), running.outbound());
    let asked = tokio::spawn(async move { inbound.watch_port(port()).await });
    let asked_outside = tokio::spawn(async move { outbound.watch(outside()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!asked.is_finished() && !asked_outside.is_finished());
    running.apply(DENY);
    running.apply(DENY_EGRESS);
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
