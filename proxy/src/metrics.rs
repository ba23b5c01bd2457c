//! Owns the metric families of the proxy (contract 6) and their labels. Measures nothing itself.

pub mod balancer;
pub mod http;
pub mod inbound;
pub mod labels;
pub mod tcp;

use crate::error::Error;
use balancer::BalancerMetrics;
use http::HttpMetrics;
use inbound::InboundMetrics;
use labels::{Labels, With};
use std::borrow::Cow;
use std::net::SocketAddr;
use tcp::TcpMetrics;
use weft_runtime::metrics::{Counter, Family, ProcessCollector, Registry};

/// The families of outbound traffic.
#[derive(Clone)]
pub struct OutboundMetrics {
    /// HTTP exchanges.
    pub http: HttpMetrics,
    /// Connections.
    pub tcp: TcpMetrics,
    /// Balancers of requests.
    pub http_balancer: BalancerMetrics,
    /// Balancers of connections.
    pub tcp_balancer: BalancerMetrics,
    http_errors: Family<With<1>, Counter>,
    tcp_errors: Family<With<1>, Counter>,
}

impl OutboundMetrics {
    /// Counts a request that the proxy answers itself.
    pub fn failed(&self, error: &Error) {
        self.http_errors
            .resolve(&error_labels(None, error.label()))
            .inc();
    }

    /// Counts a connection to `target`, if that is known, that the proxy ends.
    pub fn connection_failed(&self, target: Option<SocketAddr>, error: &'static str) {
        self.tcp_errors.resolve(&error_labels(target, error)).inc();
    }
}

/// The labels of an error (contract 6.1).
fn error_labels(target: Option<SocketAddr>, error: &'static str) -> With<1> {
    let base = target.map_or_else(Labels::default, |target| {
        Labels::build().target(target).done()
    });
    With {
        base,
        more: [("error", Cow::Borrowed(error))],
    }
}

/// All families of a proxy.
pub struct Metrics {
    /// Inbound.
    pub inbound: InboundMetrics,
    /// Outbound.
    pub outbound: OutboundMetrics,
}

impl Metrics {
    /// Makes and registers the families.
    pub fn new(registry: &Registry) -> Self {
        let http = HttpMetrics::new(registry);
        let tcp = TcpMetrics::new(registry);
        let errors = |name: &str, help: &str| {
            let family = Family::<With<1>, Counter>::new(Counter::default);
            registry.register_legacy(name, help, family.clone());
            family
        };
        let outbound = OutboundMetrics {
            http: http.clone(),
            tcp: tcp.clone(),
            http_balancer: BalancerMetrics::new(registry, "http"),
            tcp_balancer: BalancerMetrics::new(registry, "tcp"),
            http_errors: errors("outbound_http_errors_total", "Requests that failed here"),
            tcp_errors: errors("outbound_tcp_errors_total", "Connections that failed here"),
        };
        registry.collector(&ProcessCollector::NAMES, ProcessCollector::new());
        registry.info(
            "proxy_build_info",
            "What this proxy was built from",
            &build_info(),
        );
        Self {
            inbound: InboundMetrics::new(registry, http, tcp),
            outbound,
        }
    }
}

fn build_info() -> Labels {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    Labels::build()
        .with("date", option_env!("WEFT_BUILD_DATE").unwrap_or(""))
        .with("git_sha", option_env!("WEFT_GIT_SHA").unwrap_or(""))
        .with("profile", profile)
        .with("vendor", "weft")
        .with("version", env!("CARGO_PKG_VERSION"))
        .done()
}
