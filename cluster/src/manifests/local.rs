//! Owns what a cluster adds to manifests and a single machine must add itself: ClusterIPs, slices from pods, pod
//! addresses, the marks of injection. Pure: objects in, objects out.

mod slices;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
};

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;

use crate::{
    index,
    objects::{
        Kind, Name, Object, ObjectRef,
        pod::{Container, EnvVar, Ip, Pod},
    },
};

/// What to complete.
#[derive(Clone, Debug)]
pub struct LocalMesh {
    /// Services without a ClusterIP get one from here.
    pub cluster_ips: Option<Ipv4Net>,
    /// Services with a selector and without slices get slices of the pods they select.
    pub endpoints_from_pods: bool,
    /// All pods without `linkerd.io/inject: disabled` are meshed with the control plane of this namespace.
    pub mesh_all_pods: Option<String>,
}

impl LocalMesh {
    /// Everything completed, all pods meshed with the control plane of a namespace.
    pub fn new(control_namespace: &str) -> Self {
        let cluster_ips =
            Ipv4Net::new(Ipv4Addr::new(10, 96, 0, 0), 16).expect("16 is a prefix length");
        Self {
            cluster_ips: Some(cluster_ips),
            endpoints_from_pods: true,
            mesh_all_pods: Some(control_namespace.to_owned()),
        }
    }

    /// Nothing completed: the manifests say it all, as a dump of a cluster does.
    pub fn nothing() -> Self {
        Self {
            cluster_ips: None,
            endpoints_from_pods: false,
            mesh_all_pods: None,
        }
    }
}

/// What the local mesh has decided so far; kept so that an address never changes once it is given.
#[derive(Debug, Default)]
pub(super) struct Assigned {
    cluster_ips: HashMap<Name, Ipv4Addr>,
    /// Addresses of pods that were started here.
    pub(super) pod_ips: HashMap<Name, IpAddr>,
}

/// A Service, for whoever runs workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalService {
    /// Its name.
    pub name: Name,
    /// Its first ClusterIP.
    pub cluster_ip: Option<IpAddr>,
    /// Names (empty = none) and numbers of its ports.
    pub ports: Vec<(String, u16)>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A pod, for whoever runs workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    /// Its name.
    pub name: Name,
    /// Its address, if it has one by now.
    pub ip: Option<IpAddr>,
    /// Names (empty = none) and numbers of its container ports.
    pub ports: Vec<(String, u16)>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its service account.
    pub service_account: String,
}

/// Completes a set of objects.
pub(super) fn complete(
    objects: Vec<Object>,
    options: &LocalMesh,
    assigned: &mut Assigned,
) -> BTreeMap<ObjectRef, Object> {
    let mut objects: BTreeMap<ObjectRef, Object> =
        objects.into_iter().map(|o| (o.reference(), o)).collect();
    for (reference, object) in &mut objects {
        if let Object::Pod(pod) = object {
            if let Some(namespace) = &options.mesh_all_pods {
                mark_meshed(pod, namespace);
            }
            if let Some(ip) = assigned.pod_ips.get(&reference.name) {
                set_pod_ip(pod, *ip);
            }
        }
    }
    if let Some(network) = options.cluster_ips {
        assign_cluster_ips(&mut objects, network, assigned);
    }
    if options.endpoints_from_pods {
        let made = slices::from_pods(&objects);
        objects.extend(made.into_iter().map(|slice| (slice.reference(), slice)));
    }
    objects
}

/// Adds what the injector adds to a pod, as far as discovery and policy look at it (contract 8.1).
fn mark_meshed(pod: &mut Pod, control_namespace: &str) {
    let annotations = pod.metadata.annotations.as_ref();
    if annotations
        .and_then(|a| a.get("linkerd.io/inject"))
        .is_some_and(|v| v == "disabled")
    {
        return;
    }
    let labels = pod.metadata.labels.get_or_insert_default();
    labels
        .entry(index::CONTROL_NAMESPACE_LABEL.to_owned())
        .or_insert_with(|| control_namespace.to_owned());
    let spec = pod.spec.get_or_insert_default();
    let has_proxy = |c: &Container| c.name == index::PROXY_CONTAINER;
    if spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .any(has_proxy)
    {
        return;
    }
    let listen = |name: &str, port: u16| EnvVar {
        name: format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"),
        value: Some(format!("0.0.0.0:{port}")),
    };
    spec.containers.push(Container {
        name: index::PROXY_CONTAINER.to_owned(),
        env: Some(vec![
            listen("INBOUND", 4143),
            listen("ADMIN", 4191),
            listen("CONTROL", 4190),
        ]),
        ..Container::default()
    });
}

fn set_pod_ip(pod: &mut Pod, ip: IpAddr) {
    let status = pod.status.get_or_insert_default();
    status.pod_ip = Some(ip.to_string());
    status.pod_ips = Some(vec![Ip { ip: ip.to_string() }]);
}

/// Gives each Service that wants one a ClusterIP: from the hash of its name, the next free one if that is taken.
fn assign_cluster_ips(
    objects: &mut BTreeMap<ObjectRef, Object>,
    network: Ipv4Net,
    assigned: &mut Assigned,
) {
    let services = || {
        objects.values().filter_map(|o| {
            if let Object::Service(s) = o {
                Some((o.name(), s))
            } else {
                None
            }
        })
    };
    let mut taken: HashSet<Ipv4Addr> = services()
        .filter_map(|(_, s)| s.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok())
        .collect();
    let wanting: BTreeSet<Name> = services()
        .filter(|(_, s)| wants_cluster_ip(s))
        .map(|(name, _)| name)
        .collect();
    assigned
        .cluster_ips
        .retain(|name, ip| wanting.contains(name) && !taken.contains(ip));
    taken.extend(assigned.cluster_ips.values());
    for name in wanting {
        let given = assigned
            .cluster_ips
            .get(&name)
            .copied()
            .or_else(|| free_address(&name, network, &taken));
        let Some(ip) = given else {
            tracing::warn!(service = %name, %network, "no address is left for this Service: give it a clusterIP");
            continue;
        };
        taken.insert(ip);
        assigned.cluster_ips.insert(name.clone(), ip);
        if let Some(Object::Service(service)) = objects.get_mut(&ObjectRef {
            kind: Kind::Service,
            name,
        }) {
            let spec = service.spec.get_or_insert_default();
            spec.cluster_ip = Some(ip.to_string());
            spec.cluster_ips = Some(vec![ip.to_string()]);
        }
    }
}

fn wants_cluster_ip(service: &Service) -> bool {
    let Some(spec) = &service.spec else {
        return true;
    };
    spec.cluster_ip.as_deref().is_none_or(str::is_empty)
        && spec.type_.as_deref() != Some("ExternalName")
}

fn free_address(name: &Name, network: Ipv4Net, taken: &HashSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    // Without the network's own address and the broadcast address.
    let hosts = u64::from(u32::from(network.broadcast()) - u32::from(network.network()));
    let hosts = hosts.checked_sub(1).filter(|hosts| *hosts > 0)?;
    let start = u64::from(fnv(&name.to_string()));
    let first = u64::from(u32::from(network.network())) + 1;
    (0..hosts)
        .filter_map(|step| u32::try_from(first + (start + step) % hosts).ok())
        .map(Ipv4Addr::from)
        .find(|ip| !taken.contains(ip))
}

/// FNV-1a: the same on each machine and in each version, which the standard hashers do not promise.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The Services of a completed set.
pub(super) fn services(objects: &BTreeMap<ObjectRef, Object>) -> Vec<LocalService> {
    let listed = objects.values().filter_map(|object| {
        let Object::Service(service) = object else {
            return None;
        };
        let spec = service.spec.clone().unwrap_or_default();
        Some(LocalService {
            name: object.name(),
            cluster_ip: spec.cluster_ip.and_then(|ip| ip.parse().ok()),
            ports: spec
                .ports
                .into_iter()
                .flatten()
                .filter_map(|p| Some((p.name.unwrap_or_default(), u16::try_from(p.port).ok()?)))
                .collect(),
            annotations: service.metadata.annotations.clone().unwrap_or_default(),
        })
    });
    listed.collect()
}

/// The pods of a completed set.
pub(super) fn pods(objects: &BTreeMap<ObjectRef, Object>) -> Vec<LocalPod> {
    let listed = objects.values().filter_map(|object| {
        let Object::Pod(pod) = object else {
            return None;
        };
        let spec = pod.spec.clone().unwrap_or_default();
        let ports = spec
            .containers
            .iter()
            .flat_map(|c| c.ports.iter().flatten());
        Some(LocalPod {
            name: object.name(),
            ip: pod
                .status
                .as_ref()
                .and_then(|s| s.pod_ip.as_ref()?.parse().ok()),
            ports: ports
                .filter_map(|p| {
                    Some((
                        p.name.clone().unwrap_or_default(),
                        u16::try_from(p.container_port).ok()?,
                    ))
                })
                .collect(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            service_account: spec
                .service_account_name
                .unwrap_or_else(|| "default".to_owned()),
        })
    });
    listed.collect()
}

#[cfg(test)]
mod tests;
