//! Owns the transport under an HTTP/2 connection: what its streams write in one turn of its task goes out in one piece,
//! and what is readable is read in one piece. Without it h2 makes a system call (and a TLS record) a DATA frame.
//! Does not know frames.

use crate::stream::Stream;
use parking_lot::Mutex;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that may wait for the end of a turn; above it they go out before more is taken.
const MAX_WAITING: usize = 64 * 1024;
/// Bytes that are asked of a plain socket at once. TLS has a buffer of its own.
const READ: usize = 32 * 1024;

thread_local! {
    /// Buffers that no connection of this thread uses now, one for each direction.
    static SPARE: [Cell<Vec<u8>>; 2] = const { [Cell::new(Vec::new()), Cell::new(Vec::new())] };
}
const INPUT: usize = 0;
const OUTPUT: usize = 1;

fn lend(direction: usize) -> Vec<u8> {
    SPARE
        .try_with(|spare| spare[direction].take())
        .unwrap_or_default()
}

fn give_back(direction: usize, buffer: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    // No thread-local any more: the thread is ending.
    let _ = SPARE.try_with(|spare| spare[direction].set(buffer));
}

/// The side that h2 holds. It does not flush: the task of the connection does, by [`Turns`].
pub struct Gathered(Arc<Mutex<Buffers>>);

/// The side that the task of the connection holds.
pub struct Turns(Arc<Mutex<Buffers>>);

struct Buffers {
    stream: Stream,
    /// What was read and not taken yet, at `unread`. Empty while nothing is there, so that an idle connection holds no memory.
    input: Vec<u8>,
    unread: Range<usize>,
    /// What was written and has not gone yet, from `sent` on. Empty likewise.
    output: Vec<u8>,
    sent: usize,
    /// Why the transport could not send, for whoever asks next.
    failed: Option<io::Error>,
}

/// Splits a transport between h2 and the task of the connection.
pub fn gather(stream: Stream) -> (Gathered, Turns) {
    let buffers = Arc::new(Mutex::new(Buffers {
        stream,
        input: Vec::new(),
        unread: 0..0,
        output: Vec::new(),
        sent: 0,
        failed: None,
    }));
    (Gathered(buffers.clone()), Turns(buffers))
}

impl Turns {
    /// Runs a future of the connection, and sends what it has written whenever it waits.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() {
                self.end(cx);
            }
            polled
        })
        .await
    }

    fn end(&self, cx: &mut Context<'_>) {
        let mut buffers = self.0.lock();
        if let Poll::Ready(Err(error)) = buffers.poll_send(cx) {
            buffers.failed = Some(error);
            cx.waker().wake_by_ref();
        }
    }
}

impl Buffers {
    /// Sends what waits. Ready when nothing does any more.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(waiting) = self.output.get(self.sent..).filter(|w| !w.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.sent = 0;
        if self.output.capacity() > 0 {
            self.output.clear();
            give_back(OUTPUT, &mut self.output);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut input = lend(INPUT);
        input.resize(READ, 0);
        let mut read = ReadBuf::new(&mut input);
        let result = Pin::new(&mut self.stream).poll_read(cx, &mut read);
        self.unread = 0..read.filled().len();
        if self.unread.is_empty() {
            give_back(INPUT, &mut input);
        } else {
            self.input = input;
        }
        result
    }
}

impl AsyncRead for Gathered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self.0.lock();
        this.take_error()?;
        if this.unread.is_empty() {
            if !this.stream.is_plain() || buf.remaining() >= READ {
                return Pin::new(&mut this.stream).poll_read(cx, buf);
            }
            ready!(this.poll_fill(cx))?;
        }
        let n = this.unread.len().min(buf.remaining());
        let end = this.unread.start + n;
        buf.put_slice(this.input.get(this.unread.start..end).unwrap_or_default());
        this.unread.start = end;
        if this.unread.is_empty() && this.input.capacity() > 0 {
            give_back(INPUT, &mut this.input);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gathered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self.0.lock();
        this.take_error()?;
        if this.output.len() >= MAX_WAITING {
            ready!(this.poll_send(cx))?;
        }
        if this.output.capacity() == 0 {
            this.output = lend(OUTPUT);
        }
        for buf in bufs {
            this.output.extend_from_slice(buf);
        }
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The end of the turn sends.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.lock().take_error())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self.0.lock();
        this.take_error()?;
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
