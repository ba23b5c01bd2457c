//! Owns what both directions share of HTTP: serving connections, sending requests, bodies,
//! headers. Does not route, authorize or balance.

pub mod body;
pub mod client;
pub mod expect;
pub mod filter;
pub mod gather;
pub mod h1;
pub mod h2;
pub mod headers;
pub mod respond;
pub mod upgrade;

use ::http::{Request, Response};
use body::Body;
use std::future::Future;
use std::time::Duration;

/// Answers requests; what `inbound` and `outbound` make of a connection.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Answers one request, or says how its HTTP/2 stream is to be reset (RFC 9113 section 7). The request is boxed, since
    /// each step that it passes through would hold its 288 bytes otherwise.
    fn handle(
        self,
        request: Box<Request<Body>>,
    ) -> impl Future<Output = Result<Response<Body>, ::h2::Reason>> + Send;
}

/// Limits on what is accepted from a peer (case P21).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request or response head; above it a client gets 431.
    pub max_header_bytes: usize,
    /// Header lines of a head.
    pub max_headers: usize,
}

/// Header lines that a head may have.
pub const MAX_HEADERS: usize = 256;

/// When to ask a silent HTTP/2 peer whether it is there.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Time between pings.
    pub interval: Duration,
    /// Time in which a ping must be answered.
    pub timeout: Duration,
}

/// What this side of an HTTP/2 connection says and allows.
#[derive(Clone, Copy, Debug)]
pub struct Http2Params {
    /// Bytes a peer may send on a stream before we take them.
    pub stream_window: u32,
    /// Bytes a peer may send on a connection before we take them.
    pub connection_window: u32,
    /// Streams a client may have open.
    pub max_concurrent_streams: Option<u32>,
    /// Bytes of a frame's payload.
    pub max_frame_size: Option<u32>,
    /// Resets of a client that wait to be accepted (rapid reset).
    pub max_pending_accept_reset_streams: Option<usize>,
    /// Bytes that wait to be sent on a stream.
    pub max_send_buffer: Option<usize>,
    /// Limits on heads.
    pub limits: Limits,
    /// Pings to the peer.
    pub keep_alive: Option<KeepAlive>,
}

/// Resets of a client that may wait to be accepted unless configured. Another proxy's connection carries the streams of many
/// clients: one that leaves with all its streams open must not end those of the others.
const MAX_PENDING_ACCEPT_RESET_STREAMS: usize = 1024;
/// How many small DATA frames may wait to be read on a connection: each counts as 256 bytes less its own. A shared
/// connection of gRPC streams holds many small messages; 16 MiB are 65,000 frames, some MB of memory at the worst.
const SMALL_FRAMES: usize = 16 << 20;

/// Streams that we have reset and of which late frames are ignored for a second. On a shared connection many streams may be
/// cancelled at once while their peers still send.
const RESET_STREAMS: usize = 1024;
/// Frames for streams that are gone, and malformed messages, in all the life of a connection, before it is ended: each
/// makes us send a reset, and a peer that does not read them would fill our memory.
const LOCAL_ERROR_RESETS: usize = 1 << 16;

/// Streams that a client may have open on one connection unless configured.
const MAX_CONCURRENT_STREAMS: u32 = 1024;

impl Http2Params {
    /// Settings for serving.
    pub fn server(&self) -> ::h2::server::Builder {
        let mut builder = ::h2::server::Builder::new();
        builder
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_header_list_size(header_list(self.limits))
            .data_frame_budget(SMALL_FRAMES)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(Some(LOCAL_ERROR_RESETS))
            .max_pending_accept_reset_streams(
                self.max_pending_accept_reset_streams
                    .unwrap_or(MAX_PENDING_ACCEPT_RESET_STREAMS),
            )
            .max_concurrent_streams(
                self.max_concurrent_streams
                    .unwrap_or(MAX_CONCURRENT_STREAMS),
            );
        if let Some(size) = self.max_frame_size {
            builder.max_frame_size(size);
        }
        if let Some(max) = self.max_send_buffer {
            builder.max_send_buffer_size(max);
        }
        builder
    }

    /// Settings for a connection to a server.
    pub fn client(&self) -> ::h2::client::Builder {
        let mut builder = ::h2::client::Builder::new();
        builder
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_header_list_size(header_list(self.limits))
            .data_frame_budget(SMALL_FRAMES)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(Some(LOCAL_ERROR_RESETS))
            .enable_push(false);
        if let Some(size) = self.max_frame_size {
            builder.max_frame_size(size);
        }
        if let Some(max) = self.max_send_buffer {
            builder.max_send_buffer_size(max);
        }
        builder
    }
}

/// HTTP/2 counts 32 bytes a field beside its text (RFC 9113 section 6.5.2).
fn header_list(limits: Limits) -> u32 {
    let overhead = limits.max_headers.saturating_mul(32);
    u32::try_from(limits.max_header_bytes.saturating_add(overhead)).unwrap_or(u32::MAX)
}
