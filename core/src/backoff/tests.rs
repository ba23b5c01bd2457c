//! The documented series, and its bounds for any input.

use proptest::prelude::*;

use super::*;

#[test]
fn doubles_up_to_the_maximum() {
    let backoff = ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(10), 0.1)
        .expect("valid bounds");
    let series: Vec<_> = (0..9)
        .map(|attempt| backoff.delay(attempt, 0).as_millis())
        .collect();
    assert_eq!(
        series,
        [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    );
    assert_eq!(backoff.delay(0, u64::MAX), Duration::from_millis(110));
    assert_eq!(backoff.delay(u32::MAX, u64::MAX), Duration::from_secs(11));
}

#[test]
fn refuses_bounds_that_make_no_sense() {
    let second = Duration::from_secs(1);
    assert_eq!(
        ExponentialBackoff::new(Duration::ZERO, second, 0.0),
        Err(BackoffError::ZeroMin)
    );
    assert!(matches!(
        ExponentialBackoff::new(second * 2, second, 0.0),
        Err(BackoffError::Reversed { .. })
    ));
    for jitter in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            ExponentialBackoff::new(second, second, jitter),
            Err(BackoffError::Jitter(_))
        ));
    }
}

proptest! {
    #[test]
    fn stays_within_its_bounds(
        (min, max) in (1u64..=u64::MAX).prop_flat_map(|min| (Just(min), min..=u64::MAX)),
        jitter in 0.0f64..=100.0, attempt: u32, random: u64,
    ) {
        let (min, max) = (Duration::from_nanos(min), Duration::from_nanos(max));
        let backoff = ExponentialBackoff::new(min, max, jitter).expect("in order");
        let base = backoff.delay(attempt, 0);
        let delay = backoff.delay(attempt, random);
        prop_assert!(min <= base && base <= max);
        prop_assert!(base <= delay);
        // A nanosecond for the rounding of the fraction, and a relative 2⁻⁵⁰ for that of the product.
        let limit = base.as_secs_f64() * (1.0 + jitter);
        prop_assert!(delay.as_secs_f64() <= limit * (1.0 + 1e-15) + 1e-9);
        prop_assert!(base <= backoff.delay(attempt.saturating_add(1), 0));
    }

    #[test]
    fn the_longest_durations_do_not_overflow(attempt: u32, random: u64) {
        let backoff = ExponentialBackoff::new(Duration::MAX, Duration::MAX, 100.0).expect("in order");
        prop_assert_eq!(backoff.delay(attempt, random), Duration::MAX);
    }
}
