//! Owns the `grpc_server_*` metrics, under the names of go-grpc-prometheus, and the gauge of calls that have not ended
//! (contract 2.5, 8.2). Knows no service and serves nothing.

use prometheus_client::encoding::EncodeLabelSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tonic::{Code, Response, Status};

use crate::metrics::{Counter, Family, Gauge, Histogram, Registry};

/// Upper bounds in seconds: those of go-grpc-prometheus (5 ms to 10 s), before them a quick refusal, after them streams of up
/// to a day.
const DURATION_BUCKETS: [f64; 16] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3_600.0,
    86_400.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Handled {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
    grpc_code: &'static str,
}

/// The metrics of all gRPC servers that share a registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    started: Family<Method, Counter>,
    handled: Family<Handled, Counter>,
    handling: Family<Method, Histogram>,
    received: Family<Method, Counter>,
    sent: Family<Method, Counter>,
    open: Family<Method, Gauge>,
}

impl Default for Metrics {
    /// Metrics that nobody reads.
    fn default() -> Self {
        Self {
            started: Family::new(Counter::default),
            handled: Family::new(Counter::default),
            handling: Family::new(|| Histogram::new(DURATION_BUCKETS)),
            received: Family::new(Counter::default),
            sent: Family::new(Counter::default),
            open: Family::new(Gauge::default),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry; once per registry.
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "grpc_server_started",
            "Calls started",
            metrics.started.clone(),
        );
        registry.register(
            "grpc_server_handled",
            "Calls ended, by code",
            metrics.handled.clone(),
        );
        registry.register(
            "grpc_server_handling_seconds",
            "Time from start to end of calls",
            metrics.handling.clone(),
        );
        registry.register(
            "grpc_server_msg_received",
            "Messages received",
            metrics.received.clone(),
        );
        registry.register(
            "grpc_server_msg_sent",
            "Messages sent",
            metrics.sent.clone(),
        );
        registry.register(
            "grpc_server_open_streams",
            "Calls that have not ended",
            metrics.open.clone(),
        );
        metrics
    }

    /// Counts the start of a call that is answered once, and its request.
    pub fn unary(&self, service: &'static str, method: &'static str) -> Call {
        self.start(service, method, "unary")
    }

    /// Counts the start of a call that is answered by a stream, and its request.
    pub fn streaming(&self, service: &'static str, method: &'static str) -> Call {
        self.start(service, method, "server_stream")
    }

    fn start(&self, service: &'static str, method: &'static str, kind: &'static str) -> Call {
        let labels = Method {
            grpc_service: service,
            grpc_method: method,
            grpc_type: kind,
        };
        self.started.resolve(&labels).inc();
        self.received.resolve(&labels).inc();
        let open = self.open.resolve(&labels);
        open.inc();
        Call {
            sent: self.sent.resolve(&labels),
            handling: self.handling.resolve(&labels),
            handled: self.handled.clone(),
            started: Instant::now(),
            finished: AtomicBool::new(false),
            open,
            labels,
        }
    }
}

/// A call that is being counted; dropped without an end it was cancelled by the client.
pub struct Call {
    labels: Method,
    started: Instant,
    sent: Arc<Counter>,
    handling: Arc<Histogram>,
    open: Arc<Gauge>,
    handled: Family<Handled, Counter>,
    finished: AtomicBool,
}

impl Call {
    /// Counts a message.
    pub(super) fn sent(&self) {
        self.sent.inc();
    }

    /// Answers once, and counts it.
    ///
    /// # Errors
    /// That of `answer`.
    pub fn answer<M>(&self, answer: Result<M, Status>) -> Result<Response<M>, Status> {
        match answer {
            Ok(message) => {
                self.sent();
                self.finish(Code::Ok);
                Ok(Response::new(message))
            }
            Err(status) => {
                self.finish(status.code());
                Err(status)
            }
        }
    }

    /// Counts the end, the first time it is called.
    pub(super) fn finish(&self, code: Code) {
        if self.finished.swap(true, Ordering::Relaxed) {
            return;
        }
        let Method {
            grpc_service,
            grpc_method,
            grpc_type,
        } = self.labels;
        let labels = Handled {
            grpc_service,
            grpc_method,
            grpc_type,
            grpc_code: code_name(code),
        };
        self.handled.resolve(&labels).inc();
        self.handling.observe(self.started.elapsed().as_secs_f64());
        self.open.dec();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.finish(Code::Cancelled);
    }
}

/// The names that the Go libraries use, because dashboards are written for those.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
