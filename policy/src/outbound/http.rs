//! Owns HTTP routes as messages: rules, backends by weight, filters (contract 8.2).

use linkerd2_proxy_api::{
    http_route::HttpFailureInjector,
    outbound::{self as api, http_route as rules, proxy_protocol as protocol},
};
use weft_cluster::{
    index::{Route, RouteFilter, RouteMatch, RouteRule, RouteRules, RouteTimeouts},
    objects::traffic::TrafficPolicy,
};

use super::{backends::Weighted, parent::Parent, traffic};
use crate::wire;

impl Parent<'_> {
    pub(super) fn http1(&self, routes: &[&Route]) -> protocol::Http1 {
        protocol::Http1 {
            routes: self.http_routes(routes),
            failure_accrual: self.failure_accrual(),
        }
    }

    pub(super) fn http2(&self, routes: &[&Route]) -> protocol::Http2 {
        protocol::Http2 {
            routes: self.http_routes(routes),
            failure_accrual: self.failure_accrual(),
        }
    }

    /// A Service without routes gets everything; in an EgressNetwork its policy decides on what no route takes.
    fn http_routes(&self, routes: &[&Route]) -> Vec<api::HttpRoute> {
        let mut messages: Vec<_> = routes.iter().map(|route| self.http_route(route)).collect();
        let default = match self.egress_policy() {
            None if messages.is_empty() => Some(("http", Vec::new())),
            None => None,
            Some(TrafficPolicy::Allow) => Some(("http-egress-allow", Vec::new())),
            Some(TrafficPolicy::Deny) => {
                let filters = vec![fail(
                    403,
                    "the EgressNetwork denies this traffic".to_owned(),
                )];
                Some(("http-egress-deny", filters))
            }
        };
        if let Some((name, filters)) = default {
            let mut route = default_route(name, self.itself());
            for rule in &mut route.rules {
                rule.filters.clone_from(&filters);
                self.limit(rule, None, self.traffic().timeouts.unwrap_or_default());
            }
            messages.push(route);
        }
        messages
    }

    fn http_route(&self, route: &Route) -> api::HttpRoute {
        let given = match &route.rules {
            RouteRules::Http(rules) => rules.as_slice(),
            RouteRules::Grpc(_) | RouteRules::Stream(_) => &[],
        };
        let rules = given.iter().map(|rule| self.http_rule(route, rule));
        api::HttpRoute {
            metadata: Some(wire::route_meta(route)),
            hosts: wire::hosts(&route.hosts),
            rules: rules.collect(),
        }
    }

    fn http_rule(&self, route: &Route, rule: &RouteRule<RouteMatch>) -> rules::Rule {
        let kind = if rule.backends.is_empty() {
            first_available(self.itself())
        } else {
            let backends = self.weighted(&rule.backends).map(weighted).collect();
            rules::distribution::Kind::RandomAvailable(rules::distribution::RandomAvailable {
                backends,
            })
        };
        let mut message = rules::Rule {
            matches: wire::matches(&rule.matches),
            filters: rule.filters.iter().map(filter).collect(),
            backends: Some(rules::Distribution { kind: Some(kind) }),
            ..rules::Rule::default()
        };
        let timeouts = self.timeouts(route, rule.request_timeout);
        self.limit(&mut message, Some(route), timeouts);
        message
    }

    #[expect(deprecated, reason = "older proxies read only requestTimeout")]
    fn limit(&self, rule: &mut rules::Rule, route: Option<&Route>, timeouts: RouteTimeouts) {
        rule.request_timeout = timeouts.request.and_then(wire::duration);
        rule.timeouts = Some(traffic::timeouts(timeouts));
        rule.retry = self.http_retry(route);
        rule.allow_l5d_request_headers = self.settings.allow_l5d_request_headers;
    }
}

/// Everything to one backend.
pub(super) fn default_route(name: &str, backend: api::Backend) -> api::HttpRoute {
    let rule = rules::Rule {
        matches: vec![wire::match_all()],
        backends: Some(rules::Distribution {
            kind: Some(first_available(backend)),
        }),
        ..rules::Rule::default()
    };
    api::HttpRoute {
        metadata: Some(wire::default_meta(name)),
        hosts: Vec::new(),
        rules: vec![rule],
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
        Some(fault) => vec![fail(500, fault)],
        None => given.filters.iter().map(filter).collect(),
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

fn filter(filter: &RouteFilter) -> rules::Filter {
    let kind = match filter {
        RouteFilter::RequestHeaders(f) => {
            rules::filter::Kind::RequestHeaderModifier(wire::request_headers(f))
        }
        RouteFilter::ResponseHeaders(f) => {
            rules::filter::Kind::ResponseHeaderModifier(wire::response_headers(f))
        }
        RouteFilter::Redirect(f) => rules::filter::Kind::Redirect(wire::redirect(f)),
    };
    rules::Filter { kind: Some(kind) }
}

fn fail(status: u32, message: String) -> rules::Filter {
    let injector = HttpFailureInjector {
        status,
        message,
        ratio: None,
    };
    rules::Filter {
        kind: Some(rules::filter::Kind::FailureInjector(injector)),
    }
}
