//! Owns who may connect: default policies, AuthorizationPolicies and ServerAuthorizations as messages (contract 8.2).

use ipnet::IpNet;
use linkerd2_proxy_api::{
    inbound::{self as api, Authn, Authz, Identity, IdentitySuffix, authn},
    meta::Metadata,
};
use weft_cluster::{
    DefaultPolicy,
    index::{
        AuthenticationRef, Authorization, AuthorizationTarget, ClientAuthentication, Identities,
        NetworkMatch, Route, Server, ServerChoice,
    },
};

use super::{Port, labels};
use crate::{settings::all_networks, wire};

pub(super) const GROUP: &str = "policy.linkerd.io";

impl Port<'_> {
    /// The authorizations of a default policy.
    pub(super) fn default_authorizations(&self, policy: DefaultPolicy) -> Vec<Authz> {
        let (authenticated, cluster_only) = match policy {
            DefaultPolicy::Deny => return Vec::new(),
            DefaultPolicy::Audit => (false, false),
            DefaultPolicy::Allow {
                authenticated,
                cluster_only,
            } => (authenticated, cluster_only),
        };
        let networks = if cluster_only {
            networks(&self.settings.mesh.cluster_networks)
        } else {
            networks(&all_networks())
        };
        // A suffix without parts is any identity.
        let any = vec![IdentitySuffix { parts: Vec::new() }];
        let authentication = if authenticated {
            clients(Vec::new(), any)
        } else {
            unauthenticated()
        };
        vec![default_authz(policy.as_str(), networks, authentication)]
    }

    /// Those of a Server: its policies, its older authorizations, its access policy.
    pub(super) fn server_authorizations(&self, server: &Server) -> Vec<Authz> {
        let namespace = &server.name.namespace;
        let policies = self
            .index
            .authorizations(namespace)
            .into_iter()
            .filter(|policy| match &policy.target {
                AuthorizationTarget::Server(name) => *name == server.name.name,
                AuthorizationTarget::Namespace => true,
                AuthorizationTarget::Route(..) => false,
            });
        let mut authorizations: Vec<Authz> = policies
            .filter_map(|policy| self.by_policy(policy))
            .collect();
        for authz in self.index.server_authorizations(namespace) {
            let chosen = match &authz.servers {
                ServerChoice::Name(name) => *name == server.name.name,
                ServerChoice::Selector(selector) => selector.matches(&server.labels),
            };
            if chosen {
                let authentication = match &authz.authentication {
                    ClientAuthentication::Unauthenticated => unauthenticated(),
                    ClientAuthentication::AnyTls => {
                        mesh_tls(authn::permit_mesh_tls::Clients::Unauthenticated(
                            authn::PermitUnauthenticated {},
                        ))
                    }
                    ClientAuthentication::Identities(identities) => self.identities(identities),
                };
                let networks = self.networks_or_cluster(authz.networks.as_deref());
                authorizations.push(named_authz(
                    "serverauthorization",
                    &authz.name.name,
                    networks,
                    authentication,
                ));
            }
        }
        authorizations.extend(self.default_authorizations(server.access_policy));
        authorizations
    }

    /// Those that a route adds to its Server's.
    pub(super) fn route_authorizations(&self, route: &Route) -> Vec<Authz> {
        let policies = self.index.authorizations(&route.name.namespace).into_iter();
        let target = AuthorizationTarget::Route(route.kind, route.name.name.clone());
        policies
            .filter(|policy| policy.target == target)
            .filter_map(|policy| self.by_policy(policy))
            .collect()
    }

    /// All that a policy requires; `None` when something it names does not exist, because then nobody can fulfil it.
    fn by_policy(&self, policy: &Authorization) -> Option<Authz> {
        let mut networks = None;
        let mut authentication = unauthenticated();
        for required in &policy.required {
            match required {
                AuthenticationRef::Network(name) => networks = Some(self.index.networks(name)?),
                AuthenticationRef::MeshTls(name) => {
                    authentication = self.identities(self.index.identities(name)?)
                }
                AuthenticationRef::ServiceAccount(name) => {
                    let accounts = vec![name.clone()];
                    authentication = self.identities(&Identities {
                        accounts,
                        ..Identities::default()
                    });
                }
            }
        }
        let networks = self.networks_or_cluster(networks);
        Some(named_authz(
            "authorizationpolicy",
            &policy.name.name,
            networks,
            authentication,
        ))
    }

    fn networks_or_cluster(&self, given: Option<&[NetworkMatch]>) -> Vec<api::Network> {
        match given {
            // An empty list lets nobody in; only an absent one means the cluster.
            Some(given) => given
                .iter()
                .map(|network| api::Network {
                    net: Some(network.net.into()),
                    except: network.except.iter().map(|net| (*net).into()).collect(),
                })
                .collect(),
            None => networks(&self.settings.mesh.cluster_networks),
        }
    }

    fn identities(&self, identities: &Identities) -> Authn {
        let mesh = &self.settings.mesh;
        let mut exact = Vec::new();
        let mut suffixes = Vec::new();
        let suffix = |name: &str| IdentitySuffix {
            parts: name
                .strip_suffix('.')
                .unwrap_or(name)
                .split('.')
                .map(str::to_owned)
                .collect(),
        };
        for name in &identities.names {
            match name.strip_prefix("*.") {
                _ if name == "*" => suffixes.push(IdentitySuffix { parts: Vec::new() }),
                Some(name) => suffixes.push(suffix(name)),
                None => exact.push(Identity { name: name.clone() }),
            }
        }
        // An account whose name cannot be in a certificate matches nobody.
        let accounts = identities
            .accounts
            .iter()
            .filter_map(|a| mesh.identity(&a.name, &a.namespace).ok());
        exact.extend(accounts.map(|identity| Identity {
            name: identity.as_str().to_owned(),
        }));
        suffixes.extend(
            identities
                .namespaces
                .iter()
                .map(|namespace| suffix(&mesh.namespace_suffix(namespace))),
        );
        clients(exact, suffixes)
    }
}

/// Anybody, in some networks, by a rule that is not an object.
pub(super) fn default_authz(
    name: &str,
    networks: Vec<api::Network>,
    authentication: Authn,
) -> Authz {
    authz(
        wire::default_meta(name),
        ("", "default", name),
        networks,
        authentication,
    )
}

fn named_authz(
    kind: &str,
    name: &str,
    networks: Vec<api::Network>,
    authentication: Authn,
) -> Authz {
    let metadata = wire::resource_meta(wire::resource(GROUP, kind, name));
    authz(metadata, (GROUP, kind, name), networks, authentication)
}

/// The labels are for older proxies, which do not read the metadata.
fn authz(
    metadata: Metadata,
    (group, kind, name): (&str, &str, &str),
    networks: Vec<api::Network>,
    authentication: Authn,
) -> Authz {
    Authz {
        networks,
        authentication: Some(authentication),
        labels: labels(group, kind, name),
        metadata: Some(metadata),
    }
}

/// Networks without exceptions.
pub(super) fn networks(networks: &[IpNet]) -> Vec<api::Network> {
    networks
        .iter()
        .map(|net| api::Network {
            net: Some((*net).into()),
            except: Vec::new(),
        })
        .collect()
}

/// Clients with or without a certificate.
pub(super) fn unauthenticated() -> Authn {
    Authn {
        permit: Some(authn::Permit::Unauthenticated(
            authn::PermitUnauthenticated {},
        )),
    }
}

fn clients(identities: Vec<Identity>, suffixes: Vec<IdentitySuffix>) -> Authn {
    let identities = authn::permit_mesh_tls::PermitClientIdentities {
        identities,
        suffixes,
    };
    mesh_tls(authn::permit_mesh_tls::Clients::Identities(identities))
}

fn mesh_tls(clients: authn::permit_mesh_tls::Clients) -> Authn {
    Authn {
        permit: Some(authn::Permit::MeshTls(authn::PermitMeshTls {
            clients: Some(clients),
        })),
    }
}
