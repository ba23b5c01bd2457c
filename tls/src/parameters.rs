//! The TLS parameters of the mesh (contract 2.3), in one place. Holds constants only; makes no connection.

use std::sync::{Arc, LazyLock};

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::version::TLS13;
use webpki::aws_lc_rs as webpki_algorithms;

/// ALPN of a direct connection (to port 4143 itself), and the only ALPN used in the mesh (contract 2.3, 3.3).
pub const TRANSPORT_ALPN: &[u8] = b"transport.l5d.io/v1";

/// TLS 1.3 in both roles, nothing older (contract 2.3).
pub(crate) static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&TLS13];

/// Signatures we verify: ECDSA on the three NIST curves, Ed25519 and RSA-PKCS1 (contract 2.3).
///
/// TLS 1.3 forbids PKCS1 for the handshake itself, so the RSA entries serve chains with an RSA anchor only.
pub(crate) static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        webpki_algorithms::ECDSA_P256_SHA256,
        webpki_algorithms::ECDSA_P256_SHA384,
        webpki_algorithms::ECDSA_P256_SHA512,
        webpki_algorithms::ECDSA_P384_SHA256,
        webpki_algorithms::ECDSA_P384_SHA384,
        webpki_algorithms::ECDSA_P384_SHA512,
        webpki_algorithms::ECDSA_P521_SHA256,
        webpki_algorithms::ECDSA_P521_SHA384,
        webpki_algorithms::ECDSA_P521_SHA512,
        webpki_algorithms::ED25519,
        webpki_algorithms::RSA_PKCS1_2048_8192_SHA256,
        webpki_algorithms::RSA_PKCS1_2048_8192_SHA384,
        webpki_algorithms::RSA_PKCS1_2048_8192_SHA512,
    ],
    mapping: &[
        (
            SignatureScheme::ECDSA_NISTP256_SHA256,
            &[webpki_algorithms::ECDSA_P256_SHA256],
        ),
        (
            SignatureScheme::ECDSA_NISTP384_SHA384,
            &[webpki_algorithms::ECDSA_P384_SHA384],
        ),
        (
            SignatureScheme::ECDSA_NISTP521_SHA512,
            &[webpki_algorithms::ECDSA_P521_SHA512],
        ),
        (SignatureScheme::ED25519, &[webpki_algorithms::ED25519]),
        (
            SignatureScheme::RSA_PKCS1_SHA256,
            &[webpki_algorithms::RSA_PKCS1_2048_8192_SHA256],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA384,
            &[webpki_algorithms::RSA_PKCS1_2048_8192_SHA384],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA512,
            &[webpki_algorithms::RSA_PKCS1_2048_8192_SHA512],
        ),
    ],
};

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
            kx_group::SECP384R1,
        ],
        signature_verification_algorithms: SIGNATURES,
        ..default_provider()
    })
});

/// The cryptography of every handshake in the mesh: suites and key exchanges in order of preference (contract 2.3).
///
/// Also the source of the labels of the metric `rustls_info` (contract 6.2).
pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}
