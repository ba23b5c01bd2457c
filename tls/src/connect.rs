//! The client's half of a handshake, with the check that the server is who we meant. Choosing the endpoint and
//! timeouts are the caller's.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use weft_core::name::Identity;

use crate::handshake::{self, HandshakeError};
use crate::parameters::TRANSPORT_ALPN;
use crate::store::Credentials;
use crate::stream::TlsStream;

/// As whom we connect.
#[derive(Debug, Clone, Copy)]
pub enum ClientConfigRef<'a> {
    /// With our certificate.
    Credentials(&'a Credentials),
    /// Without one, see [`crate::Store::anonymous_client`].
    Anonymous(&'a Arc<ClientConfig>),
}

/// Why a handshake failed at the client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A valid certificate of the mesh, but another workload's. Usual when an address was reused.
    #[error("the server is {found:?}, not {expected}")]
    WrongIdentity {
        /// Whom we meant to reach.
        expected: Identity,
        /// The names of its certificate.
        found: Vec<String>,
    },
    /// The server's certificate is expired, of another mesh, or otherwise not acceptable.
    #[error("the certificate of the server, expected to be {expected}, was refused: {reason}")]
    Certificate {
        /// Whom we meant to reach.
        expected: Identity,
        /// What is wrong with it.
        reason: rustls::CertificateError,
    },
    /// The server ended the handshake.
    #[error("the server ended the handshake: {0:?}")]
    RefusedByServer(rustls::AlertDescription),
    /// The server name cannot be sent as SNI.
    #[error("{0:?} cannot be a TLS server name; expected a DNS name")]
    ServerName(String),
    /// Direct connections need a certificate, and a server that takes the transport header (contract 3.3).
    #[error(
        "{expected} does not take part in {}",
        String::from_utf8_lossy(TRANSPORT_ALPN)
    )]
    NotDirect {
        /// Whom we meant to reach.
        expected: Identity,
    },
    /// The two do not speak the same TLS.
    #[error("the TLS handshake failed: {0}")]
    Tls(rustls::Error),
    /// The connection broke.
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(io::Error),
}

/// Connects as `client` to the workload `expected`, asking for it by `server_name`.
///
/// Returns only after the chain has been verified and one of the names of the leaf equals `expected` (contract 2.3);
/// until then no byte of the caller's has been sent. With `direct`, the server has agreed to the transport header.
pub async fn connect<IO>(
    io: IO,
    client: ClientConfigRef<'_>,
    expected: &Identity,
    server_name: &str,
    direct: bool,
) -> Result<TlsStream<IO>, ConnectError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let sni = ServerName::DnsName(
        server_name
            .to_owned()
            .try_into()
            .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?,
    );
    let config = match client {
        ClientConfigRef::Credentials(credentials) => credentials.client(direct),
        ClientConfigRef::Anonymous(config) => config,
    };
    let (stream, peer) = handshake::client(io, config.clone(), sni)
        .await
        .map_err(|error| ConnectError::from_handshake(error, expected))?;
    if !peer.leaf.as_ref().is_some_and(|leaf| leaf.is(expected)) {
        let found = peer.leaf.map(|leaf| leaf.found()).unwrap_or_default();
        return Err(ConnectError::WrongIdentity {
            expected: expected.clone(),
            found,
        });
    }
    if direct && peer.alpn.as_deref() != Some(TRANSPORT_ALPN) {
        return Err(ConnectError::NotDirect {
            expected: expected.clone(),
        });
    }
    Ok(stream)
}

impl ConnectError {
    fn from_handshake(error: HandshakeError, expected: &Identity) -> Self {
        match error {
            HandshakeError::Tls(rustls::Error::InvalidCertificate(reason)) => Self::Certificate {
                expected: expected.clone(),
                reason,
            },
            HandshakeError::Tls(rustls::Error::AlertReceived(alert)) => {
                Self::RefusedByServer(alert)
            }
            HandshakeError::Tls(other) => Self::Tls(other),
            HandshakeError::Io(error) => Self::Io(error),
        }
    }
}
