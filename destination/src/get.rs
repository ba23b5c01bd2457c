//! Owns `Get`: which endpoints a Service's port has, for whom. Does not describe a single endpoint and does not make
//! messages.

mod select;
mod updates;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use tonic::Status;
use weft_cluster::{Name, Query, Reader, Subscription, Views};
use weft_runtime::grpc::{self, Source};

pub(crate) use select::{workload_of, zone_of};
pub use updates::EndpointSet;
use updates::Messages;

use crate::{endpoint, settings::Settings};

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
    /// Node of the caller, empty when it does not say; given only for a Service that asks for it, because callers on
    /// different nodes share nothing then.
    pub node: Option<Arc<str>>,
}

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoints {
    /// No such Service.
    Missing,
    /// The Service is a name for a host outside.
    External,
    /// The Service stands for Services of other clusters.
    Multicluster,
    /// The Service's traffic stays on the caller's node, and the question does not say which that is.
    NodeNeeded,
    /// These, possibly none.
    Known(Arc<EndpointSet>),
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
        if service.multicluster {
            return Endpoints::Multicluster;
        }
        if service.local_only && self.node.is_none() {
            return Endpoints::NodeNeeded;
        }
        let previous = match previous {
            Some(Endpoints::Known(set)) => Some(set),
            _ => None,
        };
        let addresses = match service.port(self.port) {
            Some(port) => self
                .select(settings, index, service, port)
                .into_iter()
                .map(|(address, target)| {
                    let described = endpoint::describe(index, settings, address, &target);
                    (address, described)
                })
                .collect(),
            None => Vec::new(),
        };
        let labels = [
            ("namespace".to_owned(), self.service.namespace.to_string()),
            ("service".to_owned(), self.service.name.to_string()),
        ];
        Endpoints::Known(Arc::new(EndpointSet::new(
            labels.into(),
            addresses,
            previous,
        )))
    }
}

/// The messages of one `Get`. Holds the set it sent last and the messages of one change, both shared with all others
/// that sent them.
pub(crate) struct GetStream {
    subscription: Subscription<EndpointsQuery>,
    views: Arc<Views<EndpointsQuery>>,
    query: EndpointsQuery,
    /// Node of the caller, empty when it does not say.
    node: Arc<str>,
    sent: Arc<EndpointSet>,
    /// The messages of one change, and how many of them are sent.
    pending: (Messages, usize),
}

impl GetStream {
    /// # Errors
    /// The Service is not one that has endpoints (contract 8.1), or there are too many questions.
    pub(crate) fn new(
        views: &Arc<Views<EndpointsQuery>>,
        query: EndpointsQuery,
        node: Arc<str>,
    ) -> Result<Self, Status> {
        let mut stream = Self {
            subscription: views.subscribe(query.clone()).map_err(grpc::exhausted)?,
            views: Arc::clone(views),
            query,
            node,
            sent: Arc::default(),
            pending: Default::default(),
        };
        let state = stream.subscription.latest();
        let service = &stream.query.service;
        let what = format!("Service {}.{}", service.name, service.namespace);
        match state {
            Endpoints::Missing => Err(Status::not_found(format!("{what} not found"))),
            Endpoints::External => Err(Status::invalid_argument(format!(
                "{what} is an ExternalName"
            ))),
            Endpoints::Multicluster => Err(Status::unimplemented(format!(
                "{what} stands for Services of other clusters (multicluster.linkerd.io), which this control plane does not serve yet"
            ))),
            state => {
                stream.take(state)?;
                Ok(stream)
            }
        }
    }

    fn take(&mut self, mut state: Endpoints) -> Result<(), Status> {
        if state == Endpoints::NodeNeeded {
            self.query.node = Some(Arc::clone(&self.node));
            let subscription = self.views.subscribe(self.query.clone());
            self.subscription = subscription.map_err(grpc::exhausted)?;
            state = self.subscription.latest();
        }
        // A Service that has gone has no endpoints; `NoEndpoints` is never sent (contract 8.1).
        let new = match state {
            Endpoints::Known(set) => set,
            _ => Arc::default(),
        };
        self.pending = (new.messages_after(&self.sent), 0);
        self.sent = new;
        Ok(())
    }
}

impl Source for GetStream {
    type Message = Bytes;

    async fn next(&mut self) -> Result<Bytes, Status> {
        loop {
            let (messages, sent) = &mut self.pending;
            if let Some(message) = messages.get(*sent) {
                *sent += 1;
                return Ok(message.clone());
            }
            // The next state has other messages; until it comes these need not be kept.
            self.pending = Default::default();
            let state = self.subscription.changed().await;
            self.take(state)?;
        }
    }
}
