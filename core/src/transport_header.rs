//! The header that opens a direct connection between proxies (contract 3.3): the preface, a length, and a small protobuf
//! message that names the target. Encodes and decodes; does not read from the connection and does not decide who may send it.

use std::num::NonZeroU16;

use thiserror::Error;

mod protobuf;

/// The application protocol that both sides of a direct connection must negotiate.
pub const ALPN: &[u8] = b"transport.l5d.io/v1";

/// The first bytes after the TLS handshake: [`ALPN`] and an empty line.
pub const PREFACE: &[u8] = b"transport.l5d.io/v1\r\n\r\n";

/// Longest message accepted, in bytes, without preface and length. The longest name is an authority of about 260 bytes; the
/// rest is room for fields of later versions.
pub const MAX_MESSAGE: usize = 4096;

/// The application protocol of a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionProtocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Where the receiving proxy shall take the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// The target port.
    pub port: u16,
    /// The target name for a gateway; without it the target is the receiving pod.
    pub name: Option<String>,
    /// The protocol, if the sender knows it; without it the bytes are opaque.
    pub protocol: Option<SessionProtocol>,
}

/// What [`TransportHeader::decode`] made of the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Valid so far: read more.
    Incomplete,
    /// The header, and how many bytes it took; the next byte belongs to the application.
    Complete {
        /// The decoded header.
        header: TransportHeader,
        /// Bytes of preface, length and message.
        consumed: usize,
    },
}

/// Why a direct connection has no valid header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransportHeaderError {
    /// The peer began with other bytes.
    #[error(
        "direct connection does not begin with the transport header preface: the client must send transport.l5d.io/v1"
    )]
    Preface,
    /// The announced length is beyond [`MAX_MESSAGE`].
    #[error("transport header of {0} bytes is longer than the limit of {MAX_MESSAGE}")]
    TooLong(u32),
    /// The message is not protobuf.
    #[error("transport header is not a valid protobuf message: {0}")]
    Malformed(&'static str),
    /// The port is missing or outside 1 to 65535.
    #[error("transport header has the port {0}: expected 1 to 65535")]
    Port(i64),
    /// The name is not UTF-8.
    #[error("transport header has a name that is not UTF-8")]
    Name,
}

impl TransportHeader {
    /// Preface, length and message. The caller keeps `name` within a DNS name and port, far below [`MAX_MESSAGE`].
    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::new();
        protobuf::put_varint_field(&mut message, field::PORT, u64::from(self.port));
        if let Some(name) = &self.name {
            protobuf::put_bytes_field(&mut message, field::NAME, name.as_bytes());
        }
        if let Some(protocol) = self.protocol {
            let mut kind = Vec::new();
            let number = match protocol {
                SessionProtocol::Http1 => field::HTTP1,
                SessionProtocol::Http2 => field::HTTP2,
            };
            protobuf::put_bytes_field(&mut kind, number, &[]);
            protobuf::put_bytes_field(&mut message, field::PROTOCOL, &kind);
        }
        // A length that does not fit is refused by every receiver, as it should be.
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        [PREFACE, &length.to_be_bytes(), &message].concat()
    }

    /// Decodes the first bytes of a connection. Reports a wrong byte as soon as it is there.
    pub fn decode(bytes: &[u8]) -> Result<Decoded, TransportHeaderError> {
        let Some(rest) = bytes.strip_prefix(PREFACE) else {
            return if PREFACE.starts_with(bytes) {
                Ok(Decoded::Incomplete)
            } else {
                Err(TransportHeaderError::Preface)
            };
        };
        let Some((length, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(Decoded::Incomplete);
        };
        let announced = u32::from_be_bytes(*length);
        let length = usize::try_from(announced)
            .ok()
            .filter(|length| *length <= MAX_MESSAGE)
            .ok_or(TransportHeaderError::TooLong(announced))?;
        let Some(message) = rest.get(..length) else {
            return Ok(Decoded::Incomplete);
        };
        Ok(Decoded::Complete {
            header: Self::decode_message(message)?,
            consumed: PREFACE.len() + size_of::<u32>() + length,
        })
    }

    /// Of a repeated field the last one counts and unknown fields are skipped, as protobuf wants it.
    fn decode_message(message: &[u8]) -> Result<Self, TransportHeaderError> {
        use protobuf::Value;

        let (mut port, mut name, mut protocol) = (0, None, None);
        for item in protobuf::fields(message) {
            match item? {
                // An int32 is sent as the varint of its 64-bit two's complement and cut to its low half.
                (field::PORT, Value::Varint(value)) => port = i64::from(value as i32),
                (field::NAME, Value::Bytes(value)) => name = Some(value),
                (field::PROTOCOL, Value::Bytes(value)) => protocol = session(value)?.or(protocol),
                _ => {}
            }
        }
        let port = u16::try_from(port)
            .ok()
            .and_then(NonZeroU16::new)
            .ok_or(TransportHeaderError::Port(port))?;
        // In proto3 an empty string is the same as none.
        let name = name
            .filter(|name| !name.is_empty())
            .map(|name| std::str::from_utf8(name).map(str::to_owned))
            .transpose()
            .map_err(|_| TransportHeaderError::Name)?;
        Ok(Self {
            port: port.get(),
            name,
            protocol,
        })
    }
}

fn session(message: &[u8]) -> Result<Option<SessionProtocol>, TransportHeaderError> {
    let mut protocol = None;
    for item in protobuf::fields(message) {
        match item? {
            (field::HTTP1, protobuf::Value::Bytes(_)) => protocol = Some(SessionProtocol::Http1),
            (field::HTTP2, protobuf::Value::Bytes(_)) => protocol = Some(SessionProtocol::Http2),
            _ => {}
        }
    }
    Ok(protocol)
}

/// Field numbers of `Header` and of `SessionProtocol` (contract 3.3).
mod field {
    pub const PORT: u64 = 1;
    pub const NAME: u64 = 2;
    pub const PROTOCOL: u64 = 3;
    pub const HTTP1: u64 = 1;
    pub const HTTP2: u64 = 2;
}

#[cfg(test)]
mod tests;
