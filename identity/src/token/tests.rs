//! Case I07: every way a token can be wrong, and which of the two refusals it gets.

use std::time::Duration;

use super::*;
use crate::local::{LocalAuthority, TOKEN_ISSUER};

fn authority() -> (tempfile::TempDir, LocalAuthority) {
    let dir = tempfile::tempdir().expect("folder");
    let authority = LocalAuthority::open(&dir.path().join("ca")).expect("authority");
    (dir, authority)
}

fn claims() -> Claims {
    let now = unix_seconds(SystemTime::now());
    Claims {
        iss: TOKEN_ISSUER.to_owned(),
        sub: "system:serviceaccount:emojivoto:web".to_owned(),
        aud: vec![AUDIENCE.to_owned()],
        exp: now + 600,
        nbf: Some(now),
        iat: Some(now),
        kubernetes: None,
    }
}

fn web() -> ServiceAccount {
    ServiceAccount {
        namespace: "emojivoto".to_owned(),
        name: "web".to_owned(),
        uid: None,
    }
}

#[test]
fn a_token_of_this_authority() {
    let (_dir, authority) = authority();
    let tokens = authority.tokens();
    let now = SystemTime::now();
    let token = authority.issue_token("emojivoto", "web", "web-7d9", Duration::from_secs(600));
    assert_eq!(tokens.check(token.as_bytes(), now), Ok(web()));
    assert_eq!(
        tokens.check(format!("{token}\n").as_bytes(), now),
        Ok(web()),
        "a file ends in a newline"
    );
    assert_eq!(
        tokens.check(authority.sign(&claims()).as_bytes(), now),
        Ok(web()),
        "without the claim kubernetes.io"
    );
    let several = Claims {
        aud: vec!["api".to_owned(), AUDIENCE.to_owned()],
        ..claims()
    };
    assert_eq!(
        tokens.check(authority.sign(&several).as_bytes(), now),
        Ok(web())
    );

    let text = authority.sign(&claims());
    let long_ago = now - Duration::from_secs(11);
    assert!(matches!(
        tokens.check(text.as_bytes(), long_ago),
        Err(TokenError::Refused(_))
    ));
    assert_eq!(
        tokens.check(text.as_bytes(), now - Duration::from_secs(9)),
        Ok(web()),
        "clocks differ a little"
    );
}

#[test]
fn refused_tokens() {
    let (_dir, authority) = authority();
    let (_other_dir, other) = self::authority();
    let (tokens, now) = (authority.tokens(), SystemTime::now());
    let sign = |change: fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        authority.sign(&claims)
    };
    let workload = |namespace: &str, account: &str| {
        let serviceaccount = Named {
            name: account.to_owned(),
        };
        let kubernetes = Some(Workload {
            namespace: namespace.to_owned(),
            serviceaccount,
            pod: None,
        });
        authority.sign(&Claims {
            kubernetes,
            ..claims()
        })
    };
    let hs256 = jsonwebtoken::encode(
        &jsonwebtoken::Header::new(Algorithm::HS256),
        &claims(),
        &jsonwebtoken::EncodingKey::from_secret(b"guess"),
    );
    let cases = [
        (
            "audience",
            sign(|c| c.aud = vec!["https://kubernetes.default.svc".to_owned()]),
            "expected \"identity.l5d.io\"",
        ),
        ("no audience", sign(|c| c.aud.clear()), "audience"),
        ("expired", sign(|c| c.exp -= 601), "expired 1 seconds ago"),
        (
            "not yet",
            sign(|c| c.nbf = c.nbf.map(|at| at + 60)),
            "claim nbf",
        ),
        (
            "issued later",
            sign(|c| c.iat = c.iat.map(|at| at + 60)),
            "claim iat",
        ),
        (
            "issuer",
            sign(|c| c.iss = "https://elsewhere".to_owned()),
            "expected \"urn:weft:local-authority\"",
        ),
        (
            "a user",
            sign(|c| c.sub = "admin".to_owned()),
            "not a service account",
        ),
        (
            "no name",
            sign(|c| c.sub = "system:serviceaccount:emojivoto:".to_owned()),
            "not a service account",
        ),
        (
            "too many parts",
            sign(|c| c.sub.push_str(":x")),
            "not a service account",
        ),
        (
            "another namespace",
            workload("other", "web"),
            "different service accounts",
        ),
        (
            "another account",
            workload("emojivoto", "api"),
            "different service accounts",
        ),
        ("another key", other.sign(&claims()), "signature"),
        ("a shared secret", hs256.expect("token"), "not ES256"),
    ];
    for (case, token, expected) in cases {
        let refused = tokens.check(token.as_bytes(), now).expect_err(case);
        assert!(
            matches!(&refused, TokenError::Refused(why) if why.contains(expected)),
            "{case}: {refused}"
        );
        assert!(
            !refused.to_string().contains(&token),
            "{case}: a token must not be in a message"
        );
    }
}

#[test]
fn malformed_tokens() {
    let (_dir, authority) = authority();
    let (tokens, now) = (authority.tokens(), SystemTime::now());
    let good = authority.sign(&claims());
    let (head, signature) = good.rsplit_once('.').expect("three parts");
    let no_claims = jsonwebtoken::encode(
        &jsonwebtoken::Header::new(Algorithm::ES256),
        &["x"],
        authority.token_key(),
    );
    let cases = [
        ("empty", Vec::new()),
        ("blank", b" \n".to_vec()),
        ("one part", b"token".to_vec()),
        ("two parts", head.as_bytes().to_vec()),
        ("four parts", format!("{good}.x").into_bytes()),
        ("not base64", format!("{head}.{signature}!").into_bytes()),
        ("not text", vec![0xff; 64]),
        ("not the claims", no_claims.expect("token").into_bytes()),
        ("large", vec![b'a'; MAX_TOKEN_BYTES + 1]),
    ];
    for (case, token) in cases {
        let refused = tokens.check(&token, now).expect_err(case);
        assert!(
            matches!(refused, TokenError::Malformed(_)),
            "{case}: {refused}"
        );
    }
}

#[test]
fn an_unsigned_token_is_never_accepted() {
    let (_dir, authority) = authority();
    let good = authority.sign(&claims());
    let body = good.split('.').nth(1).expect("claims");
    // {"alg":"none"}
    for unsigned in [
        format!("eyJhbGciOiJub25lIn0.{body}."),
        format!("eyJhbGciOiJub25lIn0.{body}"),
    ] {
        assert!(
            authority
                .tokens()
                .check(unsigned.as_bytes(), SystemTime::now())
                .is_err()
        );
    }
}

#[test]
fn the_public_key_file() {
    let (dir, authority) = authority();
    let path = dir.path().join("ca/token.pub");
    let token = authority.issue_token("emojivoto", "web", "p", Duration::from_secs(60));
    let tokens = LocalTokens::load(&path).expect("key");
    assert_eq!(tokens.check(token.as_bytes(), SystemTime::now()), Ok(web()));

    let missing = LocalTokens::load(&dir.path().join("none.pub"))
        .expect_err("missing")
        .to_string();
    assert!(missing.contains("none.pub"), "{missing}");
    for other in ["ca/ca-bundle.crt", "ca/token.key"] {
        let text = LocalTokens::load(&dir.path().join(other))
            .expect_err(other)
            .to_string();
        assert!(text.contains("use the token.pub"), "{text}");
    }
}
