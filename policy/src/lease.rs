//! Owns the Lease that says which replica writes statuses (contract 8.2): taking it, renewing it, and knowing until when this
//! process may write. Does not write statuses.
//!
//! A lease that is not renewed for its duration may be taken. How long that is, each contender measures by its own clock from
//! when it first saw the renewal, so clocks need not agree; who changes the Lease names the `resourceVersion` it has seen, so
//! of two that take it one fails. The holder counts from before it asked for the renewal and stops a grace earlier (case R18).

#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::{Lease, LeaseSpec},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
const NAME: &str = "policy-controller-write";
/// Who changes objects, in their `managedFields`.
pub(crate) const FIELD_MANAGER: &str = "policy-controller";

/// Times of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a renewal holds.
    pub duration: Duration,
    /// How much earlier the holder stops writing.
    pub grace: Duration,
    /// From one renewal to the next; also the time limit of one.
    pub renew: Duration,
    /// From a failed attempt to the next, and between two looks of a contender.
    pub retry: Duration,
}

impl Default for Terms {
    /// 30 s and 1 s are those of Linkerd's controller, with which the Lease may be shared; two attempts fit in even if the
    /// API server is very slow.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(30),
            grace: Duration::from_secs(1),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// Who contends for which lease.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the control plane.
    pub namespace: String,
    /// This process: the name of its pod.
    pub holder: String,
    /// The Deployment with which the Lease goes.
    pub deployment: String,
    /// Its times.
    pub terms: Terms,
}

/// Until when this process may write.
#[derive(Clone, Debug)]
pub(crate) struct Held(watch::Receiver<Option<Instant>>);

impl Held {
    /// How long this process may still write; `None` = it may not.
    pub(crate) fn left(&self) -> Option<Duration> {
        let until = (*self.0.borrow())?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Waits for a renewal, a takeover or a loss.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // Contending has ended and with it the claim; there is nothing more to hear.
            std::future::pending::<()>().await;
        }
    }
}

/// Whoever wants the lease.
pub(crate) struct Contender {
    leases: Api<Lease>,
    deployments: Api<Deployment>,
    settings: Settings,
    until: watch::Sender<Option<Instant>>,
    /// The last renewal of another holder, and when it was first seen.
    seen: Option<(Renewal, Instant)>,
    /// The Deployment, once it has been found.
    owner: Option<OwnerReference>,
    /// Whether the last failure has been logged.
    failed: bool,
}

#[derive(Debug, PartialEq)]
struct Renewal {
    holder: String,
    time: Option<MicroTime>,
    transitions: Option<i32>,
}

/// How an attempt ended.
enum Turn {
    /// This process holds it until then.
    Held(Instant),
    /// Somebody else does, for so long at least.
    Taken(Duration),
    /// Somebody else was quicker.
    Lost,
}

impl Contender {
    pub(crate) fn new(client: Client, settings: Settings) -> (Self, Held) {
        let (until, held) = watch::channel(None);
        let contender = Self {
            leases: Api::namespaced(client.clone(), &settings.namespace),
            deployments: Api::namespaced(client, &settings.namespace),
            settings,
            until,
            seen: None,
            owner: None,
            failed: false,
        };
        (contender, Held(held))
    }

    /// Contends until the shutdown, and gives the lease back then, so that the next holder need not wait.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let pause = self.turn().await;
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = sleep(pause) => {}
            }
        }
        self.release().await;
    }

    /// Makes an attempt and says when to make the next.
    async fn turn(&mut self) -> Duration {
        let Terms { renew, retry, .. } = self.settings.terms;
        let attempt = timeout(renew, self.attempt()).await;
        let turn = match attempt {
            Ok(Ok(turn)) => turn,
            Ok(Err(error)) => {
                self.complain(&describe(&error));
                return retry;
            }
            Err(_) => {
                self.complain(&format!("no answer within {renew:?}"));
                return retry;
            }
        };
        self.failed = false;
        match turn {
            Turn::Held(until) => {
                if self.until.send_replace(Some(until)).is_none() {
                    tracing::info!(
                        holder = self.settings.holder,
                        "writing statuses from now on"
                    );
                }
                renew
            }
            Turn::Taken(left) => {
                self.lose();
                left.min(retry)
            }
            Turn::Lost => {
                self.lose();
                retry
            }
        }
    }

    /// Said once for each series of failures. What was promised still holds until its time is up.
    fn complain(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.failed, true) {
            let namespace = &self.settings.namespace;
            tracing::warn!(
                reason,
                "cannot hold the Lease {namespace}/{NAME}, trying again"
            );
        }
    }

    fn lose(&self) {
        if self.until.send_replace(None).is_some() {
            tracing::info!("another replica writes statuses from now on");
        }
    }

    async fn attempt(&mut self) -> kube::Result<Turn> {
        let started = Instant::now();
        let Some(lease) = self.leases.get_opt(NAME).await? else {
            return self.create(started).await;
        };
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let ours = holder == self.settings.holder;
        if !ours && !holder.is_empty() {
            let left = self.left(&spec, holder, started);
            if !left.is_zero() {
                return Ok(Turn::Taken(left));
            }
        }
        let transitions = match ours {
            true => spec.lease_transitions,
            false => Some(spec.lease_transitions.unwrap_or_default().saturating_add(1)),
        };
        let acquired = spec.acquire_time.filter(|_| ours);
        let patch = json!({
            "metadata": {"resourceVersion": lease.metadata.resource_version.unwrap_or_default()},
            "spec": self.spec(acquired, transitions),
        });
        let patched = self
            .leases
            .patch(NAME, &params(), &Patch::Merge(patch))
            .await;
        self.held_if_written(patched, started)
    }

    /// How long the present holder is safe, by our clock from when we first saw its renewal.
    fn left(&mut self, spec: &LeaseSpec, holder: &str, now: Instant) -> Duration {
        let renewal = Renewal {
            holder: holder.to_owned(),
            time: spec.renew_time.clone(),
            transitions: spec.lease_transitions,
        };
        let since = match &self.seen {
            Some((seen, since)) if *seen == renewal => *since,
            _ => {
                self.seen = Some((renewal, now));
                now
            }
        };
        let seconds = spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok());
        let duration = seconds.map_or(self.settings.terms.duration, Duration::from_secs);
        (since + duration).saturating_duration_since(now)
    }

    async fn create(&mut self, started: Instant) -> kube::Result<Turn> {
        // Kept, so that a slow API server has to be asked for it once only.
        if self.owner.is_none() {
            self.owner = self.find_owner().await;
        }
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(self.settings.namespace.clone()),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(None, Some(0))),
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        self.held_if_written(self.leases.create(&params, &lease).await, started)
    }

    /// Without the Deployment the Lease outlives it, which does no harm.
    async fn find_owner(&self) -> Option<OwnerReference> {
        let name = &self.settings.deployment;
        match self.deployments.get_metadata(name).await {
            Ok(deployment) => Some(OwnerReference {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name: name.clone(),
                uid: deployment.metadata.uid?,
                controller: Some(true),
                block_owner_deletion: None,
            }),
            Err(error) => {
                let reason = describe(&error);
                tracing::info!(
                    reason,
                    "the Lease has no owner: the Deployment {name:?} was not found"
                );
                None
            }
        }
    }

    fn spec(&self, acquired: Option<MicroTime>, transitions: Option<i32>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let seconds = self.settings.terms.duration.as_secs();
        LeaseSpec {
            holder_identity: Some(self.settings.holder.clone()),
            lease_duration_seconds: i32::try_from(seconds).ok(),
            acquire_time: acquired.or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        }
    }

    fn held_if_written(
        &self,
        written: kube::Result<Lease>,
        started: Instant,
    ) -> kube::Result<Turn> {
        let Terms {
            duration, grace, ..
        } = self.settings.terms;
        match written {
            Ok(_) => Ok(Turn::Held(started + duration.saturating_sub(grace))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Turn::Lost),
            Err(error) => Err(error),
        }
    }

    /// Leaves the Lease without a holder if it is ours. What goes wrong here costs the next holder 30 s, no more.
    async fn release(self) {
        if self.until.send_replace(None).is_none() {
            return;
        }
        let releasing = async {
            let Some(lease) = self.leases.get_opt(NAME).await? else {
                return Ok(());
            };
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            if holder.as_deref() != Some(&self.settings.holder) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"resourceVersion": lease.metadata.resource_version.unwrap_or_default()},
                "spec": {"holderIdentity": null},
            });
            let patched = self
                .leases
                .patch(NAME, &params(), &Patch::Merge(patch))
                .await;
            patched.map(drop)
        };
        match timeout(self.settings.terms.retry, releasing).await {
            Ok(Ok(())) => tracing::debug!("the Lease is given back"),
            Ok(Err(error)) => {
                tracing::debug!(reason = describe(&error), "the Lease is not given back");
            }
            Err(_) => tracing::debug!("the Lease is not given back in time"),
        }
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// What went wrong with a call, without the object that was sent.
pub(crate) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (HTTP status {})", status.message, status.code),
        other => other.to_string(),
    }
}
