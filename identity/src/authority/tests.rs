//! Loading of issuers with every kind of anchor, and every field of what they sign.

use std::path::Path;

use rcgen::{CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, RsaKeySize};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;

use super::*;
use crate::csr;
use crate::testing::{
    Ca, ID, TERMS, ca_params, ca_under, csr as request, csr_of, csr_params, key, openssl, pair,
    pair_of, root,
};

fn roots(cas: &[&Ca]) -> TrustRoots {
    let text: String = cas.iter().map(|ca| ca.pem()).collect();
    TrustRoots::from_pem(text.as_bytes()).expect("roots")
}

fn load(pair: &PairFiles, anchors: &[&Ca]) -> Result<Issuer, IssuerError> {
    Issuer::from_pair(pair, &roots(anchors), SystemTime::now())
}

fn checked() -> Csr {
    csr::check(&request(ID), ID).expect("request")
}

fn at(now: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).expect("after 1970"))
}

/// An Issuer signs and the leaf verifies through what the answer would carry.
fn assert_serves(issuer: &Issuer, anchors: &TrustRoots) {
    let now = SystemTime::now();
    let signed = issuer.sign(&checked(), 7, TERMS, now).expect("signed");
    anchors
        .verify(&signed.der.into(), issuer.intermediates(), at(now))
        .expect("verifies");
}

#[test]
fn the_fields_of_a_leaf() {
    let anchor = root("root");
    let parent = ca_under(&anchor, "issuer");
    let issuer = load(&pair(&[&parent]), &[&anchor]).expect("issuer");
    let now = SystemTime::now();
    let signed = issuer.sign(&checked(), 300, TERMS, now).expect("signed");
    let der = CertificateDer::from(signed.der.clone());
    let (rest, leaf) = X509Certificate::from_der(&der).expect("X.509");
    assert!(rest.is_empty());
    assert_eq!(leaf.serial.to_string(), "300");
    assert_eq!(leaf.version(), x509_parser::x509::X509Version::V3);
    assert_eq!(
        leaf.validity().not_before.timestamp(),
        unix_seconds(now) - 20
    );
    assert_eq!(
        leaf.validity().not_after.timestamp(),
        unix_seconds(now) + 24 * 3600 + 20
    );
    assert_eq!(
        unix_seconds(signed.not_after),
        leaf.validity().not_after.timestamp()
    );
    assert_eq!(leaf.subject().to_string(), format!("CN={ID}"));
    assert_eq!(leaf.issuer().to_string(), "CN=issuer");

    let usage = leaf.key_usage().expect("readable").expect("present");
    assert!(usage.critical && usage.value.digital_signature() && usage.value.key_encipherment());
    assert_eq!(usage.value.flags.count_ones(), 2);
    let extended = leaf
        .extended_key_usage()
        .expect("readable")
        .expect("present")
        .value;
    assert!(
        extended.server_auth && extended.client_auth && !extended.any && extended.other.is_empty()
    );
    let names = leaf
        .subject_alternative_name()
        .expect("readable")
        .expect("present");
    assert_eq!(names.value.general_names, [GeneralName::DNSName(ID)]);
    assert!(!names.critical);
    assert!(!leaf.is_ca());
    let (_, above) = X509Certificate::from_der(parent.der()).expect("X.509");
    leaf.verify_signature(Some(above.public_key()))
        .expect("signed by the issuer");
}

#[test]
fn without_a_common_name_the_dns_name_is_critical() {
    let anchor = root("root");
    let issuer = load(&pair(&[&ca_under(&anchor, "issuer")]), &[&anchor]).expect("issuer");
    let mut params = csr_params(ID);
    params.distinguished_name = rcgen::DistinguishedName::new();
    let request =
        csr::check(&csr_of(&params, &key(&rcgen::PKCS_ECDSA_P384_SHA384)), ID).expect("request");
    let signed = issuer
        .sign(&request, u64::MAX, TERMS, SystemTime::now())
        .expect("signed");
    let der = CertificateDer::from(signed.der);
    let (_, leaf) = X509Certificate::from_der(&der).expect("X.509");
    assert_eq!(leaf.serial.to_string(), u64::MAX.to_string());
    assert_eq!(leaf.subject().iter().count(), 0);
    assert!(
        leaf.subject_alternative_name()
            .expect("readable")
            .expect("present")
            .critical
    );
    assert_eq!(key_kind(leaf.public_key()), "ECDSA P-384");
    roots(&[&anchor])
        .verify(&der, issuer.intermediates(), at(SystemTime::now()))
        .expect("verifies");
}

#[test]
fn i02_a_leaf_never_outlives_what_is_above_it() {
    let anchor = root("root");
    let mut short = ca_params("intermediate");
    short.not_after = OffsetDateTime::now_utc() + time::Duration::hours(1);
    let ends = short.not_after.unix_timestamp();
    let middle = CertifiedIssuer::signed_by(short, key(&rcgen::PKCS_ECDSA_P256_SHA256), &anchor)
        .expect("ca");
    let issuer = load(&pair(&[&ca_under(&middle, "issuer"), &middle]), &[&anchor]).expect("issuer");
    let now = SystemTime::now();
    let signed = issuer.sign(&checked(), 1, TERMS, now).expect("signed");
    assert_eq!(unix_seconds(signed.not_after), ends);

    let brief = Terms {
        lifetime: Duration::from_secs(600),
        clock_skew: Duration::ZERO,
    };
    let signed = issuer.sign(&checked(), 1, brief, now).expect("signed");
    assert_eq!(
        unix_seconds(signed.not_after),
        unix_seconds(now) + 600,
        "cut only if needed"
    );

    let later = now + Duration::from_secs(3600);
    assert!(matches!(
        issuer.sign(&checked(), 1, TERMS, later),
        Err(SignError::Expired(_))
    ));
    let endless = Terms {
        lifetime: Duration::MAX,
        clock_skew: Duration::from_secs(20),
    };
    assert_eq!(
        unix_seconds(
            issuer
                .sign(&checked(), 1, endless, now)
                .expect("signed")
                .not_after
        ),
        ends
    );
    let before_all_time = Terms {
        lifetime: Duration::from_secs(1),
        clock_skew: Duration::MAX,
    };
    assert!(matches!(
        issuer.sign(&checked(), 1, before_all_time, now),
        Err(SignError::Time(_))
    ));
}

#[test]
fn i06_every_anchor_the_data_plane_can_verify() {
    let rsa_4096 =
        KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA512, RsaKeySize::_4096).expect("key");
    let keys = [
        ("P-256", key(&rcgen::PKCS_ECDSA_P256_SHA256)),
        ("P-384", key(&rcgen::PKCS_ECDSA_P384_SHA384)),
        ("P-521", key(&rcgen::PKCS_ECDSA_P521_SHA512)),
        ("Ed25519", key(&rcgen::PKCS_ED25519)),
        ("RSA-2048", key(&rcgen::PKCS_RSA_SHA256)),
        ("RSA-4096", rsa_4096),
    ];
    for (kind, key) in keys {
        let anchor = CertifiedIssuer::self_signed(ca_params(kind), key).expect("root");
        let direct = load(&pair(&[&ca_under(&anchor, "issuer")]), &[&anchor]);
        assert_serves(
            &direct.unwrap_or_else(|e| unreachable!("{kind}: {e}")),
            &roots(&[&anchor]),
        );
    }
}

#[test]
fn i06_a_chain_with_an_intermediate() {
    let (anchor, other) = (root("root"), root("other root"));
    let middle = CertifiedIssuer::signed_by(
        ca_params("middle"),
        key(&rcgen::PKCS_ECDSA_P384_SHA384),
        &anchor,
    )
    .expect("ca");
    let issuer = ca_under(&middle, "issuer");
    // The root at the end of the file does not go into answers.
    let loaded = load(&pair(&[&issuer, &middle, &anchor]), &[&other, &anchor]).expect("issuer");
    assert_eq!(
        loaded.intermediates(),
        [issuer.der().clone(), middle.der().clone()]
    );
    assert_serves(&loaded, &roots(&[&anchor]));

    let missing = load(&pair(&[&issuer]), &[&anchor]).expect_err("no way to the root");
    let text = missing.to_string();
    assert!(
        text.contains("CN=middle")
            && text.contains("ECDSA P-256")
            && text.contains("missing intermediate"),
        "{text}"
    );
}

/// Each member signed by another kind of key, two intermediates between the root and the issuer.
#[test]
fn i06_a_chain_of_two_intermediates() {
    let sign = |name: &str, algorithm, parent: &Ca| {
        CertifiedIssuer::signed_by(ca_params(name), key(algorithm), parent).expect("ca")
    };
    let anchor = CertifiedIssuer::self_signed(ca_params("root"), key(&rcgen::PKCS_RSA_SHA384));
    let anchor = anchor.expect("root");
    let upper = sign("upper", &rcgen::PKCS_ED25519, &anchor);
    let lower = sign("lower", &rcgen::PKCS_ECDSA_P384_SHA384, &upper);
    let issuer = ca_under(&lower, "issuer");
    let loaded = load(&pair(&[&issuer, &lower, &upper]), &[&anchor]).expect("issuer");
    assert_eq!(loaded.intermediates().len(), 3);
    assert_serves(&loaded, &roots(&[&anchor]));
    // The order of those above the issuer does not matter; one that is missing does.
    let swapped = load(&pair(&[&issuer, &upper, &lower]), &[&anchor]).expect("issuer");
    assert_serves(&swapped, &roots(&[&anchor]));
    let text = load(&pair(&[&issuer, &lower]), &[&anchor])
        .expect_err("no way to the root")
        .to_string();
    assert!(
        text.contains("\"CN=root\" (RSA 2048)") && text.contains("missing intermediate"),
        "{text}"
    );
}

/// The largest key that can be verified; and one above it, which is named. Five primes, since two of that size take a minute to find;
/// the signature is the same.
#[test]
fn i06_the_largest_anchors() {
    for (bits, accepted) in [("8192", true), ("8200", false)] {
        let dir = tempfile::tempdir().expect("folder");
        let dir = dir.path();
        let key =
            format!("-algorithm RSA -pkeyopt rsa_keygen_bits:{bits} -pkeyopt rsa_keygen_primes:5");
        openssl(dir, &format!("genpkey {key} -out ca.key"));
        openssl(
            dir,
            "req -x509 -key ca.key -days 30 -subj /CN=large -out ca.crt",
        );
        issued_by_openssl(dir);
        let anchors = TrustRoots::from_pem(&file(dir, "ca.crt")).expect("roots");
        let pair = pair_of(file(dir, "crt.pem"), file(dir, "key.pem"));
        match Issuer::from_pair(&pair, &anchors, SystemTime::now()) {
            Ok(issuer) => {
                assert!(accepted, "{bits}");
                assert_serves(&issuer, &anchors);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(!accepted, "{bits}: {text}");
                assert!(
                    text.contains("(RSA 8200)") && text.contains("RSA of 2048 to 8192 bits"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn the_root_itself_may_be_the_issuer() {
    let anchor = root("root");
    let loaded = load(&pair(&[&anchor]), &[&anchor]).expect("issuer");
    assert!(loaded.intermediates().is_empty());
    assert_eq!(
        loaded.not_after,
        OffsetDateTime::from(loaded.not_after()).unix_timestamp()
    );
    assert_serves(&loaded, &roots(&[&anchor]));
}

#[test]
fn refusals_name_the_file_and_the_remedy() {
    let anchor = root("root");
    let issuer = ca_under(&anchor, "issuer");
    let with = |change: fn(&mut rcgen::CertificateParams)| {
        let mut params = ca_params("issuer");
        change(&mut params);
        CertifiedIssuer::signed_by(params, key(&rcgen::PKCS_ECDSA_P256_SHA256), &anchor)
            .expect("ca")
    };
    let of = |algorithm| {
        CertifiedIssuer::signed_by(ca_params("issuer"), key(algorithm), &anchor).expect("ca")
    };
    let other_key = key(&rcgen::PKCS_ECDSA_P256_SHA256).serialize_pem();
    let rsa_key = key(&rcgen::PKCS_RSA_SHA256).serialize_pem();
    let own_key = issuer.key().serialize_pem();
    let cases = [
        (
            "no certificate",
            pair_of("hello", own_key.clone()),
            "no PEM certificate",
        ),
        (
            "no key",
            pair_of(issuer.pem(), "hello"),
            "issuer/key.pem: no private key",
        ),
        (
            "another key",
            pair_of(issuer.pem(), other_key),
            "is not the key of issuer/crt.pem",
        ),
        (
            "another kind of key",
            pair_of(issuer.pem(), rsa_key),
            "is not the key of issuer/crt.pem",
        ),
        (
            "RSA issuer",
            pair(&[&of(&rcgen::PKCS_RSA_SHA256)]),
            "issuer's key is RSA 2048",
        ),
        (
            "P-384 issuer",
            pair(&[&of(&rcgen::PKCS_ECDSA_P384_SHA384)]),
            "issuer's key is ECDSA P-384",
        ),
        ("no CA", pair(&[&with(|p| p.is_ca = IsCa::NoCa)]), "CA:true"),
        (
            "no keyCertSign",
            pair(&[&with(|p| p.key_usages = vec![KeyUsagePurpose::CrlSign])]),
            "keyCertSign",
        ),
        (
            "expired",
            pair(&[&with(|p| {
                p.not_after = OffsetDateTime::now_utc() - time::Duration::MINUTE
            })]),
            "renew it",
        ),
        (
            "future",
            pair(&[&with(|p| {
                p.not_before = OffsetDateTime::now_utc() + time::Duration::HOUR
            })]),
            "clock",
        ),
        (
            "foreign",
            pair(&[&ca_under(&root("root"), "issuer")]),
            "put the root that signed it into the bundle",
        ),
    ];
    for (case, pair, expected) in cases {
        let text = load(&pair, &[&anchor]).expect_err(case).to_string();
        assert!(
            text.contains(expected) && text.contains("issuer/"),
            "{case}: {text}"
        );
    }
}

#[test]
fn debug_output_has_no_key() {
    let anchor = root("root");
    let shown = format!("{:?}", load(&pair(&[&anchor]), &[&anchor]).expect("issuer"));
    assert!(
        shown.starts_with("Issuer { subject: \"CN=root\""),
        "{shown}"
    );
    assert!(!shown.contains("key"), "{shown}");
}

fn file(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).expect("file made by openssl")
}

/// An issuer (`crt.pem`, `key.pem`) of the authority `ca.crt`, `ca.key`.
fn issued_by_openssl(dir: &Path) {
    openssl(dir, "ecparam -name prime256v1 -genkey -noout -out key.pem");
    openssl(
        dir,
        "req -new -key key.pem -subj /CN=issuer -addext basicConstraints=critical,CA:true -out issuer.csr",
    );
    openssl(
        dir,
        "x509 -req -in issuer.csr -CA ca.crt -CAkey ca.key -copy_extensions copy -days 30 -out crt.pem",
    );
}

/// What rcgen cannot make: a name with repeated parts, and a key in SEC 1 form after its parameters.
#[test]
fn an_issuer_made_by_openssl() {
    let dir = tempfile::tempdir().expect("folder");
    let dir = dir.path();
    openssl(dir, "ecparam -name prime256v1 -genkey -out key.pem");
    let subject = "-subj /DC=example/DC=corp/O=Weft/OU=mesh/OU=issuers/CN=issuer";
    openssl(
        dir,
        &format!(
            "req -x509 -key key.pem -days 30 {subject} -addext keyUsage=critical,keyCertSign -out crt.pem"
        ),
    );
    let (certificate, key) = (file(dir, "crt.pem"), file(dir, "key.pem"));
    let anchors = TrustRoots::from_pem(&certificate).expect("roots");
    let issuer =
        Issuer::from_pair(&pair_of(certificate, key), &anchors, SystemTime::now()).expect("issuer");
    assert_serves(&issuer, &anchors);

    // And a verifier that is not ours.
    let signed = issuer
        .sign(&checked(), 42, TERMS, SystemTime::now())
        .expect("signed");
    std::fs::write(dir.join("leaf.der"), signed.der).expect("file");
    openssl(dir, "x509 -inform DER -in leaf.der -out leaf.pem");
    let verified = openssl(
        dir,
        "verify -x509_strict -purpose sslserver -CAfile crt.pem leaf.pem",
    );
    assert_eq!(verified.trim(), "leaf.pem: OK");
}

/// Case I06: what cannot be verified is refused with the kind of key and what is allowed.
#[test]
fn i06_a_weak_anchor_is_named() {
    let dir = tempfile::tempdir().expect("folder");
    let dir = dir.path();
    openssl(
        dir,
        "req -x509 -newkey rsa:1024 -nodes -keyout ca.key -days 30 -subj /CN=weak -out ca.crt",
    );
    issued_by_openssl(dir);
    let anchors = TrustRoots::from_pem(&file(dir, "ca.crt")).expect("roots");
    let pair = pair_of(file(dir, "crt.pem"), file(dir, "key.pem"));
    let text = Issuer::from_pair(&pair, &anchors, SystemTime::now())
        .expect_err("too weak")
        .to_string();
    assert!(
        text.contains("\"CN=weak\" (RSA 1024)") && text.contains("RSA of 2048 to 8192 bits"),
        "{text}"
    );
}
