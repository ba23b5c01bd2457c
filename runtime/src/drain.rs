//! Ending gracefully: one signal that draining began, and the wait until everybody who works has finished.
//! It ends nothing by force; after the grace period the caller decides.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The side that starts draining. Dropped without [`Signal::drain`], nobody is ever told to stop.
#[derive(Debug)]
pub struct Signal {
    tx: Arc<watch::Sender<bool>>,
}

/// Makes watches without holding the drain open itself: for whoever takes in new work, which goes on while older work
/// is being finished (case T14).
#[derive(Clone, Debug)]
pub struct Source {
    tx: Arc<watch::Sender<bool>>,
}

impl Source {
    /// A watch for a new piece of work.
    pub fn watch(&self) -> Watch {
        Watch {
            rx: self.tx.subscribe(),
        }
    }
}

/// The side of whatever must be finished first: each live clone holds the drain open.
#[derive(Clone, Debug)]
pub struct Watch {
    rx: watch::Receiver<bool>,
}

/// How draining ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every [`Watch`] was dropped within the grace period.
    Complete,
    /// The grace period ended first.
    TimedOut {
        /// Clones of [`Watch`] that were still alive.
        remaining: usize,
    },
}

/// A connected pair.
pub fn channel() -> (Signal, Watch) {
    let (tx, rx) = watch::channel(false);
    (Signal { tx: Arc::new(tx) }, Watch { rx })
}

impl Signal {
    /// Makes watches later.
    pub fn source(&self) -> Source {
        Source {
            tx: self.tx.clone(),
        }
    }

    /// Tells every [`Watch`] to finish, and waits until all are dropped or `grace` has passed.
    pub async fn drain(self, grace: Duration) -> Drained {
        self.tx.send_replace(true);
        match tokio::time::timeout(grace, self.tx.closed()).await {
            Ok(()) => Drained::Complete,
            Err(_) => Drained::TimedOut {
                remaining: self.tx.receiver_count(),
            },
        }
    }
}

impl Watch {
    /// Resolves once draining began; at once if it already has. Cancel safe.
    pub async fn signaled(&self) {
        // Waiting needs a receiver of its own; it is dropped with this future and so holds nothing open for longer.
        let mut rx = self.rx.clone();
        if rx.wait_for(|draining| *draining).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether draining began.
    pub fn is_draining(&self) -> bool {
        *self.rx.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_last_clone() {
        let (signal, watch) = channel();
        for seconds in [1, 7, 3] {
            let watch = watch.clone();
            tokio::spawn(async move {
                watch.signaled().await;
                sleep(Duration::from_secs(seconds)).await;
                drop(watch);
            });
        }
        drop(watch);
        let start = Instant::now();
        let drained = signal.drain(Duration::from_secs(60)).await;
        assert_eq!(drained, Drained::Complete);
        assert_eq!(start.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_period_bounds_it_and_the_rest_is_counted() {
        let (signal, watch) = channel();
        let _other = watch.clone();
        let start = Instant::now();
        let drained = signal.drain(Duration::from_secs(120)).await;
        assert_eq!(drained, Drained::TimedOut { remaining: 2 });
        assert_eq!(start.elapsed(), Duration::from_secs(120));
        assert!(watch.is_draining());
        watch.signaled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_before_or_without_a_drain() {
        let (signal, watch) = channel();
        assert!(!watch.is_draining());
        assert!(
            timeout(Duration::from_secs(3600), watch.signaled())
                .await
                .is_err()
        );
        drop(signal);
        assert!(
            timeout(Duration::from_secs(3600), watch.signaled())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_to_wait_for_is_complete_at_once() {
        let (signal, watch) = channel();
        drop(watch);
        assert_eq!(signal.drain(Duration::ZERO).await, Drained::Complete);
    }
}
