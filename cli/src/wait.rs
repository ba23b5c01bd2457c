//! `weft await`: waits until the proxy of its pod is ready; the injector makes it the first thing that a proxy's container does, so that
//! the kubelet starts the application after it (contract 1.3). It does not start or stop the proxy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use weft_core::parse;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(100);
/// Of one question.
const ANSWER: Duration = Duration::from_secs(1);
/// More than a status line has.
const HEAD: u64 = 256;

/// Waits for the proxy.
#[derive(Args, Clone, Debug)]
pub struct AwaitArgs {
    /// Admin port of the proxy.
    #[arg(long, default_value_t = 4191)]
    pub port: u16,
    /// How long at most.
    #[arg(long, default_value = "2m", value_parser = parse::duration)]
    pub timeout: Duration,
}

/// Returns when the proxy is ready.
///
/// # Errors
/// It was not in time.
pub async fn run(args: AwaitArgs) -> Result<()> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let end = Instant::now() + args.timeout;
    loop {
        let last = match ask(addr, "GET /ready").await {
            Ok(line) if line.contains(" 200 ") => return Ok(()),
            Ok(line) => format!("/ready answers {line:?}"),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= end {
            bail!(
                "the proxy (http://{addr}) was not ready within {:?}: {last}; its log says what it waits for",
                args.timeout
            );
        }
        sleep(PAUSE).await;
    }
}

/// The status line of the proxy's answer to a request such as `GET /ready`.
pub(crate) async fn ask(addr: SocketAddr, request: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        let head = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut line = Vec::new();
        let mut answer = BufReader::new(stream.take(HEAD));
        answer.read_until(b'\n', &mut line).await?;
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    timeout(ANSWER, exchange).await.unwrap_or_else(|_| {
        let why = format!("no answer to {request} within {ANSWER:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn waits_for_200() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let server = tokio::spawn(async move {
            for status in [
                "503 Service Unavailable",
                "503 Service Unavailable",
                "200 OK",
            ] {
                let (mut stream, _) = listener.accept().await.expect("accept");
                // What is closed with unread bytes is reset, and the answer may be lost.
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.expect("read");
                assert!(request[..length].starts_with(b"GET /ready HTTP/1.1\r\n"));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.expect("write");
            }
        });
        let timeout = Duration::from_secs(10);
        run(AwaitArgs { port, timeout }).await.expect("ready");
        server.await.expect("asked three times");
    }

    #[tokio::test]
    async fn gives_up_with_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        drop(listener);
        let timeout = Duration::from_millis(150);
        let error = run(AwaitArgs { port, timeout })
            .await
            .expect_err("nobody is there");
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
