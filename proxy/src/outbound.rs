//! Owns traffic that leaves the workload (4140): the life of an outbound connection, in call
//! order: accept → original destination → discovery → protocol → serve. Requests are in `http`.

pub mod backend;
pub mod balance;
pub mod discovery;
pub mod endpoint;
pub mod http;
pub mod policy;

use crate::detect::{self, Carried, Tls};
use crate::error::Error;
use crate::http::client::{ClientSettings, Version};
use crate::http::{Http2Params, Limits, h1, h2};
use crate::limit::InFlight;
use crate::metrics::OutboundMetrics;
use crate::metrics::labels::{Labels, NoTlsReason, TlsStatus};
use crate::settings;
use crate::stream::Stream;
use backend::Backend;
use discovery::{Destination, Discovery};
use http::HttpConnection;
use policy::{OpaqueRoute, Protocol};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use weft_runtime::{copy, drain, net};

/// What all of outbound shares.
pub struct Context {
    /// The settings of this direction.
    pub settings: settings::Outbound,
    /// How HTTP clients behave.
    pub client: ClientSettings,
    /// Limits on what clients send.
    pub limits: Limits,
    /// Parameters for HTTP/2 clients.
    pub server_http2: Http2Params,
    /// Our own certificate.
    pub store: weft_tls::Store,
    /// The addresses of this workload.
    pub local_ips: BTreeSet<IpAddr>,
    /// Metrics of this direction.
    pub metrics: OutboundMetrics,
    /// Requests under way.
    pub in_flight: InFlight,
    /// Randomness for choices, not for secrets.
    pub random: crate::random::Random,
}

impl Context {
    /// A random number.
    pub fn random(&self) -> u64 {
        self.random.next()
    }

    /// Whether an address is this workload's own (contract 4.3).
    pub fn is_local(&self, addr: SocketAddr) -> bool {
        self.local_ips.contains(&addr.ip())
    }
}

/// Serves traffic that leaves the workload.
pub struct Outbound {
    /// Shared state.
    pub context: Arc<Context>,
    /// Knowledge of destinations.
    pub discovery: Discovery,
    /// Ports of this proxy, to which nothing is forwarded (case T07).
    pub own_ports: Vec<u16>,
}

/// What is left of a connection's life once it is set up: requests, or bytes, to the end.
type Rest = Pin<Box<dyn Future<Output = Result<(), OutboundError>> + Send>>;

/// Why an outbound connection was ended by the proxy.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The connection was not redirected, or would come back to this proxy.
    #[error("{0}")]
    Destination(String),
    /// The connection broke while it was looked at.
    #[error("reading the client's first bytes: {0}")]
    Detect(std::io::Error),
    /// It was not allowed or not possible to serve it.
    #[error(transparent)]
    Refused(#[from] Error),
    /// HTTP/1 ended badly.
    #[error("HTTP/1 from the client: {0}")]
    Http1(hyper::Error),
    /// HTTP/2 ended badly.
    #[error("HTTP/2 from the client: {0}")]
    Http2(::h2::Error),
    /// Bytes could not be copied.
    #[error(transparent)]
    Copy(copy::CopyError),
}

impl OutboundError {
    /// The value of the label `error` (contract 6.1).
    fn label(&self) -> &'static str {
        match self {
            Self::Refused(error) => error.label(),
            Self::Destination(_) => "unexpected",
            Self::Detect(_) | Self::Http1(_) | Self::Http2(_) | Self::Copy(_) => "i/o",
        }
    }
}

impl Outbound {
    /// Accepts connections, for as long as the process lives: while it drains, too, because the
    /// application may still need others to finish (case T14).
    pub async fn serve(self: Arc<Self>, listener: TcpListener, drain: drain::Source) {
        loop {
            let (tcp, client) = net::accept(&listener).await;
            let this = self.clone();
            let drain = drain.watch();
            tokio::spawn(async move {
                let target = this.original_dst(&tcp);
                let known = target.as_ref().ok().copied();
                let served = match target {
                    Ok(target) => this.connection(tcp, target, drain).await,
                    Err(error) => {
                        let _ = net::reset_on_close(&tcp);
                        Err(error)
                    }
                };
                if let Err(error) = served {
                    this.context.metrics.connection_failed(known, error.label());
                    tracing::debug!(%client, %error, "outbound connection ended");
                }
            });
        }
    }

    /// The life of a connection.
    async fn connection(
        self: &Arc<Self>,
        tcp: TcpStream,
        dst: SocketAddr,
        drain: drain::Watch,
    ) -> Result<(), OutboundError> {
        // Boxed, and gone afterwards: setting up takes more memory than an idle connection may.
        let rest = Box::pin(self.set_up(tcp, dst, drain)).await?;
        rest.await
    }

    /// Discovery, protocol, and for bytes the connection to an endpoint.
    async fn set_up(
        self: &Arc<Self>,
        tcp: TcpStream,
        dst: SocketAddr,
        drain: drain::Watch,
    ) -> Result<Rest, OutboundError> {
        let settings = &self.context.settings;
        // A socket that cannot be configured has been closed already; reading it will tell.
        let _ = net::configure(&tcp, &settings.side.accept.socket);
        let mut stream = Stream::plain(tcp);
        stream.count(self.context.metrics.tcp.series(source_labels(dst)).open());

        let limit = settings.side.detect_timeout;
        let found = self.discovery.find(dst, limit).await;
        let (destination, policy) = match found {
            Ok(found) => found,
            Err(error) => return Err(refuse(&mut stream, error)),
        };
        match &policy.protocol {
            Protocol::Opaque(route) => self.opaque(stream, route, drain).await,
            Protocol::Http1(_) => Ok(self.http(stream, Version::Http1, destination, drain)),
            Protocol::Http2(_) => Ok(self.http(stream, Version::Http2, destination, drain)),
            Protocol::Detect { opaque, .. } => {
                let carried = detect::http(&mut stream, limit).await;
                match carried.map_err(OutboundError::Detect)? {
                    Carried::Http1 => Ok(self.http(stream, Version::Http1, destination, drain)),
                    Carried::Http2 => Ok(self.http(stream, Version::Http2, destination, drain)),
                    Carried::NotHttp | Carried::Silent => self.opaque(stream, opaque, drain).await,
                    Carried::Closed => Ok(Box::pin(std::future::ready(Ok(())))),
                }
            }
            Protocol::Tls(routes) => {
                let hello = detect::tls(&mut stream, limit).await;
                // Without a server name nothing says where to (contract 4.2).
                let route = match hello.map_err(OutboundError::Detect)? {
                    Tls::For(name) => routes.find(&name),
                    Tls::Plain | Tls::Silent => None,
                };
                match route {
                    Some(route) => self.opaque(stream, route, drain).await,
                    None => Err(refuse(&mut stream, Error::NoRoute)),
                }
            }
            Protocol::Invalid(reason) => {
                Err(refuse(&mut stream, Error::InvalidPolicy(reason.clone())))
            }
        }
    }

    /// Where the application meant to go.
    fn original_dst(&self, tcp: &TcpStream) -> Result<SocketAddr, OutboundError> {
        let dst = net::original_dst(tcp).map_err(|error| {
            let text = format!("no original destination ({error}): was it redirected by iptables?");
            OutboundError::Destination(text)
        })?;
        let own = self.own_ports.contains(&dst.port())
            && (self.context.is_local(dst) || dst.ip().is_unspecified());
        if own || dst.ip().is_loopback() {
            let text = format!("{dst} leads back to this proxy, or to loopback");
            return Err(OutboundError::Destination(text));
        }
        Ok(dst)
    }

    /// Requests, until the client is done.
    fn http(
        self: &Arc<Self>,
        stream: Stream,
        version: Version,
        destination: Destination,
        drain: drain::Watch,
    ) -> Rest {
        let handler = HttpConnection::new(self.clone(), destination, version, drain.clone());
        let (limits, http2) = (self.context.limits, self.context.server_http2);
        match version {
            Version::Http1 => Box::pin(async move {
                let served = h1::serve(stream, handler, limits, drain).await;
                served.map_err(OutboundError::Http1)
            }),
            Version::Http2 => Box::pin(async move {
                let served = h2::serve(stream, handler, http2, drain).await;
                served.map_err(OutboundError::Http2)
            }),
        }
    }

    /// Bytes: connects to one endpoint for the life of the connection.
    async fn opaque(
        &self,
        mut stream: Stream,
        route: &OpaqueRoute,
        drain: drain::Watch,
    ) -> Result<Rest, OutboundError> {
        if let Some(reason) = route.refused {
            return Err(refuse(&mut stream, Error::NoBackend(reason.into())));
        }
        if route.backends.must_wait() {
            Box::pin(route.backends.ready()).await;
        }
        let chosen = route.backends.choose(self.context.random());
        let connected = match chosen.map(|chosen| &chosen.backend) {
            Some(Backend::Service(service)) => {
                let connected = Box::pin(service.balancer.connect()).await;
                connected.map(|(server, pending)| (server, Some(pending)))
            }
            Some(Backend::Address(endpoint)) => match endpoint.connector.connect(None).await {
                Ok(server) => Ok((server, None)),
                Err(error) => Err(Error::Connect(Arc::new(error))),
            },
            Some(Backend::Missing(name)) => Err(Error::NoBackend(name.clone())),
            None => Err(Error::NoBackend("the route has no backend".into())),
        };
        match connected {
            Ok((server, pending)) => {
                let mut copying = copy::bidirectional(stream, server);
                Ok(Box::pin(async move {
                    let _held = (&pending, &drain);
                    let copied = (&mut copying).await;
                    copied.map(drop).map_err(OutboundError::Copy)
                }))
            }
            Err(error) => Err(refuse(&mut stream, error)),
        }
    }
}

/// The client sees a reset, as if nobody listened.
fn refuse(stream: &mut Stream, error: Error) -> OutboundError {
    stream.reset_on_close();
    OutboundError::Refused(error)
}

fn source_labels(dst: SocketAddr) -> Labels {
    Labels::build()
        .with("direction", "outbound")
        .with("peer", "src")
        .target(dst)
        .client_tls(&TlsStatus::None(NoTlsReason::Loopback))
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand idle connections are ten thousand of these.
    #[test]
    fn a_connection_is_small() {
        type Accepted = (&'static Arc<Outbound>, TcpStream, SocketAddr, drain::Watch);
        let size = size(|(o, tcp, addr, drain): Accepted| o.connection(tcp, addr, drain));
        assert!(size <= 256, "{size} bytes");
    }
}
