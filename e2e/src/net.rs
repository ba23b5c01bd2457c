//! Owns the mesh of one test: its folder, its host, its time limit, and what is shown of it when the test fails. What a
//! workload can do is in `node`.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::timeout;
use weft_cli::local::preflight::{self, Missing};
use weft_cli::local::{Mesh, MeshOptions, Tuning};

use crate::manifests::{Manifests, NAMESPACE};
use crate::node::{Node, Process};

/// Longest a test may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Lines of each log that are shown when a test fails.
const LINES: usize = 25;

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// The mesh of one test.
pub struct Net {
    mesh: Arc<Mesh>,
    programs: Programs,
    folder: PathBuf,
}

/// The programs that are tested.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) weft: PathBuf,
    pub(crate) proxy: PathBuf,
    pub(crate) peer: PathBuf,
}

/// Runs a test in a mesh of its own, which is gone afterwards.
///
/// Where a mesh is not possible the test is skipped, with the reason on standard error.
///
/// # Panics
/// When the test fails; the ends of the proxies' logs are shown then.
pub fn mesh(manifests: Manifests, test: impl AsyncFnOnce(&Net) -> anyhow::Result<()>) {
    mesh_with(Tuning::default(), manifests, test);
}

/// [`mesh`] with certificates of another lifetime, or more in the logs.
///
/// # Panics
/// See [`mesh`].
pub fn mesh_with(
    tuning: Tuning,
    manifests: Manifests,
    test: impl AsyncFnOnce(&Net) -> anyhow::Result<()>,
) {
    bounded(async |programs, folder| {
        let net = Net::open(tuning, &manifests, programs, folder).await?;
        let result = test(&net).await;
        drop(net);
        result
    });
}

/// Runs a test in a folder of its own, with a time limit; logs in `state/logs` are shown if it fails.
pub(crate) fn bounded(test: impl AsyncFnOnce(Programs, &Path) -> anyhow::Result<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime takes only a few descriptors");
    let programs = Programs::find().expect("the programs are built");
    if let Some(reason) = impossible(&programs) {
        return skip(&reason);
    }
    let folder = tempfile::Builder::new()
        .prefix("weft-e2e-")
        .tempdir()
        .expect("a temporary folder");
    // The host removes it; so do we, should there be none.
    let folder = folder.keep();
    let run = test(programs, &folder);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = runtime.block_on(async { timeout(LIMIT, run).await });
        result.unwrap_or_else(|_| Err(anyhow::anyhow!("the test takes more than {LIMIT:?}")))
    }));
    if !matches!(result, Ok(Ok(()))) {
        show_logs(&folder);
    }
    drop(runtime);
    // The host may be quicker.
    let _ = std::fs::remove_dir_all(&folder);
    match result {
        Ok(result) => assert!(
            result.is_ok(),
            "{}",
            result.err().map(|e| describe(&e)).unwrap_or_default()
        ),
        Err(panic) => resume_unwind(panic),
    }
}

impl Programs {
    /// Those in `WEFT_BIN_DIR`, else the release build, else the debug build.
    fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        // target/PROFILE/deps/TEST
        let profile = own
            .parent()
            .and_then(Path::parent)
            .context("a test is in target/PROFILE/deps")?;
        let target = profile
            .parent()
            .context("a test is in target/PROFILE/deps")?;
        let named = std::env::var_os("WEFT_BIN_DIR").map(PathBuf::from);
        let both =
            |folder: &PathBuf| folder.join("weft").is_file() && folder.join("weft-proxy").is_file();
        let folders = [
            target.join("release"),
            target.join("debug"),
            profile.to_owned(),
        ];
        let folder = named.or_else(|| folders.into_iter().find(both)).context(
            "weft and weft-proxy are not built: run `cargo build -p weft -p weft-proxy`, or set WEFT_BIN_DIR",
        )?;
        Ok(Programs {
            weft: folder.join("weft"),
            proxy: folder.join("weft-proxy"),
            peer: profile.join("weft-peer"),
        })
    }
}

/// Why no mesh can run here, in one sentence.
fn impossible(programs: &Programs) -> Option<String> {
    match preflight::tools(&programs.proxy) {
        Err(Missing::Proxy(_)) | Ok(_) => {}
        Err(missing) => return Some(missing.to_string()),
    }
    if let Err(missing) = preflight::privilege() {
        return Some(missing.to_string());
    }
    // Root of a container may lack the right; tried in a thread, which leaves alone.
    let probe = std::thread::spawn(|| {
        nix::unistd::geteuid()
            .is_root()
            .then(|| unshare(CloneFlags::CLONE_NEWNET))
            .transpose()
    });
    match probe.join() {
        Ok(Err(error)) => Some(format!(
            "the kernel refuses a network namespace ({error}): run with CAP_SYS_ADMIN"
        )),
        _ => None,
    }
}

/// The error, and where in the test it came up if backtraces are on.
fn describe(error: &anyhow::Error) -> String {
    let backtrace = error.backtrace().to_string();
    let places = backtrace
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("/tests/"));
    [&format!("{error:#}")]
        .into_iter()
        .map(String::as_str)
        .chain(places)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Says that the calling test is skipped and why, and counts it.
pub fn skip(reason: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    // Not by `eprintln`, which is swallowed for tests that pass.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {name}: {reason} ({count} skipped so far)"
    );
}

fn show_logs(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder.join("state/logs")) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        eprintln!(
            "{name}:\n{}",
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        );
    }
}

impl Net {
    async fn open(
        tuning: Tuning,
        manifests: &Manifests,
        programs: Programs,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let at = folder.join("manifests");
        std::fs::create_dir(&at)?;
        manifests.write(&at)?;
        let options = MeshOptions {
            manifests: at.clone(),
            state_dir: Some(folder.join("state")),
            weft: programs.weft.clone(),
            proxy: programs.proxy.clone(),
            ephemeral: Some(folder.to_owned()),
            tuning,
        };
        let mesh = Arc::new(Mesh::open(&options).await?);
        Ok(Net {
            mesh,
            programs,
            folder: at,
        })
    }

    /// Starts the workload of a Pod of the manifests; its proxy is ready when this returns.
    ///
    /// # Errors
    /// Those of the mesh.
    pub async fn start(&self, pod: &str) -> anyhow::Result<Node> {
        let workload = self
            .mesh
            .start(NAMESPACE, pod)
            .await
            .with_context(|| format!("starting {pod}"))?;
        Node::new(Arc::clone(&self.mesh), workload, &self.programs)
    }

    /// Adds a file of manifests, or replaces one; `test.yaml` is what the test began with.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn apply(&self, file: &str, text: &str) -> anyhow::Result<()> {
        // Never half, as the directory is watched; the name of the new one says that it is no manifest.
        let (path, new) = (
            self.folder.join(file),
            self.folder.join(format!(".{file}.new")),
        );
        std::fs::write(&new, text)?;
        Ok(std::fs::rename(&new, &path)?)
    }

    /// Removes a file of manifests.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, file: &str) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.folder.join(file))?)
    }

    /// Starts a peer (see [`crate::peers`]) as a workload by `weft run`, as a user would.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn weft_run(&self, pod: &str, peer: &[&str]) -> anyhow::Result<Process> {
        let place = self.mesh.place();
        let mut command = Command::new(&self.programs.weft);
        command
            .arg("run")
            .arg("--manifests")
            .arg(&place.manifests)
            .arg("--state-dir")
            .arg(&place.state);
        command
            .args(["--namespace", NAMESPACE, "--workload", pod, "--"])
            .arg(&self.programs.peer)
            .args(peer);
        Process::start(&mut command, format!("weft run of {pod}"))
    }

    /// Process id of the control plane, while it runs.
    ///
    /// # Errors
    /// Those of the system.
    pub fn control_pid(&self) -> anyhow::Result<Option<Pid>> {
        let own = format!("--manifests={}\0", self.mesh.place().manifests.display());
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // It may have ended since.
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if line.contains("\0mesh-control\0") && line.contains(&own) {
                return Ok(Some(Pid::from_raw(pid)));
            }
        }
        Ok(None)
    }

    /// The mesh itself.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }
}
