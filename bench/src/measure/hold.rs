//! Owns measuring what connections without traffic cost in memory.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::{Plan, counters};
use crate::bed::{self, Bed, Pod};
use crate::figures::{Load, Proxies, Proxy};
use crate::process::resident_kb;
use crate::workload::Workload;

/// Longest wait until all connections are there.
const OPEN: Duration = Duration::from_secs(120);

/// Opens the connections, waits, looks at the memory, closes them, waits, looks again.
pub(super) async fn held(
    bed: &mut Bed,
    workload: Workload,
    plan: &Plan,
) -> anyhow::Result<(Load, Proxies)> {
    let pair = bed
        .proxies()
        .context("a peer without proxies holds nothing")?;
    let pids = pair.all();
    let (pod, command) = command(bed, workload, plan).await?;
    let mut figures = [Proxy::default(), Proxy::default()];
    for (proxy, pid) in figures.iter_mut().zip(&pids) {
        proxy.idle_kb = resident_kb(*pid)?;
    }
    let (before, begin) = (counters(&pids)?, Instant::now());
    let mut child = bed.spawn_piped(pod, command)?;
    let output = child.stdout.take().context("a child without output")?;
    let line = timeout(OPEN, BufReader::new(output).lines().next_line()).await;
    let line = line.with_context(|| format!("the connections are not there after {OPEN:?}"))??;
    let opened: usize = line
        .context("the connections cannot be opened")?
        .trim()
        .parse()?;
    ensure!(
        opened == plan.connections,
        "{opened} of {} connections",
        plan.connections
    );
    let seconds = begin.elapsed().as_secs_f64();
    let after = counters(&pids)?;
    sleep(Duration::from_secs_f64(plan.settle.max(1.0))).await;
    for (at, proxy) in figures.iter_mut().enumerate() {
        proxy.spent = after[at] - before[at];
        proxy.loaded_kb = resident_kb(pids[at])?;
    }
    bed::end(&mut child).await;
    sleep(Duration::from_secs_f64(plan.settle.max(1.0))).await;
    for (proxy, pid) in figures.iter_mut().zip(&pids) {
        proxy.after_kb = resident_kb(*pid)?;
    }
    let [client, server] = figures;
    Ok((
        Load {
            seconds,
            units: opened as f64,
            ..Load::default()
        },
        Proxies { client, server },
    ))
}

/// The program that holds, and where it is started.
async fn command(bed: &mut Bed, workload: Workload, plan: &Plan) -> anyhow::Result<(Pod, Command)> {
    let mut command = Command::new(bed.bench());
    command
        .arg("hold")
        .arg(format!("--connections={}", plan.connections));
    if workload != Workload::IdleHttp2 {
        let (host, port) = bed.target(workload.protocol());
        command.arg(format!("--target={host}:{port}"));
        return Ok((Pod::Client, command));
    }
    bed.open_outside().await?;
    let wiring = bed.wiring();
    command
        .arg("--tls")
        .arg(format!("--target={}", bed.server_side(workload.protocol())));
    command
        .arg("--chain")
        .arg(&wiring.client_leaf.chain)
        .arg("--key")
        .arg(&wiring.client_leaf.key);
    command
        .arg("--anchors")
        .arg(&wiring.anchors)
        .arg("--name")
        .arg(&wiring.client_leaf.name);
    command.arg("--server-name").arg(&wiring.server_leaf.name);
    Ok((Pod::Outside, command))
}
