//! The metrics of the identity service (contract 2.5), under the names that Linkerd uses; those of its calls are of
//! `weft_runtime::grpc`. Serves nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use weft_runtime::grpc::{self, Call};
use weft_runtime::metrics::{Collector, Counter, Family, Registry};

use crate::authority::unix_seconds;

const SERVICE: &str = "io.linkerd.proxy.identity.Identity";
/// No issuer was loaded yet.
const NO_ISSUER: i64 = i64::MIN;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadResult {
    result: &'static str,
}

/// How a look at changed issuer files ended.
#[derive(Debug, Clone, Copy)]
pub enum Reload {
    /// A new pair is in use.
    Updated,
    /// The new files are not usable.
    Refused,
}

/// All that the identity service counts.
#[derive(Debug)]
pub struct Metrics {
    calls: grpc::Metrics,
    reloads: Family<ReloadResult, Counter>,
    not_after: Arc<AtomicI64>,
}

impl Metrics {
    /// Registers the families in `registry`.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            calls: grpc::Metrics::register(registry),
            reloads: Family::new(Counter::default),
            not_after: Arc::new(AtomicI64::new(NO_ISSUER)),
        };
        registry.register(
            "issuer_reload_total",
            "Changes of the issuer files, by what became of them",
            metrics.reloads.clone(),
        );
        registry.collector(
            &["issuer_cert_ttl_seconds", "issuer_not_after"],
            IssuerExpiry {
                not_after: metrics.not_after.clone(),
            },
        );
        metrics
    }

    pub(crate) fn certify(&self) -> Call {
        self.calls.unary(SERVICE, "Certify")
    }

    pub(crate) fn reload(&self, reload: Reload) {
        let result = match reload {
            Reload::Updated => "updated",
            Reload::Refused => "refused",
        };
        self.reloads.resolve(&ReloadResult { result }).inc();
    }

    pub(crate) fn issuer_loaded(&self, not_after: SystemTime) {
        self.not_after
            .store(unix_seconds(not_after), Ordering::Relaxed);
    }
}

/// Computed at each scrape, because the time that is left goes down by itself.
#[derive(Debug)]
struct IssuerExpiry {
    not_after: Arc<AtomicI64>,
}

impl Collector for IssuerExpiry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let not_after = self.not_after.load(Ordering::Relaxed);
        if not_after == NO_ISSUER {
            return Ok(());
        }
        let left = not_after.saturating_sub(unix_seconds(SystemTime::now()));
        for (name, help, value) in [
            (
                "issuer_cert_ttl_seconds",
                "Seconds until the issuer or something above it expires",
                left,
            ),
            (
                "issuer_not_after",
                "When that is, in seconds since 1970",
                not_after,
            ),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}
