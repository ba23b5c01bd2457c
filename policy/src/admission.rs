//! Owns the validating webhooks (contract 9.6): an object that the mesh would not use as its author means it is refused with one
//! sentence that names the field. Does not read other objects: what depends on them is said in statuses, later.
//!
//! What the index refuses, the webhook refuses in the same words, because it asks the index; the rules that are only here are
//! in `rules` and `profile`. An object that is on its way out, or whose definition does not change, is not judged: it could not
//! be deleted or labelled any more after a rule has become stricter.

mod identity;
mod profile;
mod rules;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_cluster::{Index, Object, index::Invalid, objects::Kind};
use weft_runtime::{
    admission::{self, Answer, Certificate, Request},
    metrics::{Counter, EncodeLabelSet, Family, Registry},
};

/// Group of the routes that other controllers use as well.
const GATEWAY: &str = "gateway.networking.k8s.io";

/// Said to who writes a rate limit, so that nobody believes to be protected.
const NOT_ENFORCED: &str =
    "spec: limits are served to the proxies, but those of this version do not enforce them yet";

/// The certificate files of a webhook.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM, the leaf first.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// A webhook's listener and its certificate.
pub struct Webhook {
    listener: TcpListener,
    files: TlsFiles,
    certificate: Arc<Certificate>,
}

impl Webhook {
    /// A webhook that is not served yet.
    pub fn new(listener: TcpListener, files: TlsFiles) -> Self {
        Self {
            listener,
            files,
            certificate: Certificate::new(),
        }
    }

    /// Its certificate, of which readiness depends.
    pub fn certificate(&self) -> Arc<Certificate> {
        Arc::clone(&self.certificate)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Judged {
    kind: String,
    operation: String,
    allowed: &'static str,
}

/// Counts what was judged.
#[derive(Clone, Debug)]
pub struct Metrics {
    judged: Family<Judged, Counter>,
}

impl Metrics {
    /// Adds the metrics to a registry; once per registry.
    pub fn register(registry: &Registry) -> Self {
        // Kinds and operations come from the API server; the limit is for one that is not what it says.
        let judged = Family::with_limit(Counter::default, 200);
        registry.register(
            "policy_admission_requests",
            "Objects judged by the validating webhooks",
            judged.clone(),
        );
        Self { judged }
    }

    fn count(&self, request: &Request, answer: &Answer) {
        let excerpt = |text: &str| text.chars().take(64).collect();
        let labels = Judged {
            kind: excerpt(&request.kind.kind),
            operation: excerpt(&request.operation),
            allowed: if answer.refusal.is_none() {
                "true"
            } else {
                "false"
            },
        };
        self.judged.resolve(&labels).inc();
    }
}

/// Serves a webhook until the shutdown. All kinds are judged on each: which are asked about, the webhook's configuration says.
pub async fn serve(webhook: Webhook, metrics: Metrics, shutdown: CancellationToken) {
    let Webhook {
        listener,
        files,
        certificate,
    } = webhook;
    let following = Arc::clone(&certificate).follow(files.certificate, files.key, shutdown.clone());
    let judging = move |request: Request| {
        let answer = judge(&request);
        metrics.count(&request, &answer);
        if let Some(reason) = &answer.refusal {
            let kind = &request.kind.kind;
            let namespace = request.namespace.as_deref().unwrap_or_default();
            let name = request.name.as_deref().unwrap_or_default();
            tracing::info!(kind, namespace, name, reason, "object refused");
        }
        std::future::ready(answer)
    };
    let serving = admission::serve(listener, certificate, judging, shutdown);
    tokio::join!(following, serving);
}

/// Judges one object.
pub fn judge(request: &Request) -> Answer {
    if request.operation == "DELETE" || is_going(&request.object) || is_unchanged(request) {
        return Answer::admit();
    }
    let gvk = &request.kind;
    let api_version = match gvk.group.as_str() {
        "" => gvk.version.clone(),
        group => format!("{group}/{}", gvk.version),
    };
    let Some(kind) = Kind::of(&api_version, &gvk.kind) else {
        let unknown = format!(
            "{} {} is not known to this control plane",
            api_version, gvk.kind
        );
        // Another controller may well know it.
        return match gvk.group == GATEWAY {
            true => Answer::admit().warn(format!("{unknown}; the mesh will ignore it")),
            false => Answer::refuse(format!(
                "{unknown}: install a matching version of it, or take the kind out of the webhook's rules"
            )),
        };
    };
    let given = in_namespace(request);
    if kind == Kind::ServiceProfile
        && let Err(reason) = profile::check(&given)
    {
        return Answer::refuse(reason);
    }
    match read(kind, &given) {
        Ok(object) => judge_object(&object),
        // What the mesh cannot read may be meant for another controller (case R09).
        Err(reason) if kind.api().group == GATEWAY => {
            Answer::admit().warn(format!("{reason}; the mesh will ignore the object"))
        }
        Err(reason) => Answer::refuse(reason),
    }
}

/// Reads an object; what is wrong with its shape is said with the path of the field.
fn read(kind: Kind, given: &Value) -> Result<Object, String> {
    let mut track = serde_path_to_error::Track::new();
    let from = serde_path_to_error::Deserializer::new(given, &mut track);
    Object::deserialize(kind, from).map_err(|error| match track.path().to_string() {
        path if path == "." => error.to_string(),
        path => format!("{path}: {error}"),
    })
}

fn judge_object(object: &Object) -> Answer {
    let mut answer = Answer::admit();
    if let Some(parents) = rules::parents(object) {
        for (index, parent) in parents.iter().enumerate() {
            if let Some(group) = rules::meant(parent).filter(|_| !rules::is_ours(parent)) {
                answer = answer.warn(format!(
                    "spec.parentRefs[{index}].group: without group: {group} this is no parent of the mesh"
                ));
            }
        }
        if !parents.iter().any(rules::is_ours) {
            return answer;
        }
    }
    if let Err((field, reason)) = rules::check(object) {
        return Answer::refuse(format!("{field}: {reason}"));
    }
    for invalid in &Index::default().apply(object).invalid {
        let Invalid { field, reason, .. } = invalid;
        answer = match weight(object, invalid) {
            Weight::Refusal => return Answer::refuse(format!("{field}: {reason}")),
            Weight::Warning => answer.warn(format!("{field}: {reason}; it is ignored")),
        };
    }
    match object {
        Object::HttpLocalRateLimitPolicy(_) => answer.warn(NOT_ENFORCED),
        _ => answer,
    }
}

enum Weight {
    Refusal,
    Warning,
}

/// What the index ignores is a warning, except where Linkerd refuses it (contract 9.6). What it refuses is a refusal, except
/// for a filter of a Gateway API route: the route may have parents of other controllers, who know the filter (case R09).
fn weight(object: &Object, invalid: &Invalid) -> Weight {
    let gateway = object.kind().api().group == GATEWAY;
    let filter = gateway && invalid.field.contains(".filters[") && invalid.field.ends_with(".type");
    let timeout =
        matches!(object, Object::ServiceProfile(_)) && invalid.field.ends_with(".timeout");
    match (invalid.refused, filter, timeout) {
        (true, false, _) | (false, _, true) => Weight::Refusal,
        _ => Weight::Warning,
    }
}

/// An object that is being deleted waits for its finalizers, which must be removable.
fn is_going(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn is_unchanged(request: &Request) -> bool {
    let (old, new) = (&request.old_object, &request.object);
    let annotations = |object: &Value| match &object["metadata"]["annotations"] {
        Value::Null => Value::Object(serde_json::Map::new()),
        annotations => annotations.clone(),
    };
    request.operation == "UPDATE"
        && old.is_object()
        && new.is_object()
        && old["spec"] == new["spec"]
        && annotations(old) == annotations(new)
}

/// The object with its namespace, which a request for its creation may name beside it only.
fn in_namespace(request: &Request) -> Value {
    let mut object = request.object.clone();
    if let (Some(namespace), Some(Value::Object(metadata))) =
        (&request.namespace, object.get_mut("metadata"))
        && metadata.get("namespace").is_none_or(Value::is_null)
    {
        metadata.insert("namespace".to_owned(), Value::String(namespace.clone()));
    }
    object
}
