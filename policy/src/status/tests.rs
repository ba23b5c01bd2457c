//! When statuses are written and by whom, with a paused clock against an API server in memory.

mod plans;

use serde_json::Value;
use tokio::task::JoinHandle;
use weft_cluster::Object;

use super::*;
use crate::testing::{FakeApi, Write};

const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/policy-controller-write";
const GATEWAY: &str = "gateway.networking.k8s.io";
const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: ns}
spec: {parentRefs: [{group: core, kind: Service, name: web, port: 80}]}
";
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80}]}
";

fn value(yaml: &str) -> Value {
    serde_norway::from_str(yaml).unwrap_or_else(|e| panic!("{yaml}: {e}"))
}

fn object(value: &Value) -> Object {
    let text = |field: &str| value[field].as_str().unwrap();
    let kind = Kind::of(text("apiVersion"), text("kind")).unwrap();
    Object::deserialize(kind, value).unwrap_or_else(|e| panic!("{value}: {e}"))
}

struct Replica {
    api: Arc<FakeApi>,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn start(api: &Arc<FakeApi>, holder: &str) -> Replica {
    api.serve_kinds(
        "gateway.networking.k8s.io/v1",
        &["httproutes", "grpcroutes"],
    );
    api.serve_kinds(
        "gateway.networking.k8s.io/v1alpha2",
        &["tlsroutes", "tcproutes"],
    );
    let shared = Shared::new();
    let shutdown = CancellationToken::new();
    let settings = Settings {
        mesh: MeshSettings::default(),
        patch_timeout: PATCH_TIMEOUT,
        lease: lease::Settings {
            namespace: "linkerd".to_owned(),
            holder: holder.to_owned(),
            deployment: "linkerd-destination".to_owned(),
            terms: lease::Terms::default(),
        },
    };
    let metrics = Metrics::register(&Registry::new(Duration::from_secs(60)));
    let running = run(
        api.client(),
        Arc::clone(&shared),
        settings,
        metrics,
        shutdown.clone(),
    );
    Replica {
        api: Arc::clone(api),
        shared,
        shutdown,
        task: tokio::spawn(running),
    }
}

impl Replica {
    /// What the API server has of these routes becomes known, as a watch would tell it.
    fn hear(&self, names: &[&str]) {
        for name in names {
            self.shared
                .apply(&object(&self.api.find(&path(name)).unwrap()));
        }
    }

    fn statuses(&self) -> Vec<Write> {
        let writes = self.api.writes().into_iter();
        writes
            .filter(|write| write.uri.path().ends_with("/status"))
            .collect()
    }
}

fn path(name: &str) -> String {
    format!("/apis/{GATEWAY}/v1/namespaces/ns/httproutes/{name}")
}

fn named(name: &str) -> Value {
    let mut route = value(ROUTE);
    route["metadata"]["name"] = json!(name);
    route
}

async fn seconds(n: u64) {
    sleep(Duration::from_secs(n)).await;
}

#[tokio::test(start_paused = true)]
async fn r10_a_status_is_written_once_and_again_when_it_changes() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    api.put(&path("r"), value(ROUTE));
    a.hear(&["r"]);
    seconds(30).await;
    assert!(
        a.statuses().is_empty(),
        "nothing before everything is known"
    );
    a.shared.apply(&object(&value(SERVICE)));
    a.shared.set_filled();
    seconds(11).await;
    let [write] = a.statuses().try_into().unwrap();
    assert_eq!(write.status, 200);
    assert_eq!(write.uri.path(), format!("{}/status", path("r")));
    assert!(
        write
            .uri
            .query()
            .unwrap()
            .contains("fieldManager=policy-controller")
    );
    let stored = api.find(&path("r")).unwrap();
    assert_eq!(
        stored["status"]["parents"][0]["conditions"][0]["status"],
        "True"
    );
    a.hear(&["r"]);
    seconds(120).await;
    assert_eq!(a.statuses().len(), 1, "no patch in the steady state");
    // A change of something else that it depends on is written soon.
    a.shared.delete(&object(&value(SERVICE)).reference());
    seconds(1).await;
    assert_eq!(a.statuses().len(), 2);
    let stored = api.find(&path("r")).unwrap();
    assert_eq!(
        stored["status"]["parents"][0]["conditions"][0]["reason"],
        "NoMatchingParent"
    );
}

#[tokio::test(start_paused = true)]
async fn r18_only_the_holder_of_the_lease_writes() {
    let api = FakeApi::new();
    let (a, b) = (start(&api, "a"), start(&api, "b"));
    api.put(&path("r"), value(ROUTE));
    for replica in [&a, &b] {
        replica.shared.set_filled();
        replica.hear(&["r"]);
    }
    seconds(20).await;
    assert_eq!(
        a.statuses().len(),
        1,
        "by one of the two, which see the same server"
    );
    let holder = api.find(LEASE).unwrap()["spec"]["holderIdentity"].clone();
    let (first, second) = if holder == "a" { (a, b) } else { (b, a) };
    first.shutdown.cancel();
    first.task.await.unwrap();
    second.hear(&["r"]);
    second.shared.apply(&object(&value(SERVICE)));
    seconds(10).await;
    assert_eq!(second.statuses().len(), 2, "the other goes on at once");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_another_controller_holds_the_lease() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    api.put(&path("r"), value(ROUTE));
    a.shared.set_filled();
    a.hear(&["r"]);
    for n in 10..40 {
        let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": 30, "renewTime": format!("2026-01-01T00:{n}:00.000000Z")});
        api.put(
            LEASE,
            json!({"metadata": {"name": "policy-controller-write"}, "spec": spec}),
        );
        seconds(10).await;
    }
    assert!(a.statuses().len() <= 1, "at most before the other took it");
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_tried_again_at_the_next_comparison() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    a.shared.set_filled();
    seconds(1).await;
    a.shared.apply(&object(&{
        let mut route = value(ROUTE);
        route["metadata"]["resourceVersion"] = json!("1");
        route
    }));
    seconds(1).await;
    assert_eq!(a.statuses().last().unwrap().status, 404);
    // Somebody has changed it since the index heard of it.
    api.put(&path("r"), value(ROUTE));
    seconds(10).await;
    assert_eq!(a.statuses().last().unwrap().status, 409);
    a.hear(&["r"]);
    seconds(2).await;
    assert_eq!(a.statuses().last().unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn r10_many_routes_and_a_slow_server() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    let names: Vec<String> = (0..3000).map(|n| format!("r{n}")).collect();
    for name in &names {
        api.put(&path(name), named(name));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    a.hear(&names);
    api.set_slow(Duration::from_millis(50));
    a.shared.set_filled();
    // 3,000 requests of 50 ms, 8 at a time, take 19 s.
    seconds(40).await;
    assert_eq!(
        a.statuses().len(),
        3000,
        "each once, though the watch is slow"
    );
    assert!(
        api.most_open() <= PARALLEL + 1,
        "{} at a time",
        api.most_open()
    );
    a.hear(&names);
    seconds(60).await;
    assert_eq!(a.statuses().len(), 3000);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_costs_the_time_limit() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    a.shared.set_filled();
    api.put(&path("r"), value(ROUTE));
    seconds(1).await;
    api.set_slow(Duration::from_secs(3600));
    a.hear(&["r"]);
    seconds(60).await;
    api.set_slow(Duration::ZERO);
    seconds(25).await;
    assert_eq!(a.statuses().len(), 1, "written when it answers again");
    a.shutdown.cancel();
    a.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_served_version_is_asked_for() {
    let api = FakeApi::new();
    let a = start(&api, "a");
    a.shared.set_filled();
    let path = "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/ns/tlsroutes/r";
    let mut route = value(ROUTE);
    route["apiVersion"] = json!("gateway.networking.k8s.io/v1alpha2");
    route["kind"] = json!("TLSRoute");
    route["spec"]["rules"] = json!([{}]);
    api.put(path, route);
    a.shared.apply(&object(&api.find(path).unwrap()));
    seconds(12).await;
    let [write] = a.statuses().try_into().unwrap();
    assert_eq!(write.uri.path(), format!("{path}/status"));
    assert_eq!(
        write.body["apiVersion"],
        "gateway.networking.k8s.io/v1alpha2"
    );
}

/// As with definitions of Servers that are not ours.
#[tokio::test(start_paused = true)]
async fn where_the_api_server_has_no_status_none_is_written() {
    const PATH: &str = "/apis/policy.linkerd.io/v1beta3/namespaces/ns/servers/s";
    let api = FakeApi::new();
    let a = start(&api, "a");
    let servers = json!({"name": "servers", "singularName": "", "namespaced": true, "kind": "Server", "verbs": ["list"]});
    let list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "policy.linkerd.io/v1beta3", "resources": [servers]
    });
    api.put("/apis/policy.linkerd.io/v1beta3", list);
    let server = json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "s", "namespace": "ns"},
        "spec": {"podSelector": {}, "port": 80}
    });
    api.put(PATH, server);
    a.shared.apply(&object(&api.find(PATH).unwrap()));
    a.shared.set_filled();
    seconds(60).await;
    assert!(a.statuses().is_empty());
    // The definitions are updated.
    api.serve_kinds("policy.linkerd.io/v1beta3", &["servers"]);
    seconds(12).await;
    let [write] = a.statuses().try_into().unwrap();
    assert_eq!(
        (write.uri.path(), write.status),
        (&*format!("{PATH}/status"), 200)
    );
}

#[tokio::test]
async fn over_a_real_connection() {
    let api = FakeApi::new();
    api.serve_kinds("gateway.networking.k8s.io/v1", &["httproutes"]);
    api.put(&path("r"), value(ROUTE));
    let shared = Shared::new();
    shared.apply(&object(&value(SERVICE)));
    shared.apply(&object(&api.find(&path("r")).unwrap()));
    shared.set_filled();
    let registry = Registry::new(Duration::from_secs(60));
    let settings = Settings {
        mesh: MeshSettings::default(),
        patch_timeout: PATCH_TIMEOUT,
        lease: lease::Settings {
            namespace: "linkerd".to_owned(),
            holder: "a".to_owned(),
            deployment: "linkerd-destination".to_owned(),
            terms: lease::Terms::default(),
        },
    };
    let (metrics, shutdown) = (Metrics::register(&registry), CancellationToken::new());
    let running = tokio::spawn(run(
        api.serve().await,
        shared,
        settings,
        metrics,
        shutdown.clone(),
    ));
    for _ in 0..200 {
        if registry
            .encode()
            .contains("resource_status_patches_total 1\n")
        {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let stored = api.find(&path("r")).unwrap();
    assert_eq!(
        stored["status"]["parents"][0]["controllerName"],
        "linkerd.io/policy-controller"
    );
    let duration = "resource_status_patch_duration_seconds_count{kind=\"HTTPRoute.gateway.networking.k8s.io\"} 1\n";
    assert!(
        registry.encode().contains(duration),
        "{}",
        registry.encode()
    );
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(
        api.find(LEASE).unwrap()["spec"].get("holderIdentity"),
        None,
        "given back"
    );
}
