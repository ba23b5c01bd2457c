//! Owns `weft-bench run`: which measurements are made in which order, the progress that is shown, and where results go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;

use crate::facts::facts;
use crate::figures::{Metric, Results, Run};
use crate::measure::{self, Plan};
use crate::peer::{self, Peer, Programs, on_path};
use crate::workload::Workload;
use crate::{report, results};

/// Peers of a run without a choice.
const PEERS: [&str; 5] = ["none", "weft", "haproxy", "envoy", "nginx"];
/// Peers and workloads of `--quick`.
const QUICK: [&str; 2] = ["weft", "haproxy"];
const QUICK_WORKLOADS: [Workload; 2] = [Workload::Http2, Workload::Http1];

/// Arguments of `weft-bench run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Who takes part: none, relay, weft, haproxy, envoy, nginx; by default all that are installed, without relay
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// A program that takes linkerd2-proxy's environment, as NAME=PATH; may be repeated
    #[arg(long = "peer", value_parser = peer::program)]
    pub programs: Vec<Peer>,
    /// What is measured
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<Workload>,
    /// Repetitions
    #[arg(long, default_value_t = 5)]
    pub reps: u32,
    /// Seconds of load in each run
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds of load before, not counted
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// Seconds before and after the load until memory is looked at
    #[arg(long, default_value_t = 1.5)]
    pub settle: f64,
    /// Requests a second of workloads with a fixed rate
    #[arg(long, default_value_t = 500)]
    pub rate: u32,
    /// Connections of workloads that hold them; fewer if the limit of descriptors is too low
    #[arg(long, default_value_t = 10_000)]
    pub connections: usize,
    /// A look in less than three minutes: weft and haproxy, two workloads, two repetitions of two seconds
    #[arg(long)]
    pub quick: bool,
    /// Do not count system calls
    #[arg(long)]
    pub no_syscalls: bool,
    /// Folder of weft and weft-proxy; by default that of this program
    #[arg(long)]
    pub bin_dir: Option<PathBuf>,
    /// Envoy; by default where scripts/setup-bench puts it, or the one on the path
    #[arg(long)]
    pub envoy: Option<PathBuf>,
    /// Folder for the results; by default bench/results/DATE-TIME
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// Runs the bench and writes its results.
///
/// # Errors
/// What cannot be measured; what was measured before is written nevertheless.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    let args = if args.quick { quick(args) } else { args };
    ensure!(
        args.reps > 0 && args.seconds >= 0.5,
        "at least one repetition of half a second is needed"
    );
    for tool in ["h2load", "iperf3"] {
        ensure!(
            on_path(tool).is_some(),
            "{tool} is missing: run scripts/setup-bench"
        );
    }
    raise_limits()?;
    let programs = Programs::find(&own_folder(args.bin_dir.clone())?, args.envoy.clone());
    let (peers, mut left_out) = contestants(&args, &programs)?;
    let pairs = pairs(&args, &peers, &mut left_out);
    for note in &left_out {
        eprintln!("left out: {note}");
    }
    let mut facts = facts(&peers, &programs);
    facts.push((
        "load".to_owned(),
        format!("{} s × {} repetitions", args.seconds, args.reps),
    ));
    let mut found = Results {
        facts,
        left_out,
        runs: Vec::new(),
    };
    let output = args.output.clone().map_or_else(|| results::dated(""), Ok)?;
    let measured = tokio::select! {
        measured = all(&args, &programs, &pairs, &mut found) => measured,
        signal = weft_runtime::process::terminated() => Err(anyhow::anyhow!("ended by {signal}")),
    };
    if !found.runs.is_empty() {
        report::write(&found, &output)?;
        println!("{}", report::markdown::summary(&found));
        println!("written to {}", output.display());
    }
    measured
}

/// What is measured in one repetition, in this order: all peers with one workload, then all with the next.
fn pairs<'a>(
    args: &RunArgs,
    peers: &'a [Peer],
    left_out: &mut Vec<String>,
) -> Vec<(&'a Peer, Workload)> {
    let workloads = if args.workloads.is_empty() {
        Workload::usual()
    } else {
        args.workloads.clone()
    };
    let mut pairs = Vec::new();
    for workload in workloads {
        for peer in peers {
            match peer.lacks(workload) {
                Some(why) => left_out.push(format!("{} × {workload}: {why}", peer.name)),
                None => pairs.push((peer, workload)),
            }
        }
    }
    pairs
}

async fn all(
    args: &RunArgs,
    programs: &Programs,
    pairs: &[(&Peer, Workload)],
    results: &mut Results,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let total = pairs.len() * args.reps as usize;
    let mut failed = 0;
    // All peers once, then all again, so that what drifts drifts for all.
    for repetition in 0..args.reps {
        for (peer, workload) in pairs {
            let strace = on_path("strace").filter(|_| repetition == 0 && !args.no_syscalls);
            let plan = Plan {
                seconds: args.seconds,
                warm_up: args.warm_up,
                settle: args.settle,
                rate: args.rate,
                connections: args.connections.min(room()?),
                strace,
            };
            let run = measure::measure(peer, programs, *workload, &plan).await;
            match run {
                Ok(run) => {
                    let run = Run { repetition, ..run };
                    let done = results.runs.len() + failed + 1;
                    eprintln!("{}", progress(&run, done, total, begin.elapsed()));
                    results.runs.push(run);
                }
                // The others' figures are worth having all the same.
                Err(error) => {
                    failed += 1;
                    let number = repetition + 1;
                    let what = format!("{} × {workload} #{number} failed: {error:#}", peer.name);
                    eprintln!("{what}");
                    results.left_out.push(what);
                }
            }
        }
    }
    ensure!(
        failed == 0,
        "{failed} of {total} runs failed; the report says which and why"
    );
    Ok(())
}

/// One line about a finished run.
fn progress(run: &Run, done: usize, total: usize, elapsed: Duration) -> String {
    let figures = [
        (Metric::Rate, "/s"),
        (Metric::Cpu, " µs CPU"),
        (Metric::P50, " ms p50"),
        (Metric::P99, " ms p99"),
        (Metric::Loaded, " MB"),
    ];
    let known = figures
        .iter()
        .filter_map(|(metric, unit)| Some(format!("{}{unit}", report::number(metric.of(run)?))));
    let failed = if run.load.failed > 0 {
        format!(" · {} FAILED", run.load.failed)
    } else {
        String::new()
    };
    // Each run takes about as long as those before.
    let left = elapsed.as_secs_f64() / done as f64 * total.saturating_sub(done) as f64;
    format!(
        "[{done}/{total}, {left:.0} s left] {} × {} #{}: {}{failed}",
        run.peer,
        run.workload,
        run.repetition + 1,
        known.collect::<Vec<_>>().join(" · ")
    )
}

fn quick(args: RunArgs) -> RunArgs {
    let (peers, workloads) = (args.peers.clone(), args.workloads.clone());
    RunArgs {
        peers: if peers.is_empty() {
            QUICK.map(str::to_owned).to_vec()
        } else {
            peers
        },
        workloads: if workloads.is_empty() {
            QUICK_WORKLOADS.to_vec()
        } else {
            workloads
        },
        reps: 2,
        seconds: 2.0,
        warm_up: 0.5,
        settle: 0.5,
        ..args
    }
}

/// Who takes part, and who does not and why. A peer that was asked for by name must be there.
fn contestants(args: &RunArgs, programs: &Programs) -> anyhow::Result<(Vec<Peer>, Vec<String>)> {
    let (mut peers, mut left_out) = (Vec::new(), Vec::new());
    let names: Vec<&str> = args.peers.iter().map(String::as_str).collect();
    for name in if names.is_empty() { &PEERS[..] } else { &names } {
        match programs.peer(name) {
            Ok(peer) => peers.push(peer),
            Err(error) if names.is_empty() => left_out.push(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
    peers.extend(args.programs.iter().cloned());
    for (at, peer) in peers.iter().enumerate() {
        ensure!(
            peers
                .iter()
                .skip(at + 1)
                .all(|other| other.name != peer.name),
            "two peers are named `{}`",
            peer.name
        );
    }
    Ok((peers, left_out))
}

/// The folder of weft and weft-proxy: that which is named, or else that of this program.
pub(crate) fn own_folder(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = named
        .or_else(|| own.parent().map(Path::to_owned))
        .context("a program is in a folder")?;
    for program in ["weft", "weft-proxy"] {
        if !folder.join(program).is_file() {
            bail!(
                "{} has no {program}: run `make build`, or name the folder with --bin-dir",
                folder.display()
            );
        }
    }
    // Absolute, because the mesh host is started in another folder.
    Ok(folder.canonicalize()?)
}

/// Descriptors for ten thousand connections through a proxy, with room.
const DESCRIPTORS: u64 = 131_072;

/// Raises the limit of descriptors for this process and those it starts; only root may go beyond the hard one.
fn raise_limits() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = setrlimit(
        Resource::RLIMIT_NOFILE,
        DESCRIPTORS.max(hard),
        DESCRIPTORS.max(hard),
    );
    raised
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard))
        .context("the limit of descriptors")
}

/// Connections that a proxy can pass on: two descriptors each, and some for itself.
fn room() -> anyhow::Result<usize> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft.saturating_sub(400) / 2)?)
}
