//! The whole service against a Kubernetes API: tokens reviewed over TLS, Events, an issuer Secret as kubelet mounts it, and how
//! many certificates a second that gives.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use linkerd2_proxy_api::identity::CertifyRequest;
use serde_json::Value;
use tonic::Code;

use super::tests::{Running, assert_usable, certify, config};
use super::*;
use crate::local::LocalAuthority;
use crate::testing::api_server::{ApiServer, cluster};
use crate::throttle::Rate;
use crate::token::TokenReviews;

const FAST: Rate = Rate {
    per_second: 10_000.0,
    burst: 10_000,
};
/// What a TokenReview takes in a cluster.
const REVIEW: Duration = Duration::from_millis(2);

async fn start(
    server: &ApiServer,
    settings: impl FnOnce(Config, &LocalAuthority) -> Config,
) -> Running {
    let reviews = TokenReviews::connect(Some(&server.kubeconfig()), FAST)
        .await
        .expect("connected");
    Running::start_with(|authority| {
        let local = config(authority);
        settings(
            Config {
                tokens: TokenCheck::Kubernetes(reviews),
                ..local
            },
            authority,
        )
    })
    .await
}

fn request(running: &Running, token: &str) -> CertifyRequest {
    CertifyRequest {
        token: token.as_bytes().to_vec(),
        ..running.request()
    }
}

async fn event(server: &ApiServer, reason: &str) -> Value {
    let started = Instant::now();
    loop {
        let sent = server.sent("/events");
        if let Some((_, event)) = sent.iter().find(|(_, event)| event["reason"] == reason) {
            return event.clone();
        }
        // Generous, for a busy machine; usual is 30 ms.
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{reason}: {sent:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_token_of_the_cluster_gets_its_own_certificate_only() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let running = start(&server, |config, _| config).await;
    let mut client = running.client().await;
    let issued = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    assert_usable(&issued.expect("issued"), &running.authority);
    for (token, code) in [
        ("bound/emojivoto/api", Code::FailedPrecondition),
        ("bound/other/web", Code::FailedPrecondition),
        ("bound/a.b/web", Code::FailedPrecondition),
        ("forged", Code::FailedPrecondition),
        ("a b", Code::InvalidArgument),
    ] {
        let refused = certify(&mut client, request(&running, token)).await;
        assert_eq!(refused.expect_err(token).code(), code, "{token}");
    }
    let event = event(&server, "IssuedLeafCertificate").await;
    assert_eq!(event["involvedObject"]["name"], "web");
    assert_eq!(event["involvedObject"]["uid"], "uid-of-web");
    let metrics = running.admin("/metrics").await;
    for line in [
        "token_check_seconds_count{result=\"authenticated\"} 4",
        "token_check_seconds_count{result=\"refused\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    running.end().await;
}

#[tokio::test]
async fn an_api_that_is_away_is_internal_and_comes_back() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (gone, usual) = (away.clone(), cluster(Duration::ZERO));
    let server =
        ApiServer::start(
            move |path, sent| match gone.load(std::sync::atomic::Ordering::Relaxed) {
                true => crate::testing::api_server::Reply::Cut,
                false => usual(path, sent),
            },
        )
        .await;
    let running = start(&server, |config, _| config).await;
    let mut client = running.client().await;
    away.store(true, std::sync::atomic::Ordering::Relaxed);
    let failed = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    assert_eq!(failed.expect_err("away").code(), Code::Internal);
    away.store(false, std::sync::atomic::Ordering::Relaxed);
    let issued = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    assert_usable(&issued.expect("issued"), &running.authority);
    running.end().await;
}

/// As kubelet mounts a Secret: a new folder, the link swapped by a rename, the old folder removed.
fn mount(dir: &Path, version: usize, certificate: &[u8], key: &[u8]) {
    let folder = format!("..v{version}");
    fs::create_dir_all(dir.join(&folder)).expect("folder");
    // cert-manager adds its own ca.crt, which may well be another root than ours: the bundle counts.
    for (name, bytes) in [
        ("tls.crt", certificate),
        ("tls.key", key),
        ("ca.crt", b"another"),
    ] {
        fs::write(dir.join(&folder).join(name), bytes).expect("written");
        let _ = symlink(Path::new("..data").join(name), dir.join(name));
    }
    let before = fs::read_link(dir.join("..data")).ok();
    symlink(&folder, dir.join("..new")).expect("link");
    fs::rename(dir.join("..new"), dir.join("..data")).expect("swap");
    if let Some(before) = before {
        fs::remove_dir_all(dir.join(before)).expect("old folder");
    }
}

#[tokio::test]
async fn i01_a_secret_of_cert_manager_rotates_and_events_say_so() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let secret = tempfile::tempdir().expect("folder");
    let pair = |authority: &LocalAuthority| {
        let read = |name: &str| fs::read(authority.issuer_dir().join(name)).expect("read");
        (read("crt.pem"), read("key.pem"))
    };
    let running = start(&server, |config, authority| {
        let (certificate, key) = pair(authority);
        mount(secret.path(), 0, &certificate, &key);
        Config {
            issuer_dir: secret.path().to_owned(),
            scheme: Scheme::Kubernetes,
            ..config
        }
    })
    .await;
    let mut client = running.client().await;
    let first = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    let first = first.expect("issued").intermediate_certificates;

    let (certificate, _) = pair(&running.authority);
    mount(secret.path(), 1, &certificate, b"no key");
    let skipped = event(&server, "IssuerUpdateSkipped").await;
    let message = skipped["message"].as_str().expect("text");
    assert!(
        message.contains("tls.key") && message.contains("the one before it stays"),
        "{message}"
    );
    assert_eq!(skipped["involvedObject"]["kind"], "Deployment");
    assert_eq!(skipped["involvedObject"]["name"], "linkerd-identity");
    let still = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    assert_eq!(still.expect("issued").intermediate_certificates, first);

    running.authority.rotate_issuer().expect("rotated");
    let (certificate, key) = pair(&running.authority);
    mount(secret.path(), 2, &certificate, &key);
    let updated = event(&server, "IssuerUpdated").await;
    assert_eq!(updated["type"], "Normal");
    let second = certify(&mut client, request(&running, "bound/emojivoto/web")).await;
    assert_ne!(second.expect("issued").intermediate_certificates, first);
    running.end().await;
}

#[tokio::test]
async fn an_issuer_that_is_bad_from_the_start_is_said_in_an_event() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let secret = tempfile::tempdir().expect("folder");
    let running = start(&server, |config, _| Config {
        issuer_dir: secret.path().to_owned(),
        scheme: Scheme::Kubernetes,
        ..config
    })
    .await;
    let failed = event(&server, "IssuerValidationFailed").await;
    assert_eq!(failed["type"], "Warning");
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|text| text.contains("tls.crt")),
        "{failed}"
    );
    assert!(running.admin("/ready").await.starts_with("HTTP/1.1 500"));
    running.end().await;
}

/// The design asks for 500 a second on 2 cores. Clients, API server and service share this process; the figure of a release build:
/// `cargo test --release -p weft-identity certificates_a_second -- --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_a_second_with_a_review_of_2_ms() {
    const CLIENTS: usize = 16;
    const SECONDS: u64 = 3;
    // A debug build on a machine that does other work, too.
    let at_least = if cfg!(debug_assertions) { 20 } else { 500 };
    let server = ApiServer::start(cluster(REVIEW)).await;
    let running = start(&server, |config, _| config).await;
    let request = request(&running, "bound/emojivoto/web");
    let (started, mut tasks) = (Instant::now(), Vec::new());
    for _ in 0..CLIENTS {
        let (mut client, request) = (running.client().await, request.clone());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while started.elapsed() < Duration::from_secs(SECONDS) {
                let begin = Instant::now();
                certify(&mut client, request.clone()).await.expect("issued");
                times.push(begin.elapsed());
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("no panic"));
    }
    let rate = times.len() as f64 / started.elapsed().as_secs_f64();
    times.sort_unstable();
    println!(
        "{rate:.0} certificates a second by {CLIENTS} clients, TokenReview {REVIEW:?}; median {:?}, p99 {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    assert_eq!(
        server.sent("/tokenreviews").len(),
        times.len(),
        "one review for each"
    );
    assert!(rate > f64::from(at_least), "{rate:.0} a second");
    running.end().await;
}
