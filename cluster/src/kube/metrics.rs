//! Owns the `weft_kube_*` metrics: how much of each kind there is, and how following it goes. Follows nothing.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use weft_runtime::metrics::{Counter, Family, Gauge, Registry};

use crate::objects::Kind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

/// The metrics of following an API server.
#[derive(Clone, Debug)]
pub struct Metrics {
    objects: Family<OfKind, Gauge>,
    lists: Family<OfKind, Counter>,
    failures: Family<OfKind, Counter>,
}

/// Those of one kind.
pub(super) struct KindMetrics {
    /// Objects in the index.
    pub(super) objects: Arc<Gauge>,
    /// Lists that were read to their end.
    pub(super) lists: Arc<Counter>,
    /// Lists and watches that were refused or cut.
    pub(super) failures: Arc<Counter>,
}

impl Default for Metrics {
    /// Metrics that nobody reads.
    fn default() -> Self {
        Self {
            objects: Family::new(Gauge::default),
            lists: Family::new(Counter::default),
            failures: Family::new(Counter::default),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry; once per registry.
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "weft_kube_objects",
            "Objects in the index",
            metrics.objects.clone(),
        );
        registry.register(
            "weft_kube_lists",
            "Lists of all objects that were read from the API server",
            metrics.lists.clone(),
        );
        registry.register(
            "weft_kube_failures",
            "Lists and watches that the API server refused or that were cut, each tried again",
            metrics.failures.clone(),
        );
        metrics
    }

    pub(super) fn of(&self, kind: Kind) -> KindMetrics {
        let labels = OfKind {
            kind: kind.as_str(),
        };
        KindMetrics {
            objects: self.objects.resolve(&labels),
            lists: self.lists.resolve(&labels),
            failures: self.failures.resolve(&labels),
        }
    }
}
