//! Owns the routes of an inbound port: attached HTTPRoutes or GRPCRoutes, or the default and the probe route (contract 8.2).

use std::collections::BTreeSet;

use linkerd2_proxy_api::{
    grpc_route::{GrpcRouteMatch, GrpcRpcMatch},
    http_route::{HttpRouteMatch, PathMatch, path_match},
    inbound::{self as api, grpc_route as grpc, http_route as http},
};
use weft_cluster::index::{Route, RouteFilter, RouteParent, RouteParentKind, RouteRules, Server};

use super::{
    Port, Workload,
    authorizations::{default_authz, networks, unauthenticated},
};
use crate::{acceptance, wire};

/// What the kubelet calls in a gRPC probe.
const HEALTH_SERVICE: &str = "grpc.health.v1.Health";
const HEALTH_METHOD: &str = "Check";

impl Port<'_> {
    /// The HTTPRoutes attached to a Server, oldest first; without any the default ones.
    pub(super) fn http_routes(&self, server: Option<&Server>) -> Vec<api::HttpRoute> {
        let attached = server.map(|server| self.attached(server));
        let mut routes = Vec::new();
        for route in attached.into_iter().flatten() {
            if let RouteRules::Http(rules) = &route.rules {
                routes.push(api::HttpRoute {
                    metadata: Some(wire::resource_meta(wire::route_resource(route))),
                    hosts: wire::hosts(&route.hosts),
                    authorizations: self.route_authorizations(route),
                    rules: rules
                        .iter()
                        .map(|rule| http::Rule {
                            matches: wire::matches(&rule.matches),
                            filters: rule.filters.iter().filter_map(http_filter).collect(),
                        })
                        .collect(),
                });
            }
        }
        if routes.is_empty() {
            routes.push(default_http());
            routes.extend(self.probe_route());
        }
        routes
    }

    /// The GRPCRoutes attached to a Server, oldest first; without any the default one.
    pub(super) fn grpc_routes(&self, server: &Server) -> Vec<api::GrpcRoute> {
        let mut routes = Vec::new();
        for route in self.attached(server) {
            if let RouteRules::Grpc(rules) = &route.rules {
                routes.push(api::GrpcRoute {
                    metadata: Some(wire::resource_meta(wire::route_resource(route))),
                    hosts: wire::hosts(&route.hosts),
                    authorizations: self.route_authorizations(route),
                    rules: rules
                        .iter()
                        .map(|rule| grpc::Rule {
                            matches: wire::grpc_matches(&rule.matches),
                            filters: rule.filters.iter().filter_map(grpc_filter).collect(),
                        })
                        .collect(),
                });
            }
        }
        if routes.is_empty() {
            routes.push(default_grpc());
            routes.extend(self.grpc_probe_route());
        }
        routes
    }

    /// The routes that the Server takes.
    fn attached(&self, server: &Server) -> Vec<&Route> {
        let mesh = &self.settings.mesh;
        let here = |route: &Route, parent: &RouteParent| {
            parent.kind == RouteParentKind::Server
                && parent.name == server.name
                && acceptance::route(self.index, mesh, route, parent).is_ok()
        };
        let routes = self.index.routes(RouteParentKind::Server, &server.name);
        let routes = routes.into_iter();
        routes
            .filter(|route| route.parents.iter().any(|parent| here(route, parent)))
            .collect()
    }

    /// Lets the kubelet's probes in without an identity.
    fn probe_route(&self) -> Option<api::HttpRoute> {
        let Workload::Pod(pod) = self.workload else {
            return None;
        };
        let exact = |method: &str, path: String| HttpRouteMatch {
            path: Some(PathMatch {
                kind: Some(path_match::Kind::Exact(path)),
            }),
            method: Some(wire::method(method)),
            ..HttpRouteMatch::default()
        };
        let paths = pod.probes.get(&self.number).into_iter().flatten();
        let paths: BTreeSet<String> = paths
            .flat_map(|path| [Some(path.clone()), other_slash(path)])
            .flatten()
            .collect();
        let mut matches: Vec<_> = paths.into_iter().map(|path| exact("GET", path)).collect();
        if pod.grpc_probes.contains(&self.number) {
            matches.push(exact("POST", format!("/{HEALTH_SERVICE}/{HEALTH_METHOD}")));
        }
        (!matches.is_empty()).then(|| api::HttpRoute {
            metadata: Some(wire::default_meta("probe")),
            hosts: Vec::new(),
            authorizations: self.probe_authorizations(),
            rules: vec![http::Rule {
                matches,
                filters: Vec::new(),
            }],
        })
    }

    /// The same on a port that speaks gRPC only.
    fn grpc_probe_route(&self) -> Option<api::GrpcRoute> {
        let probed = match self.workload {
            Workload::Pod(pod) => pod.grpc_probes.contains(&self.number),
            Workload::External(_) => false,
        };
        let rpc = GrpcRpcMatch {
            service: HEALTH_SERVICE.to_owned(),
            method: HEALTH_METHOD.to_owned(),
        };
        let matches = vec![GrpcRouteMatch {
            rpc: Some(rpc),
            headers: Vec::new(),
        }];
        probed.then(|| api::GrpcRoute {
            metadata: Some(wire::default_meta("probe")),
            hosts: Vec::new(),
            authorizations: self.probe_authorizations(),
            rules: vec![grpc::Rule {
                matches,
                filters: Vec::new(),
            }],
        })
    }

    fn probe_authorizations(&self) -> Vec<api::Authz> {
        let networks = networks(&self.settings.probe_networks);
        vec![default_authz("probe", networks, unauthenticated())]
    }
}

/// The path with a slash at its end, or without it: many applications redirect one to the other, and the kubelet follows (case
/// R02).
fn other_slash(path: &str) -> Option<String> {
    match path.strip_suffix('/') {
        Some("") => None,
        Some(without) => Some(without.to_owned()),
        None => Some(format!("{path}/")),
    }
}

/// Everything; the Server's authorizations decide.
fn default_http() -> api::HttpRoute {
    api::HttpRoute {
        metadata: Some(wire::default_meta("default")),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![http::Rule {
            matches: vec![wire::match_all()],
            filters: Vec::new(),
        }],
    }
}

/// The same for gRPC.
fn default_grpc() -> api::GrpcRoute {
    api::GrpcRoute {
        metadata: Some(wire::default_meta("default")),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![grpc::Rule {
            matches: vec![wire::grpc_match_all()],
            filters: Vec::new(),
        }],
    }
}

/// Inbound proxies have no filter for response headers; it is left out (contract 8.2).
fn http_filter(filter: &RouteFilter) -> Option<http::Filter> {
    let kind = match filter {
        RouteFilter::RequestHeaders(f) => {
            http::filter::Kind::RequestHeaderModifier(wire::request_headers(f))
        }
        RouteFilter::Redirect(f) => http::filter::Kind::Redirect(wire::redirect(f)),
        RouteFilter::ResponseHeaders(_) => return None,
    };
    Some(http::Filter { kind: Some(kind) })
}

/// The index refuses other filters on a GRPCRoute, because the proxies' API has none.
fn grpc_filter(filter: &RouteFilter) -> Option<grpc::Filter> {
    let kind = match filter {
        RouteFilter::RequestHeaders(f) => {
            grpc::filter::Kind::RequestHeaderModifier(wire::request_headers(f))
        }
        RouteFilter::Redirect(_) | RouteFilter::ResponseHeaders(_) => return None,
    };
    Some(grpc::Filter { kind: Some(kind) })
}
