//! Owns `Backends`: the balancers and endpoints that policies lead to, shared between equal uses
//! and fed by discovery for as long as somebody uses them. Does not choose.

use super::Context;
use super::balance::{Balancer, Traffic};
use super::endpoint::{Endpoint, LoadSettings, Metadata};
use crate::control::stream::{self, Event, Watch};
use crate::convert::{self, ConvertError, Meta};
use crate::metrics::balancer::resource_labels;
use linkerd2_proxy_api::destination::destination_client::DestinationClient;
use linkerd2_proxy_api::destination::{self as destination, update};
use linkerd2_proxy_api::outbound as api;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use tonic::transport::Channel;

/// Where a rule may lead.
pub enum Backend {
    /// A service.
    Service(Arc<Service>),
    /// One address.
    Address(Arc<Endpoint>),
    /// Nowhere, and why.
    Missing(Arc<str>),
}

impl Backend {
    /// Whether a request would be answered without waiting for an endpoint.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Service(service) => service.balancer.is_ready(),
            // What is missing fails its share, at once (contract 8.2): that share is not the others'.
            Self::Address(_) | Self::Missing(_) => true,
        }
    }
}

/// A balancer whose endpoints are being discovered.
pub struct Service {
    /// The balancer.
    pub balancer: Arc<Balancer>,
    _discovery: AbortOnDropHandle<()>,
}

/// What makes two uses of a service equal.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    path: String,
    traffic: Traffic,
    parent: Meta,
    backend: Meta,
    load: (std::time::Duration, std::time::Duration),
}

/// Makes backends.
pub struct Backends {
    context: Arc<Context>,
    client: DestinationClient<Channel>,
    watch: Watch,
    /// Sent with each query (contract 1.2).
    context_token: String,
    services: Mutex<HashMap<Key, Weak<Service>>>,
}

impl Backends {
    /// No backends yet. `watch` says how streams are kept.
    pub fn new(
        context: Arc<Context>,
        client: DestinationClient<Channel>,
        context_token: String,
        watch: Watch,
    ) -> Self {
        Self {
            context,
            client,
            watch,
            context_token,
            services: Mutex::default(),
        }
    }

    /// What every outbound part shares.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Reads a backend of a policy.
    ///
    /// # Errors
    /// What is not understood.
    pub fn read(
        &self,
        parent: &Meta,
        backend: Option<api::Backend>,
        traffic: Traffic,
    ) -> Result<Backend, ConvertError> {
        let backend = backend.ok_or(ConvertError::Missing("backend"))?;
        let meta = convert::meta(backend.metadata)?;
        match backend.kind {
            None => Ok(Backend::Missing(meta.name)),
            Some(api::backend::Kind::Forward(addr)) => self.address(addr),
            Some(api::backend::Kind::Balancer(p2c)) => {
                use api::backend::endpoint_discovery::Kind;
                let discovery = p2c.discovery.and_then(|d| d.kind);
                let Some(Kind::Dst(dst)) = discovery else {
                    return Err(ConvertError::Missing("balancer.discovery"));
                };
                let load = load_settings(p2c.load)?;
                Ok(self.service(dst.path, traffic, parent, meta, load))
            }
        }
    }

    /// A single address, as discovery describes it.
    ///
    /// # Errors
    /// What is not understood.
    pub fn address(&self, addr: destination::WeightedAddr) -> Result<Backend, ConvertError> {
        let (addr, metadata) = Metadata::read(addr, &HashMap::new())?;
        Ok(self.endpoint(addr, metadata))
    }

    /// A single address.
    pub fn endpoint(&self, addr: SocketAddr, metadata: Metadata) -> Backend {
        let load = LoadSettings::default();
        let name = addr.to_string();
        let endpoint = Endpoint::new(&self.context, &name, addr, metadata, load);
        Backend::Address(Arc::new(endpoint))
    }

    /// A service, discovered from now on if nobody else uses it.
    pub fn service(
        &self,
        path: String,
        traffic: Traffic,
        parent: &Meta,
        backend: Meta,
        load: LoadSettings,
    ) -> Backend {
        let key = Key {
            path,
            traffic,
            parent: parent.clone(),
            backend,
            load: (load.default_rtt, load.decay),
        };
        let mut services = self.services.lock();
        if let Some(service) = services.get(&key).and_then(Weak::upgrade) {
            return Backend::Service(service);
        }
        services.retain(|_, service| service.strong_count() > 0);
        let service = self.start(&key, load);
        services.insert(key, Arc::downgrade(&service));
        Backend::Service(service)
    }

    fn start(&self, key: &Key, load: LoadSettings) -> Arc<Service> {
        let labels = resource_labels(&key.parent, &key.backend);
        let context = &self.context;
        let metrics = match key.traffic {
            Traffic::Http => {
                let failfast = context.settings.side.http.failfast_timeout;
                context
                    .metrics
                    .http_balancer
                    .series(&labels.done(), failfast)
            }
            Traffic::Tcp => {
                let failfast = context.settings.tcp.failfast_timeout;
                let labels = labels
                    .with("logical", key.path.as_str())
                    .with("concrete", key.path.as_str());
                context
                    .metrics
                    .tcp_balancer
                    .series(&labels.done(), failfast)
            }
        };
        let name = match key.traffic {
            Traffic::Http => key.path.strip_suffix(":80").unwrap_or(&key.path),
            Traffic::Tcp => &key.path,
        };
        let balancer = Balancer::new(context.clone(), name.into(), key.traffic, load, metrics);
        let discovery = tokio::spawn(self.discover(key.path.clone(), balancer.clone()));
        Arc::new(Service {
            balancer,
            _discovery: AbortOnDropHandle::new(discovery),
        })
    }

    /// Feeds a balancer from `Destination.Get` (contract 4.1, 8.1).
    fn discover(
        &self,
        path: String,
        balancer: Arc<Balancer>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let watch = Watch {
            what: format!("endpoints of {path}"),
            terminal: &[Code::InvalidArgument, Code::FailedPrecondition],
            ..self.watch.clone()
        };
        let client = self.client.clone();
        let query = destination::GetDestination {
            path,
            context_token: self.context_token.clone(),
            ..Default::default()
        };
        async move {
            let mut fresh = true;
            let open = || {
                let (mut client, query) = (client.clone(), query.clone());
                stream::opening(async move { client.get(query).await })
            };
            let on = |event| match event {
                Event::Opened => fresh = true,
                Event::Message(update) => apply(&balancer, update, &mut fresh, &watch.what),
            };
            let status = stream::watch(&watch, open, on).await;
            tracing::error!(watch = %watch.what, code = ?status.code(), error = status.message(),
                "discovery refuses: the service gets no endpoints");
        }
    }
}

/// Applies an update. The first `Add` of a stream replaces what is known, and a `Remove` before
/// it means nothing (contract 4.1).
fn apply(balancer: &Balancer, update: destination::Update, fresh: &mut bool, what: &str) {
    match update.update {
        None => {}
        Some(update::Update::Add(set)) => {
            let labels = set.metric_labels;
            let read = |addr| Metadata::read(addr, &labels);
            let (good, bad): (Vec<_>, Vec<_>) =
                set.addrs.into_iter().map(read).partition(Result::is_ok);
            for error in bad.into_iter().filter_map(Result::err) {
                tracing::warn!(%error, watch = what, "an endpoint is left out");
            }
            let endpoints = good.into_iter().filter_map(Result::ok).collect();
            if std::mem::take(fresh) {
                balancer.reset(endpoints);
            } else {
                balancer.add(endpoints);
            }
        }
        Some(update::Update::Remove(_)) if *fresh => {}
        Some(update::Update::Remove(set)) => {
            let addrs: Vec<SocketAddr> = set
                .addrs
                .into_iter()
                .filter_map(|addr| SocketAddr::try_from(addr).ok())
                .collect();
            balancer.remove(&addrs);
        }
        Some(update::Update::NoEndpoints(_)) => {
            *fresh = false;
            balancer.reset(Vec::new());
        }
    }
}

fn load_settings(
    load: Option<api::backend::balance_p2c::Load>,
) -> Result<LoadSettings, ConvertError> {
    use api::backend::balance_p2c::Load;
    let (rtt, decay) = match load {
        None => return Err(ConvertError::Missing("balancer.load")),
        Some(Load::PeakEwma(load)) => (load.default_rtt, load.decay),
        // The penalty is not acted on yet; without it the estimate is the usual one.
        Some(Load::PenaltyPeakEwma(load)) => (load.default_rtt, load.decay),
    };
    let default = LoadSettings::default();
    let read = |field, given: Option<prost_types::Duration>, default| match given {
        None => Ok(default),
        Some(given) => convert::duration(field, given),
    };
    Ok(LoadSettings {
        default_rtt: read("balancer.default_rtt", rtt, default.default_rtt)?,
        decay: read("balancer.decay", decay, default.decay)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::backend::balance_p2c::{Load, PenaltyPeakEwma};

    /// A policy that asks for what we do not act on must not take its Service away.
    #[test]
    fn an_estimate_with_penalties_is_read_as_one_without() {
        let load = PenaltyPeakEwma {
            decay: Some(prost_types::Duration {
                seconds: 3,
                nanos: 0,
            }),
            ..PenaltyPeakEwma::default()
        };
        let read = load_settings(Some(Load::PenaltyPeakEwma(load))).unwrap();
        assert_eq!(read.decay, std::time::Duration::from_secs(3));
        assert_eq!(read.default_rtt, LoadSettings::default().default_rtt);
    }
}
