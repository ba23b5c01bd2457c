//! Carrying bytes between two streams, in both directions at once, until both have ended.
//! It does not look at the bytes, keep time, or count anything but the totals it returns.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

mod buffer;
use buffer::Buffer;

/// Bytes one direction may carry before other tasks get their turn. About 0.1 ms of memcpy; streams that are not
/// tokio's own do not yield by themselves.
const TURN_BYTES: u64 = 512 * 1024;

/// What was carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes read from the first stream and written to the second.
    pub a_to_b: u64,
    /// Bytes read from the second stream and written to the first.
    pub b_to_a: u64,
}

/// One of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first argument of [`bidirectional`].
    A,
    /// The second argument.
    B,
}

/// What was being done when a stream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading what the peer sent.
    Read,
    /// Writing what the other side sent, or announcing its end.
    Write,
}

/// A stream failed, and both were ended.
#[derive(Debug, thiserror::Error)]
#[error("{operation:?} on side {side:?} failed after {} bytes a→b and {} b→a: {source}", copied.a_to_b, copied.b_to_a)]
pub struct CopyError {
    /// The stream that failed.
    pub side: Side,
    /// What was being done. `Read` on A and `Write` on B concern the direction a→b.
    pub operation: Operation,
    /// What had been carried until then.
    pub copied: Copied,
    /// What the stream said.
    #[source]
    pub source: io::Error,
}

/// Copies between `a` and `b` until both have ended. They are dropped with the future.
///
/// The end of one side is passed on to the other as the end of its output (half-close), while the opposite direction
/// goes on. An idle connection holds no buffer; a busy one between 4 KiB and 64 KiB for each direction that is under way.
/// The future can be polled in place (`&mut`): whoever moves it into another one makes that hold the streams twice.
///
/// # Errors
/// The first failure of either stream ends both.
pub fn bidirectional<A, B>(
    mut a: A,
    mut b: B,
) -> impl Future<Output = Result<Copied, CopyError>> + Unpin
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut a_to_b = Direction::default();
    let mut b_to_a = Direction::default();
    poll_fn(move |cx| {
        let forth = a_to_b
            .poll(cx, &mut a, &mut b)
            .map_err(|f| locate(f, Side::A, Side::B));
        let back = b_to_a
            .poll(cx, &mut b, &mut a)
            .map_err(|f| locate(f, Side::B, Side::A));
        let copied = Copied {
            a_to_b: a_to_b.copied,
            b_to_a: b_to_a.copied,
        };
        match (forth, back) {
            (Poll::Ready(Err((side, operation, source))), _)
            | (_, Poll::Ready(Err((side, operation, source)))) => Poll::Ready(Err(CopyError {
                side,
                operation,
                copied,
                source,
            })),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(copied)),
            _ => Poll::Pending,
        }
    })
}

/// On which side a direction failed.
fn locate(
    (operation, source): Failure,
    reader: Side,
    writer: Side,
) -> (Side, Operation, io::Error) {
    let side = match operation {
        Operation::Read => reader,
        Operation::Write => writer,
    };
    (side, operation, source)
}

/// Half of a connection: what was read from one stream and is still to be written to the other.
#[derive(Debug, Default)]
struct Direction {
    buffer: Buffer,
    copied: u64,
    phase: Phase,
    /// The writer may hold bytes back until it is flushed.
    unflushed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Copying,
    /// The reader has ended; the writer is being told.
    Ending,
    Done,
}

type Failure = (Operation, io::Error);

impl Direction {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let turn_end = self.copied.saturating_add(TURN_BYTES);
        while self.phase == Phase::Copying {
            ready!(self.poll_drain(cx, writer)).map_err(|e| (Operation::Write, e))?;
            if self.copied >= turn_end {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.buffer.poll_fill(cx, reader) {
                Poll::Ready(Ok(0)) => self.phase = Phase::Ending,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(e)) => return Poll::Ready(Err((Operation::Read, e))),
                Poll::Pending => {
                    self.buffer.release();
                    ready!(self.poll_flush(cx, writer)).map_err(|e| (Operation::Write, e))?;
                    return Poll::Pending;
                }
            }
        }
        if self.phase == Phase::Ending {
            self.buffer.release();
            ready!(poll_end(cx, writer)).map_err(|e| (Operation::Write, e))?;
            self.phase = Phase::Done;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_drain<W>(&mut self, cx: &mut Context<'_>, writer: &mut W) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.buffer.pending().is_empty() {
            let n = ready!(Pin::new(&mut *writer).poll_write(cx, self.buffer.pending()))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffer.consume(n);
            self.copied = self.copied.saturating_add(n as u64);
            self.unflushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush<W>(&mut self, cx: &mut Context<'_>, writer: &mut W) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        if self.unflushed {
            ready!(Pin::new(writer).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// Ends the writer's output. A peer that has gone meanwhile is no failure of this direction, which has carried all it
/// had;
/// if the peer was reset, reading from it says so.
fn poll_end<W>(cx: &mut Context<'_>, writer: &mut W) -> Poll<io::Result<()>>
where
    W: AsyncWrite + Unpin,
{
    match ready!(Pin::new(writer).poll_shutdown(cx)) {
        Err(e) if gone(&e) => Poll::Ready(Ok(())),
        result => Poll::Ready(result),
    }
}

fn gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// Reads once into `space`; the number of bytes, 0 at the end.
fn poll_read<R>(cx: &mut Context<'_>, reader: &mut R, space: &mut [u8]) -> Poll<io::Result<usize>>
where
    R: AsyncRead + Unpin,
{
    let mut space = ReadBuf::new(space);
    ready!(Pin::new(reader).poll_read(cx, &mut space))?;
    Poll::Ready(Ok(space.filled().len()))
}

#[cfg(test)]
mod tests;
