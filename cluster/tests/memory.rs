//! Memory of the index per 1,000 pods, filled from an API server over HTTP; a program of its own, so that nothing else
//! counts.

use std::{convert::Infallible, fs, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_cluster::{Kind, KubeSource, Name, Reader, Shared, kube::Metrics};

const PODS: usize = 10_000;
/// Most memory of 1,000 pods while they are read, in kB; what the server in this process takes counts too.
const MOST: usize = 14_000;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A pod with a sidecar, as a cluster has it: 7 kB of JSON, with marks where pods differ.
fn template() -> String {
    let probe =
        json!({"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10});
    let mounts = json!([{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "token", "readOnly": true}]);
    let env: Vec<_> = (0..20)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "a value that is not very long"}))
        .collect();
    let proxy_env: Vec<_> = [
        ("INBOUND", "0.0.0.0:4143"),
        ("ADMIN", "0.0.0.0:4191"),
        ("CONTROL", "0.0.0.0:4190"),
    ]
    .into_iter()
    .map(|(name, value)| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": value}))
    .chain((0..40).map(|n| json!({"name": format!("LINKERD2_PROXY_SETTING_{n}"), "value": "100ms"})))
    .collect();
    let pod = json!({
        "metadata": {
            "name": "web-5d4f7c9b8-@N@", "namespace": "team-@TEAM@",
            "uid": "00000000-0000-0000-0000-@N@", "resourceVersion": "@N@",
            "labels": {"app": "web", "pod-template-hash": "5d4f7c9b8", "linkerd.io/control-plane-ns": "linkerd",
                "linkerd.io/workload-ns": "team", "linkerd.io/proxy-deployment": "web"},
            "annotations": {"linkerd.io/inject": "enabled", "linkerd.io/created-by": "weft", "linkerd.io/trust-root-sha256": "0".repeat(64)},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f7c9b8", "uid": "1", "controller": true}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:conditions": {"x".repeat(1500): {}}}}}],
        },
        "spec": {
            "serviceAccountName": "web", "nodeName": "node-@NODE@",
            "containers": [
                {"name": "app", "image": "example.org/web:1", "env": env, "volumeMounts": mounts,
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}], "livenessProbe": probe, "readinessProbe": probe},
            ],
            "initContainers": [
                {"name": "linkerd-init", "image": "weft", "volumeMounts": mounts},
                {"name": "linkerd-proxy", "image": "weft", "env": proxy_env, "volumeMounts": mounts, "restartPolicy": "Always",
                    "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}]},
            ],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}],
        },
        "status": {
            "phase": "Running", "hostIP": "192.168.0.@NODE@", "podIP": "@IP@", "podIPs": [{"ip": "@IP@"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            "containerStatuses": [{"name": "app", "image": "x", "imageID": "y".repeat(80), "ready": true, "restartCount": 0}],
        },
    });
    pod.to_string()
}

fn pod(template: &str, number: usize) -> String {
    let ip = format!("10.1.{}.{}", number / 250, number % 250);
    let text = template.replace("@N@", &format!("{number:05}"));
    let text = text.replace("@TEAM@", &(number % 50).to_string());
    text.replace("@NODE@", &(number % 200).to_string())
        .replace("@IP@", &ip)
}

fn list(next: &str, items: &[String]) -> String {
    let items = items.join(",");
    format!(r#"{{"metadata":{{"resourceVersion":"1","continue":"{next}"}},"items":[{items}]}}"#)
}

fn group(name: &str) -> String {
    let version = json!({"groupVersion": format!("{name}/v1alpha1"), "version": "v1alpha1"});
    json!({"name": name, "versions": [version]}).to_string()
}

/// All kinds, whatever their group.
fn resources() -> String {
    let all = Kind::ALL.map(|kind| {
        json!({"name": kind.api().plural, "singularName": "", "namespaced": true, "kind": "X", "verbs": []})
    });
    json!({"groupVersion": "x/v1alpha1", "resources": all}).to_string()
}

async fn answer(
    request: Request<Incoming>,
    template: Arc<str>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default();
    if query.starts_with("watch") {
        // No changes.
        std::future::pending::<()>().await;
    }
    let from = query
        .split_once("continue=")
        .map(|(_, from)| from.parse().expect("a number"));
    let from: usize = from.unwrap_or_default();
    let (code, text) = match request.uri().path() {
        "/api/v1/pods" => {
            let next = from + 500;
            let items: Vec<_> = (from..next).map(|number| pod(&template, number)).collect();
            let next = match next < PODS {
                true => next.to_string(),
                false => String::new(),
            };
            (200, list(&next, &items))
        }
        path if path.starts_with("/apis/gateway.") => (404, "{}".to_owned()),
        path if path.starts_with("/apis/") && path.matches('/').count() == 2 => {
            (200, group(path.trim_start_matches("/apis/")))
        }
        path if path.starts_with("/apis/") && path.matches('/').count() == 3 => (200, resources()),
        _ => (200, list("", &[])),
    };
    let body = Full::new(Bytes::from(text));
    Ok(Response::builder()
        .status(code)
        .body(body)
        .expect("an answer"))
}

/// A line of /proc/self/status in kB.
fn memory(field: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with(field))
        .expect("the field");
    let number = line.split_whitespace().nth(1).expect("a number");
    number.parse().expect("a number")
}

#[tokio::test]
async fn a_thousand_pods_take_few_megabytes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free");
    let addr = listener.local_addr().expect("an address");
    let template: Arc<str> = template().into();
    let size = pod(&template, 1).len();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let template = Arc::clone(&template);
            let service = service_fn(move |request| answer(request, Arc::clone(&template)));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let url = format!("http://{addr}").parse().expect("a URL");
    let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
    let shared = Shared::new();
    let source = KubeSource::new(client, Arc::clone(&shared), Metrics::default());
    let before = memory("VmRSS");
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&source).run(shutdown.clone()));
    for _ in 0..1_200 {
        if shared.is_filled() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    source.ready().expect("filled within a minute");
    let name = Name::new("team-7", "web-5d4f7c9b8-00007");
    assert!(shared.read(|index| Reader::new(index).pod(&name).is_some()));
    let (kept, peak) = (memory("VmRSS") - before, memory("VmHWM") - before);
    println!(
        "{PODS} pods of {size} bytes of JSON: kept {} kB, at most {} kB for 1,000 pods",
        kept * 1_000 / PODS,
        peak * 1_000 / PODS
    );
    assert!(peak * 1_000 / PODS < MOST, "{peak} kB");
    shutdown.cancel();
    running.await.expect("no panic");
}
