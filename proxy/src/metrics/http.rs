//! Owns `request_total`, `response_total` and `response_latency_ms` (contract 6.1), and the
//! classification of a response when it ends. Does not see bodies: `http::body` calls it.

use super::labels::{Labels, With};
use crate::error::Error;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use weft_core::classify::{self, Class};
use weft_runtime::metrics::{Counter, Family, Histogram, Registry, latency_ms};

/// The families of HTTP exchanges.
#[derive(Clone)]
pub struct HttpMetrics {
    requests: Family<Labels, Counter>,
    responses: Family<With<4>, Counter>,
    latency: Family<With<1>, Histogram>,
}

impl HttpMetrics {
    /// Makes and registers the families.
    pub fn new(registry: &Registry) -> Self {
        let this = Self {
            requests: Family::new(Counter::default),
            responses: Family::new(Counter::default),
            latency: Family::new(latency_ms),
        };
        registry.register_legacy("request_total", "HTTP requests", this.requests.clone());
        registry.register_legacy("response_total", "HTTP responses", this.responses.clone());
        registry.register_legacy(
            "response_latency_ms",
            "Milliseconds from a request's head to the end of its response",
            this.latency.clone(),
        );
        this
    }

    /// Resolves the series of one route to one peer.
    pub fn series(&self, labels: Labels) -> Arc<HttpSeries> {
        Arc::new(HttpSeries {
            requests: self.requests.resolve(&labels),
            families: self.clone(),
            labels,
            outcomes: Mutex::new(Vec::new()),
        })
    }
}

/// The series of one route to one peer.
pub struct HttpSeries {
    labels: Labels,
    families: HttpMetrics,
    requests: Arc<Counter>,
    /// Few in practice (a status or two); searched in order of first use.
    outcomes: Mutex<Vec<Counted>>,
}

struct Counted {
    outcome: Outcome,
    count: Arc<Counter>,
    latency: Arc<Histogram>,
}

/// How a response ended, as far as metrics tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// HTTP status.
    pub status: u16,
    /// The gRPC status, where the response is gRPC.
    pub grpc: Option<u16>,
    /// Why the proxy or the transport ended it, if so; empty otherwise.
    pub error: &'static str,
}

impl Outcome {
    /// A request that the proxy answers itself because of `error`.
    pub fn of(error: &Error) -> Self {
        Self {
            status: error.status().as_u16(),
            grpc: None,
            error: error.label(),
        }
    }

    /// Success or failure by contract 4.5.
    pub fn class(&self) -> Class {
        if !self.error.is_empty() {
            return Class::Failure;
        }
        match self.grpc {
            Some(code) => classify::grpc(Some(code)),
            None => http::StatusCode::from_u16(self.status).map_or(Class::Failure, classify::http),
        }
    }
}

/// More kinds of outcome than this for one route and peer are not cached (a hostile server
/// could send each status); they are still counted.
const MAX_CACHED_OUTCOMES: usize = 64;

impl HttpSeries {
    /// Counts a request.
    pub fn request(&self) {
        self.requests.inc();
    }

    /// Counts a response that ended, `latency` after its request came.
    pub fn response(&self, outcome: Outcome, latency: Duration) {
        let ms = latency.as_secs_f64() * 1e3;
        let mut outcomes = self.outcomes.lock();
        if let Some(counted) = outcomes.iter().find(|c| c.outcome == outcome) {
            counted.count.inc();
            counted.latency.observe(ms);
            return;
        }
        let counted = self.resolve(outcome);
        counted.count.inc();
        counted.latency.observe(ms);
        if outcomes.len() < MAX_CACHED_OUTCOMES {
            outcomes.push(counted);
        }
    }

    fn resolve(&self, outcome: Outcome) -> Counted {
        let status: Cow<'static, str> = Cow::Owned(outcome.status.to_string());
        let class = outcome.class().as_str();
        let grpc = outcome.grpc.map(|c| c.to_string()).unwrap_or_default();
        let count = self.families.responses.resolve(&With {
            base: self.labels.clone(),
            more: [
                ("status_code", status.clone()),
                ("classification", Cow::Borrowed(class)),
                ("grpc_status", Cow::Owned(grpc)),
                ("error", Cow::Borrowed(outcome.error)),
            ],
        });
        let latency = self.families.latency.resolve(&With {
            base: self.labels.clone(),
            more: [("status_code", status)],
        });
        Counted {
            outcome,
            count,
            latency,
        }
    }
}
