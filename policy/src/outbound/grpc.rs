//! Owns gRPC routes as messages: rules, backends by weight, filters (contract 8.2).

use linkerd2_proxy_api::{
    grpc_route::GrpcFailureInjector,
    outbound::{self as api, grpc_route as rules, proxy_protocol as protocol},
};
use weft_cluster::{
    index::{GrpcMatch, Route, RouteFilter, RouteRule, RouteRules, RouteTimeouts},
    objects::traffic::TrafficPolicy,
};

use super::{backends::Weighted, parent::Parent, traffic};
use crate::wire;

/// Codes of gRPC.
const PERMISSION_DENIED: u32 = 7;
const INTERNAL: u32 = 13;

impl Parent<'_> {
    /// What no route of an EgressNetwork takes, its policy decides on.
    pub(super) fn grpc(&self, routes: &[&Route]) -> protocol::Grpc {
        let mut messages: Vec<_> = routes.iter().map(|route| self.grpc_route(route)).collect();
        messages.extend(self.egress_policy().map(|policy| self.egress_route(policy)));
        protocol::Grpc {
            routes: messages,
            failure_accrual: self.failure_accrual(),
        }
    }

    fn egress_route(&self, policy: TrafficPolicy) -> api::GrpcRoute {
        let (name, filters) = match policy {
            TrafficPolicy::Allow => ("grpc-egress-allow", Vec::new()),
            TrafficPolicy::Deny => {
                let message = "the EgressNetwork denies this traffic".to_owned();
                ("grpc-egress-deny", vec![fail(PERMISSION_DENIED, message)])
            }
        };
        let kind = first_available(self.itself());
        let mut rule = rules::Rule {
            matches: vec![wire::grpc_match_all()],
            filters,
            backends: Some(rules::Distribution { kind: Some(kind) }),
            ..rules::Rule::default()
        };
        self.limit_grpc(&mut rule, None, self.traffic().timeouts.unwrap_or_default());
        api::GrpcRoute {
            metadata: Some(wire::default_meta(name)),
            hosts: Vec::new(),
            rules: vec![rule],
        }
    }

    fn grpc_route(&self, route: &Route) -> api::GrpcRoute {
        let given = match &route.rules {
            RouteRules::Grpc(rules) => rules.as_slice(),
            RouteRules::Http(_) | RouteRules::Stream(_) => &[],
        };
        let rules = given.iter().map(|rule| self.grpc_rule(route, rule));
        api::GrpcRoute {
            metadata: Some(wire::route_meta(route)),
            hosts: wire::hosts(&route.hosts),
            rules: rules.collect(),
        }
    }

    fn grpc_rule(&self, route: &Route, rule: &RouteRule<GrpcMatch>) -> rules::Rule {
        let kind = if rule.backends.is_empty() {
            first_available(self.itself())
        } else {
            let backends = self.weighted(&rule.backends).map(weighted).collect();
            rules::distribution::Kind::RandomAvailable(rules::distribution::RandomAvailable {
                backends,
            })
        };
        let mut message = rules::Rule {
            matches: wire::grpc_matches(&rule.matches),
            filters: rule.filters.iter().filter_map(filter).collect(),
            backends: Some(rules::Distribution { kind: Some(kind) }),
            ..rules::Rule::default()
        };
        let timeouts = self.timeouts(route, rule.request_timeout);
        self.limit_grpc(&mut message, Some(route), timeouts);
        message
    }

    #[expect(deprecated, reason = "older proxies read only requestTimeout")]
    fn limit_grpc(&self, rule: &mut rules::Rule, route: Option<&Route>, timeouts: RouteTimeouts) {
        rule.request_timeout = timeouts.request.and_then(wire::duration);
        rule.timeouts = Some(traffic::timeouts(timeouts));
        rule.retry = self.grpc_retry(route);
        rule.allow_l5d_request_headers = self.settings.allow_l5d_request_headers;
    }
}

fn first_available(backend: api::Backend) -> rules::distribution::Kind {
    let backends = vec![rules::RouteBackend {
        backend: Some(backend),
        ..rules::RouteBackend::default()
    }];
    rules::distribution::Kind::FirstAvailable(rules::distribution::FirstAvailable { backends })
}

/// A backend that cannot be reached takes its share of requests and fails them.
fn weighted(given: Weighted<'_>) -> rules::WeightedRouteBackend {
    let filters = match given.fault {
        Some(fault) => vec![fail(INTERNAL, fault)],
        None => given.filters.iter().filter_map(filter).collect(),
    };
    let backend = rules::RouteBackend {
        backend: Some(given.backend),
        filters,
        ..rules::RouteBackend::default()
    };
    rules::WeightedRouteBackend {
        backend: Some(backend),
        weight: given.weight,
    }
}

/// The index refuses other filters on a GRPCRoute, because the proxies' API has none.
fn filter(filter: &RouteFilter) -> Option<rules::Filter> {
    let kind = match filter {
        RouteFilter::RequestHeaders(f) => {
            rules::filter::Kind::RequestHeaderModifier(wire::request_headers(f))
        }
        RouteFilter::ResponseHeaders(_) | RouteFilter::Redirect(_) => return None,
    };
    Some(rules::Filter { kind: Some(kind) })
}

fn fail(code: u32, message: String) -> rules::Filter {
    let injector = GrpcFailureInjector {
        code,
        message,
        ratio: None,
    };
    rules::Filter {
        kind: Some(rules::filter::Kind::FailureInjector(injector)),
    }
}
