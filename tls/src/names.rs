//! What a certificate or a signing request says about its owner: names, validity, public key. Trusts nothing and
//! verifies nothing; chains are verified elsewhere.

use std::time::{Duration, SystemTime};

use weft_core::name::Identity;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The bytes are not a certificate or signing request.
#[derive(Debug, thiserror::Error)]
#[error("not a DER {what}: {reason}")]
pub struct DerError {
    what: &'static str,
    reason: String,
}

/// A subject alternative name of a kind that can be an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum San {
    /// A DNS name, as written in the certificate.
    Dns(String),
    /// A URI, as written in the certificate.
    Uri(String),
}

impl San {
    /// The name as written.
    pub fn as_str(&self) -> &str {
        match self {
            San::Dns(name) | San::Uri(name) => name,
        }
    }

    /// The name as an identity, or `None` if it is not one (a wildcard, for example).
    ///
    /// The kind is kept: a DNS entry that holds the text of a URI is not that URI.
    pub fn identity(&self) -> Option<Identity> {
        match (self, Identity::parse(self.as_str()).ok()?) {
            (San::Dns(_), id @ Identity::Dns(_)) | (San::Uri(_), id @ Identity::Uri(_)) => Some(id),
            _ => None,
        }
    }
}

/// The names of a certificate and the end of its validity.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// DNS and URI names in the order of the certificate.
    pub sans: Vec<San>,
    /// The last moment of validity.
    pub not_after: SystemTime,
}

impl Certificate {
    /// Reads a DER certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, DerError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| DerError {
            what: "certificate",
            reason: error.to_string(),
        })?;
        let sans = match certificate.subject_alternative_name() {
            Ok(Some(extension)) => sans_of(&extension.value.general_names),
            Ok(None) => Vec::new(),
            Err(error) => {
                return Err(DerError {
                    what: "certificate",
                    reason: error.to_string(),
                });
            }
        };
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(Self { sans, not_after })
    }

    /// The first name that is an identity: how a client is named (contract 2.3).
    pub fn first_identity(&self) -> Option<Identity> {
        self.sans.iter().find_map(San::identity)
    }

    /// Whether any name equals `id`: how a server is checked (contract 2.3).
    pub fn is(&self, id: &Identity) -> bool {
        self.sans
            .iter()
            .any(|san| san.identity().as_ref() == Some(id))
    }

    /// The names as text, for an error message.
    pub fn found(&self) -> Vec<String> {
        self.sans
            .iter()
            .map(|san| san.as_str().to_owned())
            .collect()
    }
}

/// The names and the public key of a signing request.
#[derive(Debug, Clone)]
pub struct Request {
    /// DNS and URI names asked for.
    pub sans: Vec<San>,
    /// DER SubjectPublicKeyInfo.
    pub public_key_der: Vec<u8>,
}

impl Request {
    /// Reads a DER PKCS#10 request. Its own signature is not verified; the issuer does that.
    pub fn from_der(der: &[u8]) -> Result<Self, DerError> {
        let (_, request) = X509CertificationRequest::from_der(der).map_err(|error| DerError {
            what: "signing request",
            reason: error.to_string(),
        })?;
        let sans = request
            .requested_extensions()
            .into_iter()
            .flatten()
            .filter_map(|extension| match extension {
                ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
                _ => None,
            })
            .flat_map(|names| sans_of(names))
            .collect();
        let public_key_der = request.certification_request_info.subject_pki.raw.to_vec();
        Ok(Self {
            sans,
            public_key_der,
        })
    }
}

fn sans_of(names: &[GeneralName<'_>]) -> Vec<San> {
    names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(dns) => Some(San::Dns((*dns).to_owned())),
            GeneralName::URI(uri) => Some(San::Uri((*uri).to_owned())),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
