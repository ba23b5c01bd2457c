//! Owns inbound policy: which Server speaks for a port of a pod, its protocol, and what follows from that (contract 8.2).

mod authorizations;
mod routes;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use linkerd2_proxy_api::inbound::{self as api, proxy_protocol as protocol};
use tonic::Status;
use weft_cluster::{
    DefaultPolicy, Name, Query, Reader, Subscription,
    index::{Pod, Server},
    objects::policy::ProxyProtocol,
};
use weft_runtime::grpc::Source;

use crate::{settings::Settings, wire};

/// Time for protocol detection.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundQuery {
    /// The pod.
    pub pod: Name,
    /// Its port.
    pub port: u16,
}

impl Query for InboundQuery {
    /// `None` for a pod that is unknown or not meshed.
    type State = Option<Arc<api::Server>>;
    type Settings = Settings;

    fn answer(
        &self,
        settings: &Settings,
        index: &Reader<'_>,
        _: Option<&Self::State>,
    ) -> Self::State {
        let pod = index
            .pod(&self.pod)
            .filter(|pod| pod.control_namespace.is_some())?;
        let port = Port {
            settings,
            index,
            pod,
            number: self.port,
        };
        Some(Arc::new(match index.server_of(pod, self.port) {
            Some(server) => port.by_server(server),
            None => port.by_default(),
        }))
    }
}

/// A port whose policy is being put together.
struct Port<'a> {
    settings: &'a Settings,
    index: &'a Reader<'a>,
    pod: &'a Pod,
    number: u16,
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
            ProxyProtocol::Unknown => detect(self.routes(Some(server))),
            ProxyProtocol::Http1 => protocol::Kind::Http1(protocol::Http1 {
                routes: self.routes(Some(server)),
                local_rate_limit: None,
            }),
            ProxyProtocol::Http2 => protocol::Kind::Http2(protocol::Http2 {
                routes: self.routes(Some(server)),
                local_rate_limit: None,
            }),
            ProxyProtocol::Grpc => protocol::Kind::Grpc(protocol::Grpc {
                routes: vec![routes::default_grpc()],
            }),
            ProxyProtocol::Opaque => protocol::Kind::Opaque(protocol::Opaque {}),
            ProxyProtocol::Tls => protocol::Kind::Tls(protocol::Tls {}),
        }
    }

    fn by_default(&self) -> api::Server {
        let policy = self.default_policy();
        // Without a Server only the pod's own annotation makes a port opaque, not the default list (contract 8.2).
        let opaque = self
            .pod
            .opaque_ports
            .as_ref()
            .is_some_and(|ports| ports.contains(self.number));
        let kind = if opaque {
            protocol::Kind::Opaque(protocol::Opaque {})
        } else {
            detect(self.routes(None))
        };
        api::Server {
            protocol: Some(api::ProxyProtocol { kind: Some(kind) }),
            authorizations: self.default_authorizations(policy),
            labels: labels("", "default", policy.as_str()),
            ..api::Server::default()
        }
    }

    fn default_policy(&self) -> DefaultPolicy {
        let policy = self
            .pod
            .default_policy
            .unwrap_or(self.settings.default_policy);
        if self.pod.require_identity_ports.contains(self.number) {
            policy.require_identity()
        } else {
            policy
        }
    }
}

fn detect(http_routes: Vec<api::HttpRoute>) -> protocol::Kind {
    protocol::Kind::Detect(protocol::Detect {
        timeout: wire::duration(DETECT_TIMEOUT),
        http_routes,
        http_local_rate_limit: None,
    })
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
    /// `None` for a pod that is unknown.
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
            // A pod that has gone keeps the policy it had until its proxy ends.
            if let Some(server) = self.subscription.changed().await {
                return Ok(api::Server::clone(&server));
            }
        }
    }
}
