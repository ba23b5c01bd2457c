//! Exponential backoff with jitter (contract 4.4). Computes a delay; does not wait and does not count attempts.

use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

/// Largest accepted jitter ratio: beyond it the "jitter" is the delay.
const MAX_JITTER: f64 = 100.0;

/// `min(max, min·2ⁿ)` plus a random part of up to `jitter` times that.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExponentialBackoff {
    min: Duration,
    max: Duration,
    jitter: f64,
}

/// Why a backoff was refused.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum BackoffError {
    /// A zero minimum never grows: it would retry without a pause.
    #[error("minimum backoff is zero: give at least 1ms")]
    ZeroMin,
    /// The minimum exceeds the maximum.
    #[error("minimum backoff {min:?} is above the maximum {max:?}: swap them or raise the maximum")]
    Reversed {
        /// The minimum given.
        min: Duration,
        /// The maximum given.
        max: Duration,
    },
    /// The jitter ratio is negative, not a number, or above 100.
    #[error("backoff jitter {0} is not a ratio from 0 to 100")]
    Jitter(f64),
}

impl ExponentialBackoff {
    /// Checks the bounds once, so that [`delay`](Self::delay) cannot fail.
    pub fn new(min: Duration, max: Duration, jitter: f64) -> Result<Self, BackoffError> {
        if min.is_zero() {
            return Err(BackoffError::ZeroMin);
        }
        if min > max {
            return Err(BackoffError::Reversed { min, max });
        }
        if !(0.0..=MAX_JITTER).contains(&jitter) {
            return Err(BackoffError::Jitter(jitter));
        }
        Ok(Self { min, max, jitter })
    }

    /// The wait before retry number `attempt` (the first is 0); `random` is any uniform number.
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let base = 2u32
            .checked_pow(attempt)
            .and_then(|factor| self.min.checked_mul(factor))
            .unwrap_or(self.max)
            .min(self.max);
        let fraction = random as f64 / u64::MAX as f64;
        let extra = Duration::try_from_secs_f64(base.as_secs_f64() * self.jitter * fraction)
            .unwrap_or(Duration::MAX);
        base.saturating_add(extra)
    }
}

#[cfg(test)]
mod tests;
