//! Owns what happens to headers between a client and a server: hop-by-hop fields, carrying
//! HTTP/1 on HTTP/2 (`l5d-orig-proto`), gRPC's fields. Does not do what routes ask for.

use http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, Version};
use weft_core::route::RequestView;

/// Says that a message is HTTP/1 although it travels on HTTP/2 (contract 3.6, 4.3).
pub const ORIG_PROTO: HeaderName = HeaderName::from_static("l5d-orig-proto");
/// The verified identity of the client (contract 3.6).
pub const CLIENT_ID: HeaderName = HeaderName::from_static("l5d-client-id");
/// Why a proxy made this response (contract 3.5, 4.7).
pub const PROXY_ERROR: HeaderName = HeaderName::from_static("l5d-proxy-error");
/// Asks the other proxy to close the client's connection (contract 3.5, 4.7).
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("l5d-proxy-connection");
/// The identity that the client insists on (contract 4.3).
pub const REQUIRE_ID: HeaderName = HeaderName::from_static("l5d-require-id");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION_LEGACY: HeaderName = HeaderName::from_static("proxy-connection");
const ABSOLUTE_FORM: &str = "; absolute-form";

/// The version of the response to a request of `version`. To a 1.0 client hyper speaks 1.0 by itself, but it keeps the
/// connection, if that client asked for it, only for a response that is 1.1.
pub fn answer_version(version: Version) -> Version {
    version.max(Version::HTTP_11)
}

/// Whether a request asks for another protocol on its connection (RFC 9110 section 7.8), or for
/// a tunnel.
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    request.version() < Version::HTTP_2
        && (request.method() == Method::CONNECT
            || (request.headers().contains_key(UPGRADE)
                && request.version() == Version::HTTP_11
                && has_token(request.headers(), "upgrade")))
}

/// Whether `connection` lists `token`.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    connection_tokens(headers).any(|t| t.eq_ignore_ascii_case(token))
}

fn connection_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|t| !t.is_empty())
}

/// Removes the fields that belong to one connection only (RFC 9110 section 7.6.1).
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let listed: Vec<HeaderName> = connection_tokens(headers)
            .filter_map(|t| t.parse().ok())
            .filter(|name| *name != TE)
            .collect();
        for name in listed {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION_LEGACY);
    headers.remove(UPGRADE);
    if headers.get(TE).is_some_and(|v| v != "trailers") {
        headers.remove(TE);
    }
}

/// Whether a message is gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// The authority a request is for: that of its target, else its `host` field.
pub fn authority<B>(request: &Request<B>) -> Option<&str> {
    match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(HOST)?.to_str().ok(),
    }
}

/// What routes look at.
pub fn view<B>(request: &Request<B>) -> RequestView<'_> {
    RequestView {
        method: request.method(),
        host: authority(request),
        path: request.uri().path(),
        query: request.uri().query(),
        headers: request.headers(),
    }
}

/// Turns an HTTP/1 request into one for HTTP/2 between proxies. `host` keeps its place so that
/// the other proxy can restore the message to the letter; the authority is a copy of it.
pub fn to_orig_proto<B>(request: &mut Request<B>) {
    let absolute = request.uri().authority().is_some();
    let value = match (request.version(), absolute) {
        (Version::HTTP_10, _) => HeaderValue::from_static("HTTP/1.0"),
        (_, true) => HeaderValue::from_static("HTTP/1.1; absolute-form"),
        (_, false) => HeaderValue::from_static("HTTP/1.1"),
    };
    if !absolute {
        let authority: Option<Authority> = request
            .headers()
            .get(HOST)
            .and_then(|h| Authority::try_from(h.as_bytes()).ok());
        if let Some(authority) = authority {
            set_uri(request, Some(authority));
        }
    }
    request.headers_mut().remove(TRANSFER_ENCODING);
    request.headers_mut().insert(ORIG_PROTO, value);
    // With a scheme and an authority HTTP/2 can carry it as its own; without, h2 lets a
    // relative target pass only in a message that is marked as HTTP/1.
    if request.uri().authority().is_some() {
        *request.version_mut() = Version::HTTP_2;
    } else {
        *request.version_mut() = Version::HTTP_11;
    }
}

fn set_uri<B>(request: &mut Request<B>, authority: Option<Authority>) {
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = authority.is_some().then_some(Scheme::HTTP);
    parts.authority = authority;
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// Restores an HTTP/1 request that came on HTTP/2. Returns its version if it was one.
pub fn from_orig_proto<B>(request: &mut Request<B>) -> Option<Version> {
    if request.version() != Version::HTTP_2 {
        return None;
    }
    let value = request.headers_mut().remove(ORIG_PROTO)?;
    let value = value.to_str().unwrap_or_default();
    let (proto, absolute) = match value.strip_suffix(ABSOLUTE_FORM) {
        Some(proto) => (proto, true),
        None => (value, false),
    };
    let version = match proto {
        "HTTP/1.0" => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    if !absolute {
        if !request.headers().contains_key(HOST)
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            request.headers_mut().insert(HOST, host);
        }
        set_uri(request, None);
    }
    *request.version_mut() = version;
    Some(version)
}

/// Marks a response for the other proxy as HTTP/1 (contract 3.6).
pub fn mark_response<B>(response: &mut Response<B>, version: Version) {
    let value = match version {
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    response.headers_mut().remove(TRANSFER_ENCODING);
    response
        .headers_mut()
        .insert(ORIG_PROTO, HeaderValue::from_static(value));
}

/// Undoes [`mark_response`].
pub fn unmark_response<B>(response: &mut Response<B>) {
    response.headers_mut().remove(ORIG_PROTO);
}

#[cfg(test)]
mod tests;
