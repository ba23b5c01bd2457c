//! Owns `Error`: why the proxy itself answers a request, whose fault that is, and what the client
//! is told (contract 3.5, 4.7). Does not write responses: `http::respond` does.

use crate::connect::ConnectError;
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;

/// Why a request was not answered by its server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server was not reached.
    #[error("{0}")]
    Connect(Arc<ConnectError>),
    /// The HTTP/1 server broke off.
    #[error("the server broke off: {0}")]
    Http1(hyper::Error),
    /// The HTTP/2 server reset the stream or broke off.
    #[error("the server broke off: {0}")]
    Http2(h2::Error),
    /// No endpoint was ready in time.
    #[error("{backend}: no endpoint was ready within {limit:?} (failfast)")]
    FailFast {
        /// Which service.
        backend: Arc<str>,
        /// The limit.
        limit: Duration,
    },
    /// Too many requests wait or are in flight.
    #[error("{what}: more than {limit} requests (load shed)")]
    LoadShed {
        /// Which queue.
        what: Arc<str>,
        /// The limit.
        limit: usize,
    },
    /// No route matches.
    #[error("no route matches the request")]
    NoRoute,
    /// The route has no backend that exists.
    #[error("the route has no backend: {0}")]
    NoBackend(Arc<str>),
    /// Policy does not allow this client.
    #[error("client {client} is not authorized on {server}")]
    Unauthorized {
        /// Address and identity.
        client: String,
        /// The server resource.
        server: String,
    },
    /// `l5d-require-id` does not match the endpoint.
    #[error("the request requires identity {required}, but the endpoint has {found}")]
    IdentityRequired {
        /// What the request asks for.
        required: String,
        /// What the endpoint has.
        found: String,
    },
    /// A route's filter ends the request with a redirect.
    #[error("redirected to {location}")]
    Redirect {
        /// 3xx.
        status: StatusCode,
        /// Where to.
        location: String,
    },
    /// A route's filter fails the request.
    #[error("{message}")]
    Injected {
        /// Which status.
        status: StatusCode,
        /// Which gRPC code, for gRPC routes.
        grpc: Option<u16>,
        /// What to say.
        message: Arc<str>,
    },
    /// The policy could not be understood, so nothing is let through.
    #[error("the policy from the control plane is not valid: {0}")]
    InvalidPolicy(Arc<str>),
    /// Discovery has not answered.
    #[error("discovery of {0} has not answered")]
    Undiscovered(std::net::SocketAddr),
}

/// Whose doing an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client asked for what it cannot have.
    Client,
    /// The server failed.
    Upstream,
    /// The mesh could not serve.
    Mesh,
}

impl Error {
    /// Whose doing it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoRoute
            | Self::Unauthorized { .. }
            | Self::IdentityRequired { .. }
            | Self::Redirect { .. } => Fault::Client,
            Self::Connect(_) | Self::Http1(_) | Self::Http2(_) => Fault::Upstream,
            _ => Fault::Mesh,
        }
    }

    /// Whether the same request could succeed if it were sent again at once.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::FailFast { .. })
    }

    /// The HTTP status for the client.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(error) if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
            Self::Connect(_) | Self::Http1(_) | Self::Http2(_) => StatusCode::BAD_GATEWAY,
            Self::FailFast { .. } | Self::Undiscovered(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::LoadShed { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::NoBackend(_) | Self::IdentityRequired { .. } => StatusCode::BAD_GATEWAY,
            Self::Unauthorized { .. } => StatusCode::FORBIDDEN,
            Self::Redirect { status, .. } | Self::Injected { status, .. } => *status,
            Self::InvalidPolicy(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The gRPC code for the client.
    pub fn grpc_code(&self) -> u16 {
        const PERMISSION_DENIED: u16 = 7;
        const NOT_FOUND: u16 = 5;
        const DEADLINE_EXCEEDED: u16 = 4;
        const INTERNAL: u16 = 13;
        const UNAVAILABLE: u16 = 14;
        match self {
            Self::Injected {
                grpc: Some(code), ..
            } => *code,
            Self::Unauthorized { .. } => PERMISSION_DENIED,
            Self::NoRoute => NOT_FOUND,
            Self::Connect(error) if error.is_timeout() => DEADLINE_EXCEEDED,
            Self::FailFast { .. } | Self::Undiscovered(_) => DEADLINE_EXCEEDED,
            Self::Redirect { .. } | Self::Injected { .. } | Self::InvalidPolicy(_) => INTERNAL,
            _ => UNAVAILABLE,
        }
    }

    /// Whether the client's connection is of no more use.
    pub fn fatal(&self) -> bool {
        !matches!(
            self,
            Self::NoRoute | Self::Unauthorized { .. } | Self::Redirect { .. }
        )
    }

    /// The value of the label `error` (contract 6.1).
    pub fn label(&self) -> &'static str {
        match self {
            Self::FailFast { .. } => "failfast",
            Self::LoadShed { .. } => "loadshed",
            Self::IdentityRequired { .. } => "identity required",
            Self::Connect(_) | Self::Http1(_) | Self::Http2(_) => "i/o",
            Self::Unauthorized { .. } => "unauthorized",
            _ => "unexpected",
        }
    }

    /// The reset that an HTTP/2 server sent for this request, to be passed on (contract 3.5).
    pub fn reset(&self) -> Option<h2::Reason> {
        match self {
            Self::Http2(error) if error.is_reset() && error.is_remote() => error.reason(),
            _ => None,
        }
    }
}
