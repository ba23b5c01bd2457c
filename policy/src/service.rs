//! Owns the two gRPC services of policy: checks what is asked and opens streams; the answers are computed elsewhere.

use std::{net::SocketAddr, sync::Arc};

use linkerd2_proxy_api::{
    inbound::{
        PortSpec, Server,
        inbound_server_policies_server::{InboundServerPolicies, InboundServerPoliciesServer},
    },
    outbound::{
        OutboundPolicy, TrafficSpec,
        outbound_policies_server::{OutboundPolicies, OutboundPoliciesServer},
        traffic_spec::Target,
    },
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};
use weft_cluster::{Authority, Host, Name, Shared, Views, Workload};
use weft_runtime::grpc::{self, Calls, Limits, Updates};

use crate::{
    inbound::{InboundQuery, InboundStream, InboundWorkload},
    outbound::{Outbound, OutboundQuery, OutboundStream, OutboundTarget},
    settings::Settings,
};

const INBOUND: &str = "io.linkerd.proxy.inbound.InboundServerPolicies";
const OUTBOUND: &str = "io.linkerd.proxy.outbound.OutboundPolicies";

/// Both services.
#[derive(Clone)]
pub struct Policies {
    cluster_domain: Arc<str>,
    inbound: Arc<Views<InboundQuery>>,
    outbound: Arc<Views<OutboundQuery>>,
    calls: Calls,
}

/// Serves policy on a listener until the shutdown; streams end with it.
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
    let policies = Policies::new(settings, shared, calls);
    let inbound = InboundServerPoliciesServer::new(policies.clone())
        .max_decoding_message_size(grpc::MAX_REQUEST);
    let outbound =
        OutboundPoliciesServer::new(policies).max_decoding_message_size(grpc::MAX_REQUEST);
    grpc::serve(
        listener,
        Routes::new(inbound).add_service(outbound),
        Limits::default(),
        shutdown,
    )
    .await
}

impl Policies {
    /// The services over an index.
    pub fn new(settings: Settings, shared: Arc<Shared>, calls: Calls) -> Self {
        Self {
            cluster_domain: settings.mesh.cluster_domain.as_str().into(),
            inbound: Views::new(Arc::clone(&shared), settings.clone(), settings.max_targets),
            outbound: Views::new(shared, settings.clone(), settings.max_targets),
            calls,
        }
    }

    fn port_query(spec: &PortSpec) -> Result<InboundQuery, Status> {
        let port = port(spec.port)?;
        let workload = Workload::from_policy(&spec.workload).ok_or_else(|| {
            Status::invalid_argument("the workload is neither JSON nor <namespace>:<pod>")
        })?;
        let namespace = workload.namespace.as_deref();
        let workload = match (namespace, workload.pod, workload.external_workload) {
            (Some(namespace), Some(pod), _) => InboundWorkload::Pod(Name::new(namespace, &pod)),
            (Some(namespace), None, Some(external)) => {
                InboundWorkload::External(Name::new(namespace, &external))
            }
            _ => {
                return Err(Status::not_found(
                    "the workload has no namespace or no name",
                ));
            }
        };
        Ok(InboundQuery { workload, port })
    }

    fn traffic_query(&self, spec: TrafficSpec) -> Result<OutboundQuery, Status> {
        let target = match spec.target {
            None => return Err(Status::invalid_argument("target is required")),
            Some(Target::Addr(address)) => {
                let port = port(address.port)?;
                let ip = SocketAddr::try_from(address)
                    .map_err(|_| Status::invalid_argument("invalid IP address"))?
                    .ip();
                OutboundTarget::Address(SocketAddr::new(ip.to_canonical(), port))
            }
            Some(Target::Authority(authority)) => self.authority(&authority).ok_or_else(|| {
                Status::not_found(format!(
                    "{authority:?} is not <service>.<namespace>.svc[.{}][:<port>]",
                    self.cluster_domain
                ))
            })?,
        };
        let client =
            Workload::from_policy(&spec.source_workload).and_then(|workload| workload.namespace);
        // Routes of a Service's own namespace count for everybody, so such clients share one state with all others.
        let own = |target: &OutboundTarget, namespace: &str| matches!(target, OutboundTarget::Service(name, _) if &*name.namespace == namespace);
        let client_namespace = client
            .filter(|namespace| !own(&target, namespace))
            .map(|ns| ns.as_str().into());
        Ok(OutboundQuery {
            target,
            client_namespace,
        })
    }

    /// `<service>.<namespace>.svc[.<domain>][:<port>]`; the command line leaves the domain out.
    fn authority(&self, text: &str) -> Option<OutboundTarget> {
        let authority = Authority::parse(text)?;
        let Host::Name(host) = authority.host else {
            return None;
        };
        let host = host.strip_suffix('.').unwrap_or(&host);
        let host = host
            .strip_suffix(&format!(".{}", self.cluster_domain))
            .unwrap_or(host);
        let (service, namespace) = host.strip_suffix(".svc")?.split_once('.')?;
        if service.is_empty() || namespace.is_empty() || namespace.contains('.') {
            return None;
        }
        let port = authority.port.unwrap_or(Authority::DEFAULT_PORT);
        Some(OutboundTarget::Service(Name::new(namespace, service), port))
    }

    /// Refuses while the index is being filled: without a Server that is not read yet a port would be open, and without an
    /// authentication a client would be turned away. Proxies go on with what they knew.
    async fn filled(&self) -> Result<(), Status> {
        let filled = self.inbound.shared().filled().await;
        filled.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn outbound(&self, spec: TrafficSpec) -> Result<OutboundPolicy, Status> {
        self.filled().await?;
        match self.outbound.once(&self.traffic_query(spec)?) {
            Outbound::Known(policy, _) => Ok(OutboundPolicy::clone(&policy)),
            Outbound::NotFound => Err(no_such_target()),
        }
    }

    async fn inbound(&self, spec: &PortSpec) -> Result<Server, Status> {
        self.filled().await?;
        let query = Self::port_query(spec)?;
        match self.inbound.once(&query) {
            Some(server) => Ok(Server::clone(&server)),
            None => Err(no_such_workload(&query)),
        }
    }

    async fn watch_outbound(&self, spec: TrafficSpec) -> Result<OutboundStream, Status> {
        self.filled().await?;
        let query = self.traffic_query(spec)?;
        let subscription = self.outbound.subscribe(query).map_err(grpc::exhausted)?;
        OutboundStream::new(subscription).ok_or_else(no_such_target)
    }

    async fn watch_inbound(&self, spec: &PortSpec) -> Result<InboundStream, Status> {
        self.filled().await?;
        let query = Self::port_query(spec)?;
        let unknown = no_such_workload(&query);
        let subscription = self.inbound.subscribe(query).map_err(grpc::exhausted)?;
        InboundStream::new(subscription).ok_or(unknown)
    }
}

fn no_such_target() -> Status {
    Status::not_found("no Service has this name or address")
}

fn no_such_workload(query: &InboundQuery) -> Status {
    Status::not_found(match &query.workload {
        InboundWorkload::Pod(name) => format!("pod {name} is unknown or has no proxy"),
        InboundWorkload::External(name) => format!("external workload {name} is unknown"),
    })
}

fn port(number: u32) -> Result<u16, Status> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| Status::invalid_argument(format!("Invalid port: {number}")))
}

#[tonic::async_trait]
impl InboundServerPolicies for Policies {
    type WatchPortStream = Updates<Server>;

    async fn get_port(&self, request: Request<PortSpec>) -> Result<Response<Server>, Status> {
        let call = self.calls.unary(INBOUND, "GetPort");
        call.answer(self.inbound(request.get_ref()).await)
    }

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        let call = self.calls.streaming(INBOUND, "WatchPort");
        let opened = self.watch_inbound(request.get_ref());
        self.calls.open(call, opened).await
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Policies {
    type WatchStream = Updates<OutboundPolicy>;

    async fn get(&self, request: Request<TrafficSpec>) -> Result<Response<OutboundPolicy>, Status> {
        let call = self.calls.unary(OUTBOUND, "Get");
        call.answer(self.outbound(request.into_inner()).await)
    }

    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let call = self.calls.streaming(OUTBOUND, "Watch");
        let opened = self.watch_outbound(request.into_inner());
        self.calls.open(call, opened).await
    }
}
