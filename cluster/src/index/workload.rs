//! Owns what the mesh knows of an ExternalWorkload (contract 8.1): addresses, ports, names in its certificate, readiness.
//! Does not decide which Services it belongs to.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use weft_core::name::{Identity, PortSet};

use super::{ContainerPort, notes::Notes, pod::OPAQUE_PORTS_ANNOTATION};
use crate::objects::{Name, workload};

/// Name of the port that is the inbound port of the workload's proxy.
const PROXY_PORT: &str = "linkerd-proxy";

/// A meshed program outside of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalWorkload {
    /// Its name.
    pub name: Name,
    /// Its labels, by which Services and Servers choose it.
    pub labels: BTreeMap<String, String>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its TCP ports.
    pub ports: Vec<ContainerPort>,
    /// Who it is.
    pub identity: Identity,
    /// The name that clients ask for (SNI).
    pub server_name: Arc<str>,
    /// Condition `Ready`; `None` when nothing has written a status.
    pub ready: Option<bool>,
    /// Its only owner: kind in lower case, and name.
    pub owner: Option<(String, String)>,
    /// Annotation `config.linkerd.io/opaque-ports`.
    pub opaque_ports: Option<PortSet>,
}

impl ExternalWorkload {
    /// The number of a named port.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        ContainerPort::named(&self.ports, name)
    }

    /// The inbound port of its proxy, if it names one.
    pub fn inbound_port(&self) -> Option<u16> {
        self.port_named(PROXY_PORT)
    }
}

pub(super) fn read(
    object: &workload::ExternalWorkload,
    name: &Name,
    notes: &mut Notes,
) -> Option<ExternalWorkload> {
    let spec = &object.spec;
    let identity = match Identity::parse(&spec.mesh_tls.identity) {
        Ok(identity) => identity,
        Err(error) => return notes.refuse("spec.meshTLS.identity", error),
    };
    let server_name = match Identity::parse(&spec.mesh_tls.server_name) {
        Ok(Identity::Dns(name)) => name,
        Ok(Identity::Uri(uri)) => {
            return notes.refuse(
                "spec.meshTLS.serverName",
                format!("{uri:?} is not a DNS name"),
            );
        }
        Err(error) => return notes.refuse("spec.meshTLS.serverName", error),
    };
    let mut ips = Vec::new();
    for (index, address) in spec.workload_ips.iter().enumerate() {
        match address.ip.parse() {
            Ok(ip) if ips.contains(&ip) => {}
            Ok(ip) => ips.push(ip),
            Err(_) => notes.ignore(
                &format!("spec.workloadIPs[{index}].ip"),
                format!("{:?} is not an IP address", address.ip),
            ),
        }
    }
    let tcp = spec
        .ports
        .iter()
        .filter(|p| p.port > 0 && p.protocol.as_deref().is_none_or(|p| p == "TCP"));
    let ports: Vec<ContainerPort> = tcp
        .map(|p| ContainerPort {
            name: p.name.as_deref().map(Into::into),
            number: p.port,
        })
        .collect();
    let opaque_ports = notes.ports(
        object.metadata.annotations.as_ref(),
        OPAQUE_PORTS_ANNOTATION,
        |name| ContainerPort::named(&ports, name),
    );
    Some(ExternalWorkload {
        name: name.clone(),
        labels: object.metadata.labels.clone().unwrap_or_default(),
        ips,
        identity,
        server_name,
        ready: object.status.as_ref().map(is_ready),
        owner: match object.metadata.owner_references.as_deref() {
            Some([owner]) => Some((owner.kind.to_lowercase(), owner.name.clone())),
            _ => None,
        },
        opaque_ports,
        ports,
    })
}

fn is_ready(status: &workload::ExternalWorkloadStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
