//! Owns EndpointSlices as facts; which Service they belong to is their label. Does not merge them.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::discovery::v1;

use super::notes::{Notes, annotation_path};
use crate::objects::Name;

/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Annotation of slices whose endpoints are the gateway of another cluster.
const GATEWAY_ANNOTATION: &str = "mirror.linkerd.io/remote-svc-fq-name";

/// A part of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The Service.
    pub service: Name,
    /// TCP ports that all these endpoints have.
    pub ports: Vec<SlicePort>,
    /// Its ready endpoints, and those that are not but have a host name.
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

/// An endpoint of a [`Slice`].
#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// Where it is.
    pub address: IpAddr,
    /// What is behind it; `None` for a plain address.
    pub target: Option<EndpointTarget>,
    /// Whether it takes traffic. One that does not is kept for its host name only, because a running pod is found by
    /// that (contract 8.1).
    pub ready: bool,
    /// Host name under the Service (StatefulSets).
    pub hostname: Option<Arc<str>>,
    /// Node it runs on.
    pub node: Option<Arc<str>>,
    /// Zone it runs in.
    pub zone: Option<Arc<str>>,
    /// Zones that should use it; empty = no hint.
    pub for_zones: Vec<Arc<str>>,
}

/// What is behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointTarget {
    /// A pod.
    Pod(Name),
    /// An ExternalWorkload.
    Workload(Name),
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
    let annotations = slice.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(GATEWAY_ANNOTATION)) {
        return notes.refuse(
            &annotation_path(GATEWAY_ANNOTATION),
            "endpoints behind a multicluster gateway are not served yet",
        );
    }
    if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return notes.refuse(
            "addressType",
            format!("{:?} is not IPv4 or IPv6", slice.address_type),
        );
    }
    let useful = slice
        .endpoints
        .iter()
        .enumerate()
        .filter(|(_, endpoint)| is_ready(endpoint) || endpoint.hostname.is_some());
    let mut endpoints = Vec::new();
    for (index, endpoint) in useful {
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

/// An absent condition counts as ready, as the API defines it. An endpoint that is going is not ready, even while it still
/// serves, unless its Service publishes addresses that are not ready.
fn is_ready(endpoint: &v1::Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

fn read_endpoint(endpoint: &v1::Endpoint, address: IpAddr, namespace: &str) -> SliceEndpoint {
    let target = endpoint.target_ref.as_ref().and_then(|target| {
        let namespace = target.namespace.as_deref().unwrap_or(namespace);
        let name = Name::new(namespace, target.name.as_deref()?);
        match target.kind.as_deref()? {
            "Pod" => Some(EndpointTarget::Pod(name)),
            "ExternalWorkload" => Some(EndpointTarget::Workload(name)),
            _ => None,
        }
    });
    let zones = endpoint
        .hints
        .iter()
        .flat_map(|hints| hints.for_zones.iter().flatten());
    SliceEndpoint {
        address,
        target,
        ready: is_ready(endpoint),
        node: endpoint.node_name.as_deref().map(Into::into),
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
