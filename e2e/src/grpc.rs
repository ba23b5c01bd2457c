//! Owns a gRPC service for tests, both ends, with hand-written messages so that no protoc is needed: four methods that
//! echo, one of each kind. The framing is tonic's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::http::{Request, Response, uri::PathAndQuery};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::wire::{Listener, Wire};

/// Asks for an echo.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ping {
    /// What comes back.
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
    /// How many replies a server stream has.
    #[prost(uint32, tag = "2")]
    pub replies: u32,
    /// Milliseconds before each reply.
    #[prost(uint32, tag = "3")]
    pub delay_ms: u32,
    /// gRPC code to end with.
    #[prost(uint32, tag = "4")]
    pub code: u32,
    /// Length of the message and of the details that come with it, in bytes.
    #[prost(uint32, tag = "5")]
    pub message_length: u32,
}

/// An echo.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pong {
    /// What was sent.
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
    /// Name of the server.
    #[prost(string, tag = "2")]
    pub server: String,
    /// Which reply of its stream this is, from 0.
    #[prost(uint32, tag = "3")]
    pub number: u32,
}

/// The status that a [`Ping`] asks for: its code with a message and binary details of the wished length.
pub fn status(ping: &Ping) -> Option<Status> {
    let code = Code::from_i32(i32::try_from(ping.code).unwrap_or_default());
    let text = "m".repeat(ping.message_length as usize);
    let details = vec![0xa5; ping.message_length as usize];
    (code != Code::Ok).then(|| Status::with_details(code, text, details.into()))
}

type Replies = Pin<Box<dyn Stream<Item = Result<Pong, Status>> + Send>>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<tonic::body::Body>, Infallible>> + Send>>;

#[derive(Clone)]
struct Echo {
    name: String,
}

impl Echo {
    async fn one(&self, ping: Ping, number: u32) -> Result<Pong, Status> {
        tokio::time::sleep(Duration::from_millis(ping.delay_ms.into())).await;
        match status(&ping) {
            Some(status) => Err(status),
            None => Ok(Pong {
                payload: ping.payload,
                server: self.name.clone(),
                number,
            }),
        }
    }

    async fn collect(&self, mut pings: Streaming<Ping>) -> Result<Pong, Status> {
        let mut sum = Pong {
            server: self.name.clone(),
            ..Pong::default()
        };
        while let Some(ping) = pings.message().await? {
            sum.payload.extend(ping.payload);
            sum.number += 1;
        }
        Ok(sum)
    }

    /// So many replies, then the status that was asked for.
    fn many(self, ping: Ping) -> Replies {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            for number in 0..ping.replies {
                let good = Ping {
                    code: 0,
                    ..ping.clone()
                };
                if sender.send(self.one(good, number).await).await.is_err() {
                    return;
                }
            }
            if let Some(status) = status(&ping) {
                // The client may have gone.
                let _ = sender.send(Err(status)).await;
            }
        });
        Box::pin(ReceiverStream::new(receiver))
    }

    fn each(self, pings: Streaming<Ping>) -> Replies {
        let mut number = 0;
        Box::pin(pings.then(move |ping| {
            let (echo, own) = (self.clone(), number);
            number += 1;
            async move { echo.one(ping?, own).await }
        }))
    }
}

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "weft.e2e.Echo";
}

impl tower::Service<Request<tonic::body::Body>> for Echo {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Answer {
        let echo = self.clone();
        Box::pin(async move {
            let codec: ProstCodec<Pong, Ping> = ProstCodec::default();
            let mut grpc = tonic::server::Grpc::new(codec);
            let method = request
                .uri()
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            Ok(match method.as_str() {
                "Unary" => {
                    grpc.unary(tower::service_fn(move |r| unary(echo.clone(), r)), request)
                        .await
                }
                "ServerStream" => {
                    let many = move |r: tonic::Request<Ping>| {
                        let replies = echo.clone().many(r.into_inner());
                        std::future::ready(Ok::<_, Status>(tonic::Response::new(replies)))
                    };
                    grpc.server_streaming(tower::service_fn(many), request)
                        .await
                }
                "ClientStream" => {
                    let collect = move |r: tonic::Request<Streaming<Ping>>| {
                        let echo = echo.clone();
                        async move { echo.collect(r.into_inner()).await.map(tonic::Response::new) }
                    };
                    grpc.client_streaming(tower::service_fn(collect), request)
                        .await
                }
                "Both" => {
                    let each = move |r: tonic::Request<Streaming<Ping>>| {
                        let replies = echo.clone().each(r.into_inner());
                        std::future::ready(Ok::<_, Status>(tonic::Response::new(replies)))
                    };
                    grpc.streaming(tower::service_fn(each), request).await
                }
                _ => Status::unimplemented("Unary, ServerStream, ClientStream or Both").into_http(),
            })
        })
    }
}

async fn unary(echo: Echo, request: tonic::Request<Ping>) -> Result<tonic::Response<Pong>, Status> {
    echo.one(request.into_inner(), 0)
        .await
        .map(tonic::Response::new)
}

/// Serves the echo service under a name.
///
/// # Errors
/// Those of the listener.
pub async fn serve(listener: Listener, name: &str) -> anyhow::Result<()> {
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener.into_inner());
    let server = Server::builder()
        .http2_max_header_list_size(1 << 20)
        .add_service(Echo {
            name: name.to_owned(),
        });
    Ok(server.serve_with_incoming(incoming).await?)
}

/// A client of the echo service over one connection.
#[derive(Clone)]
pub struct EchoClient(tonic::client::Grpc<Channel>);

impl EchoClient {
    /// Speaks gRPC on a connection; `authority` is what the client thinks it talks to.
    ///
    /// # Errors
    /// Those of the handshake.
    pub async fn start(wire: Wire, authority: &str) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
            .http2_max_header_list_size(1 << 20);
        let mut stream = Some(TokioIo::new(wire.into_stream()));
        let connector = tower::service_fn(move |_| {
            let taken = stream
                .take()
                .ok_or_else(|| std::io::Error::other("the connection has ended"));
            std::future::ready(taken)
        });
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(EchoClient(tonic::client::Grpc::new(channel)))
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))
    }

    /// One for one.
    ///
    /// # Errors
    /// What the server says, or that it cannot be reached.
    pub async fn unary(&mut self, ping: Ping) -> Result<Pong, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/weft.e2e.Echo/Unary");
        let codec: ProstCodec<Ping, Pong> = ProstCodec::default();
        self.0
            .unary(tonic::Request::new(ping), path, codec)
            .await
            .map(tonic::Response::into_inner)
    }

    /// Many for one; the metadata are the response's.
    ///
    /// # Errors
    /// As of [`EchoClient::unary`].
    pub async fn server_stream(
        &mut self,
        ping: Ping,
    ) -> Result<(MetadataMap, Streaming<Pong>), Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/weft.e2e.Echo/ServerStream");
        let codec: ProstCodec<Ping, Pong> = ProstCodec::default();
        let (metadata, replies, _) = self
            .0
            .server_streaming(tonic::Request::new(ping), path, codec)
            .await?
            .into_parts();
        Ok((metadata, replies))
    }

    /// One for many.
    ///
    /// # Errors
    /// As of [`EchoClient::unary`].
    pub async fn client_stream(
        &mut self,
        pings: impl Stream<Item = Ping> + Send + 'static,
    ) -> Result<Pong, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/weft.e2e.Echo/ClientStream");
        let codec: ProstCodec<Ping, Pong> = ProstCodec::default();
        self.0
            .client_streaming(tonic::Request::new(pings), path, codec)
            .await
            .map(tonic::Response::into_inner)
    }

    /// Many for many.
    ///
    /// # Errors
    /// As of [`EchoClient::unary`].
    pub async fn both(
        &mut self,
        pings: impl Stream<Item = Ping> + Send + 'static,
    ) -> Result<Streaming<Pong>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/weft.e2e.Echo/Both");
        let codec: ProstCodec<Ping, Pong> = ProstCodec::default();
        self.0
            .streaming(tonic::Request::new(pings), path, codec)
            .await
            .map(tonic::Response::into_inner)
    }
}
