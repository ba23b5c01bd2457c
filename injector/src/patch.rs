//! Owns the injection of one object as a pure function, [`review`]: a pod or Service with the annotations of its namespace in, the
//! decision and a JSON patch out (contract 9.2 to 9.4). Reads no file, no clock and no network.

mod annotations;
mod containers;
mod decision;
mod env;
mod note;
mod operation;
mod read;
mod settings;
pub mod values;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, Service, VolumeMount};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weft_core::name::PortSet;
use weft_core::parse;

pub use annotations::OPAQUE_PORTS;
pub use containers::{DEBUG, INIT, PROXY, VALIDATOR};
pub use decision::{INJECT, Skip};
pub use note::Note;
pub use operation::Operation;
pub use settings::Annotations;
pub use values::{Values, ValuesError};

use annotations::Annotation;
use decision::Verdict;
use note::{Place, excerpt};
use operation::Patch;
use read::NamedPorts;
use settings::Settings;

/// Says who injected a pod.
const CREATED_BY: &str = "linkerd.io/created-by";
const INJECTOR: &str = "linkerd/proxy-injector";
/// Container that kubectl looks at if it is told none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// What the API server fills in for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_PERIOD: i64 = 30;
/// Owners that a pod is labelled with (contract 9.4).
const OWNER_KINDS: [&str; 7] = [
    "deployment",
    "replicationcontroller",
    "replicaset",
    "job",
    "daemonset",
    "statefulset",
    "cronjob",
];

/// What holds for all pods.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The values of the installation.
    pub values: Values,
    /// The trust bundle, PEM.
    pub trust_anchors: String,
    /// Namespace of the control plane.
    pub control_namespace: String,
    /// Version of this program.
    pub version: String,
}

impl Config {
    /// Version of the installation.
    fn installation(&self) -> &str {
        match self.values.linkerd_version.as_str() {
            "" => &self.version,
            version => version,
        }
    }
}

/// The controller that made a pod, after ReplicaSets and Jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its kind in lower case.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// What is injected into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pod: may get a proxy.
    Pod,
    /// A Service: may get the annotation of opaque ports.
    Service,
}

/// One object that is to be created.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: &'a Value,
    /// Its namespace, which the object itself may not name.
    pub namespace: &'a str,
    /// Annotations of the namespace.
    pub namespace_annotations: &'a Annotations,
    /// Who made the pod.
    pub owner: Option<&'a Owner>,
    /// The settings, or why they cannot be read: that matters only if a proxy is to be injected.
    pub config: Result<&'a Config, &'a str>,
}

/// What becomes of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Why it gets no proxy; empty = it does.
    pub skip: Vec<Skip>,
    /// Which annotation decided: `workload`, `namespace` or none.
    pub annotation_at: &'static str,
    /// What to change; may be empty.
    pub patch: Vec<Operation>,
    /// What was ignored or adjusted; each is to be said in an Event.
    pub notes: Vec<Note>,
    /// Config annotations in effect, by their labels in metrics. Names of one setting are one label.
    pub settings: BTreeMap<String, String>,
    /// The proxy that is there already was put there by an injector, so that there is nothing to tell.
    pub injected_before: bool,
}

/// Why an object cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object is not what its kind says.
    #[error("{path} cannot be read: {reason}")]
    Object {
        /// Where.
        path: String,
        /// What is wrong there.
        reason: String,
    },
    /// The settings of the injector are not usable.
    #[error(
        "the pod cannot get its proxy: {0}; correct the ConfigMap linkerd-config, or annotate the pod linkerd.io/inject: disabled"
    )]
    Config(String),
    /// What the decision depends on is not known.
    #[error("{0}")]
    Unknown(String),
}

/// Decides about an object and patches it.
///
/// # Errors
/// The object is malformed, or it must get a proxy and the settings are not usable.
pub fn review(admission: &Admission<'_>) -> Result<Decision, Refusal> {
    match admission.kind {
        Kind::Pod => review_pod(admission),
        Kind::Service => review_service(admission),
    }
}

/// A pod to be injected.
struct Target<'a> {
    pod: &'a Pod,
    /// TCP ports of its containers.
    ports: Vec<u16>,
    named: NamedPorts,
    ingress: bool,
}

impl<'a> Target<'a> {
    fn new(pod: &'a Pod, ingress: bool) -> Self {
        let (mut ports, mut named) = (Vec::new(), NamedPorts::new());
        for port in containers_of(pod).flat_map(|container| container.ports.iter().flatten()) {
            let tcp = port.protocol.as_deref().is_none_or(|name| name == "TCP");
            let number = u16::try_from(port.container_port).ok().filter(|n| *n > 0);
            let (true, Some(number)) = (tcp, number) else {
                continue;
            };
            if !ports.contains(&number) {
                ports.push(number);
            }
            if let Some(name) = &port.name {
                named.entry(name.clone()).or_insert(number);
            }
        }
        Self {
            pod,
            ports,
            named,
            ingress,
        }
    }

    /// Seconds from the order to end until the pod is killed.
    fn grace_period(&self) -> i64 {
        let spec = self.pod.spec.as_ref();
        let given = spec.and_then(|spec| spec.termination_grace_period_seconds);
        given.unwrap_or(DEFAULT_GRACE_PERIOD)
    }

    /// Mount of the token for the API server.
    fn api_token_mount(&self) -> Option<&'a VolumeMount> {
        api_token_mount(self.pod)
    }
}

fn api_token_mount(pod: &Pod) -> Option<&VolumeMount> {
    containers_of(pod)
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .find(|mount| containers::is_api_token(mount))
}

/// The containers of the application, init containers first. A proxy that is there already is not one of them.
fn containers_of(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let inits = spec.init_containers.iter().flatten();
        inits.chain(&spec.containers)
    })
    .filter(|container| container.name != PROXY)
}

fn review_pod(admission: &Admission<'_>) -> Result<Decision, Refusal> {
    let pod: Pod = read_object(admission.object)?;
    let projection = admission.config.map_or(true, |config| {
        config.values.identity.service_account_token_projection
    });
    let verdict = decision::judge(&pod, admission.namespace_annotations, projection);
    let target = Target::new(&pod, verdict.ingress);
    if verdict.skip.is_empty() {
        return inject(admission, &target, verdict);
    }
    let mut decision = Decision {
        injected_before: verdict.skip == [Skip::SidecarExists] && was_injected(&pod),
        skip: verdict.skip,
        annotation_at: verdict.annotation_at,
        ..Decision::default()
    };
    let declared = |port: &PortSet| {
        let opaque = target.ports.iter().filter(|number| port.contains(**number));
        opaque.copied().collect()
    };
    let own = pod.metadata.annotations.as_ref();
    annotate_opaque_ports(admission, own, &target.named, declared, &mut decision);
    Ok(decision)
}

fn was_injected(pod: &Pod) -> bool {
    let by = pod.metadata.annotations.as_ref();
    by.and_then(|all| all.get(CREATED_BY))
        .is_some_and(|by| by.starts_with(INJECTOR))
}

fn review_service(admission: &Admission<'_>) -> Result<Decision, Refusal> {
    let service: Service = read_object(admission.object)?;
    let mut decision = Decision {
        skip: vec![Skip::Unsupported],
        ..Decision::default()
    };
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let reaches = |default: &PortSet| {
        let opaque = ports.filter(|port| {
            let target = match &port.target_port {
                Some(IntOrString::Int(number)) if *number > 0 => *number,
                // A name may mean another number in each pod.
                Some(IntOrString::String(_)) => return false,
                _ => port.port,
            };
            u16::try_from(target).is_ok_and(|number| default.contains(number))
        });
        opaque
            .filter_map(|port| u16::try_from(port.port).ok())
            .collect()
    };
    let own = service.metadata.annotations.as_ref();
    annotate_opaque_ports(admission, own, &NamedPorts::new(), reaches, &mut decision);
    Ok(decision)
}

/// Contract 9.2, last paragraph: the namespace's value, or the default ports that the object has.
fn annotate_opaque_ports(
    admission: &Admission<'_>,
    own: Option<&Annotations>,
    named: &NamedPorts,
    matching: impl FnOnce(&PortSet) -> Vec<u16>,
    decision: &mut Decision,
) {
    if own.is_some_and(|all| all.contains_key(OPAQUE_PORTS)) {
        return;
    }
    let of_namespace = admission.namespace_annotations.get(OPAQUE_PORTS);
    let inherited = of_namespace.filter(|text| {
        let (valid, faults) = read::ports(text, named);
        let usable = faults.is_empty() || !valid.is_empty();
        let faults = faults.iter();
        let notes = faults.map(|fault| Note::item(Place::Namespace, OPAQUE_PORTS, fault));
        decision.notes.extend(notes);
        usable
    });
    let value = match inherited {
        Some(value) => Some(value.clone()),
        None => default_opaque_ports(admission.config, matching),
    };
    if let Some(value) = value {
        let mut patch = Patch::default();
        ensure_metadata(&mut patch, admission.object);
        patch.add_members(
            admission.object,
            "/metadata/annotations",
            [(OPAQUE_PORTS, value.as_str())],
        );
        decision.patch = patch.finish();
    }
}

fn default_opaque_ports(
    config: Result<&Config, &str>,
    matching: impl FnOnce(&PortSet) -> Vec<u16>,
) -> Option<String> {
    let default = parse::port_set(&config.ok()?.values.proxy.opaque_ports).ok()?;
    let ports = matching(&default);
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    (!ports.is_empty()).then(|| ports.join(","))
}

fn ensure_metadata(patch: &mut Patch, object: &Value) {
    if !object.pointer("/metadata").is_some_and(Value::is_object) {
        patch.add("/metadata", serde_json::json!({}));
    }
}

fn inject(
    admission: &Admission<'_>,
    target: &Target<'_>,
    verdict: Verdict,
) -> Result<Decision, Refusal> {
    let config = admission
        .config
        .map_err(|reason| Refusal::Config(reason.to_owned()))?;
    let none = Annotations::new();
    let own = target.pod.metadata.annotations.as_ref().unwrap_or(&none);
    let mut notes = Vec::new();
    let mut settings = Settings::new(
        &config.values,
        admission.namespace_annotations,
        own,
        &target.named,
        &mut notes,
    )
    .map_err(Refusal::Config)?;
    settings.keep_wait_within(target.grace_period(), &mut notes);
    let mut patch = Patch::default();
    annotate(&mut patch, admission, config, &settings, target);
    label(&mut patch, admission, config, &mut notes);
    add_containers(&mut patch, config, &settings, target);
    note::dangers(admission, &settings, target, &mut notes);
    note::without_effect(&settings, target, &mut notes);
    let labels = settings.used.into_iter();
    Ok(Decision {
        skip: Vec::new(),
        annotation_at: verdict.annotation_at,
        patch: patch.finish(),
        notes,
        settings: labels
            .map(|(name, value)| (Annotation::label(name), value))
            .collect(),
        injected_before: false,
    })
}

fn annotate(
    patch: &mut Patch,
    admission: &Admission<'_>,
    config: &Config,
    settings: &Settings,
    target: &Target<'_>,
) {
    let own = target.pod.metadata.annotations.as_ref();
    let has = |name: &str| own.is_some_and(|all| all.contains_key(name));
    let mut all = settings.inherited.clone();
    if !has(OPAQUE_PORTS) && !all.contains_key(OPAQUE_PORTS) {
        let declared = |default: &PortSet| {
            let opaque = target.ports.iter().filter(|port| default.contains(**port));
            opaque.copied().collect()
        };
        let ports = default_opaque_ports(Ok(config), declared);
        all.extend(ports.map(|ports| (OPAQUE_PORTS.to_owned(), ports)));
    }
    if let Some(inject) = admission
        .namespace_annotations
        .get(INJECT)
        .filter(|_| !has(INJECT))
    {
        all.insert(INJECT.to_owned(), inject.clone());
    }
    if !settings.values.proxy.native_sidecar
        && settings.values.proxy.wait
        && !has(DEFAULT_CONTAINER)
    {
        let spec = target.pod.spec.as_ref();
        let first = spec.and_then(|spec| spec.containers.first());
        all.extend(first.map(|first| (DEFAULT_CONTAINER.to_owned(), first.name.clone())));
    }
    let by = format!("{INJECTOR} {}", config.installation());
    let version = containers::tag(&settings.values.proxy.image, config);
    all.insert("linkerd.io/proxy-version".to_owned(), version.to_owned());
    all.insert(
        "linkerd.io/trust-root-sha256".to_owned(),
        sha256(&config.trust_anchors),
    );
    ensure_metadata(patch, admission.object);
    let members = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    patch.add_members(
        admission.object,
        "/metadata/annotations",
        [(CREATED_BY, by.as_str())].into_iter().chain(members),
    );
}

fn sha256(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    let bytes = digest.as_ref().iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn label(patch: &mut Patch, admission: &Admission<'_>, config: &Config, notes: &mut Vec<Note>) {
    let mut labels = vec![
        (
            "linkerd.io/control-plane-ns".to_owned(),
            config.control_namespace.as_str(),
        ),
        ("linkerd.io/workload-ns".to_owned(), admission.namespace),
    ];
    // A name may be longer than the value of a label, and the API server would refuse the pod.
    match admission.owner {
        Some(owner) if !OWNER_KINDS.contains(&owner.kind.as_str()) => {}
        Some(owner) if !read::is_label_value(&owner.name) => notes.push(Note(format!(
            "the label linkerd.io/proxy-{} is left out: {} is not a valid value of a label",
            owner.kind, owner.name
        ))),
        Some(owner) => labels.push((format!("linkerd.io/proxy-{}", owner.kind), &owner.name)),
        None => {}
    }
    let labels = labels.iter().map(|(name, value)| (name.as_str(), *value));
    patch.add_members(admission.object, "/metadata/labels", labels);
}

fn add_containers(patch: &mut Patch, config: &Config, settings: &Settings, target: &Target<'_>) {
    const VOLUMES: &str = "/spec/volumes";
    const INITS: &str = "/spec/initContainers";
    let spec = target.pod.spec.as_ref();
    if spec.is_none() {
        patch.add("/spec", serde_json::json!({}));
    }
    if spec.is_none_or(|spec| spec.volumes.as_ref().is_none_or(Vec::is_empty)) {
        patch.add(VOLUMES, serde_json::json!([]));
    }
    if spec.is_none_or(|spec| spec.init_containers.as_ref().is_none_or(Vec::is_empty)) {
        patch.add(INITS, serde_json::json!([]));
    }
    if spec.is_none_or(|spec| spec.containers.is_empty()) {
        patch.add("/spec/containers", serde_json::json!([]));
    }
    let proxy = &settings.values.proxy;
    let (network_at, proxy_at) = match (proxy.native_sidecar, proxy.wait) {
        (true, _) => (format!("{INITS}/0"), format!("{INITS}/1")),
        (false, true) => (format!("{INITS}/-"), "/spec/containers/0".to_owned()),
        (false, false) => (format!("{INITS}/-"), "/spec/containers/-".to_owned()),
    };
    if let Some(volume) = containers::init_volume(settings) {
        patch.add(format!("{VOLUMES}/-"), volume);
    }
    patch.add(network_at, containers::network(config, settings));
    if settings.debug {
        patch.add("/spec/containers/-", containers::debug(config, settings));
    }
    for volume in containers::proxy_volumes(settings) {
        patch.add(format!("{VOLUMES}/-"), volume);
    }
    patch.add(proxy_at, containers::proxy(config, settings, target));
}

fn read_object<T: DeserializeOwned>(object: &Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(object).map_err(|e| Refusal::Object {
        path: e.path().to_string(),
        reason: excerpt(&e.inner().to_string()),
    })
}

#[cfg(test)]
mod tests;
