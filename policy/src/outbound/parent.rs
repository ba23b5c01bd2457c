//! Owns the parent of routes behind a target: which routes count for a client, and the protocol that follows from them
//! (contract 8.2).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use linkerd2_proxy_api::{
    meta::Metadata,
    outbound::{self as api, OutboundPolicy, proxy_protocol as protocol},
};
use weft_cluster::{
    Kind, Name, Reader,
    index::{
        AppProtocol, EgressNetwork, Route, RouteParent, RouteParentKind, RouteRules, Service,
        Traffic,
    },
    objects::traffic::TrafficPolicy,
};

use super::{backends, http, stream};
use crate::{acceptance, settings::Settings, wire};

/// Time for protocol detection.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A parent of routes whose policy is being put together.
pub(super) struct Parent<'a> {
    pub(super) settings: &'a Settings,
    pub(super) index: &'a Reader<'a>,
    pub(super) target: Target<'a>,
    /// The port that the client wants.
    pub(super) port: u16,
    /// Namespace of the client.
    pub(super) client: Option<&'a str>,
}

/// What a [`Parent`] is.
pub(super) enum Target<'a> {
    /// A Service.
    Service(&'a Name, &'a Service),
    /// An EgressNetwork, and the address in it.
    EgressNetwork(&'a Arc<EgressNetwork>, SocketAddr),
}

impl Parent<'_> {
    pub(super) fn kind(&self) -> RouteParentKind {
        match self.target {
            Target::Service(..) => RouteParentKind::Service,
            Target::EgressNetwork(..) => RouteParentKind::EgressNetwork,
        }
    }

    pub(super) fn name(&self) -> &Name {
        match self.target {
            Target::Service(name, _) => name,
            Target::EgressNetwork(network, _) => &network.name,
        }
    }

    /// What annotations say of the traffic to it.
    pub(super) fn traffic(&self) -> &Traffic {
        match self.target {
            Target::Service(_, service) => &service.traffic,
            Target::EgressNetwork(network, _) => &network.traffic,
        }
    }

    /// What happens to traffic that no route takes; a Service gets it.
    pub(super) fn egress_policy(&self) -> Option<TrafficPolicy> {
        match self.target {
            Target::Service(..) => None,
            Target::EgressNetwork(network, _) => Some(network.policy),
        }
    }

    fn metadata(&self) -> Metadata {
        match self.target {
            Target::Service(name, _) => wire::service_meta(name, self.port),
            Target::EgressNetwork(network, _) => wire::egress_meta(&network.name, self.port),
        }
    }

    pub(super) fn policy(&self) -> OutboundPolicy {
        policy(self.metadata(), self.protocol())
    }

    /// What the port is declared to be wins over annotations, those over the kind of the routes.
    fn protocol(&self) -> protocol::Kind {
        let routes = self.routes();
        let of = |wanted: fn(&RouteRules) -> bool| -> Vec<&Route> {
            let routes = routes.iter().filter(|route| wanted(&route.rules));
            routes.copied().collect()
        };
        let grpc = of(|rules| matches!(rules, RouteRules::Grpc(_)));
        let http = of(|rules| matches!(rules, RouteRules::Http(_)));
        let stream = of(|rules| matches!(rules, RouteRules::Stream(_)));
        let (tls, tcp): (Vec<_>, Vec<_>) = stream
            .into_iter()
            .partition(|route| route.kind == Kind::TlsRoute);
        let default = &self.settings.mesh.default_opaque_ports;
        let (app_protocol, opaque) = match self.target {
            Target::Service(_, service) => match service.port(self.port) {
                None => return protocol::Kind::Opaque(stream::undefined_port()),
                Some(port) => (port.app_protocol, service.is_opaque(self.port, default)),
            },
            Target::EgressNetwork(network, _) => {
                let ports = network.opaque_ports.as_ref().unwrap_or(default);
                (None, ports.contains(self.port))
            }
        };
        match app_protocol {
            Some(AppProtocol::Http1) => protocol::Kind::Http1(self.http1(&http)),
            Some(AppProtocol::Http2) if !grpc.is_empty() => protocol::Kind::Grpc(self.grpc(&grpc)),
            Some(AppProtocol::Http2) => protocol::Kind::Http2(self.http2(&http)),
            Some(AppProtocol::Opaque) => protocol::Kind::Opaque(self.opaque(&tcp)),
            None if opaque => protocol::Kind::Opaque(self.opaque(&tcp)),
            None if !grpc.is_empty() => protocol::Kind::Grpc(self.grpc(&grpc)),
            None if !http.is_empty() => self.detect(&http),
            None if !tls.is_empty() => protocol::Kind::Tls(self.tls(&tls)),
            None if !tcp.is_empty() => protocol::Kind::Opaque(self.opaque(&tcp)),
            None => self.detect(&http),
        }
    }

    fn detect(&self, routes: &[&Route]) -> protocol::Kind {
        detect(self.opaque(&[]), self.http1(routes), self.http2(routes))
    }

    /// The routes that count for this client: those of the parent's namespace (producer) and those of the client's own
    /// (consumer), oldest first.
    fn routes(&self) -> Vec<&Route> {
        let (kind, name) = (self.kind(), self.name());
        let here = |route: &Route, parent: &RouteParent| {
            parent.kind == kind
                && parent.name == *name
                && parent.port.is_none_or(|port| port == self.port)
                && acceptance::route(self.index, &self.settings.mesh, route, parent).is_ok()
        };
        let counts = |route: &&Route| {
            let namespace = &*route.name.namespace;
            let ours = namespace == &*name.namespace || Some(namespace) == self.client;
            ours && route.parents.iter().any(|parent| here(route, parent))
        };
        let routes = self.index.routes(kind, name).into_iter();
        routes.filter(counts).collect()
    }
}

fn policy(metadata: Metadata, kind: protocol::Kind) -> OutboundPolicy {
    OutboundPolicy {
        protocol: Some(api::ProxyProtocol { kind: Some(kind) }),
        metadata: Some(metadata),
    }
}

fn detect(
    opaque: protocol::Opaque,
    http1: protocol::Http1,
    http2: protocol::Http2,
) -> protocol::Kind {
    protocol::Kind::Detect(protocol::Detect {
        timeout: wire::duration(DETECT_TIMEOUT),
        opaque: Some(opaque),
        http1: Some(http1),
        http2: Some(http2),
    })
}

/// An address outside of the cluster that nothing speaks for.
pub(super) fn fallback(address: SocketAddr) -> OutboundPolicy {
    const NAME: &str = "egress-fallback";
    let metadata = wire::default_meta(NAME);
    let backend = backends::forward(metadata.clone(), address);
    let routes = vec![http::default_route(NAME, backend.clone())];
    let http1 = protocol::Http1 {
        routes: routes.clone(),
        failure_accrual: None,
    };
    let http2 = protocol::Http2 {
        routes,
        failure_accrual: None,
    };
    let opaque = stream::default_opaque(NAME, backend, Vec::new());
    policy(metadata, detect(opaque, http1, http2))
}
