//! The server's half of a handshake, and who the client is. Detection of TLS, timeouts and authorization are the
//! caller's.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use weft_core::name::Identity;

use crate::names;
use crate::parameters::TRANSPORT_ALPN;
use crate::store::Credentials;

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
    let acceptor = TlsAcceptor::from(config.server(direct).clone());
    let stream = acceptor.accept(io).await.map_err(AcceptError::from_io)?;
    let (_, session) = stream.get_ref();
    let client = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(|leaf| names::Certificate::from_der(leaf).ok())
        .and_then(|leaf| leaf.first_identity());
    let alpn_transport = session.alpn_protocol() == Some(TRANSPORT_ALPN);
    Ok(Accepted {
        stream,
        client,
        alpn_transport,
    })
}

impl AcceptError {
    fn from_io(error: io::Error) -> Self {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .cloned()
        {
            Some(rustls::Error::InvalidCertificate(reason)) => Self::Certificate(reason),
            Some(rustls::Error::AlertReceived(alert)) => Self::RefusedByClient(alert),
            Some(other) => Self::Tls(other),
            None => Self::Io(error),
        }
    }
}
