//! The metrics of certificate renewal (contract 6.2). Counts what it is told; renews nothing.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use weft_runtime::metrics::{Counter, Family, FloatGauge, Registry};

/// Expiry, last success, and counts of both outcomes. Both outcomes are exported from the start, at 0.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    expiration: FloatGauge,
    refreshed: FloatGauge,
    ok: Arc<Counter>,
    error: Arc<Counter>,
}

type Outcome = [(&'static str, &'static str); 1];

impl CertificateMetrics {
    /// Registers the three families. To be called once per registry.
    pub fn register(registry: &Registry) -> Self {
        let refreshes = Family::<Outcome, Counter>::new(Counter::default);
        let metrics = Self {
            expiration: registry.float_gauge(
                "control_identity_cert_expiration_timestamp_seconds",
                "End of validity of the proxy's certificate, in seconds since the epoch",
            ),
            refreshed: registry.float_gauge(
                "control_identity_cert_refresh_timestamp_seconds",
                "Last renewal of the proxy's certificate, in seconds since the epoch",
            ),
            ok: refreshes.resolve(&[("result", "ok")]),
            error: refreshes.resolve(&[("result", "error")]),
        };
        registry.register(
            "control_identity_cert_refreshes",
            "Renewals of the proxy's certificate that were tried",
            refreshes,
        );
        metrics
    }

    pub(super) fn succeeded(&self, now: SystemTime, expires: SystemTime) {
        self.ok.inc();
        self.refreshed.set(seconds(now));
        self.expiration.set(seconds(expires));
    }

    pub(super) fn failed(&self) {
        self.error.inc();
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
