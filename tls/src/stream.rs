//! A mesh TLS connection after its handshake. It holds keys and little else: buffers are lent while bytes move, so that
//! an idle connection needs none. Handshakes are `handshake`'s, single records are `record`'s.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::ConnectionTrafficSecrets;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::handshake::Early;
use crate::record::{self, Content, MAX_PLAINTEXT, MAX_RECORD, Opener, RecordError, Sealer};

/// Bytes that are asked of the socket at once: four full records.
const READ: usize = 4 * MAX_RECORD;
/// Sealed bytes that may wait for the socket before more is taken.
const MAX_WAITING: usize = 4 * MAX_RECORD;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
const KEY_UPDATE: u8 = 24;
const NEW_SESSION_TICKET: u8 = 4;

thread_local! {
    /// Buffers that no connection of this thread uses now, one for each direction.
    static SPARE: [Cell<Vec<u8>>; 2] = const { [Cell::new(Vec::new()), Cell::new(Vec::new())] };
}

/// Lends the buffer of a direction to a connection that has none.
fn lend(spare: usize) -> Vec<u8> {
    SPARE
        .with(|buffers| buffers.get(spare).map(Cell::take))
        .unwrap_or_default()
}

/// Gives it back for others.
fn give_back(spare: usize, buffer: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    SPARE.with(|buffers| {
        if let Some(place) = buffers.get(spare) {
            place.set(buffer);
        }
    });
}

/// What changes the keys of a connection.
pub(crate) enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Keys {
    fn next_to_seal(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Self::Client(keys) => keys.update_tx_secret(),
            Self::Server(keys) => keys.update_tx_secret(),
        }
    }

    fn next_to_open(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Self::Client(keys) => keys.update_rx_secret(),
            Self::Server(keys) => keys.update_rx_secret(),
        }
    }
}

/// A decrypted connection over `IO`.
pub struct TlsStream<IO> {
    io: IO,
    sealer: Sealer,
    opener: Opener,
    keys: Keys,
    /// Records as they came, up to `filled`; what is behind has no meaning. Empty while nothing is there.
    incoming: Vec<u8>,
    filled: usize,
    /// The part that has been opened and not been read.
    plain: Range<usize>,
    /// Where in `incoming` the next record begins.
    next: usize,
    /// Records for the socket, of which `sent` bytes have gone. Empty while nothing waits.
    outgoing: Vec<u8>,
    sent: usize,
    /// The peer has said that it will send no more.
    ended: bool,
    /// We have.
    closed: bool,
}

impl<IO> std::fmt::Debug for TlsStream<IO> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}

impl<IO> TlsStream<IO> {
    /// `early`: what came with the end of the handshake.
    pub(crate) fn new(
        io: IO,
        secrets: rustls::ExtractedSecrets,
        keys: Keys,
        early: Early,
    ) -> Result<Self, RecordError> {
        let next = early.plain.len();
        let mut incoming = early.plain;
        incoming.extend_from_slice(&early.sealed);
        Ok(Self {
            io,
            sealer: Sealer::new(secrets.tx)?,
            opener: Opener::new(secrets.rx)?,
            keys,
            filled: incoming.len(),
            incoming,
            plain: 0..next,
            next,
            outgoing: Vec::new(),
            sent: 0,
            ended: early.ended,
            closed: false,
        })
    }

    /// Opens the next record if all of it is there. Returns whether it was.
    fn open_next(&mut self) -> io::Result<bool> {
        let waiting = self
            .incoming
            .get(self.next..self.filled)
            .unwrap_or_default();
        let Some(length) = record::length(waiting).map_err(invalid)? else {
            return Ok(false);
        };
        let end = self.next + length;
        if end > self.filled {
            return Ok(false);
        }
        let record = self.incoming.get_mut(self.next..end).unwrap_or_default();
        let (content, place) = self.opener.open(record).map_err(invalid)?;
        let place = self.next + place.start..self.next + place.end;
        self.next = end;
        match content {
            Content::Data => self.plain = place,
            Content::Alert => self.alert(place)?,
            Content::Handshake => self.post_handshake(place)?,
        }
        Ok(true)
    }

    /// Gives the buffer for reading back when nothing will be read any more.
    fn forget(&mut self) {
        (self.filled, self.next, self.plain) = (0, 0, 0..0);
        if self.incoming.capacity() > 0 {
            give_back(0, &mut self.incoming);
        }
    }

    fn alert(&mut self, place: Range<usize>) -> io::Result<()> {
        match self.incoming.get(place) {
            Some([_, 0]) => {
                self.ended = true;
                Ok(())
            }
            Some([_, description]) => {
                let alert = rustls::AlertDescription::from(*description);
                Err(io::Error::other(rustls::Error::AlertReceived(alert)))
            }
            _ => Err(invalid(RecordError::Type)),
        }
    }

    /// RFC 8446 section 4.6: only a change of keys, and tickets that we do not want, may come after the handshake.
    fn post_handshake(&mut self, place: Range<usize>) -> io::Result<()> {
        let message = self.incoming.get(place).unwrap_or_default();
        match message {
            [KEY_UPDATE, 0, 0, 1, wanted @ (0 | 1)] => {
                let answer = *wanted == 1;
                let next = self.keys.next_to_open().map_err(io::Error::other)?;
                self.opener = Opener::new(next).map_err(invalid)?;
                if answer { self.change_key() } else { Ok(()) }
            }
            [NEW_SESSION_TICKET, ..] => Ok(()),
            _ => Err(invalid(RecordError::Type)),
        }
    }

    /// Tells the peer that the next records are sealed with the next key. A peer that asks for that without end and reads
    /// nothing is given up.
    fn change_key(&mut self) -> io::Result<()> {
        if self.outgoing.len() >= MAX_WAITING {
            return Err(invalid(RecordError::KeyUpdates));
        }
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        let fill = |out: &mut Vec<u8>| out.extend_from_slice(&message);
        self.sealer
            .seal(Content::Handshake, &mut self.outgoing, fill)
            .map_err(invalid)?;
        let next = self.keys.next_to_seal().map_err(io::Error::other)?;
        self.sealer = Sealer::new(next).map_err(invalid)?;
        Ok(())
    }

    /// Seals as much of `parts` as may wait. Returns how much that was.
    fn seal(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut parts = parts
            .iter()
            .flat_map(|part| part.chunks(MAX_PLAINTEXT))
            .peekable();
        let mut taken = 0;
        let mut rest: &[u8] = &[];
        if self.outgoing.capacity() == 0 {
            self.outgoing = lend(1);
        }
        while taken < total && self.outgoing.len() < MAX_WAITING {
            if self.sealer.is_worn() {
                self.change_key()?;
            }
            let size = MAX_PLAINTEXT.min(total - taken);
            let fill = |out: &mut Vec<u8>| {
                let mut room = size;
                while room > 0 {
                    if rest.is_empty() {
                        let Some(part) = parts.next() else { break };
                        rest = part;
                    }
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    out.extend_from_slice(now);
                    room -= now.len();
                    rest = later;
                }
            };
            self.sealer
                .seal(Content::Data, &mut self.outgoing, fill)
                .map_err(invalid)?;
            taken += size;
        }
        Ok(taken)
    }
}

fn invalid(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<IO: AsyncWrite + Unpin> TlsStream<IO> {
    /// Writes what waits. Ready when nothing does any more.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(waiting) = self.outgoing.get(self.sent..).filter(|w| !w.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.sent = 0;
        if self.outgoing.capacity() > 0 {
            self.outgoing.clear();
            give_back(1, &mut self.outgoing);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> TlsStream<IO> {
    /// Reads more records. Ready with how many bytes came.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // What has been opened and read makes room.
        if self.next > 0 {
            self.incoming.copy_within(self.next..self.filled, 0);
            self.filled -= self.next;
            self.next = 0;
            self.plain = 0..0;
        }
        if self.incoming.len() < READ {
            let mut buffer = lend(0);
            buffer.resize(READ, 0);
            let rest = self.incoming.get(..self.filled).unwrap_or_default();
            buffer
                .get_mut(..self.filled)
                .unwrap_or_default()
                .copy_from_slice(rest);
            self.incoming = buffer;
        }
        let mut read = ReadBuf::new(self.incoming.get_mut(self.filled..).unwrap_or_default());
        let result = Pin::new(&mut self.io).poll_read(cx, &mut read);
        let n = read.filled().len();
        self.filled += n;
        if self.filled == 0 {
            give_back(0, &mut self.incoming);
        }
        ready!(result)?;
        Poll::Ready(Ok(n))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let wanted = buf.remaining();
        if wanted == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            let n = this.plain.len().min(buf.remaining());
            let end = this.plain.start + n;
            buf.put_slice(this.incoming.get(this.plain.start..end).unwrap_or_default());
            this.plain.start = end;
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // The record before is read to its end; what is left of others is opened before more is read.
            if !this.ended && this.open_next()? {
                continue;
            }
            if this.ended {
                this.forget();
                return Poll::Ready(Ok(()));
            }
            if buf.remaining() < wanted {
                return Poll::Ready(Ok(()));
            }
            if ready!(this.poll_receive(cx))? == 0 {
                let error =
                    "the peer closed the connection without saying so in TLS (close_notify)";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)));
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
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
        let this = self.get_mut();
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // An answer to a change of keys may wait since the last read.
        if this.outgoing.len() >= MAX_WAITING {
            ready!(this.poll_send(cx))?;
        }
        let n = this.seal(bufs)?;
        match this.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // What the socket does not take now waits, within the limit.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(n)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.closed, true) {
            let fill = |out: &mut Vec<u8>| out.extend_from_slice(&CLOSE_NOTIFY);
            this.sealer
                .seal(Content::Alert, &mut this.outgoing, fill)
                .map_err(invalid)?;
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
