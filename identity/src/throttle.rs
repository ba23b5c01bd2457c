//! Owns how many calls a second go out, with a burst (client-go's QPS and burst, contract 2.5). Knows nothing of what is called.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Calls a second, and how many of them may come at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Calls a second.
    pub per_second: f64,
    /// Calls at once.
    pub burst: u32,
}

/// A rate that lets nothing through.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{per_second} calls a second with bursts of {burst} is no rate; give at least 0.001 and 1")]
pub struct NoRate {
    per_second: f64,
    burst: u32,
}

/// How long a turn would have to be waited for, which was more than the caller's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong(pub Duration);

/// Gives turns at a rate, in the order they are asked for.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Time between two calls.
    interval: Duration,
    /// How far turns may be ahead of the rate.
    ahead: Duration,
    /// When the rate alone would give the next turn.
    next: Mutex<Instant>,
}

impl Throttle {
    pub(crate) fn new(rate: Rate) -> Result<Self, NoRate> {
        let Rate { per_second, burst } = rate;
        let refused = NoRate { per_second, burst };
        if !(per_second >= 0.001 && burst > 0) {
            return Err(refused);
        }
        let interval = Duration::try_from_secs_f64(1.0 / per_second).map_err(|_| refused)?;
        Ok(Self {
            interval,
            ahead: interval.checked_mul(burst - 1).ok_or(refused)?,
            next: Mutex::new(Instant::now()),
        })
    }

    /// Waits for a turn, or takes none and says at once that it would be more than `patience` away.
    pub(crate) async fn turn(&self, patience: Duration) -> Result<(), TooLong> {
        let wait = self.take(Instant::now(), patience)?;
        if !wait.is_zero() {
            sleep(wait).await;
        }
        Ok(())
    }

    fn take(&self, now: Instant, patience: Duration) -> Result<Duration, TooLong> {
        let mut next = self.next.lock();
        let due = (*next).max(now);
        let wait = due.duration_since(now).saturating_sub(self.ahead);
        if wait > patience {
            return Err(TooLong(wait));
        }
        *next = due + self.interval;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 100.0,
        burst: 20,
    };

    #[tokio::test(start_paused = true)]
    async fn the_burst_at_once_and_the_rest_at_the_rate() {
        let throttle = Throttle::new(RATE).expect("a rate");
        let started = Instant::now();
        for _ in 0..20 {
            throttle.turn(Duration::ZERO).await.expect("in the burst");
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..100 {
            throttle.turn(Duration::from_secs(1)).await.expect("soon");
        }
        let took = started.elapsed().as_millis();
        assert!((1000..=1200).contains(&took), "{took} ms for 100 calls");

        sleep(Duration::from_secs(60)).await;
        let started = Instant::now();
        let mut at_once = 0;
        while throttle.turn(Duration::ZERO).await.is_ok() {
            at_once += 1;
        }
        assert_eq!((at_once, started.elapsed()), (20, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn who_would_wait_too_long_hears_so_and_takes_no_turn() {
        let throttle = Throttle::new(Rate {
            per_second: 1.0,
            burst: 1,
        })
        .expect("a rate");
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(throttle.take(now, Duration::ZERO), Ok(Duration::ZERO));
        for _ in 0..3 {
            assert_eq!(
                throttle.take(now, second - Duration::from_millis(1)),
                Err(TooLong(second))
            );
        }
        assert_eq!(throttle.take(now, second), Ok(second));
        assert_eq!(throttle.take(now, 2 * second), Ok(2 * second));
    }

    #[test]
    fn rates_that_are_none() {
        let rates = [
            (0.0, 1),
            (-1.0, 1),
            (f64::NAN, 1),
            (100.0, 0),
            (1e-30, 1),
            (0.001, u32::MAX),
        ];
        for (per_second, burst) in rates {
            let made = Throttle::new(Rate { per_second, burst });
            assert_eq!(
                made.is_err(),
                (per_second, burst) != (0.001, u32::MAX),
                "{per_second} {burst}"
            );
        }
    }
}
