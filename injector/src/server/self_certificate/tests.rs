//! Tests of the certificate the injector keeps: who writes what, and in which order, against an API server over HTTP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;
use crate::server::testing::FakeApi;

const SECRET_PATH: &str = "/api/v1/namespaces/linkerd/secrets/linkerd-proxy-injector-k8s-tls";
const CONFIGURATION_PATH: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkerd-proxy-injector-webhook-config";
const HOST: &str = "linkerd-proxy-injector.linkerd.svc";

/// As a chart writes it, behind a webhook of somebody else.
pub(in crate::server) fn configuration() -> Value {
    let webhook = |name: &str| {
        json!({
            "name": name, "failurePolicy": "Ignore", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "name": SERVICE, "namespace": "linkerd" } },
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [webhook("other.example.org"), webhook(WEBHOOK)],
    })
}

/// The `caBundle` of our webhook.
pub(in crate::server) fn announced(configuration: &Value) -> Option<Vec<u8>> {
    let bundle = configuration["webhooks"][1]["clientConfig"]["caBundle"].as_str()?;
    Some(BASE64.decode(bundle).unwrap())
}

async fn bench() -> (FakeApi, Keeper) {
    let api = FakeApi::start().await;
    api.put(CONFIGURATION_PATH, configuration());
    let keeper = Keeper::new(api.client.clone(), "linkerd");
    (api, keeper)
}

async fn look(keeper: &Keeper, now: SystemTime) -> Pair {
    match keeper.look(now).await.unwrap() {
        Looked::Announced(pair) => pair,
        Looked::Again => panic!("nobody else is there"),
    }
}

#[tokio::test]
async fn made_once_and_announced_in_one_field() {
    let (api, keeper) = bench().await;
    let now = SystemTime::now();
    let pair = look(&keeper, now).await;
    assert!(pair.is_good(HOST, now));
    let mut written = api.get(CONFIGURATION_PATH).unwrap();
    assert_eq!(announced(&written), Some(pair.authorities.clone()));
    // Nothing but that field.
    let client = written["webhooks"][1]["clientConfig"]
        .as_object_mut()
        .unwrap();
    client.remove("caBundle");
    written["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(written, configuration());
    let secret = api.get(SECRET_PATH).unwrap();
    assert_eq!(secret["type"], "kubernetes.io/tls");
    let requests = api.store.lock().requests.len();
    let again = look(&keeper, now).await;
    assert!(again.certificate == pair.certificate);
    assert_eq!(
        api.store.lock().requests.len(),
        requests + 2,
        "two reads, no write"
    );
}

#[tokio::test]
async fn a_bundle_that_somebody_overwrote_is_announced_again() {
    let (api, keeper) = bench().await;
    let now = SystemTime::now();
    let pair = look(&keeper, now).await;
    let mut other = api.get(CONFIGURATION_PATH).unwrap();
    other["webhooks"][1]["clientConfig"]["caBundle"] = json!("eA==");
    api.put(CONFIGURATION_PATH, other);
    let again = look(&keeper, now).await;
    assert!(again.certificate == pair.certificate);
    assert_eq!(
        announced(&api.get(CONFIGURATION_PATH).unwrap()),
        Some(pair.authorities)
    );
}

#[tokio::test]
async fn renewed_in_time_beside_the_authority_before() {
    let (api, keeper) = bench().await;
    let now = SystemTime::now();
    let old = look(&keeper, now).await;
    let later = now + Duration::from_secs(250 * 24 * 3600);
    let new = look(&keeper, later).await;
    assert!(new.certificate != old.certificate && new.is_good(HOST, later));
    // A replica that has not looked yet shows the old certificate, which is still announced.
    let bundle =
        String::from_utf8(announced(&api.get(CONFIGURATION_PATH).unwrap()).unwrap()).unwrap();
    let old = String::from_utf8(old.authorities)
        .unwrap()
        .replace("\r\n", "\n");
    assert!(
        bundle.replace("\r\n", "\n").contains(old.trim()),
        "{bundle}\n{old}"
    );
}

#[tokio::test]
async fn of_two_replicas_that_renew_one_wins() {
    let (api, one) = bench().await;
    let other = Keeper::new(api.client.clone(), "linkerd");
    let now = SystemTime::now();
    let (first, second) = tokio::join!(one.look(now), other.look(now));
    for looked in [first, second] {
        assert!(looked.is_ok());
    }
    // Whatever happened, both agree after one more look.
    let first = look(&one, now).await;
    let second = look(&other, now).await;
    assert!(first.certificate == second.certificate);
    assert_eq!(
        announced(&api.get(CONFIGURATION_PATH).unwrap()),
        Some(second.authorities)
    );
}

#[tokio::test]
async fn a_configuration_that_changed_meanwhile_is_not_overwritten() {
    let (api, keeper) = bench().await;
    let read: MutatingWebhookConfiguration =
        serde_json::from_value(api.get(CONFIGURATION_PATH).unwrap()).unwrap();
    let patch = announcement(&read, b"bundle").unwrap().unwrap();
    api.put(CONFIGURATION_PATH, configuration());
    let refused = keeper.announce(&patch).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422));
    assert_eq!(announced(&api.get(CONFIGURATION_PATH).unwrap()), None);
}

#[tokio::test]
async fn the_secret_of_somebody_else_is_left_alone() {
    let (api, keeper) = bench().await;
    let theirs =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": SECRET }, "data": {} });
    api.put(SECRET_PATH, theirs);
    let before = api.get(SECRET_PATH);
    let problem = keeper.look(SystemTime::now()).await.err().unwrap();
    assert!(problem.contains("not made by weft injector"), "{problem}");
    assert_eq!(api.get(SECRET_PATH), before);
}

#[tokio::test]
async fn without_a_configuration_it_says_so() {
    let api = FakeApi::start().await;
    let keeper = Keeper::new(api.client.clone(), "linkerd");
    let problem = keeper.look(SystemTime::now()).await.err().unwrap();
    assert!(problem.contains("install the chart"), "{problem}");
    api.put(
        CONFIGURATION_PATH,
        json!({ "metadata": { "name": CONFIGURATION }, "webhooks": [] }),
    );
    let problem = keeper.look(SystemTime::now()).await.err().unwrap();
    assert!(problem.contains("has no webhook"), "{problem}");
}

/// Of several replicas only one announces; the others find it done, and no API server need have heard of it.
#[tokio::test(start_paused = true)]
async fn a_working_certificate_is_shown_until_the_next_is_known() {
    let now = SystemTime::now();
    let first = Pair::new(HOST, None, now).unwrap();
    let second = Pair::new(HOST, Some(&first), now).unwrap();
    let stranger = Pair::new(HOST, None, now).unwrap();
    let certificate = Certificate::new();
    let mut shown = Shown {
        certificate: Arc::clone(&certificate),
        pair: None,
    };
    let waited = async |shown: &mut Shown, pair: &Pair| {
        let started = tokio::time::Instant::now();
        shown.replace(pair.clone()).await;
        let now = shown.pair.as_ref().unwrap();
        assert!(now.certificate == pair.certificate);
        started.elapsed()
    };
    // Nothing worked before.
    assert_eq!(waited(&mut shown, &first).await, Duration::ZERO);
    assert!(certificate.ready().is_ok());
    assert_eq!(waited(&mut shown, &first).await, Duration::ZERO);
    assert!(waited(&mut shown, &second).await >= SETTLE);
    // Who trusts this one no longer trusts the one before.
    assert_eq!(waited(&mut shown, &stranger).await, Duration::ZERO);
}

/// Neither for an API server that does not answer, nor for a certificate that is about to be shown.
#[tokio::test]
async fn a_shutdown_waits_for_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", silent.local_addr().unwrap());
    let client = Client::try_from(kube::Config::new(uri.parse().unwrap())).unwrap();
    let keeper = Keeper::new(client, "linkerd");
    let shutdown = CancellationToken::new();
    let end = async {
        let asked = silent.accept().await.unwrap();
        shutdown.cancel();
        asked
    };
    let ended = async { tokio::join!(keeper.run(Certificate::new(), shutdown.clone()), end) };
    let ended = timeout(REQUEST_TIMEOUT / 2, ended).await;
    assert!(ended.is_ok(), "it waits for the answer");
}
