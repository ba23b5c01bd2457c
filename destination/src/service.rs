//! Owns the gRPC service `io.linkerd.proxy.destination.Destination`: checks what is asked and opens streams; the answers
//! are computed elsewhere.

use std::{
    convert::Infallible,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use linkerd2_proxy_api::destination::GetDestination;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService, service::Routes};
use weft_cluster::{Authority, Host, Reader, ServiceHost, Shared, Views, Workload};
use weft_runtime::grpc::{self, Calls, Limits};

use crate::{
    get::{EndpointsQuery, GetStream},
    profile::{ProfileQuery, ProfileStream, ProfileTarget},
    settings::Settings,
    wire,
};

const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

/// The service, over an index.
#[derive(Clone)]
pub struct Destination(Arc<Inner>);

struct Inner {
    settings: Settings,
    shared: Arc<Shared>,
    endpoints: Arc<Views<EndpointsQuery>>,
    profiles: Arc<Views<ProfileQuery>>,
    calls: Calls,
}

/// Serves discovery on a listener until the shutdown; streams end with it.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve_on(
    listener: TcpListener,
    settings: Settings,
    shared: Arc<Shared>,
    metrics: grpc::Metrics,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let calls = Calls::new(metrics, settings.max_streams, shutdown.clone());
    let service = Destination::new(settings, shared, calls);
    grpc::serve(listener, Routes::new(service), Limits::default(), shutdown).await
}

impl Destination {
    /// The service over an index.
    pub fn new(settings: Settings, shared: Arc<Shared>, calls: Calls) -> Self {
        let endpoints = Views::new(Arc::clone(&shared), settings.clone(), settings.max_targets);
        let profiles = Views::new(Arc::clone(&shared), settings.clone(), settings.max_targets);
        Self(Arc::new(Inner {
            settings,
            shared,
            endpoints,
            profiles,
            calls,
        }))
    }
}

impl NamedService for Destination {
    const NAME: &'static str = SERVICE;
}

impl tower::Service<http::Request<Body>> for Destination {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move {
            let answered = service.answer(request).await;
            Ok(answered.unwrap_or_else(Status::into_http))
        })
    }
}

impl Inner {
    async fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let (parts, body) = request.into_parts();
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let updates = match method {
            "Get" => {
                let request = wire::decode(body).await?;
                let call = self.calls.streaming(SERVICE, "Get");
                self.calls.open(call, self.endpoints(&request)).await?
            }
            "GetProfile" => {
                let request = wire::decode(body).await?;
                let call = self.calls.streaming(SERVICE, "GetProfile");
                self.calls.open(call, self.profile(&request)).await?
            }
            other => {
                return Err(Status::unimplemented(format!(
                    "{SERVICE} has Get and GetProfile, not {other:?}"
                )));
            }
        };
        Ok(wire::response(updates.into_inner()))
    }

    /// The zone of the caller's node, as it is now: a pod never changes its node, and a node hardly its zone.
    fn zone(&self, caller: &Workload) -> Option<Arc<str>> {
        let node = caller.node_name.as_deref()?;
        self.shared
            .read(|index| Reader::new(index).node(node)?.zone.clone())
    }

    /// Refuses while the index is being filled: what is not read yet would seem not to exist. Proxies go on with what they knew.
    async fn filled(&self) -> Result<(), Status> {
        let filled = self.shared.filled().await;
        filled.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn endpoints(&self, request: &GetDestination) -> Result<GetStream, Status> {
        self.filled().await?;
        let path = &request.path;
        let invalid = || Status::invalid_argument(format!("Invalid authority: {path}"));
        let authority = Authority::parse(path).ok_or_else(invalid)?;
        let host = match authority.host {
            Host::Name(name) => name,
            Host::Ip(ip) => {
                return Err(Status::invalid_argument(format!(
                    "IP queries not supported by Get API: host={ip}"
                )));
            }
        };
        let host =
            ServiceHost::parse(&host, &self.settings.mesh.cluster_domain).ok_or_else(invalid)?;
        let caller = Workload::from_context(&request.context_token);
        let query = EndpointsQuery {
            service: host.service,
            port: authority.port.unwrap_or(Authority::DEFAULT_PORT),
            hostname: host.hostname,
            zone: self.zone(&caller),
            node: None,
        };
        let node = caller.node_name.unwrap_or_default();
        GetStream::new(&self.endpoints, query, node.into())
    }

    async fn profile(&self, request: &GetDestination) -> Result<ProfileStream, Status> {
        self.filled().await?;
        let path = &request.path;
        let invalid = || Status::invalid_argument(format!("Invalid authority: {path}"));
        let authority = Authority::parse(path).ok_or_else(invalid)?;
        let target = match authority.host {
            Host::Ip(ip) => ProfileTarget::Address(unmapped(ip)),
            Host::Name(name) => {
                let host = ServiceHost::parse(&name, &self.settings.mesh.cluster_domain)
                    .ok_or_else(invalid)?;
                match host.hostname {
                    None => ProfileTarget::Service(host.service),
                    Some(hostname) => ProfileTarget::Hostname(host.service, hostname),
                }
            }
        };
        let caller = Workload::from_context(&request.context_token);
        let query = ProfileQuery {
            target,
            port: authority.port.unwrap_or(Authority::DEFAULT_PORT),
            zone: self.zone(&caller),
            namespace: caller.namespace.map(Into::into),
        };
        ProfileStream::new(self.profiles.subscribe(query).map_err(grpc::exhausted)?)
    }
}

fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
