//! Who may connect: client networks times client authentication, the first match wins (contract 3.2).
//! Does not pick the policy that applies; that is done by port and by route.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

use crate::name::{self, Identity};

/// Client addresses: those in `net` that are in no `except`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The addresses allowed.
    pub net: IpNet,
    /// The addresses taken out again.
    pub except: Vec<IpNet>,
}

impl Network {
    /// Whether the client is inside. An IPv4-mapped IPv6 address counts as the IPv4 address it stands for.
    pub fn contains(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        covers(&self.net, client) && !self.except.iter().any(|except| covers(except, client))
    }
}

impl From<IpNet> for Network {
    fn from(net: IpNet) -> Self {
        Self {
            net,
            except: Vec::new(),
        }
    }
}

/// `client` is canonical, so a network of mapped addresses (`::ffff:0:0/96` and inside) is compared as the IPv4 network it means.
fn covers(net: &IpNet, client: IpAddr) -> bool {
    match (net, client) {
        (IpNet::V6(v6), IpAddr::V4(client)) => v6
            .prefix_len()
            .checked_sub(96)
            .zip(v6.addr().to_ipv4_mapped())
            .and_then(|(prefix, addr)| Ipv4Net::new(addr, prefix).ok())
            .is_some_and(|v4: Ipv4Net| v4.contains::<&Ipv4Addr>(&client)),
        _ => net.contains(&client),
    }
}

/// How the client must have proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Not at all; plaintext is fine.
    Unauthenticated,
    /// Any client whose TLS ends at this proxy, with or without a certificate.
    TlsUnauthenticated,
    /// A client with a certificate of one of these names.
    TlsAuthenticated {
        /// Names that must be equal.
        identities: BTreeSet<Identity>,
        /// Ends of DNS names.
        suffixes: Vec<IdentitySuffix>,
    },
}

impl Authentication {
    fn permits(&self, tls: ClientTls<'_>) -> bool {
        match (self, tls) {
            (Self::Unauthenticated, _) => true,
            (Self::TlsUnauthenticated, ClientTls::Anonymous | ClientTls::Identified(_)) => true,
            (
                Self::TlsAuthenticated {
                    identities,
                    suffixes,
                },
                ClientTls::Identified(id),
            ) => identities.contains(id) || suffixes.iter().any(|suffix| suffix.matches(id)),
            (Self::TlsUnauthenticated | Self::TlsAuthenticated { .. }, _) => false,
        }
    }
}

/// The end of a DNS identity: `*.ns.example` matches names below `ns.example`, not itself. Without parts it matches any identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdentitySuffix {
    /// `.ns.example` in lower case, or empty.
    suffix: String,
}

/// Why a suffix was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("identity suffix {0:?} is not valid: write *.name.example, or * for every identity")]
pub struct IdentitySuffixError(String);

impl IdentitySuffix {
    /// From the labels in reading order, as the policy API sends them: `["ns", "example"]`.
    pub fn new<S: AsRef<str>>(parts: &[S]) -> Result<Self, IdentitySuffixError> {
        let mut suffix = String::new();
        for part in parts {
            suffix.push('.');
            suffix.push_str(&part.as_ref().to_ascii_lowercase());
        }
        match suffix.strip_prefix('.').map(name::check_dns) {
            None | Some(Ok(())) => Ok(Self { suffix }),
            Some(Err(_)) => Err(IdentitySuffixError(name::excerpt(&suffix))),
        }
    }

    /// From `*.ns.example` or `*`.
    pub fn parse(text: &str) -> Result<Self, IdentitySuffixError> {
        if text == "*" {
            return Self::new::<&str>(&[]);
        }
        let invalid = || IdentitySuffixError(name::excerpt(text));
        let rest = text.strip_prefix("*.").ok_or_else(invalid)?;
        let parts: Vec<&str> = rest.strip_suffix('.').unwrap_or(rest).split('.').collect();
        Self::new(&parts).map_err(|_| invalid())
    }

    /// Whether the identity is below this suffix. URI identities match only the suffix without parts.
    pub fn matches(&self, id: &Identity) -> bool {
        match id {
            _ if self.suffix.is_empty() => true,
            // Both are lower-case; the dot in front keeps `badns.example` out of `*.ns.example`.
            Identity::Dns(name) => name.len() > self.suffix.len() && name.ends_with(&self.suffix),
            Identity::Uri(_) => false,
        }
    }
}

/// One permission; `meta` says where it comes from, for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization<M> {
    /// Client networks. Without any the authorization permits nobody.
    pub networks: Vec<Network>,
    /// Client authentication.
    pub authentication: Authentication,
    /// Whatever the caller wants back on a match.
    pub meta: M,
}

/// What TLS told about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTls<'a> {
    /// No TLS that ends at this proxy.
    Plain,
    /// TLS, but no client certificate.
    Anonymous,
    /// TLS with a verified client certificate of this name.
    Identified(&'a Identity),
}

/// The first authorization that permits this client, or `None`: refuse.
pub fn authorize<'a, M>(
    authorizations: &'a [Authorization<M>],
    client: IpAddr,
    tls: ClientTls<'_>,
) -> Option<&'a Authorization<M>> {
    authorizations.iter().find(|authorization| {
        authorization.authentication.permits(tls)
            && authorization
                .networks
                .iter()
                .any(|network| network.contains(client))
    })
}

#[cfg(test)]
mod tests;
