//! A set of series that differ by their labels: found once, then held, and forgotten some time after the last holder
//! has gone.
//! It has no name and no clock; the registry gives it both.

use super::Counter;
use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Series a family holds at most unless told otherwise: about 3 MB of counters, 10 MB of latency histograms.
pub const SERIES_LIMIT: usize = 10_000;

/// What can label a series. Implemented by everything that has the parts.
pub trait Labels: EncodeLabelSet + Eq + Hash + Clone + Debug + Send + Sync + 'static {}
impl<L> Labels for L where L: EncodeLabelSet + Eq + Hash + Clone + Debug + Send + Sync + 'static {}

/// What can be a series. Implemented by everything that has the parts.
pub trait Instrument: EncodeMetric + TypedMetric + Debug + Send + Sync + 'static {}
impl<M> Instrument for M where M: EncodeMetric + TypedMetric + Debug + Send + Sync + 'static {}

/// Series of one name and many label sets. Clones share the series.
///
/// A caller resolves its series when a connection, route or endpoint is made and keeps it; counting is then an atomic
/// addition. Nobody holding a series is what makes it idle, and [`Family::sweep`] removes what has been idle for long
/// (case T11).
pub struct Family<L, M> {
    shared: Arc<Shared<L, M>>,
}

struct Shared<L, M> {
    series: RwLock<HashMap<L, Series<M>>>,
    make: fn() -> M,
    limit: usize,
    dropped: Counter,
    told: AtomicBool,
}

struct Series<M> {
    metric: Arc<M>,
    /// Resolved since the last sweep, by somebody who may have let go again.
    touched: AtomicBool,
    /// The last sweep that found it in use, or the first one at all.
    used: Option<Instant>,
}

impl<L: Labels, M: Instrument> Family<L, M> {
    /// An empty family whose series `make` creates, with at most [`SERIES_LIMIT`] of them.
    pub fn new(make: fn() -> M) -> Self {
        Self::with_limit(make, SERIES_LIMIT)
    }

    /// An empty family of at most `limit` series.
    pub fn with_limit(make: fn() -> M, limit: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                series: RwLock::default(),
                make,
                limit,
                dropped: Counter::default(),
                told: AtomicBool::new(false),
            }),
        }
    }

    /// The series of these labels, made if there is none. Keep it while it is used: that is what keeps it in the
    /// family.
    ///
    /// When the family is full, a series that counts but is never exported; `weft_metrics_series_dropped_total`
    /// counts these.
    pub fn resolve(&self, labels: &L) -> Arc<M> {
        if let Some(series) = self.shared.series.read().get(labels) {
            series.touched.store(true, Ordering::Relaxed);
            return series.metric.clone();
        }
        let mut all = self.shared.series.write();
        let full = all.len() >= self.shared.limit;
        match all.entry(labels.clone()) {
            Entry::Occupied(series) => {
                series.get().touched.store(true, Ordering::Relaxed);
                series.get().metric.clone()
            }
            Entry::Vacant(_) if full => {
                drop(all);
                self.note_dropped(labels);
                Arc::new((self.shared.make)())
            }
            Entry::Vacant(space) => {
                let metric = Arc::new((self.shared.make)());
                space.insert(Series {
                    metric: metric.clone(),
                    touched: AtomicBool::new(true),
                    used: None,
                });
                metric
            }
        }
    }

    fn note_dropped(&self, labels: &L) {
        self.shared.dropped.inc();
        if !self.shared.told.swap(true, Ordering::Relaxed) {
            let limit = self.shared.limit;
            tracing::warn!(
                ?labels,
                limit,
                "a metric family is full: further label sets are not exported"
            );
        }
    }

    /// Removes the series that nobody holds and nobody has resolved for `retain`.
    ///
    /// The time since the last use is known to one interval between sweeps, and is taken for the longer: with sweeps
    /// at an interval that
    /// divides `retain`, a series is gone at most `retain` after its last holder.
    pub fn sweep(&self, now: Instant, retain: Duration) {
        let mut all = self.shared.series.write();
        all.retain(|_, series| {
            // Under the write lock nobody can resolve it, so a count of one stays one.
            let touched = series.touched.swap(false, Ordering::Relaxed);
            if touched || Arc::strong_count(&series.metric) > 1 {
                series.used = Some(now);
                return true;
            }
            let used = *series.used.get_or_insert(now);
            now.saturating_duration_since(used) < retain
        });
        if all.len() < self.shared.limit {
            self.shared.told.store(false, Ordering::Relaxed);
        }
        if all.capacity() > 64 && all.len() < all.capacity() / 4 {
            all.shrink_to_fit();
        }
    }

    /// Number of series.
    pub fn len(&self) -> usize {
        self.shared.series.read().len()
    }

    /// Whether there is no series.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often [`Family::resolve`] found the family full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.get()
    }

    /// Calls `each` with every series, under the family's lock: for reports made of metrics.
    pub fn for_each(&self, mut each: impl FnMut(&L, &M)) {
        for (labels, series) in self.shared.series.read().iter() {
            each(labels, &series.metric);
        }
    }
}

impl<L, M> Clone for Family<L, M> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<L, M> Debug for Family<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family")
            .field("limit", &self.shared.limit)
            .finish_non_exhaustive()
    }
}

impl<L, M: TypedMetric> TypedMetric for Family<L, M> {
    const TYPE: MetricType = M::TYPE;
}

impl<L: Labels, M: Instrument> EncodeMetric for Family<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (labels, series) in self.shared.series.read().iter() {
            series.metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
