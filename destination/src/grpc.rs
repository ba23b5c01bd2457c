//! Owns what gRPC services of the control plane share: the server with its limits, streams that send the newest state,
//! and the `grpc_server_*` metrics (contract 8.2). Knows no service.

mod incoming;
mod metrics;

#[cfg(test)]
mod tests;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status, service::Routes, transport::Server};

pub use metrics::{Call, Metrics};

/// Largest request, in bytes; those of proxies have some hundred.
pub const MAX_REQUEST: usize = 64 * 1024;
/// Streams of one connection; a proxy has one for each target it talks to.
const MAX_STREAMS_PER_CONNECTION: u32 = 10_000;
/// Connections of one server; more wait in the kernel.
const MAX_CONNECTIONS: usize = 20_000;
/// Pings, so that a peer that is gone does not hold its streams.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections have for ending after the shutdown.
const GRACE: Duration = Duration::from_secs(5);

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
        self.metrics.start(service, method, "server_stream")
    }

    /// Counts the start of a call that is answered once.
    pub fn unary(&self, service: &'static str, method: &'static str) -> Call {
        self.metrics.start(service, method, "unary")
    }

    /// Opens the stream of a call, or refuses it.
    ///
    /// # Errors
    /// That of `source`, or ResourceExhausted when there are too many streams.
    pub fn open<S: Source>(
        &self,
        call: Call,
        source: Result<S, Status>,
    ) -> Result<Response<Updates<S::Message>>, Status> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let opened = source.and_then(|source| match permit {
            Ok(permit) => Ok((source, permit)),
            Err(_) => Err(Status::resource_exhausted(
                "too many streams are open on this server",
            )),
        });
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

/// The refusal of one target too many.
pub fn exhausted(error: weft_cluster::TooManyViews) -> Status {
    tracing::warn!(%error, "a stream is refused");
    Status::resource_exhausted(error.to_string())
}

/// Serves plaintext HTTP/2 until the shutdown.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(16 * 1024);
    let incoming = incoming::limited(listener, MAX_CONNECTIONS);
    let served = server
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    tokio::select! {
        served = served => served,
        // A peer that does not read its GOAWAY must not hold up the end of the process.
        () = async { shutdown.cancelled().await; time::sleep(GRACE).await } => Ok(()),
    }
}
