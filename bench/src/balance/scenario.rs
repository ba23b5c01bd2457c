//! Owns what happens to replicas in the simulation, as a function of the simulated time. No state.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Mean time a healthy replica works on a request, s.
pub const WORK: f64 = 0.010;
/// Requests a replica works on at once; others wait.
pub const WORKERS: usize = 4;
/// Requests that may wait at a replica; it refuses more.
pub const QUEUE: usize = 1000;
/// Requests a second that a healthy replica can answer.
pub const CAPACITY: f64 = WORKERS as f64 / WORK;
/// When it happens, s.
pub const CHANGE: f64 = 10.0;
/// How long a replica that has just started is slow, s; then it becomes normal over the same time.
const COLD: f64 = 5.0;

/// What happens.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Nothing.
    Equal,
    /// One replica takes 20 times as long.
    OneSlow,
    /// One replica answers each request at once, with an error.
    OneFailing,
    /// One replica is added that takes 20 times as long at first.
    ColdStart,
    /// Half of the replicas take three times as long.
    HalfSlowed,
}

/// All of them.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario::Equal,
    Scenario::OneSlow,
    Scenario::OneFailing,
    Scenario::ColdStart,
    Scenario::HalfSlowed,
];

/// How a replica is at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Health {
    /// Mean time it works on a request, s.
    pub work: f64,
    /// Its answers are errors.
    pub fails: bool,
}

impl Scenario {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// What it is, in a few words.
    pub fn description(self) -> &'static str {
        match self {
            Scenario::Equal => "all equal",
            Scenario::OneSlow => "one replica becomes 20 times slower",
            Scenario::OneFailing => "one replica fails all requests, fast",
            Scenario::ColdStart => "one replica is added and is 20 times slower at first",
            Scenario::HalfSlowed => "half of the replicas become 3 times slower",
        }
    }

    /// When a replica can be chosen from, s.
    pub fn joins(self, replica: usize) -> f64 {
        if self == Scenario::ColdStart && replica == 0 {
            CHANGE
        } else {
            0.0
        }
    }

    /// Whether something happens to a replica.
    pub fn affects(self, replica: usize) -> bool {
        match self {
            Scenario::Equal => false,
            Scenario::OneSlow | Scenario::OneFailing | Scenario::ColdStart => replica == 0,
            Scenario::HalfSlowed => replica.is_multiple_of(2),
        }
    }

    /// How a replica is at `time`, s.
    pub fn health(self, replica: usize, time: f64) -> Health {
        let healthy = Health {
            work: WORK,
            fails: false,
        };
        if !self.affects(replica) || time < CHANGE {
            return healthy;
        }
        match self {
            Scenario::Equal => healthy,
            Scenario::OneSlow => Health {
                work: WORK * 20.0,
                ..healthy
            },
            Scenario::OneFailing => Health {
                work: WORK / 10.0,
                fails: true,
            },
            Scenario::ColdStart => {
                let warm = ((time - CHANGE - COLD) / COLD).clamp(0.0, 1.0);
                Health {
                    work: WORK * (20.0 - 19.0 * warm),
                    ..healthy
                }
            }
            Scenario::HalfSlowed => Health {
                work: WORK * 3.0,
                ..healthy
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_happens_before_its_time_or_to_others() {
        for scenario in SCENARIOS {
            for (replica, time) in [(0, 9.9), (1, 30.0)] {
                let health = scenario.health(replica, time);
                assert_eq!((health.work, health.fails), (WORK, false), "{scenario:?}");
            }
        }
    }

    #[test]
    fn a_cold_replica_warms_up() {
        let work = |time| Scenario::ColdStart.health(0, time).work / WORK;
        assert_eq!(
            (work(11.0), work(17.5).round(), work(20.0)),
            (20.0, 11.0, 1.0)
        );
    }
}
