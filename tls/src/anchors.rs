//! Trust anchors: PEM text in, a set of roots out. Does not watch files and does not verify chains.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// The roots that every chain of the mesh must end at. Never empty.
#[derive(Clone)]
pub struct TrustAnchors {
    roots: Arc<RootCertStore>,
}

/// Why a bundle of trust anchors was refused. `block` counts the certificates of the bundle from 1.
#[derive(Debug, thiserror::Error)]
pub enum AnchorsError {
    /// No `CERTIFICATE` block at all.
    #[error(
        "the trust anchors hold no certificate; expected PEM text with one or more CERTIFICATE blocks"
    )]
    Empty,
    /// A block is not PEM.
    #[error("certificate {block} of the trust anchors is not valid PEM: {reason}")]
    Pem {
        /// Which certificate.
        block: usize,
        /// What the PEM parser said.
        reason: String,
    },
    /// A block is PEM, but its content is not an X.509 certificate that can be a root.
    #[error("certificate {block} of the trust anchors is not a usable X.509 certificate: {reason}")]
    Certificate {
        /// Which certificate.
        block: usize,
        /// What the certificate parser said.
        reason: String,
    },
}

impl TrustAnchors {
    /// Reads a PEM bundle of one or more roots.
    ///
    /// Comments, blank lines, CRLF, indentation and blocks of other kinds are passed over (case I02). One bad
    /// certificate refuses the bundle: a mesh that silently trusts half of its roots fails later and elsewhere.
    pub fn from_pem(text: &str) -> Result<Self, AnchorsError> {
        let trimmed = text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        let mut roots = RootCertStore::empty();
        for (index, certificate) in CertificateDer::pem_slice_iter(trimmed.as_bytes()).enumerate() {
            let block = index + 1;
            let der = certificate.map_err(|error| AnchorsError::Pem {
                block,
                reason: error.to_string(),
            })?;
            roots.add(der).map_err(|error| AnchorsError::Certificate {
                block,
                reason: error.to_string(),
            })?;
        }
        if roots.is_empty() {
            return Err(AnchorsError::Empty);
        }
        Ok(Self {
            roots: Arc::new(roots),
        })
    }

    /// How many roots there are, at least 1.
    pub fn count(&self) -> usize {
        self.roots.len()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }
}

impl fmt::Debug for TrustAnchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustAnchors")
            .field("count", &self.count())
            .finish()
    }
}

#[cfg(test)]
mod tests;
