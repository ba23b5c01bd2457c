//! The Events by which an operator sees in Kubernetes what this service did (contract 2.5): certificates on the ServiceAccounts,
//! the issuer on the Deployment. Best effort: the log has the same, and no certificate waits for an Event.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::kubernetes::describe;
use crate::metrics::Metrics;
use crate::throttle::{Rate, Throttle};
use crate::token::ServiceAccount;

/// A new issuer is in use.
pub(crate) const UPDATED: &str = "IssuerUpdated";
/// The issuer's files have changed and are not usable; the one before stays.
pub(crate) const UPDATE_SKIPPED: &str = "IssuerUpdateSkipped";
/// There is no usable issuer.
pub(crate) const VALIDATION_FAILED: &str = "IssuerValidationFailed";
const ISSUED: &str = "IssuedLeafCertificate";

/// Who says so, and the Deployment that issuer Events are about.
const COMPONENT: &str = "linkerd-identity";
/// Objects that wait for their Event to be sent. More of them at once lose theirs.
const MAX_PENDING: usize = 1000;
/// After the start of a whole cluster Events are behind for a while; what is repeated meanwhile becomes one Event with a count.
const RATE: Rate = Rate {
    per_second: 10.0,
    burst: 50,
};
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Where Events are left to be sent; nowhere without Kubernetes.
#[derive(Clone)]
pub(crate) struct Events(Option<Arc<Outbox>>);

struct Outbox {
    namespace: String,
    pending: Mutex<VecDeque<Note>>,
    added: Notify,
    metrics: Arc<Metrics>,
}

/// What an Event will say.
#[derive(Debug)]
struct Note {
    about: ObjectReference,
    reason: &'static str,
    message: String,
    count: i32,
    first: SystemTime,
    last: SystemTime,
}

impl Events {
    /// For a mesh without Kubernetes.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Sends until `shutdown`; `namespace` is that of the control plane.
    pub(crate) fn start(
        client: Client,
        namespace: &str,
        metrics: Arc<Metrics>,
        shutdown: CancellationToken,
    ) -> Self {
        let outbox = Arc::new(Outbox {
            namespace: namespace.to_owned(),
            pending: Mutex::default(),
            added: Notify::new(),
            metrics,
        });
        let sending = outbox.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = sending.send_all(client) => {}
            }
        });
        Self(Some(outbox))
    }

    /// A certificate was issued.
    pub(crate) fn issued(&self, account: ServiceAccount, identity: &str, not_after: SystemTime) {
        let Some(outbox) = &self.0 else { return };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ServiceAccount".to_owned()),
            namespace: Some(account.namespace),
            name: Some(account.name),
            uid: account.uid,
            ..Default::default()
        };
        let message = format!("certificate for {identity}, valid until {}", utc(not_after));
        outbox.add(about, ISSUED, message);
    }

    /// Something happened to the issuer.
    pub(crate) fn issuer(&self, reason: &'static str, message: String) {
        let Some(outbox) = &self.0 else { return };
        let about = ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some("Deployment".to_owned()),
            namespace: Some(outbox.namespace.clone()),
            name: Some(COMPONENT.to_owned()),
            ..Default::default()
        };
        outbox.add(about, reason, message);
    }
}

impl Outbox {
    fn add(&self, about: ObjectReference, reason: &'static str, message: String) {
        let now = SystemTime::now();
        let mut pending = self.pending.lock();
        let same = |note: &&mut Note| note.reason == reason && note.about == about;
        if let Some(note) = pending.iter_mut().find(same) {
            note.message = message;
            note.count = note.count.saturating_add(1);
            note.last = now;
        } else if pending.len() < MAX_PENDING {
            pending.push_back(Note {
                about,
                reason,
                message,
                count: 1,
                first: now,
                last: now,
            });
            self.added.notify_one();
        } else {
            self.metrics.event("dropped");
        }
    }

    async fn send_all(&self, client: Client) {
        let throttle = Throttle::new(RATE).expect("the rate above is one");
        let mut failing = false;
        loop {
            if self.pending.lock().is_empty() {
                self.added.notified().await;
            }
            // Without a limit to its patience, a throttle gives every turn. Notes that wait meanwhile still gather repetitions.
            let _ = throttle.turn(Duration::MAX).await;
            let Some(note) = self.pending.lock().pop_front() else {
                continue;
            };
            let sent = send(client.clone(), note).await;
            self.metrics
                .event(if sent.is_ok() { "sent" } else { "failed" });
            if let Err(error) = &sent
                && !failing
            {
                tracing::warn!(%error, "Events are not accepted by the Kubernetes API; said once until one is");
            }
            failing = sent.is_err();
        }
    }
}

async fn send(client: Client, note: Note) -> Result<(), String> {
    let event = note.event();
    let namespace = event.involved_object.namespace.clone().unwrap_or_default();
    let api = Api::<Event>::namespaced(client, &namespace);
    match timeout(SEND_LIMIT, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(describe(&e)),
        Err(_) => Err(format!("no answer within {SEND_LIMIT:?}")),
    }
}

impl Note {
    fn event(self) -> Event {
        let normal = matches!(self.reason, ISSUED | UPDATED);
        Event {
            metadata: ObjectMeta {
                generate_name: self.about.name.as_ref().map(|name| format!("{name}.")),
                namespace: self.about.namespace.clone(),
                ..Default::default()
            },
            involved_object: self.about,
            reason: Some(self.reason.to_owned()),
            message: Some(cut(self.message)),
            type_: Some(if normal { "Normal" } else { "Warning" }.to_owned()),
            count: Some(self.count),
            first_timestamp: Some(Time(timestamp(self.first))),
            last_timestamp: Some(Time(timestamp(self.last))),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// The API takes messages of up to 1024 bytes.
fn cut(mut message: String) -> String {
    const MAX: usize = 1024;
    if message.len() > MAX {
        let end = (0..=MAX - "…".len())
            .rev()
            .find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    message
}

fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}

/// A time as people read it in Kubernetes, to the second.
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = timestamp(time).as_second();
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests;
