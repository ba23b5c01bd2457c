//! Owns what the mesh knows of a Service (contract 8.1, 8.2, 10.1): addresses, TCP ports, annotations; endpoints come
//! from its slices.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1;
use weft_core::name::PortSet;

use super::{RouteTimeouts, notes::Notes, pod::OPAQUE_PORTS_ANNOTATION, route};

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Its ClusterIPs; none when headless or not yet given one.
    pub cluster_ips: Vec<IpAddr>,
    /// It is only another name for a host elsewhere.
    pub external_name: bool,
    /// Its TCP ports.
    pub ports: Vec<ServicePort>,
    /// Annotation `config.linkerd.io/opaque-ports`.
    pub opaque_ports: Option<PortSet>,
    /// Annotations `timeout.linkerd.io/*`.
    pub timeouts: Option<RouteTimeouts>,
}

/// A TCP port of a [`Service`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, by which slices refer to it; empty when it has none.
    pub name: Arc<str>,
    /// Its number.
    pub number: u16,
    /// What is spoken there.
    pub app_protocol: Option<AppProtocol>,
}

/// The `appProtocol` of a port (contract 8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppProtocol {
    /// `http`
    Http1,
    /// `kubernetes.io/h2c`
    Http2,
    /// `linkerd.io/opaque`, `linkerd.io/tcp` and any other
    Opaque,
}

impl Service {
    /// The declared port of this number.
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// Whether a port is opaque by annotation, or by the given default when there is no annotation.
    pub fn is_opaque(&self, port: u16, default: &PortSet) -> bool {
        self.opaque_ports.as_ref().unwrap_or(default).contains(port)
    }
}

pub(super) fn read(service: &v1::Service, notes: &mut Notes) -> Option<Service> {
    let annotations = service.metadata.annotations.as_ref();
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec
        .ports
        .iter()
        .flatten()
        .filter(|p| p.protocol.as_deref().is_none_or(|p| p == "TCP"));
    let mut read = Service {
        cluster_ips: Vec::new(),
        external_name: spec.type_.as_deref() == Some("ExternalName"),
        ports: Vec::new(),
        opaque_ports: notes.ports(annotations, OPAQUE_PORTS_ANNOTATION, |_| None),
        timeouts: service_timeouts(annotations, notes),
    };
    for (index, port) in ports.enumerate() {
        let Some(number) = u16::try_from(port.port).ok().filter(|n| *n > 0) else {
            return notes.refuse(
                &format!("spec.ports[{index}].port"),
                format!("{} is not a port (1 to 65535)", port.port),
            );
        };
        read.ports.push(ServicePort {
            name: port.name.as_deref().unwrap_or_default().into(),
            number,
            app_protocol: port.app_protocol.as_deref().map(app_protocol),
        });
    }
    let addresses = spec
        .cluster_ip
        .iter()
        .chain(spec.cluster_ips.iter().flatten());
    for text in addresses.filter(|text| !text.is_empty() && *text != "None") {
        match text.parse() {
            Ok(ip) if read.cluster_ips.contains(&ip) => {}
            Ok(ip) => read.cluster_ips.push(ip),
            Err(_) => {
                return notes.refuse("spec.clusterIP", format!("{text:?} is not an IP address"));
            }
        }
    }
    Some(read)
}

fn app_protocol(text: &str) -> AppProtocol {
    match text {
        "http" => AppProtocol::Http1,
        "kubernetes.io/h2c" => AppProtocol::Http2,
        _ => AppProtocol::Opaque,
    }
}

/// A bad annotation of a Service drops its whole group (contract 10.1).
fn service_timeouts(
    annotations: Option<&BTreeMap<String, String>>,
    notes: &mut Notes,
) -> Option<RouteTimeouts> {
    match route::timeout_annotations(annotations) {
        Ok(timeouts) => timeouts,
        Err((field, reason)) => {
            notes.ignore(&field, reason);
            None
        }
    }
}
