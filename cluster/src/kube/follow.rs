//! Owns following one kind for ever: find its version, list, watch, and what is done when any of these fails. Keeps what
//! was known for as long as nothing newer is known.

use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
    time::Duration,
};

use tokio::time::{Instant, sleep};
use weft_core::backoff::ExponentialBackoff;

use super::{
    KubeSource, State,
    fetch::{self, FetchError},
    list,
    metrics::KindMetrics,
    watch,
    watch::Change,
};
use crate::{
    index::{Changed, Index},
    objects::Kind,
};

/// Waits after failures. An API server restarts within seconds, and pods that come up meanwhile wait for us.
static BACKOFF: LazyLock<ExponentialBackoff> = LazyLock::new(|| {
    ExponentialBackoff::new(Duration::from_millis(250), Duration::from_secs(2), 0.5)
        .expect("constant bounds")
});
/// A watch that ends sooner counts as failed, lest it is opened again without a pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// How it goes with one kind.
struct Progress {
    kind: Kind,
    /// Failures in a row.
    failures: u32,
    /// What was logged last, so that the same is not logged again.
    logged: Option<String>,
    /// It was listed before.
    listed: bool,
    /// Since when it is served no more.
    absent_since: Option<Instant>,
    metrics: KindMetrics,
}

/// Follows a kind until the task is aborted.
pub(super) async fn follow(source: &KubeSource, kind: Kind) -> Infallible {
    let mut progress = Progress {
        kind,
        failures: 0,
        logged: None,
        listed: false,
        absent_since: None,
        metrics: source.metrics.of(kind),
    };
    loop {
        let Err(error) = session(source, &mut progress).await;
        match error {
            // The list says anew what there is.
            FetchError::Gone => {
                progress.fail(source, &error).await;
            }
            FetchError::Absent if progress.may_be_absent() => {
                progress.absent(source);
                sleep(jittered(source.pace.absent_poll)).await;
            }
            FetchError::Absent if !fetch::built_in(kind) => {
                let error = FetchError::Missing(progress.full_name());
                progress.fail(source, &error).await;
            }
            error => progress.fail(source, &error).await,
        }
    }
}

/// Lists once and watches until only a new list helps.
async fn session(source: &KubeSource, progress: &mut Progress) -> Result<Infallible, FetchError> {
    let kind = progress.kind;
    let version = fetch::served_version(&source.client, kind).await?;
    let path = fetch::path(kind, version);
    let listed = list::list(&source.client, &path, kind).await?;
    let count = listed.objects.len();
    progress.update(source, |index| {
        index.reset_but(kind, &listed.objects, &listed.unreadable)
    });
    progress.metrics.lists.inc();
    let mut position = listed.resource_version;
    drop(listed.objects);
    progress.good();
    progress.listed = true;
    progress.absent_since = None;
    source.set_state(kind, State::Read);
    tracing::debug!(kind = kind.as_str(), version, count, "listed");
    loop {
        let opened = Instant::now();
        let each = |changes: Vec<Change>| {
            progress.good();
            progress.apply(source, &changes);
        };
        let ended = watch::watch(source, &path, kind, &mut position, each).await;
        let long = opened.elapsed() >= SHORT_WATCH;
        match ended {
            Ok(()) if long => progress.good(),
            Ok(()) => {
                let error = FetchError::Answer("the watch ended at once".to_owned());
                progress.fail(source, &error).await;
            }
            Err(error @ (FetchError::Gone | FetchError::Absent)) => return Err(error),
            Err(error) => {
                if long {
                    progress.failures = 0;
                }
                progress.fail(source, &error).await;
            }
        }
    }
}

impl Progress {
    fn apply(&self, source: &KubeSource, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        self.update(source, |index| {
            let mut changed = Changed::default();
            for change in changes {
                changed.merge(match change {
                    Change::Applied(object) => index.apply(object),
                    Change::Deleted(object) => index.delete(object),
                });
            }
            changed
        });
    }

    fn update(&self, source: &KubeSource, change: impl FnOnce(&mut Index) -> Changed) {
        source.shared.update(|index| {
            let changed = change(index);
            let count = i64::try_from(index.count(self.kind)).unwrap_or(i64::MAX);
            self.metrics.objects.set(count);
            changed
        });
    }

    fn good(&mut self) {
        self.failures = 0;
        if self.logged.take().is_some() {
            tracing::info!(kind = self.kind.as_str(), "followed now");
        }
    }

    /// Says what failed and waits.
    async fn fail(&mut self, source: &KubeSource, error: &FetchError) {
        self.metrics.failures.inc();
        let text = error.to_string();
        source.set_state(self.kind, State::Waiting(text.clone()));
        let delay = BACKOFF.delay(self.failures, random());
        self.failures = self.failures.saturating_add(1);
        let kind = self.kind.as_str();
        match error {
            // All of these are daily business.
            FetchError::Gone | FetchError::Timeout(_) if self.failures == 1 => {
                tracing::debug!(kind, error = text, "the watch starts over");
            }
            _ if self.logged.as_ref() == Some(&text) => {}
            _ => {
                let kept = match self.listed {
                    true => "; what is known of it stays in force",
                    false => "",
                };
                tracing::warn!(
                    kind,
                    "cannot follow the API server: {text}{kept}; trying again"
                );
                self.logged = Some(text);
            }
        }
        sleep(delay).await;
    }

    /// Name of the kind's definition.
    fn full_name(&self) -> String {
        let api = self.kind.api();
        format!("{}.{}", api.plural, api.group)
    }

    /// Whether it is no fault that the kind is not served. One of ours that was read may be removed; that it was never there is
    /// what an API server says while the definitions are being installed.
    fn may_be_absent(&self) -> bool {
        fetch::optional(self.kind) || (self.listed && !fetch::built_in(self.kind))
    }

    /// Says that the kind is not served, and forgets its objects once that is certain.
    fn absent(&mut self, source: &KubeSource) {
        let name = self.full_name();
        if !self.listed {
            source.set_state(self.kind, State::Absent);
            if self.logged.as_deref() != Some("absent") {
                tracing::info!(
                    "{name} is not installed in this cluster; looked for every {:?}",
                    source.pace.absent_poll
                );
                self.logged = Some("absent".to_owned());
            }
            return;
        }
        match self.absent_since {
            None => {
                tracing::warn!(
                    "{name} is served no more; its objects are kept for {:?}",
                    source.pace.absent_grace
                );
                self.absent_since = Some(Instant::now());
            }
            Some(since) if since.elapsed() >= source.pace.absent_grace => {
                tracing::warn!("{name} is not installed any more; its objects are forgotten");
                self.update(source, |index| index.reset(self.kind, &[]));
                self.listed = false;
                self.absent_since = None;
                self.logged = Some("absent".to_owned());
            }
            Some(_) => {}
        }
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A time and up to a tenth more.
fn jittered(time: Duration) -> Duration {
    time + time.mul_f64(0.1 * random() as f64 / u64::MAX as f64)
}
