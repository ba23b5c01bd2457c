//! The estimate against its bounds, and the choices against the frequencies they promise.

use proptest::prelude::*;

use super::*;

const DEFAULT_RTT: Duration = Duration::from_millis(30);
const DECAY: Duration = Duration::from_secs(10);

/// A fixed series of well-mixed numbers (splitmix64), so that frequencies are the same in each run.
fn random_numbers(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 0u64;
    std::iter::from_fn(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    })
    .take(count)
}

fn millis(rtt: Duration) -> f64 {
    rtt.as_secs_f64() * 1000.0
}

#[test]
fn a_slow_sample_counts_at_once_and_fades() {
    let start = Instant::now();
    let mut ewma = PeakEwma::new(DEFAULT_RTT, DECAY, start);
    ewma.record(Duration::from_millis(400), start);
    assert_eq!(ewma.estimate(start), Duration::from_millis(400));
    let later = start + DECAY;
    assert!((millis(ewma.estimate(later)) - 400.0 / std::f64::consts::E).abs() < 0.001);
    // A fast sample pulls down by as much as time has passed, no more.
    ewma.record(Duration::from_millis(1), later);
    let kept = (-1.0f64).exp();
    assert!((millis(ewma.estimate(later)) - (400.0 * kept + 1.0 - kept)).abs() < 0.001);
}

#[test]
fn load_counts_the_new_request() {
    let start = Instant::now();
    let ewma = PeakEwma::new(DEFAULT_RTT, DECAY, start);
    assert!((ewma.load(0, start) - 0.03).abs() < 1e-9);
    assert!((ewma.load(9, start) - 0.3).abs() < 1e-9);
    assert!(ewma.load(u32::MAX, start).is_finite());
}

#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let start = Instant::now() + DECAY;
    let mut ewma = PeakEwma::new(DEFAULT_RTT, DECAY, start);
    assert_eq!(ewma.estimate(start - DECAY), DEFAULT_RTT);
    ewma.record(Duration::from_millis(50), start - DECAY);
    assert_eq!(ewma.estimate(start), Duration::from_millis(50));
}

#[test]
fn without_decay_time_only_the_last_sample_counts() {
    let start = Instant::now();
    let mut ewma = PeakEwma::new(DEFAULT_RTT, Duration::ZERO, start);
    assert_eq!(ewma.estimate(start), DEFAULT_RTT);
    let later = start + Duration::from_nanos(1);
    ewma.record(Duration::from_millis(2), later);
    assert_eq!(ewma.estimate(later), Duration::from_millis(2));
}

#[test]
fn every_ordered_pair_is_equally_likely() {
    const N: usize = 5;
    const DRAWS: usize = 100_000;
    let mut counts = [[0usize; N]; N];
    for random in random_numbers(DRAWS) {
        let (first, second) = two_of(N, random).expect("five are enough");
        counts[first][second] += 1;
    }
    // 5000 are expected of each pair, with a standard deviation of 69.
    for (first, row) in counts.iter().enumerate() {
        for (second, count) in row.iter().enumerate() {
            let expected = if first == second { 0..=0 } else { 4650..=5350 };
            assert!(expected.contains(count), "{first} {second}: {count}");
        }
    }
}

#[test]
fn the_slow_endpoint_is_left_alone() {
    let mut loads = [1.0, 20.0, 1.0];
    let mut counts = [0u32; 3];
    for random in random_numbers(3000) {
        let index = choose(3, random, |index| loads[index]).expect("three endpoints");
        counts[index] += 1;
    }
    assert_eq!(counts[1], 0, "another one is always cheaper");
    loads = [f64::NAN; 3];
    assert!(choose(3, 7, |index| loads[index]).is_some());
}

#[test]
fn few_endpoints() {
    assert_eq!(choose(0, 1, |_| 0.0), None);
    assert_eq!(
        choose(1, u64::MAX, |_| unreachable!("no choice to make")),
        Some(0)
    );
    assert_eq!(two_of(1, u64::MAX), None);
    assert!(matches!(two_of(2, u64::MAX), Some((1, 0))));
    let (first, second) = two_of(usize::MAX, u64::MAX).expect("many");
    assert_ne!(first, second);
}

#[test]
fn weights_are_frequencies() {
    let weights = [1, 0, 3, 6];
    let mut counts = [0u32; 4];
    for random in random_numbers(100_000) {
        counts[weighted(&weights, random).expect("weights are not all zero")] += 1;
    }
    assert_eq!(counts[1], 0);
    for (count, weight) in counts.iter().zip(weights) {
        // 10,000 for each unit of weight; the largest standard deviation is 155.
        assert!(count.abs_diff(weight * 10_000) < 800, "{counts:?}");
    }
}

#[test]
fn nothing_to_choose_is_none() {
    assert_eq!(weighted(&[], 1), None);
    assert_eq!(weighted(&[0, 0], u64::MAX), None);
    assert_eq!(weighted(&[0, u32::MAX, 0], u64::MAX), Some(1));
    assert_eq!(weighted(&[u32::MAX, u32::MAX], u64::MAX), Some(1));
}

proptest! {
    #[test]
    fn two_are_distinct_and_in_range(n in 2usize..2000, random: u64) {
        let (first, second) = two_of(n, random).expect("two or more");
        prop_assert!(first < n && second < n && first != second);
    }

    #[test]
    fn the_choice_is_the_lighter_of_the_two(loads in proptest::collection::vec(0.0f64..10.0, 2..20), random: u64) {
        let (first, second) = two_of(loads.len(), random).expect("two or more");
        let chosen = choose(loads.len(), random, |index| loads[index]).expect("two or more");
        prop_assert!(chosen == first || chosen == second);
        prop_assert!(loads[chosen] <= loads[first] && loads[chosen] <= loads[second]);
        prop_assert!(chosen == first || loads[second] < loads[first]);
    }

    #[test]
    fn weight_zero_is_never_chosen(weights in proptest::collection::vec(0u32..4, 0..10), random: u64) {
        match weighted(&weights, random) {
            Some(index) => prop_assert!(weights[index] > 0),
            None => prop_assert!(weights.iter().all(|weight| *weight == 0)),
        }
    }

    #[test]
    fn the_estimate_stays_between_what_was_seen(
        samples in proptest::collection::vec((0u64..10_000_000, 0u64..20_000_000), 1..50)
    ) {
        let mut now = Instant::now();
        let mut ewma = PeakEwma::new(DEFAULT_RTT, DECAY, now);
        let mut highest = DEFAULT_RTT;
        for (rtt, pause) in samples {
            now += Duration::from_micros(pause);
            let rtt = Duration::from_micros(rtt);
            let before = ewma.estimate(now);
            highest = highest.max(rtt);
            ewma.record(rtt, now);
            let after = ewma.estimate(now);
            let rounding = Duration::from_nanos(2);
            // At least the sample, since a higher one replaces the estimate and a lower one only pulls towards itself.
            prop_assert!(after + rounding >= rtt);
            prop_assert!(after <= highest + rounding);
            prop_assert!(after + rounding >= before);
        }
    }

    #[test]
    fn without_samples_the_estimate_only_falls(rtt in 0u64..60_000, pauses in proptest::collection::vec(0u64..60_000, 1..20)) {
        let mut now = Instant::now();
        let ewma = PeakEwma::new(Duration::from_millis(rtt), DECAY, now);
        let mut last = ewma.estimate(now);
        for pause in pauses {
            now += Duration::from_millis(pause);
            let estimate = ewma.estimate(now);
            prop_assert!(estimate <= last);
            last = estimate;
        }
    }

    #[test]
    fn no_duration_panics(rtt: u64, decay: u64, pause in 0u64..1 << 30) {
        let start = Instant::now();
        let mut ewma = PeakEwma::new(Duration::MAX, Duration::from_nanos(decay), start);
        let _ = ewma.estimate(start);
        let later = start + Duration::from_secs(pause);
        ewma.record(Duration::from_secs(rtt), later);
        prop_assert!(ewma.load(u32::MAX, later).is_finite());
        let _ = ewma.estimate(later);
    }
}
