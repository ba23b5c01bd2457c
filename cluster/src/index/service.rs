//! Owns what the mesh knows of a Service (contract 8.1, 8.2, 10.1): addresses, TCP ports, annotations; endpoints come
//! from its slices and from the external workloads it selects.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{api::core::v1, apimachinery::pkg::util::intstr::IntOrString};
use weft_core::name::PortSet;

use super::{
    PortRef, Selector, Traffic,
    notes::{Notes, annotation_path},
    pod::OPAQUE_PORTS_ANNOTATION,
};

/// Label of a Service whose endpoints are those of another cluster, and annotation of one that has some there.
const REMOTE_DISCOVERY: &str = "multicluster.linkerd.io/remote-discovery";
/// Annotation of a Service that also has the endpoints of others in this cluster.
const LOCAL_DISCOVERY: &str = "multicluster.linkerd.io/local-discovery";

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Its ClusterIPs; none when headless or not yet given one.
    pub cluster_ips: Vec<IpAddr>,
    /// It is only another name for a host elsewhere.
    pub external_name: bool,
    /// `internalTrafficPolicy: Local`: a client uses endpoints on its own node only.
    pub local_only: bool,
    /// Its endpoints are, or some of them are, those of other Services (multicluster); these are not served.
    pub multicluster: bool,
    /// The workloads behind it; `None` when it has no selector.
    pub selector: Option<Selector>,
    /// Its TCP ports.
    pub ports: Vec<ServicePort>,
    /// Annotation `config.linkerd.io/opaque-ports`.
    pub opaque_ports: Option<PortSet>,
    /// Annotations about retries, time limits and circuit breaking.
    pub traffic: Traffic,
}

/// A TCP port of a [`Service`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, by which slices refer to it; empty when it has none.
    pub name: Arc<str>,
    /// Its number.
    pub number: u16,
    /// The port of a workload behind it.
    pub target: PortRef,
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
    let named = |name: &str| {
        let mut ports = spec.ports.iter().flatten();
        let port = ports.find(|p| p.name.as_deref() == Some(name))?;
        u16::try_from(port.port).ok()
    };
    let labels = spec.selector.as_ref().filter(|labels| !labels.is_empty());
    let mut read = Service {
        cluster_ips: Vec::new(),
        external_name: spec.type_.as_deref() == Some("ExternalName"),
        local_only: spec.internal_traffic_policy.as_deref() == Some("Local"),
        multicluster: is_multicluster(service, notes),
        selector: labels.map(Selector::equal),
        ports: Vec::new(),
        opaque_ports: notes.ports(annotations, OPAQUE_PORTS_ANNOTATION, named),
        traffic: Traffic::read(annotations, notes),
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
            target: target(port.target_port.as_ref(), number),
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

/// As Kubernetes has it: the same number when nothing is said.
fn target(port: Option<&IntOrString>, number: u16) -> PortRef {
    match port {
        Some(IntOrString::String(name)) => PortRef::Name(name.as_str().into()),
        Some(IntOrString::Int(target)) => {
            let target = u16::try_from(*target).ok().filter(|target| *target > 0);
            PortRef::Number(target.unwrap_or(number))
        }
        None => PortRef::Number(number),
    }
}

/// Whether the Service stands for Services of other clusters, or for several of this one.
fn is_multicluster(service: &v1::Service, notes: &mut Notes) -> bool {
    let (labels, annotations) = (&service.metadata.labels, &service.metadata.annotations);
    let has = |of: &Option<BTreeMap<String, String>>, key| {
        of.as_ref().is_some_and(|map| map.contains_key(key))
    };
    let field = if has(labels, REMOTE_DISCOVERY) {
        format!("metadata.labels[{REMOTE_DISCOVERY}]")
    } else if has(annotations, REMOTE_DISCOVERY) {
        annotation_path(REMOTE_DISCOVERY)
    } else if has(annotations, LOCAL_DISCOVERY) {
        annotation_path(LOCAL_DISCOVERY)
    } else {
        return false;
    };
    notes.ignore(
        &field,
        "multicluster discovery is not served yet: clients are refused this Service",
    );
    true
}

fn app_protocol(text: &str) -> AppProtocol {
    match text {
        "http" => AppProtocol::Http1,
        "kubernetes.io/h2c" => AppProtocol::Http2,
        _ => AppProtocol::Opaque,
    }
}
