//! Owns the certificate that the injector makes for itself: kept in a Secret that all replicas share, announced as the `caBundle` of
//! the webhook configuration, renewed in time. No replica leads: the Secret's version decides who renews (optimistic locking). The
//! chart declares neither the Secret nor the `caBundle`, so that a GitOps tool sees no difference (cases C01, C03).
//!
//! The order keeps the webhook answering: a certificate is stored first, then its authority is announced beside the one before it,
//! then it is shown. A replica that has not heard of it yet shows the one before, which is still announced.

mod pair;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use weft_runtime::admission::Certificate;

use pair::Pair;

/// Names by contract 9.1.
const SECRET: &str = "linkerd-proxy-injector-k8s-tls";
const SERVICE: &str = "linkerd-proxy-injector";
const CONFIGURATION: &str = "linkerd-proxy-injector-webhook-config";
const WEBHOOK: &str = "linkerd-proxy-injector.linkerd.io";
/// Marks the Secret as made here. One without it belongs to somebody else.
const CREATED_BY: &str = "linkerd.io/created-by";
const CREATOR: &str = "weft injector";
/// How often Secret and webhook configuration are looked at: whoever overwrites the `caBundle` is corrected this soon.
const PERIOD: Duration = Duration::from_secs(30);
/// After a conflict or an error.
const RETRY: Duration = Duration::from_secs(2);
/// From the announcement of a new authority, which may be another replica's, until its certificate is shown, when there is one that
/// still works: API servers hear of it through a watch.
const SETTLE: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps the certificate.
pub(super) struct Keeper {
    client: Client,
    namespace: String,
    host: String,
}

/// What one look led to.
enum Looked {
    /// The pair in the Secret is announced.
    Announced(Pair),
    /// Somebody else was faster.
    Again,
}

impl Keeper {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            host: format!("{SERVICE}.{namespace}.svc"),
        }
    }

    /// Until the shutdown, which waits for nothing here: a write that is given up is made again by the next who looks.
    pub async fn run(&self, certificate: Arc<Certificate>, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.keep(certificate)).await;
    }

    async fn keep(&self, certificate: Arc<Certificate>) {
        let mut shown = Shown {
            certificate,
            pair: None,
        };
        let mut told = String::new();
        loop {
            let pause = match self.look(SystemTime::now()).await {
                Ok(Looked::Announced(pair)) => {
                    told.clear();
                    shown.replace(pair).await;
                    PERIOD
                }
                Ok(Looked::Again) => RETRY,
                Err(problem) => {
                    if told != problem {
                        tracing::error!(problem, "the webhook certificate cannot be kept");
                        told = problem;
                    }
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the configuration before the Secret: what is announced is then never older than what was announced at that time, or
    /// the announcement fails.
    async fn look(&self, now: SystemTime) -> Result<Looked, String> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration = limited(configurations.get_opt(CONFIGURATION)).await;
        let configuration = configuration.map_err(|e| {
            format!("cannot read MutatingWebhookConfiguration {CONFIGURATION}: {e}")
        })?;
        let Some(pair) = self.stored(now).await? else {
            return Ok(Looked::Again);
        };
        let Some(configuration) = configuration else {
            return Err(format!(
                "there is no MutatingWebhookConfiguration {CONFIGURATION} to announce the certificate in; install the chart"
            ));
        };
        let Some(patch) = announcement(&configuration, &pair.authorities)? else {
            return Ok(Looked::Announced(pair));
        };
        match self.announce(&patch).await {
            Ok(()) => {
                tracing::info!(configuration = CONFIGURATION, "caBundle announced");
                Ok(Looked::Announced(pair))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {
                tracing::debug!(%status, "the webhook configuration has changed meanwhile");
                Ok(Looked::Again)
            }
            Err(error) => Err(format!("cannot announce the certificate: {error}")),
        }
    }

    /// The pair of the Secret, renewed if it must be; none if somebody else changed the Secret meanwhile.
    async fn stored(&self, now: SystemTime) -> Result<Option<Pair>, String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let failed = |what: &str, e: &dyn std::fmt::Display| {
            format!("cannot {what} Secret {}/{SECRET}: {e}", self.namespace)
        };
        let found = limited(secrets.get_opt(SECRET)).await;
        let found = found.map_err(|e| failed("read", &e))?;
        if found.as_ref().is_some_and(|secret| !is_ours(secret)) {
            return Err(format!(
                "Secret {}/{SECRET} was not made by {CREATOR} (annotation {CREATED_BY}); remove it, or start without --self-certificate",
                self.namespace
            ));
        }
        let old = found.as_ref().and_then(pair_of);
        if let Some(pair) = old.as_ref().filter(|pair| pair.is_good(&self.host, now)) {
            return Ok(Some(pair.clone()));
        }
        let pair = Pair::new(&self.host, old.as_ref(), now)?;
        let parameters = PostParams::default();
        let written = match found {
            None => {
                let secret = self.secret(ObjectMeta::default(), &pair);
                limited(secrets.create(&parameters, &secret)).await
            }
            Some(old) => {
                // With its resourceVersion: one of several replicas succeeds.
                let secret = self.secret(old.metadata, &pair);
                limited(secrets.replace(SECRET, &parameters, &secret)).await
            }
        };
        match written {
            Ok(_) => {
                tracing::info!(secret = SECRET, "a new webhook certificate is stored");
                Ok(Some(pair))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(failed("write", &error)),
        }
    }

    fn secret(&self, old: ObjectMeta, pair: &Pair) -> Secret {
        let text = |pairs: [(&str, &str); 2]| {
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let labels = [
            ("linkerd.io/control-plane-component", "proxy-injector"),
            ("linkerd.io/control-plane-ns", &self.namespace),
        ];
        let mut metadata = ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(self.namespace.clone()),
            managed_fields: None,
            ..old
        };
        metadata.labels.get_or_insert_default().extend(text(labels));
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(CREATED_BY.to_owned(), CREATOR.to_owned());
        let data = [
            ("ca.crt", &pair.authorities),
            ("tls.crt", &pair.certificate),
            ("tls.key", &pair.key),
        ];
        let data = data.map(|(name, bytes)| (name.to_owned(), ByteString(bytes.clone())));
        Secret {
            metadata,
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(BTreeMap::from(data)),
            ..Secret::default()
        }
    }

    async fn announce(&self, patch: &Value) -> Result<(), kube::Error> {
        let path = format!(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
        );
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, "application/json-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        limited(self.client.request::<Value>(request)).await?;
        Ok(())
    }
}

/// What clients of the webhook are shown.
struct Shown {
    certificate: Arc<Certificate>,
    pair: Option<Pair>,
}

impl Shown {
    /// Shows `pair`; later, if API servers that have not heard of its authority yet can be served until then.
    async fn replace(&mut self, pair: Pair) {
        let old = self.pair.as_ref();
        if old.is_some_and(|old| old.certificate == pair.certificate) {
            return;
        }
        if old.is_some_and(|old| pair.announces(old)) {
            tokio::time::sleep(SETTLE).await;
        }
        match self.certificate.install(&pair.certificate, &pair.key) {
            Ok(()) => tracing::info!(secret = SECRET, "webhook certificate in use"),
            // `look` has checked it.
            Err(error) => tracing::error!(%error, "the Secret {SECRET} cannot be used"),
        }
        self.pair = Some(pair);
    }
}

/// Bounds a request in time; a late one counts as not answered.
async fn limited<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answered) => answered,
        Err(late) => Err(kube::Error::Service(Box::new(late))),
    }
}

fn is_ours(secret: &Secret) -> bool {
    let annotations = secret.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(CREATED_BY))
        .is_some_and(|by| by == CREATOR)
}

fn pair_of(secret: &Secret) -> Option<Pair> {
    let data = secret.data.as_ref()?;
    let bytes = |name: &str| data.get(name).map(|bytes| bytes.0.clone());
    Some(Pair {
        authorities: bytes("ca.crt")?,
        certificate: bytes("tls.crt")?,
        key: bytes("tls.key")?,
    })
}

/// A JSON patch that sets the `caBundle` of our webhook and nothing else, if it is another one now; it fails if the configuration has
/// changed since it was read.
fn announcement(
    configuration: &MutatingWebhookConfiguration,
    authorities: &[u8],
) -> Result<Option<Value>, String> {
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    let found = webhooks.iter().enumerate();
    let found = found
        .into_iter()
        .find(|(_, webhook)| webhook.name == WEBHOOK);
    let Some((index, webhook)) = found else {
        return Err(format!(
            "MutatingWebhookConfiguration {CONFIGURATION} has no webhook {WEBHOOK}; install the chart"
        ));
    };
    let announced = webhook.client_config.ca_bundle.as_ref();
    if announced.is_some_and(|bundle| bundle.0 == authorities) {
        return Ok(None);
    }
    let version = &configuration.metadata.resource_version;
    let at = format!("/webhooks/{index}");
    Ok(Some(json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": version },
        { "op": "test", "path": format!("{at}/name"), "value": WEBHOOK },
        {
            "op": "add",
            "path": format!("{at}/clientConfig/caBundle"),
            "value": ByteString(authorities.to_vec()),
        },
    ])))
}

#[cfg(test)]
pub(super) mod tests;
