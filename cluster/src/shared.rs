//! Owns the lock around the index and the list of those who are told what changed; does not compute states.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use thiserror::Error;
use tokio::{sync::watch, time::timeout};

use crate::{
    index::{Changed, Index},
    objects::{Kind, Object, ObjectRef},
};

/// How long a question waits for the index to be filled, so that a start is a slow answer; proxies wait for 3 s (contract 1.2).
const FILL_WAIT: Duration = Duration::from_secs(2);

/// Nothing can be answered yet: in half of the objects what denies may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this replica has not read all objects yet; /ready of its admin port says what it waits for"
)]
pub struct NotFilled;

/// Is told what changed, under the lock of the index, so that no change is seen twice or missed.
pub trait Listener: Send + Sync {
    /// The index has changed in these keys.
    fn changed(&self, index: &Index, changed: &Changed);
}

/// The index of a process, shared by its sources and its services.
pub struct Shared {
    index: RwLock<Index>,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    filled: watch::Sender<bool>,
}

impl Shared {
    /// An empty index.
    pub fn new() -> Arc<Self> {
        let filled = watch::Sender::new(false);
        Arc::new(Self {
            index: RwLock::default(),
            listeners: Mutex::default(),
            filled,
        })
    }

    /// Stores an object.
    pub fn apply(&self, object: &Object) -> Changed {
        self.update(|index| index.apply(object))
    }

    /// Removes an object.
    pub fn delete(&self, object: &ObjectRef) -> Changed {
        self.update(|index| index.delete(object))
    }

    /// Replaces all objects of a kind.
    pub fn reset(&self, kind: Kind, objects: &[Object]) -> Changed {
        self.update(|index| index.reset(kind, objects))
    }

    /// Makes several changes that are seen as one. What was refused is logged here, once.
    pub fn update(&self, change: impl FnOnce(&mut Index) -> Changed) -> Changed {
        let mut index = self.index.write();
        let changed = change(&mut index);
        let index = RwLockWriteGuard::downgrade(index);
        for invalid in &changed.invalid {
            tracing::warn!("{invalid}");
        }
        if !changed.keys.is_empty() {
            let listeners = self.listeners.lock().clone();
            for listener in listeners.iter().filter_map(Weak::upgrade) {
                listener.changed(&index, &changed);
            }
        }
        changed
    }

    /// Reads the index as it is now.
    pub fn read<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        read(&self.index.read())
    }

    /// Tells the listener of all later changes, for as long as it lives.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// A source has filled the index for the first time: services may answer.
    pub fn set_filled(&self) {
        self.filled.send_replace(true);
    }

    /// Whether a source has filled the index.
    pub fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    /// Waits until a source has filled the index, for 2 s.
    ///
    /// # Errors
    /// It has not been filled within that time.
    pub async fn filled(&self) -> Result<(), NotFilled> {
        let mut filled = self.filled.subscribe();
        let wait = timeout(FILL_WAIT, filled.wait_for(|filled| *filled)).await;
        match wait {
            Ok(Ok(_)) => Ok(()),
            _ => Err(NotFilled),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_for_the_index_but_not_for_long() {
        let shared = Shared::new();
        let started = Instant::now();
        assert_eq!(shared.filled().await, Err(NotFilled));
        assert_eq!(started.elapsed(), FILL_WAIT);

        let filling = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::time::sleep(FILL_WAIT / 4).await;
            filling.set_filled();
        });
        let started = Instant::now();
        assert_eq!(shared.filled().await, Ok(()));
        assert_eq!(started.elapsed(), FILL_WAIT / 4);
        assert_eq!(shared.filled().await, Ok(()));
        assert_eq!(started.elapsed(), FILL_WAIT / 4, "it is filled for ever");
    }
}
