//! Owns writing the statuses of routes, Servers, AuthorizationPolicies, EgressNetworks and HTTPLocalRateLimitPolicies (contract
//! 8.2): when, by whom and how. What they say is `plan`'s work, who may write is `lease`'s. Proxies are served without them: acceptance is computed, not read back.

mod plan;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use weft_cluster::{Changed, Index, Kind, Listener, MeshSettings, ObjectRef, Shared, index::Key};
use weft_runtime::metrics::{Counter, EncodeLabelSet, Family, Histogram, Registry};

use crate::lease::{self, Contender, FIELD_MANAGER, Held, describe};
use plan::{StatusPatch, plan};

/// Everything is compared anew after this time, so that what failed is tried again (contract 8.2).
const RECONCILE: Duration = Duration::from_secs(10);
/// From the end of a pass to the next at the earliest: changes come in crowds.
const SETTLE: Duration = Duration::from_millis(500);
/// Requests at a time; an API server has more to do.
const PARALLEL: usize = 8;
/// The chart's time limit of a request.
pub const PATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// How statuses are written.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the whole mesh agrees on.
    pub mesh: MeshSettings,
    /// Time limit of a request.
    pub patch_timeout: Duration,
    /// Who contends for the right to write.
    pub lease: lease::Settings,
}

/// The metrics of writing, under the names of Linkerd's controller.
#[derive(Clone, Debug)]
pub struct Metrics {
    patches: Counter,
    errors: Counter,
    timeouts: Counter,
    drops: Counter,
    duration: Family<OfKind, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

impl Metrics {
    /// Adds the metrics to a registry; once per registry.
    pub fn register(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str| registry.counter(name, help);
        let duration =
            Family::new(|| Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]));
        registry.register(
            "resource_status_patch_duration_seconds",
            "Time that a patch of a status took",
            duration.clone(),
        );
        Self {
            patches: counter("resource_status_patches", "Statuses written"),
            errors: counter(
                "resource_status_patch_api_errors",
                "Statuses that the API server refused",
            ),
            timeouts: counter(
                "resource_status_patch_timeouts",
                "Statuses not written within the time limit",
            ),
            drops: counter(
                "resource_status_patch_drops",
                "Statuses not written because the lease was lost",
            ),
            duration,
        }
    }
}

/// Writes statuses until the shutdown, whenever this process holds the lease.
pub async fn run(
    client: Client,
    shared: Arc<Shared>,
    settings: Settings,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let (contender, held) = Contender::new(client.clone(), settings.lease.clone());
    // The lease is given back only when nothing is being written any more.
    let contending = CancellationToken::new();
    let _stop = contending.clone().drop_guard();
    let lease = tokio::spawn(contender.run(contending.clone()));
    let changes = Arc::new(Changes::default());
    let listener: Weak<dyn Listener> = Arc::downgrade(&changes) as Weak<dyn Listener>;
    shared.listen(listener);
    let mut writer = Writer {
        client,
        shared,
        settings,
        metrics,
        held,
        served: Mutex::default(),
        sent: HashSet::new(),
    };
    tokio::select! {
        () = writer.run(&changes) => {}
        () = shutdown.cancelled() => {}
    }
    contending.cancel();
    if lease.await.is_err() {
        tracing::error!("contending for the lease has failed");
    }
}

/// Hears of changes that statuses depend on, but for those of pods, which are many: what follows from them has time until
/// everything is compared anew.
#[derive(Default)]
struct Changes {
    any: Notify,
}

impl Listener for Changes {
    fn changed(&self, _: &Index, changed: &Changed) {
        let concerns = |key: &Key| {
            matches!(
                key,
                Key::Status(_)
                    | Key::Routes(..)
                    | Key::Service(_)
                    | Key::Servers(_)
                    | Key::Authorizations(_)
                    | Key::Authentication(_)
                    | Key::EgressNetworks(_)
                    | Key::RateLimits(_)
            )
        };
        if changed.keys.iter().any(concerns) {
            self.any.notify_one();
        }
    }
}

struct Writer {
    client: Client,
    shared: Arc<Shared>,
    settings: Settings,
    metrics: Metrics,
    held: Held,
    /// The version of each kind that the API server serves with a status; `None` where it has none, as in definitions that are
    /// not ours.
    served: Mutex<HashMap<Kind, Option<&'static str>>>,
    /// What was written and from which version; the index hears of it later.
    sent: HashSet<(ObjectRef, String)>,
}

impl Writer {
    async fn run(&mut self, changes: &Changes) {
        let mut reconcile = interval(RECONCILE);
        reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = reconcile.tick() => {}
                () = changes.any.notified() => {}
                () = self.held.changed() => {}
            }
            // Before everything was listed, much would seem to be missing.
            if self.held.left().is_some() && self.shared.is_filled() {
                self.pass().await;
                sleep(SETTLE).await;
            }
        }
    }

    /// Writes all that differs from what it should be.
    async fn pass(&mut self) {
        let mesh = &self.settings.mesh;
        let mut patches = self
            .shared
            .read(|index| plan(index, mesh, Timestamp::now()));
        let due: HashSet<_> = patches.iter().map(StatusPatch::key).collect();
        self.sent.retain(|key| due.contains(key));
        self.served.lock().retain(|_, version| version.is_some());
        patches.retain(|patch| !self.sent.contains(&patch.key()));
        let this = &*self;
        let written: Vec<_> = stream::iter(patches)
            .map(|patch| async move { this.write(&patch).await.then(|| patch.key()) })
            .buffer_unordered(PARALLEL)
            .filter_map(std::future::ready)
            .collect()
            .await;
        self.sent.extend(written);
    }

    /// Writes one status, if there is still time, and says whether it is written.
    async fn write(&self, patch: &StatusPatch) -> bool {
        // A request that is under way when the lease ends could overtake the next holder's.
        let Some(left) = self.held.left() else {
            self.metrics.drops.inc();
            return false;
        };
        let limit = self.settings.patch_timeout.min(left);
        let object = &patch.object;
        let started = Instant::now();
        let outcome = timeout(limit, self.send(patch)).await;
        if !matches!(outcome, Err(_) | Ok(Ok(false))) {
            let kind = object.kind.as_str();
            let duration = self.metrics.duration.resolve(&OfKind { kind });
            duration.observe(started.elapsed().as_secs_f64());
        }
        match outcome {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                self.metrics.patches.inc();
                tracing::debug!(%object, "status written");
                return true;
            }
            Ok(Err(error)) => {
                self.metrics.errors.inc();
                let reason = describe(&error);
                match error {
                    // Changed or deleted in the meantime: the index will hear of it.
                    kube::Error::Api(status) if matches!(status.code, 404 | 409) => {
                        self.served.lock().remove(&object.kind);
                        tracing::debug!(%object, reason, "status not written");
                    }
                    _ => {
                        tracing::warn!(%object, reason, "cannot write a status, trying again later")
                    }
                }
            }
            Err(_) => {
                self.metrics.timeouts.inc();
                tracing::warn!(%object, "a status was not written within {limit:?}, trying again later");
            }
        }
        false
    }

    /// Says whether the API server has such a status.
    async fn send(&self, patch: &StatusPatch) -> kube::Result<bool> {
        let StatusPatch {
            object,
            resource_version,
            status,
        } = patch;
        let called = object.kind.api();
        let Some(version) = self.version(object.kind).await? else {
            return Ok(false);
        };
        let resource = ApiResource {
            group: called.group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", called.group),
            kind: called.kind.to_owned(),
            plural: called.plural.to_owned(),
        };
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            // The API server refuses the patch if anybody has changed the object since (case R10).
            "metadata": {"name": &*object.name.name, "resourceVersion": resource_version},
            "status": status,
        });
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &object.name.namespace, &resource);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(body);
        let patched = api.patch_status(&object.name.name, &params, &patch);
        patched.await.map(|_| true)
    }

    /// The preferred one of the versions that the API server has with a status; asked once, and again when something was not
    /// found.
    async fn version(&self, kind: Kind) -> kube::Result<Option<&'static str>> {
        if let Some(version) = self.served.lock().get(&kind) {
            return Ok(*version);
        }
        let called = kind.api();
        let status = format!("{}/status", called.plural);
        let mut found = None;
        for version in called.versions.iter().copied() {
            let group_version = format!("{}/{version}", called.group);
            match self.client.list_api_group_resources(&group_version).await {
                Ok(list) if list.resources.iter().any(|r| r.name == status) => {
                    found = Some(version);
                    break;
                }
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        self.served.lock().insert(kind, found);
        Ok(found)
    }
}
