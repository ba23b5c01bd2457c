//! The validating webhook as an API server sees it: over TLS, with certificate files that come after the start.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, version::TLS13};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use weft_policy::admission::{Metrics, TlsFiles, Webhook, serve};
use weft_runtime::metrics::Registry;

const NAME: &str = "linkerd-policy-validator.linkerd.svc";

#[tokio::test]
async fn a_review_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = TlsFiles {
        certificate: directory.path().join("tls.crt"),
        key: directory.path().join("tls.key"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let (registry, shutdown) = (
        Registry::new(Duration::from_secs(60)),
        CancellationToken::new(),
    );
    let webhook = Webhook::new(listener, files.clone());
    let certificate = webhook.certificate();
    let serving = tokio::spawn(serve(
        webhook,
        Metrics::register(&registry),
        shutdown.clone(),
    ));
    let reason = certificate.ready().expect_err("no files yet");
    assert!(reason.contains("no certificate"), "{reason}");

    let pair = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    std::fs::write(&files.key, pair.signing_key.serialize_pem()).expect("written");
    std::fs::write(&files.certificate, pair.cert.pem()).expect("written");
    for _ in 0..200 {
        if certificate.ready().is_ok() {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    certificate.ready().expect("the files are in use");

    let mut roots = RootCertStore::empty();
    roots.add(pair.cert.der().clone()).expect("a root");
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await.expect("connected");
    let name = ServerName::try_from(NAME).expect("a name");
    let tls = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("TLS");
    let io = TokioIo::new(tls);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);

    for (port, allowed) in [(json!(80), true), (json!(0), false)] {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "operation": "CREATE", "namespace": "ns", "name": "web",
                "kind": {"group": "policy.linkerd.io", "version": "v1beta3", "kind": "Server"},
                "object": {
                    "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "web"},
                    "spec": {"podSelector": {}, "port": port}
                }
            }
        });
        let request = http::Request::post(format!("https://{NAME}/?timeout=10s"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(review.to_string())))
            .expect("a request");
        let answer = sender.send_request(request).await.expect("answered");
        let body = answer
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(answer["response"]["allowed"], allowed, "{answer}");
        let message = answer["response"]["status"]["message"].as_str();
        assert_eq!(
            message,
            (!allowed).then_some("spec.port: 0 is not a port (1 to 65535)")
        );
    }
    let refused =
        "policy_admission_requests_total{kind=\"Server\",operation=\"CREATE\",allowed=\"false\"} 1";
    assert!(registry.encode().contains(refused), "{}", registry.encode());
    drop(sender);
    shutdown.cancel();
    serving.await.expect("the webhook ends with the shutdown");
}
