//! Owns what is said of one endpoint: the fields of `WeightedAddr` (contract 8.1). Does not choose endpoints.

use std::{collections::HashMap, net::SocketAddr};

use linkerd2_proxy_api::{
    destination::{
        ProtocolHint, TlsIdentity, WeightedAddr, protocol_hint as hint, tls_identity as tls,
    },
    meta,
};
use weft_cluster::{
    MeshSettings, Name, Reader,
    index::{ExternalWorkload, Pod},
    objects::policy::ProxyProtocol,
};
use weft_core::name::Identity;

use crate::settings::{OutboundTransport, Settings};

/// Weight of every endpoint.
const WEIGHT: u32 = 10_000;

/// What is behind an address.
#[derive(Clone, Copy)]
pub(crate) enum Workload<'a> {
    Pod(&'a Pod),
    External(&'a ExternalWorkload),
}

/// An endpoint to describe.
pub(crate) struct Target<'a> {
    /// `None` when nothing is known of the address.
    pub(crate) workload: Option<Workload<'a>>,
    /// The workload's own port.
    pub(crate) port: u16,
    /// The address is one of the pod's node, and only this port of it leads to the pod.
    pub(crate) at_node: bool,
    pub(crate) zone: Option<&'a str>,
    pub(crate) caller_zone: Option<&'a str>,
}

impl<'a> Workload<'a> {
    /// Its kind and its name, which no other has.
    pub(crate) fn key(self) -> (&'static str, &'a Name) {
        match self {
            Self::Pod(pod) => ("Pod", &pod.name),
            Self::External(external) => ("ExternalWorkload", &external.name),
        }
    }

    /// Whether a port is opaque: a Server says so, or its annotation, or the default when it has none.
    pub(crate) fn is_opaque(self, index: &Reader<'_>, mesh: &MeshSettings, port: u16) -> bool {
        let (server, annotation) = match self {
            Self::Pod(pod) => (index.server_of(pod, port), &pod.opaque_ports),
            Self::External(external) => (
                index.server_of_workload(external, port),
                &external.opaque_ports,
            ),
        };
        let by_annotation = annotation.as_ref().unwrap_or(&mesh.default_opaque_ports);
        server.is_some_and(|server| server.protocol == ProxyProtocol::Opaque)
            || by_annotation.contains(port)
    }
}

/// Describes an endpoint.
pub(crate) fn describe(
    index: &Reader<'_>,
    settings: &Settings,
    address: SocketAddr,
    target: &Target<'_>,
) -> WeightedAddr {
    let mut described = WeightedAddr {
        addr: Some(address.into()),
        weight: WEIGHT,
        metric_labels: labels(target),
        ..WeightedAddr::default()
    };
    let Some(workload) = target.workload else {
        return described;
    };
    described.resource_ref = Some(resource(workload));
    match workload {
        Workload::Pod(pod) if pod.control_namespace.is_none() => return described,
        Workload::Pod(pod) if pod.skip_inbound_ports.contains(target.port) => return described,
        Workload::Pod(pod) => described.tls_identity = pod_identity(&settings.mesh, pod),
        Workload::External(external) => described.tls_identity = Some(external_identity(external)),
    }
    let opaque = workload.is_opaque(index, &settings.mesh, target.port);
    described.protocol_hint = Some(protocol_hint(settings, target, workload, opaque));
    described.http2 = Some(settings.meshed_http2.message());
    described
}

fn labels(target: &Target<'_>) -> HashMap<String, String> {
    let mut labels = HashMap::new();
    let mut add = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
    match (target.zone, target.caller_zone) {
        (Some(zone), Some(caller)) if zone == caller => add("zone_locality", "local"),
        (Some(_), Some(_)) => add("zone_locality", "remote"),
        // Of an address that nothing is known of, nothing is said.
        _ if target.workload.is_none() => None,
        _ => add("zone_locality", "unknown"),
    };
    if let Some(zone) = target.zone {
        add("zone", zone);
    }
    let owner = match target.workload {
        None => &None,
        Some(Workload::External(external)) => {
            add("external_workload", &external.name.name);
            &external.owner
        }
        Some(Workload::Pod(pod)) => {
            add("pod", &pod.name.name);
            add("serviceaccount", &pod.service_account);
            if let Some(namespace) = &pod.control_namespace {
                add("control_plane_ns", namespace);
            }
            if let Some(hash) = pod.labels.get("pod-template-hash") {
                add("pod_template_hash", hash);
            }
            &pod.owner
        }
    };
    match owner {
        // `job` is Prometheus' own label (contract 6.3).
        Some((kind, name)) if kind == "job" => add("k8s_job", name),
        Some((kind, name)) => add(kind, name),
        None => None,
    };
    labels
}

fn protocol_hint(
    settings: &Settings,
    target: &Target<'_>,
    workload: Workload<'_>,
    opaque: bool,
) -> ProtocolHint {
    let protocol = match (opaque, settings.enable_h2_upgrade) {
        (true, _) => Some(hint::Protocol::Opaque(hint::Opaque {})),
        (false, true) => Some(hint::Protocol::H2(hint::H2 {})),
        (false, false) => None,
    };
    let inbound = match workload {
        // The proxy's own servers are not behind its inbound port.
        Workload::Pod(pod) => {
            let own = [pod.proxy.admin, pod.proxy.control].contains(&Some(target.port));
            pod.proxy.inbound.filter(|_| !own)
        }
        Workload::External(external) => external.inbound_port(),
    };
    let header = opaque || settings.outbound_transport == OutboundTransport::TransportHeader;
    let inbound = inbound.filter(|_| header && !target.at_node);
    let opaque_transport = inbound.map(|port| hint::OpaqueTransport {
        inbound_port: u32::from(port),
    });
    ProtocolHint {
        protocol,
        opaque_transport,
    }
}

/// Only for pods of this control plane: others have certificates of another trust anchor.
fn pod_identity(mesh: &MeshSettings, pod: &Pod) -> Option<TlsIdentity> {
    if pod.control_namespace.as_deref() != Some(mesh.control_namespace.as_str()) {
        return None;
    }
    let identity = mesh
        .identity(&pod.service_account, &pod.name.namespace)
        .ok()?;
    let name = || tls::DnsLikeIdentity {
        name: identity.as_str().to_owned(),
    };
    Some(TlsIdentity {
        strategy: Some(tls::Strategy::DnsLikeIdentity(name())),
        server_name: Some(name()),
    })
}

fn external_identity(external: &ExternalWorkload) -> TlsIdentity {
    let strategy = match &external.identity {
        Identity::Dns(name) => tls::Strategy::DnsLikeIdentity(tls::DnsLikeIdentity {
            name: name.to_string(),
        }),
        Identity::Uri(uri) => tls::Strategy::UriLikeIdentity(tls::UriLikeIdentity {
            uri: uri.to_string(),
        }),
    };
    TlsIdentity {
        strategy: Some(strategy),
        server_name: Some(tls::DnsLikeIdentity {
            name: external.server_name.to_string(),
        }),
    }
}

fn resource(workload: Workload<'_>) -> meta::Metadata {
    let group = match workload {
        Workload::Pod(_) => "core",
        Workload::External(_) => "workload.linkerd.io",
    };
    let (kind, name) = workload.key();
    metadata(group, kind, name, 0)
}

/// How an object is named in messages.
pub(crate) fn metadata(group: &str, kind: &str, name: &Name, port: u16) -> meta::Metadata {
    meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(meta::Resource {
            group: group.to_owned(),
            kind: kind.to_owned(),
            name: name.name.to_string(),
            namespace: name.namespace.to_string(),
            section: String::new(),
            port: u32::from(port),
        })),
    }
}
