//! Trust anchors: PEM text in, a set of roots out. Does not watch files and does not verify chains.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;

use crate::pem::{self, PemError};

/// The roots that every chain of the mesh must end at. Never empty.
#[derive(Clone)]
pub struct TrustAnchors {
    roots: Arc<RootCertStore>,
}

/// Why a bundle of trust anchors was refused.
#[derive(Debug, thiserror::Error)]
pub enum AnchorsError {
    /// The text is not a list of certificates.
    #[error("the trust anchors: {0}")]
    Pem(#[from] PemError),
    /// A block is PEM, but its content is not an X.509 certificate that can be a root.
    #[error("certificate {block} of the trust anchors is not a usable X.509 certificate: {reason}")]
    Certificate {
        /// Which certificate of the bundle, from 1.
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
        let mut roots = RootCertStore::empty();
        for (index, certificate) in pem::certificates(text.as_bytes())?.into_iter().enumerate() {
            roots
                .add(certificate)
                .map_err(|error| AnchorsError::Certificate {
                    block: index + 1,
                    reason: error.to_string(),
                })?;
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
