//! Events as the API gets them, and what happens to those it cannot take.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use weft_runtime::metrics::Registry;

use super::*;
use crate::testing::api_server::{ApiServer, cluster, failure};
use crate::token::TokenReviews;

struct Bench {
    server: ApiServer,
    events: Events,
    registry: Registry,
    shutdown: CancellationToken,
}

impl Bench {
    async fn new(server: ApiServer) -> Self {
        let registry = Registry::new(Duration::from_secs(3600));
        let metrics = Arc::new(Metrics::new(&registry));
        let reviews = TokenReviews::connect(Some(&server.kubeconfig()), RATE)
            .await
            .expect("connected");
        let shutdown = CancellationToken::new();
        let client = reviews.client().clone();
        let events = Events::start(client, "linkerd", metrics, shutdown.clone());
        Self {
            server,
            events,
            registry,
            shutdown,
        }
    }

    async fn arrived(&self, count: usize) -> Vec<(String, Value)> {
        for _ in 0..2000 {
            let sent = self.server.sent("/events");
            if sent.len() >= count {
                return sent;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        unreachable!("{:?}", self.server.sent("/events"))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn account(name: &str) -> ServiceAccount {
    ServiceAccount {
        namespace: "emojivoto".to_owned(),
        name: name.to_owned(),
        uid: Some("1-2-3".to_owned()),
    }
}

fn year_2100() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800)
}

#[tokio::test]
async fn what_the_api_gets() {
    let bench = Bench::new(ApiServer::start(cluster(Duration::ZERO)).await).await;
    bench
        .events
        .issued(account("web"), "web.emojivoto.x", year_2100());
    bench
        .events
        .issuer(VALIDATION_FAILED, "issuer/crt.pem: no".to_owned());
    let sent = bench.arrived(2).await;
    let (path, event) = &sent[0];
    assert_eq!(path, "/api/v1/namespaces/emojivoto/events");
    assert_eq!(
        event["metadata"],
        json!({"generateName": "web.", "namespace": "emojivoto"})
    );
    assert_eq!(
        event["involvedObject"],
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "namespace": "emojivoto", "name": "web", "uid": "1-2-3"})
    );
    assert_eq!(
        (&event["reason"], &event["type"], &event["count"]),
        (&json!("IssuedLeafCertificate"), &json!("Normal"), &json!(1))
    );
    assert_eq!(
        event["message"],
        "certificate for web.emojivoto.x, valid until 2100-01-01T00:00:00Z"
    );
    assert_eq!(event["source"], json!({"component": "linkerd-identity"}));
    assert_eq!(event["firstTimestamp"], event["lastTimestamp"]);

    let (path, event) = &sent[1];
    assert_eq!(path, "/api/v1/namespaces/linkerd/events");
    assert_eq!(
        event["involvedObject"],
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "linkerd", "name": "linkerd-identity"})
    );
    assert_eq!(
        (&event["reason"], &event["type"]),
        (&json!("IssuerValidationFailed"), &json!("Warning"))
    );
}

#[tokio::test]
async fn repetitions_gather_and_too_many_objects_lose_theirs() {
    let bench = Bench::new(ApiServer::start(cluster(Duration::ZERO)).await).await;
    // This thread does not wait until all are there, so none is sent before.
    for serial in 0..300 {
        bench
            .events
            .issued(account("web"), &format!("web {serial}"), year_2100());
    }
    for other in 1..MAX_PENDING + 7 {
        bench
            .events
            .issued(account(&format!("other-{other}")), "other", year_2100());
    }
    let (_, event) = &bench.arrived(1).await[0];
    assert_eq!(event["count"], 300);
    assert!(
        event["message"]
            .as_str()
            .is_some_and(|text| text.contains("web 299"))
    );
    let text = bench.registry.encode();
    assert!(
        text.contains("kubernetes_events_total{result=\"dropped\"} 7"),
        "{text}"
    );
}

#[tokio::test]
async fn a_refused_event_is_counted_and_the_next_one_sent() {
    let refuse = Arc::new(AtomicBool::new(true));
    let (refusing, usual) = (refuse.clone(), cluster(Duration::ZERO));
    let server = ApiServer::start(move |path, sent| {
        match path.ends_with("/events") && refusing.load(Ordering::Relaxed) {
            true => failure(403, "events is forbidden"),
            false => usual(path, sent),
        }
    })
    .await;
    let bench = Bench::new(server).await;
    bench.events.issued(account("web"), "web", year_2100());
    bench.arrived(1).await;
    refuse.store(false, Ordering::Relaxed);
    bench.events.issued(account("api"), "api", year_2100());
    bench.arrived(2).await;
    for _ in 0..2000 {
        let text = bench.registry.encode();
        if text.contains("kubernetes_events_total{result=\"sent\"} 1")
            && text.contains("kubernetes_events_total{result=\"failed\"} 1")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("{}", bench.registry.encode())
}

#[test]
fn long_messages_are_cut_between_characters() {
    for message in ["x".repeat(2000), "é".repeat(1000), "€".repeat(500)] {
        let cut = cut(message);
        assert!(cut.len() <= 1024 && cut.len() > 1015 && cut.ends_with('…'));
    }
    assert_eq!(cut("short".to_owned()), "short");
}
