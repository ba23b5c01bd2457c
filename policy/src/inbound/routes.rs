//! Owns the HTTP routes of an inbound port: attached HTTPRoutes, or the default and the probe route (contract 8.2).

use linkerd2_proxy_api::{
    grpc_route,
    http_route::{HttpRouteMatch, PathMatch, path_match},
    inbound::{self as api, grpc_route::Rule as GrpcRule, http_route as rules},
};
use weft_cluster::index::{Route, RouteFilter, RouteParentKind, Server};

use super::{
    Port,
    authorizations::{default_authz, networks, unauthenticated},
};
use crate::wire;

impl Port<'_> {
    /// The routes attached to a Server, oldest first; without any the default ones.
    pub(super) fn routes(&self, server: Option<&Server>) -> Vec<api::HttpRoute> {
        let mut routes = Vec::new();
        if let Some(server) = server {
            let attached = self.index.routes(RouteParentKind::Server, &server.name);
            let accepted = attached
                .into_iter()
                .filter(|route| self.accepted(route, server));
            routes.extend(accepted.map(|route| self.route(route)));
        }
        if routes.is_empty() {
            routes.push(default_route());
            routes.extend(self.probe_route());
        }
        routes
    }

    fn accepted(&self, route: &Route, server: &Server) -> bool {
        let parents = route
            .parents
            .iter()
            .filter(|p| p.kind == RouteParentKind::Server && p.name == server.name);
        // A Server takes routes of its own namespace only.
        route.name.namespace == server.name.namespace
            && parents
                .into_iter()
                .any(|parent| parent.accepted || self.settings.mesh.assume_accepted)
    }

    fn route(&self, route: &Route) -> api::HttpRoute {
        let rules = route.rules.iter().map(|rule| rules::Rule {
            matches: wire::matches(&rule.matches),
            filters: rule.filters.iter().filter_map(filter).collect(),
        });
        let metadata = wire::resource_meta(wire::resource(
            route.group.as_str(),
            "HTTPRoute",
            &route.name.name,
        ));
        api::HttpRoute {
            metadata: Some(metadata),
            hosts: wire::hosts(&route.hosts),
            authorizations: self.route_authorizations(route),
            rules: rules.collect(),
        }
    }

    /// Lets the kubelet's probes in without an identity.
    fn probe_route(&self) -> Option<api::HttpRoute> {
        let paths = self.pod.probes.get(&self.number)?;
        let matches = paths.iter().map(|path| HttpRouteMatch {
            path: Some(PathMatch {
                kind: Some(path_match::Kind::Exact(path.clone())),
            }),
            method: Some(wire::method("GET")),
            ..HttpRouteMatch::default()
        });
        let networks = networks(&self.settings.probe_networks);
        Some(api::HttpRoute {
            metadata: Some(wire::default_meta("probe")),
            hosts: Vec::new(),
            authorizations: vec![default_authz("probe", networks, unauthenticated())],
            rules: vec![rules::Rule {
                matches: matches.collect(),
                filters: Vec::new(),
            }],
        })
    }
}

/// Everything; the Server's authorizations decide.
fn default_route() -> api::HttpRoute {
    api::HttpRoute {
        metadata: Some(wire::default_meta("default")),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![rules::Rule {
            matches: vec![wire::match_all()],
            filters: Vec::new(),
        }],
    }
}

/// The same for gRPC: empty names match all.
pub(super) fn default_grpc() -> api::GrpcRoute {
    let rpc = Some(grpc_route::GrpcRpcMatch::default());
    let matches = vec![grpc_route::GrpcRouteMatch {
        rpc,
        headers: Vec::new(),
    }];
    api::GrpcRoute {
        metadata: Some(wire::default_meta("default")),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![GrpcRule {
            matches,
            filters: Vec::new(),
        }],
    }
}

/// Inbound proxies have no filter for response headers; it is left out (contract 8.2).
fn filter(filter: &RouteFilter) -> Option<rules::Filter> {
    let kind = match filter {
        RouteFilter::RequestHeaders(f) => {
            rules::filter::Kind::RequestHeaderModifier(wire::request_headers(f))
        }
        RouteFilter::Redirect(f) => rules::filter::Kind::Redirect(wire::redirect(f)),
        RouteFilter::ResponseHeaders(_) => return None,
    };
    Some(rules::Filter { kind: Some(kind) })
}
