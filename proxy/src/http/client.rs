//! Owns the connections to one server address: HTTP/1 connections that are idle, a few HTTP/2
//! connections that are shared, and how a request gets onto one. Does not choose addresses.

use super::body::Body;
use super::expect::Continue;
use super::gather::gather;
use super::h1::{Connection as H1Connection, SendError as H1SendError, UpstreamH1};
use super::{Http2Params, Limits, h2 as http2};
use crate::connect::{ConnectError, Connector};
use crate::error::Error;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Response};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use weft_core::transport_header::SessionProtocol;

/// The HTTP version to use with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1 or 1.0, a connection a request at a time.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// How connections of a client are used.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings {
    /// HTTP/1 connections that may be idle.
    pub max_idle: usize,
    /// Time after which an idle HTTP/1 connection is closed.
    pub idle_timeout: Duration,
    /// Settings of HTTP/2 connections.
    pub http2: Http2Params,
    /// Limits on response heads.
    pub limits: Limits,
}

/// Streams in flight on one HTTP/2 connection before another is opened.
const STREAMS_PER_CONNECTION: usize = 256;
/// HTTP/2 connections to one address.
const MAX_HTTP2_CONNECTIONS: usize = 4;

/// Sends requests to one server address.
pub struct Client {
    connector: Connector,
    settings: ClientSettings,
    idle: Arc<IdleConnections>,
    shared: Mutex<Vec<Arc<SharedConnection>>>,
    /// Held while an HTTP/2 connection is being made, so that it is made once.
    connecting: tokio::sync::Mutex<Option<FailedAttempt>>,
}

struct FailedAttempt {
    at: Instant,
    error: Arc<ConnectError>,
}

/// Why a request got no response.
pub enum SendError {
    /// Nothing of it was sent; it can go elsewhere.
    Unsent(Box<Request<Body>>, Arc<ConnectError>),
    /// It was sent, or may have been.
    Failed(Error),
}

impl From<h2::Error> for SendError {
    fn from(error: h2::Error) -> Self {
        Self::Failed(Error::Http2(error))
    }
}

impl Client {
    /// A client without connections.
    pub fn new(connector: Connector, settings: ClientSettings) -> Self {
        Self {
            connector,
            idle: Arc::new(IdleConnections {
                connections: Mutex::new(Vec::new()),
                max: settings.max_idle,
                timeout: settings.idle_timeout,
                sweeping: AtomicBool::new(false),
            }),
            settings,
            shared: Mutex::new(Vec::new()),
            connecting: tokio::sync::Mutex::new(None),
        }
    }

    /// Connects ahead of need, so that the next request finds a connection.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn warm(&self, version: Version) -> Result<(), Arc<ConnectError>> {
        match version {
            Version::Http2 => self.shared_connection().await.map(drop),
            Version::Http1 => {
                let connection = self.connect_h1().await?;
                self.idle.put(connection);
                Ok(())
            }
        }
    }

    /// Sends a request and waits for the head of its response. `connected` is called when there is a connection for it,
    /// so that whoever takes the time does not take that of connecting.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(
        &self,
        version: Version,
        request: Box<Request<Body>>,
        connected: impl FnMut(),
    ) -> Result<Response<Body>, SendError> {
        match version {
            Version::Http1 => self.send_h1(request, connected).await,
            Version::Http2 => self.send_h2(request, connected).await,
        }
    }

    async fn send_h2(
        &self,
        mut request: Box<Request<Body>>,
        mut connected: impl FnMut(),
    ) -> Result<Response<Body>, SendError> {
        loop {
            let connection = match self.shared_connection().await {
                Ok(connection) => connection,
                Err(error) => return Err(SendError::Unsent(request, error)),
            };
            let stream = connection.stream();
            let mut send = match connection.send.clone().ready().await {
                Ok(send) => send,
                // It ended since it was made: the request has not been sent.
                Err(_) => {
                    connection.closed.store(true, Ordering::Relaxed);
                    continue;
                }
            };
            connected();
            let again = replay(&request, false);
            match http2::send(&mut send, request).await {
                Ok(response) => return Ok(response.map(|body| body.holding(stream))),
                Err(error) => match again {
                    Some(again) if unprocessed(&error) => {
                        connection.closed.store(true, Ordering::Relaxed);
                        request = again;
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// An HTTP/2 connection with room, made if there is none.
    async fn shared_connection(&self) -> Result<Arc<SharedConnection>, Arc<ConnectError>> {
        match self.least_used() {
            Some(connection) => Ok(connection),
            // Boxed, as it is rare: each request would hold the room for it.
            None => Box::pin(self.share()).await,
        }
    }

    /// Makes an HTTP/2 connection for all who want one now.
    async fn share(&self) -> Result<Arc<SharedConnection>, Arc<ConnectError>> {
        let asked = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(connection) = self.least_used() {
            return Ok(connection);
        }
        // Whoever waited for an attempt that failed shares its error instead of trying in turn.
        if let Some(attempt) = failed.as_ref().filter(|a| a.at >= asked) {
            return Err(attempt.error.clone());
        }
        match self.connect_h2().await {
            Ok(connection) => {
                *failed = None;
                self.shared.lock().push(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let error = Arc::new(error);
                *failed = Some(FailedAttempt {
                    at: Instant::now(),
                    error: error.clone(),
                });
                Err(error)
            }
        }
    }

    fn least_used(&self) -> Option<Arc<SharedConnection>> {
        let mut shared = self.shared.lock();
        shared.retain(|c| !c.closed.load(Ordering::Relaxed));
        let least = shared
            .iter()
            .min_by_key(|c| c.streams.load(Ordering::Relaxed))?;
        let full = least.streams.load(Ordering::Relaxed) >= STREAMS_PER_CONNECTION;
        (!full || shared.len() >= MAX_HTTP2_CONNECTIONS).then(|| least.clone())
    }

    async fn connect_h2(&self) -> Result<Arc<SharedConnection>, ConnectError> {
        let io = self.connector.connect(Some(SessionProtocol::Http2)).await?;
        let (io, turns) = gather(io);
        let handshake = self.settings.http2.client().handshake(io);
        let (send, mut connection) = turns
            .run(handshake)
            .await
            .map_err(|e| self.connector.handshake_failed(e))?;
        let shared = Arc::new(SharedConnection {
            send,
            streams: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let pings = connection.ping_pong();
        let keep_alive = self.settings.http2.keep_alive;
        let watched: Weak<SharedConnection> = Arc::downgrade(&shared);
        tokio::spawn(async move {
            http2::drive(connection, turns, pings, keep_alive).await;
            if let Some(shared) = watched.upgrade() {
                shared.closed.store(true, Ordering::Relaxed);
            }
        });
        Ok(shared)
    }

    async fn connect_h1(&self) -> Result<Box<H1Connection>, Arc<ConnectError>> {
        let io = self.connector.connect(Some(SessionProtocol::Http1)).await?;
        H1Connection::start(io, self.settings.limits)
            .await
            .map_err(|e| Arc::new(self.connector.handshake_failed(e)))
    }

    async fn send_h1(
        &self,
        mut request: Box<Request<Body>>,
        mut connected: impl FnMut(),
    ) -> Result<Response<Body>, SendError> {
        let mut reuse = true;
        loop {
            let idle = if reuse { self.idle.take().await } else { None };
            let reused = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => match Box::pin(self.connect_h1()).await {
                    Ok(connection) => connection,
                    Err(error) => return Err(SendError::Unsent(request, error)),
                },
            };
            connected();
            // Case P16: a server may close an idle connection as we use it.
            let again = if reused { replay(&request, true) } else { None };
            if super::headers::is_upgrade(&request) {
                connection.detach();
            }
            let waits = Continue::of(&request);
            let sent = match request.body().is_empty() {
                true => None,
                false => Some(request.body_mut().watch_end()),
            };
            let error = match connection.send(request).await {
                Ok(response) => {
                    let sent = sent.is_none_or(|sent| sent.load(Ordering::Relaxed));
                    // A body that is held back for good ends with the connection.
                    let sent = sent || waits.is_some_and(|waits| waits.responded());
                    return Ok(self.response(response, connection, sent));
                }
                Err(error) => error,
            };
            request = match (error, again) {
                (H1SendError::Unsent(request), _) if reused => request,
                (H1SendError::Failed(e), Some(again)) if broke_off(&e) => again,
                (H1SendError::Failed(e), _) => return Err(SendError::Failed(Error::Http1(e))),
                (H1SendError::Unsent(request), _) => {
                    let error = Arc::new(self.connector.closed_early());
                    return Err(SendError::Unsent(request, error));
                }
            };
            reuse = false;
        }
    }

    /// `sent`: nothing more of the request will be sent.
    fn response(
        &self,
        response: Response<hyper::body::Incoming>,
        mut connection: Box<H1Connection>,
        sent: bool,
    ) -> Response<Body> {
        let connection = if sent {
            Some(connection)
        } else {
            connection.detach();
            None
        };
        response
            .map(|incoming| Body::upstream_h1(UpstreamH1::new(incoming, connection, &self.idle)))
    }
}

/// Whether the server has said that it did not look at the request (RFC 9113 section 8.7).
fn unprocessed(error: &h2::Error) -> bool {
    error.is_remote()
        && (error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR)))
}

/// Whether the server ended the connection instead of answering: in order, or by a reset because the request reached it
/// when it had closed.
fn broke_off(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<std::io::Error>());
    error.is_incomplete_message()
        || source.is_some_and(|e| {
            use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
            matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
        })
}

/// A second copy of a request that may be sent twice: it has no body and, if `idempotent` is
/// asked for, a method that can be repeated (RFC 9110 section 9.2.2).
fn replay(request: &Request<Body>, idempotent: bool) -> Option<Box<Request<Body>>> {
    let repeatable = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    );
    if !request.body().is_empty() || (idempotent && !repeatable) {
        return None;
    }
    let mut copy = Box::new(Request::new(Body::empty()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

struct SharedConnection {
    send: SendRequest<Bytes>,
    streams: AtomicUsize,
    closed: AtomicBool,
}

impl SharedConnection {
    fn stream(self: &Arc<Self>) -> StreamGuard {
        self.streams.fetch_add(1, Ordering::Relaxed);
        StreamGuard(self.clone())
    }
}

/// Counts a stream in flight until the response has ended.
pub struct StreamGuard(Arc<SharedConnection>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// HTTP/1 connections that wait for a request, the latest used on top.
pub struct IdleConnections {
    connections: Mutex<Vec<(Instant, Box<H1Connection>)>>,
    max: usize,
    timeout: Duration,
    sweeping: AtomicBool,
}

impl IdleConnections {
    /// Keeps a connection for the next request, within the limit.
    pub fn put(self: &Arc<Self>, connection: Box<H1Connection>) {
        {
            let mut connections = self.connections.lock();
            if connections.len() >= self.max {
                return;
            }
            connections.push((Instant::now(), connection));
        }
        if !self.sweeping.swap(true, Ordering::Relaxed) {
            tokio::spawn(sweep(Arc::downgrade(self), self.timeout));
        }
    }

    /// The latest used connection that the server has left open.
    async fn take(&self) -> Option<Box<H1Connection>> {
        poll_fn(|cx| {
            loop {
                let Some((_, mut connection)) = self.connections.lock().pop() else {
                    return Poll::Ready(None);
                };
                if connection.poll_usable(cx) {
                    return Poll::Ready(Some(connection));
                }
            }
        })
        .await
    }

    /// Closes what was idle for too long. Returns whether none is left.
    fn expire(&self) -> bool {
        let mut connections = self.connections.lock();
        let now = Instant::now();
        let expired = connections.partition_point(|(since, _)| now - *since >= self.timeout);
        connections.drain(..expired);
        let empty = connections.is_empty();
        if empty {
            self.sweeping.store(false, Ordering::Relaxed);
        }
        empty
    }
}

/// Closes idle connections in time; ends when there are none (case P17).
async fn sweep(idle: Weak<IdleConnections>, timeout: Duration) {
    loop {
        tokio::time::sleep(timeout / 2 + Duration::from_millis(1)).await;
        match idle.upgrade() {
            Some(idle) if !idle.expire() => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
