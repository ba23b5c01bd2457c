//! The loop on a paused clock against an identity service at the other end of a pipe.
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use hyper_util::rt::TokioIo;
use linkerd2_proxy_api::identity::CertifyResponse;
use proptest::prelude::*;
use tokio::io::duplex;
use tokio::time::advance;
use tonic::transport::Endpoint;
use weft_runtime::metrics::Registry;

use super::testing::{Answer, Authority, Fake};
use super::*;

const NAME: &str = "web.prod.serviceaccount.identity.linkerd.cluster.local";

/// A wall clock that follows tokio's, and can be moved by hand.
#[derive(Clone)]
struct Wall {
    began: (SystemTime, Instant),
    skipped: Arc<AtomicU64>,
}

impl Wall {
    fn new() -> Self {
        Self {
            began: (SystemTime::now(), Instant::now()),
            skipped: Arc::default(),
        }
    }
    fn now(&self) -> SystemTime {
        self.began.0 + self.began.1.elapsed() + Duration::from_secs(self.skipped.load(Relaxed))
    }
}

struct Fixture {
    store: Store,
    fake: Fake,
    wall: Wall,
    registry: Registry,
    token: tempfile::NamedTempFile,
    reachable: Arc<AtomicBool>,
    channels: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(script: impl FnOnce(&dyn Fn(u64) -> Answer) -> Vec<Answer>) -> (Self, Certifier) {
        let authority = Arc::new(Authority::new());
        let (store, csr_der) = authority.empty_store(NAME);
        let wall = Wall::new();
        let until = wall.now();
        let sign = |seconds| Answer::Sign {
            valid_until: until + Duration::from_secs(seconds),
        };
        let fake = Fake::new(authority, script(&sign));
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "one").unwrap();
        let registry = Registry::new(Duration::from_secs(600));
        let reachable = Arc::new(AtomicBool::new(true));
        let channels = Arc::<AtomicUsize>::default();

        let (clock, server) = (wall.clone(), fake.clone());
        let (up, made) = (reachable.clone(), channels.clone());
        let certifier = Certifier {
            store: store.clone(),
            csr_der,
            token_file: token.path().to_owned(),
            refresh: Refresh {
                min: Duration::from_secs(10),
                max: Duration::from_secs(86_400),
            },
            backoff: ExponentialBackoff::new(
                Duration::from_millis(100),
                Duration::from_secs(60),
                0.0,
            )
            .unwrap(),
            channel: Box::new(move || {
                made.fetch_add(1, Relaxed);
                pipe(server.clone(), up.clone())
            }),
            metrics: CertificateMetrics::register(&registry),
            now: Arc::new(move || clock.now()),
        };
        (
            Self {
                store,
                fake,
                wall,
                registry,
                token,
                reachable,
                channels,
            },
            certifier,
        )
    }

    /// Whole seconds at which the service was called.
    fn calls(&self) -> Vec<u64> {
        let calls = self.fake.calls.lock();
        calls
            .iter()
            .map(|call| (call.at - self.wall.began.1).as_secs())
            .collect()
    }

    fn has_metric(&self, line: &str) -> bool {
        self.registry.encode().lines().any(|found| found == line)
    }
}

fn pipe(fake: Fake, reachable: Arc<AtomicBool>) -> Channel {
    let endpoint = Endpoint::from_static("http://identity.test:8080");
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let (near, far) = duplex(64 * 1024);
        let up = reachable.load(Relaxed);
        if up {
            tokio::spawn(fake.clone().serve(far));
        }
        async move {
            match up {
                true => Ok(TokioIo::new(near)),
                false => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            }
        }
    }))
}

async fn run_for(certifier: Certifier, seconds: u64) {
    let _ = tokio::time::timeout(Duration::from_secs(seconds), certifier.run()).await;
}

#[tokio::test(start_paused = true)]
async fn renews_at_seventy_percent_with_a_fresh_token_and_channel() {
    let (fixture, certifier) = Fixture::new(|sign| vec![sign(1000), sign(2000)]);
    let path = fixture.token.path().to_owned();
    let run = tokio::spawn(run_for(certifier, 800));
    fixture.store.ready().await;
    let first = fixture.store.current().unwrap();
    std::fs::write(path, "two").unwrap();
    run.await.unwrap();

    assert_eq!(fixture.calls(), [0, 700]);
    let calls = fixture.fake.calls.lock();
    assert_eq!(calls[0].token, b"one");
    assert_eq!(calls[1].token, b"two");
    assert!(calls.iter().all(|call| call.identity == NAME));
    assert_eq!(fixture.channels.load(Relaxed), 2);
    assert!(fixture.store.current().unwrap().expires > first.expires);
}

#[tokio::test(start_paused = true)]
async fn failures_leave_the_certificate_alone_and_come_closer_together() {
    let (fixture, certifier) = Fixture::new(|sign| vec![sign(1000)]);
    let run = tokio::spawn(run_for(certifier, 1025));
    fixture.store.ready().await;
    let first = fixture.store.current().unwrap();
    run.await.unwrap();

    // 70 % of what is left each time, then the minimum of 10 s, past the end at 1000 s as well.
    assert_eq!(fixture.calls(), [0, 700, 910, 973, 991, 1001, 1011, 1021]);
    assert!(Arc::ptr_eq(&first, &fixture.store.current().unwrap()));
    assert!(fixture.has_metric(r#"control_identity_cert_refreshes_total{result="ok"} 1"#));
    assert!(fixture.has_metric(r#"control_identity_cert_refreshes_total{result="error"} 7"#));
}

#[tokio::test(start_paused = true)]
async fn bad_answers_count_as_failures() {
    let foreign = Authority::new();
    let (_, foreign_csr) = foreign.empty_store(NAME);
    let (fixture, certifier) = Fixture::new(|sign| {
        let say = |leaf_certificate, valid_until| {
            let response = CertifyResponse {
                leaf_certificate,
                valid_until,
                ..Default::default()
            };
            Answer::Say(Box::new(response))
        };
        let soon = SystemTime::now() + Duration::from_secs(1000);
        vec![
            say(foreign.sign(&foreign_csr), Some(soon.into())),
            say(b"garbage".to_vec(), Some(soon.into())),
            say(foreign.sign(&foreign_csr), None),
            Answer::Sign {
                valid_until: SystemTime::now() - Duration::from_secs(1),
            },
            sign(1000),
        ]
    });
    run_for(certifier, 45).await;
    assert_eq!(fixture.calls(), [0, 10, 20, 30, 40]);
    assert!(fixture.store.current().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_late_is_found_soon() {
    let (fixture, certifier) = Fixture::new(|sign| vec![sign(1000)]);
    fixture.reachable.store(false, Relaxed);
    let run = tokio::spawn(run_for(certifier, 60));
    tokio::time::sleep(Duration::from_secs(5)).await;
    fixture.reachable.store(true, Relaxed);
    fixture.store.ready().await;
    // 0.1 s doubled: the tries are at 0, 0.1, 0.3 … 3.1 and 6.3 s.
    assert_eq!(fixture.wall.began.1.elapsed().as_secs(), 6);
    assert_eq!(fixture.channels.load(Relaxed), 1);
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_ends() {
    let (fixture, certifier) = Fixture::new(|sign| vec![Answer::Hang, sign(1000)]);
    run_for(certifier, 100).await;
    assert_eq!(fixture.calls(), [0, 40]);

    let (fixture, certifier) = Fixture::new(|_| vec![]);
    fixture.reachable.store(false, Relaxed);
    let error = certifier.attempt().await.unwrap_err();
    assert!(matches!(error, CertifyError::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(fixture.wall.began.1.elapsed() <= ATTEMPT_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_missing_or_empty_is_named() {
    let (fixture, certifier) = Fixture::new(|_| vec![]);
    std::fs::write(fixture.token.path(), "\n").unwrap();
    let error = certifier.attempt().await.unwrap_err();
    assert!(matches!(&error, CertifyError::EmptyToken(path) if path == fixture.token.path()));

    let certifier = Certifier {
        token_file: "/nowhere/token".into(),
        ..certifier
    };
    let error = certifier.attempt().await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/token"), "{error}");
    assert!(fixture.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_what_the_service_said() {
    let refusal = Status::failed_precondition("token not authenticated");
    let (_fixture, certifier) = Fixture::new(|_| vec![Answer::Refuse(refusal)]);
    let error = certifier.attempt().await.unwrap_err().to_string();
    assert!(
        error.contains("FailedPrecondition: token not authenticated"),
        "{error}"
    );
    assert!(error.contains(NAME), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_renews_when_it_wakes() {
    let (fixture, certifier) = Fixture::new(|sign| vec![sign(40_000), sign(90_000)]);
    let run = tokio::spawn(run_for(certifier, 100));
    fixture.store.ready().await;
    fixture.wall.skipped.store(30_000, Relaxed);
    run.await.unwrap();
    assert_eq!(fixture.calls(), [0, 30]);
}

#[tokio::test(start_paused = true)]
async fn metrics_show_expiry_and_renewal() {
    let (fixture, certifier) = Fixture::new(|sign| vec![sign(1000)]);
    assert!(fixture.has_metric(r#"control_identity_cert_refreshes_total{result="ok"} 0"#));
    assert!(fixture.has_metric(r#"control_identity_cert_refreshes_total{result="error"} 0"#));
    run_for(certifier, 1).await;
    let expires = fixture.store.current().unwrap().expires;
    let text = fixture.registry.encode();
    for (name, expected) in [
        (
            "control_identity_cert_expiration_timestamp_seconds ",
            expires,
        ),
        (
            "control_identity_cert_refresh_timestamp_seconds ",
            fixture.wall.began.0,
        ),
    ] {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let expected = expected.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let difference = value.parse::<f64>().unwrap() - expected.as_secs_f64();
        assert!(difference.abs() < 0.1, "{name}{value}");
    }
}

/// Counts the reminders in the log.
struct Reminders(Arc<AtomicUsize>);

impl tracing::Subscriber for Reminders {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let counter = &self.0;
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                if format!("{value:?}").starts_with("no certificate yet") {
                    counter.fetch_add(1, Relaxed);
                }
            },
        );
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn the_log_reminds_until_the_first_certificate() {
    let count = Arc::<AtomicUsize>::default();
    let _guard = tracing::subscriber::set_default(Reminders(count.clone()));
    let (fixture, certifier) = Fixture::new(|sign| {
        let refuse = || Answer::Refuse(Status::unavailable("no issuer yet"));
        vec![refuse(), refuse(), refuse(), refuse(), sign(1000)]
    });
    let run = tokio::spawn(run_for(certifier, 200));
    fixture.store.ready().await;
    run.await.unwrap();
    assert_eq!(
        count.load(Relaxed),
        2,
        "at 15 s and 30 s; certified at 40 s"
    );
    advance(Duration::from_secs(60)).await;
    assert_eq!(count.load(Relaxed), 2);
}

proptest! {
    #[test]
    fn the_delay_follows_the_rule(left in 0_u64..10_000_000, min in 1_u64..100, span in 0_u64..100_000) {
        let refresh = Refresh { min: Duration::from_secs(min), max: Duration::from_secs(min + span) };
        let delay = refresh.delay(Some(Duration::from_secs(left))).as_secs_f64();
        let naive = (left as f64 * 0.7).clamp(min as f64, (min + span) as f64);
        prop_assert!((delay - naive).abs() < 1e-6, "{delay} is not {naive}");
        prop_assert_eq!(refresh.delay(None), refresh.min);
    }
}
