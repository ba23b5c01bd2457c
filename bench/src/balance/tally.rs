//! Owns what is counted of a run, simulated or real, and what comes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Setting;
use super::scenario::{CHANGE, Scenario};
use crate::stats::Percentiles;

/// What came of a run; all but the shares is counted from the change on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Times of good answers.
    pub latency: Percentiles,
    /// Share of requests that failed.
    pub failed: f64,
    /// Share of requests that went to affected replicas.
    pub share: f64,
    /// The share they would have if all got the same.
    pub fair_share: f64,
    /// Requests of the busiest replica divided by the mean.
    pub imbalance: f64,
    /// Seconds from the change until affected replicas got less than half of their fair share for a second; `None` if never.
    pub divert: Option<f64>,
    /// Share of affected replicas in each second.
    pub shares: Vec<f64>,
}

/// What is counted.
#[derive(Debug)]
pub struct Tally {
    /// Requests of each replica in each tenth of a second.
    sent: Vec<Vec<u32>>,
    times_us: Vec<u64>,
    failed: u64,
}

/// Steps in which requests are counted, a second.
pub const STEPS: usize = 10;

impl Tally {
    /// Nothing yet.
    pub fn new(setting: &Setting) -> Self {
        let steps = setting.seconds as usize * STEPS;
        Tally {
            sent: vec![vec![0; setting.replicas]; steps],
            times_us: Vec::new(),
            failed: 0,
        }
    }

    /// A request goes to a replica.
    pub fn sent(&mut self, time: f64, replica: usize) {
        let step = (time * STEPS as f64) as usize;
        if let Some(count) = self
            .sent
            .get_mut(step)
            .and_then(|step| step.get_mut(replica))
        {
            *count += 1;
        }
    }

    /// A request that came at `began`, s, has been answered.
    pub fn answered(&mut self, began: f64, took: Duration, fails: bool) {
        if began < CHANGE {
            return;
        }
        if fails {
            self.failed += 1;
        } else {
            self.times_us
                .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// What came of it.
    pub fn outcome(self, scenario: Scenario, replicas: usize) -> Outcome {
        let change = CHANGE as usize * STEPS;
        let affected: Vec<usize> = (0..replicas)
            .filter(|replica| scenario.affects(*replica))
            .collect();
        let fair_share = affected.len() as f64 / replicas as f64;
        let share = |steps: &[Vec<u32>]| {
            let all: u32 = steps.iter().flatten().sum();
            let own: u32 = steps
                .iter()
                .flat_map(|step| affected.iter().filter_map(|at| step.get(*at)))
                .sum();
            if all == 0 {
                0.0
            } else {
                f64::from(own) / f64::from(all)
            }
        };
        let after = self.sent.get(change..).unwrap_or_default();
        let diverted = after
            .windows(STEPS)
            .position(|second| share(second) < fair_share / 2.0);
        let each: Vec<f64> = (0..replicas)
            .map(|at| {
                after
                    .iter()
                    .filter_map(|step| step.get(at))
                    .map(|n| f64::from(*n))
                    .sum()
            })
            .collect();
        let mean = each.iter().sum::<f64>() / replicas as f64;
        let answered = self.times_us.len() as u64 + self.failed;
        Outcome {
            failed: self.failed as f64 / answered.max(1) as f64,
            latency: Percentiles::of(self.times_us).unwrap_or_default(),
            share: share(after),
            fair_share,
            imbalance: each.iter().fold(0.0, |most: f64, n| most.max(*n)) / mean,
            divert: diverted
                .filter(|_| !affected.is_empty())
                .map(|steps| steps as f64 / STEPS as f64),
            shares: self.sent.chunks(STEPS).map(share).collect(),
        }
    }
}
