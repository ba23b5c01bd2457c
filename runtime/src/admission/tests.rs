//! The webhook server over real TLS connections on the loopback address.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use hyper::client::conn::{http1, http2};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const NAME: &str = "webhook.test";

struct Pair {
    certificate: String,
    key: String,
    der: CertificateDer<'static>,
}

fn pair() -> Pair {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([NAME.to_owned()]).unwrap();
    Pair {
        certificate: cert.pem(),
        key: signing_key.serialize_pem(),
        der: cert.der().clone(),
    }
}

struct Server {
    addr: SocketAddr,
    certificate: Arc<Certificate>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn start<H, F>(pair: &Pair, handler: H) -> Server
where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let certificate = Certificate::new();
    let (chain, key) = (pair.certificate.as_bytes(), pair.key.as_bytes());
    certificate.install(chain, key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve(
        listener,
        Arc::clone(&certificate),
        handler,
        shutdown.clone(),
    ));
    Server {
        addr,
        certificate,
        shutdown,
        task,
    }
}

async fn connect(
    addr: SocketAddr,
    trusted: &Pair,
    alpn: &[&str],
    version: &'static rustls::SupportedProtocolVersion,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der.clone()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(addr).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(NAME).unwrap(), stream)
        .await
}

fn question(object: Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "CREATE", "namespace": "ns", "name": "x", "dryRun": false,
            "kind": {"group": "policy.linkerd.io", "version": "v1beta3", "kind": "Server"},
            "object": object, "oldObject": null, "userInfo": {"username": "somebody"}
        }
    })
    .to_string()
}

/// One exchange of its own connection over HTTP/1.1.
async fn exchange(
    server: &Server,
    trusted: &Pair,
    method: &str,
    path: &str,
    body: impl Into<Bytes>,
) -> (StatusCode, String) {
    let tls = connect(server.addr, trusted, &["http/1.1"], &TLS13)
        .await
        .unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", NAME)
        .body(Full::new(body.into()))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn judge(request: Request) -> Answer {
    match request.object.get("verdict").and_then(Value::as_str) {
        Some("no") => Answer::refuse("spec.port: is missing").warn("w"),
        Some("patch") => Answer::patch(json!([{"op": "remove", "path": "/a"}])),
        _ => Answer::admit(),
    }
}

#[tokio::test]
async fn reviews_are_answered_in_their_version_and_with_their_uid() {
    let pair = pair();
    let server = start(&pair, judge).await;
    for (verdict, version, expected) in [
        ("yes", "v1", json!({"uid": "u-1", "allowed": true})),
        (
            "no",
            "v1beta1",
            json!({
                "uid": "u-1", "allowed": false, "warnings": ["w"],
                "status": {"code": 403, "message": "spec.port: is missing"}
            }),
        ),
        (
            "patch",
            "v1",
            json!({
                "uid": "u-1", "allowed": true, "patchType": "JSONPatch",
                "patch": "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL2EifV0="
            }),
        ),
    ] {
        let body = question(json!({"verdict": verdict})).replace(
            "admission.k8s.io/v1",
            &format!("admission.k8s.io/{version}"),
        );
        let (status, body) = exchange(&server, &pair, "POST", "/?timeout=10s", body).await;
        assert_eq!(status, StatusCode::OK);
        let read: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            read,
            json!({
                "apiVersion": format!("admission.k8s.io/{version}"), "kind": "AdmissionReview", "response": expected
            })
        );
    }
}

#[tokio::test]
async fn what_is_no_review_is_refused_with_a_reason() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (method, path, body, status, reason) in [
        ("POST", "/", "{", 400, "is not an AdmissionReview"),
        ("POST", "/", &*deep, 400, "is not an AdmissionReview"),
        (
            "POST",
            "/",
            "{\"apiVersion\":\"v1\",\"kind\":\"AdmissionReview\"}",
            400,
            "v1 or v1beta1",
        ),
        (
            "POST",
            "/",
            "{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"Pod\"}",
            400,
            "v1 or v1beta1",
        ),
        (
            "POST",
            "/",
            "{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"}",
            400,
            "no request",
        ),
        ("POST", "/other", "", 404, "path is /"),
        ("GET", "/", "", 405, "only POST"),
    ] {
        let (got, text) = exchange(&server, &pair, method, path, body.to_owned()).await;
        assert_eq!(got.as_u16(), status, "{method} {path}: {text}");
        assert!(text.contains(reason), "{text}");
    }
}

#[tokio::test]
async fn a_body_of_10_mb_passes_and_a_larger_one_does_not() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let sized = |size: usize| {
        let empty = question(json!({"pad": ""})).len();
        question(json!({"pad": "x".repeat(size - empty)}))
    };
    let (status, _) = exchange(&server, &pair, "POST", "/", sized(BODY_MAX)).await;
    assert_eq!(status, StatusCode::OK);
    let (status, text) = exchange(&server, &pair, "POST", "/", sized(BODY_MAX + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    // What the two took of the room for bodies is free again.
    let (status, _) = exchange(&server, &pair, "POST", "/", sized(BODY_MAX)).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn bodies_beyond_the_room_for_all_are_turned_away() {
    let (pair, arrived, go_on) = (pair(), Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (entered, gate) = (Arc::clone(&arrived), Arc::clone(&go_on));
    let server = start(&pair, move |_| {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        async move {
            entered.notify_one();
            let _pass = gate.acquire().await;
            Answer::admit()
        }
    })
    .await;
    let server = Arc::new(server);
    let body = question(json!({"pad": "x".repeat(BODY_MAX - 1000)}));
    let trusted = Arc::new(pair);
    let mut held = Vec::new();
    for _ in 0..3 {
        let (server, trusted, body) = (Arc::clone(&server), Arc::clone(&trusted), body.clone());
        held.push(tokio::spawn(async move {
            exchange(&server, &trusted, "POST", "/", body).await.0
        }));
        arrived.notified().await;
    }
    let (status, _) = exchange(&server, &trusted, "POST", "/", body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    go_on.add_permits(3);
    for status in held {
        assert_eq!(status.await.unwrap(), StatusCode::OK);
    }
}

#[tokio::test]
async fn http_2_serves_many_reviews_on_one_connection() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let tls = connect(server.addr, &pair, &["h2"], &TLS13).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(connection);
    let exchanges = (0..100).map(|_| {
        let mut sender = sender.clone();
        let request = hyper::Request::post(format!("https://{NAME}/"))
            .body(Full::new(Bytes::from(question(json!({})))))
            .unwrap();
        async move { sender.send_request(request).await.unwrap().status() }
    });
    let statuses = futures_util::future::join_all(exchanges).await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK));
}

#[tokio::test]
async fn tls_1_2_is_not_spoken() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let error = connect(server.addr, &pair, &[], &TLS12)
        .await
        .expect_err("refused");
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
}

#[tokio::test]
async fn requests_under_way_are_finished_after_the_shutdown() {
    let (pair, arrived, go_on) = (pair(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (entered, gate) = (Arc::clone(&arrived), Arc::clone(&go_on));
    let server = start(&pair, move |_| {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        async move {
            entered.notify_one();
            gate.notified().await;
            Answer::admit()
        }
    })
    .await;
    let shutdown = server.shutdown.clone();
    let asked = exchange(&server, &pair, "POST", "/", question(json!({})));
    let ((status, _), ()) = tokio::join!(asked, async {
        arrived.notified().await;
        shutdown.cancel();
        tokio::task::yield_now().await;
        go_on.notify_one();
    });
    assert_eq!(status, StatusCode::OK);
    server.task.await.unwrap();
    assert!(TcpStream::connect(server.addr).await.is_err());
}

/// That a wait took as long as it should; before it the clock ran freely, for the handshake.
fn took(started: Instant, expected: Duration) {
    let elapsed = started.elapsed();
    assert!(
        elapsed.abs_diff(expected) < Duration::from_secs(1),
        "{elapsed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_left_after_10_s() {
    let server = start(&pair(), judge).await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let started = Instant::now();
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    took(started, HANDSHAKE_TIMEOUT);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up_after_10_s() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let mut tls = connect(server.addr, &pair, &["http/1.1"], &TLS13)
        .await
        .unwrap();
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    tls.write_all(head.as_bytes()).await.unwrap();
    time::pause();
    let started = Instant::now();
    let mut answer = vec![0; 1024];
    let length = tls.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    took(started, BODY_TIMEOUT);
}

#[tokio::test]
async fn an_idle_connection_is_left() {
    let pair = pair();
    let server = start(&pair, judge).await;
    let mut tls = connect(server.addr, &pair, &["http/1.1"], &TLS13)
        .await
        .unwrap();
    time::pause();
    let started = Instant::now();
    let _ = tls.read(&mut [0]).await;
    took(started, HEAD_TIMEOUT);
}

/// A mounted Secret: `tls.crt` → `..data/tls.crt`, `..data` → a folder per version.
fn mount(dir: &Path, version: &str, certificate: &str, key: &str) {
    let folder = dir.join(version);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.join("tls.key"), key).unwrap();
    let link = dir.join("..data_tmp");
    std::os::unix::fs::symlink(version, &link).unwrap();
    std::fs::rename(&link, dir.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _ = std::os::unix::fs::symlink(format!("..data/{file}"), dir.join(file));
    }
}

async fn shown(server: &Server, pair: &Pair) -> bool {
    connect(server.addr, pair, &["h2"], &TLS13).await.is_ok()
}

/// Waits until a look at the files has led to this.
async fn until(condition: impl AsyncFn() -> bool) {
    for _ in 0..200 {
        if condition().await {
            return;
        }
        time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within 20 s");
}

#[tokio::test]
async fn a_swapped_secret_is_shown_and_a_bad_one_is_not() {
    let (first, second, dir) = (pair(), pair(), tempfile::tempdir().unwrap());
    let server = start(&first, judge).await;
    mount(dir.path(), "..1", &first.certificate, &first.key);
    let following = tokio::spawn(Arc::clone(&server.certificate).follow(
        dir.path().join("tls.crt"),
        dir.path().join("tls.key"),
        server.shutdown.clone(),
    ));
    assert!(shown(&server, &first).await);
    // A key of another certificate.
    mount(dir.path(), "..2", &second.certificate, &first.key);
    until(async || server.certificate.problem.read().is_some()).await;
    let problem = server.certificate.problem.read().clone().unwrap();
    assert!(
        problem.contains("tls.crt and") && problem.contains("cannot be used"),
        "{problem}"
    );
    assert!(shown(&server, &first).await);
    assert!(server.certificate.ready().is_ok());
    mount(dir.path(), "..3", &second.certificate, &second.key);
    until(async || shown(&server, &second).await).await;
    assert!(!shown(&server, &first).await);
    server.shutdown.cancel();
    following.await.unwrap();
}

#[tokio::test]
async fn without_a_certificate_it_is_not_ready_and_says_which_file_is_missing() {
    let (certificate, shutdown) = (Certificate::new(), CancellationToken::new());
    let pair = pair();
    assert!(certificate.ready().unwrap_err().contains("not read yet"));
    let dir = tempfile::tempdir().unwrap();
    let (chain, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    tokio::spawn(Arc::clone(&certificate).follow(chain.clone(), key.clone(), shutdown.clone()));
    until(async || certificate.problem.read().is_some()).await;
    let reason = certificate.ready().unwrap_err();
    assert!(reason.contains("tls.crt: cannot be read"), "{reason}");
    for (chain, key, reason) in [
        ("", &*pair.key, "no certificate"),
        (&*pair.certificate, "x", "no private key"),
        (
            "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
            &*pair.key,
            "no certificate",
        ),
    ] {
        let error = certificate
            .install(chain.as_bytes(), key.as_bytes())
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    std::fs::write(&chain, &pair.certificate).unwrap();
    std::fs::write(&key, &pair.key).unwrap();
    until(async || certificate.ready().is_ok()).await;
    shutdown.cancel();
}
