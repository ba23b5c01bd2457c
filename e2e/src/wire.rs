//! Owns TCP connections as a test sees them: bytes in the order they come, each wait bounded. Knows just enough of
//! HTTP/1 to find the end of a message; checks nothing.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longest wait for bytes that should come.
const LIMIT: Duration = Duration::from_secs(5);

/// A connection.
pub struct Wire {
    stream: TcpStream,
    /// Read but not yet taken.
    ahead: Vec<u8>,
    limit: Duration,
}

/// The head of an HTTP/1 message, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Request line or status line.
    pub first: String,
    /// Fields in order, names as written.
    pub fields: Vec<(String, String)>,
}

/// An HTTP/1 message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its head.
    pub head: Head,
    /// Its body, without chunked coding.
    pub body: Vec<u8>,
}

impl Head {
    /// First value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// All values of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self
            .fields
            .iter()
            .filter(move |(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }

    /// The status of a response; 0 for what is none.
    pub fn status(&self) -> u16 {
        self.first
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    /// Reads a head.
    pub fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default().to_owned();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            (name.to_owned(), value.trim().to_owned())
        };
        Head {
            first,
            fields: lines.map(field).collect(),
        }
    }
}

impl Message {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    /// Takes a connection over. Must be called in a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(stream: std::net::TcpStream) -> anyhow::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_tokio(TcpStream::from_std(stream)?)
    }

    fn from_tokio(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Wire {
            stream,
            ahead: Vec::new(),
            limit: LIMIT,
        })
    }

    /// Waits that long instead of 5 s.
    #[must_use]
    pub fn patient(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The bare connection, for HTTP/2 and other things; nothing may have been read ahead.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Whether it begins with these bytes; takes nothing.
    ///
    /// # Errors
    /// Nothing comes.
    pub async fn begins_with(&self, bytes: &[u8]) -> anyhow::Result<bool> {
        let mut seen = vec![0; bytes.len()];
        loop {
            let count = timeout(self.limit, self.stream.peek(&mut seen)).await??;
            if count == 0 || !bytes.starts_with(&seen[..count]) {
                return Ok(false);
            }
            if count == bytes.len() {
                return Ok(true);
            }
            // What is there stays readable, so that the system does not say when more comes.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Where it comes from.
    ///
    /// # Errors
    /// Those of the system.
    pub fn peer(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Those of the connection, or nobody takes them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let sent = timeout(self.limit, self.stream.write_all(bytes.as_ref())).await;
        Ok(sent.context("nobody takes what is sent")??)
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.stream.shutdown().await?)
    }

    /// Ends the connection with a reset.
    ///
    /// # Errors
    /// Those of the system.
    pub fn reset(self) -> anyhow::Result<()> {
        // Zero seconds: what is unsent is thrown away, and closing sends RST (socket(7)).
        Ok(nix::sys::socket::setsockopt(
            &self.stream,
            nix::sys::socket::sockopt::Linger,
            &nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            },
        )?)
    }

    /// Reads more; `false` at the end of the connection.
    async fn more(&mut self) -> anyhow::Result<bool> {
        let read = timeout(self.limit, self.stream.read_buf(&mut self.ahead)).await;
        let Ok(read) = read else {
            let so_far = String::from_utf8_lossy(&self.ahead[..self.ahead.len().min(300)]);
            bail!(
                "nothing more came within {:?}; so far: {so_far:?}",
                self.limit
            )
        };
        Ok(read? > 0)
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        self.ahead.drain(..count).collect()
    }

    async fn through(&mut self, end: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut seen = 0;
        loop {
            let found = self.ahead[seen..]
                .windows(end.len())
                .position(|window| window == end);
            if let Some(at) = found {
                return Ok(self.take(seen + at + end.len()));
            }
            seen = self.ahead.len().saturating_sub(end.len() - 1);
            if !self.more().await? {
                let so_far = String::from_utf8_lossy(&self.ahead);
                bail!("the connection ended after {so_far:?}");
            }
        }
    }

    /// The head of the next HTTP/1 message.
    ///
    /// # Errors
    /// None comes.
    pub async fn head(&mut self) -> anyhow::Result<Head> {
        let bytes = self.through(b"\r\n\r\n").await?;
        Ok(Head::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// None comes.
    pub async fn line(&mut self) -> anyhow::Result<String> {
        let bytes = self.through(b"\n").await?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// Exactly so many bytes.
    ///
    /// # Errors
    /// Fewer come.
    pub async fn exactly(&mut self, count: usize) -> anyhow::Result<Vec<u8>> {
        while self.ahead.len() < count {
            if !self.more().await? {
                bail!(
                    "the connection ended after {} of {count} bytes",
                    self.ahead.len()
                );
            }
        }
        Ok(self.take(count))
    }

    /// At least one byte, and what came with it; empty at the end.
    ///
    /// # Errors
    /// Nothing comes.
    pub async fn some(&mut self) -> anyhow::Result<Vec<u8>> {
        if self.ahead.is_empty() {
            self.more().await?;
        }
        Ok(std::mem::take(&mut self.ahead))
    }

    /// Everything up to the end of the connection.
    ///
    /// # Errors
    /// It does not end, or is reset.
    pub async fn rest(&mut self) -> anyhow::Result<Vec<u8>> {
        while self.more().await? {}
        Ok(std::mem::take(&mut self.ahead))
    }

    /// One chunk of a chunked body; `None` at its end. Trailers are thrown away.
    ///
    /// # Errors
    /// None comes.
    pub async fn chunk(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let size = self.line().await?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .with_context(|| format!("{size:?} is no size of a chunk"))?;
        if size == 0 {
            while !self.line().await?.is_empty() {}
            return Ok(None);
        }
        let data = self.exactly(size).await?;
        self.exactly(2).await?;
        Ok(Some(data))
    }

    /// The next request, or the next response to anything but HEAD and CONNECT, as a whole.
    ///
    /// # Errors
    /// None comes.
    pub async fn message(&mut self) -> anyhow::Result<Message> {
        let head = self.head().await?;
        let body = self.body(&head).await?;
        Ok(Message { head, body })
    }

    /// The body that follows a head.
    ///
    /// # Errors
    /// It does not come to its end.
    pub async fn body(&mut self, head: &Head) -> anyhow::Result<Vec<u8>> {
        let response = head.first.starts_with("HTTP/");
        if head
            .field("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
        {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk().await? {
                body.extend(chunk);
            }
            return Ok(body);
        }
        match head.field("content-length") {
            Some(length) => self.exactly(length.parse()?).await,
            None if !response || matches!(head.status(), 100..=199 | 204 | 304) => Ok(Vec::new()),
            None => self.rest().await,
        }
    }

    /// Nothing comes for so long, and the connection stays open.
    ///
    /// # Errors
    /// Something comes, or it ends.
    pub async fn silent(&mut self, time: Duration) -> anyhow::Result<()> {
        if !self.ahead.is_empty() {
            bail!("more came: {:?}", String::from_utf8_lossy(&self.ahead));
        }
        match timeout(time, self.stream.read_buf(&mut self.ahead)).await {
            Err(_) => Ok(()),
            Ok(Ok(0)) => bail!("the connection ended"),
            Ok(Ok(_)) => bail!("something came: {:?}", String::from_utf8_lossy(&self.ahead)),
            Ok(Err(error)) => bail!("the connection broke: {error}"),
        }
    }

    /// The connection ends, in order or by a reset, with nothing more to read.
    ///
    /// # Errors
    /// More comes, or it stays open.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        let read = timeout(self.limit, self.stream.read_buf(&mut self.ahead)).await;
        match read {
            Err(_) => bail!("the connection stays open"),
            Ok(Ok(0) | Err(_)) if self.ahead.is_empty() => Ok(()),
            Ok(_) => bail!("more came: {:?}", String::from_utf8_lossy(&self.ahead)),
        }
    }
}

/// A listener.
pub struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Takes a listener over. Must be called in a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(listener: std::net::TcpListener) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Listener {
            listener: TcpListener::from_std(listener)?,
        })
    }

    /// The bare listener.
    pub fn into_inner(self) -> TcpListener {
        self.listener
    }

    /// A second one for the same port; the two take turns.
    ///
    /// # Errors
    /// Those of the system.
    pub fn try_clone(&self) -> anyhow::Result<Self> {
        Self::new(self.listener.as_fd().try_clone_to_owned()?.into())
    }

    /// The next connection.
    ///
    /// # Errors
    /// None comes.
    pub async fn accept(&self) -> anyhow::Result<Wire> {
        let accepted = timeout(LIMIT, self.listener.accept()).await;
        Wire::from_tokio(accepted.context("nobody connects")??.0)
    }

    /// No connection comes for so long.
    ///
    /// # Errors
    /// One comes.
    pub async fn nobody(&self, time: Duration) -> anyhow::Result<()> {
        match timeout(time, self.listener.accept()).await {
            Err(_) => Ok(()),
            Ok(_) => bail!("somebody connects"),
        }
    }

    /// Serves each connection in a task of its own from now on, until this runtime ends.
    pub fn serve<F>(self, serve: impl Fn(Wire) -> F + Send + 'static)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        tokio::spawn(async move {
            while let Ok((stream, _)) = self.listener.accept().await {
                if let Ok(wire) = Wire::from_tokio(stream) {
                    // What a client of a test does to its server shows in the test.
                    tokio::spawn(serve(wire));
                }
            }
        });
    }
}
