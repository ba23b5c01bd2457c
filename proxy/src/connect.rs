//! Owns `Connector`: how one server address is dialed — TCP, mesh TLS, transport header — within
//! the time limit. Does not choose addresses and keeps no connections.

use crate::metrics::tcp::TcpSeries;
use crate::stream::Stream;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weft_core::name::Identity;
use weft_core::transport_header::{SessionProtocol, TransportHeader};
use weft_runtime::net::{self, SocketOptions};

/// How to reach a server.
#[derive(Clone)]
pub struct Connector {
    /// Where to dial.
    pub addr: SocketAddr,
    /// The address to dial if that is refused: the same workload's of the other family, as an application may listen on one of
    /// them only (case D02).
    pub other: Option<IpAddr>,
    /// Mesh TLS, if the server has an identity.
    pub tls: Option<ServerTls>,
    /// The transport header to send after the handshake.
    pub header: Option<HeaderPlan>,
    /// Time for TCP, TLS and the header together.
    pub timeout: Duration,
    /// Socket options.
    pub socket: SocketOptions,
    /// Counts what is opened.
    pub series: Arc<TcpSeries>,
}

/// Whom to expect.
#[derive(Clone)]
pub struct ServerTls {
    /// Our own credentials.
    pub store: weft_tls::Store,
    /// The identity that the server must prove (contract 2.3).
    pub id: Identity,
    /// The name to ask for (SNI).
    pub server_name: Arc<str>,
}

/// What the transport header says (contract 3.3, 4.3).
#[derive(Clone, Debug)]
pub struct HeaderPlan {
    /// The port behind the other proxy.
    pub port: u16,
    /// A name, for gateways.
    pub name: Option<String>,
    /// Whether the HTTP version is told, so that the other side need not detect it.
    pub with_protocol: bool,
}

/// Why a server was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No answer in time.
    #[error("connecting to {addr} took longer than {limit:?}")]
    Timeout {
        /// Where.
        addr: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// Refused, unreachable or broken off.
    #[error("connecting to {addr}: {source}")]
    Io {
        /// Where.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server could not prove to be who it should be, or refused us.
    #[error("connecting to {addr} as a mesh peer: {source}")]
    Tls {
        /// Where.
        addr: SocketAddr,
        /// What was wrong.
        source: weft_tls::ConnectError,
    },
    /// This proxy has no certificate yet.
    #[error("connecting to {addr}: this proxy has no certificate yet")]
    Uncertified {
        /// Where.
        addr: SocketAddr,
    },
    /// The connection was made, but HTTP did not start on it.
    #[error("starting HTTP with {addr}: {reason}")]
    Handshake {
        /// Where.
        addr: SocketAddr,
        /// What was wrong.
        reason: String,
    },
}

impl ConnectError {
    /// Whether it was time that ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}

impl Connector {
    /// Connects. `session` tells the other proxy which HTTP version follows.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(&self, session: Option<SessionProtocol>) -> Result<Stream, ConnectError> {
        let connecting = Box::pin(self.connect_untimed(session));
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(result) => result,
            Err(_elapsed) => Err(ConnectError::Timeout {
                addr: self.addr,
                limit: self.timeout,
            }),
        }
    }

    async fn connect_untimed(
        &self,
        session: Option<SessionProtocol>,
    ) -> Result<Stream, ConnectError> {
        let addr = self.addr;
        let tcp = self.dial().await.map_err(|error| match error {
            net::ConnectError::Timeout { limit, .. } => ConnectError::Timeout { addr, limit },
            net::ConnectError::Io { source, .. } => ConnectError::Io { addr, source },
        })?;
        let mut stream = match &self.tls {
            None => Stream::plain(tcp),
            Some(tls) => {
                let Some(credentials) = tls.store.current() else {
                    return Err(ConnectError::Uncertified { addr });
                };
                let client = weft_tls::ClientConfigRef::Credentials(&credentials);
                let direct = self.header.is_some();
                weft_tls::connect(tcp, client, &tls.id, &tls.server_name, direct)
                    .await
                    .map(Stream::client_tls)
                    .map_err(|source| ConnectError::Tls { addr, source })?
            }
        };
        if let Some(plan) = &self.header {
            let header = plan.header(session).encode();
            let sent = async {
                stream.write_all(&header).await?;
                stream.flush().await
            };
            sent.await
                .map_err(|source| ConnectError::Io { addr, source })?;
        }
        stream.count(self.series.open());
        Ok(stream)
    }

    async fn dial(&self) -> Result<TcpStream, net::ConnectError> {
        let dialed = net::connect(self.addr, self.timeout, &self.socket).await;
        match (&dialed, self.other) {
            (Err(net::ConnectError::Io { source, .. }), Some(other))
                if source.kind() == ErrorKind::ConnectionRefused =>
            {
                // What the first said is the error if nobody listens at all.
                let other = SocketAddr::new(other, self.addr.port());
                let second = net::connect(other, self.timeout, &self.socket).await;
                second.or(dialed)
            }
            _ => dialed,
        }
    }

    /// An error for a connection on which HTTP did not start.
    pub fn handshake_failed(&self, error: impl std::error::Error) -> ConnectError {
        ConnectError::Handshake {
            addr: self.addr,
            reason: error.to_string(),
        }
    }

    /// An error for a server that closed before it could be used.
    pub fn closed_early(&self) -> ConnectError {
        ConnectError::Io {
            addr: self.addr,
            source: ErrorKind::ConnectionReset.into(),
        }
    }
}

impl HeaderPlan {
    fn header(&self, session: Option<SessionProtocol>) -> TransportHeader {
        TransportHeader {
            port: self.port,
            name: self.name.clone(),
            protocol: session.filter(|_| self.with_protocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::testing::Authority;
    use crate::testing;
    use std::net::Ipv4Addr;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(1);

    fn connector(addr: SocketAddr, tls: Option<ServerTls>) -> Connector {
        let (context, _) = testing::outbound(&[]);
        Connector {
            addr,
            other: None,
            tls,
            header: None,
            timeout: LIMIT,
            socket: SocketOptions::default(),
            series: context.metrics.tcp.series(Default::default()),
        }
    }

    fn tls(store: weft_tls::Store) -> ServerTls {
        ServerTls {
            id: store.id().clone(),
            server_name: store.server_name().into(),
            store,
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_shake_hands_is_given_up_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let store = Authority::new().store("test", Duration::from_secs(3600));
        let connector = connector(addr, Some(tls(store)));
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        let connected = connector.connect(None).await;
        assert!(matches!(connected, Err(ConnectError::Timeout { .. })));
        testing::assert_elapsed(start, LIMIT);
        assert!(connected.is_err_and(|e| e.is_timeout()));
    }

    #[tokio::test]
    async fn without_a_certificate_no_mesh_peer_is_dialed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (store, _) = Authority::new().empty_store("test");
        let connected = connector(addr, Some(tls(store))).connect(None).await;
        assert!(matches!(connected, Err(ConnectError::Uncertified { .. })));
    }

    #[tokio::test]
    async fn a_closed_port_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let connected = connector(addr, None).connect(None).await;
        let error = connected.err().expect("nobody listens").to_string();
        assert!(error.contains(&addr.to_string()), "{error}");
    }

    #[tokio::test]
    async fn d02_an_application_on_the_other_address_only_is_reached() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let there = listener.local_addr().unwrap();
        let refused = SocketAddr::from(([127, 0, 0, 2], there.port()));
        let mut connector = connector(refused, None);
        connector.other = Some(there.ip());
        assert!(connector.connect(None).await.is_ok());
        drop(listener);
        let error = connector.connect(None).await.err().expect("nobody listens");
        let named = error.to_string();
        assert!(named.contains(&refused.to_string()), "{named}");
    }

    #[tokio::test]
    async fn the_header_comes_first_after_the_handshake() {
        let store = Authority::new().store("test", Duration::from_secs(3600));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut connector = connector(addr, Some(tls(store.clone())));
        connector.header = Some(HeaderPlan {
            port: 8080,
            name: None,
            with_protocol: true,
        });
        let server = tokio::spawn(async move {
            let (io, _) = listener.accept().await.unwrap();
            let credentials = store.current().unwrap();
            let mut accepted = weft_tls::accept(io, &credentials, true).await.unwrap();
            let mut seen = Vec::new();
            accepted.stream.read_to_end(&mut seen).await.unwrap();
            (accepted.client, seen)
        });
        let mut stream = connector
            .connect(Some(SessionProtocol::Http2))
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
        let (client, seen) = server.await.unwrap();
        assert!(client.is_some());
        let expected = TransportHeader {
            port: 8080,
            name: None,
            protocol: Some(SessionProtocol::Http2),
        };
        assert_eq!(seen, expected.encode());
    }
}
