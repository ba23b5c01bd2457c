//! Owns the settings of policy (contract 8.2); does not read flags.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Serialize;
use weft_cluster::{DefaultPolicy, MeshSettings};

/// How policy is made.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// What the whole mesh agrees on.
    pub mesh: MeshSettings,
    /// Who may connect where nothing says so.
    pub default_policy: DefaultPolicy,
    /// Where probes come from.
    pub probe_networks: Vec<IpNet>,
    /// Namespace whose EgressNetworks count for clients in namespaces without any.
    pub global_egress_namespace: String,
    /// Clients may set retries and time limits by `l5d-*` headers.
    pub allow_l5d_request_headers: bool,
    /// Largest number of different targets watched at a time, inbound and outbound each.
    pub max_targets: usize,
    /// Largest number of streams at a time.
    pub max_streams: usize,
}

impl Settings {
    /// As the chart has it.
    pub fn new(mesh: MeshSettings) -> Self {
        Self {
            mesh,
            default_policy: DefaultPolicy::Allow {
                authenticated: false,
                cluster_only: false,
            },
            probe_networks: all_networks().to_vec(),
            global_egress_namespace: "linkerd-egress".to_owned(),
            allow_l5d_request_headers: false,
            max_targets: 100_000,
            max_streams: 100_000,
        }
    }
}

/// Every address.
pub(crate) fn all_networks() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}
