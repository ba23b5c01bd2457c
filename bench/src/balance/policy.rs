//! Owns the ways to choose a replica. Time and randomness are arguments.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weft_core::balance::{PeakEwma, choose};

/// Estimate of a replica that has not answered yet, and the decay of estimates (contract 4.4).
const DEFAULT_RTT: Duration = Duration::from_millis(30);
const DECAY: Duration = Duration::from_secs(10);
/// What a failure counts as with [`Policy::PenaltyPeakEwma`]: well above any answer, and forgotten within some decays.
const PENALTY: Duration = Duration::from_secs(5);

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The one with the fewest requests in flight, of all.
    LeastRequests,
    /// The one with the fewest requests in flight, of two.
    P2cLeastRequests,
    /// The one with the lower peak-EWMA load, of two: what Weft does.
    P2cPeakEwma,
    /// The same, a failure counting as a very slow answer.
    PenaltyPeakEwma,
}

/// All of them.
pub const POLICIES: [Policy; 6] = [
    Policy::RoundRobin,
    Policy::Random,
    Policy::LeastRequests,
    Policy::P2cLeastRequests,
    Policy::P2cPeakEwma,
    Policy::PenaltyPeakEwma,
];

impl Policy {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round robin",
            Policy::Random => "random",
            Policy::LeastRequests => "least requests",
            Policy::P2cLeastRequests => "p2c least requests",
            Policy::P2cPeakEwma => "p2c peak-EWMA (Weft)",
            Policy::PenaltyPeakEwma => "p2c penalty peak-EWMA",
        }
    }
}

/// A balancer of one client.
pub struct Balancer {
    policy: Policy,
    known: Vec<Known>,
    turn: usize,
}

/// What a balancer knows of a replica.
struct Known {
    in_flight: u32,
    estimate: PeakEwma,
}

impl Balancer {
    /// Without replicas.
    pub fn new(policy: Policy) -> Self {
        Balancer {
            policy,
            known: Vec::new(),
            turn: 0,
        }
    }

    /// A replica was found; its number is that of replicas found before.
    pub fn add(&mut self, now: Instant) {
        self.known.push(Known {
            in_flight: 0,
            estimate: PeakEwma::new(DEFAULT_RTT, DECAY, now),
        });
    }

    /// Chooses a replica for a request, which is in flight from now on. `None` without replicas.
    pub fn send(&mut self, random: u64, now: Instant) -> Option<usize> {
        let n = self.known.len();
        let known = &self.known;
        let requests = |at: usize| {
            known
                .get(at)
                .map_or(f64::MAX, |one| f64::from(one.in_flight))
        };
        let load = |at: usize| {
            known
                .get(at)
                .map_or(f64::MAX, |one| one.estimate.load(one.in_flight, now))
        };
        let chosen = match self.policy {
            Policy::RoundRobin => {
                self.turn = self.turn.wrapping_add(1);
                self.turn.checked_rem(n)
            }
            Policy::Random => usize::try_from(random).unwrap_or(usize::MAX).checked_rem(n),
            // From a random one on, since many clients would else agree on the first.
            Policy::LeastRequests => {
                let first = usize::try_from(random)
                    .unwrap_or(usize::MAX)
                    .checked_rem(n)?;
                let order = (first..n).chain(0..first);
                order.min_by_key(|at| known.get(*at).map(|one| one.in_flight))
            }
            Policy::P2cLeastRequests => choose(n, random, requests),
            Policy::P2cPeakEwma | Policy::PenaltyPeakEwma => choose(n, random, load),
        }?;
        self.known.get_mut(chosen)?.in_flight += 1;
        Some(chosen)
    }

    /// A request has been answered after `time`.
    pub fn answered(&mut self, replica: usize, time: Duration, failed: bool, now: Instant) {
        let Some(known) = self.known.get_mut(replica) else {
            return;
        };
        known.in_flight = known.in_flight.saturating_sub(1);
        let penalty = failed && self.policy == Policy::PenaltyPeakEwma;
        known
            .estimate
            .record(if penalty { time.max(PENALTY) } else { time }, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(policy: Policy, now: Instant) -> Balancer {
        let mut balancer = Balancer::new(policy);
        (0..3).for_each(|_| balancer.add(now));
        balancer
    }

    #[test]
    fn round_robin_takes_turns() {
        let now = Instant::now();
        let mut balancer = three(Policy::RoundRobin, now);
        let chosen: Vec<_> = (0..6).filter_map(|_| balancer.send(7, now)).collect();
        assert_eq!(chosen, [1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn least_requests_fills_all_before_it_doubles() {
        let now = Instant::now();
        let mut balancer = three(Policy::LeastRequests, now);
        let mut chosen: Vec<_> = (0..3).filter_map(|_| balancer.send(4, now)).collect();
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 2]);
    }

    #[test]
    fn a_failure_is_a_fast_answer_unless_it_is_punished() {
        let now = Instant::now();
        let share = |policy| {
            let mut balancer = three(policy, now);
            for replica in 0..3 {
                balancer.send(0, now);
                let time = Duration::from_millis(if replica == 0 { 1 } else { 40 });
                balancer.answered(replica, time, replica == 0, now);
            }
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            let mut hits = 0;
            for _ in 0..1000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let chosen = balancer.send(random, now).expect("there are three");
                hits += u32::from(chosen == 0);
                balancer.known[chosen].in_flight = 0;
            }
            hits
        };
        assert!(
            share(Policy::P2cPeakEwma) > 600,
            "two of three pairs have it, and it wins"
        );
        assert_eq!(share(Policy::PenaltyPeakEwma), 0);
    }

    #[test]
    fn without_replicas_there_is_no_choice() {
        for policy in POLICIES {
            assert_eq!(Balancer::new(policy).send(1, Instant::now()), None);
        }
    }
}
