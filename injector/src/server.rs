//! Owns the webhook: it collects what [`patch::review`](crate::patch::review) needs to decide about an object, and tells of the
//! decision in the answer, Events and metrics (contract 9.1). TLS and the envelope are `weft_runtime::admission`'s.

mod cluster;
mod config;
mod events;
mod metrics;
mod self_certificate;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_runtime::admission::{self, Answer, Certificate, Request};
use weft_runtime::metrics::Registry;
use weft_runtime::service_admin;

use crate::patch::{Admission, Annotations, Config, Decision, Kind, Refusal, Skip, review};
use cluster::{Cluster, Controller};
use config::ConfigFiles;
use events::{Event, Events};
use metrics::Metrics;

/// Series of namespaces and owners that are gone leave after this time.
const RETAIN_METRICS: Duration = Duration::from_secs(3600);
const SWEEP_METRICS: Duration = Duration::from_secs(600);

/// What the injector is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the control plane.
    pub control_namespace: String,
    /// The values of the installation: key `values` of ConfigMap `linkerd-config`.
    pub config_file: PathBuf,
    /// The trust bundle, PEM.
    pub trust_roots: PathBuf,
    /// Where the webhook's certificate comes from.
    pub certificate: CertificateSource,
    /// Version of this program.
    pub version: String,
}

/// Where the webhook's certificate comes from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Files, which are followed.
    Files {
        /// The chain, PEM.
        certificate: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
    },
    /// Made, kept in a Secret and announced in the webhook configuration by the injector itself.
    Own,
}

/// Serves reviews on `listener`, and `/ready` and `/metrics` on `admin`, until the shutdown.
pub async fn serve(
    listener: TcpListener,
    admin: TcpListener,
    settings: Settings,
    client: Client,
    shutdown: CancellationToken,
) {
    let registry = Arc::new(Registry::new(RETAIN_METRICS));
    let metrics = Metrics::register(&registry);
    let certificate = Certificate::new();
    let shown = Arc::clone(&certificate);
    let ready = move || shown.ready();
    let admin = service_admin::serve(admin, ready, Arc::clone(&registry), shutdown.clone());
    let (events, posting) = Events::new(client.clone(), metrics.clone());
    let injector = Arc::new(Injector {
        config: ConfigFiles::new(&settings),
        cluster: Cluster::new(client.clone()),
        events,
        metrics,
    });
    let handler = move |request| {
        let injector = Arc::clone(&injector);
        async move { injector.answer(request).await }
    };
    let certified = keep_certificate(settings, client, Arc::clone(&certificate), shutdown.clone());
    let webhook = admission::serve(listener, certificate, handler, shutdown.clone());
    let background = async {
        tokio::join!(admin, certified, sweep(&registry, &shutdown));
    };
    tokio::join!(webhook, background, posting.run(&shutdown));
}

async fn keep_certificate(
    settings: Settings,
    client: Client,
    certificate: Arc<Certificate>,
    shutdown: CancellationToken,
) {
    match settings.certificate {
        CertificateSource::Files {
            certificate: chain,
            key,
        } => certificate.follow(chain, key, shutdown).await,
        CertificateSource::Own => {
            let keeper = self_certificate::Keeper::new(client, &settings.control_namespace);
            keeper.run(certificate, shutdown).await;
        }
    }
}

async fn sweep(registry: &Registry, shutdown: &CancellationToken) {
    let mut ticks = tokio::time::interval(SWEEP_METRICS);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        registry.sweep(std::time::Instant::now());
    }
}

/// What all requests share.
struct Injector {
    config: ConfigFiles,
    cluster: Cluster,
    events: Events,
    metrics: Metrics,
}

/// What is known of an object beside itself.
struct Context {
    kind: Kind,
    namespace: String,
    metadata: ObjectMeta,
    controller: Option<Controller>,
    annotations: Annotations,
}

impl Context {
    /// What the request itself says.
    fn new(request: &Request, kind: Kind) -> Self {
        Self {
            kind,
            namespace: request.namespace.clone().unwrap_or_default(),
            metadata: ObjectMeta::default(),
            controller: None,
            annotations: Annotations::new(),
        }
    }

    /// Kind of the owner in metrics.
    fn owner_kind(&self) -> &str {
        match (&self.controller, self.kind) {
            (Some(controller), _) => &controller.owner.kind,
            (None, Kind::Pod) => "pod",
            (None, Kind::Service) => "service",
        }
    }

    /// Whom Events are about: the owner, or the pod itself if it has none.
    fn regarding(&self) -> Option<k8s_openapi::api::core::v1::ObjectReference> {
        if let Some(controller) = &self.controller {
            return Some(controller.reference(&self.namespace));
        }
        let name = self.metadata.name.clone()?;
        Some(cluster::pod_reference(&self.namespace, name))
    }
}

impl Injector {
    async fn answer(&self, request: Request) -> Answer {
        // Ephemeral containers and the like are no creation of a pod (case J17).
        let subresource = request.sub_resource.as_deref().unwrap_or_default();
        let kind = match (request.kind.group.as_str(), request.kind.kind.as_str()) {
            ("", "Pod") => Kind::Pod,
            ("", "Service") => Kind::Service,
            _ => return Answer::admit(),
        };
        if request.operation != "CREATE" || !subresource.is_empty() {
            return Answer::admit();
        }
        let config = self.config.read().await;
        let config = config.as_deref().map_err(String::as_str);
        let mut context = Context::new(&request, kind);
        let decided = match self.complete(&mut context, &request).await {
            Ok(()) => review(&admission(&request, &context, config)),
            Err(refusal) => Err(refusal),
        };
        self.tell(&context, &decided, request.dry_run == Some(true));
        match decided {
            Ok(decision) => answer_of(decision),
            Err(refusal) => Answer::refuse(refusal.to_string()),
        }
    }

    /// Finds out the rest. What was found stays in the context if something else was not.
    async fn complete(&self, context: &mut Context, request: &Request) -> Result<(), Refusal> {
        if let Some(metadata) = request.object.get("metadata").filter(|m| !m.is_null()) {
            context.metadata =
                serde_path_to_error::deserialize(metadata).map_err(|e| Refusal::Object {
                    path: format!("metadata.{}", e.path()),
                    reason: e.inner().to_string(),
                })?;
        }
        if context.namespace.is_empty() {
            let missing = "neither the request nor its object names a namespace";
            let of_object = context.metadata.namespace.clone();
            let of_object = of_object.filter(|name| !name.is_empty());
            context.namespace = of_object.ok_or_else(|| Refusal::Unknown(missing.to_owned()))?;
        }
        let (namespace, metadata) = (&context.namespace, &context.metadata);
        let controller = async {
            match context.kind {
                Kind::Pod => self.cluster.controller(namespace, metadata).await,
                Kind::Service => None,
            }
        };
        let (controller, annotations) =
            tokio::join!(controller, self.cluster.annotations_of(namespace));
        context.controller = controller;
        context.annotations = annotations.map_err(Refusal::Unknown)?;
        Ok(())
    }

    fn tell(&self, context: &Context, decided: &Result<Decision, Refusal>, dry_run: bool) {
        self.metrics
            .count(context.owner_kind(), &context.namespace, decided);
        let (namespace, owner) = (&context.namespace, context.owner_kind());
        match decided {
            Ok(decision) if decision.skip.is_empty() => {
                tracing::info!(namespace, owner, "injected");
            }
            Ok(decision) => {
                let reasons: Vec<_> = decision.skip.iter().map(|skip| skip.as_str()).collect();
                tracing::debug!(namespace, owner, ?reasons, "not injected");
            }
            Err(refusal) => tracing::error!(namespace, owner, %refusal, "an object is refused"),
        }
        if context.kind != Kind::Pod || dry_run {
            return;
        }
        let Some(regarding) = context.regarding() else {
            return;
        };
        for event in events_of(decided) {
            self.events.post(&regarding, event);
        }
    }
}

fn admission<'a>(
    request: &'a Request,
    context: &'a Context,
    config: Result<&'a Config, &'a str>,
) -> Admission<'a> {
    Admission {
        kind: context.kind,
        object: &request.object,
        namespace: &context.namespace,
        namespace_annotations: &context.annotations,
        owner: context.controller.as_ref().map(|c| &c.owner),
        config,
    }
}

fn answer_of(decision: Decision) -> Answer {
    let mut answer = match decision.patch.is_empty() {
        true => Answer::admit(),
        false => Answer::patch(serde_json::json!(decision.patch)),
    };
    for note in &decision.notes {
        answer = answer.warn(note.as_str());
    }
    answer
}

/// What a person is told (contract 9.1). Nothing of pods nobody asked a proxy for: most clusters have many.
fn events_of(decided: &Result<Decision, Refusal>) -> Vec<Event> {
    let decision = match decided {
        Ok(decision) => decision,
        Err(refusal) => return vec![Event::failed(refusal.to_string())],
    };
    let mut events: Vec<_> = decision
        .notes
        .iter()
        .map(|note| Event::ignored(note.as_str().to_owned()))
        .collect();
    if decision.skip.is_empty() {
        events.push(Event::injected());
    } else if !decision.injected_before && decision.skip != [Skip::NotEnabled] {
        let reasons: Vec<_> = decision.skip.iter().map(|skip| skip.sentence()).collect();
        events.push(Event::skipped(&reasons.join("; ")));
    }
    events
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
