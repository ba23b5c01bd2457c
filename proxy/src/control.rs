//! gRPC channels to the control plane: names are resolved, connections encrypted and re-made here, lazily.
//! Which service is called and what its answers mean is decided elsewhere; `stream` keeps a watch alive.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint};
use weft_core::name::Identity;
use weft_core::parse::Addr;
use weft_runtime::net::{self, SocketOptions};
use weft_tls::{ClientConfigRef, Store};

pub mod stream;

#[cfg(test)]
mod tests;

/// A resolver that hangs must not keep a channel from trying again. glibc asks each server for 5 s, twice.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a connection to the control plane is made. There are no HTTP/2 keep-alive pings (contract 1.2); a peer that
/// vanished is noticed by TCP through `socket`.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// For TCP and TLS together, per address: the outbound connect timeout, the inbound one for loopback
    /// (contract 1.2).
    pub timeout: Duration,
    /// Keep-alive and user timeout of the socket.
    pub socket: SocketOptions,
    /// Whether our certificate is presented once there is one. Not to the identity service: the token authenticates
    /// there, and a certificate that has expired or whose root is gone must not stand in the way of its own renewal.
    pub present_certificate: bool,
}

/// Why no connection to the control plane could be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlConnectError {
    /// DNS failed.
    #[error("cannot resolve {addr}: {source}; check the address and the cluster's DNS")]
    Resolve {
        /// What was looked up.
        addr: Addr,
        /// What the resolver said.
        source: io::Error,
    },
    /// DNS has the name, but no address for it.
    #[error("{0} has no address; its service has no running pod")]
    NoAddress(Addr),
    /// TCP failed.
    #[error(transparent)]
    Tcp(#[from] net::ConnectError),
    /// TLS failed.
    #[error("{addr}: {source}")]
    Tls {
        /// The peer.
        addr: SocketAddr,
        /// What is wrong with it.
        source: weft_tls::ConnectError,
    },
    /// TCP was fast enough, but TLS was not.
    #[error("{addr} did not finish the TLS handshake within {after:?}")]
    Timeout {
        /// The peer.
        addr: SocketAddr,
        /// The limit.
        after: Duration,
    },
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Connection = TokioIo<Box<dyn Io>>;

struct Peer {
    addr: Addr,
    name: Option<Identity>,
    store: Store,
    options: ConnectOptions,
}

/// A channel to the service at `addr`, which connects with its first request and again whenever the connection is lost.
///
/// Each time it resolves `addr` anew and takes the certificate that is current then. With `name` the connection is
/// mesh TLS and the service must have that identity; without, it is plaintext (loopback only, contract 1.1).
/// `:authority` is `addr` as configured (contract 4.1). Must be called inside a tokio runtime.
pub fn channel(
    addr: Addr,
    name: Option<Identity>,
    store: &Store,
    options: ConnectOptions,
) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect(
        "an address, or a DNS name that was checked when it was parsed, is a valid authority",
    );
    let peer = Arc::new(Peer {
        addr,
        name,
        store: store.clone(),
        options,
    });
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_| connect(peer.clone())))
}

async fn connect(peer: Arc<Peer>) -> Result<Connection, ControlConnectError> {
    let addrs = resolve(&peer.addr, random()).await?;
    let mut outcome = Err(ControlConnectError::NoAddress(peer.addr.clone()));
    for addr in addrs {
        outcome = dial(&peer, addr).await;
        match &outcome {
            Ok(_) => break,
            Err(error) => tracing::debug!(service = %peer.addr, %error, "trying the next address"),
        }
    }
    outcome
}

/// The addresses of a service, beginning at a random one so that proxies spread over the pods.
async fn resolve(addr: &Addr, random: u64) -> Result<Vec<SocketAddr>, ControlConnectError> {
    let (host, port) = match addr {
        Addr::Socket(addr) => return Ok(vec![*addr]),
        Addr::Name { port, .. } if addr.is_loopback() => {
            return Ok(vec![(Ipv4Addr::LOCALHOST, *port).into()]);
        }
        Addr::Name { host, port } => (host.as_str(), *port),
    };
    let lookup = tokio::net::lookup_host((host, port));
    let mut addrs: Vec<_> = match tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(source)) => {
            return Err(ControlConnectError::Resolve {
                addr: addr.clone(),
                source,
            });
        }
        Err(_) => {
            let source = io::Error::from(io::ErrorKind::TimedOut);
            return Err(ControlConnectError::Resolve {
                addr: addr.clone(),
                source,
            });
        }
    };
    let count = addrs.len() as u64;
    if let Some(first) = random.checked_rem(count) {
        addrs.rotate_left(first as usize);
    }
    Ok(addrs)
}

async fn dial(peer: &Peer, addr: SocketAddr) -> Result<Connection, ControlConnectError> {
    let after = peer.options.timeout;
    let attempt = async {
        let tcp = net::connect(addr, after, &peer.options.socket).await?;
        let Some(name) = &peer.name else {
            return Ok(TokioIo::new(Box::new(tcp) as Box<dyn Io>));
        };
        let credentials = peer.store.current().filter(|current| {
            peer.options.present_certificate && current.expires > SystemTime::now()
        });
        let anonymous = peer.store.anonymous_client();
        let client = match &credentials {
            Some(credentials) => ClientConfigRef::Credentials(credentials),
            None => ClientConfigRef::Anonymous(&anonymous),
        };
        let tls = weft_tls::connect(tcp, client, name, name.as_str(), false)
            .await
            .map_err(|source| ControlConnectError::Tls { addr, source })?;
        Ok(TokioIo::new(Box::new(tls) as Box<dyn Io>))
    };
    match tokio::time::timeout(after, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ControlConnectError::Timeout { addr, after }),
    }
}

/// A number that differs from call to call, for spreading load and jitter; not for secrets.
pub fn random() -> u64 {
    RandomState::new().hash_one(())
}
