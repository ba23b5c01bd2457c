//! Matching gRPC calls by service, method and headers. Shares hosts and the choice of the best with HTTP routes.

use std::sync::Arc;

use http::Method;

use super::{HeaderMatch, Match, RequestView, Route, Rule, most_specific};

/// A route for gRPC calls.
pub type GrpcRoute<T> = Route<T, GrpcMatch>;
/// A rule for gRPC calls.
pub type GrpcRule<T> = Rule<T, GrpcMatch>;

/// Conditions on a gRPC call, all of which must hold. The default matches every call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcMatch {
    /// The service with its package, compared by case.
    pub service: Option<Arc<str>>,
    /// The method, compared by case.
    pub method: Option<Arc<str>>,
    /// Headers that must match.
    pub headers: Vec<HeaderMatch>,
}

impl Match for GrpcMatch {
    /// Service length, method length, headers.
    type Specificity = (usize, usize, usize);

    fn matches(&self, request: &RequestView<'_>) -> Option<Self::Specificity> {
        let (service, method) = call(request)?;
        let service = specificity(self.service.as_deref(), service)?;
        let method = specificity(self.method.as_deref(), method)?;
        let all = self.headers.iter().all(|m| m.matches(request.headers));
        all.then_some((service, method, self.headers.len()))
    }

    fn matches_any(request: &RequestView<'_>) -> Option<Self::Specificity> {
        call(request).map(|_| (0, 0, 0))
    }
}

/// The rule for a gRPC call with the index of its route. `None` means no route: gRPC `NotFound`; so is anything but a POST.
pub fn find_grpc<'r, T>(
    routes: &'r [GrpcRoute<T>],
    request: &RequestView<'_>,
) -> Option<(usize, &'r GrpcRule<T>)> {
    most_specific(routes, request)
}

/// Service and method of a `POST /service/method`.
fn call<'a>(request: &RequestView<'a>) -> Option<(&'a str, &'a str)> {
    if request.method != Method::POST {
        return None;
    }
    request.path.strip_prefix('/')?.split_once('/')
}

/// Length of the wanted name if it is the one found; 0 if none is wanted.
fn specificity(wanted: Option<&str>, found: &str) -> Option<usize> {
    match wanted {
        None => Some(0),
        Some(wanted) => (wanted == found).then_some(wanted.len()),
    }
}
