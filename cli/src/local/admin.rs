//! Owns fetching a page from a proxy's admin server (contract 5). It does not read what the page says.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::netns;

/// Longest a page may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Largest page, in bytes: room for the metrics of some thousand endpoints.
const SIZE: usize = 8 << 20;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// Its text.
    pub body: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("the proxy's admin server gives no page at {path}: {why}")]
pub struct FetchError {
    path: String,
    why: String,
}

/// The admin port (contract 0).
const PORT: u16 = 4191;

/// Fetches `path` in the network `net`, over a connection of its own, in at most 2 s. It comes from the workload's own
/// loopback, so that it is answered whatever the policy says of others.
pub async fn fetch(net: OwnedFd, path: &str) -> Result<Page, FetchError> {
    let failed = |why: String| FetchError {
        path: path.to_owned(),
        why,
    };
    match timeout(LIMIT, exchange(net, path)).await {
        Ok(result) => result.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {LIMIT:?}"))),
    }
}

async fn exchange(
    net: OwnedFd,
    path: &str,
) -> Result<Page, Box<dyn std::error::Error + Send + Sync>> {
    let stream = netns::connect(net, (Ipv4Addr::LOCALHOST, PORT).into(), LIMIT).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get(path)
        .header("host", "localhost")
        .body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), SIZE)
            .collect()
            .await?
            .to_bytes();
        Ok(Page {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    tokio::pin!(exchange);
    tokio::select! {
        page = &mut exchange => page,
        // The connection may end with the answer still to be read.
        ended = connection => { ended?; exchange.await }
    }
}
