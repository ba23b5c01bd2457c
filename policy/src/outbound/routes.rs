//! Owns HTTP routes as messages: rules, backends by weight, filters and time limits (contract 8.2, 10.1).

use linkerd2_proxy_api::{
    http_route::{HttpFailureInjector, Timeouts},
    outbound::{self as api, http_route as rules},
};
use weft_cluster::index::{Backend, Route, RouteFilter, RouteRule, RouteTimeouts};

use super::{Parent, backends};
use crate::wire;

impl Parent<'_> {
    /// The routes of this client; without any, everything goes to the Service.
    pub(super) fn http_routes(&self) -> Vec<api::HttpRoute> {
        let mut routes: Vec<_> = self
            .attached()
            .into_iter()
            .map(|route| self.http_route(route))
            .collect();
        if routes.is_empty() {
            let mut route = default_route(
                "http",
                backends::service(self.settings, self.name, self.port),
            );
            for rule in &mut route.rules {
                self.limit(rule, self.service.timeouts.unwrap_or_default());
            }
            routes.push(route);
        }
        routes
    }

    fn http_route(&self, route: &Route) -> api::HttpRoute {
        api::HttpRoute {
            metadata: Some(wire::route_meta(route)),
            hosts: wire::hosts(&route.hosts),
            rules: route
                .rules
                .iter()
                .map(|rule| self.rule(route, rule))
                .collect(),
        }
    }

    fn rule(&self, route: &Route, rule: &RouteRule) -> rules::Rule {
        let distribution = if rule.backends.is_empty() {
            first_available(backends::service(self.settings, self.name, self.port))
        } else {
            let backends = rule
                .backends
                .iter()
                .map(|backend| self.backend(backend))
                .collect();
            let random = rules::distribution::RandomAvailable { backends };
            rules::Distribution {
                kind: Some(rules::distribution::Kind::RandomAvailable(random)),
            }
        };
        let mut message = rules::Rule {
            matches: wire::matches(&rule.matches),
            filters: rule.filters.iter().map(filter).collect(),
            backends: Some(distribution),
            ..rules::Rule::default()
        };
        self.limit(&mut message, self.timeouts(route, rule));
        message
    }

    /// The route's annotations win over the rule's field (case H18); what the route says in either way replaces what the
    /// Service says as a whole.
    fn timeouts(&self, route: &Route, rule: &RouteRule) -> RouteTimeouts {
        let mut timeouts = route.timeouts.unwrap_or_default();
        timeouts.request = timeouts.request.or(rule.request_timeout);
        if timeouts == RouteTimeouts::default() {
            self.service.timeouts.unwrap_or_default()
        } else {
            timeouts
        }
    }

    #[expect(deprecated, reason = "older proxies read only requestTimeout")]
    fn limit(&self, rule: &mut rules::Rule, timeouts: RouteTimeouts) {
        rule.request_timeout = timeouts.request.and_then(wire::duration);
        rule.timeouts = Some(Timeouts {
            request: timeouts.request.and_then(wire::duration),
            response: timeouts.response.and_then(wire::duration),
            idle: timeouts.idle.and_then(wire::duration),
        });
        rule.allow_l5d_request_headers = self.settings.allow_l5d_request_headers;
    }

    fn backend(&self, backend: &Backend) -> rules::WeightedRouteBackend {
        let (kind, name) = (&*backend.kind, &backend.name);
        let (message, fault) = match backend.port {
            _ if kind != "Service" => {
                let fault = format!("backend {name} is a {kind}, only a Service can be one");
                (
                    backends::unreachable(wire::default_meta("invalid")),
                    Some(fault),
                )
            }
            None => {
                let fault = format!("backend Service {name} is given without a port");
                (
                    backends::unreachable(wire::default_meta("invalid")),
                    Some(fault),
                )
            }
            Some(port) if self.index.service(name).is_none() => {
                let fault = format!("backend Service {name} does not exist");
                (
                    backends::unreachable(wire::service_meta(name, port)),
                    Some(fault),
                )
            }
            Some(port) => (backends::service(self.settings, name, port), None),
        };
        let filters = match fault {
            Some(fault) => vec![fail(fault)],
            None => backend.filters.iter().map(filter).collect(),
        };
        let backend_message = rules::RouteBackend {
            backend: Some(message),
            filters,
            ..Default::default()
        };
        rules::WeightedRouteBackend {
            backend: Some(backend_message),
            weight: backend.weight,
        }
    }
}

/// Everything to one backend.
pub(super) fn default_route(name: &str, backend: api::Backend) -> api::HttpRoute {
    let rule = rules::Rule {
        matches: vec![wire::match_all()],
        backends: Some(first_available(backend)),
        ..rules::Rule::default()
    };
    api::HttpRoute {
        metadata: Some(wire::default_meta(name)),
        hosts: Vec::new(),
        rules: vec![rule],
    }
}

fn first_available(backend: api::Backend) -> rules::Distribution {
    let backends = vec![rules::RouteBackend {
        backend: Some(backend),
        ..rules::RouteBackend::default()
    }];
    let first = rules::distribution::FirstAvailable { backends };
    rules::Distribution {
        kind: Some(rules::distribution::Kind::FirstAvailable(first)),
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

/// A backend that cannot be reached takes its share of requests and fails them.
fn fail(message: String) -> rules::Filter {
    let injector = HttpFailureInjector {
        status: 500,
        message,
        ratio: None,
    };
    rules::Filter {
        kind: Some(rules::filter::Kind::FailureInjector(injector)),
    }
}
