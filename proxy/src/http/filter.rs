//! Owns what a route asks to be done to a request or a response: header changes, redirects,
//! injected failures (contract 3.2). Does not match routes.

use super::body::Body;
use crate::error::Error;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Request, StatusCode};
use std::sync::Arc;

/// One step of a route.
#[derive(Clone, Debug)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderChange),
    /// Changes the response's headers.
    ResponseHeaders(HeaderChange),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Answers with a failure, for a share of the requests.
    Fail(Failure),
}

/// Headers to add, set and remove, in this order.
#[derive(Clone, Debug, Default)]
pub struct HeaderChange {
    /// Appended to what is there.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Put in place of what is there.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Taken away.
    pub remove: Vec<HeaderName>,
}

impl HeaderChange {
    /// Makes the changes.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

/// Where a redirect leads (Gateway API, HTTPRequestRedirectFilter).
#[derive(Clone, Debug)]
pub struct Redirect {
    /// 301 unless given.
    pub status: StatusCode,
    /// Another scheme.
    pub scheme: Option<String>,
    /// Another host.
    pub host: Option<String>,
    /// Another port.
    pub port: Option<u16>,
    /// Another path.
    pub path: Option<PathChange>,
}

/// How a redirect changes the path.
#[derive(Clone, Debug)]
pub enum PathChange {
    /// All of it.
    Full(String),
    /// The part that the route matched.
    Prefix {
        /// What the route matched.
        matched: String,
        /// What takes its place.
        replacement: String,
    },
}

/// A failure to inject.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The status.
    pub status: StatusCode,
    /// The gRPC code, on gRPC routes.
    pub grpc: Option<u16>,
    /// What to say.
    pub message: Arc<str>,
    /// Fails `numerator` of `denominator` requests.
    pub numerator: u32,
    /// See `numerator`; not zero.
    pub denominator: u32,
}

/// Runs the filters on a request, in order.
///
/// # Errors
/// The answer with which a filter ends the request.
pub fn on_request(
    filters: &[Filter],
    request: &mut Request<Body>,
    random: impl Fn() -> u64,
) -> Result<(), Error> {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(change) => change.apply(request.headers_mut()),
            Filter::ResponseHeaders(_) => {}
            Filter::Redirect(redirect) => redirect.apply(request)?,
            Filter::Fail(failure) => {
                if random() % u64::from(failure.denominator.max(1)) < u64::from(failure.numerator) {
                    return Err(Error::Injected {
                        status: failure.status,
                        grpc: failure.grpc,
                        message: failure.message.clone(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Runs the filters on a response, in order.
pub fn on_response(filters: &[Filter], headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(change) = filter {
            change.apply(headers);
        }
    }
}

impl Redirect {
    /// Ends the request, unless the redirect would lead to where the request already is.
    fn apply(&self, request: &Request<Body>) -> Result<(), Error> {
        let here = absolute(request);
        let Some(location) = self.location(request).filter(|l| Some(l) != here.as_ref()) else {
            return Ok(());
        };
        Err(Error::Redirect {
            status: self.status,
            location,
        })
    }

    fn location(&self, request: &Request<Body>) -> Option<String> {
        let authority = super::headers::authority(request)?;
        let (host, port) = split_port(authority);
        let scheme = self.scheme.as_deref();
        let scheme = scheme.or(request.uri().scheme_str()).unwrap_or("http");
        // A redirect to another scheme leads to that scheme's own port.
        let port = match (self.port, &self.scheme) {
            (Some(port), _) => Some(port.to_string()),
            (None, Some(_)) => None,
            (None, None) => port.map(str::to_owned),
        };
        let default = matches!(
            (scheme, port.as_deref()),
            ("http", Some("80")) | ("https", Some("443"))
        );
        let host = self.host.as_deref().unwrap_or(host);
        let path = self.path(request.uri());
        match port.filter(|_| !default) {
            Some(port) => Some(format!("{scheme}://{host}:{port}{path}")),
            None => Some(format!("{scheme}://{host}{path}")),
        }
    }

    fn path(&self, uri: &Uri) -> String {
        let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
        match &self.path {
            None => uri
                .path_and_query()
                .map_or("/", PathAndQuery::as_str)
                .to_owned(),
            Some(PathChange::Full(path)) => format!("{path}{query}"),
            Some(PathChange::Prefix {
                matched,
                replacement,
            }) => {
                let rest = uri.path().strip_prefix(matched.trim_end_matches('/'));
                let rest = rest.unwrap_or_default().trim_start_matches('/');
                let replacement = replacement.trim_end_matches('/');
                if rest.is_empty() && !replacement.is_empty() {
                    format!("{replacement}{query}")
                } else {
                    format!("{replacement}/{rest}{query}")
                }
            }
        }
    }
}

fn absolute(request: &Request<Body>) -> Option<String> {
    let authority = super::headers::authority(request)?;
    let scheme = request.uri().scheme_str().unwrap_or("http");
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", PathAndQuery::as_str);
    Some(format!("{scheme}://{authority}{path}"))
}

/// Splits `host:port`, leaving the brackets of an IPv6 address on.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => {
            (host, Some(port))
        }
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str) -> Request<Body> {
        Request::builder()
            .uri(uri)
            .header("host", "web.example:8080")
            .body(Body::empty())
            .expect("valid")
    }

    fn redirect() -> Redirect {
        Redirect {
            status: StatusCode::MOVED_PERMANENTLY,
            scheme: None,
            host: None,
            port: None,
            path: None,
        }
    }

    fn location(redirect: &Redirect, uri: &str) -> Option<String> {
        match redirect.apply(&request(uri)) {
            Err(Error::Redirect { location, .. }) => Some(location),
            _ => None,
        }
    }

    #[test]
    fn redirects_change_only_what_they_say() {
        let to_host = Redirect {
            host: Some("other".into()),
            ..redirect()
        };
        let to_https = Redirect {
            scheme: Some("https".into()),
            ..redirect()
        };
        let to_prefix = Redirect {
            path: Some(PathChange::Prefix {
                matched: "/old".into(),
                replacement: "/new".into(),
            }),
            ..redirect()
        };
        let moved = location(&to_host, "/a?b=c");
        assert_eq!(moved.as_deref(), Some("http://other:8080/a?b=c"));
        let moved = location(&to_https, "/a");
        assert_eq!(moved.as_deref(), Some("https://web.example/a"));
        let moved = location(&to_prefix, "/old/x?q=1");
        assert_eq!(moved.as_deref(), Some("http://web.example:8080/new/x?q=1"));
        let moved = location(&to_prefix, "/old");
        assert_eq!(moved.as_deref(), Some("http://web.example:8080/new"));
    }

    #[test]
    fn a_redirect_to_itself_is_skipped() {
        assert_eq!(location(&redirect(), "/a"), None);
    }

    #[test]
    fn headers_are_added_then_set_then_removed() {
        let name = |n: &str| n.parse::<HeaderName>().expect("valid");
        let change = HeaderChange {
            add: vec![(name("a"), HeaderValue::from_static("2"))],
            set: vec![(name("b"), HeaderValue::from_static("3"))],
            remove: vec![name("c")],
        };
        let mut headers = HeaderMap::new();
        for (n, v) in [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1")] {
            headers.append(name(n), HeaderValue::from_str(v).expect("valid"));
        }
        change.apply(&mut headers);
        let all: Vec<_> = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_bytes()))
            .collect();
        assert_eq!(all, [("a", b"1".as_slice()), ("a", b"2"), ("b", b"3")]);
    }
}
