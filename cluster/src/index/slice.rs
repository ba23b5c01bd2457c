//! Owns EndpointSlices as facts; which Service they belong to is their label. Does not merge them.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::discovery::v1;

use super::notes::Notes;
use crate::objects::Name;

/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A part of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The Service.
    pub service: Name,
    /// TCP ports that all these endpoints have.
    pub ports: Vec<SlicePort>,
    /// Its ready endpoints; those that are not ready do not count for `Get` (contract 8.1).
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port of a [`Slice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service's port; empty when it has none.
    pub name: Arc<str>,
    /// Number at the endpoint; never 0.
    pub number: u16,
}

/// A ready endpoint of a [`Slice`].
#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// Where it is.
    pub address: IpAddr,
    /// The pod behind it.
    pub pod: Option<Name>,
    /// Host name under the Service (StatefulSets).
    pub hostname: Option<Arc<str>>,
    /// Zone it runs in.
    pub zone: Option<Arc<str>>,
    /// Zones that should use it; empty = no hint.
    pub for_zones: Vec<Arc<str>>,
}

pub(super) fn read(slice: &v1::EndpointSlice, name: &Name, notes: &mut Notes) -> Option<Slice> {
    let Some(service) = slice
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(SERVICE_NAME_LABEL))
    else {
        return notes.refuse(
            &format!("metadata.labels[{SERVICE_NAME_LABEL}]"),
            "missing: it names the Service",
        );
    };
    if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return notes.refuse(
            "addressType",
            format!("{:?} is not IPv4 or IPv6", slice.address_type),
        );
    }
    let ready = slice
        .endpoints
        .iter()
        .enumerate()
        .filter(|(_, endpoint)| is_ready(endpoint));
    let mut endpoints = Vec::new();
    for (index, endpoint) in ready {
        // Addresses of one endpoint are interchangeable by the API's rule; only the first is ever used.
        match endpoint.addresses.first().map(|text| (text, text.parse())) {
            Some((_, Ok(address))) => {
                endpoints.push(read_endpoint(endpoint, address, &name.namespace))
            }
            Some((text, Err(_))) => {
                notes.ignore(
                    &format!("endpoints[{index}].addresses[0]"),
                    format!("{text:?} is not an IP address"),
                );
            }
            None => {}
        }
    }
    Some(Slice {
        service: Name::new(&name.namespace, service),
        ports: read_ports(slice),
        endpoints,
    })
}

/// An absent condition counts as ready, as the API defines it.
fn is_ready(endpoint: &v1::Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

fn read_endpoint(endpoint: &v1::Endpoint, address: IpAddr, namespace: &str) -> SliceEndpoint {
    let target = endpoint
        .target_ref
        .as_ref()
        .filter(|target| target.kind.as_deref() == Some("Pod"));
    let zones = endpoint
        .hints
        .iter()
        .flat_map(|hints| hints.for_zones.iter().flatten());
    SliceEndpoint {
        address,
        pod: target.and_then(|target| {
            let namespace = target.namespace.as_deref().unwrap_or(namespace);
            Some(Name::new(namespace, target.name.as_deref()?))
        }),
        hostname: endpoint.hostname.as_deref().map(Into::into),
        zone: endpoint.zone.as_deref().map(Into::into),
        for_zones: zones.map(|zone| zone.name.as_str().into()).collect(),
    }
}

/// Ports without a number (not ready anywhere) are left out, so that port 0 is never announced (case D05).
fn read_ports(slice: &v1::EndpointSlice) -> Vec<SlicePort> {
    let ports = slice
        .ports
        .iter()
        .flatten()
        .filter(|p| p.protocol.as_deref().is_none_or(|p| p == "TCP"));
    ports
        .filter_map(|port| {
            let number = u16::try_from(port.port?).ok().filter(|n| *n > 0)?;
            Some(SlicePort {
                name: port.name.as_deref().unwrap_or_default().into(),
                number,
            })
        })
        .collect()
}
