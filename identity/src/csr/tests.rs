//! Each rule of contract 2.5 for requests, one case a line.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{CertificateParams, DistinguishedName, SanType};

use super::*;
use crate::testing::{ID, csr, csr_of, csr_params, key};

fn name(text: &str) -> rcgen::string::Ia5String {
    text.try_into().expect("ASCII")
}

fn changed(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = csr_params(ID);
    change(&mut params);
    csr_of(&params, &key(&rcgen::PKCS_ECDSA_P256_SHA256))
}

#[test]
fn what_a_proxy_sends_is_accepted() {
    let checked = check(&csr(ID), ID).expect("accepted");
    assert_eq!(
        (checked.dns_name.as_str(), checked.common_name.as_deref()),
        (ID, Some(ID))
    );

    let no_common_name = changed(|p| p.distinguished_name = DistinguishedName::new());
    assert_eq!(
        check(&no_common_name, ID).expect("accepted").common_name,
        None
    );
    assert!(
        check(
            &csr_of(&csr_params(ID), &key(&rcgen::PKCS_ECDSA_P384_SHA384)),
            ID
        )
        .is_ok(),
        "any ECDSA key"
    );
}

#[test]
fn rules() {
    let other = "api.emojivoto.serviceaccount.identity.linkerd.cluster.local";
    let add = |san| changed(|p| p.subject_alt_names.push(san));
    let ip = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let cases = [
        (
            "no name",
            changed(|p| p.subject_alt_names.clear()),
            "no DNS name",
        ),
        ("another name", csr(other), "is not the requested identity"),
        (
            "two names",
            add(SanType::DnsName(name(other))),
            "has 2 DNS names",
        ),
        (
            "the name twice",
            add(SanType::DnsName(name(ID))),
            "has 2 DNS names",
        ),
        (
            "e-mail",
            add(SanType::Rfc822Name(name("a@b.c"))),
            "other than DNS",
        ),
        ("address", add(ip.clone()), "other than DNS"),
        (
            "URI",
            add(SanType::URI(name("spiffe://cluster.local/a"))),
            "other than DNS",
        ),
        (
            "only an address",
            changed(|p| p.subject_alt_names = vec![ip]),
            "not a DNS name",
        ),
        (
            "upper case",
            csr(&ID.to_uppercase()),
            "is not the requested identity",
        ),
        (
            "common name",
            changed(|p| p.distinguished_name.push(rcgen::DnType::CommonName, other)),
            "common name",
        ),
        (
            "RSA",
            csr_of(&csr_params(ID), &key(&rcgen::PKCS_RSA_SHA256)),
            "RSA 2048, it must be ECDSA",
        ),
        (
            "Ed25519",
            csr_of(&csr_params(ID), &key(&rcgen::PKCS_ED25519)),
            "Ed25519, it must be ECDSA",
        ),
    ];
    for (case, der, expected) in cases {
        let refused = check(&der, ID).expect_err(case);
        assert!(
            matches!(&refused, CsrError::Rule(why) if why.contains(expected)),
            "{case}: {refused}"
        );
    }
}

#[test]
fn malformed() {
    let good = csr(ID);
    let mut trailing = good.clone();
    trailing.push(0);
    let mut forged = good.clone();
    *forged.last_mut().expect("bytes") ^= 1;
    let cases = [
        ("empty", Vec::new(), ""),
        ("text", b"-----BEGIN CERTIFICATE REQUEST-----".to_vec(), ""),
        ("cut", good[..good.len() / 2].to_vec(), ""),
        ("trailing", trailing, "1 bytes follow"),
        ("signature", forged, "self-signature"),
        ("large", vec![0x30; MAX_CSR_BYTES + 1], "at most"),
    ];
    for (case, der, expected) in cases {
        let refused = check(&der, ID).expect_err(case);
        assert!(
            matches!(&refused, CsrError::Malformed(why) if why.contains(expected)),
            "{case}: {refused}"
        );
    }
}

/// The request proper is signed. In what follows it (algorithm and signature) the parser is lenient about one tag, which is
/// harmless; there it only must not panic.
#[test]
fn no_byte_of_the_signed_part_can_be_changed() {
    let good = csr(ID);
    let length = usize::from(u16::from_be_bytes([good[6], good[7]]));
    assert_eq!(
        good[4..6],
        [0x30, 0x82],
        "a sequence with a length of two bytes"
    );
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x41;
        assert!(check(&bytes, ID).is_err() || at >= 8 + length, "byte {at}");
    }
}
