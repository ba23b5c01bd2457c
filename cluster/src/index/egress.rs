//! Owns EgressNetworks as facts (contract 8.2): which addresses, and what happens to traffic that no route takes. Which
//! of several networks speaks for an address is decided where a policy is put together.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_core::name::PortSet;

use super::{
    Created, NetworkMatch, Traffic, authorization::read_networks, notes::Notes, pod,
    pod::OPAQUE_PORTS_ANNOTATION,
};
use crate::objects::{
    Name,
    traffic::{self, TrafficPolicy},
};

/// An EgressNetwork.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressNetwork {
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// Its addresses; `None` = all outside of the cluster's networks.
    pub networks: Option<Vec<NetworkMatch>>,
    /// What happens to traffic that no route takes.
    pub policy: TrafficPolicy,
    /// Annotation `config.linkerd.io/opaque-ports`.
    pub opaque_ports: Option<PortSet>,
    /// Annotations about retries, time limits and circuit breaking.
    pub traffic: Traffic,
}

impl EgressNetwork {
    /// The length of the longest prefix by which an address outside of the cluster belongs to this network.
    pub fn prefix_of(&self, address: IpAddr) -> Option<u8> {
        let Some(networks) = &self.networks else {
            return Some(0);
        };
        let networks = networks.iter().filter(|network| network.contains(address));
        networks.map(|network| network.net.prefix_len()).max()
    }

    /// Whether any address of it is in one of these networks.
    pub fn overlaps(&self, others: &[IpNet]) -> bool {
        let networks = self.networks.iter().flatten();
        networks.into_iter().any(|network| {
            // Of two networks with a common address one contains the other.
            let common = others.iter().filter_map(|other| match &network.net {
                net if net.contains(other) => Some(other),
                net if other.contains(net) => Some(net),
                _ => None,
            });
            let except = IpNet::aggregate(&network.except);
            common
                .into_iter()
                .any(|common| !except.iter().any(|except| except.contains(common)))
        })
    }
}

pub(super) fn read(
    network: &traffic::EgressNetwork,
    name: &Name,
    notes: &mut Notes,
) -> Option<EgressNetwork> {
    let annotations = network.metadata.annotations.as_ref();
    let networks = match &network.spec.networks {
        None => None,
        Some(networks) => Some(read_networks(networks, "spec.networks", notes)?),
    };
    Some(EgressNetwork {
        name: name.clone(),
        created: pod::created(&network.metadata),
        networks,
        policy: network.spec.traffic_policy,
        opaque_ports: notes.ports(annotations, OPAQUE_PORTS_ANNOTATION, |_| None),
        traffic: Traffic::read(annotations, notes),
    })
}
