//! Owns `weft-bench balance`: a simulation of choosing replicas, by a seed and with a clock of its own. It opens no socket
//! and waits for nothing; the rules of Weft in it are those of `weft_core::balance`.

pub mod policy;
pub mod report;
pub mod scenario;
pub mod simulation;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::results;
use policy::{POLICIES, Policy};
use scenario::{SCENARIOS, Scenario};
use simulation::{Outcome, simulate};

/// Arguments of `weft-bench balance`.
#[derive(Args, Clone, Debug)]
pub struct BalanceArgs {
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Simulated seconds of each run; what a scenario is about begins after ten
    #[arg(long, default_value_t = 60)]
    pub seconds: u32,
    /// Replicas
    #[arg(long, default_value_t = 10)]
    pub replicas: usize,
    /// Share of their capacity that is asked for, while all are well
    #[arg(long, default_value_t = 0.5)]
    pub utilization: f64,
    /// Folder for the results; by default bench/results/DATE-TIME-balance
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// What all runs of a simulation have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Seed of all chance.
    pub seed: u64,
    /// Simulated seconds.
    pub seconds: u32,
    /// Replicas at first.
    pub replicas: usize,
    /// Requests a second.
    pub rate: f64,
}

/// One policy in one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What happens to the replicas.
    pub scenario: Scenario,
    /// Who is chosen.
    pub policy: Policy,
    /// What came of it.
    pub outcome: Outcome,
}

/// Simulates everything and writes the results.
///
/// # Errors
/// Arguments without sense, or those of the file system.
pub fn run(args: &BalanceArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.seconds > 20 && args.replicas >= 2,
        "at least 21 seconds and 2 replicas are needed"
    );
    anyhow::ensure!(
        (0.01..1.0).contains(&args.utilization),
        "--utilization is a share between 0.01 and 1"
    );
    let rate = scenario::CAPACITY * args.replicas as f64 * args.utilization;
    let setting = Setting {
        seed: args.seed,
        seconds: args.seconds,
        replicas: args.replicas,
        rate,
    };
    let cases = all(&setting);
    let folder = args
        .output
        .clone()
        .map_or_else(|| results::dated("-balance"), Ok)?;
    results::write(
        &folder,
        &[
            (
                "runs.json",
                serde_json::to_string_pretty(&(setting, &cases))? + "\n",
            ),
            ("summary.md", report::markdown(&setting, &cases)),
            ("report.html", report::html(&setting, &cases)),
        ],
    )?;
    println!(
        "{}written to {}",
        report::markdown(&setting, &cases),
        folder.display()
    );
    Ok(())
}

/// All policies in all scenarios. The origin of the clock does not matter: only differences are used.
pub fn all(setting: &Setting) -> Vec<Case> {
    let origin = Instant::now();
    let policies = |scenario| POLICIES.iter().map(move |policy| (scenario, *policy));
    let pairs = SCENARIOS.iter().copied().flat_map(policies);
    let case = |(scenario, policy)| Case {
        scenario,
        policy,
        outcome: simulate(setting, scenario, policy, origin),
    };
    pairs.map(case).collect()
}
