//! Owns the first look at a connection, within its time limit: is it TLS, and for whom; is it
//! HTTP. The verdicts themselves are `weft_core::detect`'s.

use crate::stream::{Lookahead, Stream};
use std::io;
use std::time::Duration;
use weft_core::detect::{self, ClientHello, MAX_CLIENT_HELLO, MAX_HTTP_DETECT};

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
    /// Something else.
    NotHttp,
    /// The client said nothing that tells, within the limit.
    Silent,
    /// The client closed before it said anything.
    Closed,
}

/// Finds out what a connection carries; what was read is left in the stream.
///
/// # Errors
/// Those of the transport.
pub async fn http(stream: &mut Stream, limit: Duration) -> io::Result<Carried> {
    let mut look = Lookahead::new(stream);
    let looked = tokio::time::timeout(limit, async {
        loop {
            let more = look.more(MAX_HTTP_DETECT).await?;
            match detect::http(look.seen()) {
                detect::Http::Http1 => return Ok(Carried::Http1),
                detect::Http::Http2 => return Ok(Carried::Http2),
                detect::Http::NotHttp => return Ok(Carried::NotHttp),
                detect::Http::Incomplete if more => {}
                detect::Http::Incomplete if look.seen().is_empty() => return Ok(Carried::Closed),
                detect::Http::Incomplete => return Ok(Carried::NotHttp),
            }
        }
    })
    .await;
    looked.unwrap_or(Ok(Carried::Silent))
}

/// Whether a connection begins with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A ClientHello for this server name.
    For(String),
    /// Anything else, a ClientHello without a name included.
    Plain,
    /// The client said nothing that tells, within the limit.
    Silent,
}

/// Finds out whether a connection begins with TLS; what was read is left in the stream.
///
/// # Errors
/// Those of the transport.
pub async fn tls(stream: &mut Stream, limit: Duration) -> io::Result<Tls> {
    let mut look = Lookahead::new(stream);
    let looked = tokio::time::timeout(limit, async {
        loop {
            let more = look.more(MAX_CLIENT_HELLO).await?;
            match detect::client_hello(look.seen()) {
                ClientHello::Sni(name) => return Ok(Tls::For(name)),
                ClientHello::NotTls | ClientHello::NoSni => return Ok(Tls::Plain),
                ClientHello::Incomplete if more => {}
                ClientHello::Incomplete => return Ok(Tls::Plain),
            }
        }
    })
    .await;
    looked.unwrap_or(Ok(Tls::Silent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use bytes::BytesMut;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    const LIMIT: Duration = Duration::from_secs(10);

    async fn rest(mut stream: Stream) -> BytesMut {
        let mut all = BytesMut::new();
        while stream.read_buf(&mut all).await.unwrap() > 0 {}
        all
    }

    #[tokio::test]
    async fn what_was_read_is_still_there() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], Carried::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Carried::Http2),
            (b"\x00\x01\x02", Carried::NotHttp),
            (b"GE", Carried::NotHttp),
            (b"", Carried::Closed),
        ] {
            let (mut client, server) = testing::tcp_pair().await;
            let mut stream = Stream::plain(server);
            client.write_all(bytes).await.unwrap();
            drop(client);
            assert_eq!(http(&mut stream, LIMIT).await.unwrap(), expected);
            assert_eq!(rest(stream).await, bytes);
        }
    }

    #[tokio::test]
    async fn a_request_line_in_pieces_is_http() {
        let (mut client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        let looked = tokio::spawn(async move { (http(&mut stream, LIMIT).await.unwrap(), stream) });
        for piece in ["GE", "T / HT", "TP/1.1\r\n"] {
            client.write_all(piece.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (carried, stream) = looked.await.unwrap();
        drop(client);
        assert_eq!(carried, Carried::Http1);
        assert_eq!(rest(stream).await, "GET / HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn a_silent_client_is_waited_for_only_so_long() {
        let (mut client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        client.write_all(b"GE").await.unwrap();
        tokio::time::pause();
        let start = Instant::now();
        assert_eq!(http(&mut stream, LIMIT).await.unwrap(), Carried::Silent);
        testing::assert_elapsed(start, LIMIT);
        drop(client);
        assert_eq!(rest(stream).await, "GE", "nothing is lost");
    }

    #[tokio::test]
    async fn a_silent_client_shows_no_tls() {
        let (client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        tokio::time::pause();
        let start = Instant::now();
        assert_eq!(tls(&mut stream, LIMIT).await.unwrap(), Tls::Silent);
        testing::assert_elapsed(start, LIMIT);
        drop(client);
    }

    #[tokio::test]
    async fn plain_text_is_not_tls() {
        let (mut client, server) = testing::tcp_pair().await;
        let mut stream = Stream::plain(server);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(tls(&mut stream, LIMIT).await.unwrap(), Tls::Plain);
        drop(client);
        assert_eq!(rest(stream).await, "GET / HTTP/1.1\r\n\r\n");
    }
}
