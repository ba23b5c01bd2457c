//! Owns an API server as a source of the index: which kinds are followed, one task for each, and when all of them have
//! been read. Writes nothing to the API server.

mod client;
mod fetch;
mod follow;
mod item;
mod list;
mod metrics;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::Client;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use client::{ConnectError, connect};
pub use metrics::Metrics;

use crate::{Shared, objects::Kind};

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// How often a kind that may be absent is looked for.
    absent_poll: Duration,
    /// How long objects of a kind that is served no more are kept. An API server that starts may not know all kinds yet,
    /// and to drop its policies would open doors.
    absent_grace: Duration,
    /// How long a watch may be silent. Bookmarks come every minute; without them its other end may be lost.
    silence: Duration,
}

const PACE: Pace = Pace {
    absent_poll: Duration::from_secs(20),
    absent_grace: Duration::from_secs(60),
    silence: Duration::from_secs(100),
};

/// An API server that fills an index.
pub struct KubeSource {
    client: Client,
    shared: Arc<Shared>,
    pace: Pace,
    metrics: Metrics,
    states: Mutex<BTreeMap<Kind, State>>,
}

/// What is known of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It has not been read; the reason.
    Waiting(String),
    /// All its objects were read at least once.
    Read,
    /// The API server does not have it, and it can be done without.
    Absent,
}

impl KubeSource {
    /// A source that has not read anything yet.
    pub fn new(client: Client, shared: Arc<Shared>, metrics: Metrics) -> Arc<Self> {
        Self::with_pace(client, shared, metrics, PACE)
    }

    fn with_pace(client: Client, shared: Arc<Shared>, metrics: Metrics, pace: Pace) -> Arc<Self> {
        let waiting = |kind| (kind, State::Waiting("not asked yet".to_owned()));
        Arc::new(Self {
            client,
            shared,
            pace,
            metrics,
            states: Mutex::new(kinds().map(waiting).collect()),
        })
    }

    /// Keeps the index up to date until the shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        for kind in kinds() {
            let source = Arc::clone(&self);
            tasks.spawn(async move { follow::follow(&source, kind).await });
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            Some(ended) = tasks.join_next() => {
                // A task has no end but a panic: better no process than one that looks alive and is blind.
                tracing::error!(?ended, "following the API server has ended; shutting down");
                shutdown.cancel();
            }
        }
        tasks.shutdown().await;
    }

    /// Whether every kind has been read once, or is one of the Gateway API that is not in this cluster.
    ///
    /// # Errors
    /// The kinds that are missing, each with the reason.
    pub fn ready(&self) -> Result<(), String> {
        if self.shared.is_filled() {
            return Ok(());
        }
        let states = self.states.lock();
        let missing = states.iter().filter_map(|(kind, state)| match state {
            State::Waiting(reason) => Some(format!("{} ({reason})", kind.as_str())),
            State::Read | State::Absent => None,
        });
        let missing: Vec<_> = missing.collect();
        Err(format!(
            "waiting for the API server: {}",
            missing.join(", ")
        ))
    }

    /// Notes how far a kind is. A kind that was read stays so whatever happens later: the index keeps what it knew.
    fn set_state(&self, kind: Kind, state: State) {
        let mut states = self.states.lock();
        let known = states.entry(kind).or_insert(State::Absent);
        if matches!(known, State::Waiting(_)) {
            *known = state;
        }
        if !self.shared.is_filled() && !states.values().any(|s| matches!(s, State::Waiting(_))) {
            tracing::info!("all objects have been read; proxies are answered now");
            self.shared.set_filled();
        }
    }
}

/// The kinds that are followed: all that somebody reads from the index. Nobody reads Links.
fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::Link)
}

#[cfg(test)]
mod tests;
