//! The service over a real connection: codes and texts of refusals, streams, limits, the end.

use std::{collections::BTreeSet, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use linkerd2_proxy_api::destination::{
    GetDestination, Update, destination_client::DestinationClient, update,
};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, transport::Channel};
use weft_cluster::{MeshSettings, Shared, manifests};
use weft_destination::{Settings, grpc, serve_on};
use weft_runtime::metrics::Registry;

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: example.com}
";

struct Server {
    shared: Arc<Shared>,
    registry: Registry,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    channel: Channel,
    client: DestinationClient<Channel>,
}

async fn start(max_streams: usize) -> Server {
    let server = start_unfilled(max_streams).await;
    server.shared.set_filled();
    server
}

async fn start_unfilled(max_streams: usize) -> Server {
    let shared = Shared::new();
    for object in manifests::parse(Path::new("test.yaml"), OBJECTS).expect("valid") {
        shared.apply(&object);
    }
    let registry = Registry::new(Duration::from_secs(60));
    let metrics = grpc::Metrics::register(&registry);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let shutdown = CancellationToken::new();
    let settings = Settings {
        max_streams,
        ..Settings::new(MeshSettings::default())
    };
    let serving = serve_on(
        listener,
        settings,
        Arc::clone(&shared),
        metrics,
        shutdown.clone(),
    );
    let task = tokio::spawn(async { serving.await.expect("served") });
    // Windows as proxies have them (contract 1.2).
    let channel = Channel::from_shared(format!("http://{address}"))
        .expect("an address")
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(1 << 20);
    let channel = channel.connect().await.expect("connected");
    let client = DestinationClient::new(channel.clone());
    Server {
        shared,
        registry,
        shutdown,
        task,
        channel,
        client,
    }
}

fn request(path: &str) -> GetDestination {
    GetDestination {
        path: path.to_owned(),
        context_token: "{\"ns\":\"default\"}\n".to_owned(),
        ..Default::default()
    }
}

impl Server {
    async fn get(&self, path: &str) -> Result<Streaming<Update>, Status> {
        self.client
            .clone()
            .get(request(path))
            .await
            .map(tonic::Response::into_inner)
    }

    /// `count` endpoints at addresses that begin with `10.<group>`.
    fn endpoints(&self, group: usize, count: usize) {
        let endpoints: Vec<String> = (0..count)
            .map(|i| format!("{{addresses: [10.{group}.{}.{}]}}", i / 250, i % 250))
            .collect();
        let text = format!(
            "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
",
            endpoints.join(", ")
        );
        self.shared
            .apply(&manifests::parse(Path::new("test.yaml"), &text).expect("valid")[0]);
    }
}

async fn next(stream: &mut Streaming<Update>) -> Update {
    timeout(Duration::from_secs(5), stream.message())
        .await
        .expect("in time")
        .expect("open")
        .expect("a message")
}

fn take(addresses: &mut BTreeSet<SocketAddr>, update: Update) {
    match update.update.expect("set") {
        update::Update::Add(set) => {
            addresses.extend(
                set.addrs
                    .into_iter()
                    .map(|a| SocketAddr::try_from(a.addr.expect("set")).expect("valid")),
            );
        }
        update::Update::Remove(set) => {
            for address in set.addrs {
                addresses.remove(&SocketAddr::try_from(address).expect("valid"));
            }
        }
        update::Update::NoEndpoints(_) => unreachable!("never sent"),
    }
}

#[tokio::test]
async fn refusals_have_the_codes_and_texts_of_the_contract() {
    let server = start(10).await;
    for (path, code, text) in [
        (
            "web.default.svc.cluster.local:http",
            Code::InvalidArgument,
            "Invalid authority: web.default.svc.cluster.local:http",
        ),
        (
            "web.default.svc.cluster.local.:80",
            Code::InvalidArgument,
            "Invalid authority: web.default.svc.cluster.local.:80",
        ),
        (
            "example.com",
            Code::InvalidArgument,
            "Invalid authority: example.com",
        ),
        (
            "10.96.0.10:80",
            Code::InvalidArgument,
            "IP queries not supported by Get API: host=10.96.0.10",
        ),
        (
            "none.default.svc.cluster.local",
            Code::NotFound,
            "Service none.default not found",
        ),
        (
            "outside.default.svc.cluster.local",
            Code::InvalidArgument,
            "Service outside.default is an ExternalName",
        ),
    ] {
        let status = server.get(path).await.expect_err(path);
        assert_eq!((status.code(), status.message()), (code, text));
    }
    let profile = server
        .client
        .clone()
        .get_profile(request("example.com:80"))
        .await
        .expect_err("a foreign name");
    assert_eq!(profile.code(), Code::InvalidArgument);
    let metrics = server.registry.encode();
    let line = |code: &str| {
        format!("grpc_method=\"Get\",grpc_type=\"server_stream\",grpc_code=\"{code}\"")
    };
    assert!(
        metrics.contains(&format!("{}}} 5", line("InvalidArgument"))),
        "{metrics}"
    );
    assert!(
        metrics.contains(&format!("{}}} 1", line("NotFound"))),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_stream_follows_changes_and_ends_with_the_server() {
    let server = start(10).await;
    let mut stream = server
        .get("web.default.svc.cluster.local:80")
        .await
        .expect("open");
    assert!(
        timeout(Duration::from_millis(100), stream.message())
            .await
            .is_err(),
        "silent without endpoints"
    );
    server.endpoints(1, 3);
    let mut addresses = BTreeSet::new();
    take(&mut addresses, next(&mut stream).await);
    assert_eq!(addresses.len(), 3);
    server.endpoints(1, 1);
    take(&mut addresses, next(&mut stream).await);
    assert_eq!(addresses, [SocketAddr::from(([10, 1, 0, 0], 8080))].into());

    server.shutdown.cancel();
    let end = timeout(Duration::from_secs(5), stream.message())
        .await
        .expect("in time");
    assert!(matches!(end, Ok(None)), "{end:?}");
    timeout(Duration::from_secs(8), server.task)
        .await
        .expect("in time")
        .expect("served");
}

#[tokio::test]
async fn a_stream_that_fails_says_why_at_its_end() {
    let server = start(10).await;
    let hosted = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.1], hostname: web-0}]
";
    let slice = manifests::parse(Path::new("test.yaml"), hosted).expect("valid");
    server.shared.apply(&slice[0]);
    let mut profiles = server
        .client
        .clone()
        .get_profile(request("web-0.web.default.svc.cluster.local:80"))
        .await
        .expect("open")
        .into_inner();
    let first = profiles.message().await.expect("open").expect("a message");
    assert!(first.endpoint.is_some());
    server.shared.delete(&slice[0].reference());
    let end = timeout(Duration::from_secs(5), profiles.message()).await;
    let status = end.expect("in time").expect_err("the endpoint has gone");
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("host name"), "{status}");
}

#[tokio::test]
async fn other_methods_and_requests_without_a_message_are_refused() {
    use tonic_prost::ProstCodec;
    let server = start(10).await;
    let mut channel = tonic::client::Grpc::new(server.channel.clone());
    for (path, messages, code) in [
        (
            "Watch",
            vec![request("web.default.svc.cluster.local")],
            Code::Unimplemented,
        ),
        ("Get", vec![], Code::InvalidArgument),
        ("Get", vec![request(&"a".repeat(70_000))], Code::OutOfRange),
    ] {
        channel.ready().await.expect("connected");
        let path = format!("/io.linkerd.proxy.destination.Destination/{path}");
        let path = path.parse().expect("a path");
        let codec = ProstCodec::<GetDestination, Update>::default();
        let stream = futures_util::stream::iter(messages);
        let answered = channel
            .streaming(tonic::Request::new(stream), path, codec)
            .await;
        assert_eq!(answered.expect_err("refused").code(), code);
    }
}

/// Case D15: what cancelled clients asked for is given back, however many come at once.
#[tokio::test]
async fn d15_a_herd_that_gives_up_leaves_nothing() {
    let server = start(2_000).await;
    server.endpoints(1, 50);
    for _ in 0..3 {
        let mut streams = Vec::new();
        for _ in 0..500 {
            let path = "web.default.svc.cluster.local:80";
            streams.push(server.get(path).await.expect("a place"));
        }
        server.endpoints(2, 50);
        drop(streams);
    }
    let open = |text: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with("grpc_server_open_streams"));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<u64>().ok())
    };
    let given_back = async {
        while open(&server.registry.encode()) != Some(0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), given_back)
        .await
        .expect("all streams are given back");
    let mut stream = server
        .get("web.default.svc.cluster.local")
        .await
        .expect("open");
    let mut addresses = BTreeSet::new();
    take(&mut addresses, next(&mut stream).await);
    assert_eq!(addresses.len(), 50);
}

#[tokio::test]
async fn the_number_of_streams_is_limited_and_places_come_back() {
    let server = start(1).await;
    let first = server
        .get("web.default.svc.cluster.local")
        .await
        .expect("open");
    let refused = server
        .get("web.default.svc.cluster.local")
        .await
        .expect_err("no place");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(first);
    let reopened = async {
        while server.get("web.default.svc.cluster.local").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), reopened)
        .await
        .expect("the place comes back");
}

#[tokio::test]
async fn a_client_that_does_not_read_gets_the_newest_state_later() {
    let server = start(10).await;
    server.endpoints(1, 500);
    let mut slow = server
        .get("web.default.svc.cluster.local")
        .await
        .expect("open");
    let mut quick = server
        .get("web.default.svc.cluster.local")
        .await
        .expect("open");
    let mut seen = BTreeSet::new();
    for round in 0..200 {
        server.endpoints(1 + round % 100, 500);
        tokio::task::yield_now().await;
    }
    server.endpoints(200, 500);
    let newest: BTreeSet<SocketAddr> = (0..500u16)
        .map(|i| SocketAddr::from(([10, 200, (i / 250) as u8, (i % 250) as u8], 8080)))
        .collect();
    while seen != newest {
        take(&mut seen, next(&mut quick).await);
    }
    // The slow one has at most what fitted into the connection before it was full, then one step to the newest state.
    let (mut seen, mut messages) = (BTreeSet::new(), 0);
    while seen != newest {
        take(&mut seen, next(&mut slow).await);
        messages += 1;
    }
    assert!(messages < 30, "{messages} messages for 200 changes");
}

/// Proxies go on with what they know until everything is known here: a Service whose slices come later is not without
/// endpoints, and a Service that comes later is not unknown.
#[tokio::test]
async fn half_an_index_answers_nothing() {
    let server = start_unfilled(10).await;
    let known = "web.default.svc.cluster.local:80";
    let unknown = "late.default.svc.cluster.local:80";
    let profile = |path| {
        let mut client = server.client.clone();
        async move { client.get_profile(request(path)).await.map(|_| ()) }
    };
    let get = |path| {
        let get = server.get(path);
        async { get.await.map(|_| ()) }
    };
    let answers =
        async { tokio::join!(get(known), get(unknown), profile(known), profile(unknown)) };
    // Proxies wait for 3 s (contract 1.2).
    let answers = timeout(Duration::from_secs(3), answers).await;
    let answers = answers.expect("in time");
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        let status = answer.expect_err("refused");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("/ready"), "{status}");
    }

    // What is filled meanwhile makes the answer late, not wrong.
    let mut client = server.client.clone();
    let asked = tokio::spawn(async move { client.get(request(known)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!asked.is_finished());
    server.endpoints(1, 3);
    server.shared.set_filled();
    let opened = asked.await.expect("no panic").expect("open");
    let mut addresses = BTreeSet::new();
    take(&mut addresses, next(&mut opened.into_inner()).await);
    assert_eq!(addresses.len(), 3);
}
