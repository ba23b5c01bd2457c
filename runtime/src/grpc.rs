//! Owns what gRPC servers of the control plane share: the server with its limits, streams that send the newest state, and
//! the `grpc_server_*` metrics (contract 2.5, 8.2). Knows no service and no TLS: the sidecar in front does that.

mod incoming;
mod metrics;

#[cfg(test)]
mod tests;

use futures_util::{Stream, stream};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Code, Response, Status};

pub use metrics::{Call, Metrics};

use crate::log::Throttle;

/// Largest request of a watch, in bytes; those of proxies have some hundred.
pub const MAX_REQUEST: usize = 64 * 1024;
/// How long connections have for ending after the shutdown.
pub const GRACE: Duration = Duration::from_secs(5);
/// Connections of one server: one for each of 10,000 proxies, the target of the design, with room for a restart of all.
const MAX_CONNECTIONS: usize = 20_000;
/// Size of a request's headers in bytes.
const MAX_HEADERS: u32 = 16 * 1024;

/// In what servers differ. The default is for watches, which are many and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls of one connection at a time.
    pub streams_per_connection: u32,
    /// Time between HTTP/2 pings, so that a peer that is gone does not hold its streams.
    pub ping_interval: Duration,
    /// How long a ping may stay without an answer.
    pub ping_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A proxy has one for each target it talks to.
            streams_per_connection: 10_000,
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(10),
        }
    }
}

/// A stream of messages to a client.
pub type Updates<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// Where the messages of a stream come from. Asked only when the client takes the next one, so nothing piles up.
pub trait Source: Send + 'static {
    /// What is sent.
    type Message: Send + 'static;

    /// Waits for the next message; an error ends the stream.
    fn next(&mut self) -> impl Future<Output = Result<Self::Message, Status>> + Send;
}

/// The calls of one server.
#[derive(Clone)]
pub struct Calls {
    metrics: Metrics,
    streams: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Calls {
    /// At most `max_streams` streams at a time; the shutdown ends them.
    pub fn new(metrics: Metrics, max_streams: usize, shutdown: CancellationToken) -> Self {
        let streams = Arc::new(Semaphore::new(max_streams.min(Semaphore::MAX_PERMITS)));
        Self {
            metrics,
            streams,
            shutdown,
        }
    }

    /// Counts the start of a call that is answered by a stream.
    pub fn streaming(&self, service: &'static str, method: &'static str) -> Call {
        self.metrics.streaming(service, method)
    }

    /// Counts the start of a call that is answered once.
    pub fn unary(&self, service: &'static str, method: &'static str) -> Call {
        self.metrics.unary(service, method)
    }

    /// Opens the stream of a call, or refuses it. Whoever waits for `source` has a place among the streams already.
    ///
    /// # Errors
    /// That of `source`, or ResourceExhausted when there are too many streams.
    pub async fn open<S: Source>(
        &self,
        call: Call,
        source: impl Future<Output = Result<S, Status>>,
    ) -> Result<Response<Updates<S::Message>>, Status> {
        let opened = match Arc::clone(&self.streams).try_acquire_owned() {
            Ok(permit) => source.await.map(|source| (source, permit)),
            Err(_) => Err(exhausted("too many streams are open on this server")),
        };
        let (source, permit) = opened.inspect_err(|status| call.finish(status.code()))?;
        let open = Open {
            source,
            call,
            shutdown: self.shutdown.clone(),
            done: false,
            _permit: permit,
        };
        Ok(Response::new(Box::pin(stream::unfold(open, Open::step))))
    }
}

/// An open stream.
struct Open<S> {
    source: S,
    call: Call,
    shutdown: CancellationToken,
    done: bool,
    _permit: OwnedSemaphorePermit,
}

impl<S: Source> Open<S> {
    async fn step(mut self) -> Option<(Result<S::Message, Status>, Self)> {
        if self.done {
            return None;
        }
        let next = tokio::select! {
            biased;
            // The client opens a new stream elsewhere and keeps what it knows until then.
            () = self.shutdown.cancelled() => {
                self.call.finish(Code::Ok);
                return None;
            }
            next = self.source.next() => next,
        };
        match &next {
            Ok(_) => self.call.sent(),
            Err(status) => {
                self.call.finish(status.code());
                self.done = true;
            }
        }
        Some((next, self))
    }
}

/// The refusal of what is one too many, for example a target. Logged now and then only: who is refused comes again, and brings
/// others.
pub fn exhausted(reason: impl std::fmt::Display) -> Status {
    static LINES: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(left_out) = LINES.pass() {
        tracing::warn!(%reason, left_out, "a stream is refused");
    }
    Status::resource_exhausted(reason.to_string())
}

/// Serves plaintext HTTP/2 until the shutdown, and ends at most [`GRACE`] after it.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    limits: Limits,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(limits.ping_interval))
        .http2_keepalive_timeout(Some(limits.ping_timeout))
        .max_concurrent_streams(limits.streams_per_connection)
        .http2_max_header_list_size(MAX_HEADERS);
    let incoming = incoming::limited(listener, MAX_CONNECTIONS);
    let served = server
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    // A peer that does not read its GOAWAY must not hold up the end of the process.
    let out_of_patience = async {
        shutdown.cancelled().await;
        time::sleep(GRACE).await;
    };
    tokio::select! {
        served = served => served,
        () = out_of_patience => {
            tracing::warn!("connections were still open {GRACE:?} after the shutdown began; leaving them");
            Ok(())
        }
    }
}
