//! Runs the real Helm on the charts, without a cluster, and takes its output apart. Makes the certificates that values need.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde::Deserialize;
use serde_json::{Value, json};

/// The namespace that everything is rendered for.
pub const NAMESPACE: &str = "mesh";

/// The folder of the charts.
pub fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts")
}

/// Helm: WEFT_HELM, that of the cluster (make cluster-up), or one on the PATH. Without one the tests of the charts have nothing to do.
pub fn helm() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("WEFT_HELM") {
        return Some(given.into());
    }
    let built = charts().join("../.cache/cluster/bin/helm");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::iter::once(built)
        .chain(std::env::split_paths(&path).map(|folder| folder.join("helm")))
        .find(|file| file.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no helm; run make cluster-up, or give one by WEFT_HELM");
    }
    found
}

/// A certificate and its key, PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Made once in a run.
pub struct Made {
    pub root: Pair,
    pub issuer: Pair,
    pub webhook: Pair,
}

pub static MADE: LazyLock<Made> = LazyLock::new(|| {
    let root_key = KeyPair::generate().expect("key");
    let root = authority("root").self_signed(&root_key).expect("root");
    let signer = Issuer::new(authority("root"), &root_key);
    let issuer_key = KeyPair::generate().expect("key");
    let issuer = authority("issuer")
        .signed_by(&issuer_key, &signer)
        .expect("issuer");
    let webhook_key = KeyPair::generate().expect("key");
    let webhook = CertificateParams::new([format!("linkerd-proxy-injector.{NAMESPACE}.svc")])
        .and_then(|params| params.self_signed(&webhook_key))
        .expect("webhook");
    Made {
        root: pair(&root, &root_key),
        issuer: pair(&issuer, &issuer_key),
        webhook: pair(&webhook, &webhook_key),
    }
});

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn pair(certificate: &rcgen::Certificate, key: &KeyPair) -> Pair {
    Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

/// Values with every certificate given.
pub fn supplied() -> Value {
    let webhook = json!({ "crtPEM": MADE.webhook.certificate, "keyPEM": MADE.webhook.key });
    json!({
        "identityTrustAnchorsPEM": MADE.root.certificate,
        "identity": { "issuer": { "tls": { "crtPEM": MADE.issuer.certificate, "keyPEM": MADE.issuer.key } } },
        "proxyInjector": webhook, "policyValidator": webhook, "profileValidator": webhook,
    })
}

/// `base` with `more` over it, as Helm merges files of values.
pub fn with(mut base: Value, more: Value) -> Value {
    merge(&mut base, more);
    base
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// The content of a YAML file below charts/.
pub fn yaml_file(name: &str) -> Value {
    let text = std::fs::read_to_string(charts().join(name)).expect(name);
    serde_norway::from_str(&text).expect(name)
}

/// Runs Helm on the chart of the control plane with `values`.
pub fn run(helm: &Path, command: &[&str], values: &Value, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("values");
    Command::new(helm)
        .args(command)
        .arg(charts().join("linkerd-control-plane"))
        .args([
            "--namespace",
            NAMESPACE,
            "--kube-version",
            "1.34.4",
            "--values",
        ])
        .arg(&file)
        .args(more)
        .env("HELM_CACHE_HOME", folder.path())
        .env("HELM_CONFIG_HOME", folder.path())
        .env("HELM_DATA_HOME", folder.path())
        .env_remove("KUBECONFIG")
        .output()
        .expect("helm starts")
}

/// What `helm template` writes.
pub fn template(helm: &Path, values: &Value) -> String {
    template_with(helm, values, &[])
}

/// The same with more arguments.
pub fn template_with(helm: &Path, values: &Value, more: &[&str]) -> String {
    let output = run(helm, &["template", "weft"], values, more);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Why `helm template` refuses `values`.
pub fn refusal(helm: &Path, values: &Value) -> String {
    let output = run(helm, &["template", "weft"], values, &[]);
    assert!(!output.status.success(), "accepted: {values}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects of a render.
pub struct Objects(pub Vec<Value>);

impl Objects {
    pub fn of(text: &str) -> Self {
        let documents = serde_norway::Deserializer::from_str(text);
        let objects = documents.map(|document| Value::deserialize(document).expect("YAML"));
        Self(objects.filter(|object| !object.is_null()).collect())
    }

    pub fn render(helm: &Path, values: &Value) -> Self {
        Self::of(&template(helm, values))
    }

    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of_kind(kind)
            .find(|object| object["metadata"]["name"] == name)
    }

    pub fn get(&self, kind: &str, name: &str) -> &Value {
        self.find(kind, name)
            .unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The values that the injector reads.
    pub fn config(&self) -> String {
        text(&self.get("ConfigMap", "linkerd-config")["data"]["values"]).to_owned()
    }
}

/// The pod of a Deployment.
pub fn pod(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]
}

/// All containers of a pod, in the order they start.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).chain(list(&pod["containers"]))
}

/// The container of that name.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    containers(pod)
        .find(|container| container["name"] == name)
        .unwrap_or_else(|| panic!("no container {name}"))
}

/// The items of a list; none if it is absent.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}
