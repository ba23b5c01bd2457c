//! Owns backends as messages: a balancer over a Service, or one address; and where a rule of a route leads (contract 8.2).

use std::{net::SocketAddr, time::Duration};

use linkerd2_proxy_api::{
    destination::WeightedAddr,
    meta::Metadata,
    outbound::{Backend, Queue, backend, backend::balance_p2c as p2c},
};
use weft_cluster::index::{self, BackendKind, RouteFilter};

use super::parent::{Parent, Target};
use crate::{acceptance, wire};

const DEFAULT_RTT: Duration = Duration::from_millis(30);
const DECAY: Duration = Duration::from_secs(10);
const PENALTY_DECAY: Duration = Duration::from_secs(10);
const QUEUE_CAPACITY: u32 = 100;
const FAILFAST_TIMEOUT: Duration = Duration::from_secs(3);

/// One of several backends.
pub(super) struct Weighted<'a> {
    pub(super) weight: u32,
    pub(super) backend: Backend,
    /// Why its share fails, if it does.
    pub(super) fault: Option<String>,
    /// For requests that go there.
    pub(super) filters: &'a [RouteFilter],
}

impl Parent<'_> {
    /// The Service itself, or the address that the client wants.
    pub(super) fn itself(&self) -> Backend {
        match self.target {
            Target::Service(name, _) => self.balancer(name, self.port),
            Target::EgressNetwork(network, address) => {
                forward(wire::egress_meta(&network.name, self.port), address)
            }
        }
    }

    /// The backends of a rule that has some.
    pub(super) fn weighted<'b>(
        &self,
        backends: &'b [index::Backend],
    ) -> impl Iterator<Item = Weighted<'b>> {
        backends.iter().map(|backend| self.one_of(backend))
    }

    fn one_of<'b>(&self, given: &'b index::Backend) -> Weighted<'b> {
        let reachable = acceptance::backend(self.index, given, self.kind(), self.name());
        let name = &given.name;
        let backend = match (&given.kind, given.port, &self.target) {
            (BackendKind::Service, Some(port), _) if reachable.is_ok() => self.balancer(name, port),
            (BackendKind::Service, Some(port), _) => unreachable(wire::service_meta(name, port)),
            (BackendKind::EgressNetwork, port, Target::EgressNetwork(_, address))
                if reachable.is_ok() =>
            {
                forward(wire::egress_meta(name, port.unwrap_or(self.port)), *address)
            }
            (BackendKind::EgressNetwork, port, _) => {
                unreachable(wire::egress_meta(name, port.unwrap_or(self.port)))
            }
            _ => unreachable(wire::default_meta("invalid")),
        };
        Weighted {
            weight: given.weight,
            backend,
            fault: reachable.err().map(|refusal| refusal.message),
            filters: &given.filters,
        }
    }

    /// A balancer over the endpoints of a Service's port.
    fn balancer(&self, name: &weft_cluster::Name, port: u16) -> Backend {
        let service = self.settings.mesh.service_name(&name.name, &name.namespace);
        let dst = backend::endpoint_discovery::DestinationGet {
            path: format!("{service}:{port}"),
        };
        let discovery = backend::EndpointDiscovery {
            kind: Some(backend::endpoint_discovery::Kind::Dst(dst)),
        };
        let balancer = backend::BalanceP2c {
            discovery: Some(discovery),
            load: Some(self.load()),
        };
        let kind = backend::Kind::Balancer(balancer);
        of_kind(wire::service_meta(name, port), Some(kind))
    }

    /// A Service may ask that failures count as load; an EgressNetwork's routes balance without (contract 10.1).
    fn load(&self) -> p2c::Load {
        let penalty = match self.target {
            Target::Service(_, service) => service.traffic.penalty,
            Target::EgressNetwork(..) => None,
        };
        match penalty {
            None => p2c::Load::PeakEwma(p2c::PeakEwma {
                default_rtt: wire::duration(DEFAULT_RTT),
                decay: wire::duration(DECAY),
            }),
            Some(penalty) => p2c::Load::PenaltyPeakEwma(p2c::PenaltyPeakEwma {
                default_rtt: wire::duration(DEFAULT_RTT),
                decay: wire::duration(DECAY),
                penalty: wire::duration(penalty.penalty),
                max_retry_after: wire::duration(penalty.max_retry_after),
                penalty_decay: wire::duration(PENALTY_DECAY),
            }),
        }
    }
}

/// One address.
pub(super) fn forward(metadata: Metadata, address: SocketAddr) -> Backend {
    let to = WeightedAddr {
        addr: Some(address.into()),
        weight: 1,
        ..WeightedAddr::default()
    };
    of_kind(metadata, Some(backend::Kind::Forward(to)))
}

/// A backend that cannot be reached.
fn unreachable(metadata: Metadata) -> Backend {
    of_kind(metadata, None)
}

fn of_kind(metadata: Metadata, kind: Option<backend::Kind>) -> Backend {
    let queue = Queue {
        capacity: QUEUE_CAPACITY,
        failfast_timeout: wire::duration(FAILFAST_TIMEOUT),
    };
    Backend {
        metadata: Some(metadata),
        queue: Some(queue),
        kind,
    }
}
