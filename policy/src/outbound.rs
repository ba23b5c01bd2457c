//! Owns outbound policy: what stands behind a target, its protocol and the routes of a client (contract 8.2).
//! Circuit breaking, retries, GRPCRoutes, TLSRoutes, TCPRoutes and EgressNetworks are not read yet.

mod backends;
mod routes;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use linkerd2_proxy_api::{
    meta::Metadata,
    outbound::{self as api, OutboundPolicy, proxy_protocol as protocol},
};
use tonic::Status;
use weft_cluster::{
    Name, Query, Reader, Subscription,
    index::{AppProtocol, Route, RouteParentKind, Service},
};
use weft_runtime::grpc::Source;

use crate::{settings::Settings, wire};

/// Time for protocol detection.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A target as one namespace sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundQuery {
    /// The target.
    pub target: OutboundTarget,
    /// Namespace of the client, for its own routes.
    pub client_namespace: Option<Arc<str>>,
}

/// What a client talks to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundTarget {
    /// An address.
    Address(SocketAddr),
    /// A port of a Service.
    Service(Name, u16),
}

/// What is known of a target.
#[derive(Clone, Debug, PartialEq)]
pub enum Outbound {
    /// This.
    Known(Arc<OutboundPolicy>),
    /// Nothing; the client uses what it gets from discovery.
    NotFound,
}

impl Query for OutboundQuery {
    type State = Outbound;
    type Settings = Settings;

    fn answer(&self, settings: &Settings, index: &Reader<'_>, _: Option<&Outbound>) -> Outbound {
        let (name, port) = match &self.target {
            OutboundTarget::Service(name, port) => (name, *port),
            OutboundTarget::Address(address) => match index.services_at(address.ip()).first() {
                Some(name) => (*name, address.port()),
                None if settings
                    .mesh
                    .cluster_networks
                    .iter()
                    .any(|net| net.contains(&address.ip())) =>
                {
                    return Outbound::NotFound;
                }
                None => return Outbound::Known(Arc::new(egress_fallback(*address))),
            },
        };
        let Some(service) = index.service(name).filter(|service| !service.external_name) else {
            return Outbound::NotFound;
        };
        let parent = Parent {
            settings,
            index,
            name,
            service,
            port,
            client: self.client_namespace.as_deref(),
        };
        Outbound::Known(Arc::new(parent.policy()))
    }
}

/// A Service's port whose policy is being put together.
struct Parent<'a> {
    settings: &'a Settings,
    index: &'a Reader<'a>,
    name: &'a Name,
    service: &'a Service,
    port: u16,
    client: Option<&'a str>,
}

impl Parent<'_> {
    fn metadata(&self) -> Metadata {
        wire::service_meta(self.name, self.port)
    }

    fn policy(&self) -> OutboundPolicy {
        let Some(port) = self.service.port(self.port) else {
            return policy(self.metadata(), protocol::Kind::Opaque(undefined_port()));
        };
        let opaque_port = self
            .service
            .is_opaque(self.port, &self.settings.mesh.default_opaque_ports);
        let kind = match port.app_protocol {
            Some(AppProtocol::Http1) => protocol::Kind::Http1(protocol::Http1 {
                routes: self.http_routes(),
                failure_accrual: None,
            }),
            Some(AppProtocol::Http2) => protocol::Kind::Http2(protocol::Http2 {
                routes: self.http_routes(),
                failure_accrual: None,
            }),
            Some(AppProtocol::Opaque) => protocol::Kind::Opaque(self.opaque()),
            None if opaque_port => protocol::Kind::Opaque(self.opaque()),
            None => {
                let routes = self.http_routes();
                detect(self.opaque(), routes)
            }
        };
        policy(self.metadata(), kind)
    }

    fn opaque(&self) -> protocol::Opaque {
        opaque(
            "opaq",
            backends::service(self.settings, self.name, self.port),
        )
    }

    /// The routes that count for this client: those of the Service's namespace (producer) and those of the client's own
    /// (consumer), oldest first.
    fn attached(&self) -> Vec<&Route> {
        let counts = |route: &&Route| {
            let namespace = &*route.name.namespace;
            let ours = namespace == &*self.name.namespace || Some(namespace) == self.client;
            ours && route.parents.iter().any(|parent| {
                parent.kind == RouteParentKind::Service
                    && parent.name == *self.name
                    && parent.port.is_none_or(|port| port == self.port)
                    && (parent.accepted || self.assume_accepted())
            })
        };
        self.index
            .routes(RouteParentKind::Service, self.name)
            .into_iter()
            .filter(counts)
            .collect()
    }

    /// Where nobody writes statuses, a route is accepted as its controller would: a headless Service is no parent.
    fn assume_accepted(&self) -> bool {
        self.settings.mesh.assume_accepted && !self.service.cluster_ips.is_empty()
    }
}

fn policy(metadata: Metadata, kind: protocol::Kind) -> OutboundPolicy {
    OutboundPolicy {
        protocol: Some(api::ProxyProtocol { kind: Some(kind) }),
        metadata: Some(metadata),
    }
}

fn detect(opaque: protocol::Opaque, routes: Vec<api::HttpRoute>) -> protocol::Kind {
    protocol::Kind::Detect(protocol::Detect {
        timeout: wire::duration(DETECT_TIMEOUT),
        opaque: Some(opaque),
        http1: Some(protocol::Http1 {
            routes: routes.clone(),
            failure_accrual: None,
        }),
        http2: Some(protocol::Http2 {
            routes,
            failure_accrual: None,
        }),
    })
}

fn opaque(name: &str, backend: api::Backend) -> protocol::Opaque {
    let backends = vec![api::opaque_route::RouteBackend {
        backend: Some(backend),
        filters: Vec::new(),
    }];
    let kind = api::opaque_route::distribution::Kind::FirstAvailable(
        api::opaque_route::distribution::FirstAvailable { backends },
    );
    opaque_route(name, kind, Vec::new())
}

fn opaque_route(
    name: &str,
    kind: api::opaque_route::distribution::Kind,
    filters: Vec<api::opaque_route::Filter>,
) -> protocol::Opaque {
    let backends = Some(api::opaque_route::Distribution { kind: Some(kind) });
    let rules = vec![api::opaque_route::Rule { backends, filters }];
    protocol::Opaque {
        routes: vec![api::OpaqueRoute {
            metadata: Some(wire::default_meta(name)),
            rules,
        }],
    }
}

/// A port that the Service does not declare is closed at once, as kube-proxy would (case T15).
fn undefined_port() -> protocol::Opaque {
    use linkerd2_proxy_api::opaque_route::Forbidden;
    let forbidden = api::opaque_route::Filter {
        kind: Some(api::opaque_route::filter::Kind::Forbidden(Forbidden {})),
    };
    let empty =
        api::opaque_route::distribution::Kind::Empty(api::opaque_route::distribution::Empty {});
    opaque_route("undefined-port", empty, vec![forbidden])
}

/// An address outside of the cluster that nothing speaks for.
fn egress_fallback(address: SocketAddr) -> OutboundPolicy {
    const NAME: &str = "egress-fallback";
    let backend = backends::forward(NAME, address);
    let routes = vec![routes::default_route(NAME, backend.clone())];
    policy(
        wire::default_meta(NAME),
        detect(opaque(NAME, backend), routes),
    )
}

/// The messages of one `Watch`.
pub(crate) struct OutboundStream {
    subscription: Subscription<OutboundQuery>,
    first: Option<Arc<OutboundPolicy>>,
}

impl OutboundStream {
    /// `None` for a target nothing is known of.
    pub(crate) fn new(mut subscription: Subscription<OutboundQuery>) -> Option<Self> {
        match subscription.latest() {
            Outbound::Known(first) => Some(Self {
                subscription,
                first: Some(first),
            }),
            Outbound::NotFound => None,
        }
    }
}

impl Source for OutboundStream {
    type Message = OutboundPolicy;

    async fn next(&mut self) -> Result<OutboundPolicy, Status> {
        if let Some(first) = self.first.take() {
            return Ok(OutboundPolicy::clone(&first));
        }
        match self.subscription.changed().await {
            Outbound::Known(policy) => Ok(OutboundPolicy::clone(&policy)),
            // The client must not keep sending to a Service that has gone; it asks again and hears the same.
            Outbound::NotFound => Err(Status::not_found("the target is not known any more")),
        }
    }
}
