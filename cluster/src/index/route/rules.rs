//! Owns the rules of routes, by what they look at: HTTP requests, gRPC requests, or whole connections.

use std::time::Duration;

use super::{Backend, GrpcMatch, MAX_ITEMS, PathMatch, RouteFilter, RouteMatch};
use super::{duration, filters, matches, read_backends};
use crate::{
    index::notes::Notes,
    objects::{
        Name, Object,
        route::{self, PathModifier, Redirect, StreamRule},
    },
};

/// Filters of HTTP routes.
const HTTP_FILTERS: &[&str] = &[
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestRedirect",
];
/// Those of gRPC routes: the proxies' API has no other.
const GRPC_FILTERS: &[&str] = &["RequestHeaderModifier"];

/// The rules of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteRules {
    /// Of an HTTPRoute.
    Http(Vec<RouteRule<RouteMatch>>),
    /// Of a GRPCRoute.
    Grpc(Vec<RouteRule<GrpcMatch>>),
    /// Of a TLSRoute or TCPRoute, which has one rule: where connections go; none = the parent.
    Stream(Vec<Backend>),
}

/// A rule for requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRule<M> {
    /// Any of these; none = everything.
    pub matches: Vec<M>,
    /// In order.
    pub filters: Vec<RouteFilter>,
    /// Where requests go; none = the parent.
    pub backends: Vec<Backend>,
    /// `timeouts.request` of the rule.
    pub request_timeout: Option<Duration>,
}

impl<M> Default for RouteRule<M> {
    fn default() -> Self {
        Self {
            matches: Vec::new(),
            filters: Vec::new(),
            backends: Vec::new(),
            request_timeout: None,
        }
    }
}

impl RouteRules {
    /// The backends of all rules.
    pub fn backends(&self) -> Vec<&Backend> {
        match self {
            Self::Http(rules) => rules.iter().flat_map(|rule| &rule.backends).collect(),
            Self::Grpc(rules) => rules.iter().flat_map(|rule| &rule.backends).collect(),
            Self::Stream(backends) => backends.iter().collect(),
        }
    }
}

pub(super) fn read(object: &Object, name: &Name, notes: &mut Notes) -> Option<RouteRules> {
    Some(match object {
        Object::HttpRoute(_, o) => {
            RouteRules::Http(each(&o.spec.rules, notes, |r, field, notes| {
                http_rule(r, name, field, notes)
            })?)
        }
        Object::GrpcRoute(o) => RouteRules::Grpc(each(&o.spec.rules, notes, |r, field, notes| {
            grpc_rule(r, name, field, notes)
        })?),
        Object::TlsRoute(o) => RouteRules::Stream(stream_rule(&o.spec.rules, name, notes)?),
        Object::TcpRoute(o) => RouteRules::Stream(stream_rule(&o.spec.rules, name, notes)?),
        _ => return None,
    })
}

fn each<R, M>(
    rules: &[R],
    notes: &mut Notes,
    read: impl Fn(&R, &str, &mut Notes) -> Option<RouteRule<M>>,
) -> Option<Vec<RouteRule<M>>> {
    within(rules.len(), "rules", "spec.rules", notes)?;
    if rules.is_empty() {
        // The Gateway API's default: one rule that matches everything.
        return Some(vec![RouteRule::default()]);
    }
    let rules = rules.iter().enumerate();
    rules
        .map(|(index, rule)| read(rule, &format!("spec.rules[{index}]"), notes))
        .collect()
}

fn within(count: usize, what: &str, field: &str, notes: &mut Notes) -> Option<()> {
    if count <= MAX_ITEMS {
        return Some(());
    }
    notes.refuse(
        field,
        format!("{count} {what}, at most {MAX_ITEMS} are allowed"),
    )
}

fn http_rule(
    rule: &route::Rule,
    name: &Name,
    field: &str,
    notes: &mut Notes,
) -> Option<RouteRule<RouteMatch>> {
    const WHAT: &str = "matches, filters or backendRefs";
    let longest = rule.matches.len().max(rule.filters.len());
    within(longest.max(rule.backend_refs.len()), WHAT, field, notes)?;
    let matches = rule.matches.iter().enumerate();
    let matches: Option<Vec<_>> = matches
        .map(|(index, m)| matches::read(m, &format!("{field}.matches[{index}]"), notes))
        .collect();
    let read = RouteRule {
        matches: matches?,
        filters: filters::read(&rule.filters, HTTP_FILTERS, field, notes)?,
        backends: read_backends(&rule.backend_refs, HTTP_FILTERS, name, field, notes)?,
        request_timeout: read_timeout(rule, field, notes)?,
    };
    if read.replaces_a_prefix() && !read.matches_a_prefix() {
        let reason =
            "a redirect replaces the matched prefix, but the rule matches no path by prefix";
        return notes.refuse(field, reason);
    }
    Some(read)
}

impl RouteRule<RouteMatch> {
    fn replaces_a_prefix(&self) -> bool {
        let of_backends = self.backends.iter().flat_map(|backend| &backend.filters);
        self.filters.iter().chain(of_backends).any(|filter| {
            let RouteFilter::Redirect(Redirect { path, .. }) = filter else {
                return false;
            };
            matches!(path, Some(PathModifier::ReplacePrefixMatch { .. }))
        })
    }

    fn matches_a_prefix(&self) -> bool {
        let prefix = |m: &RouteMatch| matches!(m.path, None | Some(PathMatch::Prefix(_)));
        self.matches.is_empty() || self.matches.iter().any(prefix)
    }
}

fn grpc_rule(
    rule: &route::GrpcRule,
    name: &Name,
    field: &str,
    notes: &mut Notes,
) -> Option<RouteRule<GrpcMatch>> {
    const WHAT: &str = "matches, filters or backendRefs";
    let longest = rule.matches.len().max(rule.filters.len());
    within(longest.max(rule.backend_refs.len()), WHAT, field, notes)?;
    let matches = rule.matches.iter().enumerate();
    let matches: Option<Vec<_>> = matches
        .map(|(index, m)| matches::read_grpc(m, &format!("{field}.matches[{index}]"), notes))
        .collect();
    Some(RouteRule {
        matches: matches?,
        filters: filters::read(&rule.filters, GRPC_FILTERS, field, notes)?,
        backends: read_backends(&rule.backend_refs, GRPC_FILTERS, name, field, notes)?,
        request_timeout: None,
    })
}

/// Proxies take exactly one rule of such a route (contract 4.2).
fn stream_rule(rules: &[StreamRule], name: &Name, notes: &mut Notes) -> Option<Vec<Backend>> {
    let [rule] = rules else {
        let reason = format!("{} rules, exactly one is needed", rules.len());
        return notes.refuse("spec.rules", reason);
    };
    within(
        rule.backend_refs.len(),
        "backendRefs",
        "spec.rules[0]",
        notes,
    )?;
    read_backends(&rule.backend_refs, &[], name, "spec.rules[0]", notes)
}

/// `timeouts.request`; zero means "no limit" in the Gateway API. `backendRequest` has no effect in the proxies (contract 4.2).
#[expect(
    clippy::option_option,
    reason = "a refusal and no limit are two different answers"
)]
fn read_timeout(rule: &route::Rule, field: &str, notes: &mut Notes) -> Option<Option<Duration>> {
    let Some(text) = rule.timeouts.as_ref().and_then(|t| t.request.as_deref()) else {
        return Some(None);
    };
    match duration::parse(text) {
        Some(limit) => Some(Some(limit).filter(|limit| !limit.is_zero())),
        None => notes.refuse(
            &format!("{field}.timeouts.request"),
            "expected a duration such as 100ms or 1h30m",
        ),
    }
}
