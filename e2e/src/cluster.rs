//! Owns what tests on a real cluster share: one namespace for each test ([`Space`]), its workloads ([`App`]), and asking kubectl,
//! Helm and pods. It starts no cluster and installs no mesh; `make e2e` does, and says by `WEFT_E2E_KUBECONFIG` where it is.
//!
//! Tests run beside each other, except those that disturb the others, such as restarts of the control plane ([`alone`]).

mod app;
mod pods;

pub use app::{App, TOOLS, namespace, weft_image};
pub use pods::{Answer, Count, Pod, get};

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Longest time of a test.
const LIMIT: Duration = Duration::from_secs(300);
/// Longest time of one command.
const COMMAND: Duration = Duration::from_secs(150);
/// Between two questions.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time until something that was asked for is so; the machine may have much to do.
pub const SOON: Duration = Duration::from_secs(60);

/// Tests that may run beside each other share it.
static CLUSTER: RwLock<()> = RwLock::new(());

/// The folder of the cluster: kubeconfig, programs, and what the mesh was installed with (`run/mesh`).
///
/// # Panics
/// `WEFT_E2E_KUBECONFIG` is not set.
pub fn folder() -> PathBuf {
    let kubeconfig = std::env::var_os("WEFT_E2E_KUBECONFIG")
        .expect("WEFT_E2E_KUBECONFIG says which cluster; `make e2e` sets it");
    let kubeconfig = PathBuf::from(kubeconfig);
    kubeconfig.parent().expect("a file in a folder").to_owned()
}

/// Runs a test in a namespace of its own, in which pods are meshed. Other tests may run at the same time.
///
/// # Panics
/// The test fails; pods, events and logs are shown then.
pub fn on_cluster(name: &str, test: impl AsyncFnOnce(&Space) -> anyhow::Result<()>) {
    let _shared = CLUSTER.read();
    run(name, test);
}

/// [`on_cluster`] while no other test runs.
///
/// # Panics
/// See [`on_cluster`].
pub fn alone(name: &str, test: impl AsyncFnOnce(&Space) -> anyhow::Result<()>) {
    let _all = CLUSTER.write();
    run(name, test);
}

fn run(name: &str, test: impl AsyncFnOnce(&Space) -> anyhow::Result<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let space = Space {
        name: name.to_owned(),
    };
    let result = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            space.create().await?;
            timeout(LIMIT, test(&space))
                .await
                .unwrap_or_else(|_| bail!("the test takes more than {LIMIT:?}"))
        })
    }));
    if let Ok(Err(error)) = &result {
        eprintln!("{error:#}");
    }
    if !matches!(result, Ok(Ok(()))) {
        runtime.block_on(space.show());
    }
    // Nothing depends on when it is gone.
    let _ = runtime.block_on(space.remove());
    match result {
        Ok(Ok(())) => {}
        // As a panic, which is how a test fails.
        Ok(Err(error)) => resume_unwind(Box::new(format!("{error:#}"))),
        Err(panic) => resume_unwind(panic),
    }
}

/// Asks until there is an answer.
///
/// # Errors
/// None within `limit`.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let end = Instant::now() + limit;
    loop {
        let last = match ask().await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => String::new(),
            Err(error) => format!(": {error:#}"),
        };
        if Instant::now() >= end {
            bail!("not within {limit:?}: {what}{last}");
        }
        sleep(PAUSE).await;
    }
}

/// Prints a figure, also of a test that passes.
pub fn say(line: &str) {
    // Not by `eprintln`, which is swallowed then. Nobody may listen.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a program of the cluster's folder, or of this machine, with the cluster's kubeconfig; gives its output.
///
/// # Errors
/// It fails; what it said is in the error.
pub async fn command(program: &str, args: &[&str], input: &str) -> anyhow::Result<String> {
    let folder = folder();
    let own = folder.join("bin").join(program);
    let line = || format!("{program} {}", args.join(" "));
    let mut child = Command::new(if own.exists() { own } else { program.into() })
        .args(args)
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(line)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that needs no input may have ended.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = timeout(COMMAND, child.wait_with_output())
        .await
        .with_context(|| format!("{} takes more than {COMMAND:?}", line()))??;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", line(), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// kubectl without a namespace.
///
/// # Errors
/// See [`command`].
pub async fn kubectl(args: &[&str]) -> anyhow::Result<String> {
    command("kubectl", args, "").await
}

/// A script of `e2e/cluster`.
///
/// # Errors
/// See [`command`].
pub async fn script(name: &str, args: &[&str]) -> anyhow::Result<String> {
    let path = format!("{}/cluster/{name}", env!("CARGO_MANIFEST_DIR"));
    command(&path, args, "").await
}

/// A namespace.
pub struct Space {
    /// Its name.
    pub name: String,
}

impl Space {
    /// One that exists already, such as that of the control plane.
    pub fn existing(name: &str) -> Self {
        Space {
            name: name.to_owned(),
        }
    }

    async fn create(&self) -> anyhow::Result<()> {
        // One that an earlier run has left.
        kubectl(&[
            "delete",
            "namespace",
            &self.name,
            "--ignore-not-found",
            "--timeout=60s",
        ])
        .await?;
        let object = namespace(&self.name, &[("linkerd.io/inject", "enabled")]);
        command("kubectl", &["apply", "-f", "-"], &object.to_string()).await?;
        Ok(())
    }

    async fn remove(&self) -> anyhow::Result<()> {
        kubectl(&["delete", "namespace", &self.name, "--wait=false"]).await?;
        Ok(())
    }

    /// kubectl in this namespace.
    ///
    /// # Errors
    /// See [`command`].
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        kubectl(&[&["--namespace", &self.name], args].concat()).await
    }

    /// Creates or changes objects, given as YAML or JSON.
    ///
    /// # Errors
    /// The API server refuses one.
    pub async fn apply(&self, objects: &str) -> anyhow::Result<()> {
        let args = ["--namespace", &self.name, "apply", "-f", "-"];
        command("kubectl", &args, objects).await?;
        Ok(())
    }

    /// Creates objects that must be refused; gives what was said.
    ///
    /// # Errors
    /// They were not.
    pub async fn refused(&self, objects: &str) -> anyhow::Result<String> {
        match self.apply(objects).await {
            Ok(()) => bail!("taken, though it should be refused:\n{objects}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    /// `kubectl get` as JSON.
    ///
    /// # Errors
    /// See [`command`].
    pub async fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = self
            .kubectl(&[&["get", "-o", "json"], args].concat())
            .await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Starts workloads and waits until all of their pods are ready.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn start(&self, apps: &[App]) -> anyhow::Result<()> {
        let objects: Vec<Value> = apps.iter().flat_map(App::objects).collect();
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.apply(&list.to_string()).await?;
        for app in apps {
            self.rolled_out(app.name()).await?;
        }
        Ok(())
    }

    /// Waits until a Deployment is as it should be.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn rolled_out(&self, deployment: &str) -> anyhow::Result<()> {
        let target = format!("deployment/{deployment}");
        self.kubectl(&["rollout", "status", &target, "--timeout=120s"])
            .await?;
        Ok(())
    }

    /// Restarts the pods of a Deployment one after the other and waits until that is done.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn restart(&self, deployment: &str) -> anyhow::Result<()> {
        let target = format!("deployment/{deployment}");
        self.kubectl(&["rollout", "restart", &target]).await?;
        self.rolled_out(deployment).await
    }

    /// Shows what there is to see of a test that failed.
    async fn show(&self) {
        let mut text = format!("namespace {}\n", self.name);
        let mut add = |output: anyhow::Result<String>| {
            text += &output.unwrap_or_else(|error| format!("{error:#}\n"));
        };
        add(self.kubectl(&["get", "pods", "-o", "wide"]).await);
        add(self
            .kubectl(&["get", "events", "--sort-by=.lastTimestamp"])
            .await);
        let control = Space::existing("linkerd");
        add(control.kubectl(&["get", "pods", "-o", "wide"]).await);
        for (space, tail) in [(self, "--tail=20"), (&control, "--tail=15")] {
            for pod in space.pods_by("").await.unwrap_or_default().iter().take(12) {
                // One after the other: a container that has not started would hide those that have.
                for container in pod.containers() {
                    let args = ["logs", &pod.name, "-c", container, "--prefix", tail];
                    add(space.kubectl(&args).await);
                }
            }
        }
        eprintln!("{text}");
    }
}
