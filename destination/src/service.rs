//! Owns the gRPC service `io.linkerd.proxy.destination.Destination`: checks what is asked and opens streams; the answers
//! are computed elsewhere.

use std::{net::IpAddr, sync::Arc};

use linkerd2_proxy_api::destination::{
    DestinationProfile, GetDestination, Update,
    destination_server::{Destination as Service, DestinationServer},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};
use weft_cluster::{Authority, Host, Reader, ServiceHost, Shared, Views, Workload};
use weft_runtime::grpc::{self, Calls, Limits, Updates};

use crate::{
    get::{Endpoints, EndpointsQuery, GetStream},
    profile::{ProfileQuery, ProfileStream, ProfileTarget},
    settings::Settings,
};

const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

/// The service.
pub struct Destination {
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
    let service = DestinationServer::new(Destination::new(settings, shared, calls))
        .max_decoding_message_size(grpc::MAX_REQUEST);
    grpc::serve(listener, Routes::new(service), Limits::default(), shutdown).await
}

impl Destination {
    /// The service over an index.
    pub fn new(settings: Settings, shared: Arc<Shared>, calls: Calls) -> Self {
        let endpoints = Views::new(Arc::clone(&shared), settings.clone(), settings.max_targets);
        let profiles = Views::new(Arc::clone(&shared), settings.clone(), settings.max_targets);
        Self {
            settings,
            shared,
            endpoints,
            profiles,
            calls,
        }
    }

    /// The zone of the caller's node, as it is now: a pod never changes its node, and a node hardly its zone.
    fn zone(&self, context: &str) -> Option<Arc<str>> {
        let node = Workload::from_context(context).node_name?;
        self.shared
            .read(|index| Reader::new(index).node(&node)?.zone.clone())
    }

    fn endpoints(&self, request: &GetDestination) -> Result<GetStream, Status> {
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
        let name = host.service.clone();
        let query = EndpointsQuery {
            service: host.service,
            port: authority.port.unwrap_or(Authority::DEFAULT_PORT),
            hostname: host.hostname,
            zone: self.zone(&request.context_token),
        };
        let subscription = self.endpoints.subscribe(query).map_err(grpc::exhausted)?;
        match GetStream::new(subscription) {
            (_, Endpoints::Missing) => Err(Status::not_found(format!(
                "Service {}.{} not found",
                name.name, name.namespace
            ))),
            (_, Endpoints::External) => Err(Status::invalid_argument(format!(
                "Service {}.{} is an ExternalName",
                name.name, name.namespace
            ))),
            (stream, Endpoints::Known(_)) => Ok(stream),
        }
    }

    fn profile(&self, request: &GetDestination) -> Result<ProfileStream, Status> {
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
        let port = authority.port.unwrap_or(Authority::DEFAULT_PORT);
        let query = ProfileQuery {
            target,
            port,
            zone: self.zone(&request.context_token),
        };
        ProfileStream::new(self.profiles.subscribe(query).map_err(grpc::exhausted)?)
    }
}

fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

#[tonic::async_trait]
impl Service for Destination {
    type GetStream = Updates<Update>;
    type GetProfileStream = Updates<DestinationProfile>;

    async fn get(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetStream>, Status> {
        let call = self.calls.streaming(SERVICE, "Get");
        let opened = self.endpoints(request.get_ref());
        self.calls.open(call, opened)
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let call = self.calls.streaming(SERVICE, "GetProfile");
        let opened = self.profile(request.get_ref());
        self.calls.open(call, opened)
    }
}
