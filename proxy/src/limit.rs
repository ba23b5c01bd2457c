//! Owns the limit on requests that are under way in one direction (`MAX_IN_FLIGHT`).

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts requests under way and refuses more than the limit.
#[derive(Clone)]
pub struct InFlight {
    now: Arc<AtomicUsize>,
    limit: usize,
    what: &'static str,
}

/// A request under way, until dropped.
pub struct Entered(Arc<AtomicUsize>);

impl InFlight {
    /// None under way.
    pub fn new(what: &'static str, limit: usize) -> Self {
        Self {
            now: Arc::default(),
            limit,
            what,
        }
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// Load shed, at the limit.
    pub fn enter(&self) -> Result<Entered, Error> {
        let entered = Entered(self.now.clone());
        if self.now.fetch_add(1, Ordering::Relaxed) >= self.limit {
            return Err(Error::LoadShed {
                what: self.what.into(),
                limit: self.limit,
            });
        }
        Ok(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_places_are_given_back() {
        let limit = InFlight::new("requests", 1);
        let first = limit.enter();
        assert!(first.is_ok());
        assert!(limit.enter().is_err());
        drop(first);
        assert!(limit.enter().is_ok());
    }
}
