//! Following an API server: real HTTP over loopback, each request expected exactly, each fault made.

mod filling;
mod server;

use std::net::IpAddr;

use serde_json::json;
use tokio::{task::JoinHandle, time::timeout};
use weft_runtime::metrics::Registry;

use self::server::{ApiServer, Ask, Events};
use super::*;
use crate::{index::Reader, objects::Name};

const PODS: &str = "/api/v1/pods";
const QUICK: Pace = Pace {
    absent_poll: Duration::from_millis(50),
    absent_grace: Duration::from_millis(600),
    silence: Duration::from_secs(20),
};

fn pod(name: &str, ip: &str, version: u32) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": format!("{name}-{version}"), "resourceVersion": version.to_string()},
        "spec": {"containers": [{"name": "app", "image": "x"}]},
        "status": {"phase": "Running", "podIP": ip},
    })
}

fn page(version: &str, next: &str, items: &[serde_json::Value]) -> String {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version, "continue": next}, "items": items})
        .to_string()
}

fn event(kind: &str, object: &serde_json::Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark(version: &str) -> String {
    event(
        "BOOKMARK",
        &json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version}}),
    )
}

fn status(code: u16, reason: &str) -> serde_json::Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": format!("{reason} it is"), "reason": reason, "code": code})
}

fn list_path(path: &str) -> String {
    format!("{path}?limit=500")
}

fn watch_path(path: &str, version: &str) -> String {
    format!(
        "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=290"
    )
}

/// A server, and one kind that is followed from it.
struct Following {
    server: ApiServer,
    source: Arc<KubeSource>,
    shared: Arc<Shared>,
    registry: Registry,
    task: JoinHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Following {
    async fn start(kind: Kind, pace: Pace) -> Self {
        let server = ApiServer::start().await;
        let shared = Shared::new();
        let registry = Registry::new(Duration::from_secs(60));
        let metrics = Metrics::register(&registry);
        let source = KubeSource::with_pace(server.client(), Arc::clone(&shared), metrics, pace);
        let followed = Arc::clone(&source);
        let task = tokio::spawn(async move {
            follow::follow(&followed, kind).await;
        });
        Self {
            server,
            source,
            shared,
            registry,
            task,
        }
    }

    /// Pods, listed at version 100, and their watch.
    async fn pods(pods: &[serde_json::Value]) -> (Self, Events) {
        let mut following = Self::start(Kind::Pod, QUICK).await;
        let ask = following.server.expect(&list_path(PODS)).await;
        ask.json(200, &page("100", "", pods));
        let watch = following.watch("100").await;
        (following, watch)
    }

    async fn watch(&mut self, version: &str) -> Events {
        self.server
            .expect(&watch_path(PODS, version))
            .await
            .stream()
    }

    fn pod(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.shared.read(|index| {
            let reader = Reader::new(index);
            reader
                .pod(&Name::new("shop", name))
                .map(|pod| pod.ips.clone())
        })
    }

    /// Waits until a pod has this address, or is gone.
    async fn until(&self, name: &str, ip: Option<&str>) {
        let wanted = ip.map(|ip| vec![ip.parse::<IpAddr>().expect("an address")]);
        self.until_holds(|following| following.pod(name) == wanted)
            .await;
    }

    async fn until_holds(&self, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(20), wait)
            .await
            .expect("within 20 s");
    }
}

#[tokio::test]
async fn pages_are_one_list_and_the_watch_goes_on_from_it() {
    let mut following = Following::start(Kind::Pod, QUICK).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    assert_eq!(ask.accept, "application/json");
    ask.json(200, &page("100", "a+/=", &[pod("a", "10.0.0.1", 1)]));
    let ask = following
        .server
        .expect(&format!("{PODS}?limit=500&continue=a%2B%2F%3D"))
        .await;
    assert_eq!(following.pod("a"), None, "half a list is no list");
    ask.json(200, &page("100", "", &[pod("b", "10.0.0.2", 2)]));
    let watch = following.watch("100").await;
    following.until("a", Some("10.0.0.1")).await;
    following.until("b", Some("10.0.0.2")).await;

    watch
        .send(&event("ADDED", &pod("c", "10.0.0.3", 101)))
        .await;
    following.until("c", Some("10.0.0.3")).await;
    watch
        .send(&event("MODIFIED", &pod("a", "10.0.0.9", 102)))
        .await;
    following.until("a", Some("10.0.0.9")).await;
    watch
        .send(&event("DELETED", &pod("b", "10.0.0.2", 103)))
        .await;
    following.until("b", None).await;
    watch.send(&bookmark("170")).await;
    drop(watch);
    let _watch = following.watch("170").await;
    assert_eq!(
        following.pod("c"),
        Some(vec!["10.0.0.3".parse().expect("an address")])
    );
}

#[tokio::test]
async fn an_event_in_pieces_and_events_in_one_piece() {
    let (following, watch) = Following::pods(&[]).await;
    let text = event("ADDED", &pod("a", "10.0.0.1", 101));
    let (first, rest) = text.split_at(40);
    let (second, third) = rest.split_at(rest.len() - 1);
    for piece in [first, second, third] {
        watch.send(piece).await;
    }
    following.until("a", Some("10.0.0.1")).await;
    let both =
        event("DELETED", &pod("a", "10.0.0.1", 102)) + &event("ADDED", &pod("b", "10.0.0.1", 103));
    watch.send(&both).await;
    following.until("b", Some("10.0.0.1")).await;
    assert_eq!(following.pod("a"), None);
}

/// What comes in one piece is one change of the index: an address that moves is never gone in between.
#[tokio::test]
async fn changes_that_come_together_are_seen_together() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl crate::Listener for Count {
        fn changed(&self, _: &crate::Index, _: &crate::Changed) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let (following, watch) = Following::pods(&[pod("a", "10.0.0.1", 1)]).await;
    let count = Arc::new(Count(std::sync::atomic::AtomicUsize::new(0)));
    let weak = Arc::downgrade(&count);
    following.shared.listen(weak);
    let both =
        event("DELETED", &pod("a", "10.0.0.1", 101)) + &event("ADDED", &pod("b", "10.0.0.1", 102));
    watch.send(&both).await;
    following.until("b", Some("10.0.0.1")).await;
    assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn d22_a_pod_that_is_made_anew_again_and_again_is_known() {
    let (mut following, mut watch) = Following::pods(&[pod("db-0", "10.0.0.1", 1)]).await;
    let mut version = 100;
    for round in 0..100 {
        version += 2;
        let ip = format!("10.0.1.{round}");
        if round % 25 == 24 {
            // The history is gone, and with it the news of the deletion.
            let gone = event("ERROR", &status(410, "Expired"));
            watch.send(&gone).await;
            let list = page(&version.to_string(), "", &[pod("db-0", &ip, version)]);
            following
                .server
                .expect(&list_path(PODS))
                .await
                .json(200, &list);
            watch = following.watch(&version.to_string()).await;
        } else {
            watch
                .send(&event("DELETED", &pod("db-0", "10.0.0.1", version - 1)))
                .await;
            watch
                .send(&event("ADDED", &pod("db-0", &ip, version)))
                .await;
        }
        following.until("db-0", Some(&ip)).await;
    }
}

#[tokio::test]
async fn gone_means_a_new_list_and_missed_deletions_are_noticed() {
    let (mut following, watch) =
        Following::pods(&[pod("a", "10.0.0.1", 1), pod("b", "10.0.0.2", 2)]).await;
    watch.send(&event("ERROR", &status(410, "Expired"))).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    assert!(
        following.pod("a").is_some(),
        "what was known stays until the list is here"
    );
    ask.json(200, &page("300", "", &[pod("b", "10.0.0.2", 2)]));
    following.until("a", None).await;

    // The same as an answer instead of an event.
    let ask = following.server.expect(&watch_path(PODS, "300")).await;
    ask.json(410, &status(410, "Expired").to_string());
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(200, &page("400", "", &[]));
    following.until("b", None).await;
    let _watch = following.watch("400").await;
}

#[tokio::test]
async fn a_list_whose_moment_is_gone_starts_over_with_larger_pages() {
    let mut following = Following::start(Kind::Pod, QUICK).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(200, &page("100", "x", &[pod("a", "10.0.0.1", 1)]));
    let ask = following
        .server
        .expect(&format!("{PODS}?limit=500&continue=x"))
        .await;
    ask.json(410, &status(410, "Expired").to_string());
    let ask = following.server.expect(&format!("{PODS}?limit=1000")).await;
    ask.json(200, &page("200", "", &[pod("b", "10.0.0.2", 1)]));
    let _watch = following.watch("200").await;
    following.until("b", Some("10.0.0.2")).await;
    assert_eq!(following.pod("a"), None);
}

#[tokio::test]
async fn a_cut_watch_goes_on_where_it_was() {
    let (mut following, watch) = Following::pods(&[]).await;
    watch
        .send(&event("ADDED", &pod("a", "10.0.0.1", 101)))
        .await;
    following.until("a", Some("10.0.0.1")).await;
    let text = event("ADDED", &pod("b", "10.0.0.2", 102));
    watch.send(text.split_at(50).0).await;
    watch.cut().await;
    let watch = following.watch("101").await;
    watch.send(&text).await;
    following.until("b", Some("10.0.0.2")).await;
}

#[tokio::test]
async fn an_api_server_that_is_away_takes_nothing_away() {
    let (mut following, _watch) = Following::pods(&[pod("a", "10.0.0.1", 1)]).await;
    following.until("a", Some("10.0.0.1")).await;
    let other = ApiServer::start().await;
    let addr = std::mem::replace(&mut following.server, other).stop().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(following.pod("a").is_some());

    following.server = ApiServer::start_at(addr).await;
    let ask = following.server.expect(&watch_path(PODS, "100")).await;
    ask.json(503, &status(503, "ServiceUnavailable").to_string());
    let watch = following.watch("100").await;
    assert!(following.pod("a").is_some());
    watch
        .send(&event("DELETED", &pod("a", "10.0.0.1", 101)))
        .await;
    following.until("a", None).await;
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let pace = Pace {
        silence: Duration::from_millis(300),
        ..QUICK
    };
    let mut following = Following::start(Kind::Pod, pace).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(200, &page("100", "", &[]));
    let silent = following.watch("100").await;
    let watch = following.watch("100").await;
    drop(silent);
    watch
        .send(&event("ADDED", &pod("a", "10.0.0.1", 101)))
        .await;
    following.until("a", Some("10.0.0.1")).await;
}

#[tokio::test]
async fn a_watch_that_ends_at_once_is_not_opened_in_a_loop() {
    let (mut following, watch) = Following::pods(&[]).await;
    drop(watch);
    let started = std::time::Instant::now();
    for _ in 0..3 {
        drop(following.watch("100").await);
    }
    // 250 ms, 500 ms and 1 s, and up to half of each more.
    assert!(
        started.elapsed() >= Duration::from_millis(750),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn r09_an_object_that_cannot_be_read_does_not_stop_the_others() {
    let (mut following, watch) = Following::pods(&[
        pod("good", "10.0.0.1", 1),
        json!({"metadata": {"name": "bad", "namespace": "shop", "resourceVersion": "2"}, "spec": {"containers": "none"}}),
    ])
    .await;
    following.until("good", Some("10.0.0.1")).await;
    assert_eq!(following.pod("bad"), None);

    // Its last good version stays, through an event and through a list.
    let bad = json!({"metadata": {"name": "good", "namespace": "shop", "resourceVersion": "101"}, "status": {"podIP": 7}});
    watch.send(&event("MODIFIED", &bad)).await;
    watch
        .send(&event("ADDED", &pod("later", "10.0.0.3", 102)))
        .await;
    following.until("later", Some("10.0.0.3")).await;
    assert!(following.pod("good").is_some());
    watch.send(&event("ERROR", &status(410, "Expired"))).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(200, &page("200", "", &[bad]));
    following.until("later", None).await;
    assert!(following.pod("good").is_some());
    // What cannot be read can be deleted.
    let watch = following.watch("200").await;
    watch.send(&event("DELETED", &json!({"metadata": {"name": "good", "namespace": "shop", "resourceVersion": "201"}, "status": 1}))).await;
    following.until("good", None).await;
}

#[tokio::test]
async fn an_answer_that_is_no_answer_is_asked_again() {
    let mut following = Following::start(Kind::Pod, QUICK).await;
    for (code, text) in [
        (200, "<html>".to_owned()),
        (200, json!({"metadata": {}, "items": []}).to_string()),
        (
            200,
            json!({"metadata": {"resourceVersion": "1"}, "items": [{"name": 7}]}).to_string(),
        ),
        (500, "no JSON".to_owned()),
        (429, status(429, "TooManyRequests").to_string()),
    ] {
        following
            .server
            .expect(&list_path(PODS))
            .await
            .json(code, &text);
    }
    let ask = following.server.expect(&list_path(PODS)).await;
    let reason = following.source.ready().expect_err("not listed");
    assert!(
        reason.contains("Pod (429: TooManyRequests it is)"),
        "{reason}"
    );
    ask.json(200, &page("100", "", &[]));
    let watch = following.watch("100").await;
    watch.send("no event\n").await;
    let watch = following.watch("100").await;
    watch
        .send(&event("RENAMED", &pod("a", "10.0.0.1", 101)))
        .await;
    let _watch = following.watch("100").await;
}

#[tokio::test]
async fn what_is_forbidden_names_the_remedy() {
    let mut following = Following::start(Kind::Pod, QUICK).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(403, &status(403, "Forbidden").to_string());
    let _ask = following.server.expect(&list_path(PODS)).await;
    let reason = following.source.ready().expect_err("not listed");
    assert!(
        reason.contains("Pod (403: Forbidden it is; the service account needs list and watch"),
        "{reason}"
    );
}

#[tokio::test]
async fn of_nodes_only_metadata_is_asked_for() {
    let mut following = Following::start(Kind::Node, QUICK).await;
    let ask = following.server.expect(&list_path("/api/v1/nodes")).await;
    assert!(
        ask.accept
            .starts_with("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    );
    // So the API server writes the items of such a list.
    let node = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "n", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "west"}},
    });
    ask.json(200, &page("100", "", &[node]));
    let ask = following
        .server
        .expect(&watch_path("/api/v1/nodes", "100"))
        .await;
    assert!(
        ask.accept
            .starts_with("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    );
    following
        .until_holds(|f| {
            f.shared.read(|index| {
                let reader = Reader::new(index);
                reader
                    .node("n")
                    .is_some_and(|node| node.zone.as_deref() == Some("west"))
            })
        })
        .await;
}

fn group(name: &str, versions: &[&str]) -> String {
    let versions: Vec<_> = versions
        .iter()
        .map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v}))
        .collect();
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions}).to_string()
}

fn resources(version: &str, plurals: &[&str]) -> String {
    let resources: Vec<_> = plurals
        .iter()
        .map(|p| json!({"name": p, "singularName": "", "namespaced": true, "kind": "X", "verbs": ["list", "watch"]}))
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}).to_string()
}

const GATEWAY: &str = "/apis/gateway.networking.k8s.io";

/// Answers the questions for the version of a kind of the Gateway API: the group has v1, which lacks GRPCRoutes, and
/// v1alpha2, which has them.
async fn answer_discovery(server: &mut ApiServer) {
    let ask = server.expect(GATEWAY).await;
    ask.json(
        200,
        &group("gateway.networking.k8s.io", &["v1", "v1beta1", "v1alpha2"]),
    );
    let ask = server.expect(&format!("{GATEWAY}/v1")).await;
    ask.json(
        200,
        &resources(
            "gateway.networking.k8s.io/v1",
            &["httproutes", "httproutes/status"],
        ),
    );
    let ask = server.expect(&format!("{GATEWAY}/v1alpha2")).await;
    ask.json(
        200,
        &resources("gateway.networking.k8s.io/v1alpha2", &["grpcroutes"]),
    );
}

#[tokio::test]
async fn r17_a_kind_that_is_not_installed_is_followed_once_it_is() {
    let mut following = Following::start(Kind::GrpcRoute, QUICK).await;
    for _ in 0..2 {
        let ask = following.server.expect(GATEWAY).await;
        ask.json(404, &status(404, "NotFound").to_string());
    }
    // The group is there, the kind is not.
    let ask = following.server.expect(GATEWAY).await;
    ask.json(200, &group("gateway.networking.k8s.io", &["v1"]));
    let ask = following.server.expect(&format!("{GATEWAY}/v1")).await;
    ask.json(
        200,
        &resources("gateway.networking.k8s.io/v1", &["httproutes"]),
    );
    let state = following
        .source
        .states
        .lock()
        .get(&Kind::GrpcRoute)
        .cloned();
    assert_eq!(state, Some(State::Absent));

    answer_discovery(&mut following.server).await;
    let routes = format!("{GATEWAY}/v1alpha2/grpcroutes");
    let ask = following.server.expect(&list_path(&routes)).await;
    ask.json(200, &page("100", "", &[]));
    let _watch = following.server.expect(&watch_path(&routes, "100")).await;
}

fn server_object(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": "1"}, "spec": {"podSelector": {}, "port": 80}})
}

const POLICY: &str = "/apis/policy.linkerd.io";
const SERVERS: &str = "/apis/policy.linkerd.io/v1beta3/servers";

async fn answer_servers(server: &mut ApiServer) {
    let ask = server.expect(POLICY).await;
    ask.json(200, &group("policy.linkerd.io", &["v1beta3", "v1alpha1"]));
    let ask = server.expect(&format!("{POLICY}/v1beta3")).await;
    ask.json(200, &resources("policy.linkerd.io/v1beta3", &["servers"]));
    let ask = server.expect(&list_path(SERVERS)).await;
    ask.json(200, &page("100", "", &[server_object("web")]));
}

fn has_server(following: &Following) -> bool {
    following.shared.read(|index| {
        let reader = Reader::new(index);
        reader.server(&Name::new("shop", "web")).is_some()
    })
}

/// An API server that has just started may not know all kinds yet; its first word must not open doors.
#[tokio::test]
async fn policies_of_a_kind_that_is_served_no_more_are_kept_for_a_while() {
    let mut following = Following::start(Kind::Server, QUICK).await;
    answer_servers(&mut following.server).await;
    let missing = status(404, "NotFound").to_string();
    following
        .server
        .expect(&watch_path(SERVERS, "100"))
        .await
        .json(404, &missing);
    following.server.expect(POLICY).await.json(404, &missing);
    assert!(has_server(&following));
    answer_servers(&mut following.server).await;

    // It was a short absence: the time starts again at the next one.
    let started = std::time::Instant::now();
    following
        .server
        .expect(&watch_path(SERVERS, "100"))
        .await
        .json(404, &missing);
    while has_server(&following) {
        following.server.expect(POLICY).await.json(404, &missing);
    }
    assert!(
        started.elapsed() >= QUICK.absent_grace,
        "{:?}",
        started.elapsed()
    );
    following.server.expect(POLICY).await.json(404, &missing);
}

#[tokio::test]
async fn what_is_followed_is_counted_by_kind() {
    let (mut following, watch) = Following::pods(&[pod("a", "10.0.0.1", 1)]).await;
    watch
        .send(&event("ADDED", &pod("b", "10.0.0.2", 101)))
        .await;
    following.until("b", Some("10.0.0.2")).await;
    let counted = |following: &Following, lines: [&str; 3]| {
        let text = following.registry.encode();
        for line in lines {
            assert!(text.contains(line), "{line}: {text}");
        }
    };
    counted(
        &following,
        [
            "weft_kube_objects{kind=\"Pod\"} 2\n",
            "weft_kube_lists_total{kind=\"Pod\"} 1\n",
            "weft_kube_failures_total{kind=\"Pod\"} 0\n",
        ],
    );
    watch.send(&event("ERROR", &status(410, "Expired"))).await;
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(503, &status(503, "ServiceUnavailable").to_string());
    let ask = following.server.expect(&list_path(PODS)).await;
    ask.json(200, &page("200", "", &[pod("b", "10.0.0.2", 101)]));
    let _watch = following.watch("200").await;
    counted(
        &following,
        [
            "weft_kube_objects{kind=\"Pod\"} 1\n",
            "weft_kube_lists_total{kind=\"Pod\"} 2\n",
            "weft_kube_failures_total{kind=\"Pod\"} 2\n",
        ],
    );
}

proptest::proptest! {
    /// Whatever comes is an event, nothing, or an error.
    #[test]
    fn no_line_of_a_watch_panics(line: Vec<u8>, kind: String, object: String) {
        let mut position = String::new();
        let _ = watch::event(Kind::Pod, &line, &mut position);
        let text = json!({"type": kind, "object": object}).to_string();
        let _ = watch::event(Kind::Pod, text.as_bytes(), &mut position);
        let text = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        let _ = watch::event(Kind::Server, text.as_bytes(), &mut position);
    }

    #[test]
    fn values_of_queries_are_encoded(text: String) {
        let encoded = list::encode(&text);
        proptest::prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b)));
        let uri = format!("/x?continue={encoded}").parse::<http::Uri>();
        proptest::prop_assert!(uri.is_ok());
    }
}
