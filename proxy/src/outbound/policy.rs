//! Owns `Policy`: what the control plane says of one destination, compiled so that a connection
//! or a request only looks up. Does not fetch it.

use super::backend::{Backend, Backends};
use super::balance::Traffic;
use crate::convert::{self, ConvertError, Meta};
use crate::http::filter::Filter;
use futures_util::stream::{FuturesUnordered, StreamExt};
use linkerd2_proxy_api::outbound as api;
use std::sync::Arc;
use weft_core::balance;
use weft_core::route::{self, GrpcRoute, RequestView, Route, Rule};

mod tls;

pub use tls::TlsRoutes;

/// What to do with connections to one destination.
pub struct Policy {
    /// The resource that the policy belongs to.
    pub parent: Meta,
    /// By protocol.
    pub protocol: Protocol,
}

/// How connections are handled (contract 4.2).
pub enum Protocol {
    /// The first bytes decide, within the time limit of the settings (contract 4.2).
    Detect {
        /// For HTTP/1.
        http1: Arc<HttpRoutes>,
        /// For HTTP/2.
        http2: Arc<HttpRoutes>,
        /// For all else.
        opaque: Arc<OpaqueRoute>,
    },
    /// HTTP/1 only.
    Http1(Arc<HttpRoutes>),
    /// HTTP/2 only, gRPC included.
    Http2(Arc<HttpRoutes>),
    /// Bytes.
    Opaque(Arc<OpaqueRoute>),
    /// TLS made by the application: bytes, by server name.
    Tls(Arc<TlsRoutes>),
    /// The policy was not understood: nothing passes.
    Invalid(Arc<str>),
}

/// Routes of requests.
pub enum HttpRoutes {
    /// By path, headers, query and method.
    Http(Vec<Route<RequestPolicy>>),
    /// By gRPC service and method.
    Grpc(Vec<GrpcRoute<RequestPolicy>>),
}

/// What a rule does with its requests.
pub struct RequestPolicy {
    /// Steps on the request and the response.
    pub filters: Vec<Filter>,
    /// Where it goes.
    pub backends: Distribution,
}

/// What is done with opaque connections.
pub struct OpaqueRoute {
    /// Why they are refused, if they are.
    pub refused: Option<&'static str>,
    /// Where they go.
    pub backends: Distribution,
}

/// How a rule spreads over backends (contract 4.2).
pub enum Distribution {
    /// Nowhere.
    Empty,
    /// The first that is ready.
    First(Vec<RuleBackend>),
    /// By weight among those that are ready.
    Random {
        /// The backends.
        backends: Vec<RuleBackend>,
        /// The weight of each.
        weights: Vec<u32>,
    },
}

/// A backend as one rule uses it.
pub struct RuleBackend {
    /// The backend.
    pub backend: Backend,
    /// Steps for requests that go there.
    pub filters: Vec<Filter>,
}

impl HttpRoutes {
    /// The rule for a request (contract 3.2).
    pub fn find(&self, request: &RequestView<'_>) -> Option<&RequestPolicy> {
        match self {
            Self::Http(routes) => route::find(routes, request).map(|(_, rule)| &rule.policy),
            Self::Grpc(routes) => route::find_grpc(routes, request).map(|(_, rule)| &rule.policy),
        }
    }
}

impl Distribution {
    /// Whether several backends are meant and none is ready.
    pub fn must_wait(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::First(backends) | Self::Random { backends, .. } => {
                backends.len() > 1 && !backends.iter().any(|b| b.backend.is_ready())
            }
        }
    }

    /// Waits for the first backend that is ready, or until all have failed fast: nothing is to
    /// wait for one backend while another is ready.
    pub async fn ready(&self) {
        let (backends, weights) = match self {
            Self::Empty => return,
            Self::First(backends) => (backends, None),
            Self::Random { backends, weights } => (backends, Some(weights)),
        };
        let meant = |at| {
            weights
                .and_then(|all| all.get(at))
                .is_none_or(|weight| *weight > 0)
        };
        let meant = backends.iter().enumerate().filter(|(at, _)| meant(*at));
        let mut waits: FuturesUnordered<_> = meant
            .filter_map(|(_, b)| match &b.backend {
                Backend::Service(service) => Some(service.balancer.ready()),
                Backend::Address(_) | Backend::Missing(_) => None,
            })
            .collect();
        while let Some(false) = waits.next().await {}
    }

    /// The backend for the next request or connection. When none is ready it is the one that
    /// would have been chosen if all were.
    pub fn choose(&self, random: u64) -> Option<&RuleBackend> {
        match self {
            Self::Empty => None,
            Self::First(backends) => backends
                .iter()
                .find(|b| b.backend.is_ready())
                .or(backends.first()),
            Self::Random { backends, weights } => {
                if let [only] = backends.as_slice() {
                    return Some(only);
                }
                let ready: Vec<u32> = backends
                    .iter()
                    .zip(weights)
                    .map(|(b, w)| if b.backend.is_ready() { *w } else { 0 })
                    .collect();
                let chosen = balance::weighted(&ready, random)
                    .or_else(|| balance::weighted(weights, random))?;
                backends.get(chosen)
            }
        }
    }
}

/// Reads and compiles policies.
pub struct Compiler<'b> {
    /// Where backends come from; equal ones are shared.
    pub backends: &'b Backends,
}

impl Compiler<'_> {
    /// Compiles a policy. A part that is not understood makes all of it invalid (contract 4.2).
    ///
    /// # Errors
    /// The part.
    pub fn policy(&self, policy: api::OutboundPolicy) -> Result<Policy, ConvertError> {
        use api::proxy_protocol::Kind;
        let parent = convert::meta(policy.metadata)?;
        let kind = policy.protocol.and_then(|p| p.kind);
        let protocol = match kind.ok_or(ConvertError::Missing("protocol"))? {
            Kind::Detect(detect) => self.detect(&parent, detect)?,
            Kind::Http1(http) => Protocol::Http1(self.http(&parent, http.routes)?),
            Kind::Http2(http) => Protocol::Http2(self.http(&parent, http.routes)?),
            Kind::Grpc(grpc) => Protocol::Http2(self.grpc(&parent, grpc.routes)?),
            Kind::Opaque(opaque) => Protocol::Opaque(self.opaque(&parent, opaque.routes)?),
            Kind::Tls(tls) => Protocol::Tls(self.tls(&parent, tls.routes)?),
        };
        Ok(Policy { parent, protocol })
    }

    fn detect(
        &self,
        parent: &Meta,
        detect: api::proxy_protocol::Detect,
    ) -> Result<Protocol, ConvertError> {
        let opaque = detect
            .opaque
            .ok_or(ConvertError::Missing("detect.opaque"))?;
        let http1 = detect.http1.ok_or(ConvertError::Missing("detect.http1"))?;
        let http2 = detect.http2.ok_or(ConvertError::Missing("detect.http2"))?;
        Ok(Protocol::Detect {
            http1: self.http(parent, http1.routes)?,
            http2: self.http(parent, http2.routes)?,
            opaque: self.opaque(parent, opaque.routes)?,
        })
    }

    fn http(
        &self,
        parent: &Meta,
        routes: Vec<api::HttpRoute>,
    ) -> Result<Arc<HttpRoutes>, ConvertError> {
        let route = |route: api::HttpRoute| {
            convert::meta(route.metadata)?;
            let rules = route.rules.into_iter().map(|r| self.http_rule(parent, r));
            Ok(Route {
                hosts: convert::hosts(route.hosts)?,
                rules: rules.collect::<Result<_, _>>()?,
            })
        };
        let routes: Result<_, ConvertError> = routes.into_iter().map(route).collect();
        Ok(Arc::new(HttpRoutes::Http(routes?)))
    }

    fn http_rule(
        &self,
        parent: &Meta,
        rule: api::http_route::Rule,
    ) -> Result<Rule<RequestPolicy>, ConvertError> {
        let matches = rule.matches.into_iter().map(convert::request_match);
        let matches: Vec<_> = matches.collect::<Result<_, _>>()?;
        let filters = rule.filters.into_iter().map(|f| http_filter(f, &matches));
        Ok(Rule {
            policy: RequestPolicy {
                filters: filters.collect::<Result<_, _>>()?,
                backends: self.http_backends(parent, rule.backends, &matches)?,
            },
            matches,
        })
    }

    fn http_backends(
        &self,
        parent: &Meta,
        distribution: Option<api::http_route::Distribution>,
        matches: &[route::RequestMatch],
    ) -> Result<Distribution, ConvertError> {
        use api::http_route::distribution::Kind;
        let backend = |b: api::http_route::RouteBackend| {
            let filters = b.filters.into_iter().map(|f| http_filter(f, matches));
            Ok(RuleBackend {
                filters: filters.collect::<Result<_, _>>()?,
                backend: self.backends.read(parent, b.backend, Traffic::Http)?,
            })
        };
        match distribution.and_then(|d| d.kind) {
            None => Err(ConvertError::Missing("backends")),
            Some(Kind::Empty(_)) => Ok(Distribution::Empty),
            Some(Kind::FirstAvailable(first)) => first_available(first.backends, backend),
            Some(Kind::RandomAvailable(random)) => random_available(
                random.backends.into_iter().map(|b| (b.backend, b.weight)),
                backend,
            ),
        }
    }

    fn grpc(
        &self,
        parent: &Meta,
        routes: Vec<api::GrpcRoute>,
    ) -> Result<Arc<HttpRoutes>, ConvertError> {
        let route = |route: api::GrpcRoute| {
            convert::meta(route.metadata)?;
            let rules = route.rules.into_iter().map(|r| self.grpc_rule(parent, r));
            Ok(GrpcRoute {
                hosts: convert::hosts(route.hosts)?,
                rules: rules.collect::<Result<_, _>>()?,
            })
        };
        let routes: Result<_, ConvertError> = routes.into_iter().map(route).collect();
        Ok(Arc::new(HttpRoutes::Grpc(routes?)))
    }

    fn grpc_rule(
        &self,
        parent: &Meta,
        rule: api::grpc_route::Rule,
    ) -> Result<route::GrpcRule<RequestPolicy>, ConvertError> {
        use api::grpc_route::distribution::Kind;
        let backend = |b: api::grpc_route::RouteBackend| {
            let filters = b.filters.into_iter().map(grpc_filter);
            Ok(RuleBackend {
                filters: filters.collect::<Result<_, _>>()?,
                backend: self.backends.read(parent, b.backend, Traffic::Http)?,
            })
        };
        let backends = match rule.backends.and_then(|d| d.kind) {
            None => return Err(ConvertError::Missing("backends")),
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(first)) => first_available(first.backends, backend)?,
            Some(Kind::RandomAvailable(random)) => random_available(
                random.backends.into_iter().map(|b| (b.backend, b.weight)),
                backend,
            )?,
        };
        let matches = rule.matches.into_iter().map(convert::grpc_match);
        let filters = rule.filters.into_iter().map(grpc_filter);
        Ok(route::GrpcRule {
            matches: matches.collect::<Result<_, _>>()?,
            policy: RequestPolicy {
                filters: filters.collect::<Result<_, _>>()?,
                backends,
            },
        })
    }

    /// An opaque protocol has at most one route, and that exactly one rule (contract 4.2).
    fn opaque(
        &self,
        parent: &Meta,
        routes: Vec<api::OpaqueRoute>,
    ) -> Result<Arc<OpaqueRoute>, ConvertError> {
        let mut routes = routes.into_iter();
        let (Some(route), None) = (routes.next(), routes.next()) else {
            return Err(convert::invalid("opaque.routes", "there must be one"));
        };
        convert::meta(route.metadata)?;
        let mut rules = route.rules.into_iter();
        let (Some(rule), None) = (rules.next(), rules.next()) else {
            return Err(convert::invalid("opaque.rules", "there must be one"));
        };
        Ok(Arc::new(self.opaque_rule(parent, rule)?))
    }

    fn opaque_rule(
        &self,
        parent: &Meta,
        rule: api::opaque_route::Rule,
    ) -> Result<OpaqueRoute, ConvertError> {
        use api::opaque_route::{distribution::Kind, filter};
        let refused = match rule.filters.into_iter().next().map(|f| f.kind) {
            None => None,
            Some(Some(filter::Kind::Forbidden(_))) => Some("forbidden"),
            Some(Some(filter::Kind::Invalid(_)) | None) => Some("invalid_policy"),
        };
        let backend = |b: api::opaque_route::RouteBackend| {
            Ok(RuleBackend {
                filters: Vec::new(),
                backend: self.backends.read(parent, b.backend, Traffic::Tcp)?,
            })
        };
        let backends = match rule.backends.and_then(|d| d.kind) {
            None => return Err(ConvertError::Missing("backends")),
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(first)) => first_available(first.backends, backend)?,
            Some(Kind::RandomAvailable(random)) => random_available(
                random.backends.into_iter().map(|b| (b.backend, b.weight)),
                backend,
            )?,
        };
        Ok(OpaqueRoute { refused, backends })
    }
}

fn http_filter(
    filter: api::http_route::Filter,
    matches: &[route::RequestMatch],
) -> Result<Filter, ConvertError> {
    use api::http_route::filter::Kind;
    match filter.kind.ok_or(ConvertError::Missing("filter"))? {
        Kind::FailureInjector(f) => convert::http_failure(f),
        Kind::RequestHeaderModifier(f) => convert::request_headers(f),
        Kind::ResponseHeaderModifier(f) => convert::response_headers(f),
        Kind::Redirect(f) => convert::redirect(f, matches),
    }
}

fn grpc_filter(filter: api::grpc_route::Filter) -> Result<Filter, ConvertError> {
    use api::grpc_route::filter::Kind;
    match filter.kind.ok_or(ConvertError::Missing("filter"))? {
        Kind::FailureInjector(f) => convert::grpc_failure(f),
        Kind::RequestHeaderModifier(f) => convert::request_headers(f),
    }
}

fn first_available<B>(
    backends: Vec<B>,
    read: impl Fn(B) -> Result<RuleBackend, ConvertError>,
) -> Result<Distribution, ConvertError> {
    if backends.is_empty() {
        return Err(ConvertError::Missing("first_available.backends"));
    }
    let backends: Result<_, _> = backends.into_iter().map(read).collect();
    Ok(Distribution::First(backends?))
}

fn random_available<B>(
    weighted: impl Iterator<Item = (Option<B>, u32)>,
    read: impl Fn(B) -> Result<RuleBackend, ConvertError>,
) -> Result<Distribution, ConvertError> {
    let mut backends = Vec::new();
    let mut weights = Vec::new();
    for (backend, weight) in weighted {
        backends.push(read(backend.ok_or(ConvertError::Missing("backend"))?)?);
        weights.push(weight);
    }
    if backends.is_empty() {
        return Err(ConvertError::Missing("random_available.backends"));
    }
    Ok(Distribution::Random { backends, weights })
}
