//! Owns how long the application works on a request as a replica of `weft-bench balance --pods`: as a replica of the
//! simulation does, in real time.

use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::balance::chance::Chance;
use crate::balance::scenario::{CHANGE, Scenario, WORKERS};

/// A replica at work. SIGUSR1 tells it that the scenario's change has come.
#[derive(Debug)]
pub struct Work {
    scenario: Scenario,
    replica: usize,
    workers: Semaphore,
    chance: Mutex<Chance>,
    changed: Mutex<Option<Instant>>,
}

impl Work {
    /// For the replica of a number, all of whose chance comes from it.
    pub fn new(scenario: Scenario, replica: usize) -> Self {
        Work {
            scenario,
            replica,
            workers: Semaphore::new(WORKERS),
            chance: Mutex::new(Chance(replica as u64)),
            changed: Mutex::new(None),
        }
    }

    /// Works on a request when a worker is free; whether the answer is a good one.
    pub async fn one(&self) -> bool {
        let Ok(_worker) = self.workers.acquire().await else {
            return false;
        };
        let since = self.changed.lock().map(|at| at.elapsed().as_secs_f64());
        let time = since.map_or(0.0, |since| CHANGE + since);
        let health = self.scenario.health(self.replica, time);
        let took = self.chance.lock().exponential(health.work);
        sleep(Duration::from_secs_f64(took)).await;
        !health.fails
    }

    /// Waits for the change.
    ///
    /// # Errors
    /// Signals cannot be had.
    pub async fn wait_for_change(&self) -> anyhow::Result<()> {
        let mut signals = signal(SignalKind::user_defined1()).context("SIGUSR1")?;
        signals.recv().await;
        *self.changed.lock() = Some(Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::task::JoinSet;

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_well_until_the_change() {
        let work = Work::new(Scenario::OneFailing, 0);
        assert!(work.one().await);
        *work.changed.lock() = Some(Instant::now());
        assert!(!work.one().await);
        let other = Work::new(Scenario::OneFailing, 1);
        *other.changed.lock() = Some(Instant::now());
        assert!(other.one().await);
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_are_worked_on_at_once_as_there_are_workers() {
        let work = Arc::new(Work::new(Scenario::Equal, 0));
        let begin = tokio::time::Instant::now();
        let mut running = JoinSet::new();
        for _ in 0..400 {
            let work = work.clone();
            running.spawn(async move { work.one().await });
        }
        assert!(running.join_all().await.into_iter().all(|good| good));
        // 400 of 10 ms each, by four workers: a second, give or take.
        let took = begin.elapsed().as_secs_f64();
        assert!((0.8..1.4).contains(&took), "{took}");
    }
}
