//! Owns traffic that comes to the workload (4143): the life of an inbound connection, in call
//! order: accept → original destination → policy → TLS → protocol → authorize → serve. Requests
//! are in `http`.

pub mod direct;
pub mod http;
pub mod policy;
pub mod ports;

use crate::admin::Admin;
use crate::connect::{ConnectError, Connector};
use crate::detect::{self, Carried, Tls};
use crate::error::Error;
use crate::http::client::{Client, ClientSettings, Version};
use crate::http::{Http2Params, Limits, h1, h2};
use crate::limit::InFlight;
use crate::metrics::inbound::{HttpLabels, InboundMetrics, TcpVerdict};
use crate::metrics::labels::{Labels, NoTlsReason, TlsStatus};
use crate::metrics::tcp::TcpSeries;
use crate::settings;
use crate::stream::Stream;
use direct::DirectError;
use http::{HttpConnection, Upstream};
use parking_lot::Mutex;
use policy::{Protocol, ServerPolicy};
use ports::{Port, Ports};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use weft_core::authorize::{ClientTls, authorize};
use weft_core::transport_header::SessionProtocol;
use weft_runtime::{copy, drain, net};

/// What all of inbound shares.
pub struct Context {
    /// The settings of this direction.
    pub settings: settings::Inbound,
    /// How HTTP clients behave.
    pub client: ClientSettings,
    /// Limits on what clients send.
    pub limits: Limits,
    /// Parameters for HTTP/2 clients.
    pub server_http2: Http2Params,
    /// Our own certificate.
    pub store: weft_tls::Store,
    /// Metrics of this direction.
    pub metrics: InboundMetrics,
    /// Connections to the application.
    pub app_series: Arc<TcpSeries>,
    /// Requests under way.
    pub in_flight: InFlight,
    /// Randomness for filters, not for secrets.
    pub random: crate::random::Random,
}

/// Serves traffic that comes to the workload.
pub struct Inbound {
    /// Shared state.
    pub context: Context,
    /// Knowledge of ports.
    pub ports: Ports,
    /// Ports of this proxy, to which nothing is forwarded (case T07).
    pub own_ports: Vec<u16>,
    /// HTTP clients by the address that they send to.
    pub clients: Mutex<HashMap<SocketAddr, Arc<Client>>>,
}

/// The labels of connections to the application.
pub fn app_labels() -> Labels {
    Labels::build()
        .with("direction", "inbound")
        .with("peer", "dst")
        .client_tls(&TlsStatus::None(NoTlsReason::Loopback))
        .done()
}

/// Clients that are kept although nobody uses them.
const MAX_IDLE_CLIENTS: usize = 256;

/// Who is on the other side of a connection, and where it meant to go.
#[derive(Clone)]
pub struct Peer {
    /// The client's address.
    pub client: SocketAddr,
    /// The client's TLS.
    pub tls: TlsStatus,
    /// The address it meant.
    pub target: SocketAddr,
}

impl Peer {
    /// What authorization needs to know of the client.
    pub fn client_tls(&self) -> ClientTls<'_> {
        match &self.tls {
            TlsStatus::Mesh(Some(id)) => ClientTls::Identified(id),
            TlsStatus::Mesh(None) => ClientTls::Anonymous,
            TlsStatus::None(_) | TlsStatus::Opaque(_) => ClientTls::Plain,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tls.identity() {
            Some(id) => write!(f, "{} ({id})", self.client),
            None => write!(f, "{} (no identity)", self.client),
        }
    }
}

/// A connection of which all is known but what it carries.
struct Connection {
    stream: Stream,
    peer: Peer,
    port: Port,
    drain: drain::Watch,
}

/// What is left of a connection's life once it is set up: requests, or bytes, to the end.
type Rest = Pin<Box<dyn Future<Output = Result<(), InboundError>> + Send>>;

/// Why an inbound connection was ended by the proxy.
#[derive(Debug, thiserror::Error)]
pub enum InboundError {
    /// It was meant for somewhere else.
    #[error("{0}")]
    Destination(String),
    /// Its first bytes could not be read.
    #[error("reading the client's first bytes: {0}")]
    Detect(std::io::Error),
    /// It said nothing.
    #[error("the client sent no bytes within {0:?}")]
    TlsTimeout(Duration),
    /// The handshake failed.
    #[error("mesh TLS: {0}")]
    Tls(#[from] weft_tls::AcceptError),
    /// The direct connection was not one.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// Policy does not let it through, or no longer.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The application was not reached.
    #[error("the application: {0}")]
    Connect(ConnectError),
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

impl InboundError {
    fn label(&self) -> &'static str {
        match self {
            Self::TlsTimeout(_) => "tls detection timeout",
            Self::Refused(error) => error.label(),
            Self::Destination(_) | Self::Direct(_) => "unexpected",
            _ => "i/o",
        }
    }
}

impl Inbound {
    /// Accepts connections, for as long as the process lives: also while it drains, because
    /// clients may not have heard yet (case T14).
    pub async fn serve(self: Arc<Self>, listener: TcpListener, drain: drain::Source) {
        loop {
            let (tcp, client) = net::accept(&listener).await;
            let this = self.clone();
            let drain = drain.watch();
            tokio::spawn(async move {
                let target = this.original_dst(&tcp);
                let served = match &target {
                    Ok(target) => this.connection(tcp, client, *target, drain).await,
                    Err(error) => {
                        let _ = net::reset_on_close(&tcp);
                        Err(InboundError::Destination(error.clone()))
                    }
                };
                if let Err(error) = served {
                    let metrics = &this.context.metrics;
                    metrics.connection_failed(target.ok(), error.label());
                    tracing::debug!(%client, %error, "inbound connection ended");
                }
            });
        }
    }

    /// Accepts connections to the admin port. They pass the port's policy like others, but are
    /// answered here (contract 5).
    pub async fn serve_admin(
        self: Arc<Self>,
        listener: TcpListener,
        target: SocketAddr,
        admin: Arc<Admin>,
        drain: drain::Source,
    ) {
        loop {
            let (tcp, client) = net::accept(&listener).await;
            let (this, admin, drain) = (self.clone(), admin.clone(), drain.watch());
            tokio::spawn(async move {
                let peer = Peer {
                    client,
                    tls: TlsStatus::None(NoTlsReason::NotFromRemote),
                    target,
                };
                if let Err(error) = this.admin(Stream::plain(tcp), peer, admin, drain).await {
                    tracing::debug!(%client, %error, "admin connection ended");
                }
            });
        }
    }

    async fn admin(
        self: &Arc<Self>,
        stream: Stream,
        mut peer: Peer,
        admin: Arc<Admin>,
        drain: drain::Watch,
    ) -> Result<(), InboundError> {
        let (mut stream, tls) = self.terminate(stream, false).await?;
        peer.tls = tls;
        let port = self.ports.port(peer.target.port())?;
        let limit = self.context.settings.side.detect_timeout;
        let carried = detect::http(&mut stream, limit).await;
        let carried = carried.map_err(InboundError::Detect)?;
        let version = match carried {
            Carried::Http1 => Version::Http1,
            Carried::Http2 => Version::Http2,
            Carried::NotHttp | Carried::Silent | Carried::Closed => return Ok(()),
        };
        let connection = Connection {
            stream,
            peer,
            port,
            drain,
        };
        self.requests(connection, version, Upstream::Admin(admin))
            .await
    }

    /// The life of a connection.
    async fn connection(
        self: &Arc<Self>,
        tcp: TcpStream,
        client: SocketAddr,
        target: SocketAddr,
        drain: drain::Watch,
    ) -> Result<(), InboundError> {
        // Boxed, and gone afterwards: setting up takes more memory than an idle connection may.
        let rest = Box::pin(self.set_up(tcp, client, target, drain)).await?;
        rest.await
    }

    /// Policy, TLS, protocol, authorization, and for bytes the connection to the application.
    async fn set_up(
        self: &Arc<Self>,
        tcp: TcpStream,
        client: SocketAddr,
        target: SocketAddr,
        drain: drain::Watch,
    ) -> Result<Rest, InboundError> {
        let settings = &self.context.settings;
        // A socket that cannot be configured has been closed already; reading it will tell.
        let _ = net::configure(&tcp, &settings.side.accept.socket);
        let stream = Stream::plain(tcp);
        if target.port() == settings.listen.port() {
            return self.direct(stream, client, target, drain).await;
        }
        let port = self.ports.port(target.port())?;
        let policy = port.policy();
        let mut peer = Peer {
            client,
            tls: TlsStatus::None(NoTlsReason::PortSkipped),
            target,
        };
        let mut stream = stream;
        if policy.protocol != Protocol::Opaque {
            (stream, peer.tls) = self.terminate(stream, false).await?;
        }
        let connection = Connection {
            stream,
            peer,
            port,
            drain,
        };
        self.by_protocol(connection, &policy).await
    }

    /// Where the client meant to go: an address of this workload, else nobody's business.
    fn original_dst(&self, tcp: &TcpStream) -> Result<SocketAddr, String> {
        let local = tcp.local_addr().map(net::unmap);
        // Without redirection the client meant the listener itself.
        let dst = net::original_dst(tcp).or(local);
        let dst = dst.map_err(|error| format!("no original destination: {error}"))?;
        let ips = &self.context.settings.ips;
        let own = self.context.settings.listen.port();
        if !ips.is_empty() && !ips.contains(&dst.ip()) {
            return Err(format!("{dst} is not an address of this workload"));
        }
        if dst.port() != own && self.own_ports.contains(&dst.port()) {
            return Err(format!("{dst} is a port of this proxy"));
        }
        Ok(dst)
    }

    /// Ends mesh TLS if the client speaks it to us.
    async fn terminate(
        &self,
        mut stream: Stream,
        direct: bool,
    ) -> Result<(Stream, TlsStatus), InboundError> {
        let limit = self.context.settings.side.detect_timeout;
        let store = &self.context.store;
        let tls = detect::tls(&mut stream, limit).await;
        match tls.map_err(InboundError::Detect)? {
            Tls::Silent => Err(InboundError::TlsTimeout(limit)),
            Tls::Plain => Ok((stream, TlsStatus::None(NoTlsReason::NotFromRemote))),
            Tls::For(name) if name.eq_ignore_ascii_case(store.server_name()) => {
                let Some(credentials) = store.current() else {
                    return Err(InboundError::TlsTimeout(limit));
                };
                let accepting = weft_tls::accept(stream, &credentials, direct);
                let accepted = tokio::time::timeout(limit, accepting)
                    .await
                    .map_err(|_| InboundError::TlsTimeout(limit))??;
                if direct && !accepted.alpn_transport {
                    return Err(DirectError::NotMutual.into());
                }
                let tls = TlsStatus::Mesh(accepted.client);
                Ok((Stream::server_tls(accepted.stream), tls))
            }
            Tls::For(name) => Ok((stream, TlsStatus::Opaque(name.into()))),
        }
    }

    /// A connection to this proxy's own port (contract 3.3).
    async fn direct(
        self: &Arc<Self>,
        stream: Stream,
        client: SocketAddr,
        target: SocketAddr,
        drain: drain::Watch,
    ) -> Result<Rest, InboundError> {
        let limit = self.context.settings.side.detect_timeout;
        let (mut stream, tls) = self.terminate(stream, true).await?;
        if tls.identity().is_none() {
            return Err(DirectError::NotMutual.into());
        }
        let header = direct::read_header(&mut stream, limit).await?;
        if let Some(name) = header.name {
            return Err(DirectError::NotGateway(name).into());
        }
        if self.own_ports.contains(&header.port) {
            let text = format!("port {} is this proxy's own", header.port);
            return Err(InboundError::Destination(text));
        }
        let connection = Connection {
            stream,
            peer: Peer {
                client,
                tls,
                target: SocketAddr::new(target.ip(), header.port),
            },
            port: self.ports.port(header.port)?,
            drain,
        };
        match header.protocol {
            Some(SessionProtocol::Http1) => Ok(self.http(connection, Version::Http1)),
            Some(SessionProtocol::Http2) => Ok(self.http(connection, Version::Http2)),
            None => self.opaque(connection).await,
        }
    }

    async fn by_protocol(
        self: &Arc<Self>,
        mut connection: Connection,
        policy: &ServerPolicy,
    ) -> Result<Rest, InboundError> {
        let tls = &connection.peer.tls;
        if matches!(tls, TlsStatus::Opaque(_)) {
            return self.opaque(connection).await;
        }
        let default = self.context.settings.side.detect_timeout;
        let limit = match policy.protocol {
            Protocol::Detect { timeout } => timeout,
            // The other proxy may have carried HTTP/1 on HTTP/2.
            Protocol::Http1 if matches!(tls, TlsStatus::Mesh(_)) => default,
            Protocol::Http1 => return Ok(self.http(connection, Version::Http1)),
            Protocol::Http2 => return Ok(self.http(connection, Version::Http2)),
            Protocol::Opaque | Protocol::Tls => return self.opaque(connection).await,
            Protocol::Invalid(_) => default,
        };
        let carried = detect::http(&mut connection.stream, limit).await;
        match carried.map_err(InboundError::Detect)? {
            Carried::Http1 => Ok(self.http(connection, Version::Http1)),
            Carried::Http2 => Ok(self.http(connection, Version::Http2)),
            Carried::Silent if policy.protocol == Protocol::Http1 => {
                Ok(self.http(connection, Version::Http1))
            }
            Carried::NotHttp | Carried::Silent => self.opaque(connection).await,
            Carried::Closed => Ok(Box::pin(std::future::ready(Ok(())))),
        }
    }

    /// Requests to the application, until the client is done.
    fn http(self: &Arc<Self>, connection: Connection, version: Version) -> Rest {
        let upstream = Upstream::App(self.client(connection.peer.target));
        self.requests(connection, version, upstream)
    }

    fn requests(
        self: &Arc<Self>,
        connection: Connection,
        version: Version,
        upstream: Upstream,
    ) -> Rest {
        let Connection {
            mut stream,
            peer,
            port,
            drain,
        } = connection;
        self.count(&mut stream, &peer, &port.policy());
        let handler = HttpConnection::new(self.clone(), peer, port, upstream, drain.clone());
        let (limits, http2) = (self.context.limits, self.context.server_http2);
        match version {
            Version::Http1 => Box::pin(async move {
                let served = h1::serve(stream, handler, limits, drain).await;
                served.map_err(InboundError::Http1)
            }),
            Version::Http2 => Box::pin(async move {
                let served = h2::serve(stream, handler, http2, drain).await;
                served.map_err(InboundError::Http2)
            }),
        }
    }

    /// Bytes: connects to the application if policy lets the client (contract 3.2).
    async fn opaque(self: &Arc<Self>, connection: Connection) -> Result<Rest, InboundError> {
        let Connection {
            mut stream,
            peer,
            port,
            drain,
        } = connection;
        let policy = port.policy();
        self.count(&mut stream, &peer, &policy);
        if let Err(error) = self.authorize(&peer, &policy, false) {
            stream.reset_on_close();
            return Err(error.into());
        }
        let connected = self.connector(peer.target).connect(None).await;
        let app = connected.map_err(|error| {
            stream.reset_on_close();
            InboundError::Connect(error)
        })?;
        let this = self.clone();
        let mut copying = copy::bidirectional(stream, app);
        Ok(Box::pin(async move {
            let _held = &drain;
            tokio::select! {
                copied = &mut copying => copied.map(drop).map_err(InboundError::Copy),
                error = this.revoked(&peer, &port) => Err(error.into()),
            }
        }))
    }

    /// Resolves when policy no longer lets the connection through.
    async fn revoked(&self, peer: &Peer, port: &Port) -> Error {
        loop {
            port.changed().await;
            if let Err(error) = self.authorize(peer, &port.policy(), true) {
                return error;
            }
        }
    }

    /// `again`: the connection was let through before.
    fn authorize(&self, peer: &Peer, policy: &ServerPolicy, again: bool) -> Result<(), Error> {
        let labels = HttpLabels {
            target: peer.target,
            tls: &peer.tls,
            server: &policy.server,
        };
        let metrics = &self.context.metrics;
        match authorize(&policy.authorizations, peer.client.ip(), peer.client_tls()) {
            Some(_) if again => Ok(()),
            Some(authz) => {
                metrics.tcp(&labels, TcpVerdict::Allow(&authz.meta));
                Ok(())
            }
            None => {
                let verdict = if again {
                    TcpVerdict::Terminate
                } else {
                    TcpVerdict::Deny
                };
                metrics.tcp(&labels, verdict);
                tracing::info!(client = %peer, server = %policy.server.name,
                    target = %peer.target, "connection is not authorized");
                Err(Error::Unauthorized {
                    client: peer.to_string(),
                    server: policy.server.name.to_string(),
                })
            }
        }
    }

    fn count(&self, stream: &mut Stream, peer: &Peer, policy: &ServerPolicy) {
        let series = self.context.metrics.source(&HttpLabels {
            target: peer.target,
            tls: &peer.tls,
            server: &policy.server,
        });
        stream.count(series.open());
    }

    fn connector(&self, target: SocketAddr) -> Connector {
        let connect = &self.context.settings.side.connect;
        Connector {
            addr: target,
            other: twin(target.ip(), &self.context.settings.ips),
            tls: None,
            header: None,
            timeout: connect.timeout,
            socket: connect.socket,
            series: self.context.app_series.clone(),
        }
    }

    fn client(&self, target: SocketAddr) -> Arc<Client> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(&target) {
            return client.clone();
        }
        if clients.len() >= MAX_IDLE_CLIENTS {
            clients.retain(|_, client| Arc::strong_count(client) > 1);
        }
        let client = Arc::new(Client::new(self.connector(target), self.context.client));
        clients.insert(target, client.clone());
        client
    }
}

/// The address of the other family of the workload that has `target`.
fn twin(target: IpAddr, ips: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let other = ips.iter().find(|ip| ip.is_ipv4() != target.is_ipv4())?;
    ips.contains(&target).then_some(*other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d02_the_twin_of_an_address_is_of_the_same_workload() {
        let ips = ["10.0.0.7", "fd00::7"].map(|ip| ip.parse().expect("an address"));
        let ips = BTreeSet::from(ips);
        let twin =
            |target: &str| twin(target.parse().expect("an address"), &ips).map(|ip| ip.to_string());
        assert_eq!(twin("fd00::7").as_deref(), Some("10.0.0.7"));
        assert_eq!(twin("10.0.0.7").as_deref(), Some("fd00::7"));
        assert_eq!(twin("10.0.0.8"), None);
    }

    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand idle connections are ten thousand of these.
    #[test]
    fn a_connection_is_small() {
        type Accepted = (&'static Arc<Inbound>, TcpStream, SocketAddr, drain::Watch);
        let size = size(|(i, tcp, addr, drain): Accepted| i.connection(tcp, addr, addr, drain));
        assert!(size <= 256, "{size} bytes");
    }
}
