//! Bundles as people really write them.

use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256};

use super::*;
use crate::testing::Authority;

#[test]
fn i02_noise_around_the_certificates_is_passed_over() {
    let (one, two) = (Authority::root().pem, Authority::root().pem);
    let bundle = format!("# our roots\n\n{one}\n  \n# the next one\n{two}\n\n\n");
    assert_eq!(TrustAnchors::from_pem(&bundle).unwrap().count(), 2);

    let windows = bundle.replace('\n', "\r\n");
    assert_eq!(TrustAnchors::from_pem(&windows).unwrap().count(), 2);

    let indented = bundle.replace('\n', "\n    ");
    assert_eq!(TrustAnchors::from_pem(&indented).unwrap().count(), 2);

    let marked = format!("\u{feff}{one}{two}");
    assert_eq!(TrustAnchors::from_pem(&marked).unwrap().count(), 2);

    let unterminated = one.trim_end();
    assert_eq!(TrustAnchors::from_pem(unterminated).unwrap().count(), 1);
}

#[test]
fn every_kind_of_root_key_is_read() {
    for algorithm in [&PKCS_RSA_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        assert_eq!(Authority::root_of(algorithm).anchors().count(), 1);
    }
}

#[test]
fn nothing_is_an_error() {
    for text in ["", "\n\n", "not a certificate"] {
        assert!(
            matches!(
                TrustAnchors::from_pem(text),
                Err(AnchorsError::Pem(PemError::Empty))
            ),
            "{text:?}"
        );
    }
}

#[test]
fn the_bad_block_is_named() {
    let good = Authority::root().pem;
    let not_base64 = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_end = "-----BEGIN CERTIFICATE-----\nAAAA\n";

    let error = TrustAnchors::from_pem(&format!("{good}{not_base64}")).unwrap_err();
    assert!(
        matches!(error, AnchorsError::Pem(PemError::Syntax { index: 2, .. })),
        "{error}"
    );
    let error = TrustAnchors::from_pem(&format!("{good}{good}{no_end}")).unwrap_err();
    assert!(
        matches!(error, AnchorsError::Pem(PemError::Syntax { index: 3, .. })),
        "{error}"
    );
    let error = TrustAnchors::from_pem(&format!("{not_x509}{good}")).unwrap_err();
    assert!(
        matches!(error, AnchorsError::Certificate { block: 1, .. }),
        "{error}"
    );
}
