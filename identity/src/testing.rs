//! Certificates, requests and folders for the tests of this crate.

pub(crate) mod api_server;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose, SignatureAlgorithm,
};
use time::OffsetDateTime;
use weft_runtime::metrics::Registry;

use crate::authority::{PairFiles, Scheme, Terms};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::reload::{IssuerFiles, Sources};

pub(crate) type Ca = CertifiedIssuer<'static, KeyPair>;

pub(crate) const ID: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const TERMS: Terms = Terms {
    lifetime: Duration::from_secs(24 * 3600),
    clock_skew: Duration::from_secs(20),
};

pub(crate) fn key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).expect("key")
}

pub(crate) fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = OffsetDateTime::now_utc() - time::Duration::hours(1);
    params.not_after = OffsetDateTime::now_utc() + time::Duration::days(365);
    params
}

pub(crate) fn root(name: &str) -> Ca {
    CertifiedIssuer::self_signed(ca_params(name), key(&rcgen::PKCS_ECDSA_P256_SHA256))
        .expect("root")
}

pub(crate) fn ca_under(parent: &Ca, name: &str) -> Ca {
    CertifiedIssuer::signed_by(ca_params(name), key(&rcgen::PKCS_ECDSA_P256_SHA256), parent)
        .expect("ca")
}

/// A pair of certificates, the issuer first, and its key.
pub(crate) fn pair(chain: &[&Ca]) -> PairFiles {
    let certificate: String = chain.iter().map(|ca| ca.pem()).collect();
    let key = chain.first().expect("an issuer").key().serialize_pem();
    pair_of(certificate, key)
}

pub(crate) fn pair_of(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> PairFiles {
    PairFiles {
        certificate_path: "issuer/crt.pem".into(),
        certificate: certificate.into(),
        key_path: "issuer/key.pem".into(),
        key: key.into(),
    }
}

pub(crate) fn csr_params(identity: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![identity.to_owned()]).expect("params");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, identity);
    params
}

pub(crate) fn csr_of(params: &CertificateParams, key: &KeyPair) -> Vec<u8> {
    params
        .serialize_request(key)
        .expect("request")
        .der()
        .to_vec()
}

pub(crate) fn csr(identity: &str) -> Vec<u8> {
    csr_of(&csr_params(identity), &key(&rcgen::PKCS_ECDSA_P256_SHA256))
}

pub(crate) fn write_pair(dir: &Path, issuer: &Ca) {
    std::fs::create_dir_all(dir).expect("folder");
    std::fs::write(dir.join("crt.pem"), issuer.pem()).expect("certificate");
    std::fs::write(dir.join("key.pem"), issuer.key().serialize_pem()).expect("key");
}

/// Issuer files below `dir`: `issuer/` and `roots/ca-bundle.crt`.
pub(crate) fn issuer_files(dir: &Path) -> (Arc<IssuerFiles>, Arc<Registry>) {
    let registry = Arc::new(Registry::new(Duration::from_secs(3600)));
    let metrics = Arc::new(Metrics::new(&registry));
    let sources = Sources {
        issuer_dir: dir.join("issuer"),
        scheme: Scheme::Linkerd,
        trust_roots: dir.join("roots/ca-bundle.crt"),
    };
    let files = IssuerFiles::new(sources, metrics, Events::off());
    (Arc::new(files), registry)
}

pub(crate) fn write_roots(dir: &Path, roots: &[&Ca]) {
    std::fs::create_dir_all(dir.join("roots")).expect("folder");
    let bundle: String = roots.iter().map(|root| root.pem()).collect();
    std::fs::write(dir.join("roots/ca-bundle.crt"), bundle).expect("bundle");
}

/// Runs `openssl` in `dir`; the tests that need it are the ones for what rcgen cannot make.
pub(crate) fn openssl(dir: &Path, arguments: &str) -> String {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(arguments.split_whitespace())
        .output()
        .expect("this test needs the program openssl (Debian: apt-get install openssl)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
