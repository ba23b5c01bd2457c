//! Owns what a test does in one workload: sockets, commands, its proxy's pages and its proxy's process.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use weft_cli::local::admin::Page;
use weft_cli::local::{Mesh, Workload};

use crate::broker::Broker;
use crate::eventually;
use crate::manifests::NAMESPACE;
use crate::metrics::Samples;
use crate::net::Programs;
use crate::wire::{Listener, Wire};

/// Longest a command may take unless said otherwise.
const COMMAND: Duration = Duration::from_secs(10);

/// A workload that runs; it ends when this is dropped.
pub struct Node {
    name: String,
    mesh: Arc<Mesh>,
    workload: Workload,
    broker: Broker,
    peer: PathBuf,
}

/// What a command has left.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code; none after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command that runs; killed when this is dropped.
pub struct Process {
    child: Child,
    what: String,
}

impl Node {
    pub(crate) fn new(
        mesh: Arc<Mesh>,
        workload: Workload,
        programs: &Programs,
    ) -> anyhow::Result<Self> {
        let (broker, peer) = (
            Broker::start(&workload, &programs.peer)?,
            programs.peer.clone(),
        );
        Ok(Node {
            name: workload.started().workload.clone(),
            mesh,
            workload,
            broker,
            peer,
        })
    }

    /// Its address.
    pub fn ip(&self) -> String {
        self.workload.started().ip.to_string()
    }

    /// A connection from the workload to `host:port`, by its `/etc/hosts` and its iptables rules.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(&self, addr: &str) -> anyhow::Result<Wire> {
        Wire::new(self.broker.connect(addr).await?)
    }

    /// A listener in the workload; as soon as it listens on a port of its Pod it is an endpoint.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn listen(&self, port: u16) -> anyhow::Result<Listener> {
        Listener::new(self.broker.listen(port).await?)
    }

    /// Runs a command in the workload, for 10 s at most. Its exit code is for the caller to check.
    ///
    /// # Errors
    /// It cannot be started or takes too long.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Output> {
        self.spawn(program, arguments)?.output(COMMAND).await
    }

    /// Runs curl; its standard output if it succeeds.
    ///
    /// # Errors
    /// It fails or takes too long.
    pub async fn curl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let all = [&["-sS", "--max-time", "8"], arguments].concat();
        let output = self.run("curl", &all).await?;
        ensure!(output.code == Some(0), "curl {arguments:?}: {output:?}");
        Ok(output.stdout)
    }

    /// Starts a command in the workload, with a pipe as its standard input.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = self.workload.spawn(command.kill_on_drop(true));
        let what = format!("{program} {}", arguments.join(" "));
        Ok(Process {
            child: child.with_context(|| what.clone())?,
            what,
        })
    }

    /// Starts a peer as a process (see [`crate::peers`]) and waits until it listens on `port`.
    ///
    /// # Errors
    /// It does not.
    pub async fn peer(&self, kind: &str, port: u16, arguments: &[&str]) -> anyhow::Result<Process> {
        let port = port.to_string();
        let program = self.peer.to_string_lossy();
        let mut process = self.spawn(&program, &[&[kind, &port], arguments].concat())?;
        let loopback = format!("127.0.0.1:{port}");
        eventually("the peer listens", Duration::from_secs(5), async || {
            if let Some(status) = process.child.try_wait()? {
                bail!("the peer ended: {status}");
            }
            Ok(self.broker.connect(&loopback).await.ok())
        })
        .await?;
        Ok(process)
    }

    /// A page of its proxy's admin server, fetched from the workload's own loopback.
    ///
    /// # Errors
    /// There is none.
    pub async fn page(&self, path: &str) -> anyhow::Result<Page> {
        Ok(self.mesh.fetch(NAMESPACE, &self.name, path).await?)
    }

    /// Its proxy's metrics.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub async fn metrics(&self) -> anyhow::Result<Samples> {
        Samples::parse(&self.page("/metrics").await?.body)
    }

    /// Waits until the samples of a name and labels add up to at least `wanted`.
    ///
    /// # Errors
    /// They do not within 5 s.
    pub async fn metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        wanted: f64,
    ) -> anyhow::Result<Samples> {
        let what = format!("{name}{labels:?} of {} is {wanted}", self.name);
        eventually(&what, Duration::from_secs(5), async || {
            let page = self.metrics().await?;
            Ok((page.sum(name, labels) >= wanted).then_some(page))
        })
        .await
    }

    /// Process id of its proxy, also of one that was started again.
    ///
    /// # Errors
    /// The mesh does not know it.
    pub async fn proxy_pid(&self) -> anyhow::Result<u32> {
        let all = self.mesh.list().await?;
        let own = all
            .iter()
            .find(|one| one.namespace == NAMESPACE && one.workload == self.name);
        Ok(own.context("the workload runs")?.proxy_pid)
    }

    /// Sends its proxy a signal.
    ///
    /// # Errors
    /// There is no proxy.
    pub async fn signal_proxy(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(
            Pid::from_raw(self.proxy_pid().await?.try_into()?),
            signal,
        )?)
    }

    /// Memory of its proxy that is in use, in KiB.
    ///
    /// # Errors
    /// There is no proxy.
    pub async fn proxy_memory(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.proxy_pid().await?))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
    }

    /// Processor time its proxy has used.
    ///
    /// # Errors
    /// There is no proxy.
    pub async fn proxy_cpu(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.proxy_pid().await?))?;
        // proc(5): fields 14 and 15, in ticks of 10 ms; the name in field 2 may have blanks.
        let (_, fields) = stat.rsplit_once(") ").context("a name")?;
        let tick = |at: usize| -> anyhow::Result<u64> {
            Ok(fields.split(' ').nth(at).context("ticks")?.parse()?)
        };
        Ok(Duration::from_millis(10 * (tick(11)? + tick(12)?)))
    }

    /// Its proxy's log so far.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.workload.started().proxy_log)?)
    }

    /// Takes the workload out of the endpoints; its proxy runs on.
    ///
    /// # Errors
    /// Those of the mesh.
    pub async fn leave(&mut self) -> anyhow::Result<()> {
        Ok(self.workload.leave().await?)
    }

    /// Takes it out of the endpoints, lets its proxy drain and ends it.
    ///
    /// # Errors
    /// Those of the mesh.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.broker);
        Ok(self.workload.stop().await?)
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command, what: String) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Ok(Process {
            child: command.spawn().with_context(|| what.clone())?,
            what,
        })
    }

    /// Process ids of its children.
    ///
    /// # Errors
    /// It has ended.
    pub fn children(&self) -> anyhow::Result<Vec<Pid>> {
        let pid = self.child.id().context("it has ended")?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        text.split_whitespace()
            .map(|pid| Ok(Pid::from_raw(pid.parse()?)))
            .collect()
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// It has ended already.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// It does not read.
    pub async fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .context("standard input is open")?;
        Ok(tokio::io::AsyncWriteExt::write_all(stdin, bytes).await?)
    }

    /// Closes its standard input and waits for its end.
    ///
    /// # Errors
    /// It takes too long.
    pub async fn output(mut self, limit: Duration) -> anyhow::Result<Output> {
        drop(self.child.stdin.take());
        let output = timeout(limit, self.child.wait_with_output()).await;
        let output =
            output.with_context(|| format!("`{}` takes more than {limit:?}", self.what))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }
}
