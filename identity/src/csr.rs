//! Reads a certificate signing request and holds it against the rules of contract 2.5. Decides nothing about tokens.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// id-ecPublicKey, RFC 5480 section 2.1.1.
const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
/// A P-384 request with one name of 253 bytes is below 1 KiB; 16 KiB leaves room for odd attributes.
pub const MAX_CSR_BYTES: usize = 16 * 1024;

/// Why a request is not signed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CsrError {
    /// Not a PKCS#10 request in DER, or its own signature is wrong.
    #[error("certificate signing request is not valid PKCS#10 in DER: {0}")]
    Malformed(String),
    /// A well-formed request for something the rules do not allow.
    #[error("certificate signing request refused: {0}")]
    Rule(String),
}

/// A request that passed [`check`]: what goes from it into the certificate, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csr {
    pub(crate) public_key: Vec<u8>,
    pub(crate) dns_name: String,
    pub(crate) common_name: Option<String>,
}

/// Parses `der`, verifies its self-signature and applies the rules for `identity`: one DNS name, equal to the identity; common name
/// empty or equal; no e-mail, IP or URI name; an ECDSA key (contract 2.5).
pub fn check(der: &[u8], identity: &str) -> Result<Csr, CsrError> {
    if der.len() > MAX_CSR_BYTES {
        return Err(CsrError::Malformed(format!(
            "{} bytes, at most {MAX_CSR_BYTES} are read",
            der.len()
        )));
    }
    let (rest, request) =
        X509CertificationRequest::from_der(der).map_err(|e| CsrError::Malformed(e.to_string()))?;
    if !rest.is_empty() {
        return Err(CsrError::Malformed(format!(
            "{} bytes follow the request",
            rest.len()
        )));
    }
    request
        .verify_signature()
        .map_err(|e| CsrError::Malformed(format!("self-signature: {e}")))?;

    let dns_name = dns_name(&request, identity)?;
    let common_name = common_name(&request, identity)?;
    let key = &request.certification_request_info.subject_pki;
    if key.algorithm.algorithm.to_id_string() != EC_PUBLIC_KEY {
        return Err(CsrError::Rule(format!(
            "its public key is {}, it must be ECDSA",
            crate::roots::key_kind(key)
        )));
    }
    Ok(Csr {
        public_key: key.raw.to_vec(),
        dns_name,
        common_name,
    })
}

fn dns_name(request: &X509CertificationRequest<'_>, identity: &str) -> Result<String, CsrError> {
    let mut names = Vec::new();
    for attribute in request.certification_request_info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
            continue;
        };
        for extension in &requested.extensions {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(san) => names.extend(&san.general_names),
                ParsedExtension::ParseError { error } => {
                    return Err(CsrError::Malformed(format!(
                        "extension {}: {error}",
                        extension.oid
                    )));
                }
                _ => {}
            }
        }
    }
    match names.as_slice() {
        [GeneralName::DNSName(name)] if *name == identity && name.is_ascii() => {
            Ok((*name).to_owned())
        }
        [GeneralName::DNSName(name)] => Err(CsrError::Rule(format!(
            "its DNS name \"{}\" is not the requested identity \"{}\"",
            name.escape_debug(),
            identity.escape_debug()
        ))),
        [] => Err(CsrError::Rule(
            "it has no DNS name, exactly one is needed".to_owned(),
        )),
        [_] => Err(CsrError::Rule("its name is not a DNS name".to_owned())),
        more if more
            .iter()
            .all(|name| matches!(name, GeneralName::DNSName(_))) =>
        {
            Err(CsrError::Rule(format!(
                "it has {} DNS names, exactly one is allowed",
                more.len()
            )))
        }
        _ => Err(CsrError::Rule(
            "it has names other than DNS names (e-mail, IP address or URI)".to_owned(),
        )),
    }
}

fn common_name(
    request: &X509CertificationRequest<'_>,
    identity: &str,
) -> Result<Option<String>, CsrError> {
    let mut found = None;
    for name in request
        .certification_request_info
        .subject
        .iter_common_name()
    {
        let text = name
            .as_str()
            .map_err(|e| CsrError::Malformed(format!("common name: {e}")))?;
        if text.is_empty() {
            continue;
        }
        if text != identity {
            return Err(CsrError::Rule(format!(
                "its common name \"{}\" is neither empty nor the requested identity",
                text.escape_debug()
            )));
        }
        found = Some(text.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
