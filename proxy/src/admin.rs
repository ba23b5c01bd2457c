//! Owns the answers of the admin port (4191, contract 5). Who may ask is decided before, by the
//! inbound policy of that port.

use crate::http::body::Body;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;
use weft_runtime::log::LogHandle;
use weft_runtime::metrics::Registry;

/// What the admin port tells and does.
pub struct Admin {
    /// Ready means certified.
    pub store: weft_tls::Store,
    /// What `/metrics` prints.
    pub registry: Arc<Registry>,
    /// What `/proxy-log-level` reads and changes.
    pub log: LogHandle,
    /// Told by `/shutdown`; none where that is switched off.
    pub shutdown: Option<Arc<Notify>>,
    /// The settings in force, as JSON, without secrets.
    pub settings: Bytes,
}

/// Largest body that is read: log directives.
const MAX_BODY: usize = 8 * 1024;

impl Admin {
    /// Answers a request of a client at `client`.
    pub async fn answer(&self, request: Request<Body>, client: IpAddr) -> Response<Body> {
        let local = client.is_loopback();
        match request.uri().path() {
            "/live" => text(StatusCode::OK, "live\n"),
            "/ready" if self.store.current().is_some() => text(StatusCode::OK, "ready\n"),
            "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/metrics" => self.metrics(request.headers()),
            "/env.json" => environment(&request),
            "/settings.json" if request.method() == Method::GET => json(self.settings.clone()),
            "/proxy-log-level" | "/shutdown" if !local => {
                text(StatusCode::FORBIDDEN, "only for clients on loopback\n")
            }
            "/proxy-log-level" => self.log_level(request).await,
            "/shutdown" => self.shutdown(request.method()),
            _ => text(StatusCode::NOT_FOUND, "not found\n"),
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        let encoded = self.registry.encode();
        let content_type = if accepts(headers, "application/openmetrics-text") {
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        } else {
            "text/plain; version=0.0.4; charset=utf-8"
        };
        let gzip = headers
            .get(ACCEPT_ENCODING)
            .and_then(|v| v.to_str().ok())
            .is_some_and(|v| v.contains("gzip"));
        let compressed = gzip.then(|| compress(encoded.as_bytes())).flatten();
        let mut response = match compressed {
            Some(bytes) => {
                let mut response = Response::new(Body::full(bytes));
                let gzip = HeaderValue::from_static("gzip");
                response.headers_mut().insert(CONTENT_ENCODING, gzip);
                response
            }
            None => Response::new(Body::full(encoded)),
        };
        let content_type = HeaderValue::from_static(content_type);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }

    async fn log_level(&self, request: Request<Body>) -> Response<Body> {
        match *request.method() {
            Method::GET => text(StatusCode::OK, self.log.current()),
            Method::PUT => {
                let body = http_body_util::Limited::new(request.into_body(), MAX_BODY);
                let Ok(body) = body.collect().await else {
                    return text(StatusCode::BAD_REQUEST, "the body is not readable\n");
                };
                let body = body.to_bytes();
                let Ok(directives) = std::str::from_utf8(&body) else {
                    return text(StatusCode::BAD_REQUEST, "the body is not UTF-8\n");
                };
                match self.log.set(directives.trim()) {
                    Ok(()) => text(StatusCode::NO_CONTENT, ""),
                    Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
                }
            }
            _ => not_allowed("GET, PUT"),
        }
    }

    fn shutdown(&self, method: &Method) -> Response<Body> {
        let Some(shutdown) = &self.shutdown else {
            let why = "shutdown endpoint is not enabled: set \
                LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED=true\n";
            return text(StatusCode::NOT_FOUND, why);
        };
        if method != Method::POST {
            return not_allowed("POST");
        }
        shutdown.notify_one();
        text(StatusCode::OK, "shutdown\n")
    }
}

/// `/env.json`: the process's environment; `?A&B` selects names.
fn environment(request: &Request<Body>) -> Response<Body> {
    if request.method() != Method::GET {
        return not_allowed("GET");
    }
    let headers = request.headers();
    if headers.contains_key(ACCEPT) && !accepts(headers, "application/json") {
        return text(StatusCode::NOT_ACCEPTABLE, "only JSON is available\n");
    }
    let query = request.uri().query().filter(|q| !q.is_empty());
    if query.is_some_and(|q| q.contains('=')) {
        return text(StatusCode::BAD_REQUEST, "give names only: ?NAME&NAME\n");
    }
    let all = std::env::vars_os()
        .map(|(k, v)| (k.to_string_lossy().into_owned(), v))
        .filter(|(name, _)| !is_secret(name));
    let all: BTreeMap<String, String> = all
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    let encoded = match query {
        None => serde_json::to_vec(&all),
        Some(query) => {
            let named: BTreeMap<&str, Option<&String>> =
                query.split('&').map(|name| (name, all.get(name))).collect();
            serde_json::to_vec(&named)
        }
    };
    json(encoded.expect("maps of strings are always JSON").into())
}

/// Names whose values nobody should see. A token's file is not the token.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    !name.ends_with("_FILE")
        && ["SECRET", "PASSWORD", "TOKEN", "PRIVATE_KEY"]
            .iter()
            .any(|part| name.contains(part))
}

fn accepts(headers: &HeaderMap, what: &str) -> bool {
    let (class, _) = what.split_once('/').unwrap_or((what, ""));
    headers
        .get_all(ACCEPT)
        .into_iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|v| v.split(';').next().unwrap_or_default().trim())
        .any(|v| {
            v == what || (what == "application/json" && (v == "*/*" || v == format!("{class}/*")))
        })
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

fn json(bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(bytes));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(ALLOW, allowed);
    response
}
