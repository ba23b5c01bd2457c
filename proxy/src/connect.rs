//! Owns `Connector`: how one server address is dialed — TCP, mesh TLS, transport header — within
//! the time limit. Does not choose addresses and keeps no connections.

use crate::metrics::tcp::TcpSeries;
use crate::stream::Stream;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use weft_core::name::Identity;
use weft_core::transport_header::{SessionProtocol, TransportHeader};
use weft_runtime::net::{self, SocketOptions};

/// How to reach a server.
#[derive(Clone)]
pub struct Connector {
    /// Where to dial.
    pub addr: SocketAddr,
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
        let tcp = net::connect(addr, self.timeout, &self.socket)
            .await
            .map_err(|error| match error {
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
            source: std::io::ErrorKind::ConnectionReset.into(),
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
