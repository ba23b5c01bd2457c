//! Owns the settings that destination and policy share and the names of the default policies (contract 8.2); does not
//! read them from anywhere.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{Serialize, Serializer};
use thiserror::Error;
use weft_core::{
    name::{Identity, IdentityError, PortSet, workload_identity},
    parse,
};

/// Ports that are opaque unless an annotation says otherwise (contract 8.1).
const DEFAULT_OPAQUE_PORTS: &str = "25,587,3306,4444,5432,6379,9300,11211";
/// The networks of a cluster by the chart's default (contract 11.4).
const DEFAULT_CLUSTER_NETWORKS: &str =
    "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8";

/// What the whole mesh agrees on.
#[derive(Clone, Debug, Serialize)]
pub struct MeshSettings {
    /// Namespace of the control plane.
    pub control_namespace: String,
    /// Domain of the cluster's Service names, without a trailing dot.
    pub cluster_domain: String,
    /// Last part of each identity, without a trailing dot.
    pub trust_domain: String,
    /// Where pods and Services have their addresses.
    pub cluster_networks: Vec<IpNet>,
    /// Ports that are opaque unless an annotation says otherwise.
    pub default_opaque_ports: PortSet,
    /// Whether IPv6 endpoints are announced, and preferred over the IPv4 twin of the same target.
    pub enable_ipv6: bool,
    /// ExternalWorkloads whose status has no condition `Ready` count as ready: in a local mesh nobody writes one.
    pub external_workloads_ready: bool,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            control_namespace: "linkerd".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            cluster_networks: parse::networks(DEFAULT_CLUSTER_NETWORKS)
                .expect("a constant list of networks"),
            default_opaque_ports: parse::port_set(DEFAULT_OPAQUE_PORTS)
                .expect("a constant list of ports"),
            enable_ipv6: false,
            external_workloads_ready: false,
        }
    }
}

impl MeshSettings {
    /// The identity of a service account (contract 0).
    ///
    /// # Errors
    /// A part is not a DNS label, so no certificate can carry the name.
    pub fn identity(
        &self,
        service_account: &str,
        namespace: &str,
    ) -> Result<Identity, IdentityError> {
        workload_identity(
            service_account,
            namespace,
            &self.control_namespace,
            &self.trust_domain,
        )
    }

    /// The suffix of the identities of all service accounts of a namespace (contract 8.2).
    pub fn namespace_suffix(&self, namespace: &str) -> String {
        format!(
            "{namespace}.serviceaccount.identity.{}.{}",
            self.control_namespace, self.trust_domain
        )
    }

    /// The name of a Service in the cluster's domain.
    pub fn service_name(&self, name: &str, namespace: &str) -> String {
        format!("{name}.{namespace}.svc.{}", self.cluster_domain)
    }
}

/// Who may connect where no Server says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// `all-*` and `cluster-*`.
    Allow {
        /// Only clients with an identity.
        authenticated: bool,
        /// Only clients in the cluster's networks.
        cluster_only: bool,
    },
    /// Nobody.
    Deny,
    /// Everybody, named so that metrics show what `deny` would have refused.
    Audit,
}

impl DefaultPolicy {
    /// Its name in settings, annotations and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow {
                authenticated: false,
                cluster_only: false,
            } => "all-unauthenticated",
            Self::Allow {
                authenticated: true,
                cluster_only: false,
            } => "all-authenticated",
            Self::Allow {
                authenticated: false,
                cluster_only: true,
            } => "cluster-unauthenticated",
            Self::Allow {
                authenticated: true,
                cluster_only: true,
            } => "cluster-authenticated",
            Self::Deny => "deny",
            Self::Audit => "audit",
        }
    }

    /// Whether clients without an identity need an authorization.
    pub fn keeps_strangers_out(self) -> bool {
        matches!(
            self,
            Self::Deny
                | Self::Allow {
                    authenticated: true,
                    ..
                }
        )
    }

    /// The variant that asks for an identity, for ports that require one.
    #[must_use]
    pub fn require_identity(self) -> Self {
        match self {
            Self::Allow { cluster_only, .. } => Self::Allow {
                authenticated: true,
                cluster_only,
            },
            other => other,
        }
    }
}

impl fmt::Display for DefaultPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for DefaultPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A text that names no default policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown default policy {0:?}: use all-unauthenticated, all-authenticated, cluster-unauthenticated, \
     cluster-authenticated, deny or audit"
)]
pub struct UnknownDefaultPolicy(String);

impl FromStr for DefaultPolicy {
    type Err = UnknownDefaultPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownDefaultPolicy> {
        let allow = |authenticated, cluster_only| Self::Allow {
            authenticated,
            cluster_only,
        };
        Ok(match text {
            "all-unauthenticated" => allow(false, false),
            "all-authenticated" => allow(true, false),
            "cluster-unauthenticated" => allow(false, true),
            "cluster-authenticated" => allow(true, true),
            "deny" => Self::Deny,
            "audit" => Self::Audit,
            other => return Err(UnknownDefaultPolicy(other.chars().take(64).collect())),
        })
    }
}
