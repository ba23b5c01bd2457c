//! Owns outbound policy: what stands behind a target, and the messages of a watch (contract 8.2). What the messages say is
//! put together by the modules below.

mod backends;
mod grpc;
mod http;
mod parent;
mod stream;
mod traffic;

#[cfg(test)]
mod tests;

use std::{cmp::Reverse, net::SocketAddr, sync::Arc};

use linkerd2_proxy_api::outbound::OutboundPolicy;
use tonic::Status;
use weft_cluster::{Name, Query, Reader, Subscription, index::EgressNetwork};
use weft_runtime::grpc::Source;

use crate::settings::Settings;
use parent::{Parent, Target};

/// A target as one namespace sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundQuery {
    /// The target.
    pub target: OutboundTarget,
    /// Namespace of the client, for its own routes and EgressNetworks.
    pub client_namespace: Option<Arc<str>>,
}

/// What a client talks to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundTarget {
    /// An address.
    Address(SocketAddr),
    /// A port of a Service.
    Service(Name, u16),
}

/// What is known of a target.
#[derive(Clone, Debug, PartialEq)]
pub enum Outbound {
    /// This, from that.
    Known(Arc<OutboundPolicy>, Speaker),
    /// Nothing; the client uses what it gets from discovery.
    NotFound,
}

/// What speaks for a target. A watch ends when this becomes another: the client asks again (contract 8.2).
#[derive(Clone, Debug, PartialEq)]
pub enum Speaker {
    /// A Service.
    Service,
    /// An EgressNetwork, as it was.
    EgressNetwork(Arc<EgressNetwork>),
    /// Nothing: the address is outside of the cluster and of all EgressNetworks.
    Nobody,
}

impl Query for OutboundQuery {
    type State = Outbound;
    type Settings = Settings;

    fn answer(&self, settings: &Settings, index: &Reader<'_>, _: Option<&Outbound>) -> Outbound {
        let client = self.client_namespace.as_ref();
        let (name, port) = match &self.target {
            OutboundTarget::Service(name, port) => (name, *port),
            OutboundTarget::Address(address) => match index.services_at(address.ip()).first() {
                Some(name) => (*name, address.port()),
                None => return outside(settings, index, client, *address),
            },
        };
        let Some(service) = index.service(name).filter(|service| !service.external_name) else {
            return Outbound::NotFound;
        };
        let parent = Parent {
            settings,
            index,
            target: Target::Service(name, service),
            port,
            client: client.map(AsRef::as_ref),
        };
        Outbound::Known(Arc::new(parent.policy()), Speaker::Service)
    }
}

/// An address that no Service has.
fn outside(
    settings: &Settings,
    index: &Reader<'_>,
    client: Option<&Arc<str>>,
    address: SocketAddr,
) -> Outbound {
    let mut cluster = settings.mesh.cluster_networks.iter();
    if cluster.any(|net| net.contains(&address.ip())) {
        return Outbound::NotFound;
    }
    let Some(network) = egress_network(settings, index, client, address) else {
        return Outbound::Known(Arc::new(parent::fallback(address)), Speaker::Nobody);
    };
    let parent = Parent {
        settings,
        index,
        target: Target::EgressNetwork(network, address),
        port: address.port(),
        client: client.map(AsRef::as_ref),
    };
    let speaker = Speaker::EgressNetwork(Arc::clone(network));
    Outbound::Known(Arc::new(parent.policy()), speaker)
}

/// Of the client's namespace if that has any at all, else of the global one: the smallest network, then the oldest, then
/// the first by name (contract 8.2).
fn egress_network<'a>(
    settings: &Settings,
    index: &Reader<'a>,
    client: Option<&Arc<str>>,
    address: SocketAddr,
) -> Option<&'a Arc<EgressNetwork>> {
    let own = client.map(|namespace| index.egress_networks(namespace));
    let networks = match own {
        Some(own) if !own.is_empty() => own,
        _ => index.egress_networks(&settings.global_egress_namespace.as_str().into()),
    };
    let matching = networks
        .into_iter()
        .filter_map(|network| Some((network.prefix_of(address.ip())?, network)));
    // They come in the order of names, and min_by_key takes the first of equals.
    let (_, network) =
        matching.min_by_key(|(prefix, network)| (Reverse(*prefix), network.created))?;
    Some(network)
}

/// The messages of one `Watch`.
pub(crate) struct OutboundStream {
    subscription: Subscription<OutboundQuery>,
    first: Option<Arc<OutboundPolicy>>,
    speaker: Speaker,
}

impl OutboundStream {
    /// `None` for a target nothing is known of.
    pub(crate) fn new(mut subscription: Subscription<OutboundQuery>) -> Option<Self> {
        match subscription.latest() {
            Outbound::Known(first, speaker) => Some(Self {
                subscription,
                first: Some(first),
                speaker,
            }),
            Outbound::NotFound => None,
        }
    }
}

impl Source for OutboundStream {
    type Message = OutboundPolicy;

    async fn next(&mut self) -> Result<OutboundPolicy, Status> {
        if let Some(first) = self.first.take() {
            return Ok(OutboundPolicy::clone(&first));
        }
        match self.subscription.changed().await {
            Outbound::Known(policy, speaker) if speaker == self.speaker => {
                Ok(OutboundPolicy::clone(&policy))
            }
            // The end of a stream is no fault, so its status is Ok.
            Outbound::Known(..) => Err(Status::ok(
                "something else speaks for the target: ask again",
            )),
            // The client must not keep sending to a Service that has gone; it asks again and hears the same.
            Outbound::NotFound => Err(Status::not_found("the target is not known any more")),
        }
    }
}
