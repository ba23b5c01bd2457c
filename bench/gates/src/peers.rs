//! Owns the peers of a proxy that is measured: clients and servers of fixed bytes, which understand just what is needed to
//! take turns, so that what is counted is the proxy's. Not for other peers than our own proxy.

use anyhow::{bail, ensure};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of an answer's body.
pub const BODY: usize = 1024;
/// Requests that are sent at once over HTTP/2.
pub const AT_ONCE: u32 = 16;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds and flags of frames (RFC 9113 sections 6.1 to 6.9).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The largest window, so that it never has to be updated.
const WINDOW: u32 = (1 << 31) - 1;
/// `:status 200`, from the static table (RFC 7541 appendix A).
const STATUS_200: u8 = 0x88;

/// A list of fields (RFC 7541): the first message puts them into the peer's table, later ones name their places there.
pub struct Fields {
    first: Vec<u8>,
    later: Vec<u8>,
    used: bool,
}

impl Fields {
    /// `indexed` are whole fields of the static table; the others have fewer than 127 bytes.
    pub fn new(indexed: &[u8], others: &[(&str, &str)]) -> Self {
        let (mut first, mut later) = (indexed.to_vec(), indexed.to_vec());
        let newest = 61 + others.len();
        for (at, (name, value)) in others.iter().enumerate() {
            first.push(0x40);
            for text in [name, value] {
                first.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
                first.extend(text.as_bytes());
            }
            later.push(0x80 | u8::try_from(newest - at).unwrap_or(u8::MAX));
        }
        Self {
            first,
            later,
            used: false,
        }
    }

    /// Those of a request.
    pub fn request(more: &[(&str, &str)]) -> Self {
        // GET and http.
        Self::new(&[0x82, 0x86], &[&REQUEST[..], more].concat())
    }

    fn take(&mut self) -> &[u8] {
        if std::mem::replace(&mut self.used, true) {
            &self.later
        } else {
            &self.first
        }
    }
}

/// A request as programs send them.
pub const REQUEST: [(&str, &str); 7] = [
    (":authority", HOST),
    (":path", PATH),
    ("accept", "application/json"),
    ("accept-encoding", "gzip, br"),
    ("user-agent", "items-client/1.4 (linux; x86_64)"),
    ("x-request-id", "7c6b1d0a-3f4e-4f8f-9a63-0d8e5a1b2c3d"),
    ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
];
pub const HOST: &str = "web.bench.svc.cluster.local";
pub const PATH: &str = "/api/v1/items?page=7";

const RESPONSE: [(&str, &str); 4] = [
    ("content-type", "application/json"),
    ("content-length", "1024"),
    ("cache-control", "no-store"),
    ("date", "Mon, 02 Nov 2026 10:00:00 GMT"),
];

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

fn opening(out: &mut Vec<u8>) {
    // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_INITIAL_WINDOW_SIZE (section 6.5.2).
    let mut settings = vec![0, 3, 0, 0, 4, 0, 0, 4];
    settings.extend(WINDOW.to_be_bytes());
    frame(out, SETTINGS, 0, 0, &settings);
    // What a connection begins with (section 6.9.2) is a part of it.
    frame(out, WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes());
}

/// Reads frames.
struct Frames<IO> {
    io: IO,
    read: BytesMut,
}

struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Frames<IO> {
    fn new(io: IO) -> Self {
        let read = BytesMut::with_capacity(1 << 16);
        Self { io, read }
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        ensure!(self.io.read_buf(&mut self.read).await? > 0, "it was closed");
        Ok(())
    }

    /// The next whole frame that is here, handed to `take`; whether there was one.
    fn next(
        &mut self,
        take: impl FnOnce(Head, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = self.read.split_first_chunk::<9>()
        else {
            return Ok(false);
        };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some(payload) = rest.get(..length) else {
            return Ok(false);
        };
        let stream = u32::from_be_bytes([d, e, f, g]);
        let head = Head {
            kind,
            flags,
            stream,
        };
        take(head, payload)?;
        self.read.advance(9 + length);
        Ok(true)
    }

    async fn write(&mut self, out: &mut Vec<u8>) -> anyhow::Result<()> {
        if !out.is_empty() {
            self.io.write_all(out).await?;
            self.io.flush().await?;
            out.clear();
        }
        Ok(())
    }
}

/// What both sides do with frames that are not about a message.
fn housekeeping(out: &mut Vec<u8>, head: &Head, payload: &[u8]) -> anyhow::Result<()> {
    match head.kind {
        SETTINGS | PING if head.flags & ACK == 0 => {
            let echo = if head.kind == PING { payload } else { &[] };
            frame(out, head.kind, ACK, 0, echo);
        }
        RST_STREAM | GOAWAY => bail!("frame of kind {}: {payload:?}", head.kind),
        _ => {}
    }
    Ok(())
}

/// A client of HTTP/2.
pub struct Http2Client<IO> {
    frames: Frames<IO>,
    fields: Fields,
    stream: u32,
    out: Vec<u8>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Http2Client<IO> {
    pub async fn start(io: IO, fields: Fields) -> anyhow::Result<Self> {
        let mut out = PREFACE.to_vec();
        opening(&mut out);
        let mut frames = Frames::new(io);
        frames.write(&mut out).await?;
        Ok(Self {
            frames,
            fields,
            stream: 1,
            out,
        })
    }

    /// So many requests at once, and their answers.
    pub async fn ask(&mut self, requests: u32) -> anyhow::Result<()> {
        for _ in 0..requests {
            let flags = END_STREAM | END_HEADERS;
            frame(
                &mut self.out,
                HEADERS,
                flags,
                self.stream,
                self.fields.take(),
            );
            self.stream += 2;
        }
        self.frames.write(&mut self.out).await?;
        let (mut ended, mut bytes) = (0, 0);
        while ended < requests {
            self.frames.more().await?;
            let out = &mut self.out;
            while self.frames.next(|head, payload| {
                match head.kind {
                    HEADERS => ensure!(payload.first() == Some(&STATUS_200), "{payload:?}"),
                    DATA => bytes += payload.len(),
                    _ => return housekeeping(out, &head, payload),
                }
                ended += u32::from(head.flags & END_STREAM);
                Ok(())
            })? {}
            self.frames.write(&mut self.out).await?;
        }
        ensure!(bytes == BODY * requests as usize, "{bytes} bytes");
        Ok(())
    }
}

/// A server of HTTP/2, until the client is gone.
pub async fn serve_http2<IO: AsyncRead + AsyncWrite + Unpin>(io: IO) -> anyhow::Result<()> {
    let mut frames = Frames::new(io);
    while frames.read.len() < PREFACE.len() {
        frames.more().await?;
    }
    ensure!(frames.read.starts_with(PREFACE), "another protocol");
    frames.read.advance(PREFACE.len());
    let mut fields = Fields::new(&[STATUS_200], &RESPONSE);
    let mut out = Vec::new();
    opening(&mut out);
    loop {
        let to = &mut out;
        while frames.next(|head, payload| {
            if head.kind != HEADERS {
                return housekeeping(to, &head, payload);
            }
            frame(to, HEADERS, END_HEADERS, head.stream, fields.take());
            frame(to, DATA, END_STREAM, head.stream, &[b'x'; BODY]);
            Ok(())
        })? {}
        frames.write(&mut out).await?;
        frames.more().await?;
    }
}

/// A client of HTTP/1.1 on one connection.
pub struct Http1Client<IO> {
    io: IO,
    request: Vec<u8>,
    read: BytesMut,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Http1Client<IO> {
    pub fn start(io: IO) -> Self {
        let mut request = format!("GET {PATH} HTTP/1.1\r\nhost: {HOST}\r\n");
        for (name, value) in REQUEST.iter().filter(|(name, _)| !name.starts_with(':')) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("connection: keep-alive\r\n\r\n");
        Self {
            io,
            request: request.into_bytes(),
            read: BytesMut::with_capacity(1 << 14),
        }
    }

    /// A request and its answer.
    pub async fn ask(&mut self) -> anyhow::Result<()> {
        self.io.write_all(&self.request).await?;
        loop {
            ensure!(self.io.read_buf(&mut self.read).await? > 0, "it was closed");
            let Some(head) = head_length(&self.read) else {
                continue;
            };
            if self.read.len() >= head + BODY {
                ensure!(self.read.starts_with(b"HTTP/1.1 200"), "{:?}", self.read);
                self.read.advance(head + BODY);
                return Ok(());
            }
        }
    }
}

/// A server of HTTP/1.1, until the client is gone.
pub async fn serve_http1<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) -> anyhow::Result<()> {
    let mut answer = "HTTP/1.1 200 OK\r\n".to_owned();
    for (name, value) in RESPONSE {
        answer.push_str(&format!("{name}: {value}\r\n"));
    }
    answer.push_str("\r\n");
    let answer = [answer.as_bytes(), &[b'x'; BODY]].concat();
    let mut read = BytesMut::with_capacity(1 << 14);
    loop {
        while let Some(head) = head_length(&read) {
            read.advance(head);
            io.write_all(&answer).await?;
        }
        ensure!(io.read_buf(&mut read).await? > 0, "it was closed");
    }
}

fn head_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(end + 4)
}
