//! Owns the families of authorization and of errors inbound (contract 6.1). Does not authorize.

use super::http::{HttpMetrics, HttpSeries, Outcome};
use super::labels::{Labels, LabelsBuilder, TlsStatus, With};
use super::tcp::{TcpMetrics, TcpSeries};
use crate::convert::Meta;
use crate::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use weft_runtime::metrics::{Counter, Family, Registry};

/// The families of inbound traffic.
#[derive(Clone)]
pub struct InboundMetrics {
    /// HTTP exchanges.
    pub http: HttpMetrics,
    /// Connections.
    pub tcp: TcpMetrics,
    http_allow: Family<Labels, Counter>,
    http_deny: Family<Labels, Counter>,
    tcp_allow: Family<Labels, Counter>,
    tcp_deny: Family<Labels, Counter>,
    tcp_terminate: Family<Labels, Counter>,
    no_route: Family<Labels, Counter>,
    http_errors: Family<With<1>, Counter>,
    tcp_errors: Family<With<1>, Counter>,
}

/// What the series of a connection's requests have in common.
pub struct HttpLabels<'a> {
    /// Where the client meant to go.
    pub target: SocketAddr,
    /// The client's TLS.
    pub tls: &'a TlsStatus,
    /// The Server.
    pub server: &'a Meta,
}

/// The series of requests that one authorization lets through to one route.
pub struct AccessSeries {
    /// Requests let through.
    pub allowed: Arc<Counter>,
    /// What became of them.
    pub http: Arc<HttpSeries>,
}

impl AccessSeries {
    /// Counts the response that the proxy makes for an error.
    pub fn failed(&self, error: &Error, started: Instant) {
        self.http.response(Outcome::of(error), started.elapsed());
    }
}

impl InboundMetrics {
    /// Makes and registers the families.
    pub fn new(registry: &Registry, http: HttpMetrics, tcp: TcpMetrics) -> Self {
        let counters = |name: &str, help: &str| {
            let family = Family::<Labels, Counter>::new(Counter::default);
            registry.register_legacy(name, help, family.clone());
            family
        };
        let errors = |name: &str, help: &str| {
            let family = Family::<With<1>, Counter>::new(Counter::default);
            registry.register_legacy(name, help, family.clone());
            family
        };
        Self {
            http,
            tcp,
            http_allow: counters("inbound_http_authz_allow_total", "Requests allowed"),
            http_deny: counters("inbound_http_authz_deny_total", "Requests denied"),
            tcp_allow: counters("inbound_tcp_authz_allow_total", "Connections allowed"),
            tcp_deny: counters("inbound_tcp_authz_deny_total", "Connections denied"),
            tcp_terminate: counters(
                "inbound_tcp_authz_terminate_total",
                "Connections ended because policy changed",
            ),
            no_route: counters(
                "inbound_http_route_not_found_total",
                "Requests that no route matches",
            ),
            http_errors: errors("inbound_http_errors_total", "Requests that failed here"),
            tcp_errors: errors("inbound_tcp_errors_total", "Connections that failed here"),
        }
    }

    /// Resolves the series of requests that `authz` lets through to `route`.
    pub fn access(&self, labels: &HttpLabels<'_>, route: &Meta, authz: &Meta) -> Arc<AccessSeries> {
        let port = labels.target.port();
        let allow = server(Labels::build().target(labels.target), labels.server, port);
        let allow = resource(allow, &ROUTE, route);
        let allow = resource(allow, &AUTHZ, authz).client_tls(labels.tls);
        let http = Labels::build()
            .with("direction", "inbound")
            .target(labels.target)
            .client_tls(labels.tls);
        let http = server(http, labels.server, port);
        let http = resource(resource(http, &ROUTE, route), &AUTHZ, authz);
        Arc::new(AccessSeries {
            allowed: self.http_allow.resolve(&allow.done()),
            http: self.http.series(http.done()),
        })
    }

    /// Counts a request that nothing authorizes.
    pub fn denied(&self, labels: &HttpLabels<'_>, route: &Meta) {
        let deny = Labels::build().target(labels.target);
        let deny = server(deny, labels.server, labels.target.port());
        let deny = resource(deny, &ROUTE, route).client_tls(labels.tls);
        self.http_deny.resolve(&deny.done()).inc();
    }

    /// Counts a request without a route.
    pub fn no_route(&self, labels: &HttpLabels<'_>) {
        let port = labels.target.port();
        let found = server(Labels::build().target(labels.target), labels.server, port);
        let found = found.client_tls(labels.tls).done();
        self.no_route.resolve(&found).inc();
    }

    /// Counts a request that the proxy answers itself.
    pub fn failed(&self, error: &Error) {
        let labels = super::error_labels(None, error.label());
        self.http_errors.resolve(&labels).inc();
    }

    /// Counts a connection that the proxy ends.
    pub fn connection_failed(&self, target: Option<SocketAddr>, error: &'static str) {
        self.tcp_errors
            .resolve(&super::error_labels(target, error))
            .inc();
    }

    /// Counts a connection that policy allows, denies or ends.
    pub fn tcp(&self, labels: &HttpLabels<'_>, verdict: TcpVerdict<'_>) {
        let port = labels.target.port();
        let base = server(Labels::build().target(labels.target), labels.server, port);
        let (family, base) = match verdict {
            TcpVerdict::Allow(authz) => (&self.tcp_allow, resource(base, &AUTHZ, authz)),
            TcpVerdict::Deny => (&self.tcp_deny, base),
            TcpVerdict::Terminate => (&self.tcp_terminate, base),
        };
        family.resolve(&base.client_tls(labels.tls).done()).inc();
    }

    /// The series of connections from clients.
    pub fn source(&self, labels: &HttpLabels<'_>) -> Arc<TcpSeries> {
        let source = Labels::build()
            .with("direction", "inbound")
            .with("peer", "src")
            .target(labels.target)
            .client_tls(labels.tls);
        let source = server(source, labels.server, labels.target.port());
        self.tcp.series(source.done())
    }
}

/// What policy says of a connection.
pub enum TcpVerdict<'a> {
    /// Let through by this authorization.
    Allow(&'a Meta),
    /// Not let through.
    Deny,
    /// No longer let through.
    Terminate,
}

type Names = [&'static str; 3];
const ROUTE: Names = ["route_group", "route_kind", "route_name"];
const AUTHZ: Names = ["authz_group", "authz_kind", "authz_name"];

fn server(labels: LabelsBuilder, server: &Meta, port: u16) -> LabelsBuilder {
    labels
        .with("srv_group", server.group.clone())
        .with("srv_kind", server.kind.clone())
        .with("srv_name", server.name.clone())
        .with("srv_port", port.to_string())
}

fn resource(labels: LabelsBuilder, names: &Names, meta: &Meta) -> LabelsBuilder {
    let [group, kind, name] = *names;
    labels
        .with(group, meta.group.clone())
        .with(kind, meta.kind.clone())
        .with(name, meta.name.clone())
}
