//! Owns the states computed from the index: one per distinct question, shared by all who ask it, computed again when
//! something it was computed from changes. A reader holds a `watch`, so a slow one gets the latest state and no queue.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;

use crate::{
    index::{Changed, Index, Key, Reader},
    shared::{Listener, Shared},
};

/// A question to the index.
pub trait Query: Clone + Eq + Hash + Send + Sync + 'static {
    /// Its answer; cheap to clone.
    type State: Clone + PartialEq + Send + Sync + 'static;
    /// What the answer depends on besides the index.
    type Settings: Send + Sync + 'static;

    /// Answers from the index. `previous` is the last answer, parts of which can be kept.
    fn answer(
        &self,
        settings: &Self::Settings,
        index: &Reader<'_>,
        previous: Option<&Self::State>,
    ) -> Self::State;
}

/// The limit of distinct questions is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{limit} different targets are being watched, which is the limit: raise it or close streams"
)]
pub struct TooManyViews {
    /// The limit.
    pub limit: usize,
}

/// The answers to all questions of one kind that are being watched.
pub struct Views<Q: Query> {
    shared: Arc<Shared>,
    settings: Q::Settings,
    limit: usize,
    state: Mutex<State<Q>>,
}

struct State<Q: Query> {
    views: HashMap<Q, View<Q>>,
    readers: HashMap<Key, HashSet<Q>>,
}

struct View<Q: Query> {
    sender: watch::Sender<Q::State>,
    keys: HashSet<Key>,
}

impl<Q: Query> Views<Q> {
    /// No questions yet; at most `limit` different ones at a time.
    pub fn new(shared: Arc<Shared>, settings: Q::Settings, limit: usize) -> Arc<Self> {
        let state = Mutex::new(State {
            views: HashMap::new(),
            readers: HashMap::new(),
        });
        let views = Arc::new(Self {
            shared,
            settings,
            limit,
            state,
        });
        let listener: Weak<dyn Listener> = Arc::downgrade(&views) as Weak<dyn Listener>;
        views.shared.listen(listener);
        views
    }

    /// What the answers depend on besides the index.
    pub fn settings(&self) -> &Q::Settings {
        &self.settings
    }

    /// The index behind the answers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Answers once, without watching.
    pub fn once(&self, query: &Q) -> Q::State {
        self.shared
            .read(|index| query.answer(&self.settings, &Reader::new(index), None))
    }

    /// Watches the answer to a question.
    ///
    /// # Errors
    /// Too many different questions are being watched.
    pub fn subscribe(self: &Arc<Self>, query: Q) -> Result<Subscription<Q>, TooManyViews> {
        // The index stays locked for reading until the view is listed, so that no change falls in between.
        self.shared.read(|index| {
            let mut state = self.state.lock();
            if let Some(view) = state.views.get(&query) {
                return Ok(Subscription::new(self, query, view.sender.subscribe()));
            }
            if state.views.len() >= self.limit {
                return Err(TooManyViews { limit: self.limit });
            }
            let reader = Reader::new(index);
            let (sender, receiver) = watch::channel(query.answer(&self.settings, &reader, None));
            let keys = reader.into_keys();
            state.link(&query, &HashSet::new(), &keys);
            state.views.insert(query.clone(), View { sender, keys });
            Ok(Subscription::new(self, query, receiver))
        })
    }

    /// Number of distinct questions being watched.
    pub fn len(&self) -> usize {
        self.state.lock().views.len()
    }

    /// Whether nothing is being watched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn release(&self, query: &Q) {
        let mut state = self.state.lock();
        // Under the lock nobody can subscribe, so zero stays zero.
        if state
            .views
            .get(query)
            .is_some_and(|view| view.sender.receiver_count() == 0)
            && let Some(view) = state.views.remove(query)
        {
            state.link(query, &view.keys, &HashSet::new());
        }
    }
}

impl<Q: Query> Listener for Views<Q> {
    fn changed(&self, index: &Index, changed: &Changed) {
        let mut state = self.state.lock();
        let touched: HashSet<Q> = changed
            .keys
            .iter()
            .filter_map(|key| state.readers.get(key))
            .flatten()
            .cloned()
            .collect();
        for query in touched {
            let Some(view) = state.views.get(&query) else {
                continue;
            };
            let reader = Reader::new(index);
            let answer = query.answer(&self.settings, &reader, Some(&view.sender.borrow()));
            // An equal answer wakes nobody.
            view.sender.send_if_modified(|current| {
                let differs = *current != answer;
                if differs {
                    *current = answer;
                }
                differs
            });
            let keys = reader.into_keys();
            if let Some(view) = state.views.get_mut(&query) {
                let old = std::mem::replace(&mut view.keys, keys.clone());
                state.link(&query, &old, &keys);
            }
        }
    }
}

impl<Q: Query> State<Q> {
    /// Moves a question from the keys it read to those it reads now.
    fn link(&mut self, query: &Q, old: &HashSet<Key>, new: &HashSet<Key>) {
        for key in old.difference(new) {
            if let Some(readers) = self.readers.get_mut(key) {
                readers.remove(query);
                if readers.is_empty() {
                    self.readers.remove(key);
                }
            }
        }
        for key in new.difference(old) {
            self.readers
                .entry(key.clone())
                .or_default()
                .insert(query.clone());
        }
    }
}

/// Watches one answer. When the last one of a question goes, its state goes.
pub struct Subscription<Q: Query> {
    views: Arc<Views<Q>>,
    query: Q,
    /// `None` only while it is being dropped.
    receiver: Option<watch::Receiver<Q::State>>,
}

impl<Q: Query> Subscription<Q> {
    fn new(views: &Arc<Views<Q>>, query: Q, receiver: watch::Receiver<Q::State>) -> Self {
        Self {
            views: Arc::clone(views),
            query,
            receiver: Some(receiver),
        }
    }

    fn receiver(&mut self) -> &mut watch::Receiver<Q::State> {
        self.receiver.as_mut().expect("set until drop")
    }

    /// The answer as it is now.
    pub fn latest(&mut self) -> Q::State {
        self.receiver().borrow_and_update().clone()
    }

    /// Waits until the answer differs from the one seen last, and returns the newest.
    pub async fn changed(&mut self) -> Q::State {
        if self.receiver().changed().await.is_err() {
            // The sender lives as long as a subscription does; waiting is the only answer left.
            std::future::pending::<()>().await;
        }
        self.latest()
    }
}

impl<Q: Query> Drop for Subscription<Q> {
    fn drop(&mut self) {
        drop(self.receiver.take());
        self.views.release(&self.query);
    }
}
