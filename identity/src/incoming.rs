//! The connections of the gRPC server, no more than a fixed number at a time. Further ones wait in the kernel's queue.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;
use weft_runtime::net::{self, SocketOptions};

/// A peer whose host vanished is noticed by the kernel too, not only by HTTP/2 pings.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Before the next attempt when a connection cannot be accepted, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that gives its place back when it is dropped.
pub(crate) struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepts for ever, with at most `limit` connections alive.
pub(crate) fn connections(
    listener: TcpListener,
    limit: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(limit));
    stream::unfold((listener, places), |(listener, places)| async move {
        let place = places.clone().acquire_owned().await.ok()?;
        // Not `net::accept`: its future is not `Send`, because it calls an async closure.
        let (stream, peer) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        };
        let options = SocketOptions {
            keepalive: Some(TCP_KEEPALIVE),
            user_timeout: None,
        };
        if let Err(error) = net::configure(&stream, &options) {
            tracing::debug!(%peer, %error, "connection ended before it was set up");
        }
        Some((
            Ok(Connection {
                stream,
                _place: place,
            }),
            (listener, places),
        ))
    })
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
