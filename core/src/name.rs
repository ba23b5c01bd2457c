//! Names of workloads (mTLS identities) and sets of ports, checked once when they enter the process.
//! Does not look at certificates (`weft_tls` does) and does not decide who is allowed (`authorize` does).

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};
use thiserror::Error;

mod ports;

pub use ports::{Iter as PortSetIter, PortSet};

/// Longest DNS name in its textual form without the trailing dot (RFC 1035 section 2.3.4).
const MAX_DNS_NAME: usize = 253;
/// Longest label of a DNS name (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// Longest URI identity: SPIFFE-ID section 2.3 asks for support of 2048 bytes and no more.
const MAX_URI: usize = 2048;

/// The name a workload proves with its certificate (contract 2.3): a DNS SAN or a URI SAN.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A DNS name, lower-case, without the trailing dot.
    Dns(Arc<str>),
    /// An absolute URI such as `spiffe://trust.domain/path`, kept byte for byte.
    Uri(Arc<str>),
}

/// Why a text is not an identity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// Nothing was given.
    #[error("identity is empty: give a DNS name or a spiffe:// URI")]
    Empty,
    /// The name is longer than any certificate check accepts.
    #[error(
        "identity of {length} bytes is longer than the limit of {limit}: shorten one of its parts"
    )]
    TooLong {
        /// Bytes of the name.
        length: usize,
        /// Bytes allowed for this kind of name.
        limit: usize,
    },
    /// One label of a DNS name is empty, too long, or has a character outside `a-z 0-9 - _`.
    #[error(
        "identity {name:?} has the invalid label {label:?}: a label has 1 to 63 letters, digits, '-' or '_', no '-' at its ends"
    )]
    Label {
        /// The whole name, cut to a printable length.
        name: String,
        /// The label at fault, cut likewise.
        label: String,
    },
    /// An IP address, which never is an identity.
    #[error("identity {0:?} is an IP address: give the DNS name or URI of the certificate")]
    Address(String),
    /// A URI without a scheme or an authority, or with characters no URI has.
    #[error("identity {0:?} is not an absolute URI such as spiffe://trust.domain/path")]
    Uri(String),
    /// A part of a workload's name is not a DNS-1123 label.
    #[error(
        "{part} {value:?} is not a DNS-1123 label: 1 to 63 of a-z, 0-9 and '-', no '-' at its ends"
    )]
    Part {
        /// Which part of the workload's name.
        part: &'static str,
        /// What was given, cut to a printable length.
        value: String,
    },
}

impl Identity {
    /// Reads a DNS name or, when it has `://`, a URI.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        if text.contains("://") {
            check_uri(text)?;
            return Ok(Self::Uri(Arc::from(text)));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(IdentityError::Empty);
        }
        if name.parse::<IpAddr>().is_ok() {
            return Err(IdentityError::Address(excerpt(name)));
        }
        check_dns(name)?;
        Ok(Self::Dns(Arc::from(name.to_ascii_lowercase())))
    }

    /// The name as it stands in the certificate.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::parse(text)
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The identity of a Kubernetes workload: `<sa>.<ns>.serviceaccount.identity.<control ns>.<trust domain>` (contract 0 and 2.5).
///
/// The first three must be DNS-1123 labels: with a dot inside one, two workloads could claim one name.
pub fn workload_identity(
    service_account: &str,
    namespace: &str,
    control_namespace: &str,
    trust_domain: &str,
) -> Result<Identity, IdentityError> {
    check_part("service account", service_account)?;
    check_part("namespace", namespace)?;
    check_part("control-plane namespace", control_namespace)?;
    if trust_domain
        .strip_suffix('.')
        .unwrap_or(trust_domain)
        .is_empty()
    {
        return Err(IdentityError::Empty);
    }
    Identity::parse(&format!(
        "{service_account}.{namespace}.serviceaccount.identity.{control_namespace}.{trust_domain}"
    ))
}

/// Checks a DNS name without trailing dot; `_` is allowed because names of real clusters have it.
pub(crate) fn check_dns(name: &str) -> Result<(), IdentityError> {
    if name.len() > MAX_DNS_NAME {
        return Err(IdentityError::TooLong {
            length: name.len(),
            limit: MAX_DNS_NAME,
        });
    }
    match name.split('.').find(|label| !is_label(label)) {
        Some(label) => Err(IdentityError::Label {
            name: excerpt(name),
            label: excerpt(label),
        }),
        None => Ok(()),
    }
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn check_part(part: &'static str, value: &str) -> Result<(), IdentityError> {
    let lower = value.bytes().all(|b| !b.is_ascii_uppercase() && b != b'_');
    if lower && is_label(value) {
        return Ok(());
    }
    Err(IdentityError::Part {
        part,
        value: excerpt(value),
    })
}

fn check_uri(text: &str) -> Result<(), IdentityError> {
    if text.len() > MAX_URI {
        return Err(IdentityError::TooLong {
            length: text.len(),
            limit: MAX_URI,
        });
    }
    let invalid = || IdentityError::Uri(excerpt(text));
    let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
    let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if scheme_ok && !authority.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(())
    } else {
        Err(invalid())
    }
}

/// The start of a foreign text for an error message: enough to find it, never a page of it.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
