//! How much memory a proxy needs with nothing to do, and with many connections that do nothing. Release builds only: others
//! say nothing of it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use weft_cli::local::Tuning;
use weft_e2e::{Manifests, Node, mesh_with, skip};

/// KiB of an idle proxy.
const IDLE: u64 = 8 << 10;
/// KiB of a proxy that has served a connection and is idle again.
const USED: u64 = 10 << 10;
/// Connections, and KiB of a proxy that has them.
const MANY: (u64, u64) = (10_000, 64 << 10);
/// Fewer say too little.
const FEW: u64 = 5_000;
/// Descriptors of a proxy beside the two of each connection.
const SPARE: u64 = 100;
/// Handshakes at the same time.
const AT_ONCE: usize = 64;
/// Neither HTTP nor TLS.
const PING: &[u8] = b"\0ping";

/// Whether the proxy is a release build; otherwise the test is skipped.
async fn released(node: &Node) -> anyhow::Result<bool> {
    let release = node
        .metrics()
        .await?
        .find("proxy_build_info", &[("profile", "release")])
        .next()
        .is_some();
    if !release {
        skip("the proxy is no release build: run `make build` and set WEFT_BIN_DIR");
    }
    Ok(release)
}

fn say(text: &str) {
    // Not by `println`, which is swallowed for tests that pass.
    let _ = writeln!(std::io::stderr(), "MEASURED {text}");
}

/// Samples, a second apart.
const SAMPLES: usize = 7;
/// Time in which a proxy gives back what it needed for a moment; it sweeps every 5 s.
const SWEPT: Duration = Duration::from_secs(6);

/// Resident memory of both once it has settled: the median of some seconds, since a scrape or an expiry needs code that
/// stays until the next sweep.
async fn settled(a: &Node, b: &Node) -> anyhow::Result<(u64, u64)> {
    sleep(SWEPT).await;
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        sleep(Duration::from_secs(1)).await;
        of_a.push(a.proxy_memory().await?);
        of_b.push(b.proxy_memory().await?);
    }
    let median = |mut samples: Vec<u64>| {
        samples.sort_unstable();
        samples.get(SAMPLES / 2).copied().context("no samples")
    };
    Ok((median(of_a)?, median(of_b)?))
}

fn manifests() -> Manifests {
    let opaque = [("config.linkerd.io/opaque-ports", "9000")];
    let service = Manifests::default().annotated_service("tcp", &[(9000, 9000)], &opaque);
    service
        .annotated_pod("tcp", &[9000], &opaque)
        .pod("client", &[])
}

#[test]
fn an_idle_proxy_needs_at_most_8_mb() {
    mesh_with(Tuning::default(), manifests(), async |net| {
        let (tcp, client) = (net.start("tcp").await?, net.start("client").await?);
        if !released(&client).await? {
            return Ok(());
        }
        let (out, inn) = settled(&client, &tcp).await?;
        say(&format!(
            "idle resident memory: {out} KiB (client's proxy), {inn} KiB (server's proxy)"
        ));
        ensure!(out <= IDLE && inn <= IDLE, "{out} and {inn} of {IDLE} KiB");
        let _echo = tcp.peer("echo", 9000, &[]).await?;
        let mut wire = client.connect("tcp:9000").await?;
        wire.send(PING).await?;
        wire.exactly(PING.len()).await?;
        drop(wire);
        let (out, inn) = settled(&client, &tcp).await?;
        say(&format!(
            "after a first connection: {out} KiB (client's proxy), {inn} KiB (server's proxy)"
        ));
        ensure!(out <= USED && inn <= USED, "{out} and {inn} of {USED} KiB");
        Ok(())
    });
}

/// Connections that the limit of open files lets a proxy have, `MANY` at most, after raising it as far as it goes.
fn possible() -> anyhow::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = 2 * MANY.0 + SPARE;
    // Beyond the hard limit only with CAP_SYS_RESOURCE.
    if hard < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        return Ok(MANY.0);
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(MANY.0.min(hard.saturating_sub(SPARE) / 2))
}

#[test]
fn ten_thousand_idle_connections_need_at_most_64_mb() {
    let count = possible().expect("limits can be read");
    if count < FEW {
        return skip(&format!(
            "only {count} connections are possible: raise the hard limit of open files (ulimit -Hn)"
        ));
    }
    mesh_with(Tuning::default(), manifests(), async |net| {
        let (tcp, client) = (net.start("tcp").await?, net.start("client").await?);
        if !released(&client).await? {
            return Ok(());
        }
        let _echo = tcp.peer("echo", 9000, &[]).await?;
        let before = settled(&client, &tcp).await?;
        let (places, mut tasks, mut wires) = (
            Arc::new(Semaphore::new(AT_ONCE)),
            JoinSet::new(),
            Vec::new(),
        );
        for _ in 0..count {
            let place = Arc::clone(&places).acquire_owned().await?;
            let mut wire = client
                .connect("tcp:9000")
                .await?
                .patient(Duration::from_secs(20));
            tasks.spawn(async move {
                wire.send(PING).await?;
                ensure!(wire.exactly(PING.len()).await? == PING, "the echo differs");
                drop(place);
                Ok(wire)
            });
            while let Some(wire) = tasks.try_join_next() {
                wires.push(wire??);
            }
        }
        while let Some(wire) = tasks.join_next().await {
            wires.push(wire??);
        }
        let labels = [
            ("peer", "src"),
            ("direction", "inbound"),
            ("tls", "true"),
            ("target_port", "9000"),
        ];
        let open = tcp.metrics().await?.sum("tcp_open_connections", &labels);
        ensure!(
            open as u64 == count,
            "{open} of {count} connections are open"
        );
        let after = settled(&client, &tcp).await?;
        say(&format!(
            "{count} idle opaque connections over mutual TLS: {} KiB (client's proxy, {} before), {} KiB (server's, {} before)",
            after.0, before.0, after.1, before.1
        ));
        // Where fewer are possible, the bar is lower.
        let bar = MANY.1 * count / MANY.0;
        ensure!(after.0 <= bar && after.1 <= bar, "{after:?} of {bar} KiB");
        let mut last = wires.pop().context("there are many")?;
        last.send(PING).await?;
        ensure!(
            last.exactly(PING.len()).await? == PING,
            "an idle connection is of use"
        );
        Ok(())
    });
}
