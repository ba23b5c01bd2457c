//! Owns the life of an outbound request: route → filters → backend → balance → forward. Reads
//! top to bottom; the steps themselves are elsewhere.

use super::Outbound;
use super::backend::Backend;
use super::discovery::Destination;
use super::policy::{HttpRoutes, Policy, Protocol, RuleBackend};
use crate::error::Error;
use crate::http::body::Body;
use crate::http::client::{SendError, Version};
use crate::http::respond::Answer;
use crate::http::{Handler, filter, headers, upgrade};
use http::{Method, Request, Response};
use std::sync::Arc;
use std::time::Instant;
use weft_runtime::drain;

/// Handles the requests of one outbound connection.
#[derive(Clone)]
pub struct HttpConnection(Arc<Inner>);

struct Inner {
    outbound: Arc<Outbound>,
    destination: Destination,
    version: Version,
    drain: drain::Watch,
}

impl HttpConnection {
    /// For a connection to `destination` that carries HTTP of `version`.
    pub fn new(
        outbound: Arc<Outbound>,
        destination: Destination,
        version: Version,
        drain: drain::Watch,
    ) -> Self {
        Self(Arc::new(Inner {
            outbound,
            destination,
            version,
            drain,
        }))
    }
}

impl Handler for HttpConnection {
    async fn handle(self, request: Box<Request<Body>>) -> Result<Response<Body>, h2::Reason> {
        let context = &self.0.outbound.context;
        let answer = Answer::to(&request, !context.settings.disable_informational_headers);
        match self.0.serve(request).await {
            Ok(response) => Ok(response),
            Err(error) => {
                tracing::debug!(%error, fault = ?error.fault(), "request was not served");
                context.metrics.failed(&error);
                answer.error(&error)
            }
        }
    }
}

impl Inner {
    /// The life of a request.
    async fn serve(&self, mut request: Box<Request<Body>>) -> Result<Response<Body>, Error> {
        let started = Instant::now();
        let _in_flight = self.outbound.context.in_flight.enter()?;
        let policy = self.destination.policy();
        let policy = policy.as_deref().ok_or(Error::NoRoute)?;
        let routes = routes(policy, self.version)?;
        let rule = routes
            .find(&headers::view(&request))
            .ok_or(Error::NoRoute)?;
        let random = || self.outbound.context.random();
        filter::on_request(&rule.filters, &mut request, random)?;
        if rule.backends.must_wait() {
            Box::pin(rule.backends.ready()).await;
        }
        let chosen = rule.backends.choose(random());
        let chosen = chosen.ok_or_else(|| Error::NoBackend(policy.parent.name.clone()))?;
        filter::on_request(&chosen.filters, &mut request, random)?;

        let connect = request.method() == Method::CONNECT;
        let client = upgrade::client_side(&mut request);
        let mut response = forward(chosen, request, started).await?;

        filter::on_response(&chosen.filters, response.headers_mut());
        filter::on_response(&rule.filters, response.headers_mut());
        match client {
            Some(client) if upgrade::accepted(&response, connect) => {
                upgrade::join(client, &mut response, self.drain.clone());
            }
            _ => headers::strip_hop_by_hop(response.headers_mut()),
        }
        forget_proxy_headers(&mut response);
        Ok(response)
    }
}

fn routes(policy: &Policy, version: Version) -> Result<&HttpRoutes, Error> {
    match (&policy.protocol, version) {
        (Protocol::Detect { http1, .. }, Version::Http1) => Ok(http1),
        (Protocol::Detect { http2, .. }, Version::Http2) => Ok(http2),
        (Protocol::Http1(routes) | Protocol::Http2(routes), _) => Ok(routes),
        // The policy has changed since the connection was made.
        (Protocol::Opaque(_) | Protocol::Tls(_), _) => Err(Error::NoRoute),
        (Protocol::Invalid(reason), _) => Err(Error::InvalidPolicy(reason.clone())),
    }
}

async fn forward(
    chosen: &RuleBackend,
    request: Box<Request<Body>>,
    started: Instant,
) -> Result<Response<Body>, Error> {
    match &chosen.backend {
        Backend::Service(service) => service.balancer.send(request, started).await,
        Backend::Address(endpoint) => {
            endpoint
                .send(request, None, started)
                .await
                .map_err(|error| match error {
                    SendError::Unsent(_, error) => Error::Connect(error),
                    SendError::Failed(error) => error,
                })
        }
        Backend::Missing(name) => Err(Error::NoBackend(name.clone())),
    }
}

/// What the other proxy tells us is not for the application (contract 4.7).
fn forget_proxy_headers(response: &mut Response<Body>) {
    if let Some(error) = response.headers_mut().remove(headers::PROXY_ERROR) {
        tracing::debug!(?error, "the other proxy reports an error");
    }
    response.headers_mut().remove(headers::PROXY_CONNECTION);
}
