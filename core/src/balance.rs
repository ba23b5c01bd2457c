//! Choosing between endpoints and between weighted backends (contract 4.2 and 4.4). Holds no endpoints and no requests
//! in flight; randomness and time are arguments.

use std::time::{Duration, Instant};

/// Moving estimate of an endpoint's response time that jumps up to a slow sample at once and comes down slowly.
///
/// Without samples it decays towards zero, so that an endpoint that was slow once is tried again.
#[derive(Clone, Copy, Debug)]
pub struct PeakEwma {
    /// Seconds, as of `updated`.
    rtt: f64,
    decay: f64,
    updated: Instant,
}

impl PeakEwma {
    /// Starts at `default_rtt` (30 ms by contract 4.4); after `decay` (10 s) without samples 37 % of an estimate is left.
    pub fn new(default_rtt: Duration, decay: Duration, now: Instant) -> Self {
        Self {
            rtt: default_rtt.as_secs_f64(),
            decay: decay.as_secs_f64(),
            updated: now,
        }
    }

    /// Takes in one response time, measured at the first response data.
    pub fn record(&mut self, rtt: Duration, now: Instant) {
        let sample = rtt.as_secs_f64();
        let kept = self.kept(now);
        let decayed = self.rtt * kept;
        self.rtt = if sample > decayed {
            sample
        } else {
            decayed + sample * (1.0 - kept)
        };
        self.updated = self.updated.max(now);
    }

    /// The estimate at `now`.
    pub fn estimate(&self, now: Instant) -> Duration {
        Duration::try_from_secs_f64(self.rtt * self.kept(now)).unwrap_or(Duration::MAX)
    }

    /// Estimate in seconds times (requests in flight + 1): what a new request would wait, roughly.
    pub fn load(&self, in_flight: u32, now: Instant) -> f64 {
        self.rtt * self.kept(now) * (f64::from(in_flight) + 1.0)
    }

    /// The share of the stored estimate that is left at `now`; 1 if the clock of the caller went back.
    fn kept(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.updated);
        if elapsed.is_zero() {
            1.0
        } else if self.decay == 0.0 {
            0.0
        } else {
            (-elapsed.as_secs_f64() / self.decay).exp()
        }
    }
}

/// Two distinct indices below `n`, each ordered pair equally likely; `None` below two.
///
/// Each half of `random` gives one index, so the bias is below `n / 2³²`.
pub fn two_of(n: usize, random: u64) -> Option<(usize, usize)> {
    if n < 2 {
        return None;
    }
    let first = scale(random >> 32, n);
    let second = scale(random & u64::from(u32::MAX), n - 1);
    Some((first, if second >= first { second + 1 } else { second }))
}

/// Maps a 32-bit number evenly to `0..n`.
fn scale(random: u64, n: usize) -> usize {
    // The product of a number below 2³² and `n`, divided by 2³², is below `n`.
    ((u128::from(random) * n as u128) >> 32) as usize
}

/// Power of two choices: of two random endpoints the first if its load is not higher. `None` if there is no endpoint.
pub fn choose(n: usize, random: u64, mut load: impl FnMut(usize) -> f64) -> Option<usize> {
    let Some((first, second)) = two_of(n, random) else {
        return (n == 1).then_some(0);
    };
    Some(if load(first) <= load(second) {
        first
    } else {
        second
    })
}

/// An index chosen in proportion to the weights; `None` if all are zero or there are none (case H19).
pub fn weighted(weights: &[u32], random: u64) -> Option<usize> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    // `random` is below 2⁶⁴, so the point is below `total`.
    let mut point = total.checked_mul(u128::from(random))? >> 64;
    weights.iter().position(|weight| {
        let weight = u128::from(*weight);
        let hit = point < weight;
        point = point.saturating_sub(weight);
        hit
    })
}

#[cfg(test)]
mod tests;
