//! Owns the reading of protobuf values that several policies share: metadata, matches, filters,
//! networks. Reading is strict: what is not understood makes the whole policy invalid, because a
//! rule that is left out could let through what it should have kept out.

use crate::http::filter::{Failure, Filter, HeaderChange, PathChange, Redirect};
use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};
use linkerd2_proxy_api::{grpc_route, http_route, http_types, meta};
use std::sync::Arc;
use std::time::Duration;
use weft_core::route::{
    GrpcMatch, HeaderMatch, HostMatch, MatchError, PathMatch, QueryMatch, RequestMatch,
};

/// Why a message of the control plane cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that means nothing.
    #[error("{field} is not valid: {value}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value, or what is wrong with it.
        value: String,
    },
    /// A match cannot be built.
    #[error(transparent)]
    Match(#[from] MatchError),
}

/// Shorthand for an invalid field.
pub fn invalid(field: &'static str, value: impl ToString) -> ConvertError {
    ConvertError::Invalid {
        field,
        value: value.to_string(),
    }
}

/// The resource that a policy, a route or a backend comes from, for metrics (contract 6.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Meta {
    /// API group; empty for defaults.
    pub group: Arc<str>,
    /// Kind; `default` for defaults.
    pub kind: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Section.
    pub section: Arc<str>,
    /// Port; 0 for none.
    pub port: u16,
}

impl Meta {
    /// A default that no resource stands behind.
    pub fn default_named(name: &str) -> Self {
        Self {
            kind: "default".into(),
            name: name.into(),
            ..Self::default()
        }
    }

    /// The port as a label: empty for none.
    pub fn port_label(&self) -> String {
        match self.port {
            0 => String::new(),
            port => port.to_string(),
        }
    }
}

/// Reads metadata; it is mandatory wherever it occurs (contract 4.2).
pub fn meta(metadata: Option<meta::Metadata>) -> Result<Meta, ConvertError> {
    match metadata.and_then(|m| m.kind) {
        None => Err(ConvertError::Missing("metadata")),
        Some(meta::metadata::Kind::Default(name)) => Ok(Meta::default_named(&name)),
        Some(meta::metadata::Kind::Resource(r)) => Ok(Meta {
            group: r.group.into(),
            kind: r.kind.into(),
            namespace: r.namespace.into(),
            name: r.name.into(),
            section: r.section.into(),
            port: u16::try_from(r.port).map_err(|_| invalid("metadata.port", r.port))?,
        }),
    }
}

/// Reads a duration, which must not be negative.
pub fn duration(
    field: &'static str,
    duration: prost_types::Duration,
) -> Result<Duration, ConvertError> {
    Duration::try_from(duration).map_err(|error| invalid(field, error))
}

/// Reads the hosts of a route.
pub fn hosts(hosts: Vec<http_route::HostMatch>) -> Result<Vec<HostMatch>, ConvertError> {
    use http_route::host_match::Match;
    let read = |host: http_route::HostMatch| match host.r#match {
        Some(Match::Exact(host)) => Ok(HostMatch::exact(&host)?),
        Some(Match::Suffix(s)) => Ok(HostMatch::suffix_of_reverse_labels(&s.reverse_labels)?),
        None => Err(ConvertError::Missing("host match")),
    };
    hosts.into_iter().map(read).collect()
}

/// Reads a match of an HTTP route.
pub fn request_match(m: http_route::HttpRouteMatch) -> Result<RequestMatch, ConvertError> {
    Ok(RequestMatch {
        path: m.path.map(path_match).transpose()?,
        headers: header_matches(m.headers)?,
        query: m
            .query_params
            .into_iter()
            .map(query_match)
            .collect::<Result<_, _>>()?,
        method: m.method.map(method).transpose()?,
    })
}

/// Reads a match of a gRPC route.
pub fn grpc_match(m: grpc_route::GrpcRouteMatch) -> Result<GrpcMatch, ConvertError> {
    let named = |name: String| (!name.is_empty()).then(|| name.into());
    let (service, method) = match m.rpc {
        None => (None, None),
        Some(rpc) => (named(rpc.service), named(rpc.method)),
    };
    Ok(GrpcMatch {
        service,
        method,
        headers: header_matches(m.headers)?,
    })
}

fn path_match(path: http_route::PathMatch) -> Result<PathMatch, ConvertError> {
    use http_route::path_match::Kind;
    match path.kind {
        Some(Kind::Exact(path)) => Ok(PathMatch::exact(&path)?),
        Some(Kind::Prefix(path)) => Ok(PathMatch::prefix(&path)?),
        Some(Kind::Regex(regex)) => Ok(PathMatch::regex(&regex)?),
        None => Err(ConvertError::Missing("path match")),
    }
}

fn header_matches(headers: Vec<http_route::HeaderMatch>) -> Result<Vec<HeaderMatch>, ConvertError> {
    use http_route::header_match::Value;
    let read = |header: http_route::HeaderMatch| match header.value {
        Some(Value::Exact(value)) => Ok(HeaderMatch::exact(&header.name, &value)?),
        Some(Value::Regex(regex)) => Ok(HeaderMatch::regex(&header.name, &regex)?),
        None => Err(ConvertError::Missing("header match")),
    };
    headers.into_iter().map(read).collect()
}

fn query_match(query: http_route::QueryParamMatch) -> Result<QueryMatch, ConvertError> {
    use http_route::query_param_match::Value;
    match query.value {
        Some(Value::Exact(value)) => Ok(QueryMatch::exact(&query.name, &value)?),
        Some(Value::Regex(regex)) => Ok(QueryMatch::regex(&query.name, &regex)?),
        None => Err(ConvertError::Missing("query parameter match")),
    }
}

fn method(method: http_types::HttpMethod) -> Result<Method, ConvertError> {
    Method::try_from(method).map_err(|error| invalid("method", error))
}

/// Reads a header change of a request or of a response.
pub fn header_change(
    add: Option<http_types::Headers>,
    set: Option<http_types::Headers>,
    remove: Vec<String>,
) -> Result<HeaderChange, ConvertError> {
    Ok(HeaderChange {
        add: headers(add)?,
        set: headers(set)?,
        remove: remove
            .iter()
            .map(|name| header_name(name))
            .collect::<Result<_, _>>()?,
    })
}

fn header_name(name: &str) -> Result<HeaderName, ConvertError> {
    name.parse().map_err(|_| invalid("header name", name))
}

fn headers(
    headers: Option<http_types::Headers>,
) -> Result<Vec<(HeaderName, HeaderValue)>, ConvertError> {
    let read = |header: http_types::headers::Header| {
        let value = HeaderValue::from_bytes(&header.value)
            .map_err(|_| invalid("header value", &header.name))?;
        Ok((header_name(&header.name)?, value))
    };
    headers
        .unwrap_or_default()
        .headers
        .into_iter()
        .map(read)
        .collect()
}

/// Reads a request header filter.
pub fn request_headers(f: http_route::RequestHeaderModifier) -> Result<Filter, ConvertError> {
    Ok(Filter::RequestHeaders(header_change(
        f.add, f.set, f.remove,
    )?))
}

/// Reads a response header filter.
pub fn response_headers(f: http_route::ResponseHeaderModifier) -> Result<Filter, ConvertError> {
    Ok(Filter::ResponseHeaders(header_change(
        f.add, f.set, f.remove,
    )?))
}

/// Reads an injected failure of an HTTP route.
pub fn http_failure(f: http_route::HttpFailureInjector) -> Result<Filter, ConvertError> {
    let status = u16::try_from(f.status).map_err(|_| invalid("failure.status", f.status))?;
    failure(status, None, f.message, f.ratio)
}

/// Reads an injected failure of a gRPC route.
pub fn grpc_failure(f: grpc_route::GrpcFailureInjector) -> Result<Filter, ConvertError> {
    let code = u16::try_from(f.code).map_err(|_| invalid("failure.code", f.code))?;
    failure(
        StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
        Some(code),
        f.message,
        f.ratio,
    )
}

fn failure(
    status: u16,
    grpc: Option<u16>,
    message: String,
    ratio: Option<http_route::Ratio>,
) -> Result<Filter, ConvertError> {
    let (numerator, denominator) = ratio.map_or((1, 1), |r| (r.numerator, r.denominator));
    if denominator == 0 {
        return Err(invalid("failure.ratio.denominator", 0));
    }
    Ok(Filter::Fail(Failure {
        status: StatusCode::from_u16(status).map_err(|e| invalid("failure.status", e))?,
        grpc,
        message: message.into(),
        numerator,
        denominator,
    }))
}

/// Reads a redirect; `matches` are those of its rule, of which the first prefix is what a prefix
/// replacement replaces.
pub fn redirect(
    f: http_route::RequestRedirect,
    matches: &[RequestMatch],
) -> Result<Filter, ConvertError> {
    use http_route::path_modifier::Replace;
    let path = match f.path.and_then(|p| p.replace) {
        None => None,
        Some(Replace::Full(path)) => Some(PathChange::Full(path)),
        Some(Replace::Prefix(replacement)) => Some(PathChange::Prefix {
            matched: matched_prefix(matches)
                .ok_or_else(|| invalid("redirect.path.prefix", "the rule matches no prefix"))?,
            replacement,
        }),
    };
    let status = match f.status {
        0 => StatusCode::MOVED_PERMANENTLY,
        other => u16::try_from(other)
            .ok()
            .and_then(|s| StatusCode::from_u16(s).ok())
            .filter(StatusCode::is_redirection)
            .ok_or_else(|| invalid("redirect.status", other))?,
    };
    Ok(Filter::Redirect(Redirect {
        status,
        scheme: f
            .scheme
            .map(http::uri::Scheme::try_from)
            .transpose()
            .map_err(|e| invalid("redirect.scheme", e))?
            .map(|s| s.to_string()),
        host: (!f.host.is_empty()).then_some(f.host),
        port: match f.port {
            0 => None,
            port => Some(u16::try_from(port).map_err(|_| invalid("redirect.port", port))?),
        },
        path,
    }))
}

fn matched_prefix(matches: &[RequestMatch]) -> Option<String> {
    matches.iter().find_map(|m| match &m.path {
        Some(PathMatch::Prefix(prefix)) => Some(prefix.to_string()),
        _ => None,
    })
}
