//! Owns the scenarios with real pods: a proxy beside each replica and one beside the load, and requests that are due at a
//! fixed rate. The replicas are those of the simulation, in real time; who is chosen is seen in the metrics of the proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval};
use weft_cli::demo::scrape;

use super::policy::Policy;
use super::scenario::{CHANGE, Scenario};
use super::tally::{Outcome, STEPS, Tally};
use super::{Case, Setting};
use crate::bed::{Bed, Layout, Pod};
use crate::figures::Load;
use crate::load::LoadArgs;
use crate::load::shape::Shape;
use crate::peer::{Peer, Programs};
use crate::wiring::Protocol;

/// What is done with real pods.
pub const SCENARIOS: [Scenario; 2] = [Scenario::OneSlow, Scenario::OneFailing];
/// Connections of the load.
const CONNECTIONS: usize = 8;
/// Beyond the time of the load, until its generator is given up.
const SLACK: Duration = Duration::from_secs(20);

/// Runs a scenario.
///
/// # Errors
/// What does not start or does not answer.
pub async fn run(
    programs: &Programs,
    peer: &Peer,
    setting: &Setting,
    scenario: Scenario,
) -> anyhow::Result<Case> {
    let layout = Layout {
        replicas: setting.replicas,
        scenario: Some(scenario),
        ..Layout::default()
    };
    let bed = Bed::open(peer, programs, &layout).await?;
    let measured = in_bed(&bed, setting, scenario).await;
    let closed = bed.close().await;
    let outcome = measured?;
    closed?;
    Ok(Case {
        scenario,
        policy: Policy::P2cPeakEwma,
        real: true,
        outcome,
    })
}

async fn in_bed(bed: &Bed, setting: &Setting, scenario: Scenario) -> anyhow::Result<Outcome> {
    let mut tally = Tally::new(setting);
    let loads = async {
        load(bed, setting, CHANGE).await?;
        bed.change()?;
        load(bed, setting, f64::from(setting.seconds) - CHANGE).await
    };
    let loaded = tokio::select! {
        loaded = loads => loaded?,
        failed = watch(bed, &mut tally) => return Err(failed),
    };
    let outcome = tally.outcome(scenario, setting.replicas);
    Ok(Outcome {
        latency: loaded.latency.context("no request was answered")?,
        failed: loaded.failed as f64 / (loaded.units + loaded.failed as f64),
        ..outcome
    })
}

async fn load(bed: &Bed, setting: &Setting, seconds: f64) -> anyhow::Result<Load> {
    let (host, port) = bed.target(Protocol::Http2);
    let args = LoadArgs {
        shape: Shape::Http2,
        target: format!("{host}:{port}"),
        services: 1,
        connections: CONNECTIONS,
        rate: Some(setting.rate as u32),
        seconds,
    };
    let mut command = Command::new(bed.bench());
    command.args(args.arguments());
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let text = bed.output(Pod::Client, command, limit).await?;
    Ok(serde_json::from_str(&text)?)
}

/// Counts the requests of each replica in each second; ends only if the proxy does not answer.
async fn watch(bed: &Bed, tally: &mut Tally) -> anyhow::Error {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = BTreeMap::new();
    for second in -1_i32.. {
        ticks.tick().await;
        let now = match bed.client_metrics().await {
            Ok(text) => requests(&text),
            Err(error) => return error,
        };
        // The first look only tells where to count from.
        if second >= 0 {
            for (replica, count) in &now {
                let grown = count.saturating_sub(before.get(replica).copied().unwrap_or(0));
                spread(tally, f64::from(second), *replica, grown);
            }
        }
        before = now;
    }
    anyhow::anyhow!("the time is over")
}

/// The requests of a second, evenly over it: more is not known.
fn spread(tally: &mut Tally, second: f64, replica: usize, requests: u64) {
    for number in 0..requests {
        let step = number as f64 * STEPS as f64 / requests as f64;
        tally.sent(second + step.floor() / STEPS as f64 + 0.01, replica);
    }
}

/// Requests so far that the proxy has sent to each replica.
fn requests(metrics: &str) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    for sample in scrape::parse(metrics) {
        if sample.name != "request_total" || sample.label("direction") != "outbound" {
            continue;
        }
        let replica = match sample.label("dst_pod").strip_prefix("app") {
            Some("") => Some(0),
            Some(more) => more.strip_prefix('-').and_then(|n| n.parse().ok()),
            None => None,
        };
        if let Some(replica) = replica {
            *counts.entry(replica).or_default() += sample.value as u64;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_for_each_replica() {
        let text = r#"
request_total{direction="outbound",authority="a",dst_pod="app"} 5
request_total{direction="outbound",authority="b",dst_pod="app"} 2
request_total{direction="outbound",dst_pod="app-3"} 4
request_total{direction="inbound",dst_pod="app-3"} 9
request_total{direction="outbound",dst_pod="other"} 1
"#;
        assert_eq!(requests(text), BTreeMap::from([(0, 7), (3, 4)]));
    }

    #[test]
    fn a_second_is_spread_over_its_steps() {
        let setting = Setting {
            seed: 1,
            seconds: 30,
            replicas: 2,
            rate: 10.0,
        };
        let mut tally = Tally::new(&setting);
        for second in 0..30 {
            let few = if second < 15 { 20 } else { 0 };
            spread(&mut tally, f64::from(second), 0, few);
            spread(&mut tally, f64::from(second), 1, 20);
        }
        let outcome = tally.outcome(Scenario::OneSlow, 2);
        let divert = outcome.divert.expect("it got nothing at last");
        assert!((4.5..5.0).contains(&divert), "{divert}");
        assert_eq!((outcome.shares[14], outcome.shares[15]), (0.5, 0.0));
    }
}
