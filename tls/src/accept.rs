//! The server's half of a handshake, and who the client is. Detection of TLS, timeouts and authorization are the
//! caller's.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use weft_core::name::Identity;

use crate::handshake::{self, HandshakeError};
use crate::parameters::TRANSPORT_ALPN;
use crate::store::Credentials;
use crate::stream::TlsStream;

/// A connection after the handshake.
#[derive(Debug)]
pub struct Accepted<IO> {
    /// The decrypted connection.
    pub stream: TlsStream<IO>,
    /// The client's identity: the first name of its certificate that is one (contract 2.3). `None` for a client
    /// without a certificate, which is let in here and judged by policy.
    pub client: Option<Identity>,
    /// Whether the transport header follows (contract 3.3).
    pub alpn_transport: bool,
}

/// Why a handshake failed at the server.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The client's certificate is expired, of another mesh, or otherwise not acceptable.
    #[error("the client's certificate was refused: {0}")]
    Certificate(rustls::CertificateError),
    /// The client gave up; usually it does not accept our certificate.
    #[error("the client ended the handshake: {0:?}")]
    RefusedByClient(rustls::AlertDescription),
    /// The two do not speak the same TLS.
    #[error("the TLS handshake failed: {0}")]
    Tls(rustls::Error),
    /// The connection broke.
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(io::Error),
}

/// Terminates TLS with our certificate. `direct` offers the ALPN of the transport header (contract 2.3).
pub async fn accept<IO>(
    io: IO,
    config: &Credentials,
    direct: bool,
) -> Result<Accepted<IO>, AcceptError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let config = config.server(direct).clone();
    let (stream, peer) = handshake::server(io, config)
        .await
        .map_err(AcceptError::from)?;
    Ok(Accepted {
        stream,
        client: peer.leaf.and_then(|leaf| leaf.first_identity()),
        alpn_transport: peer.alpn.as_deref() == Some(TRANSPORT_ALPN),
    })
}

impl From<HandshakeError> for AcceptError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Tls(rustls::Error::InvalidCertificate(reason)) => {
                Self::Certificate(reason)
            }
            HandshakeError::Tls(rustls::Error::AlertReceived(alert)) => {
                Self::RefusedByClient(alert)
            }
            HandshakeError::Tls(other) => Self::Tls(other),
            HandshakeError::Io(error) => Self::Io(error),
        }
    }
}
