//! Owns the few statistics the reports are made of: medians with their spread, percentiles of samples. Pure.

use serde::{Deserialize, Serialize};

/// The middle of some values, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of all finite values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let upper = *values.get(half)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Spread {
            median: f64::midpoint(lower, upper),
            min,
            max,
        })
    }
}

/// Percentiles of times, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the samples are not above.
    pub p50_us: u64,
    /// 99 % are not above.
    pub p99_us: u64,
    /// 99.9 % are not above.
    pub p999_us: u64,
    /// The largest.
    pub max_us: u64,
}

impl Percentiles {
    /// Of samples in µs, in any order; `None` without samples.
    pub fn of(mut samples: Vec<u64>) -> Option<Self> {
        samples.sort_unstable();
        let max_us = *samples.last()?;
        let at = |per_mille| rank(&samples, per_mille).unwrap_or(max_us);
        Some(Percentiles {
            p50_us: at(500),
            p99_us: at(990),
            p999_us: at(999),
            max_us,
        })
    }
}

/// The smallest sample that is not exceeded by so many thousandths of the samples (nearest rank).
fn rank(sorted: &[u64], per_mille: usize) -> Option<u64> {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_of_even_and_odd() {
        let median =
            |values: &[f64]| Spread::of(values.iter().copied()).map(|spread| spread.median);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn percentiles_of_a_thousand() {
        let percentiles = Percentiles::of((1..=1000).rev().collect()).expect("samples");
        assert_eq!((percentiles.p50_us, percentiles.p99_us), (500, 990));
        assert_eq!((percentiles.p999_us, percentiles.max_us), (999, 1000));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    proptest! {
        /// Enough samples are not above a percentile, and fewer are not above any smaller sample.
        #[test]
        fn percentiles_are_the_naive_ones(samples in proptest::collection::vec(0u64..50, 1..300)) {
            let p99 = Percentiles::of(samples.clone()).expect("samples").p99_us;
            let enough = |limit: u64| samples.iter().filter(|sample| **sample <= limit).count() * 100 >= samples.len() * 99;
            prop_assert!(enough(p99));
            prop_assert!(samples.contains(&p99));
            prop_assert!(samples.iter().filter(|sample| **sample < p99).all(|smaller| !enough(*smaller)));
        }
    }
}
