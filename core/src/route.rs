//! Which rule of which route serves a request (contract 3.2): the most specific match wins, and of equal ones the first.
//! Generic over the payload of a rule; applies no filters and picks no backend. Selecting allocates nothing, but for a
//! percent-encoded query value that meets a regular expression.

use http::{HeaderMap, Method};

mod grpc;
mod host;
mod pattern;
mod request;

pub use grpc::{GrpcMatch, GrpcRoute, GrpcRule, find_grpc};
pub use host::HostMatch;
pub use pattern::{MAX_REGEX_SIZE, Pattern};
pub use request::{HeaderMatch, PathMatch, QueryMatch, RequestMatch};

use thiserror::Error;

/// The parts of a request that routes look at.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The request method.
    pub method: &'a Method,
    /// `:authority` or `Host`; a port and a trailing dot are ignored, as is case (case H17).
    pub host: Option<&'a str>,
    /// The path, without query; empty or `*` where the request target has none.
    pub path: &'a str,
    /// The query without `?`.
    pub query: Option<&'a str>,
    /// The request headers.
    pub headers: &'a HeaderMap,
}

/// A set of rules for some hosts.
#[derive(Clone, Debug)]
pub struct Route<T, M = RequestMatch> {
    /// Hosts served; none means every host.
    pub hosts: Vec<HostMatch>,
    /// Rules in the order of their declaration.
    pub rules: Vec<Rule<T, M>>,
}

/// What to do with some requests.
#[derive(Clone, Debug)]
pub struct Rule<T, M = RequestMatch> {
    /// Any of these selects the rule; none means every request.
    pub matches: Vec<M>,
    /// The payload.
    pub policy: T,
}

/// Why a match cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MatchError {
    /// A host is not a DNS name.
    #[error("route host {0:?} is not a DNS name such as example.com or *.example.com")]
    Host(String),
    /// A host is an IP address.
    #[error("route host {0:?} is an IP address: give a DNS name")]
    HostAddress(String),
    /// A path does not begin with a slash.
    #[error("route path {0:?} does not begin with '/'")]
    Path(String),
    /// A header has a name no header has.
    #[error("header name {0:?} of a route match is not valid")]
    HeaderName(String),
    /// A query parameter has no name.
    #[error("query parameter of a route match has no name")]
    QueryName,
    /// A regular expression does not compile, or is too large.
    #[error("regular expression {pattern:?} of a route match is refused: {reason}")]
    Regex {
        /// The expression, cut to a printable length.
        pattern: String,
        /// What the compiler says.
        reason: String,
    },
}

/// The rule for an HTTP request with the index of its route. `None` means no route: 404.
pub fn find<'r, T>(
    routes: &'r [Route<T>],
    request: &RequestView<'_>,
) -> Option<(usize, &'r Rule<T>)> {
    most_specific(routes, request)
}

/// Of payloads that are for some hosts each (none means every host) the one for a host, given without a port: the most specific,
/// and of equal ones the first.
pub fn find_by_host<'r, T>(routes: &'r [(Vec<HostMatch>, T)], host: &str) -> Option<&'r T> {
    let mut best = None;
    for (hosts, payload) in routes {
        let Some(found) = host::specificity(hosts, Some(host)) else {
            continue;
        };
        if best.as_ref().is_none_or(|(top, _)| found > *top) {
            best = Some((found, payload));
        }
    }
    best.map(|(_, payload)| payload)
}

/// A way to match requests, with an order of how specific a match was; greater is more specific.
trait Match {
    type Specificity: Ord;

    /// How specifically this matches, or `None` if it does not.
    fn matches(&self, request: &RequestView<'_>) -> Option<Self::Specificity>;

    /// How a rule without matches matches.
    fn matches_any(request: &RequestView<'_>) -> Option<Self::Specificity>;
}

fn most_specific<'r, T, M: Match>(
    routes: &'r [Route<T, M>],
    request: &RequestView<'_>,
) -> Option<(usize, &'r Rule<T, M>)> {
    let host = request.host.map(host::bare);
    let mut best: Option<(_, usize, &Rule<T, M>)> = None;
    for (index, route) in routes.iter().enumerate() {
        let Some(host) = host::specificity(&route.hosts, host) else {
            continue;
        };
        for rule in &route.rules {
            let found = if rule.matches.is_empty() {
                M::matches_any(request)
            } else {
                let matches = rule.matches.iter();
                matches.filter_map(|m| m.matches(request)).max()
            };
            let Some(found) = found else { continue };
            let rank = (host, found);
            // Strictly greater: of equal matches the first declared stays.
            if best.as_ref().is_none_or(|(top, ..)| rank > *top) {
                best = Some((rank, index, rule));
            }
        }
    }
    best.map(|(_, index, rule)| (index, rule))
}

#[cfg(test)]
mod tests;
