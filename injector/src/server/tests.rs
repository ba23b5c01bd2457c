//! Tests of the webhook: what it asks, answers and tells, against an API server over HTTP and with clients over TLS.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::testing::FakeApi;
use super::*;

const HOST: &str = "linkerd-proxy-injector.linkerd.svc";
const ANCHORS: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// The settings of the injector in files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(values: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("values", values);
        folder.write("ca-bundle.crt", ANCHORS);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn settings(&self, certificate: CertificateSource) -> Settings {
        Settings {
            control_namespace: "linkerd".to_owned(),
            config_file: self.0.path().join("values"),
            trust_roots: self.0.path().join("ca-bundle.crt"),
            certificate,
            version: "1.2.3".to_owned(),
        }
    }
}

/// An injector without its listener.
struct Bench {
    api: FakeApi,
    folder: Folder,
    injector: Injector,
    registry: Arc<Registry>,
}

impl Bench {
    async fn new() -> Self {
        let api = FakeApi::start().await;
        let folder = Folder::new("");
        let registry = Arc::new(Registry::new(RETAIN_METRICS));
        let metrics = Metrics::register(&registry);
        let (events, posting) = Events::new(api.client.clone(), metrics.clone());
        tokio::spawn(async move { posting.run(&CancellationToken::new()).await });
        let injector = Injector {
            config: ConfigFiles::new(&folder.settings(CertificateSource::Own)),
            cluster: Cluster::new(api.client.clone()),
            events,
            metrics,
        };
        Self {
            api,
            folder,
            injector,
            registry,
        }
    }

    async fn answer(&self, request: Value) -> Answer {
        let request = serde_json::from_value(request).unwrap();
        self.injector.answer(request).await
    }
}

fn request(object: &Value) -> Value {
    json!({
        "uid": "u-1",
        "kind": { "group": "", "version": "v1", "kind": object["kind"] },
        "namespace": "shop",
        "operation": "CREATE",
        "object": object,
    })
}

fn pod(owner: Option<Value>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "generateName": "web-5d4f-", "labels": { "pod-template-hash": "5d4f" } },
        "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
    });
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([owner]);
    }
    pod
}

fn owned(api_version: &str, kind: &str, name: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": "x", "controller": true })
}

fn label_of(answer: &Answer, label: &str) -> Option<String> {
    let path = format!("/metadata/labels/linkerd.io~1{label}");
    let patch = answer.patch.as_ref()?.as_array()?;
    let found = patch
        .iter()
        .find(|operation| operation["path"] == path.as_str())?;
    Some(found["value"].as_str()?.to_owned())
}

#[tokio::test]
async fn a_pod_of_a_deployment_is_injected_and_told_of() {
    let bench = Bench::new().await;
    bench.api.namespace(
        "shop",
        json!({ "linkerd.io/inject": "enabled", "config.linkerd.io/proxy-log-level": "debug" }),
    );
    let set = json!({ "metadata": {
        "name": "web-5d4f", "namespace": "shop",
        "ownerReferences": [owned("apps/v1", "Deployment", "web")],
    }});
    bench
        .api
        .put("/apis/apps/v1/namespaces/shop/replicasets/web-5d4f", set);
    let pod = pod(Some(owned("apps/v1", "ReplicaSet", "web-5d4f")));
    let answer = bench.answer(request(&pod)).await;
    assert_eq!(answer.refusal, None);
    assert_eq!(
        label_of(&answer, "proxy-deployment").as_deref(),
        Some("web")
    );
    assert_eq!(label_of(&answer, "workload-ns").as_deref(), Some("shop"));
    let (about, message) = bench.api.event("shop", "Injected").await;
    assert_eq!(
        (about.as_str(), message.as_str()),
        ("Deployment/web", "Linkerd sidecar proxy injected")
    );
    // The same is not said again.
    bench.answer(request(&pod)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.api.events("shop").len(), 1);
    let text = bench.registry.encode();
    for line in [
        r#"proxy_inject_admission_requests_total{owner_kind="deployment",namespace="shop",annotation_at="namespace",proxy_log_level="debug"} 2"#,
        r#"proxy_inject_admission_responses_total{owner_kind="deployment",namespace="shop",annotation_at="namespace",proxy_log_level="debug",skip="false",skip_reason=""} 2"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn j06_owners_that_are_gone_or_unknown() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let set = pod(Some(owned("apps/v1", "ReplicaSet", "web-5d4f")));
    let answer = bench.answer(request(&set)).await;
    assert_eq!(
        label_of(&answer, "proxy-deployment").as_deref(),
        Some("web"),
        "by its name"
    );
    let other = pod(Some(owned("apps/v1", "ReplicaSet", "other")));
    let answer = bench.answer(request(&other)).await;
    assert_eq!(
        label_of(&answer, "proxy-replicaset").as_deref(),
        Some("other")
    );
    let unknown = pod(Some(owned("x/v1", "Foo", "web")));
    let answer = bench.answer(request(&unknown)).await;
    assert!(answer.patch.is_some() && label_of(&answer, "proxy-foo").is_none());
    let job = json!({ "metadata": { "name": "b-1", "ownerReferences": [owned("batch/v1", "CronJob", "b")] } });
    bench
        .api
        .put("/apis/batch/v1/namespaces/shop/jobs/b-1", job);
    let answer = bench
        .answer(request(&pod(Some(owned("batch/v1", "Job", "b-1")))))
        .await;
    assert_eq!(label_of(&answer, "proxy-cronjob").as_deref(), Some("b"));
    let alone = bench.answer(request(&pod(None))).await;
    assert!(alone.patch.is_some());
    // Of several owners the one that controls the pod counts, wherever it stands; without one, none.
    let mut two = pod(None);
    let mut other = owned("x/v1", "Foo", "foo");
    other["controller"] = json!(false);
    two["metadata"]["ownerReferences"] = json!([other, owned("apps/v1", "StatefulSet", "db")]);
    let answer = bench.answer(request(&two)).await;
    assert_eq!(
        label_of(&answer, "proxy-statefulset").as_deref(),
        Some("db")
    );
    two["metadata"]["ownerReferences"][1]["controller"] = json!(null);
    let answer = bench.answer(request(&two)).await;
    assert!(answer.patch.is_some() && label_of(&answer, "proxy-statefulset").is_none());
}

#[tokio::test]
async fn j07_a_skipped_pod_has_an_event_and_a_metric() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let mut pod = pod(None);
    pod["metadata"]["name"] = json!("web");
    pod["spec"]["hostNetwork"] = json!(true);
    let answer = bench.answer(request(&pod)).await;
    assert_eq!(answer, Answer::admit());
    let (about, message) = bench.api.event("shop", "InjectionSkipped").await;
    assert_eq!(about, "Pod/web");
    assert!(message.contains("hostNetwork"), "{message}");
    let text = bench.registry.encode();
    assert!(
        text.contains(r#"skip="true",skip_reason="host_network_enabled"} 1"#),
        "{text}"
    );
}

#[tokio::test]
async fn j05_ignored_annotations_are_events_and_warnings() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let mut pod = pod(None);
    pod["metadata"]["name"] = json!("web");
    pod["metadata"]["annotations"] = json!({ "config.linkerd.io/proxy-cpu-limit": "200mm" });
    let answer = bench.answer(request(&pod)).await;
    assert_eq!(answer.refusal, None);
    let [warning] = answer.warnings.as_slice() else {
        panic!("{:?}", answer.warnings);
    };
    assert!(
        warning.contains("proxy-cpu-limit") && warning.contains("200mm"),
        "{warning}"
    );
    let (_, message) = bench.api.event("shop", "InjectionAdjusted").await;
    assert_eq!(&message, warning);
}

#[tokio::test]
async fn pods_nobody_asked_a_proxy_for_are_not_talked_about() {
    let bench = Bench::new().await;
    bench.api.namespace("shop", json!({}));
    let mut pod = pod(None);
    pod["metadata"]["name"] = json!("web");
    assert_eq!(bench.answer(request(&pod)).await, Answer::admit());
    // What comes after it shows that it was not said.
    pod["metadata"]["annotations"] = json!({ "linkerd.io/inject": "enabled" });
    bench.answer(request(&pod)).await;
    bench.api.event("shop", "Injected").await;
    assert_eq!(bench.api.events("shop").len(), 1);
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let mut pod = pod(None);
    pod["metadata"]["name"] = json!("web");
    let mut dry = request(&pod);
    dry["dryRun"] = json!(true);
    assert!(bench.answer(dry).await.patch.is_some());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.api.events("shop"), []);
}

#[tokio::test]
async fn j17_only_creations_of_pods_and_services_are_looked_at() {
    let bench = Bench::new().await;
    let pod = pod(None);
    let mut update = request(&pod);
    update["operation"] = json!("UPDATE");
    let mut ephemeral = request(&pod);
    ephemeral["subResource"] = json!("ephemeralcontainers");
    let mut other = request(&pod);
    other["kind"]["group"] = json!("apps");
    for request in [update, ephemeral, other] {
        assert_eq!(bench.answer(request).await, Answer::admit());
    }
    assert!(bench.api.store.lock().requests.is_empty());
}

#[tokio::test]
async fn a_namespace_that_cannot_be_read_refuses() {
    let bench = Bench::new().await;
    let mut named = pod(None);
    named["metadata"]["name"] = json!("web");
    let refusal = bench.answer(request(&named)).await.refusal.unwrap();
    assert!(
        refusal.contains("namespace shop") && refusal.contains("none of that name"),
        "{refusal}"
    );
    let (about, message) = bench.api.event("shop", "InjectionFailed").await;
    assert_eq!((about.as_str(), &message), ("Pod/web", &refusal));
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    bench.api.store.lock().broken = Some(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let refusal = bench.answer(request(&pod(None))).await.refusal.unwrap();
    assert!(refusal.contains("try again"), "{refusal}");
    bench.api.store.lock().broken = None;
    assert_eq!(bench.answer(request(&pod(None))).await.refusal, None);
    let text = bench.registry.encode();
    let refused = r#"proxy_inject_admission_responses_total{owner_kind="pod",namespace="shop",annotation_at="",skip="true",skip_reason="refused"} 2"#;
    assert!(text.contains(refused), "{text}");
}

#[tokio::test]
async fn objects_without_readable_metadata_are_refused_and_counted() {
    let bench = Bench::new().await;
    let mut wrong = pod(None);
    wrong["metadata"]["labels"] = json!([1]);
    let refusal = bench.answer(request(&wrong)).await.refusal.unwrap();
    assert!(
        refusal.contains("metadata.labels cannot be read"),
        "{refusal}"
    );
    let mut nowhere = request(&pod(None));
    nowhere["namespace"] = json!("");
    let refusal = bench.answer(nowhere).await.refusal.unwrap();
    assert!(refusal.contains("names a namespace"), "{refusal}");
    let text = bench.registry.encode();
    for namespace in ["shop", ""] {
        let refused = format!(
            r#"proxy_inject_admission_requests_total{{owner_kind="pod",namespace="{namespace}",annotation_at=""}} 1"#
        );
        assert!(text.contains(&refused), "{text}");
    }
}

#[tokio::test]
async fn settings_are_read_anew_and_bad_ones_stop_only_who_needs_them() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let version = |answer: &Answer| {
        let patch = answer.patch.as_ref().unwrap().as_array().unwrap().clone();
        let path = "/metadata/annotations/linkerd.io~1proxy-version";
        patch
            .iter()
            .find(|operation| operation["path"] == path)
            .unwrap()["value"]
            .clone()
    };
    assert_eq!(version(&bench.answer(request(&pod(None))).await), "1.2.3");
    bench
        .folder
        .write("values", "proxy: {image: {version: edge-9}}");
    assert_eq!(version(&bench.answer(request(&pod(None))).await), "edge-9");
    for (name, text) in [
        ("values", "proxy: {ports: {inbound: many}}"),
        ("values", "proxy: {opaquePorts: '1-0'}"),
        ("ca-bundle.crt", "\n"),
    ] {
        bench.folder.write("values", "");
        bench.folder.write("ca-bundle.crt", ANCHORS);
        bench.folder.write(name, text);
        let refusal = bench.answer(request(&pod(None))).await.refusal.unwrap();
        assert!(refusal.contains("linkerd-config"), "{refusal}");
        let mut disabled = pod(None);
        disabled["metadata"]["annotations"] = json!({ "linkerd.io/inject": "disabled" });
        assert_eq!(
            bench.answer(request(&disabled)).await,
            Answer::admit(),
            "{text}"
        );
    }
    std::fs::remove_file(bench.folder.0.path().join("values")).unwrap();
    let refusal = bench.answer(request(&pod(None))).await.refusal.unwrap();
    assert!(refusal.contains("cannot be read"), "{refusal}");
}

#[tokio::test]
async fn services_get_the_opaque_ports_of_their_namespace() {
    let bench = Bench::new().await;
    bench
        .api
        .namespace("shop", json!({ "config.linkerd.io/opaque-ports": "3306" }));
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" }, "spec": { "ports": [{ "port": 1 }] } });
    let answer = bench.answer(request(&service)).await;
    assert_eq!(
        answer.patch.unwrap()[1],
        json!({ "op": "add", "path": "/metadata/annotations/config.linkerd.io~1opaque-ports", "value": "3306" })
    );
    let text = bench.registry.encode();
    assert!(text.contains(r#"owner_kind="service""#), "{text}");
}

/// Certificate, key and authority (all PEM) for [`HOST`].
fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn connector(
    bundle: &[u8],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Posts a body, over a connection of its own.
async fn post(
    addr: std::net::SocketAddr,
    bundle: &[u8],
    body: String,
) -> Result<(u16, Value), String> {
    let tcp = TcpStream::connect(addr).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from(HOST).unwrap();
    let tls = connector(bundle, &[&rustls::version::TLS13])
        .connect(name, tcp)
        .await;
    let tls = TokioIo::new(tls.map_err(|e| e.to_string())?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(tls).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = hyper::Request::post("/?timeout=10s")
        .header("host", HOST)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let answer = sender
        .send_request(request)
        .await
        .map_err(|e| e.to_string())?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    connection.abort();
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}

struct Running {
    addr: std::net::SocketAddr,
    admin: std::net::SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(settings: Settings, client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = CancellationToken::new();
        let (addr, admin_addr) = (listener.local_addr().unwrap(), admin.local_addr().unwrap());
        let task = tokio::spawn(serve(listener, admin, settings, client, shutdown.clone()));
        Self {
            addr,
            admin: admin_addr,
            shutdown,
            task,
        }
    }

    /// Waits until requests that trust `bundle` are answered.
    async fn trusted_by(&self, bundle: &[u8]) {
        let mut last = String::new();
        for _ in 0..400 {
            match post(self.addr, bundle, String::new()).await {
                Ok(_) => return,
                Err(error) => last = error,
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not trusted: {last}");
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(15), self.task)
            .await
            .expect("it ends with the shutdown")
            .unwrap();
    }
}

/// A Secret volume: `..data` points to the folder of the files.
fn swap(root: &Path, version: &str, (certificate, key): &(String, String)) {
    let folder = root.join(version);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.join("tls.key"), key).unwrap();
    let link = root.join("..data_tmp");
    std::os::unix::fs::symlink(version, &link).unwrap();
    std::fs::rename(&link, root.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        let _ = std::os::unix::fs::symlink(Path::new("..data").join(name), root.join(name));
    }
}

fn review_of(api_version: &str, request: Value) -> String {
    json!({ "apiVersion": api_version, "kind": "AdmissionReview", "request": request }).to_string()
}

#[tokio::test]
async fn https_both_versions_and_a_swapped_certificate() {
    let api = FakeApi::start().await;
    api.namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let folder = Folder::new("");
    let tls = tempfile::tempdir().unwrap();
    let (first, second) = (certificate(), certificate());
    swap(tls.path(), "..1", &first);
    let files = CertificateSource::Files {
        certificate: tls.path().join("tls.crt"),
        key: tls.path().join("tls.key"),
    };
    let running = Running::start(folder.settings(files), api.client.clone()).await;
    running.trusted_by(first.0.as_bytes()).await;
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let body = review_of(version, request(&pod(None)));
        let (status, answer) = post(running.addr, first.0.as_bytes(), body).await.unwrap();
        assert_eq!((status, &answer["apiVersion"]), (200, &json!(version)));
        assert_eq!(answer["response"]["uid"], "u-1");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
    }
    let (status, _) = post(running.addr, first.0.as_bytes(), "{".to_owned())
        .await
        .unwrap();
    assert_eq!(status, 400);
    let old = TcpStream::connect(running.addr).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let refused = connector(first.0.as_bytes(), &[&rustls::version::TLS12])
        .connect(name, old)
        .await;
    assert!(refused.is_err(), "TLS 1.2");
    swap(tls.path(), "..2", &second);
    running.trusted_by(second.0.as_bytes()).await;
    assert!(
        post(running.addr, first.0.as_bytes(), String::new())
            .await
            .is_err()
    );
    assert!(running.admin.port() > 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_at_once() {
    let api = FakeApi::start().await;
    api.namespace("shop", json!({ "linkerd.io/inject": "enabled" }));
    let folder = Folder::new("");
    let tls = tempfile::tempdir().unwrap();
    let pair = certificate();
    swap(tls.path(), "..1", &pair);
    let files = CertificateSource::Files {
        certificate: tls.path().join("tls.crt"),
        key: tls.path().join("tls.key"),
    };
    let running = Running::start(folder.settings(files), api.client.clone()).await;
    running.trusted_by(pair.0.as_bytes()).await;
    let started = Instant::now();
    let requests: Vec<_> = (0..100)
        .map(|_| {
            let (addr, bundle) = (running.addr, pair.0.clone());
            let body = review_of("admission.k8s.io/v1", request(&pod(None)));
            tokio::spawn(async move {
                let started = Instant::now();
                let answer = post(addr, bundle.as_bytes(), body).await.unwrap();
                (answer, started.elapsed())
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for answered in requests {
        let ((status, answer), latency) = answered.await.unwrap();
        latencies.push(latency);
        assert_eq!(
            (status, &answer["response"]["allowed"]),
            (200, &json!(true))
        );
        assert!(answer["response"]["patch"].as_str().unwrap().len() > 1000);
    }
    // The webhook's time limit is 10 s; this is a debug build, with a handshake for each request.
    let took = started.elapsed();
    latencies.sort();
    let (median, last) = (latencies[50], latencies[99]);
    println!(
        "100 requests at once, each with a handshake: {took:?}, median {median:?}, last {last:?}"
    );
    assert!(took < Duration::from_secs(10), "{took:?}");
    running.stop().await;
}

const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkerd-proxy-injector-webhook-config";

#[tokio::test]
async fn c01_replicas_share_the_certificate_they_make() {
    let api = FakeApi::start().await;
    api.put(
        CONFIGURATION,
        super::self_certificate::tests::configuration(),
    );
    let folder = Folder::new("");
    let mut replicas = Vec::new();
    for _ in 0..3 {
        let settings = folder.settings(CertificateSource::Own);
        replicas.push(Running::start(settings, api.client.clone()).await);
    }
    let announced = async {
        loop {
            let configuration = api.get(CONFIGURATION).unwrap();
            match super::self_certificate::tests::announced(&configuration) {
                Some(bundle) => break bundle,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let bundle = tokio::time::timeout(Duration::from_secs(10), announced).await;
    let bundle = bundle.expect("announced");
    for replica in &replicas {
        replica.trusted_by(&bundle).await;
    }
    for replica in replicas {
        replica.stop().await;
    }
}
