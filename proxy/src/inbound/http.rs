//! Owns the life of an inbound request: restore → identify → route → authorize → filters →
//! forward. Reads top to bottom; the rules themselves are elsewhere.

use super::policy::{RouteAccess, ServerPolicy};
use super::ports::Port;
use super::{Inbound, Peer};
use crate::admin::Admin;
use crate::convert::Meta;
use crate::error::Error;
use crate::http::body::{Body, Observer};
use crate::http::client::{Client, SendError, Version};
use crate::http::respond::Answer;
use crate::http::{Handler, filter, headers, upgrade};
use crate::metrics::inbound::{AccessSeries, HttpLabels};
use http::{HeaderValue, Method, Request, Response};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use weft_core::authorize::{Authorization, authorize};
use weft_runtime::drain;

/// Handles the requests of one inbound connection.
#[derive(Clone)]
pub struct HttpConnection(Arc<Inner>);

struct Inner {
    inbound: Arc<Inbound>,
    peer: Peer,
    port: Port,
    upstream: Upstream,
    /// The peer's identity as a header, made once.
    client_id: Option<HeaderValue>,
    /// The series of the last request: most connections use one route.
    series: Mutex<Option<Cached>>,
    drain: drain::Watch,
}

/// Who answers requests.
pub enum Upstream {
    /// The application.
    App(Arc<Client>),
    /// This proxy.
    Admin(Arc<Admin>),
}

struct Cached {
    policy: Arc<ServerPolicy>,
    route: Meta,
    authz: Meta,
    series: Arc<AccessSeries>,
}

impl HttpConnection {
    /// For a connection of `peer` to a port whose requests go to `upstream`.
    pub fn new(
        inbound: Arc<Inbound>,
        peer: Peer,
        port: Port,
        upstream: Upstream,
        drain: drain::Watch,
    ) -> Self {
        let client_id = peer.tls.identity();
        let client_id = client_id.and_then(|id| HeaderValue::from_str(id.as_str()).ok());
        Self(Arc::new(Inner {
            inbound,
            peer,
            port,
            upstream,
            client_id,
            series: Mutex::new(None),
            drain,
        }))
    }
}

impl Handler for HttpConnection {
    async fn handle(self, request: Box<Request<Body>>) -> Result<Response<Body>, h2::Reason> {
        let inner = &self.0;
        // Only mesh peers learn why (case P26).
        let answer = Answer::to(&request, inner.client_id.is_some());
        match inner.serve(request).await {
            Ok(response) => Ok(response),
            Err(error) => {
                tracing::debug!(client = %inner.peer, %error, fault = ?error.fault(),
                    "request was not served");
                inner.inbound.context.metrics.failed(&error);
                answer.error(&error)
            }
        }
    }
}

impl Inner {
    /// The life of a request.
    async fn serve(&self, mut request: Box<Request<Body>>) -> Result<Response<Body>, Error> {
        let started = Instant::now();
        let _in_flight = self.inbound.context.in_flight.enter()?;
        let carried = headers::from_orig_proto(&mut request);
        self.identify(&mut request);
        let policy = self.port.policy();
        if let super::policy::Protocol::Invalid(reason) = &policy.protocol {
            return Err(Error::InvalidPolicy(reason.clone()));
        }
        let found = policy.find(&headers::view(&request));
        let Some((access, filters)) = found else {
            self.inbound.context.metrics.no_route(&self.labels(&policy));
            return Err(Error::NoRoute);
        };
        let series = self.authorize(&policy, access)?;
        series.http.request();
        let random = || self.inbound.context.random.next();
        if let Err(error) = filter::on_request(filters, &mut request, random) {
            series.failed(&error, started);
            return Err(error);
        }
        let forwarded = self.forward(request).await;
        let mut response = forwarded.inspect_err(|error| series.failed(error, started))?;
        if let Some(version) = carried {
            headers::mark_response(&mut response, version);
        }
        let (status, head) = (response.status(), response.headers());
        let observer = Observer::new(series.http.clone(), started, status, head, None);
        Ok(response.map(|body| body.observed(observer)))
    }

    /// Tells the application who the client is, and lets nobody else tell it (contract 3.6).
    fn identify(&self, request: &mut Request<Body>) {
        let headers = request.headers_mut();
        match &self.client_id {
            Some(id) => {
                headers.insert(headers::CLIENT_ID, id.clone());
            }
            None => {
                headers.remove(headers::CLIENT_ID);
            }
        }
    }

    fn authorize(
        &self,
        policy: &Arc<ServerPolicy>,
        access: &RouteAccess,
    ) -> Result<Arc<AccessSeries>, Error> {
        let client = self.peer.client.ip();
        let allowed = authorize(&access.authorizations, client, self.peer.client_tls());
        let Some(Authorization { meta: authz, .. }) = allowed else {
            let labels = self.labels(policy);
            self.inbound.context.metrics.denied(&labels, &access.route);
            tracing::info!(client = %self.peer, server = %policy.server.name,
                route = %access.route.name, "request is not authorized");
            return Err(Error::Unauthorized {
                client: self.peer.to_string(),
                server: policy.server.name.to_string(),
            });
        };
        let series = self.series(policy, &access.route, authz);
        series.allowed.inc();
        Ok(series)
    }

    fn series(&self, policy: &Arc<ServerPolicy>, route: &Meta, authz: &Meta) -> Arc<AccessSeries> {
        let mut cached = self.series.lock();
        if let Some(c) = cached.as_ref()
            && Arc::ptr_eq(&c.policy, policy)
            && c.route == *route
            && c.authz == *authz
        {
            return c.series.clone();
        }
        let metrics = &self.inbound.context.metrics;
        let series = metrics.access(&self.labels(policy), route, authz);
        *cached = Some(Cached {
            policy: policy.clone(),
            route: route.clone(),
            authz: authz.clone(),
            series: series.clone(),
        });
        series
    }

    fn labels<'a>(&'a self, policy: &'a ServerPolicy) -> HttpLabels<'a> {
        HttpLabels {
            target: self.peer.target,
            tls: &self.peer.tls,
            server: &policy.server,
        }
    }

    async fn forward(&self, mut request: Box<Request<Body>>) -> Result<Response<Body>, Error> {
        let client = match &self.upstream {
            Upstream::App(client) => client,
            Upstream::Admin(admin) => {
                return Ok(Box::pin(admin.answer(*request, self.peer.client.ip())).await);
            }
        };
        let version = request.version();
        let connect = request.method() == Method::CONNECT;
        let upgraded = upgrade::client_side(&mut request);
        let http2 = version == http::Version::HTTP_2;
        if !http2 && !headers::is_upgrade(&request) {
            headers::strip_hop_by_hop(request.headers_mut());
        }
        let upstream = if http2 {
            Version::Http2
        } else {
            Version::Http1
        };
        let sent = client.send(upstream, request, || {}).await;
        let mut response = sent.map_err(|error| match error {
            SendError::Unsent(_, error) => Error::Connect(error),
            SendError::Failed(error) => error,
        })?;
        *response.version_mut() = headers::answer_version(version);
        match upgraded {
            Some(upgraded) if upgrade::accepted(&response, connect) => {
                upgrade::join(upgraded, &mut response, self.drain.clone());
            }
            _ => headers::strip_hop_by_hop(response.headers_mut()),
        }
        Ok(response)
    }
}
