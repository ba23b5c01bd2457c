//! Tests of the simulation: the same seed gives the same run, and known facts of queues come out.

use super::super::policy::POLICIES;
use super::super::scenario::{CAPACITY, SCENARIOS, WORK};
use super::*;

fn setting(seed: u64) -> Setting {
    Setting {
        seed,
        seconds: 30,
        replicas: 4,
        rate: CAPACITY * 4.0 * 0.4,
    }
}

#[test]
fn the_same_seed_is_the_same_run_at_any_time() {
    let (early, late) = (Instant::now(), Instant::now() + Duration::from_secs(12_345));
    for policy in POLICIES {
        let run = |seed, origin| simulate(&setting(seed), Scenario::OneSlow, policy, origin);
        assert_eq!(run(7, early), run(7, late), "{policy:?}");
        assert_ne!(run(7, early), run(8, early), "{policy:?}");
    }
}

#[test]
fn without_a_change_all_get_the_same() {
    for policy in POLICIES {
        let outcome = simulate(&setting(1), Scenario::Equal, policy, Instant::now());
        assert!(outcome.imbalance < 1.1, "{policy:?}: {}", outcome.imbalance);
        assert_eq!((outcome.failed, outcome.divert), (0.0, None));
        let p50 = outcome.latency.p50_us as f64 / 1e6;
        // The median of an exponential distribution is ln 2 of its mean; waiting adds some.
        assert!(
            (WORK * 0.69..WORK * 1.5).contains(&p50),
            "{policy:?}: {p50}"
        );
    }
}

#[test]
fn a_slow_replica_is_left_by_all_that_look() {
    let outcome = |policy| simulate(&setting(3), Scenario::OneSlow, policy, Instant::now());
    assert_eq!(outcome(Policy::RoundRobin).divert, None);
    for policy in [
        Policy::LeastRequests,
        Policy::P2cLeastRequests,
        Policy::P2cPeakEwma,
    ] {
        assert!(
            outcome(policy).divert.is_some_and(|seconds| seconds < 3.0),
            "{policy:?}"
        );
    }
    assert!(outcome(Policy::P2cPeakEwma).share < outcome(Policy::P2cLeastRequests).share);
}

#[test]
fn every_request_is_answered_or_under_way() {
    for scenario in SCENARIOS {
        let outcome = simulate(&setting(5), scenario, Policy::P2cPeakEwma, Instant::now());
        assert!(
            outcome.latency.p50_us > 0 && outcome.shares.len() == 30,
            "{scenario:?}"
        );
    }
}

#[test]
fn chance_is_even() {
    let mut chance = Chance(1);
    let mean = (0..10_000).map(|_| chance.exponential(2.0)).sum::<f64>() / 10_000.0;
    assert!((1.9..2.1).contains(&mean), "{mean}");
}
