//! Reads the server name out of a TLS ClientHello (RFC 8446 sections 4.1.2 and 5.1, RFC 6066 section 3) without a TLS stack,
//! since the connection may belong to somebody else and must then be passed on untouched. Negotiates and checks nothing.

/// Bytes of the stream, record headers included, that [`client_hello`] looks at (contract 3.1(6)).
///
/// A ClientHello with a post-quantum key share and session tickets stays below 4 KiB. It may be cut into any number of
/// records (case T01); each costs a header of five bytes, so even in fragments of five bytes 4 KiB fit. What does not
/// fit still is found if the server name comes within the limit, as it is reported as soon as it has been read.
pub const MAX_CLIENT_HELLO: usize = 8192;

/// Record and message types, RFC 8446 appendix B.
const RECORD_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const NAME_TYPE_HOST: u8 = 0;
/// Longest plaintext record, RFC 8446 section 5.1.
const MAX_RECORD: usize = 1 << 14;
/// Longest DNS name in text form, a trailing dot included.
const MAX_SERVER_NAME: usize = 254;

/// The verdict of [`client_hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// These bytes begin no ClientHello.
    NotTls,
    /// Too few bytes, but so far they could be a ClientHello.
    Incomplete,
    /// A ClientHello without a usable server name, or without one in the first [`MAX_CLIENT_HELLO`] bytes.
    NoSni,
    /// The server name, lower-case, without trailing dot.
    Sni(String),
}

/// Finds the server name in the first bytes of a connection. Never `Incomplete` for [`MAX_CLIENT_HELLO`] bytes or more.
pub fn client_hello(bytes: &[u8]) -> ClientHello {
    let seen = bytes.get(..MAX_CLIENT_HELLO).unwrap_or(bytes);
    match server_name(&mut Fragments::new(seen)) {
        Ok(Some(name)) => ClientHello::Sni(name),
        Ok(None) => ClientHello::NoSni,
        Err(Stop::NotTls) => ClientHello::NotTls,
        Err(Stop::End) if seen.len() == MAX_CLIENT_HELLO => ClientHello::NoSni,
        Err(Stop::End) => ClientHello::Incomplete,
    }
}

/// Why reading stopped before a verdict.
enum Stop {
    /// The input ended.
    End,
    /// A byte that no ClientHello has at this place.
    NotTls,
}

fn server_name(input: &mut Fragments<'_>) -> Result<Option<String>, Stop> {
    if input.byte()? != HANDSHAKE_CLIENT_HELLO {
        return Err(Stop::NotTls);
    }
    // Three bytes of length; TLS stacks refuse a handshake message of 64 KiB and more.
    if input.byte()? != 0 {
        return Err(Stop::NotTls);
    }
    let mut hello = Vector::of(usize::from(input.two_bytes()?));
    if hello.byte(input)? != 3 {
        return Err(Stop::NotTls);
    }
    hello.byte(input)?;
    hello.skip(input, 32)?; // random
    let session = usize::from(hello.byte(input)?);
    if session > 32 {
        return Err(Stop::NotTls);
    }
    hello.skip(input, session)?;
    let suites = usize::from(hello.two_bytes(input)?);
    if suites == 0 || suites % 2 != 0 {
        return Err(Stop::NotTls);
    }
    hello.skip(input, suites)?;
    let compressions = usize::from(hello.byte(input)?);
    if compressions == 0 {
        return Err(Stop::NotTls);
    }
    hello.skip(input, compressions)?;
    if hello.left == 0 {
        return Ok(None); // TLS 1.2 and older: extensions may be absent altogether
    }
    let extensions = usize::from(hello.two_bytes(input)?);
    if extensions != hello.left {
        return Err(Stop::NotTls);
    }
    while hello.left > 0 {
        let kind = hello.two_bytes(input)?;
        let length = usize::from(hello.two_bytes(input)?);
        let mut extension = hello.take(length)?;
        if kind == EXTENSION_SERVER_NAME {
            return host_name(input, &mut extension);
        }
        extension.skip(input, length)?;
    }
    Ok(None)
}

fn host_name(input: &mut Fragments<'_>, extension: &mut Vector) -> Result<Option<String>, Stop> {
    let list = usize::from(extension.two_bytes(input)?);
    if list != extension.left {
        return Err(Stop::NotTls);
    }
    while extension.left > 0 {
        let kind = extension.byte(input)?;
        let length = usize::from(extension.two_bytes(input)?);
        let mut name = extension.take(length)?;
        if kind != NAME_TYPE_HOST || length > MAX_SERVER_NAME {
            name.skip(input, length)?;
            continue;
        }
        let mut text = String::with_capacity(length);
        while name.left > 0 {
            text.push(char::from(name.byte(input)?).to_ascii_lowercase());
        }
        return Ok(usable(text));
    }
    Ok(None)
}

/// A DNS name without its trailing dot; an IP address or any other bytes are no server name (RFC 6066 section 3).
fn usable(mut text: String) -> Option<String> {
    if text.ends_with('.') {
        text.pop();
    }
    let is_name = crate::name::check_dns(&text).is_ok();
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    (is_name && !is_address).then_some(text)
}

/// A length-prefixed part of the message: how many of its bytes are left. Keeps inner lengths within outer ones.
struct Vector {
    left: usize,
}

impl Vector {
    fn of(left: usize) -> Self {
        Self { left }
    }

    /// Splits off an inner part.
    fn take(&mut self, length: usize) -> Result<Self, Stop> {
        self.left = self.left.checked_sub(length).ok_or(Stop::NotTls)?;
        Ok(Self::of(length))
    }

    fn byte(&mut self, input: &mut Fragments<'_>) -> Result<u8, Stop> {
        self.take(1)?;
        input.byte()
    }

    fn two_bytes(&mut self, input: &mut Fragments<'_>) -> Result<u16, Stop> {
        self.take(2)?;
        input.two_bytes()
    }

    fn skip(&mut self, input: &mut Fragments<'_>, length: usize) -> Result<(), Stop> {
        self.take(length)?;
        (0..length).try_for_each(|_| input.byte().map(drop))
    }
}

/// The bytes of the handshake message, whatever records they are cut into.
struct Fragments<'a> {
    rest: &'a [u8],
    /// Bytes left of the current record.
    record: usize,
}

impl<'a> Fragments<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, record: 0 }
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        if self.record == 0 {
            self.record = self.record_header()?;
        }
        self.record -= 1;
        self.raw()
    }

    fn two_bytes(&mut self) -> Result<u16, Stop> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// The length of the next record, at least 1: an empty handshake record is forbidden (RFC 8446 section 5.1).
    fn record_header(&mut self) -> Result<usize, Stop> {
        if self.raw()? != RECORD_HANDSHAKE || self.raw()? != 3 || self.raw()? > 4 {
            return Err(Stop::NotTls);
        }
        let high = self.raw()?;
        if usize::from(high) << 8 > MAX_RECORD {
            return Err(Stop::NotTls);
        }
        let length = usize::from(u16::from_be_bytes([high, self.raw()?]));
        if (1..=MAX_RECORD).contains(&length) {
            Ok(length)
        } else {
            Err(Stop::NotTls)
        }
    }

    fn raw(&mut self) -> Result<u8, Stop> {
        let (first, rest) = self.rest.split_first().ok_or(Stop::End)?;
        self.rest = rest;
        Ok(*first)
    }
}
