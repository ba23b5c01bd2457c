//! The DER of a workload certificate (RFC 5280 section 4.1). Written out here because rcgen re-encodes the issuer's name and drops
//! repeated parts of it (two `OU`, `DC=corp, DC=example`), after which the chain no longer verifies. Signs nothing, reads no clock.

use time::OffsetDateTime;
use yasna::models::{GeneralizedTime, ObjectIdentifier, UTCTime};
use yasna::{DERWriter, Tag, construct_der, try_construct_der};

const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];
const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];
/// digitalSignature (bit 0) and keyEncipherment (bit 2), the first three bits of the string.
const KEY_USAGE_BITS: (&[u8], usize) = (&[0b1010_0000], 3);

/// A time that X.509 cannot write (before year 0 or after 9999).
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0} seconds since 1970 is not a time a certificate can hold")]
pub(crate) struct TimeError(i64);

/// Everything a leaf certificate says. Times are whole seconds since 1970.
pub(crate) struct Leaf<'a> {
    pub serial: u64,
    /// The issuer's subject, DER, byte for byte.
    pub issuer: &'a [u8],
    pub not_before: i64,
    pub not_after: i64,
    pub common_name: Option<&'a str>,
    pub dns_name: &'a str,
    /// SubjectPublicKeyInfo, DER, byte for byte.
    pub public_key: &'a [u8],
    pub authority_key_id: Option<&'a [u8]>,
}

/// The part that is signed (TBSCertificate), for a signature ecdsa-with-SHA256.
pub(crate) fn to_be_signed(leaf: &Leaf<'_>) -> Result<Vec<u8>, TimeError> {
    try_construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields
                .next()
                .write_tagged(Tag::context(0), |w| w.write_u8(2));
            fields.next().write_u64(leaf.serial);
            signature_algorithm(fields.next());
            fields.next().write_der(leaf.issuer);
            fields.next().write_sequence(|validity| {
                write_time(validity.next(), leaf.not_before)?;
                write_time(validity.next(), leaf.not_after)
            })?;
            subject(fields.next(), leaf.common_name);
            fields.next().write_der(leaf.public_key);
            fields
                .next()
                .write_tagged(Tag::context(3), |w| extensions(w, leaf));
            Ok(())
        })
    })
}

/// The whole certificate.
pub(crate) fn certificate(to_be_signed: &[u8], signature: &[u8]) -> Vec<u8> {
    construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields.next().write_der(to_be_signed);
            signature_algorithm(fields.next());
            fields
                .next()
                .write_bitvec_bytes(signature, signature.len() * 8);
        });
    })
}

fn signature_algorithm(writer: DERWriter<'_>) {
    writer.write_sequence(|w| w.next().write_oid(&oid(ECDSA_WITH_SHA256)));
}

fn subject(writer: DERWriter<'_>, common_name: Option<&str>) {
    writer.write_sequence(|names| {
        let Some(common_name) = common_name else {
            return;
        };
        names.next().write_set(|set| {
            set.next().write_sequence(|pair| {
                pair.next().write_oid(&oid(COMMON_NAME));
                pair.next().write_utf8_string(common_name);
            });
        });
    });
}

fn extensions(writer: DERWriter<'_>, leaf: &Leaf<'_>) {
    writer.write_sequence(|list| {
        let (bits, length) = KEY_USAGE_BITS;
        extension(list.next(), KEY_USAGE, true, |w| {
            w.write_bitvec_bytes(bits, length)
        });
        extension(list.next(), EXTENDED_KEY_USAGE, false, |w| {
            w.write_sequence(|uses| {
                uses.next().write_oid(&oid(SERVER_AUTH));
                uses.next().write_oid(&oid(CLIENT_AUTH));
            });
        });
        if let Some(id) = leaf.authority_key_id {
            extension(list.next(), AUTHORITY_KEY_ID, false, |w| {
                w.write_sequence(|s| {
                    s.next()
                        .write_tagged_implicit(Tag::context(0), |w| w.write_bytes(id))
                });
            });
        }
        // RFC 5280 section 4.2.1.6: critical if the subject is empty.
        extension(
            list.next(),
            SUBJECT_ALT_NAME,
            leaf.common_name.is_none(),
            |w| {
                w.write_sequence(|names| {
                    names.next().write_tagged_implicit(Tag::context(2), |w| {
                        w.write_ia5_string(leaf.dns_name)
                    });
                });
            },
        );
    });
}

fn extension(writer: DERWriter<'_>, id: &[u64], critical: bool, value: impl FnOnce(DERWriter<'_>)) {
    writer.write_sequence(|fields| {
        fields.next().write_oid(&oid(id));
        if critical {
            fields.next().write_bool(true);
        }
        fields.next().write_bytes(&construct_der(value));
    });
}

/// UTCTime until 2049, GeneralizedTime from 2050 (RFC 5280 section 4.1.2.5).
fn write_time(writer: DERWriter<'_>, seconds: i64) -> Result<(), TimeError> {
    let time = OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| TimeError(seconds))?;
    if let Some(utc) = UTCTime::from_datetime_opt(time) {
        writer.write_utctime(&utc);
        return Ok(());
    }
    let general = GeneralizedTime::from_datetime_opt(time).ok_or(TimeError(seconds))?;
    writer.write_generalized_time(&general);
    Ok(())
}

fn oid(parts: &[u64]) -> ObjectIdentifier {
    ObjectIdentifier::from_slice(parts)
}
