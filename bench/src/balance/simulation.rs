//! Owns the run of a simulation: arrivals, replicas with workers and a queue. All chance comes from the
//! seed, all time from a queue of events. What is counted is in `tally`.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::Setting;
use super::chance::Chance;
use super::policy::{Balancer, Policy};
use super::scenario::{QUEUE, Scenario, WORKERS};
use super::tally::{Outcome, Tally};

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
                let (random, now) = (self.chance.number(), self.clock(time));
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

#[cfg(test)]
mod tests;
