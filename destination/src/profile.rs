//! Owns `GetProfile`: what stands behind an address or a name (contract 8.1). ServiceProfile objects are not read.

#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use linkerd2_proxy_api::{
    destination::{DestinationProfile, RetryBudget, WeightedAddr},
    meta,
};
use tonic::Status;
use weft_cluster::{Name, Query, Reader, Subscription, index::SliceEndpoint};
use weft_runtime::grpc::Source;

use crate::{
    endpoint::{self, Target, is_opaque},
    settings::Settings,
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
}

/// The target of a [`ProfileQuery`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileTarget {
    /// A ClusterIP, the address of a pod, or neither.
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
    Known(Arc<DestinationProfile>),
    /// No endpoint of that host name.
    NoHost,
    /// Several Services claim the address.
    Conflict(IpAddr),
}

impl Query for ProfileQuery {
    type State = Profile;
    type Settings = Settings;

    fn answer(&self, settings: &Settings, index: &Reader<'_>, _: Option<&Profile>) -> Profile {
        match &self.target {
            ProfileTarget::Service(name) => {
                known(service_profile(settings, index, name, self.port))
            }
            ProfileTarget::Hostname(service, hostname) => {
                match self.host(settings, index, service, hostname) {
                    Some(profile) => known(profile),
                    None => Profile::NoHost,
                }
            }
            ProfileTarget::Address(ip) => match index.services_at(*ip).as_slice() {
                [] => known(self.address_profile(settings, index, SocketAddr::new(*ip, self.port))),
                [name] => known(service_profile(settings, index, name, self.port)),
                _ => Profile::Conflict(*ip),
            },
        }
    }
}

fn known(profile: DestinationProfile) -> Profile {
    Profile::Known(Arc::new(profile))
}

/// A Service without that port, or none at all, has an empty profile: the client's policy then decides (contract 8.1).
fn service_profile(
    settings: &Settings,
    index: &Reader<'_>,
    name: &Name,
    port: u16,
) -> DestinationProfile {
    let Some(service) = index
        .service(name)
        .filter(|service| service.port(port).is_some())
    else {
        return DestinationProfile::default();
    };
    DestinationProfile {
        fully_qualified_name: settings.mesh.service_name(&name.name, &name.namespace),
        opaque_protocol: service.is_opaque(port, &settings.mesh.default_opaque_ports),
        retry_budget: Some(retry_budget()),
        parent_ref: Some(service_ref(name, port)),
        ..DestinationProfile::default()
    }
}

impl ProfileQuery {
    /// The profile of one endpoint: it has no name.
    fn address_profile(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        address: SocketAddr,
    ) -> DestinationProfile {
        let pod = index.pod_at(address.ip());
        let target = Target {
            address,
            pod,
            zone: None,
            caller_zone: self.zone.as_deref(),
        };
        let opaque = match pod {
            Some(pod) => is_opaque(index, &settings.mesh, pod, address.port()),
            None => settings.mesh.default_opaque_ports.contains(address.port()),
        };
        endpoint_profile(endpoint::describe(index, settings, &target), opaque)
    }

    fn host(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        service: &Name,
        hostname: &Arc<str>,
    ) -> Option<DestinationProfile> {
        let port = index.service(service)?.port(self.port)?;
        let mut candidates = index.slices(service).flat_map(|slice| {
            let number = slice
                .ports
                .iter()
                .find(|p| p.name == port.name)
                .map(|p| p.number);
            slice
                .endpoints
                .iter()
                .filter_map(move |endpoint| Some((number?, endpoint)))
        });
        let usable =
            |endpoint: &SliceEndpoint| settings.mesh.enable_ipv6 || endpoint.address.is_ipv4();
        let (number, found) = candidates.find(|(_, endpoint)| {
            endpoint.hostname.as_ref() == Some(hostname) && usable(endpoint)
        })?;
        let address = SocketAddr::new(found.address, number);
        let pod = found.pod.as_ref().and_then(|name| index.pod(name));
        let target = Target {
            address,
            pod,
            zone: found.zone.as_deref(),
            caller_zone: self.zone.as_deref(),
        };
        let opaque = pod.is_some_and(|pod| is_opaque(index, &settings.mesh, pod, number));
        Some(endpoint_profile(
            endpoint::describe(index, settings, &target),
            opaque,
        ))
    }
}

fn endpoint_profile(endpoint: WeightedAddr, opaque_protocol: bool) -> DestinationProfile {
    let retry_budget = Some(retry_budget());
    DestinationProfile {
        endpoint: Some(endpoint),
        opaque_protocol,
        retry_budget,
        ..DestinationProfile::default()
    }
}

fn retry_budget() -> RetryBudget {
    let ttl = prost_types::Duration::try_from(Duration::from_secs(10)).ok();
    RetryBudget {
        retry_ratio: 0.2,
        min_retries_per_second: 10,
        ttl,
    }
}

fn service_ref(name: &Name, port: u16) -> meta::Metadata {
    meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(meta::Resource {
            group: "core".to_owned(),
            kind: "Service".to_owned(),
            name: name.name.to_string(),
            namespace: name.namespace.to_string(),
            section: String::new(),
            port: u32::from(port),
        })),
    }
}

/// The messages of one `GetProfile`.
pub(crate) struct ProfileStream {
    subscription: Subscription<ProfileQuery>,
    first: Option<Profile>,
}

impl ProfileStream {
    pub(crate) fn new(mut subscription: Subscription<ProfileQuery>) -> Result<Self, Status> {
        let first = subscription.latest();
        message(&first)?;
        Ok(Self {
            subscription,
            first: Some(first),
        })
    }
}

fn message(profile: &Profile) -> Result<DestinationProfile, Status> {
    match profile {
        Profile::Known(profile) => Ok(DestinationProfile::clone(profile)),
        Profile::NoHost => Err(Status::not_found(
            "no endpoint of the Service has that host name",
        )),
        Profile::Conflict(ip) => Err(Status::failed_precondition(format!(
            "more than one Service has the ClusterIP {ip}: change one of them"
        ))),
    }
}

impl Source for ProfileStream {
    type Message = DestinationProfile;

    async fn next(&mut self) -> Result<DestinationProfile, Status> {
        match self.first.take() {
            Some(first) => message(&first),
            None => message(&self.subscription.changed().await),
        }
    }
}
