//! The HTTPS server that admission webhooks share: one POST path, the AdmissionReview envelope in both versions, limits on
//! everything a client can send (contract 9.1, 9.6). It judges no object: each webhook brings its own handler.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::crypto::aws_lc_rs;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::net;

mod certificate;

pub use certificate::{Certificate, CertificateError};

/// API servers keep a few connections open each; anything beyond this waits in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Requests at a time on one connection.
const STREAMS_MAX: u32 = 128;
/// Largest body (contract 9.1).
const BODY_MAX: usize = 10 * 1024 * 1024;
/// Bytes of all bodies together; a usual one has 10 KB.
const BODIES_MAX: usize = 32 * 1024 * 1024;
const HEAD_MAX: u32 = 16 * 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// From one request to the end of the next one's head; ends idle connections too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Silence on an HTTP/2 connection after which the peer is asked whether it is there, and how long it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// HTTP/2 in ALPN.
const H2: &[u8] = b"h2";
/// A webhook's default time limit: after it nobody waits for the answer (Kubernetes, `timeoutSeconds`).
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest a connection takes new requests, so that a client that stops reading does not keep its place.
const CONNECTION_MAX: Duration = Duration::from_secs(15 * 60);
/// For requests that are under way when a connection is to end.
const GRACE: Duration = Duration::from_secs(10);
/// API servers cut longer warnings.
const WARNING_MAX: usize = 256;

/// What an API server asks: the parts of an AdmissionRequest that webhooks of the mesh read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Ties the answer to the question.
    pub uid: String,
    /// The kind in the version the webhook was registered for.
    #[serde(default)]
    pub kind: GroupVersionKind,
    /// For example `ephemeralcontainers`.
    #[serde(default)]
    pub sub_resource: Option<String>,
    /// Name of the object; absent or empty while it has only a `generateName`.
    #[serde(default)]
    pub name: Option<String>,
    /// Namespace of the object.
    #[serde(default)]
    pub namespace: Option<String>,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    #[serde(default)]
    pub operation: String,
    /// The object as it shall be; null for `DELETE`.
    #[serde(default)]
    pub object: serde_json::Value,
    /// The object as it was; null for `CREATE`.
    #[serde(default)]
    pub old_object: serde_json::Value,
    /// Nothing will be stored, so nothing may be written because of it.
    #[serde(default)]
    pub dry_run: Option<bool>,
}

/// A kind with its group and version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupVersionKind {
    /// Empty for core kinds.
    pub group: String,
    /// For example `v1beta3`.
    pub version: String,
    /// For example `Server`.
    pub kind: String,
}

/// What a webhook answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Why the object is refused; `None` = it is admitted.
    pub refusal: Option<String>,
    /// Shown to the author whether it is admitted or not.
    pub warnings: Vec<String>,
    /// A JSON patch (RFC 6902) for the object.
    pub patch: Option<serde_json::Value>,
}

impl Answer {
    /// Admits the object as it is.
    pub fn admit() -> Self {
        Self::default()
    }

    /// Refuses the object; the message is for its author.
    pub fn refuse(message: impl Into<String>) -> Self {
        Self {
            refusal: Some(message.into()),
            ..Self::default()
        }
    }

    /// Admits the object after a JSON patch.
    pub fn patch(patch: serde_json::Value) -> Self {
        Self {
            patch: Some(patch),
            ..Self::default()
        }
    }

    /// Adds a warning.
    #[must_use]
    pub fn warn(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

/// The envelope; v1 and v1beta1 have the same shape.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewAnswer<'a> {
    api_version: &'a str,
    kind: &'static str,
    response: ResponseBody<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseBody<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Refused<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
}

#[derive(Serialize)]
struct Refused<'a> {
    code: u16,
    message: &'a str,
}

/// A request that gets no review: the status and the sentence of the answer.
type BadRequest = (StatusCode, String);

/// Serves reviews over TLS 1.3 until the shutdown, and ends at most 10 s after it.
pub async fn serve<H, F>(
    listener: TcpListener,
    certificate: Arc<Certificate>,
    handler: H,
    shutdown: CancellationToken,
) where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    if let Ok(addr) = listener.local_addr() {
        tracing::info!(%addr, "webhook listening");
    }
    let tls = acceptor(certificate);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let bodies = Arc::new(Semaphore::new(BODIES_MAX));
    let handler = Arc::new(handler);
    let connections = TaskTracker::new();
    loop {
        let (stream, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            next = next_connection(&listener, &places) => next,
        };
        let (tls, handler, bodies) = (tls.clone(), Arc::clone(&handler), Arc::clone(&bodies));
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            connection(stream, tls, handler, bodies, shutdown).await;
            drop(place);
        });
    }
    connections.close();
    if time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::warn!(
            "webhook connections were still open {GRACE:?} after the shutdown began; leaving them"
        );
    }
}

fn acceptor(certificate: Arc<Certificate>) -> TlsAcceptor {
    let mut config =
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .with_no_client_auth()
            .with_cert_resolver(certificate);
    config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Waits for a place first: connections beyond the limit stay in the kernel's queue.
async fn next_connection(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    let (stream, _) = net::accept(listener).await;
    (stream, place)
}

async fn connection<H, F>(
    stream: TcpStream,
    tls: TlsAcceptor,
    handler: Arc<H>,
    bodies: Arc<Semaphore>,
    shutdown: CancellationToken,
) where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let accepted = tokio::select! {
        () = shutdown.cancelled() => return,
        accepted = time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => accepted,
    };
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::info!(
                %error,
                "a client of the webhook gave up the TLS handshake; the caBundle of the webhook configuration may not \
                 have signed tls.crt"
            );
        }
        Err(_) => return tracing::debug!("a TLS handshake took longer than {HANDSHAKE_TIMEOUT:?}"),
    };
    let service = service_fn(|request| {
        let (handler, bodies) = (Arc::clone(&handler), Arc::clone(&bodies));
        async move { Ok::<_, Infallible>(reply(request, &*handler, bodies).await) }
    });
    // Without the choice by ALPN the server would wait for the first bytes without a time limit.
    let http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = match http2 {
        true => builder.http2_only(),
        false => builder.http1_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PING_INTERVAL))
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(HEAD_MAX)
        .max_concurrent_streams(STREAMS_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = async { tokio::select! {
            () = shutdown.cancelled() => {}
            () = time::sleep(CONNECTION_MAX) => {}
        } } => {
            served.as_mut().graceful_shutdown();
            time::timeout(GRACE, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a webhook connection ended early");
    }
}

async fn reply<H, F>(
    request: hyper::Request<Incoming>,
    handler: &H,
    bodies: Arc<Semaphore>,
) -> Response<Full<Bytes>>
where
    H: Fn(Request) -> F,
    F: Future<Output = Answer>,
{
    match review(request, handler, bodies).await {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err((status, message)) => {
            tracing::warn!(%status, message, "a webhook request was not understood");
            let mut refused = answer(status, "text/plain; charset=utf-8", message + "\n");
            if status == StatusCode::METHOD_NOT_ALLOWED {
                let post = HeaderValue::from_static("POST");
                refused.headers_mut().insert(ALLOW, post);
            }
            refused
        }
    }
}

async fn review<H, F>(
    request: hyper::Request<Incoming>,
    handler: &H,
    bodies: Arc<Semaphore>,
) -> Result<String, BadRequest>
where
    H: Fn(Request) -> F,
    F: Future<Output = Answer>,
{
    if request.uri().path() != "/" {
        return Err((StatusCode::NOT_FOUND, "the path is /".to_owned()));
    }
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only POST".to_owned()));
    }
    let reading = read_body(request.into_body(), bodies);
    let Ok(read) = time::timeout(BODY_TIMEOUT, reading).await else {
        let message = format!("the body did not arrive within {BODY_TIMEOUT:?}");
        return Err((StatusCode::REQUEST_TIMEOUT, message));
    };
    let (body, _room) = read?;
    let (api_version, request) =
        parse(&body).map_err(|message| (StatusCode::BAD_REQUEST, message))?;
    drop(body);
    let uid = request.uid.clone();
    Ok(encode(&api_version, &uid, handler(request).await))
}

/// Reads a body within the limit of one and of all; what it holds of the latter is given back with the permit.
async fn read_body(
    mut body: Incoming,
    bodies: Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), BadRequest> {
    let mut read = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| {
            (
                StatusCode::BAD_REQUEST,
                format!("the body ended early: {e}"),
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if read.len().saturating_add(data.len()) > BODY_MAX {
            let message = format!("the body is larger than {BODY_MAX} bytes");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let wanted = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&bodies).try_acquire_many_owned(wanted) else {
            let message = "too many large requests at a time, try again".to_owned();
            return Err((StatusCode::SERVICE_UNAVAILABLE, message));
        };
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        read.extend_from_slice(&data);
    }
    Ok((read, room))
}

/// Takes the question out of its envelope, with the envelope's `apiVersion`.
fn parse(body: &[u8]) -> Result<(String, Request), String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|e| format!("the body is not an AdmissionReview: {e}"))?;
    let known = matches!(
        review.api_version.as_str(),
        "admission.k8s.io/v1" | "admission.k8s.io/v1beta1"
    );
    if !known || review.kind != "AdmissionReview" {
        return Err(
            "the body is not an AdmissionReview of admission.k8s.io/v1 or v1beta1".to_owned(),
        );
    }
    let Some(request) = review.request else {
        return Err("the AdmissionReview has no request".to_owned());
    };
    Ok((review.api_version, request))
}

fn encode(api_version: &str, uid: &str, answer: Answer) -> String {
    let warnings = answer.warnings.iter();
    let patch = answer.patch.filter(|_| answer.refusal.is_none());
    let review = ReviewAnswer {
        api_version,
        kind: "AdmissionReview",
        response: ResponseBody {
            uid,
            allowed: answer.refusal.is_none(),
            status: answer.refusal.as_deref().map(|message| Refused {
                code: StatusCode::FORBIDDEN.as_u16(),
                message,
            }),
            warnings: warnings
                .map(|text| text.chars().take(WARNING_MAX).collect())
                .collect(),
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch: patch.map(|patch| BASE64.encode(patch.to_string())),
        },
    };
    serde_json::to_string(&review).expect("strings and numbers are always JSON")
}

fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}

#[cfg(test)]
mod tests;
