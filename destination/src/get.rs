//! Owns `Get`: which endpoints a Service's port has, and the messages that turn what a client knows into what is true.
//! Does not describe a single endpoint.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
};

use linkerd2_proxy_api::destination::{AddrSet, Update, WeightedAddr, WeightedAddrSet, update};
use tonic::Status;
use weft_cluster::{Name, Query, Reader, Subscription, index::SliceEndpoint};
use weft_runtime::grpc::Source;

use crate::{
    endpoint::{self, Target},
    settings::Settings,
};

/// Addresses in one message: with all their metadata these are about 1 MB, a quarter of what clients take by default.
const MAX_ADDRESSES: usize = 2_000;

/// Which endpoints somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsQuery {
    /// The Service.
    pub service: Name,
    /// Its port.
    pub port: u16,
    /// Only the pod with this host name.
    pub hostname: Option<Arc<str>>,
    /// Zone of the caller.
    pub zone: Option<Arc<str>>,
}

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoints {
    /// No such Service.
    Missing,
    /// The Service is a name for a host outside.
    External,
    /// These, possibly none.
    Known(Arc<EndpointSet>),
}

/// The endpoints of a Service's port.
#[derive(Debug, Default, PartialEq)]
pub struct EndpointSet {
    /// Labels of all of them.
    pub labels: HashMap<String, String>,
    /// Each once. Unchanged ones are the same allocation from one state to the next, so that comparing is cheap.
    pub addresses: BTreeMap<SocketAddr, Arc<WeightedAddr>>,
}

impl Query for EndpointsQuery {
    type State = Endpoints;
    type Settings = Settings;

    fn answer(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        previous: Option<&Endpoints>,
    ) -> Endpoints {
        let Some(service) = index.service(&self.service) else {
            return Endpoints::Missing;
        };
        if service.external_name {
            return Endpoints::External;
        }
        let Some(port) = service.port(self.port) else {
            return Endpoints::Known(Arc::default());
        };
        let known = match previous {
            Some(Endpoints::Known(set)) => Some(&set.addresses),
            _ => None,
        };
        let zone = self.zone.as_deref();
        let mut addresses = BTreeMap::new();
        for (address, endpoint) in self.select(settings, index, &port.name) {
            let pod = endpoint.pod.as_ref().and_then(|name| index.pod(name));
            let target = Target {
                address,
                pod,
                zone: endpoint.zone.as_deref(),
                caller_zone: zone,
            };
            let described = endpoint::describe(index, settings, &target);
            let kept = known
                .and_then(|known| known.get(&address))
                .filter(|old| ***old == described);
            addresses.insert(
                address,
                kept.cloned().unwrap_or_else(|| Arc::new(described)),
            );
        }
        let labels = HashMap::from([
            ("namespace".to_owned(), self.service.namespace.to_string()),
            ("service".to_owned(), self.service.name.to_string()),
        ]);
        Endpoints::Known(Arc::new(EndpointSet { labels, addresses }))
    }
}

impl EndpointsQuery {
    /// The endpoints to announce, each address once. Slices come by name, so the result does not depend on the order in
    /// which they were learnt (cases D01, D03).
    fn select<'a>(
        &self,
        settings: &Settings,
        index: &Reader<'a>,
        port_name: &str,
    ) -> BTreeMap<SocketAddr, &'a SliceEndpoint> {
        let mut found: BTreeMap<SocketAddr, &SliceEndpoint> = BTreeMap::new();
        for slice in index.slices(&self.service) {
            // Each slice has its own number for the port's name (case D05).
            let Some(port) = slice.ports.iter().find(|port| *port.name == *port_name) else {
                continue;
            };
            for endpoint in &slice.endpoints {
                if self.hostname.is_none() || endpoint.hostname == self.hostname {
                    found
                        .entry(SocketAddr::new(endpoint.address, port.number))
                        .or_insert(endpoint);
                }
            }
        }
        self.keep_zone(&mut found);
        keep_family(&mut found, settings.mesh.enable_ipv6);
        found
    }

    /// Zone hints count only when every endpoint has them, and never leave nothing (case L09).
    fn keep_zone(&self, found: &mut BTreeMap<SocketAddr, &SliceEndpoint>) {
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

/// Of a pod with addresses of both families the IPv6 one is kept, if IPv6 is enabled; otherwise only IPv4 is announced.
fn keep_family(found: &mut BTreeMap<SocketAddr, &SliceEndpoint>, ipv6: bool) {
    if !ipv6 {
        found.retain(|address, _| address.is_ipv4());
        return;
    }
    let six = found.iter().filter(|(address, _)| address.is_ipv6());
    let twins: HashSet<(Name, u16)> = six
        .filter_map(|(a, e)| Some((e.pod.clone()?, a.port())))
        .collect();
    found.retain(|address, endpoint| {
        let pod = endpoint.pod.clone().filter(|_| address.is_ipv4());
        pod.is_none_or(|pod| !twins.contains(&(pod, address.port())))
    });
}

/// The messages from one set to another: what is new or different first, so that a client is never left with nothing in
/// between.
pub(crate) fn updates(old: &EndpointSet, new: &EndpointSet) -> VecDeque<Update> {
    let changed = new.addresses.iter().filter(|(address, endpoint)| {
        let known = old.addresses.get(address);
        !known.is_some_and(|known| Arc::ptr_eq(known, endpoint) || known == *endpoint)
    });
    let added: Vec<WeightedAddr> = changed
        .map(|(_, endpoint)| WeightedAddr::clone(endpoint))
        .collect();
    let gone = old
        .addresses
        .keys()
        .filter(|address| !new.addresses.contains_key(address));
    let removed: Vec<_> = gone.map(|address| (*address).into()).collect();
    let adds = added.chunks(MAX_ADDRESSES).map(|addrs| {
        let metric_labels = new.labels.clone();
        update::Update::Add(WeightedAddrSet {
            addrs: addrs.to_vec(),
            metric_labels,
        })
    });
    let removes = removed.chunks(MAX_ADDRESSES).map(|addrs| {
        update::Update::Remove(AddrSet {
            addrs: addrs.to_vec(),
        })
    });
    adds.chain(removes)
        .map(|update| Update {
            update: Some(update),
        })
        .collect()
}

/// The messages of one `Get`. Holds the set it sent last, which it shares with all others that sent it.
pub(crate) struct GetStream {
    subscription: Subscription<EndpointsQuery>,
    sent: Arc<EndpointSet>,
    /// The rest of the messages of one change.
    pending: VecDeque<Update>,
}

impl GetStream {
    pub(crate) fn new(mut subscription: Subscription<EndpointsQuery>) -> (Self, Endpoints) {
        let state = subscription.latest();
        let mut stream = Self {
            subscription,
            sent: Arc::default(),
            pending: VecDeque::new(),
        };
        stream.take(&state);
        (stream, state)
    }

    fn take(&mut self, state: &Endpoints) {
        // A Service that has gone has no endpoints; `NoEndpoints` is never sent (contract 8.1).
        let new = if let Endpoints::Known(set) = state {
            Arc::clone(set)
        } else {
            Arc::default()
        };
        self.pending = updates(&self.sent, &new);
        self.sent = new;
    }
}

impl Source for GetStream {
    type Message = Update;

    async fn next(&mut self) -> Result<Update, Status> {
        loop {
            if let Some(update) = self.pending.pop_front() {
                return Ok(update);
            }
            let state = self.subscription.changed().await;
            self.take(&state);
        }
    }
}
