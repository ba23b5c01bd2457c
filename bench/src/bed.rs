//! Owns where a run takes place: a mesh of two pods, the application in one, a proxy beside each. It makes them and takes
//! them down; what is measured there is in `run`.

mod material;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use weft_cli::local::{Mesh, MeshOptions, Tuning, Workload, netns};

use crate::app;
use crate::balance::scenario::Scenario;
use crate::h2load::{self, ClosedLoop};
use crate::peer::{Peer, Programs};
use crate::wiring::{PROTOCOLS, Protocol, Side, Wiring};

/// Namespace of both pods.
const NAMESPACE: &str = "bench";
/// Longest wait until a request comes through.
const READY: Duration = Duration::from_secs(20);
/// Longest wait for a process to end on SIGTERM.
const END: Duration = Duration::from_secs(5);

/// What is in a bed.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The application has its port for bytes; else it leaves it to another program.
    pub opaque: bool,
    /// Pods with the application, all behind the Service.
    pub replicas: usize,
    /// More Services that lead to them, `s0` and so on.
    pub services: usize,
    /// What happens to the replicas, which then take their time for each request.
    pub scenario: Option<Scenario>,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            opaque: true,
            replicas: 1,
            services: 0,
            scenario: None,
        }
    }
}

/// A pod with the load and pods with the application, connected through the proxies of one peer.
pub struct Bed {
    mesh: Mesh,
    client: Workload,
    servers: Vec<Workload>,
    /// A pod without proxy and without rules, if one was needed.
    outside: Option<Workload>,
    processes: Vec<Child>,
    /// Process ids of the application.
    applications: Vec<u32>,
    proxies: Option<Pair>,
    peer: Peer,
    bench: PathBuf,
    wiring: Wiring,
    folder: PathBuf,
}

/// A place programs are started in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pod {
    /// With the load.
    Client,
    /// With the application; its number is that of the replica.
    Server(usize),
    /// Without a proxy; see [`Bed::open_outside`].
    Outside,
}

/// Process ids of the proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Beside the load.
    pub client: u32,
    /// Beside each replica of the application.
    pub servers: Vec<u32>,
}

impl Pair {
    /// All of them, the one beside the load first.
    pub fn all(&self) -> Vec<u32> {
        [&[self.client], &self.servers[..]].concat()
    }
}

impl Bed {
    /// Makes everything anew; requests pass when this returns. Call it from the thread that lives longest.
    ///
    /// # Errors
    /// What is missing or does not start; the ends of logs are part of it.
    pub async fn open(peer: &Peer, programs: &Programs, layout: &Layout) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("weft-bench-")
            .tempdir()?
            .keep();
        let opened = Bed::open_in(peer, programs, layout, &folder).await;
        if opened.is_err() {
            // The mesh host removes it too, if there was one.
            let _ = std::fs::remove_dir_all(&folder);
        }
        opened
    }

    async fn open_in(
        peer: &Peer,
        programs: &Programs,
        layout: &Layout,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let manifests = folder.join("manifests");
        std::fs::create_dir(&manifests)?;
        std::fs::write(
            manifests.join("bench.yaml"),
            material::objects(peer, layout),
        )?;
        let proxy = if peer.is_mesh() { peer.program() } else { None };
        let options = MeshOptions {
            manifests,
            state_dir: Some(folder.join("state")),
            weft: programs.weft.clone(),
            proxy: proxy.unwrap_or(&programs.proxy).to_owned(),
            ephemeral: Some(folder.to_owned()),
            tuning: Tuning {
                log: "warn".to_owned(),
                ..Tuning::default()
            },
        };
        let mesh = Mesh::open(&options).await?;
        let mut servers = Vec::new();
        for replica in 0..layout.replicas.max(1) {
            servers.push(mesh.start(NAMESPACE, &material::replica(replica)).await?);
        }
        let client = mesh.start(NAMESPACE, "load").await?;
        let mut bed = Bed {
            wiring: material::wiring(&mesh, &servers, folder)?,
            mesh,
            client,
            servers,
            outside: None,
            processes: Vec::new(),
            applications: Vec::new(),
            proxies: None,
            peer: peer.clone(),
            bench: programs.bench.clone(),
            folder: folder.to_owned(),
        };
        if let Err(error) = bed.populate(layout).await {
            let (logs, name) = (logs(&bed.folder), bed.peer.name.clone());
            bed.close_quietly().await;
            return Err(error.context(format!("{name} does not come up; logs:\n{logs}\n")));
        }
        Ok(bed)
    }

    async fn populate(&mut self, layout: &Layout) -> anyhow::Result<()> {
        for replica in 0..self.servers.len() {
            self.start_application(layout, replica)?;
        }
        self.proxies = if self.peer.is_mesh() {
            let pid = |workload: &Workload| workload.started().proxy_pid;
            Some(Pair {
                client: pid(&self.client),
                servers: self.servers.iter().map(pid).collect(),
            })
        } else {
            self.start_proxies()?
        };
        self.wait_until_ready().await
    }

    fn start_application(&mut self, layout: &Layout, replica: usize) -> anyhow::Result<()> {
        let mut command = Command::new(&self.bench);
        command.args(["app".to_owned(), format!("--replica={replica}")]);
        command.args((!layout.opaque).then_some("--no-opaque"));
        let scenario = layout.scenario.map(Scenario::name);
        command.args(scenario.map(|name| format!("--scenario={name}")));
        let child = self.spawn(Pod::Server(replica), command, &material::replica(replica))?;
        self.applications.extend(child.id());
        self.processes.push(child);
        Ok(())
    }

    /// Tells the replicas that the scenario's change has come.
    ///
    /// # Errors
    /// One has ended.
    pub fn change(&self) -> anyhow::Result<()> {
        for pid in &self.applications {
            let pid = Pid::from_raw(i32::try_from(*pid)?);
            kill(pid, Signal::SIGUSR1).context("a replica has ended")?;
        }
        Ok(())
    }

    /// The metrics of the proxy beside the load, in the text format of Prometheus.
    ///
    /// # Errors
    /// It does not answer, or there is none that has metrics.
    pub async fn client_metrics(&self) -> anyhow::Result<String> {
        let page = self.mesh.fetch(NAMESPACE, "load", "/metrics").await?;
        ensure!(page.status == 200, "/metrics answers {}", page.status);
        Ok(page.body)
    }

    fn start_proxies(&mut self) -> anyhow::Result<Option<Pair>> {
        let mut pids = Vec::new();
        for (side, pod) in [(Side::Server, Pod::Server(0)), (Side::Client, Pod::Client)] {
            let folder = self.side_folder(side.name())?;
            if let Some(command) = self.peer.command(side, &self.wiring, &folder)? {
                let child = self.spawn(pod, command, side.name())?;
                pids.extend(child.id());
                self.processes.push(child);
            }
        }
        Ok(match pids[..] {
            [server, client] => Some(Pair {
                client,
                servers: vec![server],
            }),
            _ => None,
        })
    }

    /// Starts the pod without a proxy.
    ///
    /// # Errors
    /// Those of the mesh.
    pub async fn open_outside(&mut self) -> anyhow::Result<()> {
        self.outside = Some(self.mesh.start(NAMESPACE, "outside").await?);
        Ok(())
    }

    fn side_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Starts a long-running program in a pod, with its output in a log; it is killed when the handle is dropped.
    ///
    /// # Errors
    /// It does not start.
    pub fn spawn(&self, pod: Pod, mut command: Command, name: &str) -> anyhow::Result<Child> {
        let log = File::create(self.folder.join(format!("{name}.log")))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let child = self.pod(pod)?.spawn(&mut command);
        child.with_context(|| format!("cannot start {name}"))
    }

    /// Starts a program in a pod whose output the caller reads; what it says of errors is shown. It is killed when the
    /// handle is dropped.
    ///
    /// # Errors
    /// It does not start.
    pub fn spawn_piped(&self, pod: Pod, mut command: Command) -> anyhow::Result<Child> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let name = command
            .as_std()
            .get_program()
            .to_string_lossy()
            .into_owned();
        self.pod(pod)?
            .spawn(&mut command)
            .with_context(|| format!("cannot start {name}"))
    }

    /// Starts a program that is part of a workload in a pod; it is ended with the bed.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(&mut self, pod: Pod, command: Command, name: &str) -> anyhow::Result<()> {
        let child = self.spawn(pod, command, name)?;
        self.processes.push(child);
        Ok(())
    }

    /// Runs a program in a pod to its end, which it must reach within `limit`; its standard output.
    ///
    /// # Errors
    /// It does not start, fails or takes too long; then it is killed.
    pub async fn output(
        &self,
        pod: Pod,
        mut command: Command,
        limit: Duration,
    ) -> anyhow::Result<String> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let name = command
            .as_std()
            .get_program()
            .to_string_lossy()
            .into_owned();
        let child = self
            .pod(pod)?
            .spawn(&mut command)
            .with_context(|| format!("cannot start {name}"))?;
        let output = timeout(limit, child.wait_with_output()).await;
        let output = output.with_context(|| format!("{name} takes more than {limit:?}"))??;
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.success(),
            "{name}: {}: {} {}",
            output.status,
            errors.trim(),
            text.trim()
        );
        Ok(text.into_owned())
    }

    fn pod(&self, pod: Pod) -> anyhow::Result<&Workload> {
        match pod {
            Pod::Client => Ok(&self.client),
            Pod::Server(replica) => self.servers.get(replica).context("no such replica"),
            Pod::Outside => self
                .outside
                .as_ref()
                .context("the pod without a proxy has not been started"),
        }
    }

    /// The program of the bench.
    pub fn bench(&self) -> &Path {
        &self.bench
    }

    /// Addresses and certificates.
    pub fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    /// Address and port at which the server-side proxy takes mutual TLS from elsewhere.
    pub fn server_side(&self, protocol: Protocol) -> String {
        let port = if self.peer.is_mesh() {
            protocol.app_port()
        } else {
            protocol.server_port()
        };
        format!("{}:{port}", self.wiring.server)
    }

    /// A folder that goes with the bed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn scratch(&self) -> anyhow::Result<PathBuf> {
        self.side_folder("scratch")
    }

    /// Process ids of the proxies, if the peer has any.
    pub fn proxies(&self) -> Option<Pair> {
        self.proxies.clone()
    }

    /// Host and port for load of a protocol.
    pub fn target(&self, protocol: Protocol) -> (String, u16) {
        self.peer.target(protocol, &self.wiring.server.to_string())
    }

    /// URL for load of a protocol.
    pub fn url(&self, protocol: Protocol, path: &str) -> String {
        let (host, port) = self.target(protocol);
        format!("http://{host}:{port}{path}")
    }

    /// Waits until one request passes over each version of HTTP.
    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + READY;
        for protocol in PROTOCOLS
            .into_iter()
            .filter(|protocol| *protocol != Protocol::Opaque)
        {
            let one = ClosedLoop {
                http1: protocol == Protocol::Http1,
                connections: 1,
                streams: 1,
                post: false,
            };
            while let Err(error) = self.probe(protocol, one).await {
                for process in &mut self.processes {
                    let ended = process.try_wait()?;
                    ensure!(ended.is_none(), "a program ended at once: {ended:?}");
                }
                if Instant::now() > until {
                    return Err(error.context(format!(
                        "no {protocol:?} request comes through within {READY:?}"
                    )));
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    async fn probe(&self, protocol: Protocol, one: ClosedLoop) -> anyhow::Result<()> {
        // h2load waits for ever if the connection is refused while it resolves, so the port is tried first.
        if !self.peer.is_mesh() {
            let (host, port) = self.target(protocol);
            let net = File::open(&self.client.started().net)?;
            let addr = (host.parse::<std::net::Ipv4Addr>()?, port).into();
            netns::connect(OwnedFd::from(net), addr, Duration::from_secs(1)).await?;
        }
        let mut command = Command::new("h2load");
        command.args(one.count_arguments(&self.url(protocol, "/"), 1));
        let report = self
            .output(Pod::Client, command, Duration::from_secs(5))
            .await?;
        let summary = h2load::parse(&report, app::BODY as u64).context("h2load gives no report")?;
        ensure!(summary.succeeded == 1, "the request failed");
        Ok(())
    }

    /// Ends all processes and removes all files.
    ///
    /// # Errors
    /// A pod does not end; everything else has ended then.
    pub async fn close(mut self) -> anyhow::Result<()> {
        // Those that ask before those that answer.
        while let Some(mut child) = self.processes.pop() {
            end(&mut child).await;
        }
        let Bed {
            mesh,
            client,
            servers,
            outside,
            folder,
            ..
        } = self;
        let mut stopped = vec![client.stop().await];
        for pod in servers.into_iter().chain(outside) {
            stopped.push(pod.stop().await);
        }
        mesh.close().await;
        // The mesh host may be quicker.
        let _ = std::fs::remove_dir_all(folder);
        for result in stopped {
            result?;
        }
        Ok(())
    }

    async fn close_quietly(self) {
        if let Err(error) = self.close().await {
            eprintln!("weft-bench: taking down what did not start: {error:#}");
        }
    }
}

/// Ends a process of ours.
pub async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if timeout(END, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// The ends of all logs of a bed that did not come up.
fn logs(folder: &Path) -> String {
    let files = [folder.to_owned(), folder.join("state/logs")].into_iter();
    let files = files
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten();
    let logs = files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"));
    let one = |path: PathBuf| {
        let tail = weft_cli::local::place::tail(&path);
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        (!tail.is_empty()).then(|| format!("{name}:\n{tail}"))
    };
    logs.filter_map(one).collect::<Vec<_>>().join("\n")
}
