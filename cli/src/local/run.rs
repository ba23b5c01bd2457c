//! Owns `weft run` and `weft mesh`: a user's command as a workload of a mesh, and looking at that mesh. What a workload is
//! made of is in [`super::client`].

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, isatty};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::client::{Event, Mesh, MeshOptions, Workload};
use super::control::Tuning;

/// How long a command may take to end after the mesh is lost.
const LOST: Duration = Duration::from_secs(2);

/// Arguments of `weft run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Which mesh
    #[command(flatten)]
    pub mesh: MeshArgs,
    /// Name of the Pod in the manifests that the command stands for
    #[arg(long)]
    pub workload: String,
    /// Namespace of the Pod
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// The proxy program; by default the weft-proxy beside this program
    #[arg(long)]
    pub proxy: Option<PathBuf>,
    /// The set-up, for whoever starts the mesh first
    #[command(flatten)]
    pub tuning: Tuning,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    pub command: Vec<String>,
}

/// What tells one mesh from another.
#[derive(Args, Clone, Debug)]
pub struct MeshArgs {
    /// Directory of Kubernetes manifests; it is watched
    #[arg(long)]
    pub manifests: PathBuf,
    /// Folder for the trust anchor and the logs
    #[arg(long)]
    pub state_dir: Option<PathBuf>,
}

/// Arguments of `weft mesh`.
#[derive(Subcommand, Clone, Debug)]
pub enum MeshCommand {
    /// Lists the workloads that run
    Status(MeshArgs),
    /// Prints a page of a proxy's admin server, by default its metrics
    Metrics {
        /// Which mesh
        #[command(flatten)]
        mesh: MeshArgs,
        /// Name of the Pod
        #[arg(long)]
        workload: String,
        /// Namespace of the Pod
        #[arg(long, short = 'n', default_value = "default")]
        namespace: String,
        /// The page
        #[arg(long, default_value = "/metrics")]
        path: String,
    },
}

/// The proxy beside this program, unless another is named.
pub fn proxy_beside(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match named {
        Some(proxy) => Ok(proxy),
        None => Ok(own_program()?.with_file_name("weft-proxy")),
    }
}

/// This program.
pub fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find out where this program is")
}

/// Runs `weft run`; the exit code is that of the command, 128 + N if signal N ended it.
pub async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let options = options(&args)?;
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let started = async {
        let mesh = Mesh::open(&options).await?;
        mesh.start(&args.namespace, &args.workload).await
    };
    // A workload that is only being started ends with the connection to the host.
    let mut workload = tokio::select! {
        workload = started => workload?,
        _ = terminate.recv() => return Ok(ExitCode::from(143)),
        _ = interrupt.recv() => return Ok(ExitCode::from(130)),
    };
    let (program, arguments) = args.command.split_first().context("no command is given")?;
    let mut command = Command::new(program);
    let mut child = workload.spawn(command.args(arguments))?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            _ = terminate.recv() => {
                // If the host has gone, the command is to end all the same.
                let _ = workload.leave().await;
                forward(&child, Signal::SIGTERM);
            }
            // On a terminal the command gets Ctrl-C by itself.
            _ = interrupt.recv() => if !isatty(std::io::stdin()).unwrap_or(false) {
                forward(&child, Signal::SIGINT);
            },
            event = workload.event() => match event {
                Event::ProxyRestarted { how } => eprintln!("weft: the proxy ended ({how}) and was started again"),
                Event::Lost => return lost(&workload, child).await,
            },
        }
    };
    workload
        .stop()
        .await
        .context("the command has ended, but")?;
    Ok(exit_code(status))
}

fn options(args: &RunArgs) -> anyhow::Result<MeshOptions> {
    Ok(MeshOptions {
        manifests: args.mesh.manifests.clone(),
        state_dir: args.mesh.state_dir.clone(),
        weft: own_program()?,
        proxy: proxy_beside(args.proxy.clone())?,
        ephemeral: None,
        tuning: args.tuning.clone(),
    })
}

fn forward(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

async fn lost(workload: &Workload, mut child: Child) -> anyhow::Result<ExitCode> {
    forward(&child, Signal::SIGTERM);
    // What is still there then is killed with everything else in the namespaces.
    let _ = timeout(LOST, child.wait()).await;
    workload.kill_all();
    anyhow::bail!("the mesh host has gone, and the proxy with it; the command was ended")
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Runs `weft mesh`.
pub async fn look(command: MeshCommand) -> anyhow::Result<()> {
    match command {
        MeshCommand::Status(mesh) => {
            let mesh = Mesh::find(&mesh.manifests, mesh.state_dir.as_deref()).await?;
            println!(
                "{:<16} {:<24} {:<14} {:>9}  PROXY LOG",
                "NAMESPACE", "WORKLOAD", "ADDRESS", "PROXY PID"
            );
            for one in mesh.list().await? {
                let (ip, log) = (one.ip.to_string(), one.proxy_log.display());
                println!(
                    "{:<16} {:<24} {ip:<14} {:>9}  {log}",
                    one.namespace, one.workload, one.proxy_pid
                );
            }
        }
        MeshCommand::Metrics {
            mesh,
            workload,
            namespace,
            path,
        } => {
            let mesh = Mesh::find(&mesh.manifests, mesh.state_dir.as_deref()).await?;
            print!("{}", mesh.fetch(&namespace, &workload, &path).await?.body);
        }
    }
    Ok(())
}
