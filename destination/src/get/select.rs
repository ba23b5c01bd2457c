//! Owns the choice of the endpoints to announce and its order (contract 8.1): host name, the caller's node, zone hints,
//! address family. Does not describe them.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use weft_cluster::{
    Reader,
    index::{EndpointTarget, PortRef, Service, ServicePort, SliceEndpoint},
};

use super::EndpointsQuery;
use crate::{
    endpoint::{Target, Workload},
    settings::Settings,
};

/// An endpoint that may be announced.
struct Found<'a> {
    workload: Option<Workload<'a>>,
    node: Option<&'a str>,
    zone: Option<&'a str>,
    for_zones: &'a [Arc<str>],
}

/// Each address once, in order: the result does not depend on the order in which slices were learnt (cases D01, D03).
type FoundAt<'a> = BTreeMap<SocketAddr, Found<'a>>;

impl EndpointsQuery {
    pub(super) fn select<'a>(
        &'a self,
        settings: &Settings,
        index: &Reader<'a>,
        service: &'a Service,
        port: &ServicePort,
    ) -> Vec<(SocketAddr, Target<'a>)> {
        let mut found = self.in_slices(index, &port.name);
        if self.hostname.is_none() {
            self.add_external(settings, index, service, port, &mut found);
        }
        if service.local_only {
            found.retain(|_, endpoint| endpoint.node == self.node.as_deref());
        }
        self.keep_zone(&mut found);
        keep_family(&mut found, settings.mesh.enable_ipv6);
        let caller_zone = self.zone.as_deref();
        let target = |(address, found): (SocketAddr, Found<'a>)| {
            let target = Target {
                workload: found.workload,
                port: address.port(),
                at_node: false,
                zone: found.zone,
                caller_zone,
            };
            (address, target)
        };
        found.into_iter().map(target).collect()
    }

    /// What the slices have under the name of the port.
    fn in_slices<'a>(&self, index: &Reader<'a>, port_name: &str) -> FoundAt<'a> {
        let mut found = FoundAt::new();
        for slice in index.slices(&self.service) {
            // Each slice has its own number for the port's name (case D05).
            let Some(port) = slice.ports.iter().find(|port| *port.name == *port_name) else {
                continue;
            };
            for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready) {
                if self.hostname.is_some() && endpoint.hostname != self.hostname {
                    continue;
                }
                let Some(workload) = workload_of(index, endpoint) else {
                    continue;
                };
                let address = SocketAddr::new(endpoint.address, port.number);
                found.entry(address).or_insert_with(|| Found {
                    workload,
                    node: endpoint.node.as_deref(),
                    zone: zone_of(index, endpoint),
                    for_zones: &endpoint.for_zones,
                });
            }
        }
        found
    }

    /// External workloads that the Service selects. Linkerd's controller writes slices for them; here they are found
    /// without, and slices that are there already say the same.
    fn add_external<'a>(
        &self,
        settings: &Settings,
        index: &Reader<'a>,
        service: &Service,
        port: &ServicePort,
        found: &mut FoundAt<'a>,
    ) {
        let Some(selector) = &service.selector else {
            return;
        };
        for external in index.workloads(&self.service.namespace) {
            // Nothing writes statuses on a single machine.
            let ready = external
                .ready
                .unwrap_or(settings.mesh.external_workloads_ready);
            let number = match &port.target {
                PortRef::Number(number) => Some(*number),
                PortRef::Name(name) => external.port_named(name),
            };
            let Some(number) = number.filter(|_| ready && selector.matches(&external.labels))
            else {
                continue;
            };
            for ip in &external.ips {
                let address = SocketAddr::new(*ip, number);
                found.entry(address).or_insert(Found {
                    workload: Some(Workload::External(external)),
                    node: None,
                    zone: None,
                    for_zones: &[],
                });
            }
        }
    }

    /// Zone hints count only when every endpoint has them, and never leave nothing (case L09).
    fn keep_zone(&self, found: &mut FoundAt<'_>) {
        let Some(zone) = &self.zone else { return };
        let hinted = found
            .values()
            .all(|endpoint| !endpoint.for_zones.is_empty());
        if hinted
            && found
                .values()
                .any(|endpoint| endpoint.for_zones.contains(zone))
        {
            found.retain(|_, endpoint| endpoint.for_zones.contains(zone));
        }
    }
}

/// What is behind an endpoint: `Some(None)` is a plain address. `None` means that it is left out: the slice names a
/// workload that is not known, yet or any more. Announced without its identity, a meshed pod would get plain text.
#[expect(
    clippy::option_option,
    reason = "a plain address and an unknown workload are two different things"
)]
pub(crate) fn workload_of<'a>(
    index: &Reader<'a>,
    endpoint: &SliceEndpoint,
) -> Option<Option<Workload<'a>>> {
    match &endpoint.target {
        None => Some(None),
        Some(EndpointTarget::Pod(name)) => Some(Some(Workload::Pod(index.pod(name)?))),
        Some(EndpointTarget::Workload(name)) => {
            Some(Some(Workload::External(index.workload(name)?)))
        }
    }
}

/// The zone a slice says, or that of the node it says.
pub(crate) fn zone_of<'a>(index: &Reader<'a>, endpoint: &'a SliceEndpoint) -> Option<&'a str> {
    let of_node = || index.node(endpoint.node.as_deref()?)?.zone.as_deref();
    endpoint.zone.as_deref().or_else(of_node)
}

/// Of a workload with addresses of both families the IPv6 one is kept, if IPv6 is enabled; otherwise only IPv4 is
/// announced.
fn keep_family(found: &mut FoundAt<'_>, ipv6: bool) {
    if !ipv6 {
        found.retain(|address, _| address.is_ipv4());
        return;
    }
    let six = found.iter().filter(|(address, _)| address.is_ipv6());
    let twins: HashSet<_> = six
        .filter_map(|(a, found)| Some((found.workload?.key(), a.port())))
        .collect();
    found.retain(|address, found| {
        let key = found.workload.map(|workload| workload.key());
        address.is_ipv6() || key.is_none_or(|key| !twins.contains(&(key, address.port())))
    });
}
