//! The TLS 1.3 record layer after the handshake (RFC 8446 section 5): sealing and opening of single records.
//! Knows no sockets and no handshakes; `stream` moves the bytes.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;

/// Bytes before the ciphertext: type, legacy version, length.
pub(crate) const HEADER: usize = 5;
/// The most plaintext that one record carries.
pub(crate) const MAX_PLAINTEXT: usize = 1 << 14;
/// The most ciphertext of a record, tag and padding included (RFC 8446 section 5.2).
const MAX_CIPHERTEXT: usize = MAX_PLAINTEXT + 256;
/// The largest record.
pub(crate) const MAX_RECORD: usize = HEADER + MAX_CIPHERTEXT;
/// Records that one key may seal before it is changed. AES-GCM allows 2^24.5 (RFC 8446 section 5.5).
const MAX_SEALED: u64 = 1 << 24;

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Alert,
    Handshake,
    Data,
}

impl Content {
    fn byte(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => 23,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Alert, Self::Handshake, Self::Data]
            .into_iter()
            .find(|content| content.byte() == byte)
    }
}

/// Why a record is refused; the connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The header is not one of TLS 1.3 application data.
    #[error("a TLS record has an unexpected type")]
    Type,
    /// The record is longer than TLS allows.
    #[error("a TLS record is longer than 2^14 + 256 bytes")]
    TooLong,
    /// The record was changed on its way, or sealed with another key.
    #[error("a TLS record does not open: it was changed, or its key is another")]
    Sealed,
    /// The peer asks for new keys faster than it reads the answers.
    #[error("the peer asks for new traffic keys without end")]
    KeyUpdates,
    /// The key cannot be used.
    #[error("a traffic key has an unexpected length")]
    Key,
}

/// A traffic key of one direction and the number of the next record.
struct Traffic {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Traffic {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(RecordError::Key),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| RecordError::Key)?;
        let iv = iv.as_ref().try_into().map_err(|_| RecordError::Key)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv,
            sequence,
        })
    }

    /// The nonce of the next record (RFC 8446 section 5.3): never the same twice for one key, since keys are changed
    /// long before the sequence ends.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce.iter_mut().skip(4).zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence = self.sequence.wrapping_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals records.
pub(crate) struct Sealer(Traffic);

impl Sealer {
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        Traffic::new(secrets).map(Self)
    }

    /// Whether the key has sealed as many records as it may.
    pub(crate) fn is_worn(&self) -> bool {
        self.0.sequence >= MAX_SEALED
    }

    /// Appends one record to `out`, with what `fill` appends as its content: at most [`MAX_PLAINTEXT`] bytes.
    pub(crate) fn seal(
        &mut self,
        content: Content,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RecordError> {
        let start = out.len();
        out.extend_from_slice(&[23, 3, 3, 0, 0]);
        fill(out);
        out.push(content.byte());
        let plain = out.len() - start - HEADER;
        let sealed = plain + self.0.key.algorithm().tag_len();
        let length = u16::try_from(sealed)
            .ok()
            .filter(|_| sealed <= MAX_CIPHERTEXT)
            .ok_or(RecordError::TooLong)?;
        let record = out.get_mut(start..).ok_or(RecordError::TooLong)?;
        let (header, body) = record.split_at_mut(HEADER);
        header[3..].copy_from_slice(&length.to_be_bytes());
        let aad = Aad::from(&*header);
        let nonce = self.0.nonce();
        let tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, aad, body)
            .map_err(|_| RecordError::Sealed)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

/// Opens records.
pub(crate) struct Opener(Traffic);

impl Opener {
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        Traffic::new(secrets).map(Self)
    }

    /// Opens a whole record in place. Returns what it carries and where in `record` the content is.
    pub(crate) fn open(
        &mut self,
        record: &mut [u8],
    ) -> Result<(Content, std::ops::Range<usize>), RecordError> {
        let (header, body) = record
            .split_at_mut_checked(HEADER)
            .ok_or(RecordError::Type)?;
        let nonce = self.0.nonce();
        let opened = self
            .0
            .key
            .open_in_place(nonce, Aad::from(&*header), body)
            .map_err(|_| RecordError::Sealed)?;
        // The content is followed by its type and by padding of zeros.
        let end = opened
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::Type)?;
        let content = opened.get(end).copied().and_then(Content::from_byte);
        Ok((content.ok_or(RecordError::Type)?, HEADER..HEADER + end))
    }
}

/// The length of the record at the start of `bytes`, header included; `None` while that is not known.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [content, 3, _, high, low] = *header else {
        return Err(RecordError::Type);
    };
    if content != Content::Data.byte() {
        return Err(RecordError::Type);
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_CIPHERTEXT {
        return Err(RecordError::TooLong);
    }
    Ok(Some(HEADER + length))
}

#[cfg(test)]
impl Sealer {
    pub(crate) fn wear_out(&mut self) {
        self.0.sequence = MAX_SEALED;
    }
}

#[cfg(test)]
impl Opener {
    /// Expects what `sealer` seals next.
    pub(crate) fn follow(&mut self, sealer: &Sealer) {
        self.0.sequence = sealer.0.sequence;
    }
}
