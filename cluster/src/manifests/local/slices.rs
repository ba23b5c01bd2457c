//! Owns the stand-in for Kubernetes' endpoint controller: slices of Services from the pods they select. Services that
//! have slices of their own, or no selector, are left alone.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
};

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Service, ServicePort},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};

use crate::{
    index::{SERVICE_NAME_LABEL, Selector},
    objects::{
        Name, Object, ObjectRef,
        pod::{Container, Pod},
    },
};

/// Ports of a group of endpoints: name, number, TCP or not is the Service's.
type Ports = Vec<(Option<String>, u16)>;

pub(super) fn from_pods(objects: &BTreeMap<ObjectRef, Object>) -> Vec<Object> {
    let covered: HashSet<Name> = objects.values().filter_map(service_of_slice).collect();
    let pods: Vec<(Name, &Pod)> = objects
        .values()
        .filter_map(|object| {
            if let Object::Pod(pod) = object {
                Some((object.name(), &**pod))
            } else {
                None
            }
        })
        .collect();
    let mut slices = Vec::new();
    for object in objects.values() {
        if let Object::Service(service) = object
            && !covered.contains(&object.name())
        {
            slices.extend(of_service(&object.name(), service, &pods));
        }
    }
    slices
}

fn service_of_slice(object: &Object) -> Option<Name> {
    let Object::EndpointSlice(slice) = object else {
        return None;
    };
    let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    Some(Name::new(&object.name().namespace, service))
}

/// One slice per address family and set of port numbers: pods may have different numbers under one name (case D05).
fn of_service(name: &Name, service: &Service, pods: &[(Name, &Pod)]) -> Vec<Object> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let Some(labels) = spec.selector.as_ref().filter(|labels| !labels.is_empty()) else {
        return Vec::new();
    };
    let selector = Selector::equal(labels);
    let mut groups: BTreeMap<(&str, Ports), Vec<Endpoint>> = BTreeMap::new();
    for (pod_name, pod) in pods
        .iter()
        .filter(|(pod_name, _)| pod_name.namespace == name.namespace)
    {
        let Some(labels) = &pod.metadata.labels else {
            continue;
        };
        let Some(ip) = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref()?.parse::<IpAddr>().ok())
        else {
            continue;
        };
        if ended(pod) || !selector.matches(labels) {
            continue;
        }
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let ports = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| target(port, pod))
            .collect();
        groups
            .entry((family, ports))
            .or_default()
            .push(endpoint(pod_name, pod, ip, name));
    }
    let slices = groups.into_iter().enumerate();
    slices
        .map(|(index, ((family, ports), endpoints))| slice(name, index, family, ports, endpoints))
        .collect()
}

/// Number of a Service's port at a pod; none when the pod has no port of the name.
fn target(port: &ServicePort, pod: &Pod) -> Option<(Option<String>, u16)> {
    if port
        .protocol
        .as_deref()
        .is_some_and(|protocol| protocol != "TCP")
    {
        return None;
    }
    let number = match &port.target_port {
        None => u16::try_from(port.port).ok()?,
        Some(IntOrString::Int(0)) => u16::try_from(port.port).ok()?,
        Some(IntOrString::Int(number)) => u16::try_from(*number).ok()?,
        Some(IntOrString::String(name)) => named_port(pod, name)?,
    };
    (number > 0).then(|| (port.name.clone().filter(|name| !name.is_empty()), number))
}

/// A port in an init container counts too: native sidecars are there (case D06).
fn named_port(pod: &Pod, name: &str) -> Option<u16> {
    let spec = pod.spec.as_ref()?;
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let mut ports = containers.flat_map(|container: &Container| container.ports.iter().flatten());
    u16::try_from(
        ports
            .find(|port| port.name.as_deref() == Some(name))?
            .container_port,
    )
    .ok()
}

fn ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// A pod without a Ready condition is ready: nobody writes conditions on a single machine.
fn ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .filter(|condition| condition.type_ == "Ready")
        .all(|condition| condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

fn endpoint(name: &Name, pod: &Pod, ip: IpAddr, service: &Name) -> Endpoint {
    let spec = pod.spec.as_ref();
    // As in a cluster, a host name counts under the Service that the pod names as its subdomain.
    let hostname = spec
        .filter(|s| s.subdomain.as_deref() == Some(&*service.name))
        .and_then(|s| s.hostname.clone());
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready(pod)),
            ..EndpointConditions::default()
        }),
        hostname,
        node_name: spec.and_then(|s| s.node_name.clone()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(name.namespace.to_string()),
            name: Some(name.name.to_string()),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

fn slice(
    service: &Name,
    index: usize,
    family: &str,
    ports: Ports,
    endpoints: Vec<Endpoint>,
) -> Object {
    let ports = ports.into_iter().map(|(name, number)| EndpointPort {
        name,
        port: Some(i32::from(number)),
        protocol: Some("TCP".to_owned()),
        app_protocol: None,
    });
    Object::EndpointSlice(Box::new(EndpointSlice {
        address_type: family.to_owned(),
        endpoints,
        metadata: ObjectMeta {
            name: Some(format!("{}-local-{index}", service.name)),
            namespace: Some(service.namespace.to_string()),
            labels: Some(BTreeMap::from([(
                SERVICE_NAME_LABEL.to_owned(),
                service.name.to_string(),
            )])),
            ..ObjectMeta::default()
        },
        ports: Some(ports.collect()),
    }))
}
