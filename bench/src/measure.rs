//! Owns one measurement: a fresh bed, warm-up, load, and what the proxies cost meanwhile. Which measurements are made, and
//! in which order, is in `run`.

mod hold;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;
use tokio::time::{interval, sleep};

use crate::app::GRPC_MESSAGE;
use crate::bed::{Bed, Pod};
use crate::figures::{Counted, Load, Proxies, Proxy, Run};
use crate::load::LoadArgs;
use crate::peer::{Peer, Programs};
use crate::process::{self, Counters};
use crate::syscalls::Tracer;
use crate::wiring::Protocol;
use crate::workload::{Generator, Workload};
use crate::{h2load, iperf};

/// How often memory is looked at during the load.
const LOOK: Duration = Duration::from_millis(50);
/// Beyond the time of the load, until its generator is given up.
const SLACK: Duration = Duration::from_secs(20);

/// How a measurement is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seconds of load.
    pub seconds: f64,
    /// Seconds of load before, not counted.
    pub warm_up: f64,
    /// Seconds from the end of the load until memory is looked at again.
    pub settle: f64,
    /// Requests a second of workloads with a fixed rate.
    pub rate: u32,
    /// Connections of workloads that hold them.
    pub connections: usize,
    /// strace, if system calls are to be counted.
    pub strace: Option<PathBuf>,
}

/// Measures once.
///
/// # Errors
/// Whatever does not start or does not answer.
pub async fn measure(
    peer: &Peer,
    programs: &Programs,
    workload: Workload,
    plan: &Plan,
) -> anyhow::Result<Run> {
    let mut bed = Bed::open(peer, programs, &workload.layout()).await?;
    let measured = match workload.generator() {
        Generator::Hold => hold::held(&mut bed, workload, plan)
            .await
            .map(|(load, proxies)| (load, Some(proxies))),
        _ => in_bed(&mut bed, workload, plan).await,
    };
    let closed = bed.close().await;
    let (load, proxies) = measured?;
    closed?;
    Ok(Run {
        peer: peer.name.clone(),
        workload,
        repetition: 0,
        load,
        proxies,
    })
}

async fn in_bed(
    bed: &mut Bed,
    workload: Workload,
    plan: &Plan,
) -> anyhow::Result<(Load, Option<Proxies>)> {
    prepare(bed, workload).await?;
    let Some(pids) = bed.proxies().map(|pair| pair.all()) else {
        load(bed, workload, plan, plan.warm_up).await?;
        return Ok((load(bed, workload, plan, plan.seconds).await?, None));
    };
    let mut figures = vec![Proxy::default(); pids.len()];
    // What starting took is not what an idle proxy needs.
    sleep(Duration::from_secs_f64(plan.settle)).await;
    for (proxy, pid) in figures.iter_mut().zip(&pids) {
        proxy.idle_kb = process::resident_kb(*pid)?;
    }
    load(bed, workload, plan, plan.warm_up)
        .await
        .context("warm-up")?;
    let before = counters(&pids)?;
    let (done, most) = watched(load(bed, workload, plan, plan.seconds), &pids).await;
    let (done, after) = (
        done?,
        counters(&pids).context("a proxy ended under the load")?,
    );
    sleep(Duration::from_secs_f64(plan.settle)).await;
    for (at, proxy) in figures.iter_mut().enumerate() {
        proxy.spent = after[at] - before[at];
        proxy.loaded_kb = most[at];
        proxy.after_kb = process::resident_kb(pids[at])?;
    }
    if let Some(strace) = &plan.strace {
        let calls = count_calls(bed, workload, plan, strace, &pids).await?;
        for (proxy, calls) in figures.iter_mut().zip(calls) {
            proxy.calls = calls;
        }
    }
    let mut figures = figures.into_iter();
    let client = figures.next().context("a pair without a client side")?;
    let server = Proxy::joined(figures);
    Ok((done, Some(Proxies { client, server })))
}

fn counters(pids: &[u32]) -> std::io::Result<Vec<Counters>> {
    pids.iter().map(|pid| process::counters(*pid)).collect()
}

/// Runs something while looking at the memory of some processes; the most each had, KiB.
async fn watched<T>(work: impl Future<Output = T>, pids: &[u32]) -> (T, Vec<u64>) {
    let (mut ticks, mut most) = (interval(LOOK), vec![0; pids.len()]);
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return (done, most),
            _ = ticks.tick() => {
                for (most, pid) in most.iter_mut().zip(pids) {
                    // A process that has gone is noticed when the load ends.
                    *most = process::resident_kb(*pid).unwrap_or(0).max(*most);
                }
            }
        }
    }
}

/// System calls of the proxies during a load apart, which the tracer slows.
async fn count_calls(
    bed: &Bed,
    workload: Workload,
    plan: &Plan,
    strace: &Path,
    pids: &[u32],
) -> anyhow::Result<Vec<Option<Counted>>> {
    let mut tracers = Vec::new();
    for pid in pids {
        tracers.push(Tracer::attach(strace, *pid).await?);
    }
    let done = load(bed, workload, plan, plan.warm_up.max(1.0)).await;
    let mut counted = Vec::new();
    for tracer in tracers {
        let calls = tracer.detach().await?;
        let units = done.as_ref().map_or(0.0, |load| load.units);
        counted.push((!calls.is_empty()).then_some(Counted { units, calls }));
    }
    done.context("while system calls are counted")?;
    Ok(counted)
}

/// Starts what a workload needs in the pods beside the application.
async fn prepare(bed: &mut Bed, workload: Workload) -> anyhow::Result<()> {
    match workload.generator() {
        Generator::Iperf => {
            let mut command = Command::new("iperf3");
            command.args(iperf::server_arguments(Protocol::Opaque.app_port()));
            bed.start(Pod::Server(0), command, "iperf3")?;
            sleep(Duration::from_millis(200)).await;
        }
        Generator::H2load { .. } => std::fs::write(bed.scratch()?.join("message"), GRPC_MESSAGE)?,
        Generator::Own(..) | Generator::Hold => {}
    }
    Ok(())
}

/// The load of a workload, for so many seconds.
async fn load(bed: &Bed, workload: Workload, plan: &Plan, seconds: f64) -> anyhow::Result<Load> {
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let (host, port) = bed.target(workload.protocol());
    match workload.generator() {
        Generator::H2load { load, path, body } => {
            let url = bed.url(workload.protocol(), path);
            let mut command = Command::new("h2load");
            command.args(load.arguments(&url, seconds, &bed.scratch()?.join("message")));
            let report = bed.output(Pod::Client, command, limit).await?;
            let summary = h2load::parse(&report, body as u64).context("h2load gives no report")?;
            anyhow::ensure!(
                summary.succeeded > 0,
                "no request succeeded, {} failed",
                summary.failed
            );
            let units = summary.succeeded as f64 * workload.units_each();
            Ok(Load {
                seconds: summary.seconds,
                units,
                failed: summary.failed,
                latency: None,
            })
        }
        Generator::Own(shape, connections) => {
            let rate = workload.is_rated().then_some(plan.rate);
            let services = workload.layout().services;
            let host = if services > 0 { "s*" } else { &host };
            let args = LoadArgs {
                shape,
                target: format!("{host}:{port}"),
                services,
                connections,
                rate,
                seconds,
            };
            let mut command = Command::new(bed.bench());
            command.args(args.arguments());
            let load: Load = serde_json::from_str(&bed.output(Pod::Client, command, limit).await?)?;
            anyhow::ensure!(
                load.units > 0.0,
                "no request succeeded, {} failed",
                load.failed
            );
            Ok(load)
        }
        Generator::Iperf => {
            let mut command = Command::new("iperf3");
            command.args(iperf::client_arguments(&host, port, seconds));
            let (bytes, seconds) = iperf::parse(&bed.output(Pod::Client, command, limit).await?)?;
            Ok(Load {
                seconds,
                units: bytes / 1e9,
                ..Load::default()
            })
        }
        Generator::Hold => anyhow::bail!("connections are held, not loaded"),
    }
}
