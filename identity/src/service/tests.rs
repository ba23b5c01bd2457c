//! The table of conditions and codes of contract 2.5, and the order of the checks.

use tempfile::TempDir;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;
use crate::local::LocalAuthority;
use crate::testing::{ID, TERMS, csr};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

type Change = fn(&mut CertifyRequest);

struct Bench {
    _dir: TempDir,
    authority: LocalAuthority,
    certifier: Certifier,
}

fn names() -> Names {
    Names {
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
    }
}

fn bench_with(terms: Terms, loaded: bool) -> Bench {
    let dir = tempfile::tempdir().expect("folder");
    let authority = LocalAuthority::open(&dir.path().join("a")).expect("authority");
    let metrics = Arc::new(Metrics::new(&weft_runtime::metrics::Registry::new(
        Duration::ZERO,
    )));
    let sources = crate::reload::Sources {
        issuer_dir: authority.issuer_dir(),
        scheme: crate::Scheme::Linkerd,
        trust_roots: authority.trust_roots(),
    };
    let files = Arc::new(IssuerFiles::new(sources, metrics.clone(), Events::off()));
    if loaded {
        files.refresh(SystemTime::now());
    }
    let tokens = TokenCheck::Local(authority.tokens());
    Bench {
        _dir: dir,
        certifier: Certifier::new(files, tokens, names(), terms, metrics, Events::off()),
        authority,
    }
}

fn bench() -> Bench {
    bench_with(TERMS, true)
}

impl Bench {
    fn request(&self) -> CertifyRequest {
        CertifyRequest {
            identity: ID.to_owned(),
            token: self.token("emojivoto", "web"),
            certificate_signing_request: csr(ID),
        }
    }

    fn token(&self, namespace: &str, account: &str) -> Vec<u8> {
        self.authority
            .issue_token(namespace, account, "pod", 2 * YEAR)
            .into_bytes()
    }

    async fn code(&self, change: impl FnOnce(&mut CertifyRequest)) -> (Code, String) {
        let mut request = self.request();
        change(&mut request);
        match self.certifier.certify(&request, SystemTime::now()).await {
            Ok(_) => (Code::Ok, String::new()),
            Err(e) => (e.code(), e.to_string()),
        }
    }
}

#[tokio::test]
async fn a_certificate_and_its_serials() {
    let bench = bench();
    for serial in 1..=3 {
        let now = SystemTime::now();
        let response = bench
            .certifier
            .certify(&bench.request(), now)
            .await
            .expect("issued");
        let (_, leaf) = X509Certificate::from_der(&response.leaf_certificate).expect("X.509");
        assert_eq!(leaf.serial.to_string(), serial.to_string());
        let until = response.valid_until.expect("mandatory");
        assert_eq!(until.seconds, leaf.validity().not_after.timestamp());
        assert_eq!(until.seconds, unix_seconds(now) + 24 * 3600 + 20);
        let [issuer] = response.intermediate_certificates.as_slice() else {
            unreachable!(
                "the issuer, not the root: {}",
                response.intermediate_certificates.len()
            );
        };
        let (_, issuer) = X509Certificate::from_der(issuer).expect("X.509");
        leaf.verify_signature(Some(issuer.public_key()))
            .expect("signed by it");
    }
}

#[tokio::test]
async fn invalid_arguments() {
    let bench = bench();
    let cases: [(&str, Change, &str); 7] = [
        ("no identity", |r| r.identity.clear(), "no identity"),
        ("no token", |r| r.token.clear(), "no token"),
        (
            "no CSR",
            |r| r.certificate_signing_request.clear(),
            "no certificate signing request",
        ),
        (
            "long identity",
            |r| r.identity = "a".repeat(254),
            "254 bytes",
        ),
        (
            "CSR",
            |r| r.certificate_signing_request.truncate(100),
            "PKCS#10",
        ),
        (
            "CSR in PEM",
            |r| r.certificate_signing_request = b"-----BEGIN".to_vec(),
            "DER",
        ),
        ("token", |r| r.token = b"not.a.token".to_vec(), "malformed"),
    ];
    for (case, change, expected) in cases {
        let (code, text) = bench.code(change).await;
        assert!(
            code == Code::InvalidArgument && text.contains(expected),
            "{case}: {code:?} {text}"
        );
    }
}

#[tokio::test]
async fn failed_preconditions() {
    let bench = bench();
    let other = "api.emojivoto.serviceaccount.identity.linkerd.cluster.local";
    let old = bench
        .authority
        .issue_token("emojivoto", "web", "pod", Duration::ZERO)
        .into_bytes();
    let cases: [(&str, CertifyRequest, &str); 6] = [
        (
            "CSR of another name",
            CertifyRequest {
                certificate_signing_request: csr(other),
                ..bench.request()
            },
            "requested identity",
        ),
        (
            "token of another account",
            CertifyRequest {
                token: bench.token("emojivoto", "api"),
                ..bench.request()
            },
            other,
        ),
        (
            "token of another namespace",
            CertifyRequest {
                token: bench.token("prod", "web"),
                ..bench.request()
            },
            "web.prod.",
        ),
        (
            "an account with a dot",
            CertifyRequest {
                token: bench.token("emojivoto", "a.b"),
                ..bench.request()
            },
            "DNS-1123",
        ),
        (
            "expired token",
            CertifyRequest {
                token: old,
                ..bench.request()
            },
            "expired",
        ),
        (
            "another trust domain",
            {
                let identity = ID.replace("cluster.local", "example.org");
                CertifyRequest {
                    certificate_signing_request: csr(&identity),
                    identity,
                    ..bench.request()
                }
            },
            "example.org",
        ),
    ];
    for (case, request, expected) in cases {
        let refused = bench
            .certifier
            .certify(&request, SystemTime::now())
            .await
            .expect_err(case);
        assert!(
            refused.code() == Code::FailedPrecondition && refused.to_string().contains(expected),
            "{case}: {refused}"
        );
    }
    // No dot may move the border between account and namespace.
    let (code, _) = bench
        .code(|r| r.token = bench.token("b.emojivoto", "web"))
        .await;
    assert_eq!(code, Code::FailedPrecondition);
}

#[tokio::test]
async fn unavailable_and_internal() {
    let unloaded = bench_with(TERMS, false);
    let (code, text) = unloaded.code(|_| {}).await;
    assert!(
        code == Code::Unavailable && text.contains("no issuer is loaded"),
        "{text}"
    );

    let bench = bench();
    let after_its_end = SystemTime::now() + YEAR + Duration::from_secs(60);
    let expired = bench
        .certifier
        .certify(&bench.request(), after_its_end)
        .await
        .expect_err("expired");
    assert!(
        expired.code() == Code::Unavailable && expired.to_string().contains("renew"),
        "{expired}"
    );

    let absurd = bench_with(
        Terms {
            clock_skew: Duration::MAX,
            ..TERMS
        },
        true,
    );
    assert_eq!(absurd.code(|_| {}).await.0, Code::Internal);
}

/// The proxy renews when 70 % of what it is told is over (contract 2.2), so what it is told is when the leaf really ends.
#[tokio::test]
async fn i02_the_answer_says_when_the_leaf_really_ends() {
    let bench = bench();
    let issuer_ends = bench
        .certifier
        .issuer
        .current()
        .expect("loaded")
        .not_after();
    let an_hour_before = issuer_ends - Duration::from_secs(3600);
    let response = bench
        .certifier
        .certify(&bench.request(), an_hour_before)
        .await;
    let response = response.expect("issued");
    let (_, leaf) = X509Certificate::from_der(&response.leaf_certificate).expect("X.509");
    let until = response.valid_until.expect("mandatory").seconds;
    assert_eq!(until, leaf.validity().not_after.timestamp());
    assert_eq!(until, unix_seconds(issuer_ends), "and not a day later");
}

/// A stranger learns nothing about tokens from a request that is wrong anyway, and costs us no token check.
#[tokio::test]
async fn the_request_is_checked_before_the_token() {
    let bench = bench();
    let (code, text) = bench
        .code(|r| {
            r.token = b"garbage".to_vec();
            r.certificate_signing_request = csr("other.name");
        })
        .await;
    assert!(
        code == Code::FailedPrecondition && text.contains("DNS name"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn too_many_at_once_wait_and_then_hear_so() {
    let bench = bench();
    let all = u32::try_from(MAX_IN_FLIGHT).expect("small");
    let turns = bench
        .certifier
        .turns
        .acquire_many(all)
        .await
        .expect("all turns");
    let started = tokio::time::Instant::now();
    let (code, text) = bench.code(|_| {}).await;
    assert_eq!(code, Code::ResourceExhausted, "{text}");
    assert_eq!(started.elapsed(), MAX_WAIT);
    drop(turns);
    assert_eq!(bench.code(|_| {}).await.0, Code::Ok);
}
