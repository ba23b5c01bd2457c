//! Owns the settings of policy: where it comes from, and what holds until it has come.
//! Does not decide on any connection.

use super::control::ControlAddr;
use super::reader::Reader;
use ipnet::IpNet;
use serde::Serialize;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use weft_core::parse;

/// Policy (contract 3.2).
#[derive(Clone, Debug, Serialize)]
pub struct Policy {
    /// `POLICY_SVC_{ADDR,NAME}`.
    pub service: ControlAddr,
    /// `POLICY_WORKLOAD`: who is asking, sent verbatim.
    pub workload: String,
    /// `INBOUND_DEFAULT_POLICY`: what holds for a port until its policy has come.
    pub default: DefaultPolicy,
    /// `POLICY_CLUSTER_NETWORKS`: where clients of the cluster come from.
    pub cluster_networks: Vec<IpNet>,
}

/// Who may connect where no policy is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultPolicy {
    /// Nobody.
    Deny,
    /// Everybody with an identity of the mesh, from anywhere.
    AllAuthenticated,
    /// Everybody.
    #[default]
    AllUnauthenticated,
    /// Everybody with an identity of the mesh, from the cluster's networks.
    ClusterAuthenticated,
    /// Everybody from the cluster's networks.
    ClusterUnauthenticated,
    /// Everybody, and a note of who would be refused.
    Audit,
}

impl DefaultPolicy {
    /// Its name, which is also the name of the default server in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::AllAuthenticated => "all-authenticated",
            Self::AllUnauthenticated => "all-unauthenticated",
            Self::ClusterAuthenticated => "cluster-authenticated",
            Self::ClusterUnauthenticated => "cluster-unauthenticated",
            Self::Audit => "audit",
        }
    }

    fn needs_cluster_networks(self) -> bool {
        matches!(
            self,
            Self::ClusterAuthenticated | Self::ClusterUnauthenticated | Self::Audit
        )
    }
}

impl fmt::Display for DefaultPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DefaultPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [
            Self::Deny,
            Self::AllAuthenticated,
            Self::AllUnauthenticated,
            Self::ClusterAuthenticated,
            Self::ClusterUnauthenticated,
            Self::Audit,
        ]
        .into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or(
            "expected deny, all-authenticated, all-unauthenticated, cluster-authenticated, cluster-unauthenticated or audit",
        )
    }
}

impl Policy {
    pub(super) fn read(r: &mut Reader<'_>) -> Option<Self> {
        let default = r
            .read("INBOUND_DEFAULT_POLICY", DefaultPolicy::from_str)
            .unwrap_or_default();
        let networks = r
            .read("POLICY_CLUSTER_NETWORKS", parse::networks)
            .unwrap_or_default();
        if default.needs_cluster_networks() && networks.is_empty() {
            let reason = "it needs the networks of the cluster, and none are set";
            let remedy = "set LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS, or choose another policy";
            r.refuse("INBOUND_DEFAULT_POLICY", reason, remedy);
        }
        let workload = r.required("POLICY_WORKLOAD", "who asks for policy", |text| {
            Ok::<_, Infallible>(text.to_owned())
        });
        let service = ControlAddr::read(r, "POLICY_SVC");
        Some(Self {
            service: service?,
            workload: workload?,
            default,
            cluster_networks: networks,
        })
    }
}
