//! Owns the Events of the injector (contract 9.1): a bounded queue to one task that posts them, so that no admission waits for it. The
//! same Event of the same object is posted once in five minutes. Does not decide what is worth one.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;

const COMPONENT: &str = "linkerd-proxy-injector";
/// Events that wait; more are dropped and counted.
const QUEUE: usize = 1024;
/// Objects whose last Events are remembered.
const REMEMBERED: usize = 4096;
/// A Deployment of many replicas says the same once.
const REPEAT: Duration = Duration::from_secs(300);
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// API servers refuse longer ones.
const MESSAGE_MAX: usize = 1024;

/// What happened to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Event {
    reason: &'static str,
    kind: &'static str,
    message: String,
}

impl Event {
    /// It got its proxy.
    pub fn injected() -> Self {
        Self {
            reason: "Injected",
            kind: "Normal",
            message: "Linkerd sidecar proxy injected".to_owned(),
        }
    }

    /// It gets none.
    pub fn skipped(reasons: &str) -> Self {
        Self {
            reason: "InjectionSkipped",
            kind: "Normal",
            message: format!("Linkerd sidecar proxy injection skipped: {reasons}"),
        }
    }

    /// Something was not done as it was written.
    pub fn ignored(message: String) -> Self {
        Self {
            reason: "InjectionAdjusted",
            kind: "Warning",
            message,
        }
    }

    /// It was refused.
    pub fn failed(message: String) -> Self {
        Self {
            reason: "InjectionFailed",
            kind: "Warning",
            message,
        }
    }
}

type Said = (ObjectReference, Event);

/// Takes Events.
pub(super) struct Events {
    queue: mpsc::Sender<Said>,
    said: Mutex<HashMap<String, Instant>>,
    metrics: Metrics,
}

/// Posts them.
pub(super) struct Posting {
    queue: mpsc::Receiver<Said>,
    client: Client,
}

impl Events {
    pub fn new(client: Client, metrics: Metrics) -> (Self, Posting) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let events = Self {
            queue: sender,
            said: Mutex::default(),
            metrics,
        };
        let posting = Posting {
            queue: receiver,
            client,
        };
        (events, posting)
    }

    /// Never waits.
    pub fn post(&self, regarding: &ObjectReference, event: Event) {
        if self.is_new(regarding, &event)
            && self.queue.try_send((regarding.clone(), event)).is_err()
        {
            self.metrics.event_dropped();
        }
    }

    fn is_new(&self, regarding: &ObjectReference, event: &Event) -> bool {
        let key = [
            regarding.namespace.as_deref(),
            regarding.kind.as_deref(),
            regarding.name.as_deref(),
            regarding.uid.as_deref(), // one that was deleted and created again is another one
            Some(event.reason),
            Some(&event.message),
        ];
        let key = key.map(Option::unwrap_or_default).join("\n");
        let now = Instant::now();
        let mut said = self.said.lock();
        if said.len() >= REMEMBERED {
            said.retain(|_, at| now.duration_since(*at) < REPEAT);
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        let fresh = said
            .get(&key)
            .is_none_or(|at| now.duration_since(*at) >= REPEAT);
        if fresh {
            said.insert(key, now);
        }
        fresh
    }
}

impl Posting {
    /// Until the shutdown.
    pub async fn run(mut self, shutdown: &CancellationToken) {
        while let Some(Some((regarding, event))) =
            shutdown.run_until_cancelled(self.queue.recv()).await
        {
            let namespace = regarding.namespace.clone().unwrap_or_default();
            let api: Api<v1::Event> = Api::namespaced(self.client.clone(), &namespace);
            let object = object(regarding, &event);
            let posted = timeout(POST_TIMEOUT, api.create(&PostParams::default(), &object)).await;
            let error = match posted {
                Ok(Ok(_)) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {POST_TIMEOUT:?}"),
            };
            tracing::warn!(
                namespace,
                reason = event.reason,
                error,
                "an Event cannot be posted"
            );
        }
    }
}

fn object(regarding: ObjectReference, event: &Event) -> v1::Event {
    let now = Time(Timestamp::now());
    let name = regarding.name.as_deref().unwrap_or(COMPONENT);
    // The API server adds five letters.
    let prefix: String = name.chars().take(200).collect();
    v1::Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}.")),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: regarding,
        reason: Some(event.reason.to_owned()),
        message: Some(cut(&event.message)),
        type_: Some(event.kind.to_owned()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..v1::Event::default()
    }
}

/// At most [`MESSAGE_MAX`] bytes, whole letters.
fn cut(message: &str) -> String {
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_at_a_letter() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"é".repeat(1000));
        assert_eq!((long.len(), long.chars().count()), (1024, 512));
        assert_eq!(cut(&format!("a{}", "é".repeat(1000))).len(), 1023);
    }
}
