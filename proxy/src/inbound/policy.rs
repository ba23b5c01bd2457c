//! Owns `ServerPolicy`: what the control plane says of one inbound port, compiled so that a
//! connection or a request only looks up. Does not fetch it.

use crate::convert::{self, ConvertError, Meta, invalid};
use crate::http::filter::Filter;
use crate::settings::DefaultPolicy;
use ipnet::IpNet;
use linkerd2_proxy_api::inbound as api;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use weft_core::authorize::{Authentication, Authorization, IdentitySuffix, Network};
use weft_core::name::Identity;
use weft_core::route::{self, GrpcRoute, GrpcRule, RequestView, Route, Rule};

/// Time for the first bytes unless the policy says otherwise (contract 3.2).
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to do with connections to one port.
#[derive(Debug)]
pub struct ServerPolicy {
    /// The Server resource, or the default policy.
    pub server: Meta,
    /// How connections are handled.
    pub protocol: Protocol,
    /// Who may connect, where connections are what is authorized.
    pub authorizations: Vec<Authorization<Meta>>,
    routes: Vec<RouteAccess>,
    rules: Rules,
}

/// How connections are handled (contract 3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The first bytes decide.
    Detect {
        /// Time for the first bytes.
        timeout: Duration,
    },
    /// HTTP/1.
    Http1,
    /// HTTP/2, gRPC included.
    Http2,
    /// Bytes, TLS not even looked for.
    Opaque,
    /// The application's own TLS.
    Tls,
    /// The policy was not understood: every request fails.
    Invalid(Arc<str>),
}

/// Who may use a route.
#[derive(Debug)]
pub struct RouteAccess {
    /// The route resource, or a default.
    pub route: Meta,
    /// The route's own authorizations and the server's.
    pub authorizations: Vec<Authorization<Meta>>,
}

#[derive(Debug)]
enum Rules {
    Http(Vec<Route<Vec<Filter>>>),
    Grpc(Vec<GrpcRoute<Vec<Filter>>>),
}

impl ServerPolicy {
    /// The route of a request (contract 3.2): who may use it, and its filters.
    pub fn find(&self, request: &RequestView<'_>) -> Option<(&RouteAccess, &[Filter])> {
        let (index, filters) = match &self.rules {
            Rules::Http(routes) => {
                let (index, rule) = route::find(routes, request)?;
                (index, &rule.policy)
            }
            Rules::Grpc(routes) => {
                let (index, rule) = route::find_grpc(routes, request)?;
                (index, &rule.policy)
            }
        };
        Some((self.routes.get(index)?, filters))
    }

    /// What holds until the control plane has spoken.
    pub fn default(policy: DefaultPolicy, cluster: &[IpNet], opaque: bool) -> Self {
        let protocol = if opaque {
            Protocol::Opaque
        } else {
            Protocol::Detect {
                timeout: DETECT_TIMEOUT,
            }
        };
        let server = Meta::default_named(policy.as_str());
        let authorizations = default_authorizations(policy, cluster, &server);
        Self::build(server, protocol, authorizations, Vec::new(), None)
    }

    /// Reads a policy. A part that is not understood makes all of it invalid.
    pub fn read(server: api::Server) -> Self {
        let labels = server_meta(&server.labels);
        Self::try_read(server).unwrap_or_else(|error| {
            tracing::warn!(%error, server = %labels.name,
                "the policy is not valid: refusing its traffic");
            let protocol = Protocol::Invalid(error.to_string().into());
            Self::build(labels, protocol, Vec::new(), Vec::new(), None)
        })
    }

    fn try_read(server: api::Server) -> Result<Self, ConvertError> {
        use api::proxy_protocol::Kind;
        let meta = server_meta(&server.labels);
        let own = authorizations(server.authorizations)?;
        let kind = server.protocol.and_then(|p| p.kind);
        let mut limit = None;
        let (protocol, access, rules) = match kind.ok_or(ConvertError::Missing("protocol"))? {
            Kind::Detect(detect) => {
                let timeout = match detect.timeout {
                    None => DETECT_TIMEOUT,
                    Some(timeout) => convert::duration("detect.timeout", timeout)?,
                };
                limit = detect.http_local_rate_limit;
                let (access, rules) = http_routes(detect.http_routes)?;
                (Protocol::Detect { timeout }, access, Some(rules))
            }
            Kind::Http1(http) => {
                limit = http.local_rate_limit;
                let (access, rules) = http_routes(http.routes)?;
                (Protocol::Http1, access, Some(rules))
            }
            Kind::Http2(http) => {
                limit = http.local_rate_limit;
                let (access, rules) = http_routes(http.routes)?;
                (Protocol::Http2, access, Some(rules))
            }
            Kind::Grpc(grpc) => {
                let (access, rules) = grpc_routes(grpc.routes)?;
                (Protocol::Http2, access, Some(rules))
            }
            Kind::Opaque(_) => (Protocol::Opaque, Vec::new(), None),
            Kind::Tls(_) => (Protocol::Tls, Vec::new(), None),
        };
        if limit.is_some_and(|l| l.total.is_some() || l.identity.is_some()) {
            tracing::warn!(server = %meta.name, "local rate limits are not enforced by this version");
        }
        Ok(Self::build(meta, protocol, own, access, rules))
    }

    /// Adds the proxy's own authorization for loopback, the server's authorizations to each
    /// route, and a route for everything where there is none (contract 3.2).
    fn build(
        server: Meta,
        protocol: Protocol,
        mut authorizations: Vec<Authorization<Meta>>,
        mut routes: Vec<RouteAccess>,
        rules: Option<Rules>,
    ) -> Self {
        authorizations.push(loopback());
        for access in &mut routes {
            access.authorizations.extend(authorizations.iter().cloned());
        }
        let rules = match rules {
            Some(rules) if !routes.is_empty() => rules,
            _ => {
                routes = vec![RouteAccess {
                    route: Meta::default_named("default"),
                    authorizations: authorizations.clone(),
                }];
                Rules::Http(vec![Route {
                    hosts: Vec::new(),
                    rules: vec![Rule {
                        matches: Vec::new(),
                        policy: Vec::new(),
                    }],
                }])
            }
        };
        Self {
            server,
            protocol,
            authorizations,
            routes,
            rules,
        }
    }
}

fn loopback() -> Authorization<Meta> {
    let networks = [
        IpNet::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST)),
        IpNet::from(std::net::IpAddr::from(Ipv6Addr::LOCALHOST)),
    ];
    Authorization {
        networks: networks.into_iter().map(Network::from).collect(),
        authentication: Authentication::Unauthenticated,
        meta: Meta::default_named("localhost"),
    }
}

fn default_authorizations(
    policy: DefaultPolicy,
    cluster: &[IpNet],
    meta: &Meta,
) -> Vec<Authorization<Meta>> {
    use DefaultPolicy as P;
    let everywhere = || {
        vec![
            Network::from(IpNet::from(ipnet::Ipv4Net::default())),
            Network::from(IpNet::from(ipnet::Ipv6Net::default())),
        ]
    };
    let (networks, authenticated) = match policy {
        P::Deny => return Vec::new(),
        P::AllUnauthenticated | P::Audit => (everywhere(), false),
        P::AllAuthenticated => (everywhere(), true),
        P::ClusterUnauthenticated => (cluster.iter().copied().map(Network::from).collect(), false),
        P::ClusterAuthenticated => (cluster.iter().copied().map(Network::from).collect(), true),
    };
    let authentication = if authenticated {
        Authentication::TlsAuthenticated {
            identities: Default::default(),
            suffixes: vec![any_identity()],
        }
    } else {
        Authentication::Unauthenticated
    };
    vec![Authorization {
        networks,
        authentication,
        meta: meta.clone(),
    }]
}

fn any_identity() -> IdentitySuffix {
    IdentitySuffix::new::<&str>(&[]).expect("no labels are valid labels")
}

fn server_meta(labels: &HashMap<String, String>) -> Meta {
    let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
    Meta {
        group: label("group").into(),
        kind: label("kind").into(),
        name: label("name").into(),
        ..Meta::default()
    }
}

fn authorizations(authzs: Vec<api::Authz>) -> Result<Vec<Authorization<Meta>>, ConvertError> {
    authzs.into_iter().map(authorization).collect()
}

fn authorization(authz: api::Authz) -> Result<Authorization<Meta>, ConvertError> {
    let meta = match authz.metadata {
        Some(metadata) => convert::meta(Some(metadata))?,
        None => server_meta(&authz.labels),
    };
    let networks: Result<Vec<_>, ConvertError> = authz.networks.into_iter().map(network).collect();
    Ok(Authorization {
        networks: networks?,
        authentication: authentication(authz.authentication)?,
        meta,
    })
}

fn network(network: api::Network) -> Result<Network, ConvertError> {
    let read = |net| IpNet::try_from(net).map_err(|e| invalid("network", e));
    let net = network.net.ok_or(ConvertError::Missing("network"))?;
    Ok(Network {
        net: read(net)?,
        except: network
            .except
            .into_iter()
            .map(read)
            .collect::<Result<_, _>>()?,
    })
}

fn authentication(authn: Option<api::Authn>) -> Result<Authentication, ConvertError> {
    use api::authn::{Permit, permit_mesh_tls::Clients};
    match authn.and_then(|a| a.permit) {
        None => Err(ConvertError::Missing("authentication")),
        Some(Permit::Unauthenticated(_)) => Ok(Authentication::Unauthenticated),
        Some(Permit::MeshTls(tls)) => match tls.clients {
            None => Err(ConvertError::Missing("authentication.clients")),
            Some(Clients::Unauthenticated(_)) => Ok(Authentication::TlsUnauthenticated),
            Some(Clients::Identities(clients)) => {
                let identity = |id: api::Identity| {
                    Identity::parse(&id.name).map_err(|e| invalid("identity", e))
                };
                let suffix = |s: api::IdentitySuffix| {
                    IdentitySuffix::new(&s.parts).map_err(|e| invalid("identity suffix", e))
                };
                let identities = clients.identities.into_iter().map(identity);
                let suffixes = clients.suffixes.into_iter().map(suffix);
                Ok(Authentication::TlsAuthenticated {
                    identities: identities.collect::<Result<_, _>>()?,
                    suffixes: suffixes.collect::<Result<_, _>>()?,
                })
            }
        },
    }
}

fn http_routes(routes: Vec<api::HttpRoute>) -> Result<(Vec<RouteAccess>, Rules), ConvertError> {
    let mut access = Vec::with_capacity(routes.len());
    let mut rules = Vec::with_capacity(routes.len());
    for route in routes {
        access.push(RouteAccess {
            route: convert::meta(route.metadata)?,
            authorizations: authorizations(route.authorizations)?,
        });
        rules.push(Route {
            hosts: convert::hosts(route.hosts)?,
            rules: route
                .rules
                .into_iter()
                .map(http_rule)
                .collect::<Result<_, _>>()?,
        });
    }
    Ok((access, Rules::Http(rules)))
}

fn http_rule(rule: api::http_route::Rule) -> Result<Rule<Vec<Filter>>, ConvertError> {
    use api::http_route::filter::Kind;
    let matches = rule.matches.into_iter().map(convert::request_match);
    let matches: Vec<_> = matches.collect::<Result<_, _>>()?;
    let filter = |f: api::http_route::Filter| match f.kind {
        None => Err(ConvertError::Missing("filter")),
        Some(Kind::FailureInjector(f)) => convert::http_failure(f),
        Some(Kind::RequestHeaderModifier(f)) => convert::request_headers(f),
        Some(Kind::Redirect(f)) => convert::redirect(f, &matches),
    };
    let filters = rule.filters.into_iter().map(filter);
    Ok(Rule {
        policy: filters.collect::<Result<_, _>>()?,
        matches,
    })
}

fn grpc_routes(routes: Vec<api::GrpcRoute>) -> Result<(Vec<RouteAccess>, Rules), ConvertError> {
    let mut access = Vec::with_capacity(routes.len());
    let mut rules = Vec::with_capacity(routes.len());
    for route in routes {
        access.push(RouteAccess {
            route: convert::meta(route.metadata)?,
            authorizations: authorizations(route.authorizations)?,
        });
        rules.push(GrpcRoute {
            hosts: convert::hosts(route.hosts)?,
            rules: route
                .rules
                .into_iter()
                .map(grpc_rule)
                .collect::<Result<_, _>>()?,
        });
    }
    Ok((access, Rules::Grpc(rules)))
}

fn grpc_rule(rule: api::grpc_route::Rule) -> Result<GrpcRule<Vec<Filter>>, ConvertError> {
    use api::grpc_route::filter::Kind;
    let filter = |f: api::grpc_route::Filter| match f.kind {
        None => Err(ConvertError::Missing("filter")),
        Some(Kind::FailureInjector(f)) => convert::grpc_failure(f),
        Some(Kind::RequestHeaderModifier(f)) => convert::request_headers(f),
    };
    let matches = rule.matches.into_iter().map(convert::grpc_match);
    let filters = rule.filters.into_iter().map(filter);
    Ok(GrpcRule {
        matches: matches.collect::<Result<_, _>>()?,
        policy: filters.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests;
