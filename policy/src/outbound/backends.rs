//! Owns backends as messages: a balancer over a Service, or one address (contract 8.2).

use std::{net::SocketAddr, time::Duration};

use linkerd2_proxy_api::{
    destination::WeightedAddr,
    meta::Metadata,
    outbound::{Backend, Queue, backend},
};
use weft_cluster::Name;

use crate::{settings::Settings, wire};

const DEFAULT_RTT: Duration = Duration::from_millis(30);
const DECAY: Duration = Duration::from_secs(10);
const QUEUE_CAPACITY: u32 = 100;
const FAILFAST_TIMEOUT: Duration = Duration::from_secs(3);

/// A balancer over the endpoints of a Service's port.
pub(super) fn service(settings: &Settings, name: &Name, port: u16) -> Backend {
    let path = format!(
        "{}:{port}",
        settings.mesh.service_name(&name.name, &name.namespace)
    );
    let discovery = backend::EndpointDiscovery {
        kind: Some(backend::endpoint_discovery::Kind::Dst(
            backend::endpoint_discovery::DestinationGet { path },
        )),
    };
    let load = backend::balance_p2c::Load::PeakEwma(backend::balance_p2c::PeakEwma {
        default_rtt: wire::duration(DEFAULT_RTT),
        decay: wire::duration(DECAY),
    });
    let balancer = backend::BalanceP2c {
        discovery: Some(discovery),
        load: Some(load),
    };
    of_kind(
        wire::service_meta(name, port),
        Some(backend::Kind::Balancer(balancer)),
    )
}

/// One address.
pub(super) fn forward(name: &str, address: SocketAddr) -> Backend {
    let to = WeightedAddr {
        addr: Some(address.into()),
        weight: 1,
        ..WeightedAddr::default()
    };
    of_kind(wire::default_meta(name), Some(backend::Kind::Forward(to)))
}

/// A backend that cannot be reached.
pub(super) fn unreachable(metadata: Metadata) -> Backend {
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
