//! The metrics of the identity service (contract 2.5), under the names that go-grpc-prometheus and Linkerd use. Serves nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tonic::Code;
use weft_runtime::metrics::{Collector, Counter, Family, Histogram, Registry};

use crate::authority::unix_seconds;

/// The buckets of go-grpc-prometheus, in seconds.
const HANDLING_BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// No issuer was loaded yet.
const NO_ISSUER: i64 = i64::MIN;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Handled {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
    grpc_code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadResult {
    result: &'static str,
}

const CERTIFY: Method = Method {
    grpc_service: "io.linkerd.proxy.identity.Identity",
    grpc_method: "Certify",
    grpc_type: "unary",
};

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
    started: Family<Method, Counter>,
    handled: Family<Handled, Counter>,
    handling: Family<Method, Histogram>,
    reloads: Family<ReloadResult, Counter>,
    not_after: Arc<AtomicI64>,
}

impl Metrics {
    /// Registers the families in `registry`.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            started: Family::new(Counter::default),
            handled: Family::new(Counter::default),
            handling: Family::new(|| Histogram::new(HANDLING_BUCKETS)),
            reloads: Family::new(Counter::default),
            not_after: Arc::new(AtomicI64::new(NO_ISSUER)),
        };
        registry.register(
            "grpc_server_started_total",
            "RPCs that began",
            metrics.started.clone(),
        );
        registry.register(
            "grpc_server_handled_total",
            "RPCs that ended, by gRPC code",
            metrics.handled.clone(),
        );
        registry.register(
            "grpc_server_handling_seconds",
            "How long RPCs took",
            metrics.handling.clone(),
        );
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

    pub(crate) fn certify_started(&self) {
        self.started.resolve(&CERTIFY).inc();
    }

    pub(crate) fn certify_handled(&self, code: Code, took: Duration) {
        let Method {
            grpc_service,
            grpc_method,
            grpc_type,
        } = CERTIFY;
        let labels = Handled {
            grpc_service,
            grpc_method,
            grpc_type,
            grpc_code: code_name(code),
        };
        self.handled.resolve(&labels).inc();
        self.handling.resolve(&CERTIFY).observe(took.as_secs_f64());
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

/// The codes that Certify answers with, as gRPC for Go spells them.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "InvalidArgument",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Unavailable => "Unavailable",
        Code::Internal => "Internal",
        Code::ResourceExhausted => "ResourceExhausted",
        _ => "Unknown",
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
