//! Owns `Endpoint`: one address of a service, how it is reached, what its load is, and how a
//! request is put into the form that it understands. Does not choose between endpoints.

use super::Context;
use super::balance::Pending;
use crate::connect::{Connector, HeaderPlan, ServerTls};
use crate::convert::{ConvertError, invalid};
use crate::error::Error;
use crate::http::body::{Body, Observer};
use crate::http::client::{Client, SendError, Version};
use crate::http::{KeepAlive, headers};
use crate::metrics::http::{HttpSeries, Outcome};
use crate::metrics::labels::{Labels, NoTlsReason, TlsStatus};
use http::{Request, Response};
use linkerd2_proxy_api::destination as api;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use weft_core::balance::PeakEwma;
use weft_core::name::Identity;

/// What discovery says of an address; equal values need no new connections (case L06).
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// Labels of the set, then of the address, in order of name.
    labels: Vec<(String, String)>,
    identity: Option<(Identity, Arc<str>)>,
    hint: Hint,
    /// Where the other proxy takes transport headers.
    inbound_port: Option<u16>,
    keep_alive: Option<(Duration, Duration)>,
}

/// The HTTP version that an endpoint's proxy understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// As the client speaks.
    None,
    /// HTTP/1 may be carried on HTTP/2.
    Http2,
    /// Nothing may be assumed.
    Opaque,
}

/// How load is estimated (contract 4.4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSettings {
    /// The estimate before there are samples.
    pub default_rtt: Duration,
    /// The time in which an old estimate fades.
    pub decay: Duration,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            default_rtt: Duration::from_millis(30),
            decay: Duration::from_secs(10),
        }
    }
}

/// One address of a service.
pub struct Endpoint {
    /// The address.
    pub addr: SocketAddr,
    /// What discovery said of it.
    pub metadata: Metadata,
    /// The estimate of response time.
    pub load: Mutex<PeakEwma>,
    /// Requests or connections under way.
    pub in_flight: AtomicU32,
    /// Connections for opaque traffic.
    pub connector: Connector,
    client: Client,
    http: Arc<HttpSeries>,
    tls: TlsStatus,
}

impl Metadata {
    /// An address of which nothing is known.
    pub fn unknown() -> Self {
        Self {
            labels: Vec::new(),
            identity: None,
            hint: Hint::None,
            inbound_port: None,
            keep_alive: None,
        }
    }

    /// Reads what discovery says of an address, with the labels of its set.
    ///
    /// # Errors
    /// The field that cannot be understood.
    pub fn read(
        addr: api::WeightedAddr,
        set_labels: &HashMap<String, String>,
    ) -> Result<(SocketAddr, Self), ConvertError> {
        let socket = addr.addr.ok_or(ConvertError::Missing("address"))?;
        let socket = SocketAddr::try_from(socket).map_err(|e| invalid("address", e))?;
        if let Some(name) = addr.authority_override {
            let reason = "endpoints behind a multicluster gateway are not supported yet";
            return Err(invalid("authority_override", format!("{name:?}: {reason}")));
        }
        let mut labels = set_labels.clone();
        labels.extend(addr.metric_labels);
        let mut labels: Vec<_> = labels.into_iter().collect();
        labels.sort();
        let hint = addr.protocol_hint.unwrap_or_default();
        let metadata = Self {
            labels,
            identity: addr.tls_identity.map(read_identity).transpose()?,
            hint: match hint.protocol {
                None => Hint::None,
                Some(api::protocol_hint::Protocol::H2(_)) => Hint::Http2,
                Some(api::protocol_hint::Protocol::Opaque(_)) => Hint::Opaque,
            },
            inbound_port: hint
                .opaque_transport
                .map(|t| u16::try_from(t.inbound_port))
                .transpose()
                .map_err(|e| invalid("opaque_transport.inbound_port", e))?
                .filter(|port| *port != 0),
            keep_alive: addr.http2.and_then(|h| h.keep_alive).and_then(|k| {
                let interval = Duration::try_from(k.interval?).ok()?;
                let timeout = Duration::try_from(k.timeout?).ok()?;
                Some((interval, timeout))
            }),
        };
        Ok((socket, metadata))
    }
}

fn read_identity(tls: api::TlsIdentity) -> Result<(Identity, Arc<str>), ConvertError> {
    use api::tls_identity::Strategy;
    let id = match tls.strategy {
        Some(Strategy::DnsLikeIdentity(id)) => id.name,
        Some(Strategy::UriLikeIdentity(id)) => id.uri,
        None => return Err(ConvertError::Missing("tls_identity")),
    };
    let identity = Identity::parse(&id).map_err(|e| invalid("tls_identity", e))?;
    let server_name = match (tls.server_name, &identity) {
        (Some(name), _) => name.name.into(),
        (None, Identity::Dns(name)) => name.clone(),
        (None, Identity::Uri(_)) => return Err(ConvertError::Missing("tls_identity.server_name")),
    };
    Ok((identity, server_name))
}

impl Endpoint {
    /// An endpoint of the service called `authority` (for metrics).
    pub fn new(
        context: &Context,
        authority: &str,
        addr: SocketAddr,
        metadata: Metadata,
        load: LoadSettings,
    ) -> Self {
        // Our own address is the application itself: no mesh in between (contract 4.3).
        let local = context.is_local(addr);
        let identity = metadata.identity.clone().filter(|_| !local);
        let tls = match &identity {
            Some((id, _)) => TlsStatus::Mesh(Some(id.clone())),
            None if local => TlsStatus::None(NoTlsReason::Loopback),
            None => TlsStatus::None(NoTlsReason::NotProvided),
        };
        let labels = |peer| labels(peer, authority, addr, &tls, &metadata);
        let header = header_plan(addr, &metadata).filter(|_| identity.is_some());
        let dial = match (&header, metadata.inbound_port) {
            (Some(_), Some(port)) => SocketAddr::new(addr.ip(), port),
            _ => addr,
        };
        let connector = Connector {
            addr: dial,
            other: None,
            tls: identity.map(|(id, server_name)| ServerTls {
                store: context.store.clone(),
                id,
                server_name,
            }),
            header,
            timeout: context.settings.side.connect.timeout,
            socket: context.settings.side.connect.socket,
            series: context.metrics.tcp.series(labels(Some("dst"))),
        };
        let mut client = context.client;
        if let Some((interval, timeout)) = metadata.keep_alive {
            client.http2.keep_alive = Some(KeepAlive { interval, timeout });
        }
        Self {
            addr,
            load: Mutex::new(PeakEwma::new(load.default_rtt, load.decay, Instant::now())),
            in_flight: AtomicU32::new(0),
            client: Client::new(connector.clone(), client),
            connector,
            http: context.metrics.http.series(labels(None)),
            tls,
            metadata,
        }
    }

    /// Connects ahead of need.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn warm(&self, http: bool) -> Result<(), Arc<crate::connect::ConnectError>> {
        match (http, self.metadata.hint) {
            (false, _) => self
                .connector
                .connect(None)
                .await
                .map(drop)
                .map_err(Arc::new),
            (true, Hint::Http2) => self.client.warm(Version::Http2).await,
            (true, _) => self.client.warm(Version::Http1).await,
        }
    }

    /// Sends a request to this endpoint and watches its response.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(
        &self,
        mut request: Box<Request<Body>>,
        mut pending: Option<Pending>,
        started: Instant,
    ) -> Result<Response<Body>, SendError> {
        self.check_required_identity(&mut request)
            .map_err(SendError::Failed)?;
        let client_version = request.version();
        let version = self.prepare(&mut request);
        let carried = version == Version::Http2 && client_version < http::Version::HTTP_2;
        // An endpoint is not slow because it is new.
        let connected = || {
            if let Some(pending) = &mut pending {
                pending.begin();
            }
        };
        let result = self.client.send(version, request, connected).await;
        let mut response = match result {
            Ok(response) => response,
            Err(SendError::Unsent(mut request, error)) => {
                if carried {
                    restore(&mut request);
                }
                return Err(SendError::Unsent(request, error));
            }
            Err(SendError::Failed(error)) => {
                self.http.request();
                self.http.response(Outcome::of(&error), started.elapsed());
                return Err(SendError::Failed(error));
            }
        };
        self.http.request();
        if carried {
            headers::unmark_response(&mut response);
        }
        *response.version_mut() = headers::answer_version(client_version);
        let observer = Observer::new(
            self.http.clone(),
            started,
            response.status(),
            response.headers(),
            pending,
        );
        Ok(response.map(|body| body.observed(observer)))
    }

    /// Puts the request into the form for this endpoint.
    fn prepare(&self, request: &mut Request<Body>) -> Version {
        if request.version() == http::Version::HTTP_2 {
            return Version::Http2;
        }
        if headers::is_upgrade(request) {
            return Version::Http1;
        }
        headers::strip_hop_by_hop(request.headers_mut());
        if self.metadata.hint == Hint::Http2 && !matches!(self.tls, TlsStatus::None(_)) {
            headers::to_orig_proto(request);
            return Version::Http2;
        }
        Version::Http1
    }

    /// `l5d-require-id` (contract 4.3).
    fn check_required_identity(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let Some(required) = request.headers_mut().remove(headers::REQUIRE_ID) else {
            return Ok(());
        };
        let required = String::from_utf8_lossy(required.as_bytes()).into_owned();
        let found = self.tls.identity();
        if found.is_some_and(|id| id.as_str() == required) {
            return Ok(());
        }
        Err(Error::IdentityRequired {
            required,
            found: found.map_or("no identity".into(), ToString::to_string),
        })
    }
}

/// Undoes [`Endpoint::prepare`] for a request that was carried on HTTP/2 and goes to another endpoint.
fn restore(request: &mut Request<Body>) {
    *request.version_mut() = http::Version::HTTP_2;
    headers::from_orig_proto(request);
}

fn header_plan(addr: SocketAddr, metadata: &Metadata) -> Option<HeaderPlan> {
    metadata.inbound_port.map(|_| HeaderPlan {
        port: addr.port(),
        name: None,
        with_protocol: metadata.hint != Hint::Opaque,
    })
}

fn labels(
    peer: Option<&'static str>,
    authority: &str,
    addr: SocketAddr,
    tls: &TlsStatus,
    metadata: &Metadata,
) -> Labels {
    let mut labels = Labels::build().with("direction", "outbound");
    if let Some(peer) = peer {
        labels = labels.with("peer", peer);
    }
    let mut labels = labels
        .with("authority", authority)
        .target(addr)
        .server_tls(tls);
    for (name, value) in &metadata.labels {
        labels = labels.with_dynamic("dst_", name, value);
    }
    labels.done()
}
