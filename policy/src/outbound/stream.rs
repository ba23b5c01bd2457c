//! Owns routes of whole connections as messages: TLSRoutes by server name, and the one route of opaque connections
//! (contract 8.2).

use linkerd2_proxy_api::{
    opaque_route::{Forbidden, Invalid},
    outbound::{self as api, opaque_route as opaque, proxy_protocol as protocol, tls_route as tls},
};
use weft_cluster::{
    index::{self, Route, RouteRules},
    objects::traffic::TrafficPolicy,
};

use super::{backends::Weighted, parent::Parent};
use crate::wire;

impl Parent<'_> {
    /// The first TCPRoute, because nothing tells connections apart; without any, everything goes to the parent, or is
    /// decided by the policy of an EgressNetwork.
    pub(super) fn opaque(&self, routes: &[&Route]) -> protocol::Opaque {
        let Some(route) = routes.first() else {
            let (name, filters) = match self.egress_policy() {
                None => ("opaq", Vec::new()),
                Some(TrafficPolicy::Allow) => ("tcp-egress-allow", Vec::new()),
                Some(TrafficPolicy::Deny) => ("tcp-egress-deny", vec![forbid()]),
            };
            return default_opaque(name, self.itself(), filters);
        };
        let backends = stream_backends(route);
        let kind = if backends.is_empty() {
            first_opaque(self.itself())
        } else {
            let backends = self.weighted(backends).map(weighted_opaque).collect();
            opaque::distribution::Kind::RandomAvailable(opaque::distribution::RandomAvailable {
                backends,
            })
        };
        one_route(wire::route_meta(route), kind, Vec::new())
    }

    pub(super) fn tls(&self, routes: &[&Route]) -> protocol::Tls {
        let mut messages: Vec<_> = routes.iter().map(|route| self.tls_route(route)).collect();
        let default = self.egress_policy().map(|policy| match policy {
            TrafficPolicy::Allow => ("tls-egress-allow", Vec::new()),
            TrafficPolicy::Deny => ("tls-egress-deny", vec![forbid_tls()]),
        });
        if let Some((name, filters)) = default {
            messages.push(api::TlsRoute {
                metadata: Some(wire::default_meta(name)),
                snis: Vec::new(),
                rules: vec![tls_rule(first_tls(self.itself()), filters)],
            });
        }
        protocol::Tls { routes: messages }
    }

    fn tls_route(&self, route: &Route) -> api::TlsRoute {
        let backends = stream_backends(route);
        let kind = if backends.is_empty() {
            first_tls(self.itself())
        } else {
            let backends = self.weighted(backends).map(weighted_tls).collect();
            tls::distribution::Kind::RandomAvailable(tls::distribution::RandomAvailable {
                backends,
            })
        };
        api::TlsRoute {
            metadata: Some(wire::route_meta(route)),
            snis: wire::server_names(&route.hosts),
            rules: vec![tls_rule(kind, Vec::new())],
        }
    }
}

fn stream_backends(route: &Route) -> &[index::Backend] {
    match &route.rules {
        RouteRules::Stream(backends) => backends,
        RouteRules::Http(_) | RouteRules::Grpc(_) => &[],
    }
}

/// Everything to one backend.
pub(super) fn default_opaque(
    name: &str,
    backend: api::Backend,
    filters: Vec<opaque::Filter>,
) -> protocol::Opaque {
    one_route(wire::default_meta(name), first_opaque(backend), filters)
}

/// A port that the Service does not declare is closed at once, as kube-proxy would (case T15).
pub(super) fn undefined_port() -> protocol::Opaque {
    let empty = opaque::distribution::Kind::Empty(opaque::distribution::Empty {});
    let metadata = wire::default_meta("undefined-port");
    one_route(metadata, empty, vec![forbid()])
}

fn one_route(
    metadata: linkerd2_proxy_api::meta::Metadata,
    kind: opaque::distribution::Kind,
    filters: Vec<opaque::Filter>,
) -> protocol::Opaque {
    let backends = Some(opaque::Distribution { kind: Some(kind) });
    protocol::Opaque {
        routes: vec![api::OpaqueRoute {
            metadata: Some(metadata),
            rules: vec![opaque::Rule { backends, filters }],
        }],
    }
}

fn first_opaque(backend: api::Backend) -> opaque::distribution::Kind {
    let backends = vec![opaque::RouteBackend {
        backend: Some(backend),
        filters: Vec::new(),
    }];
    opaque::distribution::Kind::FirstAvailable(opaque::distribution::FirstAvailable { backends })
}

/// A backend that cannot be reached takes its share of connections and closes them.
fn weighted_opaque(given: Weighted<'_>) -> opaque::WeightedRouteBackend {
    let invalid = given.fault.map(|message| opaque::Filter {
        kind: Some(opaque::filter::Kind::Invalid(Invalid { message })),
    });
    let backend = opaque::RouteBackend {
        backend: Some(given.backend),
        filters: invalid.into_iter().collect(),
    };
    opaque::WeightedRouteBackend {
        backend: Some(backend),
        weight: given.weight,
    }
}

fn forbid() -> opaque::Filter {
    opaque::Filter {
        kind: Some(opaque::filter::Kind::Forbidden(Forbidden {})),
    }
}

fn tls_rule(kind: tls::distribution::Kind, filters: Vec<tls::Filter>) -> tls::Rule {
    let backends = Some(tls::Distribution { kind: Some(kind) });
    tls::Rule { backends, filters }
}

fn first_tls(backend: api::Backend) -> tls::distribution::Kind {
    let backends = vec![tls::RouteBackend {
        backend: Some(backend),
        filters: Vec::new(),
    }];
    tls::distribution::Kind::FirstAvailable(tls::distribution::FirstAvailable { backends })
}

fn weighted_tls(given: Weighted<'_>) -> tls::WeightedRouteBackend {
    let invalid = given.fault.map(|message| tls::Filter {
        kind: Some(tls::filter::Kind::Invalid(Invalid { message })),
    });
    let backend = tls::RouteBackend {
        backend: Some(given.backend),
        filters: invalid.into_iter().collect(),
    };
    tls::WeightedRouteBackend {
        backend: Some(backend),
        weight: given.weight,
    }
}

fn forbid_tls() -> tls::Filter {
    tls::Filter {
        kind: Some(tls::filter::Kind::Forbidden(Forbidden {})),
    }
}
