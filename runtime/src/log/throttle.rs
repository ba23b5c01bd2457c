//! How often a line is written that could come a thousand times a second. Counts what was left out; writes nothing.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Lets one line through in each interval, for all callers together.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// Lets the first line through, and another one at the earliest `interval` after the one before.
    pub const fn new(interval: Duration) -> Self {
        let state = State {
            last: None,
            left_out: 0,
        };
        Self {
            interval,
            state: Mutex::new(state),
        }
    }

    /// If the line may be written: how many were left out before it. Otherwise counts it.
    pub fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let early = |last| now.saturating_duration_since(last) < self.interval;
        if state.last.is_some_and(early) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_in_each_interval_and_none_is_forgotten() {
        let throttle = Throttle::new(Duration::from_secs(5));
        assert_eq!(throttle.pass(), Some(0));
        tokio::time::advance(Duration::from_millis(4_999)).await;
        assert_eq!((throttle.pass(), throttle.pass()), (None, None));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((throttle.pass(), throttle.pass()), (Some(2), None));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(throttle.pass(), Some(1));
    }
}
