//! The little of the protobuf encoding that one message of three fields needs, so that `core` does not depend on prost.
//! No groups (obsolete, never sent here) and no packed fields.

use super::TransportHeaderError;

/// The wire types this crate uses.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// The value of one field as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer.
    Varint(u64),
    /// A string, bytes, or an inner message.
    Bytes(&'a [u8]),
    /// A fixed-width number; no known field has one.
    Fixed,
}

/// The fields of a message in order, each with its number; after an error nothing more comes.
pub fn fields(
    message: &[u8],
) -> impl Iterator<Item = Result<(u64, Value<'_>), TransportHeaderError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let item = field(&mut rest);
        if item.is_err() {
            rest = &[];
        }
        Some(item.map_err(TransportHeaderError::Malformed))
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(u64, Value<'a>), &'static str> {
    let key = varint(rest)?;
    let number = key >> 3;
    if number == 0 {
        return Err("field number 0");
    }
    let value = match key & 7 {
        VARINT => Value::Varint(varint(rest)?),
        FIXED64 => {
            take(rest, 8)?;
            Value::Fixed
        }
        LENGTH => {
            let length = varint(rest)?;
            Value::Bytes(take(rest, length)?)
        }
        FIXED32 => {
            take(rest, 4)?;
            Value::Fixed
        }
        _ => return Err("unsupported wire type"),
    };
    Ok((number, value))
}

fn varint(rest: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("truncated number")?;
        *rest = after;
        // The tenth byte has one bit left; what is above it is dropped, as other decoders do.
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("number longer than ten bytes")
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], &'static str> {
    let (taken, after) = usize::try_from(length)
        .ok()
        .and_then(|length| rest.split_at_checked(length))
        .ok_or("truncated field")?;
    *rest = after;
    Ok(taken)
}

/// Appends an integer field.
pub fn put_varint_field(out: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(out, number << 3 | VARINT);
    put_varint(out, value);
}

/// Appends a string, bytes or message field.
pub fn put_bytes_field(out: &mut Vec<u8>, number: u64, value: &[u8]) {
    put_varint(out, number << 3 | LENGTH);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
