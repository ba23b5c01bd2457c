//! What a connection speaks, told from its first bytes: HTTP/1, HTTP/2, a TLS ClientHello with its SNI, or something else.
//! Does no reading and no waiting: the caller reads more while the verdict is `Incomplete`, and bounds that by a time limit.
//!
//! Both verdicts depend on the bytes alone, never on how they were split over reads (cases P19 and T01): the verdict
//! for a beginning of the input is `Incomplete` or the verdict for the whole.

mod tls;

pub use tls::{ClientHello, MAX_CLIENT_HELLO, client_hello};

/// Bytes [`http`] looks at. A request line that is longer counts as HTTP/1 (contract 3.1(8): one read of 1024 bytes).
pub const MAX_HTTP_DETECT: usize = 1024;

/// The part of the HTTP/2 connection preface (RFC 9113 section 3.4) that decides.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Longest method taken for one. The longest registered with IANA has 17 bytes; without a limit a stream of letters
/// would be waited on.
const MAX_METHOD: usize = 32;

/// The verdict of [`http`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// A request line of HTTP/1.0 or HTTP/1.1.
    Http1,
    /// The HTTP/2 preface.
    Http2,
    /// These bytes begin no HTTP connection.
    NotHttp,
    /// Too few bytes, but so far they could be HTTP.
    Incomplete,
}

/// Tells HTTP from other protocols by the first bytes of a connection (contract 3.1(8)).
///
/// Only the request line counts: the rest of the head may be missing or wrong, the HTTP server answers for it. Bytes of the
/// target that ought to be percent-encoded are accepted, in every position, so that they always take the same path.
/// Never `Incomplete` for [`MAX_HTTP_DETECT`] bytes or more.
pub fn http(first_read: &[u8]) -> Http {
    let bytes = first_read.get(..MAX_HTTP_DETECT).unwrap_or(first_read);
    if bytes.starts_with(H2_PREFACE) {
        return Http::Http2;
    }
    if H2_PREFACE.starts_with(bytes) {
        return Http::Incomplete;
    }
    match request_line(bytes) {
        Line::Complete => Http::Http1,
        Line::Invalid => Http::NotHttp,
        Line::TargetOpen if bytes.len() == MAX_HTTP_DETECT => Http::Http1,
        Line::Open if bytes.len() == MAX_HTTP_DETECT => Http::NotHttp,
        Line::TargetOpen | Line::Open => Http::Incomplete,
    }
}

enum Line {
    Complete,
    Invalid,
    /// Ends within the target or later.
    TargetOpen,
    /// Ends within the method or before it.
    Open,
}

/// `method SP target SP "HTTP/1." ("0" / "1") (CRLF / LF)`, empty lines before it skipped (RFC 9112 sections 2.2 and 3).
fn request_line(bytes: &[u8]) -> Line {
    let mut rest = bytes;
    while let Some(after) = rest.strip_prefix(b"\r\n") {
        rest = after;
    }
    if rest.is_empty() || rest == b"\r" {
        return Line::Open;
    }
    let method = rest.iter().take_while(|b| is_token(**b)).count();
    match rest.get(method) {
        _ if method > MAX_METHOD => return Line::Invalid,
        None => return Line::Open,
        Some(b' ') if method > 0 => {}
        Some(_) => return Line::Invalid,
    }
    let target = rest.get(method + 1..).unwrap_or_default();
    let length = target.iter().take_while(|b| is_target(**b)).count();
    match target.get(length) {
        None => return Line::TargetOpen,
        Some(b' ') if length > 0 => {}
        Some(_) => return Line::Invalid,
    }
    version(target.get(length + 1..).unwrap_or_default())
}

fn version(bytes: &[u8]) -> Line {
    const ENDINGS: [&[u8]; 4] = [
        b"HTTP/1.1\r\n",
        b"HTTP/1.0\r\n",
        b"HTTP/1.1\n",
        b"HTTP/1.0\n",
    ];
    if ENDINGS.iter().any(|ending| bytes.starts_with(ending)) {
        Line::Complete
    } else if ENDINGS.iter().any(|ending| ending.starts_with(bytes)) {
        Line::TargetOpen
    } else {
        Line::Invalid
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Anything but blanks and controls: wider than a URI on purpose (case P19).
fn is_target(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

#[cfg(test)]
mod tests;
