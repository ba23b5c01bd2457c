//! Authorities and leaves for the tests of this crate, made fresh each time. Not part of the library.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SignatureAlgorithm,
};
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use weft_core::name::Identity;

use crate::store::{Credentials, Trust};
use crate::{PrivateKey, Store, TrustAnchors};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A root, or an issuer signed by one.
pub(crate) struct Authority {
    pub pem: String,
    pub der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf with its key.
pub(crate) struct Leaf {
    pub der: Vec<u8>,
    pub key: PrivateKey,
}

impl Authority {
    pub(crate) fn root() -> Self {
        Self::root_of(&PKCS_ECDSA_P256_SHA256)
    }

    pub(crate) fn root_of(algorithm: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = authority_params("root");
        let certificate = params.self_signed(&key).unwrap();
        Self::new(certificate, params, key)
    }

    pub(crate) fn issuer(&self) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let params = authority_params("issuer");
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Self::new(certificate, params, key)
    }

    fn new(certificate: rcgen::Certificate, params: CertificateParams, key: KeyPair) -> Self {
        Self {
            pem: certificate.pem(),
            der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn anchors(&self) -> TrustAnchors {
        TrustAnchors::from_pem(&self.pem).unwrap()
    }

    pub(crate) fn leaf(&self, name: &str) -> Leaf {
        self.leaf_until(name, SystemTime::now() + HOUR)
    }

    pub(crate) fn leaf_until(&self, name: &str, not_after: SystemTime) -> Leaf {
        self.leaf_with(vec![san(name)], not_after)
    }

    pub(crate) fn leaf_with(&self, sans: Vec<SanType>, not_after: SystemTime) -> Leaf {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans;
        params.not_before = (SystemTime::now() - 2 * HOUR).into();
        params.not_after = not_after.into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let der = params.signed_by(&key, &self.issuer).unwrap().der().to_vec();
        Leaf {
            der,
            key: PrivateKey::from_pkcs8_der(key.serialized_der()).unwrap(),
        }
    }

    /// A store of `name` with a certificate of this authority, which must itself be the anchor.
    pub(crate) fn store(&self, name: &str) -> Store {
        let leaf = self.leaf(name);
        let store = empty_store(self.anchors(), name, &leaf);
        store
            .install(leaf.der, vec![], SystemTime::now() + HOUR)
            .unwrap();
        store
    }

    /// Credentials that `Store::install` would have refused.
    pub(crate) fn unchecked(&self, leaf: &Leaf) -> Credentials {
        let chain = vec![CertificateDer::from(leaf.der.clone())];
        let certified = CertifiedKey::new(chain, leaf.key.signer());
        Credentials::new(&Trust::new(&self.anchors()), certified, SystemTime::now())
    }
}

pub(crate) fn empty_store(anchors: TrustAnchors, name: &str, leaf: &Leaf) -> Store {
    Store::new(anchors, id(name), name.to_owned(), leaf.key.clone())
}

pub(crate) fn id(name: &str) -> Identity {
    Identity::parse(name).unwrap()
}

pub(crate) fn san(name: &str) -> SanType {
    if name.contains("://") {
        SanType::URI(name.try_into().unwrap())
    } else {
        SanType::DnsName(name.try_into().unwrap())
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}
