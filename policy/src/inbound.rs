//! Owns inbound policy: which Server speaks for a port of a pod, its protocol, and what follows from that (contract 8.2).

mod authorizations;
mod rate_limit;
mod routes;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use linkerd2_proxy_api::inbound::{self as api, proxy_protocol as protocol};
use tonic::Status;
use weft_cluster::{
    DefaultPolicy, Name, Query, Reader, Subscription,
    index::{ExternalWorkload, Pod, Server},
    objects::policy::ProxyProtocol,
};
use weft_runtime::grpc::Source;

use crate::{settings::Settings, wire};

/// Time for protocol detection.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A port of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundQuery {
    /// The workload.
    pub workload: InboundWorkload,
    /// Its port.
    pub port: u16,
}

/// What asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InboundWorkload {
    /// A pod.
    Pod(Name),
    /// An ExternalWorkload.
    External(Name),
}

impl Query for InboundQuery {
    /// `None` for a workload that is unknown or not meshed.
    type State = Option<Arc<api::Server>>;
    type Settings = Settings;

    fn answer(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        _: Option<&Self::State>,
    ) -> Self::State {
        let number = self.port;
        let (workload, server) = match &self.workload {
            InboundWorkload::Pod(name) => {
                let pod = index.pod(name).filter(|p| p.control_namespace.is_some())?;
                (Workload::Pod(pod), index.server_of(pod, number))
            }
            InboundWorkload::External(name) => {
                let workload = index.workload(name)?;
                let server = index.server_of_workload(workload, number);
                (Workload::External(workload), server)
            }
        };
        let port = Port {
            settings,
            index,
            workload,
            number,
        };
        Some(Arc::new(match server {
            Some(server) => port.by_server(server),
            None => port.by_default(),
        }))
    }
}

/// A port whose policy is being put together.
struct Port<'a> {
    settings: &'a Settings,
    index: &'a Reader<'a>,
    workload: Workload<'a>,
    number: u16,
}

/// Whose port it is.
enum Workload<'a> {
    Pod(&'a Pod),
    External(&'a ExternalWorkload),
}

impl Port<'_> {
    fn by_server(&self, server: &Server) -> api::Server {
        api::Server {
            protocol: Some(api::ProxyProtocol {
                kind: Some(self.protocol(server)),
            }),
            authorizations: self.server_authorizations(server),
            labels: labels("policy.linkerd.io", "server", &server.name.name),
            ..api::Server::default()
        }
    }

    fn protocol(&self, server: &Server) -> protocol::Kind {
        match server.protocol {
            ProxyProtocol::Unknown => protocol::Kind::Detect(protocol::Detect {
                timeout: wire::duration(DETECT_TIMEOUT),
                http_routes: self.http_routes(Some(server)),
                http_local_rate_limit: self.rate_limit(server),
            }),
            ProxyProtocol::Http1 => protocol::Kind::Http1(protocol::Http1 {
                routes: self.http_routes(Some(server)),
                local_rate_limit: self.rate_limit(server),
            }),
            ProxyProtocol::Http2 => protocol::Kind::Http2(protocol::Http2 {
                routes: self.http_routes(Some(server)),
                local_rate_limit: self.rate_limit(server),
            }),
            // The API has no rate limit for this one (contract 3.2).
            ProxyProtocol::Grpc => protocol::Kind::Grpc(protocol::Grpc {
                routes: self.grpc_routes(server),
            }),
            ProxyProtocol::Opaque => protocol::Kind::Opaque(protocol::Opaque {}),
            ProxyProtocol::Tls => protocol::Kind::Tls(protocol::Tls {}),
        }
    }

    fn by_default(&self) -> api::Server {
        let policy = self.default_policy();
        // Without a Server only the workload's own annotation makes a port opaque, not the default list (contract 8.2).
        let opaque = match self.workload {
            Workload::Pod(pod) => pod.opaque_ports.as_ref(),
            Workload::External(workload) => workload.opaque_ports.as_ref(),
        };
        let kind = if opaque.is_some_and(|ports| ports.contains(self.number)) {
            protocol::Kind::Opaque(protocol::Opaque {})
        } else {
            protocol::Kind::Detect(protocol::Detect {
                timeout: wire::duration(DETECT_TIMEOUT),
                http_routes: self.http_routes(None),
                http_local_rate_limit: None,
            })
        };
        api::Server {
            protocol: Some(api::ProxyProtocol { kind: Some(kind) }),
            authorizations: self.default_authorizations(policy),
            labels: labels("", "default", policy.as_str()),
            ..api::Server::default()
        }
    }

    fn default_policy(&self) -> DefaultPolicy {
        let default = self.settings.default_policy;
        match self.workload {
            Workload::External(_) => default,
            Workload::Pod(pod) => {
                let policy = pod.default_policy.unwrap_or(default);
                if pod.require_identity_ports.contains(self.number) {
                    policy.require_identity()
                } else {
                    policy
                }
            }
        }
    }
}

/// The labels by which metrics name a Server or an authorization.
fn labels(group: &str, kind: &str, name: &str) -> HashMap<String, String> {
    [("group", group), ("kind", kind), ("name", name)]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
}

/// The messages of one `WatchPort`.
pub(crate) struct InboundStream {
    subscription: Subscription<InboundQuery>,
    first: Option<Arc<api::Server>>,
}

impl InboundStream {
    /// `None` for a workload that is unknown.
    pub(crate) fn new(mut subscription: Subscription<InboundQuery>) -> Option<Self> {
        let first = subscription.latest()?;
        Some(Self {
            subscription,
            first: Some(first),
        })
    }
}

impl Source for InboundStream {
    type Message = api::Server;

    async fn next(&mut self) -> Result<api::Server, Status> {
        if let Some(first) = self.first.take() {
            return Ok(api::Server::clone(&first));
        }
        loop {
            // A workload that has gone keeps the policy it had until its proxy ends.
            if let Some(server) = self.subscription.changed().await {
                return Ok(api::Server::clone(&server));
            }
        }
    }
}
