//! Owns `GetProfile`: what stands behind an address or a name (contract 8.1). Does not turn ServiceProfile objects into
//! messages and does not describe endpoints.

mod object;

#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use linkerd2_proxy_api::destination::{DestinationProfile, RetryBudget};
use tonic::Status;
use weft_cluster::{Name, Query, Reader, Subscription};
use weft_runtime::grpc::Source;

use crate::{
    endpoint::{self, Target, Workload},
    get::{workload_of, zone_of},
    settings::Settings,
    wire,
};

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileQuery {
    /// The target.
    pub target: ProfileTarget,
    /// Its port.
    pub port: u16,
    /// Zone of the caller.
    pub zone: Option<Arc<str>>,
    /// Namespace of the caller, whose ServiceProfiles win.
    pub namespace: Option<Arc<str>>,
}

/// The target of a [`ProfileQuery`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileTarget {
    /// A ClusterIP, the address of a workload, or neither.
    Address(IpAddr),
    /// A Service.
    Service(Name),
    /// A pod by its host name under a Service.
    Hostname(Name, Arc<str>),
}

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Profile {
    /// This.
    Known(Arc<KnownProfile>),
    /// No endpoint of that host name.
    NoHost,
    /// Several Services claim the address.
    Conflict(IpAddr),
}

/// A profile, and its message once somebody has needed it.
#[derive(Debug)]
pub struct KnownProfile {
    /// What it says.
    pub profile: DestinationProfile,
    message: OnceLock<Bytes>,
}

impl PartialEq for KnownProfile {
    fn eq(&self, other: &Self) -> bool {
        self.profile == other.profile
    }
}

impl Query for ProfileQuery {
    type State = Profile;
    type Settings = Settings;

    fn answer(&self, settings: &Settings, index: &Reader<'_>, _: Option<&Profile>) -> Profile {
        match &self.target {
            ProfileTarget::Service(name) => known(self.of_service(settings, index, name)),
            ProfileTarget::Hostname(service, hostname) => {
                match self.of_host(settings, index, service, hostname) {
                    Some(profile) => known(profile),
                    None => Profile::NoHost,
                }
            }
            ProfileTarget::Address(ip) => match index.services_at(*ip).as_slice() {
                [] => known(self.of_address(settings, index, SocketAddr::new(*ip, self.port))),
                [name] => known(self.of_service(settings, index, name)),
                _ => Profile::Conflict(*ip),
            },
        }
    }
}

fn known(profile: DestinationProfile) -> Profile {
    Profile::Known(Arc::new(KnownProfile {
        profile,
        message: OnceLock::new(),
    }))
}

impl ProfileQuery {
    /// A Service without that port, or none at all, has an empty profile: the client's policy then decides (contract
    /// 8.1). So has an ExternalName: its address is somewhere else (case D09).
    fn of_service(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        name: &Name,
    ) -> DestinationProfile {
        let (mesh, port) = (&settings.mesh, self.port);
        let service = index.service(name);
        let Some(service) = service.filter(|s| !s.external_name && s.port(port).is_some()) else {
            return DestinationProfile::default();
        };
        let fully_qualified_name = mesh.service_name(&name.name, &name.namespace);
        let object = self
            .namespace
            .iter()
            .chain([&name.namespace])
            .find_map(|ns| index.service_profile(&Name::new(ns, &fully_qualified_name)));
        let by_profile = object.is_some_and(|object| object.opaque_ports.contains(port));
        let mut profile = DestinationProfile {
            fully_qualified_name,
            opaque_protocol: by_profile || service.is_opaque(port, &mesh.default_opaque_ports),
            retry_budget: Some(retry_budget()),
            parent_ref: Some(endpoint::metadata("core", "Service", name, port)),
            ..DestinationProfile::default()
        };
        if let Some(object) = object {
            object::apply(object, port, &mesh.cluster_domain, &mut profile);
        }
        profile
    }

    /// The profile of one endpoint: it has no name.
    fn of_address(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        address: SocketAddr,
    ) -> DestinationProfile {
        let (workload, port, at_node) = if let Some(pod) = index.pod_at(address.ip()) {
            (Some(Workload::Pod(pod)), address.port(), false)
        } else if let Some((pod, port)) = index.pod_at_host_port(address) {
            (Some(Workload::Pod(pod)), port, true)
        } else {
            let external = index.workload_at(address.ip());
            (external.map(Workload::External), address.port(), false)
        };
        let node = match workload {
            Some(Workload::Pod(pod)) => pod.node.as_deref().and_then(|node| index.node(node)),
            _ => None,
        };
        let target = Target {
            workload,
            port,
            at_node,
            zone: node.and_then(|node| node.zone.as_deref()),
            caller_zone: self.zone.as_deref(),
        };
        endpoint_profile(settings, index, address, &target)
    }

    /// A pod counts when it runs (contract 8.1); one that is ready is preferred, and then its IPv6 address if IPv6 is
    /// enabled.
    fn of_host(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        service: &Name,
        hostname: &Arc<str>,
    ) -> Option<DestinationProfile> {
        let port = index.service(service)?.port(self.port)?;
        let mut best: Option<((bool, bool), SocketAddr, Target<'_>)> = None;
        for slice in index.slices(service) {
            let Some(number) = slice.ports.iter().find(|p| p.name == port.name) else {
                continue;
            };
            let named = slice.endpoints.iter();
            for found in named.filter(|found| found.hostname.as_ref() == Some(hostname)) {
                let Some(workload) = workload_of(index, found) else {
                    continue;
                };
                let running = matches!(workload, Some(Workload::Pod(pod)) if pod.running);
                let family = found.address.is_ipv4() || settings.mesh.enable_ipv6;
                let rank = (found.ready, found.address.is_ipv6());
                let better = best.as_ref().is_none_or(|(known, ..)| rank > *known);
                if family && better && (found.ready || running) {
                    let address = SocketAddr::new(found.address, number.number);
                    let target = Target {
                        workload,
                        port: number.number,
                        at_node: false,
                        zone: zone_of(index, found),
                        caller_zone: self.zone.as_deref(),
                    };
                    best = Some((rank, address, target));
                }
            }
        }
        let (_, address, target) = best?;
        Some(endpoint_profile(settings, index, address, &target))
    }
}

fn endpoint_profile(
    settings: &Settings,
    index: &Reader<'_>,
    address: SocketAddr,
    target: &Target<'_>,
) -> DestinationProfile {
    let mesh = &settings.mesh;
    let mut endpoint = endpoint::describe(index, settings, address, target);
    let opaque_protocol = match target.workload {
        Some(workload) => {
            // Without a set that says it, the endpoint does, as Linkerd has it.
            let namespace = workload.key().1.namespace.to_string();
            endpoint
                .metric_labels
                .insert("namespace".to_owned(), namespace);
            workload.is_opaque(index, mesh, target.port)
        }
        None => mesh.default_opaque_ports.contains(target.port),
    };
    DestinationProfile {
        endpoint: Some(endpoint),
        opaque_protocol,
        retry_budget: Some(retry_budget()),
        ..DestinationProfile::default()
    }
}

/// The budget where nothing else is said (contract 8.1).
fn retry_budget() -> RetryBudget {
    let ttl = prost_types::Duration::try_from(Duration::from_secs(10)).ok();
    RetryBudget {
        retry_ratio: 0.2,
        min_retries_per_second: 10,
        ttl,
    }
}

/// The messages of one `GetProfile`.
pub(crate) struct ProfileStream {
    subscription: Subscription<ProfileQuery>,
    first: Option<Bytes>,
}

impl ProfileStream {
    /// # Errors
    /// There is no such endpoint, or the address has no single owner.
    pub(crate) fn new(mut subscription: Subscription<ProfileQuery>) -> Result<Self, Status> {
        let first = message(&subscription.latest())?;
        Ok(Self {
            subscription,
            first: Some(first),
        })
    }
}

fn message(profile: &Profile) -> Result<Bytes, Status> {
    match profile {
        Profile::Known(known) => {
            let message = known.message.get_or_init(|| wire::encode(&known.profile));
            Ok(message.clone())
        }
        Profile::NoHost => Err(Status::not_found(
            "no endpoint of the Service has that host name",
        )),
        Profile::Conflict(ip) => Err(Status::failed_precondition(format!(
            "more than one Service has the ClusterIP {ip}: change one of them"
        ))),
    }
}

impl Source for ProfileStream {
    type Message = Bytes;

    async fn next(&mut self) -> Result<Bytes, Status> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => message(&self.subscription.changed().await),
        }
    }
}
