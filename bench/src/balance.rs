//! Owns `weft-bench balance`: a simulation of choosing replicas, by a seed and with a clock of its own, whose rules of Weft
//! are those of `weft_core::balance`; and, if asked for, the same with real pods ([`pods`]).

pub mod chance;
pub mod pods;
pub mod policy;
pub mod report;
pub mod scenario;
pub mod simulation;
pub mod tally;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::peer::Programs;
use crate::{results, run};
use policy::{POLICIES, Policy};
use report::Part;
use scenario::{SCENARIOS, Scenario};
use simulation::simulate;
use tally::Outcome;

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
    /// Real pods as replicas, too: one slow, and one failing, each for the same time; needs root
    #[arg(long, value_name = "REPLICAS")]
    pub pods: Option<usize>,
    /// Folder of weft and weft-proxy; by default that of this program
    #[arg(long)]
    pub bin_dir: Option<PathBuf>,
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
    /// With real pods.
    pub real: bool,
    /// What came of it.
    pub outcome: Outcome,
}

impl Case {
    /// Its name in tables and plots.
    pub fn name(&self) -> String {
        let pods = if self.real { ", real pods" } else { "" };
        format!("{}{pods}", self.policy.name())
    }
}

/// Simulates everything, then lets pods run, and writes the results.
///
/// # Errors
/// Arguments without sense, those of the file system, or pods that do not start.
pub async fn run(args: BalanceArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.seconds > 20 && args.replicas >= 2 && args.pods.is_none_or(|pods| pods >= 2),
        "at least 21 seconds and 2 replicas are needed"
    );
    anyhow::ensure!(
        (0.01..1.0).contains(&args.utilization),
        "--utilization is a share between 0.01 and 1"
    );
    let setting = |replicas| Setting {
        seed: args.seed,
        seconds: args.seconds,
        replicas,
        rate: scenario::CAPACITY * replicas as f64 * args.utilization,
    };
    let simulated = setting(args.replicas);
    let mut parts = vec![Part {
        title: "Balancing, simulated".to_owned(),
        cases: all(&simulated),
        setting: simulated,
    }];
    if let Some(pods) = args.pods {
        parts.push(with_pods(&args, setting(pods)).await?);
    }
    let folder = args
        .output
        .clone()
        .map_or_else(|| results::dated("-balance"), Ok)?;
    results::write(
        &folder,
        &[
            ("runs.json", serde_json::to_string_pretty(&parts)? + "\n"),
            ("summary.md", report::markdown(&parts)),
            ("report.html", report::html(&parts)),
        ],
    )?;
    println!(
        "{}written to {}",
        report::markdown(&parts),
        folder.display()
    );
    Ok(())
}

/// Real pods, and beside them the simulation of as many replicas.
async fn with_pods(args: &BalanceArgs, setting: Setting) -> anyhow::Result<Part> {
    let programs = Programs::find(&run::own_folder(args.bin_dir.clone())?, None);
    let peer = programs.peer("weft")?;
    let mut cases: Vec<Case> = all(&setting)
        .into_iter()
        .filter(|case| pods::SCENARIOS.contains(&case.scenario))
        .collect();
    for scenario in pods::SCENARIOS {
        eprintln!(
            "{} s with pods: {}",
            setting.seconds,
            scenario.description()
        );
        let case = pods::run(&programs, &peer, &setting, scenario);
        cases.push(tokio::select! {
            case = case => case?,
            signal = weft_runtime::process::terminated() => anyhow::bail!("ended by {signal}"),
        });
    }
    Ok(Part {
        title: "Balancing with real pods".to_owned(),
        setting,
        cases,
    })
}

/// All policies in all scenarios. The origin of the clock does not matter: only differences are used.
pub fn all(setting: &Setting) -> Vec<Case> {
    let origin = Instant::now();
    let policies = |scenario| POLICIES.iter().map(move |policy| (scenario, *policy));
    let pairs = SCENARIOS.iter().copied().flat_map(policies);
    let case = |(scenario, policy)| Case {
        scenario,
        policy,
        real: false,
        outcome: simulate(setting, scenario, policy, origin),
    };
    pairs.map(case).collect()
}
