//! TokenReviews over real TLS: what is asked, what becomes of each answer, time limits and rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::testing::api_server::{ApiServer, Reply, cluster, failure, ok, review};

const FAST: Rate = Rate {
    per_second: 10_000.0,
    burst: 10_000,
};
const REVIEWS: &str = "/tokenreviews";

async fn reviews(server: &ApiServer) -> TokenReviews {
    TokenReviews::connect(Some(&server.kubeconfig()), FAST)
        .await
        .expect("connected")
}

/// A cluster that answers TokenReviews in its own way.
async fn with_reviews(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> ApiServer {
    let usual = cluster(Duration::ZERO);
    ApiServer::start(move |path, sent| match path.ends_with(REVIEWS) {
        true => answer(sent),
        false => usual(path, sent),
    })
    .await
}

async fn refusal(status: Value) -> String {
    let server = with_reviews(move |sent| {
        let mut answer = sent.clone();
        answer["status"] = status.clone();
        ok(answer)
    })
    .await;
    match reviews(&server).await.check(b"token").await {
        Err(TokenError::Refused(why)) => why,
        other => unreachable!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bound_token_is_reviewed_once_with_our_audience() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let account = reviews(&server)
        .await
        .check(b"bound/emojivoto/web\n")
        .await
        .expect("known");
    assert_eq!(
        (account.namespace.as_str(), account.name.as_str()),
        ("emojivoto", "web")
    );
    assert_eq!(account.uid.as_deref(), Some("uid-of-web"));
    let sent = server.sent(REVIEWS);
    let [(path, object)] = sent.as_slice() else {
        unreachable!("one review: {sent:?}")
    };
    assert_eq!(path, "/apis/authentication.k8s.io/v1/tokenreviews");
    assert_eq!(
        object["spec"],
        json!({"token": "bound/emojivoto/web", "audiences": ["identity.l5d.io"]})
    );
}

/// Contract 2.5: one more try without an audience, for pods without token projection.
#[tokio::test]
async fn i07_a_legacy_token_is_reviewed_again_without_audience() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let account = reviews(&server).await.check(b"legacy/emojivoto/web").await;
    assert_eq!(account.expect("known").name, "web");
    let asked: Vec<Value> = server
        .sent(REVIEWS)
        .into_iter()
        .map(|(_, sent)| sent["spec"]["audiences"].clone())
        .collect();
    assert_eq!(asked, [json!(["identity.l5d.io"]), Value::Null]);
}

#[tokio::test]
async fn i07_tokens_that_authenticate_nobody() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let check = reviews(&server).await;
    let forged = check
        .check(b"forged")
        .await
        .expect_err("unknown")
        .to_string();
    assert!(forged.contains("go-jose"), "{forged}");
    assert_eq!(server.sent(REVIEWS).len(), 1, "no second try");

    let wrong = with_reviews(|sent| {
        let mut answer = review(sent);
        answer["status"] =
            json!({"error": "token audiences [\"vault\"] is invalid for the target audiences"});
        ok(answer)
    })
    .await;
    let refused = reviews(&wrong).await.check(b"for-vault").await;
    assert!(
        matches!(&refused, Err(TokenError::Refused(why)) if why.contains("vault")),
        "{refused:?}"
    );
    assert_eq!(wrong.sent(REVIEWS).len(), 2);

    let user = |name: &str| json!({"authenticated": true, "user": {"username": name}});
    for (status, expected) in [
        (json!({}), "does not know it"),
        (
            json!({"authenticated": false, "error": ""}),
            "does not know it",
        ),
        (
            json!({"authenticated": false, "user": {"username": "system:serviceaccount:a:b"}}),
            "does not know it",
        ),
        (
            json!({"authenticated": true}),
            "\"\" is not a service account",
        ),
        (user("system:node:a"), "system:node:a"),
        (user("system:serviceaccount:a"), "is not a service account"),
        (
            user("system:serviceaccount:a:b:c"),
            "is not a service account",
        ),
        (
            json!({"authenticated": true, "audiences": ["vault"], "user": {"username": "system:serviceaccount:a:b"}}),
            "its audience is [\"vault\"]",
        ),
    ] {
        let why = refusal(status.clone()).await;
        assert!(why.contains(expected), "{status}: {why}");
    }
}

#[tokio::test]
async fn what_is_no_token_is_not_sent() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let check = reviews(&server).await;
    let long = vec![b'x'; MAX_TOKEN_BYTES + 1];
    for token in [
        &b""[..],
        b" \n",
        b"a b",
        b"a\0b",
        b"\xff",
        "é".as_bytes(),
        &long,
    ] {
        let refused = check.check(token).await;
        assert!(
            matches!(refused, Err(TokenError::Malformed(_))),
            "{refused:?}"
        );
    }
    assert!(server.sent(REVIEWS).is_empty());
}

#[tokio::test]
async fn an_api_that_fails_is_not_the_callers_fault() {
    let server = with_reviews(|_| failure(500, "etcdserver: leader changed")).await;
    let failed = reviews(&server)
        .await
        .check(b"t")
        .await
        .expect_err("failed");
    assert!(
        matches!(&failed, TokenError::Unchecked(why) if why.contains("leader changed") && why.contains("500")),
        "{failed}"
    );
    let server = with_reviews(|sent| ok(sent.clone())).await;
    let failed = reviews(&server)
        .await
        .check(b"secret-token")
        .await
        .expect_err("no status");
    assert!(
        matches!(&failed, TokenError::Unchecked(why) if !why.contains("secret-token")),
        "{failed}"
    );
    let server = with_reviews(|_| Reply::Json(201, json!("nonsense"), Duration::ZERO)).await;
    let failed = reviews(&server)
        .await
        .check(b"secret-token")
        .await
        .expect_err("no object");
    assert!(
        matches!(&failed, TokenError::Unchecked(why) if !why.contains("secret-token")),
        "{failed}"
    );
}

/// The API server has closed the idle connection, or was replaced, as the request came.
#[tokio::test]
async fn a_connection_that_breaks_is_tried_once_more() {
    let calls = Arc::new(AtomicUsize::new(0));
    let server = with_reviews(
        move |sent| match calls.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Reply::Cut,
            1 => ok(review(sent)),
            _ => Reply::Cut,
        },
    )
    .await;
    let check = reviews(&server).await;
    check.check(b"bound/a/b").await.expect("the second try");
    assert_eq!(server.sent(REVIEWS).len(), 2);
    let failed = check.check(b"bound/a/b").await;
    assert!(
        matches!(failed, Err(TokenError::Unchecked(_))),
        "{failed:?}"
    );
    assert_eq!(server.sent(REVIEWS).len(), 4, "and no third one");
}

#[tokio::test]
async fn overload_is_waited_out_within_the_limit() {
    let calls = Arc::new(AtomicUsize::new(0));
    let server = with_reviews(move |sent| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => failure(429, "too many requests"),
        _ => ok(review(sent)),
    })
    .await;
    reviews(&server)
        .await
        .check(b"bound/a/b")
        .await
        .expect("the second try");

    let silent = with_reviews(|_| Reply::Json(201, Value::Null, Duration::from_secs(3600))).await;
    let started = Instant::now();
    let failed = reviews(&silent)
        .await
        .check(b"t")
        .await
        .expect_err("no answer");
    assert!(failed.to_string().contains("within 5s"), "{failed}");
    assert!(
        started.elapsed() < REVIEW_LIMIT * 3,
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn beyond_the_rate_callers_hear_so_and_the_api_nothing() {
    let server = ApiServer::start(cluster(Duration::ZERO)).await;
    let rate = Rate {
        per_second: 0.01,
        burst: 3,
    };
    let check = TokenReviews::connect(Some(&server.kubeconfig()), rate)
        .await
        .expect("connected");
    for _ in 0..3 {
        check.check(b"bound/a/b").await.expect("in the burst");
    }
    let busy = check.check(b"bound/a/b").await.expect_err("too many");
    assert!(
        matches!(&busy, TokenError::Busy(why) if why.contains("clientQPS")),
        "{busy}"
    );
    assert_eq!(server.sent(REVIEWS).len(), 3);
}

async fn start_error(server: &ApiServer) -> String {
    TokenReviews::connect(Some(&server.kubeconfig()), FAST)
        .await
        .expect_err("refused")
        .to_string()
}

#[tokio::test]
async fn without_permission_it_does_not_start() {
    let forbidden = ApiServer::start(|_, sent| {
        let mut answer = sent.clone();
        answer["status"] = json!({"allowed": false, "reason": "no RBAC policy matched"});
        ok(answer)
    })
    .await;
    let error = start_error(&forbidden).await;
    assert!(
        error.contains("no RBAC policy matched") && error.contains("ClusterRole"),
        "{error}"
    );
    let broken = ApiServer::start(|_, _| failure(500, "no etcd")).await;
    let error = start_error(&broken).await;
    assert!(
        error.contains("no etcd") && error.contains("Kubernetes API"),
        "{error}"
    );

    let stranger = ApiServer::start(cluster(Duration::ZERO)).await;
    let (own, other) = (broken.kubeconfig(), stranger.kubeconfig());
    std::fs::copy(other.with_file_name("ca.crt"), own.with_file_name("ca.crt")).expect("copied");
    let error = start_error(&broken).await;
    assert!(error.contains("certificate"), "another CA: {error}");
}

#[tokio::test]
async fn kubeconfigs_and_rates_that_cannot_work() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("config");
    for text in [None, Some("{"), Some("clusters: []")] {
        if let Some(text) = text {
            std::fs::write(&path, text).expect("written");
        }
        let error = TokenReviews::connect(Some(&path), FAST)
            .await
            .expect_err("no config");
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
    let error = TokenReviews::connect(None, FAST).await.expect_err("no pod");
    assert!(error.to_string().contains("kubeconfig"), "{error}");
    let none = Rate {
        per_second: 0.0,
        burst: 1,
    };
    let error = TokenReviews::connect(None, none)
        .await
        .expect_err("no rate");
    assert!(
        error.to_string().contains("--kube-apiclient-qps"),
        "{error}"
    );
}
