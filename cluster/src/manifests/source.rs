//! Owns the directory as a running source: reads it, completes it, brings the difference to the index, and does so again
//! when a file or the address of a pod changes.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time};
use tokio_util::sync::CancellationToken;

use super::{
    ManifestError, Snapshot, diff,
    local::{self, Assigned, LocalMesh, LocalPod, LocalService},
};
use crate::{
    Shared,
    index::Changed,
    objects::{Name, Object, ObjectRef},
};

/// Editors write a file in several steps, and copying one takes some; it is read once nothing has come for this time,
const DEBOUNCE: Duration = Duration::from_millis(20);
/// or after this many changes, lest a directory that never rests is never read.
const MAX_DEBOUNCES: usize = 25;
/// Notifications can be lost (network file systems, full queues); the directory is read again this often.
const POLL: Duration = Duration::from_secs(3);

/// A directory of manifests that fills an index.
pub struct ManifestSource {
    directory: PathBuf,
    options: LocalMesh,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    snapshot: Snapshot,
    assigned: Assigned,
    /// What is in the index.
    current: BTreeMap<ObjectRef, Object>,
    errors: Vec<ManifestError>,
}

impl ManifestSource {
    /// A source that has not read anything yet.
    pub fn new(directory: PathBuf, options: LocalMesh, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            options,
            shared,
            state: Mutex::default(),
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads the directory now and brings the index up to date. Returns all that is wrong with it; what is new among
    /// that is logged. Blocks on the file system.
    pub fn reload(&self) -> Vec<ManifestError> {
        let mut state = self.state.lock();
        if state.snapshot.refresh(&self.directory) {
            self.bring(&mut state);
        }
        self.shared.set_filled();
        state.errors.clone()
    }

    /// Gives a pod its address (it has been started), or takes it back (it has been stopped).
    pub fn set_pod_ip(&self, namespace: &str, name: &str, ip: Option<IpAddr>) {
        let name = Name::new(namespace, name);
        let mut state = self.state.lock();
        match ip {
            Some(ip) => state.assigned.pod_ips.insert(name, ip),
            None => state.assigned.pod_ips.remove(&name),
        };
        self.bring(&mut state);
    }

    /// The Services as they are in the index.
    pub fn services(&self) -> Vec<LocalService> {
        local::services(&self.state.lock().current)
    }

    /// The pods as they are in the index.
    pub fn pods(&self) -> Vec<LocalPod> {
        local::pods(&self.state.lock().current)
    }

    /// All that is wrong with the manifests now.
    pub fn errors(&self) -> Vec<ManifestError> {
        self.state.lock().errors.clone()
    }

    fn bring(&self, state: &mut State) {
        let (objects, errors) = state.snapshot.objects();
        for error in errors.iter().filter(|error| !state.errors.contains(error)) {
            tracing::warn!("{error}; the last good version of this file stays in force");
        }
        state.errors = errors;
        let wanted = local::complete(objects, &self.options, &mut state.assigned);
        let difference = diff(&state.current, &wanted);
        self.shared.update(|index| {
            let mut changed = Changed::default();
            for reference in &difference.deleted {
                changed.merge(index.delete(reference));
            }
            for object in &difference.applied {
                changed.merge(index.apply(object));
            }
            changed
        });
        state.current = wanted;
    }

    /// Keeps the index up to date until the shutdown.
    pub async fn watch(self: Arc<Self>, shutdown: CancellationToken) {
        let (wake, woken) = mpsc::channel(1);
        // Dropping the watcher ends the notifications, so it stays here.
        let _watcher = match self.notify(wake) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                let directory = self.directory.display();
                tracing::warn!(%directory, %error, "no notifications of changes; reading every {POLL:?}");
                None
            }
        };
        self.follow(woken, shutdown).await;
    }

    fn notify(&self, wake: mpsc::Sender<()>) -> notify::Result<impl Watcher + use<>> {
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // Reading a file is an event as well, and would wake us for our own reading.
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    // A full channel means that a reading is due anyway.
                    let _ = wake.try_send(());
                }
            })?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }

    async fn follow(self: Arc<Self>, mut woken: mpsc::Receiver<()>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(()) = woken.recv() => settle(&mut woken).await,
                () = time::sleep(POLL) => {}
            }
            let source = Arc::clone(&self);
            if let Err(error) = tokio::task::spawn_blocking(move || source.reload()).await {
                tracing::error!(%error, "reading the manifests failed");
            }
        }
    }
}

/// Waits until no notification has come for a while.
async fn settle(woken: &mut mpsc::Receiver<()>) {
    for _ in 0..MAX_DEBOUNCES {
        if !matches!(time::timeout(DEBOUNCE, woken.recv()).await, Ok(Some(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
