//! Verification of a server's chain without a host name. The name is compared afterwards, by `connect`.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::parameters::SIGNATURES;

/// Checks that a server's chain ends at one of our anchors and is valid now.
///
/// The web's host check is left out on purpose: a mesh certificate names an identity, which may be a URI and need
/// not be the SNI. Whoever uses this verifier must compare the names (contract 2.3); only `connect` does use it.
#[derive(Debug)]
pub(crate) struct ChainVerifier {
    roots: Arc<RootCertStore>,
}

impl ChainVerifier {
    pub(crate) fn new(roots: Arc<RootCertStore>) -> Self {
        Self { roots }
    }

    pub(crate) fn verify_chain(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(
            &leaf,
            &self.roots,
            intermediates,
            now,
            SIGNATURES.all,
        )
    }
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_chain(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &SIGNATURES)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}
