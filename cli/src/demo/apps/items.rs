//! Owns the gRPC interface between web and api, written by hand so that the build needs no protoc.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::codegen::http::{Request, Response, uri::PathAndQuery};
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

const PATH: &str = "/weft.demo.Items/Lookup";

/// Asks for one item.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LookupRequest {
    /// Which one.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// The item.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LookupReply {
    /// Which one was asked for.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What the store holds.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The value the store holds under `id`; load checks that it comes back.
pub fn value_of(id: u64) -> String {
    format!("item-{}", id.wrapping_mul(7))
}

/// Calls `Lookup` over `channel`.
pub async fn lookup(channel: Channel, id: u64) -> Result<LookupReply, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec: ProstCodec<LookupRequest, LookupReply> = ProstCodec::default();
    let reply = grpc
        .unary(
            tonic::Request::new(LookupRequest { id }),
            PathAndQuery::from_static(PATH),
            codec,
        )
        .await?;
    Ok(reply.into_inner())
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<tonic::body::Body>, Infallible>> + Send>>;

/// What answers `Lookup`.
#[tonic::async_trait]
pub trait Items: Send + Sync + 'static {
    /// Finds one item.
    async fn lookup(&self, id: u64) -> Result<LookupReply, tonic::Status>;
}

/// The gRPC service around an [`Items`].
pub struct ItemsService<T>(pub Arc<T>);

impl<T> Clone for ItemsService<T> {
    fn clone(&self) -> Self {
        ItemsService(self.0.clone())
    }
}

impl<T> tonic::server::NamedService for ItemsService<T> {
    const NAME: &'static str = "weft.demo.Items";
}

impl<T: Items> tower::Service<Request<tonic::body::Body>> for ItemsService<T> {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Answer {
        let items = self.0.clone();
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(tonic::Status::unimplemented("only Lookup is served").into_http());
            }
            let method = tower::service_fn(move |request: tonic::Request<LookupRequest>| {
                let items = items.clone();
                async move {
                    items
                        .lookup(request.get_ref().id)
                        .await
                        .map(tonic::Response::new)
                }
            });
            let codec: ProstCodec<LookupReply, LookupRequest> = ProstCodec::default();
            Ok(tonic::server::Grpc::new(codec).unary(method, request).await)
        })
    }
}
