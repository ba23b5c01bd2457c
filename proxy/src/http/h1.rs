//! Owns HTTP/1 on both sides: serving a client's connection, and one connection to a server
//! that is driven by whoever uses it (no task of its own). Does not choose servers.

use super::body::Body;
use super::client::IdleConnections;
use super::expect::{Continue, Gate};
use super::{Handler, Limits};
use crate::stream::Stream;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use weft_runtime::drain;

/// Serves HTTP/1.0 and 1.1 on `io` until the client is done, or draining began and the request
/// in flight has its answer.
///
/// # Errors
/// Those of the connection: broken framing, i/o.
pub async fn serve<H: Handler>(
    io: Stream,
    handler: H,
    limits: Limits,
    drain: drain::Watch,
) -> Result<(), hyper::Error> {
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        begins.notify_one();
        let size = head_size(&request);
        let too_large = size > limits.max_header_bytes;
        if too_large {
            tracing::info!(
                size,
                limit = limits.max_header_bytes,
                "the head of a request is too large"
            );
        }
        let handler = handler.clone();
        async move {
            if too_large {
                return Ok(head_too_large());
            }
            let request = match Continue::expected(&mut request) {
                Some(wanted) => request.map(|body| Body::held(body, Gate::new(wanted))),
                None => request.map(Body::h1),
            };
            let answer = handler.handle(Box::new(request));
            answer.await.map(keep_length).map_err(Aborted)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .preserve_header_case(true)
        .max_headers(limits.max_headers)
        .max_buf_size(limits.max_header_bytes)
        // Case P18: an idle keep-alive connection is not a slow request.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    // Whoever comes while we drain gets an answer, too (case T14): hyper would close a connection
    // that it has not read a request from.
    let mut draining = pin!(async {
        begun.notified().await;
        drain.signaled().await;
    });
    tokio::select! {
        result = connection.as_mut() => return result,
        () = draining.as_mut() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// Bytes of a request's head. hyper holds to its limit only for what comes in pieces.
fn head_size<B>(request: &Request<B>) -> usize {
    const SEPARATORS: usize = 4;
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + SEPARATORS);
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    fields.sum::<usize>().saturating_add(target)
}

fn head_too_large() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A 304 may tell the length that a 200 would have (case P14).
fn keep_length(response: Response<Body>) -> Response<Body> {
    if response.status() != StatusCode::NOT_MODIFIED {
        return response;
    }
    let length = response.headers().get(CONTENT_LENGTH);
    match length.and_then(|value| value.to_str().ok()?.parse().ok()) {
        Some(length) => response.map(|_| Body::declared(length)),
        None => response,
    }
}

/// Ends a client's connection where HTTP/1 has no way to say why.
#[derive(Debug, thiserror::Error)]
#[error("response was aborted by the server: {0}")]
struct Aborted(h2::Reason);

/// One connection to an HTTP/1 server.
///
/// Nothing reads it while it is idle, so an end that has come is seen when it is used next.
pub struct Connection {
    sender: client::SendRequest<Body>,
    driver: Option<client::Connection<TokioIo<Stream>, Body>>,
}

/// Why a request on a connection got no response.
pub enum SendError {
    /// Nothing of it was sent: it can go elsewhere.
    Unsent(Box<Request<Body>>),
    /// It was sent, or may have been.
    Failed(hyper::Error),
}

impl Connection {
    /// Starts HTTP/1 on `io`.
    ///
    /// # Errors
    /// Those of hyper's handshake; it sends nothing.
    pub async fn start(io: Stream, limits: Limits) -> Result<Box<Self>, hyper::Error> {
        let (sender, driver) = client::Builder::new()
            .preserve_header_case(true)
            .max_headers(limits.max_headers)
            .max_buf_size(limits.max_header_bytes)
            .handshake(TokioIo::new(io))
            .await?;
        Ok(Box::new(Self {
            sender,
            driver: Some(driver),
        }))
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Whether the server has ended it, or may take another request.
    pub fn poll_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(
        &mut self,
        mut request: Box<Request<Body>>,
    ) -> Result<Response<Incoming>, SendError> {
        if let Some(wanted) = Continue::of(&request) {
            hyper::ext::on_informational(&mut request, move |said| wanted.informed(said.status()));
        }
        let mut response = pin!(self.sender.try_send_request(*request));
        poll_fn(|cx| {
            if let Some(driver) = &mut self.driver
                && Pin::new(driver).poll(cx).is_ready()
            {
                self.driver = None;
            }
            response.as_mut().poll(cx)
        })
        .await
        .map_err(|mut error| match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Failed(error.into_error()),
        })
    }

    /// Goes on in a task of its own, in which it can stop being HTTP: for upgrades, and for
    /// requests that are still being sent when their response begins.
    pub fn detach(&mut self) {
        if let Some(driver) = self.driver.take() {
            tokio::spawn(async move {
                if let Err(error) = driver.with_upgrades().await {
                    tracing::debug!(%error, "HTTP/1 connection ended");
                }
            });
        }
    }
}

/// A response body together with the connection that it comes from.
pub struct UpstreamH1 {
    incoming: Incoming,
    connection: Option<Box<Connection>>,
    home: Weak<IdleConnections>,
}

impl UpstreamH1 {
    /// `connection` goes to `home` when the body has been read to its end.
    pub fn new(
        incoming: Incoming,
        connection: Option<Box<Connection>>,
        home: &Arc<IdleConnections>,
    ) -> Self {
        Self {
            incoming,
            connection,
            home: Arc::downgrade(home),
        }
    }

    /// Whether all of the body has been read.
    pub fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.incoming)
    }

    /// What is known of the length still to come.
    pub fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.incoming)
    }

    /// The next frame; drives the connection as far as that takes.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut frame = http_body::Body::poll_frame(Pin::new(&mut self.incoming), cx);
        if frame.is_pending()
            && let Some(connection) = &mut self.connection
        {
            connection.drive(cx);
            frame = http_body::Body::poll_frame(Pin::new(&mut self.incoming), cx);
        }
        if matches!(frame, Poll::Ready(None)) || self.is_end_stream() {
            self.finish(cx);
        }
        frame
    }

    /// Gives the connection back if the server left it open.
    pub fn finish(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.poll_usable(cx)
            && let Some(home) = self.home.upgrade()
        {
            home.put(connection);
        }
    }
}

impl Drop for UpstreamH1 {
    /// A body that is known to be empty or at its end is dropped without a last poll.
    fn drop(&mut self) {
        if self.connection.is_some() && self.is_end_stream() {
            // An idle connection is not driven, so that nobody need be woken.
            self.finish(&mut Context::from_waker(Waker::noop()));
        }
    }
}
