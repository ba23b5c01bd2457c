//! Owns the `outbound_{http,tcp}_balancer_*` families (contract 6.2). Does not balance.

use super::labels::{Labels, LabelsBuilder};
use crate::convert::Meta;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weft_runtime::metrics::{Counter, Family, FloatGauge, Gauge, Histogram, Registry};

/// Seconds a request waits for an endpoint.
const QUEUE_BUCKETS: [f64; 6] = [0.0005, 0.005, 0.05, 0.5, 1.0, 3.0];

fn queue_latency() -> Histogram {
    Histogram::new(QUEUE_BUCKETS)
}

/// The families of balancers of one protocol.
#[derive(Clone)]
pub struct BalancerMetrics {
    endpoints: Family<Labels, Gauge>,
    p2c_endpoints: Family<Labels, Gauge>,
    updates: Family<Labels, Counter>,
    queue_length: Family<Labels, Gauge>,
    queue_requests: Family<Labels, Counter>,
    queue_latency: Family<Labels, Histogram>,
    gate_open: Family<Labels, Counter>,
    gate_shut: Family<Labels, Counter>,
    gate_open_time: Family<Labels, FloatGauge>,
    gate_shut_time: Family<Labels, FloatGauge>,
    gate_timeout: Family<Labels, FloatGauge>,
}

impl BalancerMetrics {
    /// Makes and registers the families, named after `protocol` (`http`, `tcp`).
    pub fn new(registry: &Registry, protocol: &str) -> Self {
        let this = Self {
            endpoints: Family::new(Gauge::default),
            p2c_endpoints: Family::new(Gauge::default),
            updates: Family::new(Counter::default),
            queue_length: Family::new(Gauge::default),
            queue_requests: Family::new(Counter::default),
            queue_latency: Family::new(queue_latency),
            gate_open: Family::new(Counter::default),
            gate_shut: Family::new(Counter::default),
            gate_open_time: Family::new(FloatGauge::default),
            gate_shut_time: Family::new(FloatGauge::default),
            gate_timeout: Family::new(FloatGauge::default),
        };
        let name = |n: &str| format!("outbound_{protocol}_balancer_{n}");
        let r = registry;
        let f = this.clone();
        r.register(&name("endpoints"), "Endpoints by state", f.endpoints);
        let help = "Endpoints that may be picked";
        r.register(&name("p2c_endpoints"), help, f.p2c_endpoints);
        r.register(&name("p2c_updates_total"), "Discovery updates", f.updates);
        let help = "Requests that wait for an endpoint";
        r.register(&name("queue_length"), help, f.queue_length);
        let help = "Requests given to the balancer";
        r.register(&name("queue_requests_total"), help, f.queue_requests);
        let help = "Time requests waited for an endpoint";
        r.register(&name("queue_latency_seconds"), help, f.queue_latency);
        let help = "Times the balancer left failfast";
        r.register(&name("queue_gate_open_total"), help, f.gate_open);
        let help = "Times the balancer entered failfast";
        r.register(&name("queue_gate_shut_total"), help, f.gate_shut);
        let help = "When the balancer last left failfast";
        r.register(
            &name("queue_gate_open_time_seconds"),
            help,
            f.gate_open_time,
        );
        let help = "When the balancer last entered failfast";
        r.register(
            &name("queue_gate_shut_time_seconds"),
            help,
            f.gate_shut_time,
        );
        let help = "How long a request waits before failfast";
        r.register(&name("queue_gate_timeout_seconds"), help, f.gate_timeout);
        this
    }

    /// Resolves the series of one balancer.
    pub fn series(&self, labels: &Labels, failfast: Duration) -> BalancerSeries {
        let first =
            |name: &'static str, value: &str| Labels::build().with(name, value).all(labels).done();
        let state = |s: &str| self.endpoints.resolve(&first("endpoint_state", s));
        let op = |s: &str| self.updates.resolve(&first("op", s));
        let gate_timeout = self.gate_timeout.resolve(labels);
        gate_timeout.set(failfast.as_secs_f64());
        BalancerSeries {
            ready: state("ready"),
            pending: state("pending"),
            p2c: self.p2c_endpoints.resolve(labels),
            added: op("Add"),
            removed: op("Remove"),
            reset: op("Reset"),
            waiting: self.queue_length.resolve(labels),
            requests: self.queue_requests.resolve(labels),
            wait: self.queue_latency.resolve(labels),
            gate_open: self.gate_open.resolve(labels),
            gate_shut: self.gate_shut.resolve(labels),
            gate_open_time: self.gate_open_time.resolve(labels),
            gate_shut_time: self.gate_shut_time.resolve(labels),
            _gate_timeout: gate_timeout,
        }
    }
}

/// The series of one balancer.
pub struct BalancerSeries {
    ready: Arc<Gauge>,
    pending: Arc<Gauge>,
    p2c: Arc<Gauge>,
    /// Updates that added endpoints.
    pub added: Arc<Counter>,
    /// Updates that removed endpoints.
    pub removed: Arc<Counter>,
    /// Updates that replaced all endpoints.
    pub reset: Arc<Counter>,
    /// Requests that wait.
    pub waiting: Arc<Gauge>,
    /// Requests that came.
    pub requests: Arc<Counter>,
    /// Seconds they waited.
    pub wait: Arc<Histogram>,
    gate_open: Arc<Counter>,
    gate_shut: Arc<Counter>,
    gate_open_time: Arc<FloatGauge>,
    gate_shut_time: Arc<FloatGauge>,
    _gate_timeout: Arc<FloatGauge>,
}

impl BalancerSeries {
    /// Sets the gauges of endpoints.
    pub fn endpoints(&self, ready: usize, all: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.ready.set(number(ready));
        self.pending.set(number(all.saturating_sub(ready)));
        self.p2c.set(number(all));
    }

    /// The balancer entered or left failfast.
    pub fn gate(&self, open: bool) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        if open {
            self.gate_open.inc();
            self.gate_open_time.set(now);
        } else {
            self.gate_shut.inc();
            self.gate_shut_time.set(now);
        }
    }
}

impl Drop for BalancerSeries {
    /// A balancer that is gone has no endpoints (case T11).
    fn drop(&mut self) {
        self.endpoints(0, 0);
        self.waiting.set(0);
    }
}

/// The `parent_*` and `backend_*` labels.
pub fn resource_labels(parent: &Meta, backend: &Meta) -> LabelsBuilder {
    Labels::build()
        .with("parent_group", parent.group.clone())
        .with("parent_kind", parent.kind.clone())
        .with("parent_namespace", parent.namespace.clone())
        .with("parent_name", parent.name.clone())
        .with("parent_port", parent.port_label())
        .with("parent_section_name", parent.section.clone())
        .with("backend_group", backend.group.clone())
        .with("backend_kind", backend.kind.clone())
        .with("backend_namespace", backend.namespace.clone())
        .with("backend_name", backend.name.clone())
        .with("backend_port", backend.port_label())
        .with("backend_section_name", backend.section.clone())
}
