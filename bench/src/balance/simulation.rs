//! Owns the run of a simulation: arrivals, replicas with workers and a queue, and what is counted. All chance comes from the
//! seed, all time from a queue of events.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Setting;
use super::policy::{Balancer, Policy};
use super::scenario::{CHANGE, QUEUE, Scenario, WORKERS};
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

/// Random numbers by SplitMix64 (Steele, Lea, Flood 2014): small, seedable, the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Exponentially distributed with this mean.
    fn exponential(&mut self, mean: f64) -> f64 {
        // 53 bits, and never zero.
        let unit = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        -unit.ln() * mean
    }
}

/// Something that happens at a time; ties in the order in which they were planned.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Event {
    time: f64,
    number: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Arrival,
    Join,
    Done {
        replica: usize,
        began: f64,
        fails: bool,
    },
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time
            .total_cmp(&other.time)
            .then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One replica: how many it works on, and when those arrived that wait.
#[derive(Default)]
struct Replica {
    busy: usize,
    waiting: VecDeque<f64>,
}

struct Simulation {
    scenario: Scenario,
    origin: Instant,
    chance: Chance,
    events: BinaryHeap<Reverse<Event>>,
    planned: u64,
    balancer: Balancer,
    replicas: Vec<Replica>,
    /// Number of the replica with this number in the balancer: those that join late come last.
    order: Vec<usize>,
    tally: Tally,
}

/// Runs one policy in one scenario. The same arguments give the same outcome, whatever `origin` is.
pub fn simulate(setting: &Setting, scenario: Scenario, policy: Policy, origin: Instant) -> Outcome {
    let count = setting.replicas;
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| scenario.joins(*a).total_cmp(&scenario.joins(*b)));
    let mut run = Simulation {
        scenario,
        origin,
        chance: Chance(setting.seed),
        events: BinaryHeap::new(),
        planned: 0,
        balancer: Balancer::new(policy),
        replicas: (0..count).map(|_| Replica::default()).collect(),
        tally: Tally::new(setting),
        order,
    };
    for replica in run.order.clone() {
        run.plan(scenario.joins(replica), What::Join);
    }
    run.plan(0.0, What::Arrival);
    let end = f64::from(setting.seconds);
    while let Some(Reverse(event)) = run.events.pop() {
        if event.time >= end {
            break;
        }
        run.happen(event, 1.0 / setting.rate);
    }
    run.tally.outcome(scenario, count)
}

impl Simulation {
    fn plan(&mut self, time: f64, what: What) {
        self.planned += 1;
        self.events.push(Reverse(Event {
            time,
            number: self.planned,
            what,
        }));
    }

    fn clock(&self, time: f64) -> Instant {
        self.origin + Duration::from_secs_f64(time)
    }

    fn happen(&mut self, event: Event, pause: f64) {
        let Event { time, what, .. } = event;
        match what {
            What::Join => self.balancer.add(self.clock(time)),
            What::Arrival => {
                let next = time + self.chance.exponential(pause);
                self.plan(next, What::Arrival);
                let (random, now) = (self.chance.next(), self.clock(time));
                if let Some(&replica) = self
                    .balancer
                    .send(random, now)
                    .and_then(|at| self.order.get(at))
                {
                    self.tally.sent(time, replica);
                    self.arrive(replica, time);
                }
            }
            What::Done {
                replica,
                began,
                fails,
            } => {
                let waiting = self.replicas.get_mut(replica).and_then(|one| {
                    one.busy = one.busy.saturating_sub(1);
                    one.waiting.pop_front()
                });
                self.answer(replica, began, time, fails);
                if let Some(began) = waiting {
                    self.work(replica, began, time);
                }
            }
        }
    }

    fn arrive(&mut self, replica: usize, time: f64) {
        let Some(one) = self.replicas.get_mut(replica) else {
            return;
        };
        if one.busy < WORKERS {
            self.work(replica, time, time);
        } else if one.waiting.len() < QUEUE {
            one.waiting.push_back(time);
        } else {
            self.answer(replica, time, time, true);
        }
    }

    /// A worker takes a request that arrived at `began`.
    fn work(&mut self, replica: usize, began: f64, time: f64) {
        if let Some(one) = self.replicas.get_mut(replica) {
            one.busy += 1;
        }
        let health = self.scenario.health(replica, time);
        let done = time + self.chance.exponential(health.work);
        self.plan(
            done,
            What::Done {
                replica,
                began,
                fails: health.fails,
            },
        );
    }

    fn answer(&mut self, replica: usize, began: f64, time: f64, fails: bool) {
        let took = Duration::from_secs_f64((time - began).max(0.0));
        if let Some(at) = self.order.iter().position(|one| *one == replica) {
            let now = self.clock(time);
            self.balancer.answered(at, took, fails, now);
        }
        self.tally.answered(began, took, fails);
    }
}

/// What is counted.
struct Tally {
    /// Requests of each replica in each tenth of a second.
    sent: Vec<Vec<u32>>,
    times_us: Vec<u64>,
    failed: u64,
}

/// Steps in which requests are counted, a second.
const STEPS: usize = 10;

impl Tally {
    fn new(setting: &Setting) -> Self {
        let steps = setting.seconds as usize * STEPS;
        Tally {
            sent: vec![vec![0; setting.replicas]; steps],
            times_us: Vec::new(),
            failed: 0,
        }
    }

    fn sent(&mut self, time: f64, replica: usize) {
        let step = (time * STEPS as f64) as usize;
        if let Some(count) = self
            .sent
            .get_mut(step)
            .and_then(|step| step.get_mut(replica))
        {
            *count += 1;
        }
    }

    fn answered(&mut self, began: f64, took: Duration, fails: bool) {
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

    fn outcome(self, scenario: Scenario, replicas: usize) -> Outcome {
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

#[cfg(test)]
mod tests;
