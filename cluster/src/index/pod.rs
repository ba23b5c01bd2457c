//! Owns what the mesh knows of a pod (contract 8.1, 8.2): addresses, ports, proxy, annotations; the rest of the object
//! is not kept. Readiness comes from EndpointSlices, not from here.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use weft_core::name::PortSet;

use super::{Created, notes::Notes, notes::annotation_path};
use crate::{
    mesh::DefaultPolicy,
    objects::{
        Name,
        pod::{self as v1, Container, HttpGetAction, Probe},
    },
};

/// Label of a meshed pod: the namespace of its control plane.
pub const CONTROL_NAMESPACE_LABEL: &str = "linkerd.io/control-plane-ns";
/// Name of the container that is the proxy.
pub const PROXY_CONTAINER: &str = "linkerd-proxy";
/// Annotation with ports that are not to be detected.
pub const OPAQUE_PORTS_ANNOTATION: &str = "config.linkerd.io/opaque-ports";

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: Name,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its service account.
    pub service_account: Arc<str>,
    /// What made it: kind in lower case and name; a ReplicaSet of a Deployment counts as the Deployment.
    pub owner: Option<(String, String)>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its node, once it has one.
    pub node: Option<Arc<str>>,
    /// Ports of its node that lead to ports of its containers.
    pub host_ports: Vec<HostPort>,
    /// It uses its node's addresses.
    pub host_network: bool,
    /// It has started and not ended.
    pub running: bool,
    /// Ports of all its containers.
    pub ports: Vec<ContainerPort>,
    /// Paths of the probes by plain HTTP, by port.
    pub probes: BTreeMap<u16, BTreeSet<String>>,
    /// Ports that are probed by gRPC.
    pub grpc_probes: BTreeSet<u16>,
    /// Namespace of the control plane of its proxy; `None` = not meshed.
    pub control_namespace: Option<Arc<str>>,
    /// Ports of its proxy.
    pub proxy: ProxyPorts,
    /// Annotation `config.linkerd.io/opaque-ports`.
    pub opaque_ports: Option<PortSet>,
    /// Annotation `config.linkerd.io/skip-inbound-ports`.
    pub skip_inbound_ports: PortSet,
    /// Annotation `config.linkerd.io/proxy-require-identity-inbound-ports`.
    pub require_identity_ports: PortSet,
    /// Annotation `config.linkerd.io/default-inbound-policy`.
    pub default_policy: Option<DefaultPolicy>,
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub number: u16,
}

/// A port of a node that leads to a port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// At the node.
    pub host: SocketAddr,
    /// At the pod.
    pub container: u16,
}

impl ContainerPort {
    /// The number of a named port.
    pub(super) fn named(ports: &[Self], name: &str) -> Option<u16> {
        ports
            .iter()
            .find(|port| port.name.as_deref() == Some(name))
            .map(|port| port.number)
    }
}

/// Where a pod's proxy listens, as its environment says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyPorts {
    /// Inbound port (4143).
    pub inbound: Option<u16>,
    /// Admin port (4191).
    pub admin: Option<u16>,
    /// Control port (4190).
    pub control: Option<u16>,
}

impl Pod {
    /// The number of a named container port.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        ContainerPort::named(&self.ports, name)
    }

    /// The ports of its node that lead to this pod now.
    pub(super) fn host_addresses(&self) -> Vec<SocketAddr> {
        if self.running {
            self.host_ports.iter().map(|port| port.host).collect()
        } else {
            Vec::new()
        }
    }

    /// The addresses that are this pod's alone: none for one on the host network or one that has ended.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        if self.running && !self.host_network {
            self.ips.clone()
        } else {
            Vec::new()
        }
    }
}

/// Age of an object.
pub(super) fn created(metadata: &ObjectMeta) -> Created {
    metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0.as_nanosecond())
}

pub(super) fn read(pod: &v1::Pod, name: &Name, notes: &mut Notes) -> Pod {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let annotations = pod.metadata.annotations.as_ref();
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.as_ref();
    let containers: Vec<&Container> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .collect();
    let ports = container_ports(&containers);
    let named = |name: &str| ContainerPort::named(&ports, name);
    let phase = status.and_then(|s| s.phase.as_deref());
    let mut set = |annotation: &str| notes.ports(annotations, annotation, named);
    let opaque_ports = set(OPAQUE_PORTS_ANNOTATION);
    let skip_inbound_ports = set("config.linkerd.io/skip-inbound-ports").unwrap_or_default();
    let require_identity_ports =
        set("config.linkerd.io/proxy-require-identity-inbound-ports").unwrap_or_default();
    let default_policy = default_policy(annotations, notes);
    if default_policy.is_some_and(DefaultPolicy::keeps_strangers_out) {
        note_https(&containers, named, &skip_inbound_ports, notes);
    }
    Pod {
        name: name.clone(),
        service_account: spec
            .service_account_name
            .as_deref()
            .filter(|s| !s.is_empty())
            .unwrap_or("default")
            .into(),
        owner: owner(&pod.metadata, &labels),
        ips: addresses(status, notes),
        node: spec.node_name.as_deref().map(Into::into),
        host_ports: host_ports(&containers, status),
        host_network: spec.host_network.unwrap_or_default(),
        running: matches!(phase, None | Some("Running")),
        probes: probes(&containers, named),
        grpc_probes: grpc_probes(&containers),
        control_namespace: labels
            .get(CONTROL_NAMESPACE_LABEL)
            .map(|ns| ns.as_str().into()),
        proxy: proxy_ports(&containers),
        opaque_ports,
        skip_inbound_ports,
        require_identity_ports,
        default_policy,
        labels,
        ports,
    }
}

fn addresses(status: Option<&v1::PodStatus>, notes: &mut Notes) -> Vec<IpAddr> {
    let several = status
        .iter()
        .flat_map(|s| s.pod_ips.iter().flatten())
        .map(|ip| ip.ip.as_str());
    let one = status.and_then(|s| s.pod_ip.as_deref());
    let mut found = Vec::new();
    for text in one
        .into_iter()
        .chain(several)
        .filter(|text| !text.is_empty())
    {
        match text.parse() {
            Ok(ip) if found.contains(&ip) => {}
            Ok(ip) => found.push(ip),
            Err(_) => notes.ignore("status.podIP", format!("{text:?} is not an IP address")),
        }
    }
    found
}

fn container_ports(containers: &[&Container]) -> Vec<ContainerPort> {
    let ports = containers.iter().flat_map(|c| c.ports.iter().flatten());
    let tcp = ports.filter(|p| {
        p.protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP")
    });
    tcp.filter_map(|p| {
        let number = u16::try_from(p.container_port).ok().filter(|n| *n > 0)?;
        Some(ContainerPort {
            name: p.name.as_deref().map(Into::into),
            number,
        })
    })
    .collect()
}

/// A port may be bound to one address of the node; otherwise it is on all of them.
fn host_ports(containers: &[&Container], status: Option<&v1::PodStatus>) -> Vec<HostPort> {
    let several = status
        .iter()
        .flat_map(|s| s.host_ips.iter().flatten())
        .map(|ip| ip.ip.as_str());
    let one = status.and_then(|s| s.host_ip.as_deref());
    let mut node: Vec<IpAddr> = one
        .into_iter()
        .chain(several)
        .filter_map(|text| text.parse().ok())
        .collect();
    node.sort_unstable();
    node.dedup();
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    let mut found = Vec::new();
    for port in containers.iter().flat_map(|c| c.ports.iter().flatten()) {
        let tcp = port.protocol.as_deref().is_none_or(|p| p == "TCP");
        let (Some(host), Some(container)) =
            (port.host_port.and_then(number), number(port.container_port))
        else {
            continue;
        };
        let bound: Option<IpAddr> = port.host_ip.as_deref().and_then(|ip| ip.parse().ok());
        let bound = bound.filter(|ip| !ip.is_unspecified());
        for ip in node
            .iter()
            .filter(|ip| tcp && bound.is_none_or(|b| b == **ip))
        {
            let host = SocketAddr::new(*ip, host);
            found.push(HostPort { host, container });
        }
    }
    found
}

fn probes(
    containers: &[&Container],
    named: impl Fn(&str) -> Option<u16>,
) -> BTreeMap<u16, BTreeSet<String>> {
    let mut paths: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
    for (.., probe) in all_probes(containers) {
        if let Some(get) = probe.http_get.as_ref().filter(|get| !is_https(get))
            && let Some(port) = probe_port(get, &named)
        {
            paths.entry(port).or_default().insert(probe_path(get));
        }
    }
    paths
}

/// Within TLS nobody sees the path: such a probe is a connection like any other (case R03).
fn is_https(get: &HttpGetAction) -> bool {
    get.scheme.as_deref() == Some("HTTPS")
}

fn probe_port(get: &HttpGetAction, named: impl Fn(&str) -> Option<u16>) -> Option<u16> {
    let port = match &get.port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => named(name),
    };
    port.filter(|port| *port > 0)
}

/// Says which probes the default policy of the pod keeps out, because the kubelet only sees that they fail.
fn note_https(
    containers: &[&Container],
    named: impl Fn(&str) -> Option<u16>,
    skipped: &PortSet,
    notes: &mut Notes,
) {
    for (container, field, probe) in all_probes(containers) {
        let Some(get) = probe.http_get.as_ref().filter(|get| is_https(get)) else {
            continue;
        };
        if let Some(port) = probe_port(get, &named).filter(|port| !skipped.contains(*port)) {
            let reason = format!(
                "within HTTPS a probe cannot be told from other connections: port {port} needs an authorization for the \
                 kubelet's network"
            );
            let field = format!("spec.containers[{container}].{field}.httpGet.scheme");
            notes.ignore(&field, reason);
        }
    }
}

fn grpc_probes(containers: &[&Container]) -> BTreeSet<u16> {
    let probes = all_probes(containers).filter_map(|(.., probe)| probe.grpc.as_ref());
    let ports = probes.filter_map(|probe| u16::try_from(probe.port).ok());
    ports.filter(|port| *port > 0).collect()
}

/// All probes, each with its container and field.
fn all_probes<'a>(
    containers: &[&'a Container],
) -> impl Iterator<Item = (&'a str, &'static str, &'a Probe)> {
    let each = containers.iter().flat_map(|c| {
        [
            ("livenessProbe", &c.liveness_probe),
            ("readinessProbe", &c.readiness_probe),
            ("startupProbe", &c.startup_probe),
        ]
        .map(|(field, probe)| Some((c.name.as_str(), field, probe.as_ref()?)))
    });
    each.flatten()
}

/// The path of a probe without its query, because routes match paths.
fn probe_path(probe: &HttpGetAction) -> String {
    let path = probe.path.as_deref().unwrap_or("/");
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn proxy_ports(containers: &[&Container]) -> ProxyPorts {
    let Some(proxy) = containers.iter().find(|c| c.name == PROXY_CONTAINER) else {
        return ProxyPorts::default();
    };
    let port = |variable: &str| {
        let value = proxy
            .env
            .iter()
            .flatten()
            .find(|env| env.name == variable)?
            .value
            .as_deref()?;
        value
            .parse::<SocketAddr>()
            .ok()
            .map(|addr| addr.port())
            .filter(|port| *port > 0)
    };
    ProxyPorts {
        inbound: port("LINKERD2_PROXY_INBOUND_LISTEN_ADDR"),
        admin: port("LINKERD2_PROXY_ADMIN_LISTEN_ADDR"),
        control: port("LINKERD2_PROXY_CONTROL_LISTEN_ADDR"),
    }
}

/// A Deployment names its ReplicaSets `<name>-<pod-template-hash>`, so the Deployment is known without reading them.
fn owner(metadata: &ObjectMeta, labels: &BTreeMap<String, String>) -> Option<(String, String)> {
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true))?;
    let hash = labels
        .get("pod-template-hash")
        .map(|hash| format!("-{hash}"));
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(&hash));
    Some(match deployment {
        Some(name) if owner.kind == "ReplicaSet" => ("deployment".to_owned(), name.to_owned()),
        _ => (owner.kind.to_lowercase(), owner.name.clone()),
    })
}

fn default_policy(
    annotations: Option<&BTreeMap<String, String>>,
    notes: &mut Notes,
) -> Option<DefaultPolicy> {
    const ANNOTATION: &str = "config.linkerd.io/default-inbound-policy";
    match annotations?.get(ANNOTATION)?.parse() {
        Ok(policy) => Some(policy),
        Err(error) => {
            notes.ignore(&annotation_path(ANNOTATION), error);
            None
        }
    }
}
