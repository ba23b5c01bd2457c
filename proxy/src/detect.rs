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
