//! The trust roots that an issuer must verify to: parsing of the bundle and verification of a chain as the data plane does it.
//! Does not read or watch the file.

use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use weft_tls::pem::{self, PemError};

/// What may stand in a trust bundle, for messages.
pub(crate) const ALLOWED_KEYS: &str =
    "ECDSA P-256, P-384 or P-521, Ed25519, or RSA of 2048 to 8192 bits (PKCS#1)";

/// Why a trust bundle cannot be used. The caller adds the name of the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RootsError {
    /// The text is not a list of certificates.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// A PEM section that is no X.509 certificate.
    #[error("certificate {index} cannot be parsed ({reason}); remove it or replace it")]
    Certificate {
        /// Position in the file, from 1.
        index: usize,
        /// What the parser said.
        reason: String,
    },
}

/// A parsed trust bundle.
#[derive(Debug, Clone)]
pub struct TrustRoots {
    certificates: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    described: Vec<String>,
}

impl TrustRoots {
    /// Parses a PEM bundle; text around the certificates is ignored, a certificate that cannot be used is an error.
    pub fn from_pem(text: &[u8]) -> Result<Self, RootsError> {
        let certificates = pem::certificates(text)?;
        let (mut anchors, mut described) = (Vec::new(), Vec::new());
        for (at, der) in certificates.iter().enumerate() {
            let bad = |reason: String| RootsError::Certificate {
                index: at + 1,
                reason,
            };
            let anchor = anchor_from_trusted_cert(der).map_err(|e| bad(e.to_string()))?;
            let (_, parsed) = X509Certificate::from_der(der).map_err(|e| bad(e.to_string()))?;
            anchors.push(anchor.to_owned());
            described.push(format!(
                "\"{}\" ({})",
                parsed.subject(),
                key_kind(parsed.public_key())
            ));
        }
        Ok(Self {
            certificates,
            anchors,
            described,
        })
    }

    /// Whether this very certificate is in the bundle.
    pub(crate) fn contains(&self, der: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|root| root == der)
    }

    /// Subject and key type of each root, for messages.
    pub(crate) fn describe(&self) -> String {
        self.described.join(", ")
    }

    /// Verifies `leaf` through `intermediates` to one of the roots at `now`, for both uses a workload has.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let leaf = EndEntityCert::try_from(leaf)?;
        let signatures = weft_tls::parameters::provider()
            .signature_verification_algorithms
            .all;
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            leaf.verify_for_usage(
                signatures,
                &self.anchors,
                intermediates,
                now,
                usage,
                None,
                None,
            )?;
        }
        Ok(())
    }
}

/// The type of a public key in words an operator knows.
pub(crate) fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> String {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => format!("RSA {}", rsa.key_size()),
        Ok(PublicKey::EC(point)) => format!(
            "ECDSA P-{}",
            if point.key_size() == 528 {
                521
            } else {
                point.key_size()
            }
        ),
        _ if key.algorithm.algorithm.to_id_string() == "1.3.101.112" => "Ed25519".to_owned(),
        _ => format!("key of algorithm {}", key.algorithm.algorithm),
    }
}
