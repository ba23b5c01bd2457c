//! Owns the rule for the number of worker threads. Does not count CPUs and does not start a thread.

use super::reader::Reader;
use serde::Serialize;
use weft_core::parse;

/// How many workers: `CORES*`, contract 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workers {
    /// `CORES_MIN`, or the older `CORES`; at least 1.
    pub min: usize,
    /// `CORES_MAX`; at least 1.
    pub max: Option<usize>,
    /// `CORES_MAX_RATIO`: a share of the CPUs, above 0.
    pub max_ratio: Option<f64>,
}

impl Workers {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let older = r.count_or("CORES", 1);
        let min = r.count_or("CORES_MIN", older);
        let max = r.count("CORES_MAX");
        let max_ratio = r.read("CORES_MAX_RATIO", |text| {
            parse::number(text)
                .ok()
                .filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0)
                .ok_or("expected a number above 0, such as 0.5")
        });
        Self {
            min,
            max,
            max_ratio,
        }
    }

    /// The number of workers on a machine with `cpus` CPUs: the maximum, or the share of the CPUs, or 1; not less
    /// than the
    /// minimum, and never more than there are CPUs. 1 means a single-threaded runtime.
    pub fn count(&self, cpus: usize) -> usize {
        let cpus = cpus.max(1);
        // A float above usize::MAX becomes usize::MAX.
        let share = self
            .max_ratio
            .map(|ratio| (cpus as f64 * ratio).round() as usize);
        self.max.or(share).unwrap_or(1).max(self.min).clamp(1, cpus)
    }
}
