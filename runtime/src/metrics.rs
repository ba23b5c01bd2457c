//! The metrics of a process: label families whose series come and go, and the registry that writes them as text.
//! It serves nothing over HTTP, and it does not know which families exist.

mod family;
mod process;
mod registry;
mod text;

pub use family::{Family, Instrument, Labels, SERIES_LIMIT};
pub use process::ProcessCollector;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::{
    EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder,
};
pub use prometheus_client::metrics::histogram::Histogram;
pub use registry::Registry;
pub use text::Text;

use std::sync::atomic::{AtomicI64, AtomicU64};

/// A number that only grows. `inc` and `inc_by` are one atomic addition.
pub type Counter = prometheus_client::metrics::counter::Counter<u64, AtomicU64>;
/// A counter of seconds or other fractions.
pub type FloatCounter = prometheus_client::metrics::counter::Counter<f64, AtomicU64>;
/// A number that goes up and down.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<i64, AtomicI64>;
/// A gauge of seconds or other fractions.
pub type FloatGauge = prometheus_client::metrics::gauge::Gauge<f64, AtomicU64>;

/// Upper bounds in milliseconds of `response_latency_ms` and its kin (contract 6.1); `+Inf` follows by itself.
pub const LATENCY_BUCKETS_MS: [f64; 25] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0,
    1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0, 50_000.0,
];

/// A histogram of milliseconds with [`LATENCY_BUCKETS_MS`]; for [`Family::new`].
pub fn latency_ms() -> Histogram {
    Histogram::new(LATENCY_BUCKETS_MS)
}
