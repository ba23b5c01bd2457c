//! The private key of a workload. Holds it, never prints it; does not read or write files.

use std::fmt;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::sign::SigningKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// An ECDSA P-256 key, ready to sign. The mesh presents no other kind of leaf (contract 2.3).
#[derive(Clone)]
pub struct PrivateKey {
    signer: Arc<dyn SigningKey>,
}

/// Why bytes are not a key that the mesh can use.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not PKCS#8 DER of an elliptic-curve key.
    #[error("not an elliptic-curve key in PKCS#8 DER")]
    Format,
    /// An elliptic-curve key, but of another curve.
    #[error("not a P-256 key, the only kind of which the mesh presents certificates")]
    Curve,
}

impl PrivateKey {
    /// Reads PKCS#8 DER without PEM armour, the content of `key.p8` (contract 2.1).
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
        let signer = any_ecdsa_type(&der).map_err(|_| KeyError::Format)?;
        match signer.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]) {
            Some(_) => Ok(Self { signer }),
            None => Err(KeyError::Curve),
        }
    }

    /// The public half as DER SubjectPublicKeyInfo.
    pub fn public_key_der(&self) -> Vec<u8> {
        self.signer
            .public_key()
            .map(|spki| spki.to_vec())
            .unwrap_or_default()
    }

    pub(crate) fn signer(&self) -> Arc<dyn SigningKey> {
        self.signer.clone()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(P-256, not shown)")
    }
}
