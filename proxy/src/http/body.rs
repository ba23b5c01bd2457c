//! Owns `Body`: request and response bodies of every origin, without boxing a frame, and the
//! observer that sees a response's first byte and its end. Does not send bodies.

use super::client::StreamGuard;
use super::expect::Gate;
use super::h1::UpstreamH1;
use crate::metrics::http::{HttpSeries, Outcome};
use crate::outbound::balance::Pending;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// A body that passes through the proxy.
pub struct Body {
    kind: Kind,
    observer: Option<Box<Observer>>,
    /// Set when the body has been read to its end.
    ended: Option<Arc<AtomicBool>>,
}

enum Kind {
    Empty,
    Full(Bytes),
    /// No body, but a length to tell.
    Declared(u64),
    /// From an HTTP/1 client, driven by the server connection.
    H1(hyper::body::Incoming),
    /// The same, of a client that waits until its server wants it.
    Held(Box<(hyper::body::Incoming, Gate)>),
    /// From an HTTP/1 server, whose connection this body drives.
    Upstream(Box<UpstreamH1>),
    H2(H2Body),
}

struct H2Body {
    recv: h2::RecvStream,
    /// From `content-length`; what is still to come.
    remaining: Option<u64>,
    data_done: bool,
    /// The end has been given.
    done: bool,
    /// Counts the stream on its connection.
    _stream: Option<StreamGuard>,
}

/// A body that broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The HTTP/1 peer closed, or sent what is not a body.
    #[error("HTTP/1 body: {0}")]
    H1(#[from] hyper::Error),
    /// The HTTP/2 peer reset the stream or the connection broke.
    #[error("HTTP/2 body: {0}")]
    H2(#[from] h2::Error),
}

impl BodyError {
    /// The reset that tells an HTTP/2 peer about this.
    pub fn reason(&self) -> h2::Reason {
        match self {
            Self::H1(_) => h2::Reason::INTERNAL_ERROR,
            Self::H2(error) => error.reason().unwrap_or(h2::Reason::INTERNAL_ERROR),
        }
    }
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Kind::Empty.into()
    }

    /// A body that is all here.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Self::empty();
        }
        Kind::Full(bytes).into()
    }

    /// No body, for a response that tells the length of one all the same (304, RFC 9110 section 8.6): without it hyper
    /// takes `content-length` away. Not to be used on HTTP/2.
    pub fn declared(length: u64) -> Self {
        Kind::Declared(length).into()
    }

    /// The body of a request that an HTTP/1 server reads.
    pub fn h1(incoming: hyper::body::Incoming) -> Self {
        Kind::H1(incoming).into()
    }

    /// The same, not read before `gate` is open.
    pub fn held(incoming: hyper::body::Incoming, gate: Gate) -> Self {
        Kind::Held(Box::new((incoming, gate))).into()
    }

    /// The body of a response of an HTTP/1 server.
    pub fn upstream_h1(body: UpstreamH1) -> Self {
        Kind::Upstream(Box::new(body)).into()
    }

    /// A body received on an HTTP/2 stream.
    pub fn h2(headers: &HeaderMap, recv: h2::RecvStream) -> Self {
        if recv.is_end_stream() {
            return Self::empty();
        }
        let remaining = headers
            .get(http::header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse().ok());
        Kind::H2(H2Body {
            recv,
            remaining,
            data_done: false,
            done: false,
            _stream: None,
        })
        .into()
    }

    /// Keeps `stream` until this body ends.
    pub fn holding(mut self, stream: StreamGuard) -> Self {
        if let Kind::H2(body) = &mut self.kind {
            body._stream = Some(stream);
        }
        self
    }

    /// Tells `observer` of the body's first byte and of its end.
    pub fn observed(mut self, mut observer: Box<Observer>) -> Self {
        if self.is_end_stream() {
            observer.end(None);
        } else {
            self.observer = Some(observer);
        }
        self
    }

    /// A flag that is set when this body has been read to its end.
    pub fn watch_end(&mut self) -> Arc<AtomicBool> {
        let ended = Arc::new(AtomicBool::new(self.is_end_stream()));
        self.ended = Some(ended.clone());
        ended
    }

    /// Whether this body is known to hold nothing.
    pub fn is_empty(&self) -> bool {
        matches!(self.kind, Kind::Empty) || self.is_end_stream()
    }

    fn poll_kind(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.kind {
            Kind::Empty | Kind::Declared(_) => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::H1(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|f| f.map(|f| f.map_err(BodyError::from))),
            Kind::Held(held) => {
                let (body, gate) = &mut **held;
                ready!(gate.poll_open(cx));
                Pin::new(body)
                    .poll_frame(cx)
                    .map(|f| f.map(|f| f.map_err(BodyError::from)))
            }
            Kind::Upstream(body) => body
                .poll_frame(cx)
                .map(|f| f.map(|f| f.map_err(BodyError::from))),
            Kind::H2(body) => body
                .poll_frame(cx)
                .map(|f| f.map(|f| f.map_err(BodyError::from))),
        }
    }
}

impl From<Kind> for Body {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            observer: None,
            ended: None,
        }
    }
}

impl H2Body {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_done {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(bytes)) => {
                    // The frame is in our hands, which hold one at a time.
                    let _ = self.recv.flow_control().release_capacity(bytes.len());
                    if let Some(remaining) = &mut self.remaining {
                        *remaining = remaining.saturating_sub(bytes.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Err(error)) => {
                    // The peer has all it wanted of the message: RFC 9113 section 8.1.
                    if error.reason() == Some(h2::Reason::NO_ERROR) {
                        self.done = true;
                        return Poll::Ready(None);
                    }
                    return Poll::Ready(Some(Err(error)));
                }
                None => self.data_done = true,
            }
        }
        if self.done {
            return Poll::Ready(None);
        }
        let trailers = ready!(self.recv.poll_trailers(cx));
        self.done = true;
        match trailers {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_kind(cx));
        if this.observer.is_some() {
            this.observe(&frame);
        }
        if this.ended.is_some()
            && (frame.is_none() || this.is_end_stream())
            && let Some(ended) = this.ended.take()
        {
            ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Full(_) | Kind::Declared(_) => false,
            Kind::H1(body) => body.is_end_stream(),
            Kind::Held(held) => held.0.is_end_stream(),
            Kind::Upstream(body) => body.is_end_stream(),
            Kind::H2(body) => body.done || body.recv.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Declared(length) => SizeHint::with_exact(*length),
            Kind::H1(body) => body.size_hint(),
            Kind::Held(held) => held.0.size_hint(),
            Kind::Upstream(body) => body.size_hint(),
            Kind::H2(H2Body {
                remaining: Some(n), ..
            }) => SizeHint::with_exact(*n),
            Kind::H2(_) => SizeHint::default(),
        }
    }
}

impl Body {
    fn observe(&mut self, frame: &Option<Result<Frame<Bytes>, BodyError>>) {
        let ended = match frame {
            Some(Ok(frame)) if frame.is_data() => {
                if let Some(observer) = &mut self.observer {
                    observer.first_data();
                }
                if !self.is_end_stream() {
                    return;
                }
                Ok(None)
            }
            Some(Ok(frame)) => Ok(frame.trailers_ref()),
            Some(Err(_)) => Err(()),
            None => Ok(None),
        };
        if let Some(mut observer) = self.observer.take() {
            match ended {
                Ok(trailers) => observer.end(trailers),
                Err(()) => observer.broken(),
            }
        }
    }
}

/// Watches one exchange for metrics and for the balancer: from the request's head to the end of
/// the response.
pub struct Observer {
    series: Arc<HttpSeries>,
    started: Instant,
    status: StatusCode,
    grpc: bool,
    /// The endpoint's share of in-flight requests, given back at the first data (contract 4.4).
    pending: Option<Pending>,
    ended: bool,
}

impl Observer {
    /// Begins to watch when the head of the response is there.
    pub fn new(
        series: Arc<HttpSeries>,
        started: Instant,
        status: StatusCode,
        headers: &HeaderMap,
        pending: Option<Pending>,
    ) -> Box<Self> {
        let grpc = super::headers::is_grpc(headers);
        let mut this = Box::new(Self {
            series,
            started,
            status,
            grpc,
            pending,
            ended: false,
        });
        // A gRPC response without a body has its status in the head ("trailers-only").
        if grpc && headers.contains_key("grpc-status") {
            this.first_data();
            this.finish(weft_core::classify::grpc_code(headers), "");
        }
        this
    }

    fn first_data(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.sample();
        }
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) {
        self.first_data();
        self.finish(trailers.and_then(weft_core::classify::grpc_code), "");
    }

    fn broken(&mut self) {
        self.finish(None, "i/o");
    }

    fn finish(&mut self, grpc_status: Option<u16>, error: &'static str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // Without a status a gRPC call counts as success with status Unknown (contract 4.5).
        let grpc = self.grpc.then_some(grpc_status).flatten();
        let outcome = Outcome {
            status: self.status.as_u16(),
            grpc,
            error,
        };
        self.series.response(outcome, self.started.elapsed());
    }
}

impl Drop for Observer {
    /// A client that goes away is not the server's failure (case H13).
    fn drop(&mut self) {
        self.finish(None, "");
    }
}
