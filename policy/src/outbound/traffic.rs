//! Owns time limits, retries and circuit breaking as messages, and which of a route and its parent says them (contract
//! 8.2, 10.1).

use std::time::Duration;

use linkerd2_proxy_api::{
    http_route::Timeouts,
    outbound::{
        ExponentialBackoff, FailureAccrual, failure_accrual as accrual, grpc_route as grpc,
        http_route as http,
    },
};
use weft_cluster::index::{GrpcCode, GrpcConditions, HttpConditions, Retry, Route, RouteTimeouts};

use super::parent::Parent;
use crate::wire;

/// Largest body that is kept for another try (contract 4.6).
const MAX_REQUEST_BYTES: u32 = 64 * 1024;

impl Parent<'_> {
    /// What the route says in any way replaces what the parent says as a whole; of the route, the annotation wins over the
    /// rule's field (case H18).
    pub(super) fn timeouts(&self, route: &Route, rule: Option<Duration>) -> RouteTimeouts {
        let mut timeouts = route.timeouts.unwrap_or_default();
        timeouts.request = timeouts.request.or(rule);
        if timeouts == RouteTimeouts::default() {
            self.traffic().timeouts.unwrap_or_default()
        } else {
            timeouts
        }
    }

    pub(super) fn http_retry(&self, route: Option<&Route>) -> Option<http::Retry> {
        let own = route.and_then(|route| route.retries.http.as_ref());
        own.or(self.traffic().retries.http.as_ref()).map(http_retry)
    }

    pub(super) fn grpc_retry(&self, route: Option<&Route>) -> Option<grpc::Retry> {
        let own = route.and_then(|route| route.retries.grpc.as_ref());
        own.or(self.traffic().retries.grpc.as_ref()).map(grpc_retry)
    }

    /// When an endpoint is left alone.
    pub(super) fn failure_accrual(&self) -> Option<FailureAccrual> {
        let given = self.traffic().accrual?;
        let backoff = Some(ExponentialBackoff {
            min_backoff: wire::duration(given.backoff.min),
            max_backoff: wire::duration(given.backoff.max),
            jitter_ratio: given.backoff.jitter,
            respect_retry_after_hint: given.backoff.honor_retry_after,
        });
        let kind = match given.success_rate {
            None => accrual::Kind::ConsecutiveFailures(accrual::ConsecutiveFailures {
                max_failures: given.max_failures,
                backoff,
            }),
            Some(rate) => accrual::Kind::Unified(accrual::Unified {
                success_rate_threshold: rate.threshold,
                decay: wire::duration(rate.window),
                min_requests: rate.min_requests,
                max_consecutive_failures: given.max_failures,
                backoff,
            }),
        };
        Some(FailureAccrual {
            kind: Some(kind),
            ejection: None,
        })
    }
}

pub(super) fn timeouts(limits: RouteTimeouts) -> Timeouts {
    Timeouts {
        request: limits.request.and_then(wire::duration),
        response: limits.response.and_then(wire::duration),
        idle: limits.idle.and_then(wire::duration),
    }
}

fn http_retry(retry: &Retry<HttpConditions>) -> http::Retry {
    let ranges = retry.conditions.iter().map(|range| {
        let (start, end) = (u32::from(*range.start()), u32::from(*range.end()));
        http::retry::conditions::StatusRange { start, end }
    });
    http::Retry {
        max_retries: u32::from(retry.limit),
        max_request_bytes: MAX_REQUEST_BYTES,
        conditions: Some(http::retry::Conditions {
            status_ranges: ranges.collect(),
        }),
        timeout: retry.timeout.and_then(wire::duration),
        backoff: Some(retry_backoff()),
    }
}

fn grpc_retry(retry: &Retry<GrpcConditions>) -> grpc::Retry {
    let has = |code| retry.conditions.contains(&code);
    grpc::Retry {
        max_retries: u32::from(retry.limit),
        max_request_bytes: MAX_REQUEST_BYTES,
        conditions: Some(grpc::retry::Conditions {
            cancelled: has(GrpcCode::Cancelled),
            deadine_exceeded: has(GrpcCode::DeadlineExceeded),
            resource_exhausted: has(GrpcCode::ResourceExhausted),
            internal: has(GrpcCode::Internal),
            unavailable: has(GrpcCode::Unavailable),
        }),
        timeout: retry.timeout.and_then(wire::duration),
        backoff: Some(retry_backoff()),
    }
}

/// Between tries, by default (contract 4.6).
fn retry_backoff() -> ExponentialBackoff {
    ExponentialBackoff {
        min_backoff: wire::duration(Duration::from_millis(25)),
        max_backoff: wire::duration(Duration::from_millis(250)),
        jitter_ratio: 1.0,
        respect_retry_after_hint: false,
    }
}
