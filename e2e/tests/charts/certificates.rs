//! Certificates: where each comes from, who is told who signed it, and that those made by Helm outlive upgrades. The API server is a
//! small one of ours, which knows one Secret.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::{Value, json};
use weft_identity::authority::{Issuer, PairFiles};
use weft_identity::roots::TrustRoots;

use super::render::{
    MADE, NAMESPACE, Objects, helm, list, supplied, template_with, text, with, yaml_file,
};
use super::{self_certificate, template};

const INJECTOR: (&str, &str, &str) = (
    "proxyInjector",
    "MutatingWebhookConfiguration",
    "linkerd-proxy-injector",
);
const WEBHOOKS: [(&str, &str, &str); 3] = [
    INJECTOR,
    (
        "policyValidator",
        "ValidatingWebhookConfiguration",
        "linkerd-policy-validator",
    ),
    (
        "profileValidator",
        "ValidatingWebhookConfiguration",
        "linkerd-sp-validator",
    ),
];

fn decoded(value: &Value) -> String {
    let bytes = STANDARD.decode(text(value)).expect("base64");
    String::from_utf8(bytes).expect("UTF-8")
}

fn ca_bundle(objects: &Objects, (_, kind, name): (&str, &str, &str)) -> Option<String> {
    let config = objects.get(kind, &format!("{name}-webhook-config"));
    let bundle = &config["webhooks"][0]["clientConfig"]["caBundle"];
    (!bundle.is_null()).then(|| decoded(bundle))
}

fn secret<'a>(objects: &'a Objects, (_, _, name): (&str, &str, &str)) -> Option<&'a Value> {
    objects.find("Secret", &format!("{name}-k8s-tls"))
}

/// Values without certificates of the webhooks.
fn generated() -> Value {
    json!({ "identityTrustAnchorsPEM": MADE.root.certificate, "identity": supplied()["identity"] })
}

/// As the API server does: is the certificate good for the Service's name, by the bundle?
fn check(bundle: &str, certificate: &str, name: &str) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(root.expect("PEM"))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .expect("roots");
    let leaf = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
    let name = ServerName::try_from(format!("{name}.{NAMESPACE}.svc")).expect("a name");
    verifier
        .verify_server_cert(&leaf, &[], &name, &[], UnixTime::now())
        .map(drop)
}

#[test]
fn given_certificates_are_used_as_they_are() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &supplied());
    for webhook in WEBHOOKS {
        let secret = secret(&objects, webhook).expect("a Secret");
        assert_eq!(secret["type"], "kubernetes.io/tls");
        assert_eq!(
            decoded(&secret["data"]["tls.crt"]).trim(),
            MADE.webhook.certificate.trim()
        );
        assert_eq!(
            decoded(&secret["data"]["tls.key"]).trim(),
            MADE.webhook.key.trim()
        );
        // Signed by itself unless caBundle says otherwise.
        assert_eq!(
            ca_bundle(&objects, webhook).as_deref(),
            Some(MADE.webhook.certificate.trim())
        );
    }
    let signed = json!({ "policyValidator": { "caBundle": MADE.root.certificate } });
    let objects = Objects::render(&helm, &with(supplied(), signed));
    assert_eq!(
        ca_bundle(&objects, WEBHOOKS[1]).as_deref(),
        Some(MADE.root.certificate.trim())
    );
}

#[test]
fn the_issuer_has_the_keys_of_its_scheme() {
    let Some(helm) = helm() else { return };
    let keys = |secret: &Value| -> Vec<String> {
        secret["data"]
            .as_object()
            .expect("data")
            .keys()
            .cloned()
            .collect()
    };
    let objects = Objects::render(&helm, &supplied());
    let secret = objects.get("Secret", "linkerd-identity-issuer");
    assert_eq!(keys(secret), ["crt.pem", "key.pem"]);
    assert_eq!(
        decoded(&secret["data"]["crt.pem"]).trim(),
        MADE.issuer.certificate.trim()
    );
    let scheme = json!({ "identity": { "issuer": { "scheme": "kubernetes.io/tls" } } });
    let objects = Objects::render(&helm, &with(supplied(), scheme));
    let secret = objects.get("Secret", "linkerd-identity-issuer");
    assert_eq!(secret["type"], "kubernetes.io/tls");
    assert_eq!(keys(secret), ["ca.crt", "tls.crt", "tls.key"]);
    let roots = objects.get("ConfigMap", "linkerd-identity-trust-roots");
    assert_eq!(
        text(&roots["data"]["ca-bundle.crt"]),
        MADE.root.certificate.trim()
    );
}

#[test]
fn with_cert_manager_the_chart_has_no_certificate() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &yaml_file("examples/values-cert-manager.yaml"));
    assert_eq!(objects.of_kind("Secret").count(), 0);
    assert!(
        objects
            .find("ConfigMap", "linkerd-identity-trust-roots")
            .is_none()
    );
    let example =
        std::fs::read_to_string(super::render::charts().join("examples/cert-manager.yaml"));
    let example = Objects::of(&example.expect("the example"));
    for webhook in WEBHOOKS {
        assert_eq!(ca_bundle(&objects, webhook), None);
        let (_, kind, name) = webhook;
        let config = objects.get(kind, &format!("{name}-webhook-config"));
        let from = text(&config["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]);
        // The example makes what the values name, for the name that the API server asks for.
        assert_eq!(from, format!("linkerd/{name}"));
        let certificate = &example.get("Certificate", name)["spec"];
        assert_eq!(certificate["secretName"], format!("{name}-k8s-tls"));
        assert_eq!(
            certificate["dnsNames"],
            json!([format!("{name}.linkerd.svc")])
        );
    }
    let issuer = &example.get("Certificate", "linkerd-identity-issuer")["spec"];
    assert_eq!(
        (&issuer["secretName"], &issuer["isCA"]),
        (&json!("linkerd-identity-issuer"), &json!(true))
    );
    let bundle = &example.get("Bundle", "linkerd-identity-trust-roots")["spec"];
    assert_eq!(bundle["target"]["configMap"]["key"], "ca-bundle.crt");
}

#[test]
fn c03_the_injectors_own_certificate_is_no_business_of_the_chart() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &self_certificate());
    assert!(secret(&objects, INJECTOR).is_none());
    assert_eq!(ca_bundle(&objects, INJECTOR), None);
    let pod = super::render::pod(objects.get("Deployment", "linkerd-proxy-injector"));
    let injector = super::render::container(pod, "proxy-injector");
    assert!(list(&injector["args"]).any(|arg| arg == "--self-certificate"));
    assert!(!list(&injector["volumeMounts"]).any(|mount| mount["name"] == "tls"));
}

#[test]
fn what_helm_makes_is_good_for_the_services() {
    let Some(helm) = helm() else { return };
    let objects = Objects::of(&template(&helm, &generated()));
    for webhook in WEBHOOKS {
        let secret = secret(&objects, webhook).expect("a Secret");
        let bundle = ca_bundle(&objects, webhook).expect("a bundle");
        let certificate = decoded(&secret["data"]["tls.crt"]);
        check(&bundle, &certificate, webhook.2).expect("verified");
        assert!(check(&bundle, &certificate, "other").is_err());
        let key = decoded(&secret["data"]["tls.key"]);
        PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key that rustls reads");
        assert_eq!(decoded(&secret["data"]["ca.crt"]), bundle);
        let renew: u64 = text(&secret["metadata"]["annotations"]["weft/renew-after"])
            .parse()
            .expect("seconds");
        let days = (renew - UnixTime::now().as_secs()) / 86400;
        assert!((240..=243).contains(&days), "{days}");
    }
}

/// An API server that knows `known`; answers until the test ends.
fn api_server(known: Vec<Value>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let known = known.clone();
            std::thread::spawn(move || while answer(&stream, &known).is_some() {});
        }
    });
    url
}

fn answer(stream: &TcpStream, known: &[Value]) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next()?.ok()?;
    while !lines.next()?.ok()?.is_empty() {}
    let path = request.split([' ', '?']).nth(1)?;
    let prefix = format!("/api/v1/namespaces/{NAMESPACE}/secrets/");
    let found = match path.strip_prefix(&prefix) {
        Some(name) => known
            .iter()
            .find(|object| object["metadata"]["name"] == name)
            .cloned(),
        None => Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
            "resources": [{ "name": "secrets", "singularName": "secret", "namespaced": true, "kind": "Secret", "verbs": ["get"] }],
        })),
    };
    let (status, body) = match found {
        Some(body) => ("200 OK", body),
        None => (
            "404 Not Found",
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 }),
        ),
    };
    let body = body.to_string();
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()
}

fn upgrade(helm: &Path, values: &Value, known: Vec<Value>) -> Objects {
    let url = api_server(known);
    Objects::of(&template_with(
        helm,
        values,
        &["--dry-run=server", "--kube-apiserver", &url],
    ))
}

#[test]
fn what_helm_has_made_outlives_upgrades_until_it_is_to_be_renewed() {
    let Some(helm) = helm() else { return };
    let installed = Objects::of(&template(&helm, &generated()));
    let secrets: Vec<Value> = WEBHOOKS
        .iter()
        .map(|w| secret(&installed, *w).expect("a Secret").clone())
        .collect();

    let upgraded = upgrade(&helm, &generated(), secrets.clone());
    for webhook in WEBHOOKS {
        assert_eq!(secret(&upgraded, webhook), secret(&installed, webhook));
        assert_eq!(
            ca_bundle(&upgraded, webhook),
            ca_bundle(&installed, webhook)
        );
    }

    // The time has come for one of them: a new one, and the old one is good until the pods have the new one.
    let mut old = secrets;
    old[0]["metadata"]["annotations"]["weft/renew-after"] = json!("1");
    let renewed = upgrade(&helm, &generated(), old.clone());
    let new = secret(&renewed, INJECTOR).expect("a Secret");
    assert_ne!(new["data"], old[0]["data"]);
    let bundle = ca_bundle(&renewed, INJECTOR).expect("a bundle");
    for certificate in [&new["data"]["tls.crt"], &old[0]["data"]["tls.crt"]] {
        check(&bundle, &decoded(certificate), INJECTOR.2).expect("verified");
    }
    assert_eq!(
        secret(&renewed, WEBHOOKS[1]),
        secret(&installed, WEBHOOKS[1])
    );

    // After that only the new one is.
    let later = upgrade(&helm, &generated(), vec![new.clone()]);
    assert_eq!(secret(&later, INJECTOR), Some(new));
    assert_eq!(
        ca_bundle(&later, INJECTOR),
        Some(decoded(&new["data"]["ca.crt"]))
    );

    // One that was given before, or made by another chart, has no ca.crt and no date.
    let foreign = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "linkerd-proxy-injector-k8s-tls" },
        "data": { "tls.crt": "eA==", "tls.key": "eA==" },
    });
    let made = upgrade(&helm, &generated(), vec![foreign]);
    let made_secret = secret(&made, INJECTOR).expect("a Secret");
    check(
        &ca_bundle(&made, INJECTOR).expect("a bundle"),
        &decoded(&made_secret["data"]["tls.crt"]),
        INJECTOR.2,
    )
    .expect("verified");
}

/// Bundles and pairs as editors and shells leave them, from the values to who reads them (case I02).
#[test]
fn i02_noise_in_certificates_reaches_nobody() {
    let Some(helm) = helm() else { return };
    let windows = |text: &str| text.replace('\n', "\r\n");
    let (one, two) = (&MADE.root.certificate, &MADE.webhook.certificate);
    let bundle = format!(
        "# one\n\n{one}\n  subject=CN = two\r\n{}\r\n\n\n",
        windows(two)
    );
    let marked = format!("\u{feff}{one}{two}");
    for bundle in [bundle, marked, one.trim_end().to_owned()] {
        let count = bundle.matches("BEGIN").count();
        let values = json!({
            "identityTrustAnchorsPEM": bundle,
            "identity": { "issuer": { "tls": {
                "crtPEM": format!("\n# issuer\n{}\n\n", windows(&MADE.issuer.certificate)),
                "keyPEM": format!("{}\n\n", windows(&MADE.issuer.key)),
            } } },
        });
        let objects = Objects::of(&template(&helm, &with(supplied(), values)));
        let shared = objects.get("ConfigMap", "linkerd-identity-trust-roots");
        let shared = text(&shared["data"]["ca-bundle.crt"]);
        assert_eq!(shared.matches("BEGIN").count(), count, "{shared:?}");
        let roots = TrustRoots::from_pem(shared.as_bytes()).expect("the identity service reads it");
        let secret = objects.get("Secret", "linkerd-identity-issuer");
        let pair = PairFiles {
            certificate_path: "crt.pem".into(),
            certificate: decoded(&secret["data"]["crt.pem"]).into_bytes(),
            key_path: "key.pem".into(),
            key: decoded(&secret["data"]["key.pem"]).into_bytes(),
        };
        Issuer::from_pair(&pair, &roots, SystemTime::now()).expect("the issuer is taken");
        // What the kubelet gives to the proxies of the control plane, and the injector to the others.
        weft_tls::TrustAnchors::from_pem(shared).expect("proxies read it");
    }
}

/// Nothing in the chart looks at a date of the mesh's certificates: new ones are taken though the old ones have expired, and the
/// control plane starts anew with them (case I10).
#[test]
fn i10_an_upgrade_after_everything_has_expired() {
    let Some(helm) = helm() else { return };
    let past = |name: &str| {
        let mut params =
            rcgen::CertificateParams::new([format!("{name}.{NAMESPACE}.svc")]).expect("params");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("key");
        (
            params.self_signed(&key).expect("certificate").pem(),
            key.serialize_pem(),
        )
    };
    let (root, key) = past("root");
    let expired = json!({
        "identityTrustAnchorsPEM": root,
        "identity": { "issuer": { "tls": { "crtPEM": root, "keyPEM": key } } },
    });
    let installed = Objects::of(&template(&helm, &expired));
    let secrets: Vec<Value> = WEBHOOKS
        .iter()
        .map(|webhook| {
            let mut old = secret(&installed, *webhook).expect("a Secret").clone();
            let (certificate, key) = past(webhook.2);
            for (name, text) in [
                ("tls.crt", &certificate),
                ("ca.crt", &certificate),
                ("tls.key", &key),
            ] {
                old["data"][name] = json!(STANDARD.encode(text));
            }
            old["metadata"]["annotations"]["weft/renew-after"] = json!("1609459200");
            old
        })
        .collect();

    let upgraded = upgrade(&helm, &generated(), secrets);
    let shared = upgraded.get("ConfigMap", "linkerd-identity-trust-roots");
    assert_eq!(
        text(&shared["data"]["ca-bundle.crt"]).trim(),
        MADE.root.certificate.trim()
    );
    let issuer = upgraded.get("Secret", "linkerd-identity-issuer");
    assert_eq!(
        decoded(&issuer["data"]["crt.pem"]).trim(),
        MADE.issuer.certificate.trim()
    );
    for webhook in WEBHOOKS {
        let secret = secret(&upgraded, webhook).expect("a Secret");
        let bundle = ca_bundle(&upgraded, webhook).expect("a bundle");
        check(&bundle, &decoded(&secret["data"]["tls.crt"]), webhook.2).expect("a new one");
    }
    let trusted = |objects: &Objects, name| {
        let pod = &objects.get("Deployment", name)["spec"]["template"]["metadata"];
        pod["annotations"]["linkerd.io/trust-root-sha256"].clone()
    };
    for name in [
        "linkerd-identity",
        "linkerd-destination",
        "linkerd-proxy-injector",
    ] {
        assert_ne!(
            trusted(&upgraded, name),
            trusted(&installed, name),
            "{name} starts anew"
        );
    }
}
