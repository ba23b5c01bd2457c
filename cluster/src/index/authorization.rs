//! Owns authorizations and authentications as facts (contract 8.2); the policy crate puts them together per port.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use weft_core::{authorize::IdentitySuffix, name::Identity};

use super::{Created, Selector, notes::Notes, pod::created};
use crate::objects::{
    Kind, Name,
    policy::{self, Cidr, TypedRef},
};

const POLICY_GROUP: &str = "policy.linkerd.io";
const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// An AuthorizationPolicy.
#[derive(Clone, Debug, PartialEq)]
pub struct Authorization {
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// What it authorizes clients of.
    pub target: AuthorizationTarget,
    /// All of these must hold: at most one of identities and one of networks.
    pub required: Vec<AuthenticationRef>,
}

/// What an [`Authorization`] is for, in its own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationTarget {
    /// One Server.
    Server(Arc<str>),
    /// All Servers.
    Namespace,
    /// An HTTPRoute of either kind, or a GRPCRoute.
    Route(Kind, Arc<str>),
}

/// What an [`Authorization`] asks of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationRef {
    /// A MeshTLSAuthentication.
    MeshTls(Name),
    /// A NetworkAuthentication.
    Network(Name),
    /// A service account.
    ServiceAccount(Name),
}

/// A MeshTLSAuthentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// Names, `*.suffix` or `*`, as written.
    pub names: Vec<String>,
    /// Service accounts.
    pub accounts: Vec<Name>,
    /// Namespaces, for all their service accounts.
    pub namespaces: Vec<String>,
}

/// A network less some of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkMatch {
    /// The network.
    pub net: IpNet,
    /// What does not count of it.
    pub except: Vec<IpNet>,
}

impl NetworkMatch {
    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.net.contains(&address) && !self.except.iter().any(|net| net.contains(&address))
    }
}

/// A ServerAuthorization.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerAuthz {
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// Which Servers of its namespace.
    pub servers: ServerChoice,
    /// Where clients may be; `None` = the cluster's networks.
    pub networks: Option<Vec<NetworkMatch>>,
    /// Who clients must be.
    pub authentication: ClientAuthentication,
}

/// Chooses Servers.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerChoice {
    /// By name.
    Name(Arc<str>),
    /// By label.
    Selector(Selector),
}

/// Who clients of a [`ServerAuthz`] must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// Anybody.
    Unauthenticated,
    /// Anybody over mesh TLS.
    AnyTls,
    /// These.
    Identities(Identities),
}

pub(super) fn read_policy(
    policy: &policy::AuthorizationPolicy,
    name: &Name,
    notes: &mut Notes,
) -> Option<Authorization> {
    let target = read_target(&policy.spec.target_ref, name, notes)?;
    let required = read_required(
        &policy.spec.required_authentication_refs,
        &name.namespace,
        notes,
    )?;
    Some(Authorization {
        name: name.clone(),
        created: created(&policy.metadata),
        target,
        required,
    })
}

fn read_target(target: &TypedRef, name: &Name, notes: &mut Notes) -> Option<AuthorizationTarget> {
    let elsewhere = |ns: &str| ns != &*name.namespace;
    if target.namespace.as_deref().is_some_and(elsewhere) {
        let reason = "a policy's target is in its own namespace";
        return notes.refuse("spec.targetRef.namespace", reason);
    }
    let named: Arc<str> = target.name.as_str().into();
    match (core_group(&target.group), target.kind.as_str()) {
        (POLICY_GROUP, "Server") => Some(AuthorizationTarget::Server(named)),
        (POLICY_GROUP, "HTTPRoute") => {
            Some(AuthorizationTarget::Route(Kind::PolicyHttpRoute, named))
        }
        (GATEWAY_GROUP, "HTTPRoute") => {
            Some(AuthorizationTarget::Route(Kind::GatewayHttpRoute, named))
        }
        (GATEWAY_GROUP, "GRPCRoute") => Some(AuthorizationTarget::Route(Kind::GrpcRoute, named)),
        ("", "Namespace") if named == name.namespace => Some(AuthorizationTarget::Namespace),
        ("", "Namespace") => {
            notes.refuse("spec.targetRef.name", "must be the policy's own namespace")
        }
        (group, kind) => {
            let reason = format!(
                "{kind} of the group {group:?} is not a Server of {POLICY_GROUP}, an HTTPRoute, a GRPCRoute or a Namespace"
            );
            notes.refuse("spec.targetRef", reason)
        }
    }
}

fn read_required(
    references: &[TypedRef],
    namespace: &str,
    notes: &mut Notes,
) -> Option<Vec<AuthenticationRef>> {
    let mut required = Vec::with_capacity(references.len());
    for (index, reference) in references.iter().enumerate() {
        let Some(read) = authentication(reference, namespace) else {
            let field = format!("spec.requiredAuthenticationRefs[{index}]");
            let TypedRef { kind, group, .. } = reference;
            let reason = format!(
                "{kind} of the group {group:?} is not a MeshTLSAuthentication or NetworkAuthentication of {POLICY_GROUP}, \
                 or a ServiceAccount"
            );
            return notes.refuse(&field, reason);
        };
        required.push(read);
    }
    let network = |r: &&AuthenticationRef| matches!(r, AuthenticationRef::Network(_));
    let networks = required.iter().filter(network).count();
    if networks > 1 || required.len() - networks > 1 {
        let reason =
            "at most one MeshTLSAuthentication or ServiceAccount and one NetworkAuthentication";
        return notes.refuse("spec.requiredAuthenticationRefs", reason);
    }
    Some(required)
}

fn core_group(group: &str) -> &str {
    if group == "core" { "" } else { group }
}

fn authentication(reference: &TypedRef, namespace: &str) -> Option<AuthenticationRef> {
    let name = Name::new(
        reference.namespace.as_deref().unwrap_or(namespace),
        &reference.name,
    );
    Some(
        match (core_group(&reference.group), reference.kind.as_str()) {
            (POLICY_GROUP, "MeshTLSAuthentication") => AuthenticationRef::MeshTls(name),
            (POLICY_GROUP, "NetworkAuthentication") => AuthenticationRef::Network(name),
            ("", "ServiceAccount") => AuthenticationRef::ServiceAccount(name),
            _ => return None,
        },
    )
}

pub(super) fn read_identities(
    authentication: &policy::MeshTlsAuthentication,
    name: &Name,
    notes: &mut Notes,
) -> Option<Identities> {
    let spec = &authentication.spec;
    let names = spec.identities.clone().unwrap_or_default();
    check_names(&names, "spec.identities", notes)?;
    let mut read = Identities {
        names,
        ..Identities::default()
    };
    for (index, reference) in spec.identity_refs.iter().flatten().enumerate() {
        match (core_group(&reference.group), reference.kind.as_str()) {
            ("", "ServiceAccount") => {
                let namespace = reference.namespace.as_deref().unwrap_or(&name.namespace);
                read.accounts.push(Name::new(namespace, &reference.name));
            }
            ("", "Namespace") => {
                let suffix = format!("*.{}", reference.name);
                check_name(&suffix, &format!("spec.identityRefs[{index}].name"), notes)?;
                read.namespaces.push(reference.name.clone());
            }
            (group, kind) => {
                let field = format!("spec.identityRefs[{index}]");
                return notes.refuse(
                    &field,
                    format!("{kind}.{group} is not a ServiceAccount or Namespace"),
                );
            }
        }
    }
    if read == Identities::default() {
        return notes.refuse(
            "spec",
            "needs identities or identityRefs, and at least one of them",
        );
    }
    Some(read)
}

/// A proxy refuses a whole policy for one name that no certificate can carry.
fn check_name(name: &str, field: &str, notes: &mut Notes) -> Option<()> {
    let fault = if name.starts_with('*') {
        IdentitySuffix::parse(name).err().map(|e| e.to_string())
    } else {
        Identity::parse(name).err().map(|e| e.to_string())
    };
    match fault {
        None => Some(()),
        Some(fault) => notes.refuse(field, fault),
    }
}

fn check_names(names: &[String], field: &str, notes: &mut Notes) -> Option<()> {
    for (index, name) in names.iter().enumerate() {
        check_name(name, &format!("{field}[{index}]"), notes)?;
    }
    Some(())
}

pub(super) fn read_networks(
    networks: &[Cidr],
    field: &str,
    notes: &mut Notes,
) -> Option<Vec<NetworkMatch>> {
    let mut read = Vec::with_capacity(networks.len());
    for (index, network) in networks.iter().enumerate() {
        let Some(net) = parse_network(&network.cidr) else {
            let reason = format!(
                "{:?} is not a network such as 10.0.0.0/8 or an address",
                network.cidr
            );
            return notes.refuse(&format!("{field}[{index}].cidr"), reason);
        };
        let mut except = Vec::new();
        for text in network.except.iter().flatten() {
            match parse_network(text) {
                Some(part) if net.contains(&part) => except.push(part),
                Some(_) => {
                    return notes.refuse(
                        &format!("{field}[{index}].except"),
                        format!("{text:?} is not within {net}"),
                    );
                }
                None => {
                    return notes.refuse(
                        &format!("{field}[{index}].except"),
                        format!("{text:?} is not a network"),
                    );
                }
            }
        }
        read.push(NetworkMatch { net, except });
    }
    Some(read)
}

/// IPv4 in the form of IPv6 is IPv4, because that is how clients' addresses are compared (case R14).
fn parse_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let net: IpNet = text.parse().ok().or_else(address)?;
    let mapped = match net {
        IpNet::V6(net) => net
            .addr()
            .to_ipv4_mapped()
            .zip(net.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    let mapped = mapped.and_then(|(ip, prefix)| IpNet::new(ip.into(), prefix).ok());
    Some(mapped.unwrap_or(net))
}

pub(super) fn read_server_authorization(
    authz: &policy::ServerAuthorization,
    name: &Name,
    notes: &mut Notes,
) -> Option<ServerAuthz> {
    let spec = &authz.spec;
    let servers = match (&spec.server.name, &spec.server.selector) {
        (Some(server), None) => ServerChoice::Name(server.as_str().into()),
        (None, Some(selector)) => {
            ServerChoice::Selector(Selector::read(selector, "spec.server.selector", notes)?)
        }
        _ => return notes.refuse("spec.server", "exactly one of name and selector is needed"),
    };
    let networks = match &spec.client.networks {
        None => None,
        Some(networks) => Some(read_networks(networks, "spec.client.networks", notes)?),
    };
    if let Some(tls) = &spec.client.mesh_tls {
        check_names(&tls.identities, "spec.client.meshTLS.identities", notes)?;
    }
    let authentication = match (&spec.client.mesh_tls, spec.client.unauthenticated) {
        (None, true) => ClientAuthentication::Unauthenticated,
        (Some(tls), false) if tls.unauthenticated_tls => ClientAuthentication::AnyTls,
        (Some(tls), false) => ClientAuthentication::Identities(Identities {
            names: tls.identities.clone(),
            accounts: tls
                .service_accounts
                .iter()
                .map(|account| {
                    Name::new(
                        account.namespace.as_deref().unwrap_or(&name.namespace),
                        &account.name,
                    )
                })
                .collect(),
            namespaces: Vec::new(),
        }),
        _ => {
            return notes.refuse(
                "spec.client",
                "exactly one of unauthenticated and meshTLS is needed",
            );
        }
    };
    Some(ServerAuthz {
        name: name.clone(),
        created: created(&authz.metadata),
        servers,
        networks,
        authentication,
    })
}

#[cfg(test)]
mod tests;
