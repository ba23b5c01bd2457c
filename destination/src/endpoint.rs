//! Owns what is said of one endpoint: the fields of `WeightedAddr` (contract 8.1). Does not choose endpoints.

use std::{collections::HashMap, net::SocketAddr};

use linkerd2_proxy_api::{
    destination::{
        ProtocolHint, TlsIdentity, WeightedAddr, protocol_hint as hint, tls_identity as tls,
    },
    meta,
};
use weft_cluster::{MeshSettings, Reader, index::Pod, objects::policy::ProxyProtocol};

use crate::settings::{OutboundTransport, Settings};

/// Weight of every endpoint.
const WEIGHT: u32 = 10_000;

/// An endpoint to describe.
pub(crate) struct Target<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) pod: Option<&'a Pod>,
    pub(crate) zone: Option<&'a str>,
    /// Zone of the caller.
    pub(crate) caller_zone: Option<&'a str>,
}

/// Whether a port of a pod is opaque: a Server says so, or its annotation, or the default when it has none.
pub fn is_opaque(index: &Reader<'_>, mesh: &MeshSettings, pod: &Pod, port: u16) -> bool {
    let by_server = index
        .server_of(pod, port)
        .is_some_and(|server| server.protocol == ProxyProtocol::Opaque);
    by_server
        || pod
            .opaque_ports
            .as_ref()
            .unwrap_or(&mesh.default_opaque_ports)
            .contains(port)
}

/// Describes an endpoint.
pub(crate) fn describe(
    index: &Reader<'_>,
    settings: &Settings,
    target: &Target<'_>,
) -> WeightedAddr {
    let mut described = WeightedAddr {
        addr: Some(target.address.into()),
        weight: WEIGHT,
        ..WeightedAddr::default()
    };
    described.metric_labels = labels(target);
    let Some(pod) = target.pod else {
        return described;
    };
    let port = target.address.port();
    described.resource_ref = Some(resource("Pod", pod));
    if pod.control_namespace.is_none() || pod.skip_inbound_ports.contains(port) {
        return described;
    }
    let opaque = is_opaque(index, &settings.mesh, pod, port);
    described.protocol_hint = Some(protocol_hint(settings, pod, port, opaque));
    described.tls_identity = tls_identity(&settings.mesh, pod);
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
        _ if target.pod.is_none() => None,
        _ => add("zone_locality", "unknown"),
    };
    if let Some(zone) = target.zone {
        add("zone", zone);
    }
    let Some(pod) = target.pod else { return labels };
    add("pod", &pod.name.name);
    add("serviceaccount", &pod.service_account);
    if let Some((kind, name)) = &pod.owner {
        add(kind, name);
    }
    if let Some(namespace) = &pod.control_namespace {
        add("control_plane_ns", namespace);
    }
    if let Some(hash) = pod.labels.get("pod-template-hash") {
        add("pod_template_hash", hash);
    }
    labels
}

fn protocol_hint(settings: &Settings, pod: &Pod, port: u16, opaque: bool) -> ProtocolHint {
    let protocol = match (opaque, settings.enable_h2_upgrade) {
        (true, _) => Some(hint::Protocol::Opaque(hint::Opaque {})),
        (false, true) => Some(hint::Protocol::H2(hint::H2 {})),
        (false, false) => None,
    };
    // The proxy's own servers are not behind its inbound port.
    let own = [pod.proxy.admin, pod.proxy.control].contains(&Some(port));
    let header = opaque || settings.outbound_transport == OutboundTransport::TransportHeader;
    let inbound = pod.proxy.inbound.filter(|_| header && !own);
    let opaque_transport = inbound.map(|port| hint::OpaqueTransport {
        inbound_port: u32::from(port),
    });
    ProtocolHint {
        protocol,
        opaque_transport,
    }
}

/// Only for pods of this control plane: others have certificates of another trust anchor.
fn tls_identity(mesh: &MeshSettings, pod: &Pod) -> Option<TlsIdentity> {
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

fn resource(kind: &str, pod: &Pod) -> meta::Metadata {
    meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(meta::Resource {
            group: "core".to_owned(),
            kind: kind.to_owned(),
            name: pod.name.name.to_string(),
            namespace: pod.name.namespace.to_string(),
            section: String::new(),
            port: 0,
        })),
    }
}
