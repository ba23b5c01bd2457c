//! Owns both ends of an HTTP/2 connection for tests, frame by frame where that matters. Does not speak gRPC.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::wire::Wire;

/// Longest wait for the other side.
const LIMIT: Duration = Duration::from_secs(5);
/// Requests that may wait for the test.
const WAITING: usize = 256;

/// A client's end.
pub struct Client2 {
    sender: SendRequest<Bytes>,
}

impl Client2 {
    /// Starts HTTP/2 with prior knowledge.
    ///
    /// # Errors
    /// Those of the handshake.
    pub async fn start(wire: Wire) -> anyhow::Result<Self> {
        let mut builder = h2::client::Builder::new();
        builder.max_header_list_size(1 << 20);
        Self::start_with(wire, &builder).await
    }

    /// The same with settings.
    ///
    /// # Errors
    /// Those of the handshake.
    pub async fn start_with(wire: Wire, builder: &h2::client::Builder) -> anyhow::Result<Self> {
        let (sender, connection) = builder.handshake(wire.into_stream()).await?;
        // How it ends shows in the streams.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Client2 { sender })
    }

    /// Sends a request's head; `end` if it has no body.
    ///
    /// # Errors
    /// The connection takes none.
    pub async fn send(
        &self,
        request: Request<()>,
        end: bool,
    ) -> anyhow::Result<(ResponseFuture, SendStream<Bytes>)> {
        let ready = timeout(LIMIT, self.sender.clone().ready()).await;
        Ok(ready
            .context("the connection takes no request")??
            .send_request(request, end)?)
    }

    /// Sends a request without body and waits for all of its response.
    ///
    /// # Errors
    /// There is none.
    pub async fn fetch(&self, request: Request<()>) -> anyhow::Result<Response<Vec<u8>>> {
        let (response, _) = self.send(request, true).await?;
        let (head, body) = head(response).await?.into_parts();
        Ok(Response::from_parts(head, read_body(body).await?.0))
    }

    /// Sends a GET request and waits for all of its response.
    ///
    /// # Errors
    /// There is none.
    pub async fn get(&self, uri: &str) -> anyhow::Result<Response<Vec<u8>>> {
        self.fetch(Request::get(uri).body(())?).await
    }
}

/// Waits for a response's head.
///
/// # Errors
/// None comes.
pub async fn head(response: ResponseFuture) -> anyhow::Result<Response<RecvStream>> {
    Ok(timeout(LIMIT, response)
        .await
        .context("no response comes")??)
}

/// Reads a body to its end, and its trailers.
///
/// # Errors
/// It breaks off.
pub async fn read_body(mut body: RecvStream) -> anyhow::Result<(Vec<u8>, Option<HeaderMap>)> {
    let mut bytes = Vec::new();
    while let Some(data) = timeout(LIMIT, body.data())
        .await
        .context("the body does not go on")?
    {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    let trailers = timeout(LIMIT, body.trailers())
        .await
        .context("the body does not end")??;
    Ok((bytes, trailers))
}

/// A server's end.
pub struct Server2 {
    streams: mpsc::Receiver<(Request<RecvStream>, SendResponse<Bytes>)>,
    limit: Duration,
}

impl Server2 {
    /// Starts HTTP/2 with prior knowledge.
    ///
    /// # Errors
    /// Those of the handshake.
    pub async fn start(wire: Wire) -> anyhow::Result<Self> {
        let mut builder = h2::server::Builder::new();
        builder.max_header_list_size(1 << 20);
        let handshake = timeout(LIMIT, builder.handshake(wire.into_stream())).await;
        let mut connection = handshake.context("the client does not speak HTTP/2")??;
        let (sender, streams) = mpsc::channel(WAITING);
        // A connection moves only while it is asked for the next stream.
        tokio::spawn(async move {
            while let Some(Ok(stream)) = connection.accept().await {
                if sender.send(stream).await.is_err() {
                    return;
                }
            }
        });
        Ok(Server2 {
            streams,
            limit: LIMIT,
        })
    }

    /// Waits that long for a request instead of 5 s.
    #[must_use]
    pub fn patient(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The next request.
    ///
    /// # Errors
    /// None comes.
    pub async fn accept(&mut self) -> anyhow::Result<(Request<RecvStream>, SendResponse<Bytes>)> {
        let accepted = timeout(self.limit, self.streams.recv())
            .await
            .context("no request comes")?;
        accepted.context("the connection has ended")
    }
}
