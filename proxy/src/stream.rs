//! Owns `Stream`: one concrete type for every transport the proxy reads or writes, plain or TLS,
//! with the bytes that detection has already read put back in front. Does not decide protocols.

use crate::metrics::tcp::OpenConnection;
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use weft_tls::TlsStream;

/// A byte stream between the proxy and a peer.
///
/// Bytes are counted above TLS, as payload (golden `tcp_read_bytes_total`).
pub struct Stream {
    prefix: Bytes,
    io: Io,
    open: Option<OpenConnection>,
}

enum Io {
    Plain(TcpStream),
    Server(Box<TlsStream<Stream>>),
    Client(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// A plain TCP connection.
    pub fn plain(io: TcpStream) -> Self {
        Self::new(Io::Plain(io))
    }

    /// A connection whose TLS this proxy terminated.
    pub fn server_tls(io: TlsStream<Stream>) -> Self {
        Self::new(Io::Server(Box::new(io)))
    }

    /// A connection that this proxy made with mesh TLS.
    pub fn client_tls(io: TlsStream<TcpStream>) -> Self {
        Self::new(Io::Client(Box::new(io)))
    }

    fn new(io: Io) -> Self {
        Self {
            prefix: Bytes::new(),
            io,
            open: None,
        }
    }

    /// Counts this stream as open, and its bytes, from now until it is dropped.
    pub fn count(&mut self, open: OpenConnection) {
        open.read(self.prefix.len());
        self.open = Some(open);
    }

    /// Puts bytes that were read ahead back in front of the stream.
    pub fn unread(&mut self, mut bytes: BytesMut) {
        if !self.prefix.is_empty() {
            bytes.extend_from_slice(&self.prefix);
        }
        self.prefix = bytes.freeze();
    }

    /// Whether the bytes go to a socket as they are, without TLS.
    pub fn is_plain(&self) -> bool {
        matches!(self.io, Io::Plain(_))
    }

    /// Makes the peer see a reset instead of an orderly end when this stream is dropped.
    pub fn reset_on_close(&self) {
        if let Io::Plain(io) = &self.io {
            // Only tells how to close; if it cannot be set the peer sees an orderly end.
            let _ = weft_runtime::net::reset_on_close(io);
        }
    }

    /// Reads once, at most `limit` bytes, into `buf`. Returns the bytes read; 0 at the end.
    ///
    /// # Errors
    /// Those of the transport.
    pub async fn read_some(&mut self, buf: &mut BytesMut, limit: usize) -> io::Result<usize> {
        buf.reserve(limit);
        let mut limited = bytes::BufMut::limit(buf, limit);
        self.read_buf(&mut limited).await
    }

    fn poll_read_io(
        io: &mut Io,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Io::Server(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
            Io::Client(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        }
    }

    fn wrote(&mut self, result: &io::Result<usize>) {
        if let Some(open) = &mut self.open {
            match result {
                Ok(n) => open.wrote(*n),
                Err(error) => open.failed(error),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.prefix.is_empty() {
            let n = this.prefix.len().min(buf.remaining());
            buf.put_slice(&this.prefix.split_to(n));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let result = ready!(Self::poll_read_io(&mut this.io, cx, buf));
        if let Some(open) = &mut this.open {
            match &result {
                Ok(()) => open.read(buf.filled().len().saturating_sub(before)),
                Err(error) => open.failed(error),
            }
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(match &mut this.io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Io::Server(io) => Pin::new(io.as_mut()).poll_write(cx, buf),
            Io::Client(io) => Pin::new(io.as_mut()).poll_write(cx, buf),
        });
        this.wrote(&result);
        Poll::Ready(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(match &mut this.io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Server(io) => Pin::new(io.as_mut()).poll_write_vectored(cx, bufs),
            Io::Client(io) => Pin::new(io.as_mut()).poll_write_vectored(cx, bufs),
        });
        this.wrote(&result);
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Server(io) => io.is_write_vectored(),
            Io::Client(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Server(io) => Pin::new(io.as_mut()).poll_flush(cx),
            Io::Client(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Server(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
            Io::Client(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}

/// A first look at a stream: the bytes read while deciding what it carries.
pub struct Lookahead<'s> {
    stream: &'s mut Stream,
    seen: BytesMut,
}

impl<'s> Lookahead<'s> {
    /// Starts to look at `stream`.
    pub fn new(stream: &'s mut Stream) -> Self {
        Self {
            stream,
            seen: BytesMut::new(),
        }
    }

    /// Reads more, at most `limit` bytes in all. Returns whether anything came.
    ///
    /// # Errors
    /// Those of the transport.
    pub async fn more(&mut self, limit: usize) -> io::Result<bool> {
        let room = limit.saturating_sub(self.seen.len());
        if room == 0 {
            return Ok(false);
        }
        Ok(self.stream.read_some(&mut self.seen, room).await? > 0)
    }

    /// Keeps the first `n` bytes out of the stream: they have been understood.
    pub fn take(&mut self, n: usize) {
        self.seen.advance(n.min(self.seen.len()));
    }

    /// What was read so far.
    pub fn seen(&self) -> &[u8] {
        self.seen.chunk()
    }
}

impl Drop for Lookahead<'_> {
    /// Whatever was read is put back, also when a time limit ends the look.
    fn drop(&mut self) {
        if !self.seen.is_empty() {
            let seen = std::mem::take(&mut self.seen);
            self.stream.unread(seen);
        }
    }
}
