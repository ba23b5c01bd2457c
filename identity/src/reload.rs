//! Keeps the issuer up to date with its folder and with the trust roots: a watch, and a poll behind it. The newest valid pair is in
//! use; a bad one is refused by name and the pair before it stays (case I01). Does not judge pairs; `authority` does.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::authority::{Issuer, PairFiles, Scheme, unix_seconds};
use crate::events::{self, Events};
use crate::metrics::{Metrics, Reload};
use crate::roots::TrustRoots;

/// How often the files are read even if the watch says nothing: it can miss (queue overflow, a folder that was replaced, no inotify
/// left). Case I01 asks for 60 s.
pub const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Certificate and key are two files; whoever replaces them one after the other is given this long before we look.
const SETTLE: Duration = Duration::from_millis(20);
/// Kubelet replaces the folder behind `..data` and removes the old one; a read that hits the gap is repeated.
const READ_ATTEMPTS: usize = 5;
const MAX_FILE_BYTES: usize = 1024 * 1024;
/// The name that kubelet swaps atomically in a mounted Secret or ConfigMap.
const DATA_LINK: &str = "..data";

/// Where the issuer and the trust roots are.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Folder of the pair.
    pub issuer_dir: PathBuf,
    /// Which file names.
    pub scheme: Scheme,
    /// The trust bundle, PEM.
    pub trust_roots: PathBuf,
}

/// What one look at the files led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The pair in use is the one in the folder.
    Unchanged,
    /// A new pair is in use.
    Updated,
    /// The files are not usable; the pair before them stays.
    Refused,
}

#[derive(PartialEq, Eq)]
struct Files {
    pair: PairFiles,
    roots: Vec<u8>,
}

#[derive(Default)]
struct Seen {
    accepted: Option<Files>,
    /// Why the files on disk are not in use. Said once, not at each poll.
    problem: Option<String>,
}

/// The issuer in use, and what was last seen of its files.
pub struct IssuerFiles {
    sources: Sources,
    current: ArcSwapOption<Issuer>,
    seen: Mutex<Seen>,
    metrics: Arc<Metrics>,
    events: Events,
}

impl IssuerFiles {
    /// With nothing loaded yet; call [`Self::refresh`].
    pub(crate) fn new(sources: Sources, metrics: Arc<Metrics>, events: Events) -> Self {
        Self {
            sources,
            current: ArcSwapOption::empty(),
            seen: Mutex::default(),
            metrics,
            events,
        }
    }

    /// The issuer to sign with, or why there is none.
    pub fn current(&self) -> Result<Arc<Issuer>, String> {
        self.current.load_full().ok_or_else(|| {
            let problem = self.seen.lock().problem.clone();
            format!(
                "no issuer is loaded: {}",
                problem.unwrap_or_else(|| "its files were not read yet".to_owned())
            )
        })
    }

    /// Why the service should not be sent requests, if so: no issuer, or an expired one.
    pub fn ready(&self, now: SystemTime) -> Result<(), String> {
        let issuer = self.current()?;
        if issuer.not_after() <= now {
            return Err(format!(
                "the issuer \"{}\" has expired; renew it",
                issuer.subject()
            ));
        }
        Ok(())
    }

    /// Reads the files and puts them in use if they are new and valid. Blocks on the file system.
    pub fn refresh(&self, now: SystemTime) -> Outcome {
        let mut seen = self.seen.lock();
        let result = read_files(&self.sources).and_then(|files| {
            if seen.accepted.as_ref() == Some(&files) {
                return Ok(None);
            }
            let roots = TrustRoots::from_pem(&files.roots)
                .map_err(|e| format!("{}: {e}", self.sources.trust_roots.display()))?;
            let issuer = Issuer::from_pair(&files.pair, &roots, now).map_err(|e| e.to_string())?;
            Ok(Some((files, issuer)))
        });
        match result {
            Ok(None) => {
                if seen.problem.take().is_some() {
                    tracing::info!("the issuer files are again those in use");
                }
                Outcome::Unchanged
            }
            Ok(Some((files, issuer))) => {
                tracing::info!(
                    subject = issuer.subject(),
                    not_after = unix_seconds(issuer.not_after()),
                    "issuer updated"
                );
                self.metrics.issuer_loaded(issuer.not_after());
                self.metrics.reload(Reload::Updated);
                // The first issuer of a process is no news, unless its absence was.
                if seen.accepted.is_some() || seen.problem.is_some() {
                    self.events.issuer(events::UPDATED, issuer.describe());
                }
                self.current.store(Some(Arc::new(issuer)));
                *seen = Seen {
                    accepted: Some(files),
                    problem: None,
                };
                Outcome::Updated
            }
            Err(problem) => {
                if seen.problem.as_ref() != Some(&problem) {
                    let (reason, stays) = match self.current.load().as_ref() {
                        Some(_) => (events::UPDATE_SKIPPED, "the one before it stays"),
                        None => (events::VALIDATION_FAILED, "none is loaded"),
                    };
                    tracing::error!(reason = %problem, "issuer refused, {stays}");
                    self.metrics.reload(Reload::Refused);
                    self.events
                        .issuer(reason, format!("issuer refused, {stays}: {problem}"));
                    seen.problem = Some(problem);
                }
                Outcome::Refused
            }
        }
    }

    /// Refreshes on each change and every `poll`, until `shutdown`.
    pub async fn watch(self: Arc<Self>, poll: Duration, shutdown: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let mut watch = FolderWatch::new(changed.clone());
        loop {
            // Armed before reading, so that a change during the read is not missed: it leaves a permit in `changed`.
            watch.arm(&self.sources);
            let files = self.clone();
            let refreshed = tokio::task::spawn_blocking(move || files.refresh(SystemTime::now()));
            if refreshed.await.is_err() {
                tracing::error!("reading the issuer files failed, trying again in {poll:?}");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(poll) => {}
                () = changed.notified() => tokio::time::sleep(SETTLE).await,
            }
        }
    }
}

/// The inotify watch, made anew when a folder was replaced. Without it everything still works, a poll later.
struct FolderWatch {
    changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    /// The folders that are watched, with their inode.
    armed: Vec<(PathBuf, u64)>,
    complained: bool,
}

impl FolderWatch {
    fn new(changed: Arc<Notify>) -> Self {
        Self {
            changed,
            watcher: None,
            armed: Vec::new(),
            complained: false,
        }
    }

    fn arm(&mut self, sources: &Sources) {
        let roots_dir = sources
            .trust_roots
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let mut wanted: Vec<(PathBuf, u64)> = [sources.issuer_dir.as_path(), roots_dir]
            .into_iter()
            .filter_map(|dir| Some((dir.to_owned(), std::fs::metadata(dir).ok()?.ino())))
            .collect();
        wanted.dedup();
        if wanted == self.armed {
            return;
        }
        match self.watch(&wanted) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.armed = wanted;
                self.complained = false;
            }
            Err(e) if !self.complained => {
                self.complained = true;
                tracing::warn!(
                    error = %e,
                    "cannot watch the issuer folder, it is polled instead; perhaps \
                     fs.inotify.max_user_instances is too low"
                );
            }
            Err(_) => {}
        }
    }

    fn watch(&self, folders: &[(PathBuf, u64)]) -> notify::Result<RecommendedWatcher> {
        let changed = self.changed.clone();
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                if event.map_or(true, |event| is_change(event.kind)) {
                    changed.notify_one();
                }
            })?;
        for (folder, _) in folders {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    }
}

/// Opening and reading are events too, our own included; they would wake us for ever.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn read_files(sources: &Sources) -> Result<Files, String> {
    let mut attempt = 1;
    loop {
        match read_once(sources) {
            Err((_, e)) if e.kind() == io::ErrorKind::NotFound && attempt < READ_ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(1 << attempt));
                attempt += 1;
            }
            Err((path, e)) => return Err(format!("{}: cannot be read: {e}", path.display())),
            Ok(files) => return Ok(files),
        }
    }
}

fn read_once(sources: &Sources) -> Result<Files, (PathBuf, io::Error)> {
    let read = |path: &Path| read_limited(path, MAX_FILE_BYTES).map_err(|e| (path.to_owned(), e));
    let (certificate, key) = sources.scheme.files();
    // Both files from the folder that `..data` points to now: through the link, a swap between the two reads would mix two pairs.
    let link = sources.issuer_dir.join(DATA_LINK);
    let folder = match std::fs::canonicalize(&link) {
        Ok(folder) => folder,
        Err(_) if std::fs::symlink_metadata(&link).is_err() => sources.issuer_dir.clone(),
        Err(e) => return Err((link, e)),
    };
    let pair = PairFiles {
        certificate: read(&folder.join(certificate))?,
        key: read(&folder.join(key))?,
        certificate_path: sources.issuer_dir.join(certificate),
        key_path: sources.issuer_dir.join(key),
    };
    Ok(Files {
        pair,
        roots: read(&sources.trust_roots)?,
    })
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read_limited(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(path)?
        .take(limit)
        .read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {max} bytes"),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
