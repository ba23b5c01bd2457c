//! Owns HTTPRoutes of both groups as checked facts (contract 8.2, 10.1); a route with anything unusable is refused as a
//! whole, because half a route would send requests where nobody wanted them. Does not resolve backends.

mod matches;
mod timeouts;

use std::{sync::Arc, time::Duration};

pub use matches::{HostMatch, PathMatch, RouteMatch, TextMatch};
pub use timeouts::RouteTimeouts;
pub(super) use timeouts::timeout_annotations;

use super::{Created, notes::Notes, pod::created};
use crate::objects::{
    Name,
    route::{self, BackendRef, Filter, HttpRoute, ParentRef, RouteGroup},
};

/// Largest number of rules, and of matches, backends or filters of a rule (Gateway API: 16, 64, 16, 16).
const MAX_ITEMS: usize = 64;
/// The controller whose acceptance counts (contract 8.2).
const CONTROLLER: &str = "linkerd.io/policy-controller";

/// An HTTPRoute.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Which of the two kinds.
    pub group: RouteGroup,
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// Its parents that are Services or Servers.
    pub parents: Vec<RouteParent>,
    /// Its hosts; none = all.
    pub hosts: Vec<HostMatch>,
    /// Its rules.
    pub rules: Vec<RouteRule>,
    /// Annotations `timeout.linkerd.io/*`.
    pub timeouts: Option<RouteTimeouts>,
}

/// What a route hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteParentKind {
    /// A Service: the route is for clients.
    Service,
    /// A Server: the route is for the pods behind it.
    Server,
}

/// A parent of a [`Route`].
#[derive(Clone, Debug, PartialEq)]
pub struct RouteParent {
    /// What it is.
    pub kind: RouteParentKind,
    /// Which one.
    pub name: Name,
    /// Its port; `None` = all.
    pub port: Option<u16>,
    /// Whether our controller has accepted the route for this parent.
    pub accepted: bool,
}

/// A rule of a [`Route`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteRule {
    /// Any of these; none = everything.
    pub matches: Vec<RouteMatch>,
    /// In order.
    pub filters: Vec<RouteFilter>,
    /// Where requests go; none = the parent.
    pub backends: Vec<Backend>,
    /// `timeouts.request` of the rule.
    pub request_timeout: Option<Duration>,
}

/// A filter.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteFilter {
    /// Changes request headers.
    RequestHeaders(HeaderFilter),
    /// Changes response headers.
    ResponseHeaders(HeaderFilter),
    /// Answers with a redirect.
    Redirect(route::Redirect),
}

/// Changes of headers, with valid names and values.
pub type HeaderFilter = route::HeaderModifier;

/// Where requests go.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// `Service`, or another kind, which no request can reach.
    pub kind: Arc<str>,
    /// Which one.
    pub name: Name,
    /// Its port.
    pub port: Option<u16>,
    /// Share among the backends of the rule.
    pub weight: u32,
    /// Filters for requests that go here.
    pub filters: Vec<RouteFilter>,
}

pub(super) fn read(
    group: RouteGroup,
    route: &HttpRoute,
    name: &Name,
    notes: &mut Notes,
) -> Option<Route> {
    let spec = &route.spec;
    let hosts = matches::hosts(&spec.hostnames, notes)?;
    let timeouts = match timeout_annotations(route.metadata.annotations.as_ref()) {
        Ok(timeouts) => timeouts,
        Err((field, reason)) => return notes.refuse(&field, reason),
    };
    let parents = spec.parent_refs.iter();
    Some(Route {
        group,
        name: name.clone(),
        created: created(&route.metadata),
        parents: parents
            .filter_map(|parent| read_parent(parent, route, name))
            .collect(),
        hosts,
        rules: read_rules(&spec.rules, name, notes)?,
        timeouts,
    })
}

fn read_rules(rules: &[route::Rule], name: &Name, notes: &mut Notes) -> Option<Vec<RouteRule>> {
    if rules.len() > MAX_ITEMS {
        let reason = format!("{} rules, at most {MAX_ITEMS} are allowed", rules.len());
        return notes.refuse("spec.rules", reason);
    }
    if rules.is_empty() {
        // The Gateway API's default: one rule that matches everything.
        return Some(vec![RouteRule::default()]);
    }
    let mut read = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        read.push(read_rule(
            rule,
            name,
            &format!("spec.rules[{index}]"),
            notes,
        )?);
    }
    Some(read)
}

fn read_parent(parent: &ParentRef, route: &HttpRoute, name: &Name) -> Option<RouteParent> {
    let kind = match (parent.group.as_deref(), parent.kind.as_deref()) {
        (Some("" | "core"), Some("Service")) => RouteParentKind::Service,
        (Some("policy.linkerd.io"), Some("Server")) => RouteParentKind::Server,
        _ => return None,
    };
    let namespace = |parent: &ParentRef| {
        parent
            .namespace
            .clone()
            .unwrap_or_else(|| name.namespace.to_string())
    };
    let statuses = route.status.iter().flat_map(|status| &status.parents);
    let ours = statuses.filter(|status| {
        status.controller_name == CONTROLLER
            && status.parent_ref.name == parent.name
            && status.parent_ref.kind == parent.kind
            && status.parent_ref.port == parent.port
            && namespace(&status.parent_ref) == namespace(parent)
    });
    let accepted = ours
        .flat_map(|status| &status.conditions)
        .any(|c| c.type_ == "Accepted" && c.status == "True");
    Some(RouteParent {
        kind,
        name: Name::new(&namespace(parent), &parent.name),
        port: parent.port,
        accepted,
    })
}

fn read_rule(rule: &route::Rule, name: &Name, field: &str, notes: &mut Notes) -> Option<RouteRule> {
    let longest = rule
        .matches
        .len()
        .max(rule.filters.len())
        .max(rule.backend_refs.len());
    if longest > MAX_ITEMS {
        return notes.refuse(
            field,
            format!("{longest} matches, filters or backendRefs, at most {MAX_ITEMS} are allowed"),
        );
    }
    let mut matches = Vec::with_capacity(rule.matches.len());
    for (index, m) in rule.matches.iter().enumerate() {
        matches.push(matches::read(
            m,
            &format!("{field}.matches[{index}]"),
            notes,
        )?);
    }
    let filters = read_filters(&rule.filters, field, notes)?;
    let mut backends = Vec::with_capacity(rule.backend_refs.len());
    for (index, backend) in rule.backend_refs.iter().enumerate() {
        backends.push(read_backend(
            backend,
            name,
            &format!("{field}.backendRefs[{index}]"),
            notes,
        )?);
    }
    Some(RouteRule {
        matches,
        filters,
        backends,
        request_timeout: read_timeout(rule, field, notes)?,
    })
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
    match timeouts::gateway_duration(text) {
        Some(limit) => Some(Some(limit).filter(|limit| !limit.is_zero())),
        None => notes.refuse(
            &format!("{field}.timeouts.request"),
            "expected a duration such as 100ms or 1h30m",
        ),
    }
}

fn read_backend(
    backend: &BackendRef,
    name: &Name,
    field: &str,
    notes: &mut Notes,
) -> Option<Backend> {
    let kind = match (backend.group.as_deref(), backend.kind.as_deref()) {
        (None | Some("" | "core"), None | Some("Service")) => "Service".into(),
        (group, kind) => format!(
            "{}.{}",
            kind.unwrap_or("Service"),
            group.unwrap_or_default()
        )
        .into(),
    };
    Some(Backend {
        kind,
        name: Name::new(
            backend.namespace.as_deref().unwrap_or(&name.namespace),
            &backend.name,
        ),
        port: backend.port,
        weight: backend.weight.unwrap_or(1),
        filters: read_filters(&backend.filters, field, notes)?,
    })
}

fn read_filters(filters: &[Filter], field: &str, notes: &mut Notes) -> Option<Vec<RouteFilter>> {
    let mut read = Vec::with_capacity(filters.len());
    for (index, filter) in filters.iter().enumerate() {
        let field = format!("{field}.filters[{index}]");
        read.push(match filter.kind.as_str() {
            "RequestHeaderModifier" => RouteFilter::RequestHeaders(read_headers(
                filter.request_header_modifier.as_ref(),
                &field,
                notes,
            )?),
            "ResponseHeaderModifier" => RouteFilter::ResponseHeaders(read_headers(
                filter.response_header_modifier.as_ref(),
                &field,
                notes,
            )?),
            "RequestRedirect" => RouteFilter::Redirect(read_redirect(filter, &field, notes)?),
            other => {
                return notes.refuse(
                    &format!("{field}.type"),
                    format!("filter {other:?} is not supported"),
                );
            }
        });
    }
    Some(read)
}

fn read_headers(
    modifier: Option<&HeaderFilter>,
    field: &str,
    notes: &mut Notes,
) -> Option<HeaderFilter> {
    let Some(modifier) = modifier else {
        return notes.refuse(field, "the field of the filter's type is missing");
    };
    let named = modifier
        .set
        .iter()
        .chain(&modifier.add)
        .map(|header| &header.name)
        .chain(&modifier.remove);
    if let Some(name) = named
        .into_iter()
        .find(|name| http::HeaderName::try_from(name.as_str()).is_err())
    {
        return notes.refuse(field, format!("{name:?} is not a header name"));
    }
    let valued = modifier.set.iter().chain(&modifier.add);
    if let Some(header) = valued
        .into_iter()
        .find(|h| http::HeaderValue::try_from(h.value.as_str()).is_err())
    {
        return notes.refuse(
            field,
            format!(
                "header {:?} has a value with characters no header has",
                header.name
            ),
        );
    }
    Some(modifier.clone())
}

fn read_redirect(filter: &Filter, field: &str, notes: &mut Notes) -> Option<route::Redirect> {
    let Some(redirect) = &filter.request_redirect else {
        return notes.refuse(field, "the field of the filter's type is missing");
    };
    if let Some(code) = redirect
        .status_code
        .filter(|code| !(300..400).contains(code))
    {
        return notes.refuse(
            &format!("{field}.requestRedirect.statusCode"),
            format!("{code} is not a redirect"),
        );
    }
    if let Some(scheme) = redirect
        .scheme
        .as_deref()
        .filter(|s| !matches!(*s, "http" | "https"))
    {
        return notes.refuse(
            &format!("{field}.requestRedirect.scheme"),
            format!("{scheme:?} is not http or https"),
        );
    }
    Some(redirect.clone())
}
