//! The issuer: a CA certificate, its chain and its key, checked against the trust roots, and the signing of a checked request.
//! Pure: bytes and time are arguments; reading and watching files is `reload`'s work.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use weft_tls::pem::{self, PemError};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::csr::Csr;
use crate::leaf::{self, TimeError};
use crate::roots::{ALLOWED_KEYS, TrustRoots, key_kind};

/// The two layouts of an issuer folder (contract 2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// `linkerd.io/tls`: `crt.pem` and `key.pem`.
    #[default]
    Linkerd,
    /// `kubernetes.io/tls`: `tls.crt` and `tls.key`.
    Kubernetes,
}

impl Scheme {
    /// File names of the certificate and the key.
    pub fn files(self) -> (&'static str, &'static str) {
        match self {
            Self::Linkerd => ("crt.pem", "key.pem"),
            Self::Kubernetes => ("tls.crt", "tls.key"),
        }
    }
}

/// A scheme that is neither of the two.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown identity scheme \"{0}\": use linkerd.io/tls (crt.pem, key.pem) or kubernetes.io/tls (tls.crt, tls.key)"
)]
pub struct UnknownScheme(String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        match text {
            "" | "linkerd.io/tls" => Ok(Self::Linkerd),
            "kubernetes.io/tls" => Ok(Self::Kubernetes),
            other => Err(UnknownScheme(other.to_owned())),
        }
    }
}

/// The bytes of one issuer pair and where they were read, for messages.
#[derive(Clone, PartialEq, Eq)]
pub struct PairFiles {
    /// Path of the certificate chain.
    pub certificate_path: PathBuf,
    /// PEM, the issuer first.
    pub certificate: Vec<u8>,
    /// Path of the key.
    pub key_path: PathBuf,
    /// PEM, PKCS#8 or SEC 1.
    pub key: Vec<u8>,
}

/// Why a pair cannot be the issuer. Each message names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The certificate file is not a list of certificates.
    #[error("{}: {source}; write the issuer certificate there as PEM, then the intermediates above it", path.display())]
    Pem {
        /// The certificate file.
        path: PathBuf,
        /// What is wrong.
        source: PemError,
    },
    /// A certificate that is not X.509.
    #[error("{}: certificate {index} cannot be parsed: {reason}", path.display())]
    Certificate {
        /// The certificate file.
        path: PathBuf,
        /// Position in the file, from 1.
        index: usize,
        /// What the parser said.
        reason: String,
    },
    /// The key file holds no private key.
    #[error("{}: no private key can be read ({reason}); expected PEM \"PRIVATE KEY\" or \"EC PRIVATE KEY\"", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// The issuer's key is not ECDSA P-256.
    #[error("{}: the issuer's key is {found}, it must be ECDSA P-256; only trust anchors may have other keys", path.display())]
    KeyType {
        /// The certificate file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// Certificate and key do not belong together, perhaps for a moment only, while a pair is being replaced.
    #[error("{} is not the key of {}; replace both together", key.display(), certificate.display())]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// Not a CA.
    #[error("{}: \"{subject}\" is not a CA ({reason}); issue it with basicConstraints CA:true and keyUsage keyCertSign", path.display())]
    NotCa {
        /// The certificate file.
        path: PathBuf,
        /// Whose certificate.
        subject: String,
        /// Which part is missing.
        reason: &'static str,
    },
    /// A certificate of the chain is outside its validity.
    #[error("{}: \"{subject}\" is valid from {from} to {until}; renew it, or correct this machine's clock", path.display())]
    Validity {
        /// The certificate file.
        path: PathBuf,
        /// Whose certificate.
        subject: String,
        /// Start of validity.
        from: String,
        /// End of validity.
        until: String,
    },
    /// The chain does not end in the trust roots.
    #[error(
        "{}: \"{subject}\", issued by \"{issuer}\", does not verify to the trust roots [{roots}]: {reason}; put the root that \
         signed it into the bundle (allowed keys: {ALLOWED_KEYS}), or the missing intermediate after it in this file",
        path.display()
    )]
    Untrusted {
        /// The certificate file.
        path: PathBuf,
        /// The issuer certificate's subject.
        subject: String,
        /// Who signed it.
        issuer: String,
        /// The roots, with key types.
        roots: String,
        /// What the verifier said.
        reason: String,
    },
    /// The test signature could not be made.
    #[error("{}: signing with this key fails: {source}", path.display())]
    Sign {
        /// The key file.
        path: PathBuf,
        /// Why.
        source: SignError,
    },
}

/// Why a checked request was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The issuer, or something above it, has expired: gRPC `Unavailable`.
    #[error("the issuer certificate expired {0} seconds ago; renew it")]
    Expired(u64),
    /// A time outside what a certificate can hold.
    #[error(transparent)]
    Time(#[from] TimeOutOfRange),
    /// The signature failed.
    #[error("signature failed: {0}")]
    Signature(String),
}

/// A time outside what a certificate can hold.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TimeOutOfRange(#[from] TimeError);

/// For how long certificates are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Validity from now on.
    pub lifetime: Duration,
    /// Added at both ends, for clocks that disagree.
    pub clock_skew: Duration,
}

/// A signed workload certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The certificate.
    pub der: Vec<u8>,
    /// Its NotAfter.
    pub not_after: SystemTime,
}

/// An issuer that verified to the trust roots when it was loaded.
pub struct Issuer {
    subject: Vec<u8>,
    subject_text: String,
    key: KeyPair,
    key_id: Option<Vec<u8>>,
    /// What goes into answers: the issuer and what is above it, without roots.
    intermediates: Vec<CertificateDer<'static>>,
    /// The earliest expiry of the issuer and what is above it, seconds since 1970.
    not_after: i64,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("subject", &self.subject_text)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Issuer {
    /// Checks a pair (contract 2.5): a CA within its validity, with an ECDSA P-256 key that is the one in the key file, and a
    /// certificate signed by it verifies to `roots` by the verifier of the data plane.
    pub fn from_pair(
        pair: &PairFiles,
        roots: &TrustRoots,
        now: SystemTime,
    ) -> Result<Self, IssuerError> {
        let path = &pair.certificate_path;
        let certificates =
            pem::certificates(&pair.certificate).map_err(|source| IssuerError::Pem {
                path: path.clone(),
                source,
            })?;
        let parsed = parse_all(path, &certificates)?;
        let Some(issuer) = parsed.first() else {
            return Err(IssuerError::Pem {
                path: path.clone(),
                source: PemError::Empty,
            });
        };
        check_ca(path, issuer)?;
        let key = issuer_key(pair, issuer)?;

        let (intermediates, not_after) = chain(path, &parsed, &certificates, roots, now)?;
        let loaded = Self {
            subject: issuer.subject().as_raw().to_vec(),
            subject_text: issuer.subject().to_string(),
            key_id: subject_key_id(issuer),
            key,
            intermediates,
            not_after,
        };
        loaded.check_trusted(path, &pair.key_path, issuer, roots, now)?;
        Ok(loaded)
    }

    /// Signs a request that passed `csr::check`: NotBefore is `now` less the skew, NotAfter is `now` plus lifetime plus skew, but
    /// never after the issuer's chain ends (contract 2.5, case I02).
    pub fn sign(
        &self,
        csr: &Csr,
        serial: u64,
        terms: Terms,
        now: SystemTime,
    ) -> Result<Signed, SignError> {
        let now = unix_seconds(now);
        if self.not_after <= now {
            return Err(SignError::Expired(now.abs_diff(self.not_after)));
        }
        let (lifetime, skew) = (
            whole_seconds(terms.lifetime),
            whole_seconds(terms.clock_skew),
        );
        let not_after = now
            .saturating_add(lifetime)
            .saturating_add(skew)
            .min(self.not_after);
        let to_be_signed = leaf::to_be_signed(&leaf::Leaf {
            serial,
            issuer: &self.subject,
            not_before: now.saturating_sub(skew),
            not_after,
            common_name: csr.common_name.as_deref(),
            dns_name: &csr.dns_name,
            public_key: &csr.public_key,
            authority_key_id: self.key_id.as_deref(),
        })
        .map_err(TimeOutOfRange)?;
        let signature = self
            .key
            .sign(&to_be_signed)
            .map_err(|e| SignError::Signature(e.to_string()))?;
        Ok(Signed {
            der: leaf::certificate(&to_be_signed, &signature),
            not_after: system_time(not_after),
        })
    }

    /// What an answer carries besides the leaf: the issuer, then what is above it, no root.
    pub fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }

    /// The earliest expiry of the issuer and what is above it.
    pub fn not_after(&self) -> SystemTime {
        system_time(self.not_after)
    }

    /// The issuer's subject, for log lines.
    pub fn subject(&self) -> &str {
        &self.subject_text
    }

    /// Subject and end, in words.
    pub(crate) fn describe(&self) -> String {
        let until = crate::events::utc(self.not_after());
        format!("issuer \"{}\", valid until {until}", self.subject_text)
    }

    /// Signs a certificate that is thrown away and verifies it as a proxy would. So whatever the data plane would refuse (an
    /// anchor's key type, a path length, a name constraint) is found now and not by every workload at its next renewal.
    fn check_trusted(
        &self,
        path: &Path,
        key_path: &Path,
        issuer: &X509Certificate<'_>,
        roots: &TrustRoots,
        now: SystemTime,
    ) -> Result<(), IssuerError> {
        let probe = Csr {
            public_key: issuer.public_key().raw.to_vec(),
            dns_name: "probe.serviceaccount.identity.invalid".to_owned(),
            common_name: None,
        };
        let terms = Terms {
            lifetime: Duration::from_secs(60),
            clock_skew: Duration::ZERO,
        };
        let signed = self
            .sign(&probe, 1, terms, now)
            .map_err(|source| IssuerError::Sign {
                path: key_path.to_owned(),
                source,
            })?;
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        roots
            .verify(&signed.der.into(), &self.intermediates, at)
            .map_err(|e| IssuerError::Untrusted {
                path: path.to_owned(),
                subject: issuer.subject().to_string(),
                issuer: issuer.issuer().to_string(),
                roots: roots.describe(),
                reason: e.to_string(),
            })
    }
}

fn parse_all<'a>(
    path: &Path,
    ders: &'a [CertificateDer<'static>],
) -> Result<Vec<X509Certificate<'a>>, IssuerError> {
    ders.iter()
        .enumerate()
        .map(|(at, der)| match X509Certificate::from_der(der) {
            Ok((_, parsed)) => Ok(parsed),
            Err(e) => Err(IssuerError::Certificate {
                path: path.to_owned(),
                index: at + 1,
                reason: e.to_string(),
            }),
        })
        .collect()
}

/// What goes into answers, and the earliest expiry. Roots in the file are left out wherever they stand, clients have their own; but
/// a root that is itself the issuer counts for the expiry.
fn chain(
    path: &Path,
    parsed: &[X509Certificate<'_>],
    certificates: &[CertificateDer<'static>],
    roots: &TrustRoots,
    now: SystemTime,
) -> Result<(Vec<CertificateDer<'static>>, i64), IssuerError> {
    let (mut intermediates, mut not_after) = (Vec::new(), i64::MAX);
    for (at, (member, der)) in parsed.iter().zip(certificates).enumerate() {
        let root = is_root(member, der, roots);
        if root && at > 0 {
            continue;
        }
        check_validity(path, member, now)?;
        not_after = not_after.min(member.validity().not_after.timestamp());
        if !root {
            intermediates.push(der.clone());
        }
    }
    Ok((intermediates, not_after))
}

fn check_ca(path: &Path, issuer: &X509Certificate<'_>) -> Result<(), IssuerError> {
    let refuse = |reason| IssuerError::NotCa {
        path: path.to_owned(),
        subject: issuer.subject().to_string(),
        reason,
    };
    if !issuer.is_ca() {
        return Err(refuse("basicConstraints does not say CA:true"));
    }
    match issuer.key_usage() {
        Ok(Some(usage)) if !usage.value.key_cert_sign() => {
            Err(refuse("keyUsage lacks keyCertSign"))
        }
        Err(_) => Err(refuse("keyUsage cannot be read")),
        Ok(_) => Ok(()),
    }
}

fn issuer_key(pair: &PairFiles, issuer: &X509Certificate<'_>) -> Result<KeyPair, IssuerError> {
    let unreadable = |reason: String| IssuerError::Key {
        path: pair.key_path.clone(),
        reason,
    };
    let found = key_kind(issuer.public_key());
    if found != "ECDSA P-256" {
        return Err(IssuerError::KeyType {
            path: pair.certificate_path.clone(),
            found,
        });
    }
    let der = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|e| unreadable(e.to_string()))?;
    let mismatch = || IssuerError::Mismatch {
        certificate: pair.certificate_path.clone(),
        key: pair.key_path.clone(),
    };
    let key = match KeyPair::from_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256) {
        Ok(key) => key,
        // A sound key of another type belongs to another certificate.
        Err(_) if KeyPair::try_from(&der).is_ok() => return Err(mismatch()),
        Err(e) => return Err(unreadable(e.to_string())),
    };
    let certified: &[u8] = &issuer.public_key().subject_public_key.data;
    if key.der_bytes() != certified {
        return Err(mismatch());
    }
    Ok(key)
}

fn is_root(parsed: &X509Certificate<'_>, der: &CertificateDer<'_>, roots: &TrustRoots) -> bool {
    roots.contains(der)
        || (parsed.subject() == parsed.issuer() && parsed.verify_signature(None).is_ok())
}

fn check_validity(
    path: &Path,
    member: &X509Certificate<'_>,
    now: SystemTime,
) -> Result<(), IssuerError> {
    let validity = member.validity();
    let now = unix_seconds(now);
    if (validity.not_before.timestamp()..validity.not_after.timestamp()).contains(&now) {
        return Ok(());
    }
    Err(IssuerError::Validity {
        path: path.to_owned(),
        subject: member.subject().to_string(),
        from: validity.not_before.to_string(),
        until: validity.not_after.to_string(),
    })
}

fn subject_key_id(issuer: &X509Certificate<'_>) -> Option<Vec<u8>> {
    issuer
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
}

/// Seconds since 1970, rounded down; a clock before 1970 counts as 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    whole_seconds(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn system_time(seconds: i64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
