//! Owns what one request of the load generator is, over which connections. It takes no times.

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::app::BODY;

/// Kinds of requests.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A stream of one of some HTTP/2 connections
    Http2,
    /// HTTP/1.1, over an idle connection or else a new one
    Http1,
    /// HTTP/1.1 with `connection: close`, each over a connection of its own
    Close,
    /// A TCP connection of its own, a few bytes there and 1 KiB back
    Short,
}

impl Shape {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Connections to some targets, which get requests in turn.
pub struct Client {
    shape: Shape,
    targets: Vec<Target>,
    next: AtomicUsize,
}

struct Target {
    /// HOST:PORT.
    name: String,
    shared: Vec<http2::SendRequest<Empty<Bytes>>>,
    /// Idle HTTP/1 connections, the one used last at the end; never more than requests were under way at once.
    idle: Mutex<Vec<http1::SendRequest<Empty<Bytes>>>>,
}

impl Client {
    /// Opens the shared connections: so many in all, but at least one to each target.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(
        shape: Shape,
        names: Vec<String>,
        connections: usize,
    ) -> anyhow::Result<Self> {
        let each = connections.checked_div(names.len()).context("no target")?;
        let mut targets = Vec::new();
        for name in names {
            let mut shared = Vec::new();
            if shape == Shape::Http2 {
                for _ in 0..each.max(1) {
                    shared.push(http2_to(&name).await?);
                }
            }
            targets.push(Target {
                name,
                shared,
                idle: Mutex::new(Vec::new()),
            });
        }
        Ok(Client {
            shape,
            targets,
            next: AtomicUsize::new(0),
        })
    }

    /// One request and its whole answer.
    ///
    /// # Errors
    /// Any but the right answer.
    pub async fn shoot(&self) -> anyhow::Result<()> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let at = turn % self.targets.len().max(1);
        let target = self.targets.get(at).context("a target")?;
        match self.shape {
            Shape::Http2 => {
                let at = turn / self.targets.len().max(1) % target.shared.len().max(1);
                let mut sender = target.shared.get(at).context("a connection")?.clone();
                sender.ready().await?;
                let request = Request::get(format!("http://{}/", target.name));
                check(sender.send_request(request.body(Empty::new())?).await?).await
            }
            Shape::Http1 => {
                let idle = target.idle.lock().pop();
                let mut sender = match idle {
                    Some(sender) if !sender.is_closed() => sender,
                    _ => http1_to(&target.name).await?,
                };
                sender.ready().await?;
                check(sender.send_request(target.request(false)?).await?).await?;
                target.idle.lock().push(sender);
                Ok(())
            }
            Shape::Close => {
                let mut sender = http1_to(&target.name).await?;
                check(sender.send_request(target.request(true)?).await?).await
            }
            Shape::Short => short(&target.name).await,
        }
    }
}

impl Target {
    fn request(&self, close: bool) -> anyhow::Result<Request<Empty<Bytes>>> {
        let request = Request::get("/").header("host", &self.name);
        let request = if close {
            request.header("connection", "close")
        } else {
            request
        };
        Ok(request.body(Empty::new())?)
    }
}

async fn tcp(target: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn http1_to(target: &str) -> anyhow::Result<http1::SendRequest<Empty<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(tcp(target).await?)).await?;
    // Its errors come to the request that waits for it.
    tokio::spawn(connection);
    Ok(sender)
}

async fn http2_to(target: &str) -> anyhow::Result<http2::SendRequest<Empty<Bytes>>> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    let (sender, connection) = builder.handshake(TokioIo::new(tcp(target).await?)).await?;
    // Its errors come to the requests that wait for it.
    tokio::spawn(connection);
    Ok(sender)
}

async fn check(response: http::Response<Incoming>) -> anyhow::Result<()> {
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(
        status.is_success() && body.len() == BODY,
        "{status} with {} bytes",
        body.len()
    );
    Ok(())
}

async fn short(target: &str) -> anyhow::Result<()> {
    let mut stream = tcp(target).await?;
    stream.write_all(b"a short request\n").await?;
    let mut answer = [0; BODY];
    stream.read_exact(&mut answer).await?;
    stream.shutdown().await?;
    ensure!(
        stream.read(&mut answer).await? == 0,
        "more than was asked for"
    );
    Ok(())
}
