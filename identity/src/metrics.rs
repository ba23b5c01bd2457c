//! The metrics of the identity service (contract 2.5), under the names that Linkerd uses; those of its calls are of
//! `weft_runtime::grpc`. Serves nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use weft_runtime::grpc::{self, Call};
use weft_runtime::metrics::{Collector, Counter, Family, Histogram, Registry};

use crate::authority::unix_seconds;
use crate::token::TokenError;

const SERVICE: &str = "io.linkerd.proxy.identity.Identity";
/// No issuer was loaded yet.
const NO_ISSUER: i64 = i64::MIN;

/// Upper bounds in seconds: a local signature check to the time limit of a TokenReview.
const CHECK_BUCKETS: [f64; 10] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0,
];

/// What became of something.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
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
    reloads: Family<Outcome, Counter>,
    token_checks: Family<Outcome, Histogram>,
    events: Family<Outcome, Counter>,
    not_after: Arc<AtomicI64>,
}

impl Metrics {
    /// Registers the families in `registry`.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            calls: grpc::Metrics::register(registry),
            reloads: Family::new(Counter::default),
            token_checks: Family::new(|| Histogram::new(CHECK_BUCKETS)),
            events: Family::new(Counter::default),
            not_after: Arc::new(AtomicI64::new(NO_ISSUER)),
        };
        registry.register(
            "issuer_reload_total",
            "Changes of the issuer files, by what became of them",
            metrics.reloads.clone(),
        );
        registry.register(
            "token_check_seconds",
            "Time to find out whose token it is, by what was found",
            metrics.token_checks.clone(),
        );
        registry.register(
            "kubernetes_events_total",
            "Events for the Kubernetes API, by what became of them",
            metrics.events.clone(),
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
        self.reloads.resolve(&Outcome { result }).inc();
    }

    pub(crate) fn token_checked<T>(&self, took: Duration, found: &Result<T, TokenError>) {
        let result = match found {
            Ok(_) => "authenticated",
            Err(TokenError::Malformed(_) | TokenError::Refused(_)) => "refused",
            Err(TokenError::Unchecked(_) | TokenError::Busy(_)) => "unchecked",
        };
        let times = self.token_checks.resolve(&Outcome { result });
        times.observe(took.as_secs_f64());
    }

    /// `result` is `sent`, `failed` or `dropped`.
    pub(crate) fn event(&self, result: &'static str) {
        self.events.resolve(&Outcome { result }).inc();
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
