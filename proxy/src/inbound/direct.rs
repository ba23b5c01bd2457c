//! Owns connections that are made to this proxy's own port: mutual TLS, then a transport header
//! that says what for (contract 3.3). Does not forward them.

use crate::stream::{Lookahead, Stream};
use std::io;
use std::time::Duration;
use weft_core::transport_header::{
    Decoded, MAX_MESSAGE, PREFACE, TransportHeader, TransportHeaderError,
};

/// Why a direct connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// No TLS with a certificate.
    #[error("a direct connection needs mutual TLS with the ALPN of the transport header")]
    NotMutual,
    /// The header is broken.
    #[error("transport header: {0}")]
    Header(#[from] TransportHeaderError),
    /// The client broke off.
    #[error("transport header: {0}")]
    Io(#[from] io::Error),
    /// The client did not send it in time.
    #[error("no transport header within {0:?}")]
    Timeout(Duration),
    /// The client closed before it was complete.
    #[error("the client closed within the transport header")]
    Closed,
    /// The header asks for a gateway.
    #[error("the transport header names {0:?}: this proxy is not a gateway")]
    NotGateway(String),
}

/// Reads the header; what follows it is left in the stream.
///
/// # Errors
/// See [`DirectError`].
pub async fn read_header(
    stream: &mut Stream,
    limit: Duration,
) -> Result<TransportHeader, DirectError> {
    const LENGTH: usize = 4;
    let most = PREFACE.len() + LENGTH + MAX_MESSAGE;
    let mut look = Lookahead::new(stream);
    let read = tokio::time::timeout(limit, async {
        loop {
            if !look.more(most).await? {
                return Err(DirectError::Closed);
            }
            if let Decoded::Complete { header, consumed } = TransportHeader::decode(look.seen())? {
                look.take(consumed);
                return Ok(header);
            }
        }
    });
    match read.await {
        Ok(header) => header,
        Err(_elapsed) => Err(DirectError::Timeout(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use weft_core::transport_header::SessionProtocol;

    const LIMIT: Duration = Duration::from_secs(10);

    fn header() -> TransportHeader {
        TransportHeader {
            port: 8080,
            name: None,
            protocol: Some(SessionProtocol::Http2),
        }
    }

    #[tokio::test]
    async fn what_follows_the_header_stays_in_the_stream() {
        let (mut client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        let mut bytes = header().encode();
        bytes.extend_from_slice(b"payload");
        for byte in bytes.chunks(5) {
            client.write_all(byte).await.unwrap();
        }
        drop(client);
        let read = read_header(&mut stream, LIMIT).await.unwrap();
        assert_eq!(read, header());
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"payload");
    }

    #[tokio::test]
    async fn a_header_that_does_not_come_is_waited_for_only_so_long() {
        let (mut client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        client.write_all(&header().encode()[..9]).await.unwrap();
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        let read = read_header(&mut stream, LIMIT).await;
        assert!(matches!(read, Err(DirectError::Timeout(LIMIT))));
        testing::assert_elapsed(start, LIMIT);
        drop(client);
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed() {
        let (client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        drop(client);
        let read = read_header(&mut stream, LIMIT).await;
        assert!(matches!(read, Err(DirectError::Closed)));
    }
}
