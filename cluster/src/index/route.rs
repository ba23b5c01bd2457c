//! Owns routes of all kinds as checked facts (contract 8.2, 10.1); a route with anything unusable is refused as a whole,
//! because half a route would send requests where nobody wanted them. Does not resolve backends and does not decide
//! whether a parent takes the route.

mod duration;
mod filters;
mod matches;
mod rules;

use std::sync::Arc;

pub use duration::parse as gateway_duration;
pub use filters::{HeaderFilter, RouteFilter};
pub use matches::{GrpcMatch, HostMatch, PathMatch, RouteMatch, TextMatch};
pub use rules::{RouteRule, RouteRules};

use super::{Created, Retries, RouteTimeouts, notes::Notes, pod::created, traffic};
use crate::objects::{
    Kind, Name, Object,
    route::{BackendRef, ParentRef},
};

/// Largest number of rules, and of matches, backends or filters of a rule (Gateway API: 16, 64, 16, 16).
const MAX_ITEMS: usize = 64;

/// A route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// What it is: one of [`Route::KINDS`].
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// Its parents that are Services, Servers or EgressNetworks.
    pub parents: Vec<RouteParent>,
    /// Its hosts, for a TLSRoute the server names (SNI); none = all.
    pub hosts: Vec<HostMatch>,
    /// What it takes and where that goes.
    pub rules: RouteRules,
    /// Annotations `timeout.linkerd.io/*`.
    pub timeouts: Option<RouteTimeouts>,
    /// Annotations `retry.linkerd.io/*`, of the route's own kind only.
    pub retries: Retries,
}

impl Route {
    /// The kinds of objects that are routes, by rank: of two kinds at one parent the earlier wins (GEP-1426); the two
    /// HTTPRoutes are equals.
    pub const KINDS: [Kind; 5] = [
        Kind::GrpcRoute,
        Kind::PolicyHttpRoute,
        Kind::GatewayHttpRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
    ];
}

/// What a route hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteParentKind {
    /// A Service: the route is for clients.
    Service,
    /// A Server: the route is for the pods behind it.
    Server,
    /// An EgressNetwork: the route is for clients.
    EgressNetwork,
}

/// A parent of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteParent {
    /// What it is.
    pub kind: RouteParentKind,
    /// Which one.
    pub name: Name,
    /// Its port; `None` = all.
    pub port: Option<u16>,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// What it is.
    pub kind: BackendKind,
    /// Which one.
    pub name: Name,
    /// Its port.
    pub port: Option<u16>,
    /// Share among the backends of the rule.
    pub weight: u32,
    /// Filters for requests that go here.
    pub filters: Vec<RouteFilter>,
}

/// What a [`Backend`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// A Service.
    Service,
    /// An EgressNetwork: the address that the client wanted.
    EgressNetwork,
    /// Something that no request can reach, as `Kind.group`.
    Other(Arc<str>),
}

/// Reads a route of any kind.
pub(super) fn read(object: &Object, name: &Name, notes: &mut Notes) -> Option<Route> {
    let (references, hostnames) = match object {
        Object::HttpRoute(_, o) => (&o.spec.parent_refs, o.spec.hostnames.as_slice()),
        Object::GrpcRoute(o) => (&o.spec.parent_refs, o.spec.hostnames.as_slice()),
        Object::TlsRoute(o) => (&o.spec.parent_refs, o.spec.hostnames.as_slice()),
        Object::TcpRoute(o) => (&o.spec.parent_refs, [].as_slice()),
        _ => return None,
    };
    let mut route = Route {
        kind: object.kind(),
        name: name.clone(),
        created: created(object.metadata()),
        parents: parents(references, name),
        hosts: Vec::new(),
        rules: RouteRules::Stream(Vec::new()),
        timeouts: None,
        retries: Retries::default(),
    };
    if route.parents.is_empty() {
        // It is another controller's, who may support more than we do.
        return Some(route);
    }
    route.hosts = matches::hosts(hostnames, notes)?;
    route.rules = rules::read(object, name, notes)?;
    read_annotations(object, &mut route, notes)?;
    Some(route)
}

/// A bad annotation of a route drops the route (contract 10.1).
fn read_annotations(object: &Object, route: &mut Route, notes: &mut Notes) -> Option<()> {
    let Some(annotations) = &object.metadata().annotations else {
        return Some(());
    };
    let read = || {
        let (http, grpc) = match &route.rules {
            RouteRules::Http(_) => (traffic::http_retry(annotations)?, None),
            RouteRules::Grpc(_) => (None, traffic::grpc_retry(annotations)?),
            RouteRules::Stream(_) => return Ok((None, Retries::default())),
        };
        Ok((traffic::timeouts(annotations)?, Retries { http, grpc }))
    };
    let read: Result<_, (String, String)> = read();
    match read {
        Ok((timeouts, retries)) => (route.timeouts, route.retries) = (timeouts, retries),
        Err((field, reason)) => return notes.refuse(&field, reason),
    }
    Some(())
}

fn parents(references: &[ParentRef], name: &Name) -> Vec<RouteParent> {
    let mut parents = Vec::new();
    for parent in references {
        let kind = match (parent.group.as_deref(), parent.kind.as_deref()) {
            (Some("" | "core"), Some("Service")) => RouteParentKind::Service,
            (Some("policy.linkerd.io"), Some("Server")) => RouteParentKind::Server,
            (Some("policy.linkerd.io"), Some("EgressNetwork")) => RouteParentKind::EgressNetwork,
            _ => continue,
        };
        let namespace = parent.namespace.as_deref().unwrap_or(&name.namespace);
        parents.push(RouteParent {
            kind,
            name: Name::new(namespace, &parent.name),
            // A Server is one port already.
            port: parent.port.filter(|_| kind != RouteParentKind::Server),
        });
    }
    parents
}

fn read_backends(
    backends: &[BackendRef],
    filters: &[&str],
    name: &Name,
    field: &str,
    notes: &mut Notes,
) -> Option<Vec<Backend>> {
    let mut read = Vec::with_capacity(backends.len());
    for (index, backend) in backends.iter().enumerate() {
        let field = format!("{field}.backendRefs[{index}]");
        let namespace = backend.namespace.as_deref().unwrap_or(&name.namespace);
        read.push(Backend {
            kind: backend_kind(backend),
            name: Name::new(namespace, &backend.name),
            port: backend.port.filter(|port| *port > 0),
            weight: backend.weight.unwrap_or(1),
            filters: filters::read(&backend.filters, filters, &field, notes)?,
        });
    }
    Some(read)
}

fn backend_kind(backend: &BackendRef) -> BackendKind {
    let kind = backend.kind.as_deref().unwrap_or("Service");
    match (backend.group.as_deref().unwrap_or_default(), kind) {
        ("" | "core", "Service") => BackendKind::Service,
        ("policy.linkerd.io", "EgressNetwork") => BackendKind::EgressNetwork,
        (group, kind) => BackendKind::Other(format!("{kind}.{group}").into()),
    }
}

#[cfg(test)]
mod tests;
