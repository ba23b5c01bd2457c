//! Owns the parts of messages that inbound and outbound policy share: metadata, route matches, header filters.

use std::time::Duration;

use linkerd2_proxy_api::{
    grpc_route,
    http_route::{
        self as api, header_match, host_match, path_match, path_modifier, query_param_match,
    },
    http_types::{self, HttpMethod},
    meta::{Metadata, Resource, metadata::Kind},
    tls_route::{SniMatch, sni_match},
};
use weft_cluster::{
    Name,
    index::{GrpcMatch, HeaderFilter, HostMatch, PathMatch, Route, RouteMatch, TextMatch},
    objects::route::{self, PathModifier, Redirect},
};

/// Status of a redirect that names none: what the API server would have filled in (Gateway API).
const REDIRECT_STATUS: u16 = 302;

/// Names something that is not an object.
pub(crate) fn default_meta(name: &str) -> Metadata {
    Metadata {
        kind: Some(Kind::Default(name.to_owned())),
    }
}

/// Names an object by group, kind and name.
pub(crate) fn resource(group: &str, kind: &str, name: &str) -> Resource {
    Resource {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..Resource::default()
    }
}

/// Names an object.
pub(crate) fn resource_meta(resource: Resource) -> Metadata {
    Metadata {
        kind: Some(Kind::Resource(resource)),
    }
}

/// Names a port of a Service, as metrics show parents and backends.
pub(crate) fn service_meta(name: &Name, port: u16) -> Metadata {
    resource_meta(Resource {
        namespace: name.namespace.to_string(),
        port: u32::from(port),
        ..resource("core", "Service", &name.name)
    })
}

/// Names an EgressNetwork, and the port in it.
pub(crate) fn egress_meta(name: &Name, port: u16) -> Metadata {
    resource_meta(Resource {
        namespace: name.namespace.to_string(),
        port: u32::from(port),
        ..resource("policy.linkerd.io", "EgressNetwork", &name.name)
    })
}

/// Names a route.
pub(crate) fn route_resource(route: &Route) -> Resource {
    let api = route.kind.api();
    resource(api.group, api.kind, &route.name.name)
}

/// Names a route with its namespace, as clients see it.
pub(crate) fn route_meta(route: &Route) -> Metadata {
    resource_meta(Resource {
        namespace: route.name.namespace.to_string(),
        ..route_resource(route)
    })
}

/// A duration; one that protobuf cannot carry is left out.
pub(crate) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// The hosts of a route.
pub(crate) fn hosts(hosts: &[HostMatch]) -> Vec<api::HostMatch> {
    let wire = |host: &HostMatch| match host {
        HostMatch::Exact(name) => host_match::Match::Exact(name.clone()),
        HostMatch::Suffix(labels) => host_match::Match::Suffix(host_match::Suffix {
            reverse_labels: labels.clone(),
        }),
    };
    hosts
        .iter()
        .map(|host| api::HostMatch {
            r#match: Some(wire(host)),
        })
        .collect()
}

/// The server names of a TLSRoute.
pub(crate) fn server_names(names: &[HostMatch]) -> Vec<SniMatch> {
    let wire = |name: &HostMatch| match name {
        HostMatch::Exact(name) => sni_match::Match::Exact(name.clone()),
        HostMatch::Suffix(labels) => sni_match::Match::Suffix(sni_match::Suffix {
            reverse_labels: labels.clone(),
        }),
    };
    let wire = |name| SniMatch {
        r#match: Some(wire(name)),
    };
    names.iter().map(wire).collect()
}

/// A match of everything.
pub(crate) fn match_all() -> api::HttpRouteMatch {
    let path = Some(path_match::Kind::Prefix("/".to_owned()));
    api::HttpRouteMatch {
        path: Some(api::PathMatch { kind: path }),
        ..api::HttpRouteMatch::default()
    }
}

/// The matches of a rule; one without any matches everything.
pub(crate) fn matches(matches: &[RouteMatch]) -> Vec<api::HttpRouteMatch> {
    if matches.is_empty() {
        return vec![match_all()];
    }
    matches.iter().map(one_match).collect()
}

fn one_match(m: &RouteMatch) -> api::HttpRouteMatch {
    let path = match &m.path {
        None => path_match::Kind::Prefix("/".to_owned()),
        Some(PathMatch::Exact(path)) => path_match::Kind::Exact(path.clone()),
        Some(PathMatch::Prefix(path)) => path_match::Kind::Prefix(path.clone()),
        Some(PathMatch::Regex(path)) => path_match::Kind::Regex(path.clone()),
    };
    api::HttpRouteMatch {
        path: Some(api::PathMatch { kind: Some(path) }),
        headers: m.headers.iter().map(header_match).collect(),
        query_params: m.query.iter().map(query_match).collect(),
        method: m.method.as_deref().map(method),
    }
}

/// A match of every gRPC request: empty names match all.
pub(crate) fn grpc_match_all() -> grpc_route::GrpcRouteMatch {
    grpc_route::GrpcRouteMatch {
        rpc: Some(grpc_route::GrpcRpcMatch::default()),
        headers: Vec::new(),
    }
}

/// The matches of a gRPC rule; one without any matches everything.
pub(crate) fn grpc_matches(matches: &[GrpcMatch]) -> Vec<grpc_route::GrpcRouteMatch> {
    if matches.is_empty() {
        return vec![grpc_match_all()];
    }
    let wire = |m: &GrpcMatch| grpc_route::GrpcRouteMatch {
        rpc: Some(grpc_route::GrpcRpcMatch {
            service: m.service.clone().unwrap_or_default(),
            method: m.method.clone().unwrap_or_default(),
        }),
        headers: m.headers.iter().map(header_match).collect(),
    };
    matches.iter().map(wire).collect()
}

fn header_match(m: &TextMatch) -> api::HeaderMatch {
    let value = match m.regex {
        true => header_match::Value::Regex(m.value.clone()),
        false => header_match::Value::Exact(m.value.clone().into_bytes()),
    };
    api::HeaderMatch {
        name: m.name.clone(),
        value: Some(value),
    }
}

fn query_match(m: &TextMatch) -> api::QueryParamMatch {
    let value = match m.regex {
        true => query_param_match::Value::Regex(m.value.clone()),
        false => query_param_match::Value::Exact(m.value.clone()),
    };
    api::QueryParamMatch {
        name: m.name.clone(),
        value: Some(value),
    }
}

/// A method by name.
pub(crate) fn method(name: &str) -> HttpMethod {
    match http::Method::from_bytes(name.as_bytes()) {
        Ok(method) => method.into(),
        // The index refuses such names; a proxy would refuse them as well.
        Err(_) => HttpMethod {
            r#type: Some(http_types::http_method::Type::Unregistered(name.to_owned())),
        },
    }
}

/// Changes of request headers.
pub(crate) fn request_headers(filter: &HeaderFilter) -> api::RequestHeaderModifier {
    api::RequestHeaderModifier {
        add: headers(&filter.add),
        set: headers(&filter.set),
        remove: filter.remove.clone(),
    }
}

/// Changes of response headers.
pub(crate) fn response_headers(filter: &HeaderFilter) -> api::ResponseHeaderModifier {
    api::ResponseHeaderModifier {
        add: headers(&filter.add),
        set: headers(&filter.set),
        remove: filter.remove.clone(),
    }
}

fn headers(headers: &[route::Header]) -> Option<http_types::Headers> {
    let header = |h: &route::Header| http_types::headers::Header {
        name: h.name.clone(),
        value: h.value.clone().into_bytes(),
    };
    (!headers.is_empty()).then(|| http_types::Headers {
        headers: headers.iter().map(header).collect(),
    })
}

/// A redirect.
pub(crate) fn redirect(redirect: &Redirect) -> api::RequestRedirect {
    let path = redirect.path.as_ref().map(|path| match path {
        PathModifier::ReplaceFullPath { replace_full_path } => {
            path_modifier::Replace::Full(replace_full_path.clone())
        }
        PathModifier::ReplacePrefixMatch {
            replace_prefix_match,
        } => path_modifier::Replace::Prefix(replace_prefix_match.clone()),
    });
    api::RequestRedirect {
        scheme: redirect.scheme.as_deref().map(Into::into),
        host: redirect.hostname.clone().unwrap_or_default(),
        path: path.map(|replace| api::PathModifier {
            replace: Some(replace),
        }),
        port: redirect.port.map(u32::from).unwrap_or_default(),
        status: u32::from(redirect.status_code.unwrap_or(REDIRECT_STATUS)),
    }
}
