//! Owns `weft-bench control-plane`: thousands of subscriptions to the discovery service over real gRPC while endpoints
//! change, and certificates a second. The services run in a child process ([`server`]); subscribers are tasks here.

pub mod certify;
pub mod report;
pub mod server;
pub mod subscribers;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};
use weft_identity::LocalAuthority;

use crate::process::{counters, resident_kb};
use crate::results;
use crate::stats::Percentiles;
use server::Ports;
use subscribers::Subscribers;

/// Longest wait for the child to serve, and for a change to reach everybody.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between changes, so that each is alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `weft-bench control-plane`.
#[derive(Args, Clone, Debug)]
pub struct ControlPlaneArgs {
    /// Subscriptions
    #[arg(long, default_value_t = 10_000)]
    pub subscriptions: usize,
    /// Connections they are on, one for each proxy in a cluster
    #[arg(long, default_value_t = 200)]
    pub connections: usize,
    /// Services in the second run; in the first all subscribe to one
    #[arg(long, default_value_t = 100)]
    pub services: usize,
    /// Changes of endpoints in each run
    #[arg(long, default_value_t = 100)]
    pub changes: u32,
    /// Seconds of certificate requests
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Folder for the results; by default bench/results/DATE-TIME-control-plane
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Facts about the machine.
    pub facts: Vec<(String, String)>,
    /// One for each number of services.
    pub fan_outs: Vec<FanOut>,
    /// Certificates.
    pub certificates: certify::Certificates,
}

/// One run of subscriptions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FanOut {
    /// Services.
    pub services: usize,
    /// Subscriptions, spread over the services evenly.
    pub subscriptions: usize,
    /// Seconds until all were open and had their first answer.
    pub open_seconds: f64,
    /// Resident memory of the service before and with all subscriptions, and after all changes, KiB.
    pub memory_kb: [u64; 3],
    /// Times from a change to the first subscriber.
    pub first: Percentiles,
    /// Times from a change to the last subscriber.
    pub last: Percentiles,
    /// Processor time of the service for each update it sent, µs.
    pub cpu_us: f64,
    /// Times to the last subscriber, µs, in order.
    pub last_us: Vec<u64>,
}

/// Runs everything and writes the results.
///
/// # Errors
/// What does not start or does not answer.
pub async fn run(args: ControlPlaneArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.services > 0
            && args.connections > 0
            && args.changes > 0
            && args.subscriptions >= args.services,
        "at least one service, connection and change, and a subscription for each service are needed"
    );
    let (facts, mut fan_outs) = (crate::facts::machine(), Vec::new());
    for services in [1, args.services] {
        eprintln!(
            "{} subscriptions to {services} services",
            args.subscriptions
        );
        let mut child = Server::start(services).await?;
        let measured = fan_out(&args, services, &mut child).await;
        child.end().await;
        fan_outs.push(measured?);
    }
    eprintln!("certificates");
    let child = Server::start(1).await?;
    let authority = LocalAuthority::open(&child.folder.path().join("trust"))?;
    let measured =
        certify::measure(&authority, child.ports.identity, child.pid()?, args.seconds).await;
    child.end().await;
    let measured = Measured {
        facts,
        fan_outs,
        certificates: measured?,
    };
    let folder = args
        .output
        .clone()
        .map_or_else(|| results::dated("-control-plane"), Ok)?;
    let summary = report::markdown(&measured);
    println!("{summary}written to {}", folder.display());
    results::write(
        &folder,
        &[
            ("runs.json", serde_json::to_string_pretty(&measured)? + "\n"),
            ("summary.md", summary),
            ("report.html", report::html(&measured)),
        ],
    )
}

async fn fan_out(
    args: &ControlPlaneArgs,
    services: usize,
    server: &mut Server,
) -> anyhow::Result<FanOut> {
    let pid = server.pid()?;
    let before = resident_kb(pid)?;
    let begin = Instant::now();
    let mut subscribers = Subscribers::open(server.ports.destination, args, services).await?;
    let open_seconds = begin.elapsed().as_secs_f64();
    sleep(Duration::from_secs(1)).await;
    let opened = resident_kb(pid)?;
    let (mut first, mut last, mut updates) = (Vec::new(), Vec::new(), 0);
    let spent = counters(pid)?;
    for number in 1..=args.changes {
        let service = number as usize % services;
        subscribers.expect(number, service);
        server.change(service, number).await?;
        let times = timeout(LIMIT, subscribers.all()).await;
        let times = times
            .with_context(|| format!("change {number} is not with everybody after {LIMIT:?}"))??;
        updates += times.len();
        first.extend(times.first());
        last.extend(times.last());
        sleep(PAUSE).await;
    }
    let spent = counters(pid)? - spent;
    Ok(FanOut {
        services,
        subscriptions: args.subscriptions,
        open_seconds,
        memory_kb: [before, opened, resident_kb(pid)?],
        first: Percentiles::of(first).unwrap_or_default(),
        last: Percentiles::of(last.clone()).unwrap_or_default(),
        cpu_us: spent.cpu_us as f64 / updates.max(1) as f64,
        last_us: last,
    })
}

/// The child with the services.
struct Server {
    child: Child,
    ports: Ports,
    folder: tempfile::TempDir,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    async fn start(services: usize) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("weft-bench-").tempdir()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("control-server")
            .arg(format!("--services={services}"));
        command.arg("--authority").arg(folder.path().join("trust"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot start the services")?;
        let mut output =
            BufReader::new(child.stdout.take().context("a child without output")?).lines();
        let line = timeout(LIMIT, output.next_line())
            .await
            .context("the services do not start")??;
        let ports = serde_json::from_str(&line.context("the services ended at once")?)?;
        Ok(Server {
            child,
            ports,
            folder,
            _output: output,
        })
    }

    fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the services have ended")
    }

    async fn change(&mut self, service: usize, number: u32) -> anyhow::Result<()> {
        let input = self.child.stdin.as_mut().context("a child without input")?;
        input
            .write_all(format!("{service} {number}\n").as_bytes())
            .await?;
        Ok(input.flush().await?)
    }

    async fn end(mut self) {
        // It may have ended by itself, which a measurement has noticed.
        let _ = self.child.kill().await;
    }
}
