//! Owns a set of endpoints and the messages that turn what a client knows into it. Each message is encoded once, when the
//! first stream needs it, and shared by all streams that are as far as that one.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, OnceLock, Weak},
};

use bytes::Bytes;
use linkerd2_proxy_api::destination::{AddrSet, Update, WeightedAddr, WeightedAddrSet, update};

use crate::wire;

/// Addresses in one message: with all their metadata these are about 1 MB, a quarter of what clients take by default.
const MAX_ADDRESSES: usize = 2_000;

/// Encoded messages, in order.
pub(super) type Messages = Arc<[Bytes]>;

/// The endpoints of a Service's port.
#[derive(Debug, Default)]
pub struct EndpointSet {
    /// Labels of all of them.
    pub labels: HashMap<String, String>,
    /// Each once. Unchanged ones are the same allocation from one state to the next, so that comparing is cheap.
    pub addresses: BTreeMap<SocketAddr, Arc<WeightedAddr>>,
    /// The set before this one.
    before: Weak<EndpointSet>,
    /// Messages for who knows that one.
    step: OnceLock<Messages>,
    /// Messages for who knows nothing.
    all: OnceLock<Messages>,
}

impl PartialEq for EndpointSet {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.addresses.iter().zip(&other.addresses);
        self.labels == other.labels
            && self.addresses.len() == other.addresses.len()
            && pairs.all(|((a, one), (b, two))| a == b && (Arc::ptr_eq(one, two) || one == two))
    }
}

impl EndpointSet {
    /// The set that follows another one.
    pub(super) fn new(
        labels: HashMap<String, String>,
        addresses: Vec<(SocketAddr, WeightedAddr)>,
        before: Option<&Arc<Self>>,
    ) -> Self {
        let kept = |address: &SocketAddr, described: &WeightedAddr| {
            let old = before?.addresses.get(address)?;
            (**old == *described).then(|| Arc::clone(old))
        };
        let addresses = addresses.into_iter().map(|(address, described)| {
            let kept = kept(&address, &described);
            (address, kept.unwrap_or_else(|| Arc::new(described)))
        });
        Self {
            labels,
            addresses: addresses.collect(),
            before: before.map(Arc::downgrade).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The messages for a client that knows `sent`.
    pub(super) fn messages_after(&self, sent: &Arc<Self>) -> Messages {
        let encoded = || encode(&updates(sent, self));
        if sent.addresses.is_empty() {
            Arc::clone(self.all.get_or_init(encoded))
        } else if std::ptr::eq(self.before.as_ptr(), Arc::as_ptr(sent)) {
            Arc::clone(self.step.get_or_init(encoded))
        } else {
            // Others may have missed other changes, so this is for one client only.
            encoded()
        }
    }
}

fn encode(updates: &[Update]) -> Messages {
    updates.iter().map(wire::encode).collect()
}

/// What is new or different first, so that a client is never left with nothing in between.
fn updates(old: &EndpointSet, new: &EndpointSet) -> Vec<Update> {
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
        update::Update::Add(WeightedAddrSet {
            addrs: addrs.to_vec(),
            metric_labels: new.labels.clone(),
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
