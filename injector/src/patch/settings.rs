//! Owns the effective settings of one pod's proxy: the values, then the namespace's annotations, then the pod's (contract 9.3). An
//! annotation that cannot be read counts as not there, and is noted (case J05). Renders nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use weft_core::parse;

use super::annotations::{ADDITIONAL_ENV, ANNOTATIONS, Annotation, PREFIXES, WAIT_BEFORE_EXIT};
use super::note::{Note, Place};
use super::read::{self, NamedPorts};
use super::values::{Bounds, Resources, Tracing, Values};

/// Annotations of an object.
pub type Annotations = BTreeMap<String, String>;

/// What the annotations of one pod make of the values.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The values, overridden.
    pub values: Values,
    /// A debug container is asked for.
    pub debug: bool,
    /// The proxy takes traffic of other clusters for local services.
    pub gateway: bool,
    /// Environment of the namespace's and the pod's annotations.
    pub environment: Vec<EnvVar>,
    /// Annotations of the namespace that the pod gets too.
    pub inherited: Annotations,
    /// Config annotations in effect: name, value, where it is.
    pub used: Vec<(&'static str, String)>,
}

/// What is filled while the annotations are read.
pub(super) struct Draft<'a> {
    pub values: Values,
    pub debug: bool,
    pub gateway: bool,
    pub environment: Vec<EnvVar>,
    /// Names of the pod's ports.
    pub named: &'a NamedPorts,
    /// Faults of single items of the annotation that is being read.
    pub faults: Vec<String>,
}

impl Settings {
    /// Reads the annotations of contract 9.3.
    ///
    /// # Errors
    /// A value that the annotations do not override is not usable; the text names it.
    pub fn new(
        values: &Values,
        namespace: &Annotations,
        pod: &Annotations,
        named: &NamedPorts,
        notes: &mut Vec<Note>,
    ) -> Result<Self, String> {
        let mut draft = Draft {
            values: values.clone(),
            debug: false,
            gateway: false,
            environment: Vec::new(),
            named,
            faults: Vec::new(),
        };
        let mut inherited = Annotations::new();
        let mut used = Vec::new();
        for annotation in ANNOTATIONS {
            let of_pod = pod.get(annotation.name);
            let mut of_namespace = namespace.get(annotation.name);
            if !annotation.inherited
                && let Some(value) = of_namespace.take()
                && of_pod.is_none()
            {
                let reason = "pods do not inherit it; annotate the pod itself";
                notes.push(Note::new(Place::Namespace, annotation.name, value, reason));
            }
            let mut applied = None;
            for (place, value) in [(Place::Namespace, of_namespace), (Place::Pod, of_pod)] {
                let Some(value) = value else { continue };
                if read_one(&mut draft, annotation, place, value, notes) {
                    applied = Some(value);
                    if place == Place::Namespace && of_pod.is_none() {
                        inherited.insert(annotation.name.to_owned(), value.clone());
                    }
                }
            }
            if let Some(value) = applied {
                let shown = match annotation.name {
                    ADDITIONAL_ENV => "set",
                    _ => value,
                };
                used.push((annotation.name, shown.to_owned()));
            }
        }
        note_unknown(namespace, Place::Namespace, notes);
        note_unknown(pod, Place::Pod, notes);
        let mut settings = Self {
            values: draft.values,
            debug: draft.debug,
            gateway: draft.gateway,
            environment: draft.environment,
            inherited,
            used,
        };
        settings.keep_ports_apart(values, notes);
        settings.keep_requests_below_limits(notes);
        let workers = &mut settings.values.proxy.runtime.workers;
        workers.minimum = workers.minimum.min(workers.maximum.or(workers.minimum));
        settings.normalize()?;
        Ok(settings)
    }

    /// Kubernetes refuses a pod with a container that sleeps for longer than the pod's grace period, in seconds.
    pub fn keep_wait_within(&mut self, grace_period: i64, notes: &mut Vec<Note>) {
        let wanted = self.values.proxy.wait_before_exit_seconds;
        let allowed = u32::try_from(grace_period.max(0)).unwrap_or(u32::MAX);
        if wanted > allowed {
            notes.push(Note(format!(
                "{WAIT_BEFORE_EXIT} is {wanted}, but the proxy waits {allowed} seconds: Kubernetes allows no more than \
                 the pod's terminationGracePeriodSeconds, which is {grace_period}; raise that"
            )));
            self.values.proxy.wait_before_exit_seconds = allowed;
        }
    }

    /// Two listeners on one port would keep the proxy from starting.
    fn keep_ports_apart(&mut self, values: &Values, notes: &mut Vec<Note>) {
        let ports = self.values.proxy.ports;
        let mut all = [ports.admin, ports.control, ports.inbound, ports.outbound];
        all.sort_unstable();
        if all.windows(2).any(|pair| pair.first() == pair.last()) {
            self.values.proxy.ports = values.proxy.ports;
            notes.push(Note::new(
                Place::Pod,
                "config.linkerd.io/*-port",
                &format!("{all:?}"),
                "the ports of a proxy must differ, those of the installation are used",
            ));
        }
    }

    /// Kubernetes refuses a pod whose request is above its limit; the limit is what somebody wanted to hold.
    fn keep_requests_below_limits(&mut self, notes: &mut Vec<Note>) {
        let resources = &mut self.values.proxy.resources;
        for (kind, bounds) in each(resources) {
            let (Ok(request), Ok(limit)) = (
                read::quantity(&bounds.request),
                read::quantity(&bounds.limit),
            ) else {
                continue;
            };
            if request > limit {
                notes.push(Note::new(
                    Place::Pod,
                    &format!("config.linkerd.io/proxy-{kind}-request"),
                    &bounds.request,
                    &format!(
                        "it is above the limit of {0}, so the proxy requests {0}",
                        bounds.limit
                    ),
                ));
                bounds.request = bounds.limit.clone();
            }
        }
    }

    /// Brings what came from the values into the forms that the proxy and `weft init` read, and refuses the rest: a proxy that
    /// cannot start takes its pod with it.
    fn normalize(&mut self) -> Result<(), String> {
        let proxy = &mut self.values.proxy;
        for (name, list) in [
            ("proxy.opaquePorts", &mut proxy.opaque_ports),
            (
                "proxy.requireIdentityOnInboundPorts",
                &mut proxy.require_identity_on_inbound_ports,
            ),
            (
                "proxy.requireTLSOnInboundPorts",
                &mut proxy.require_tls_on_inbound_ports,
            ),
            (
                "proxyInit.ignoreInboundPorts",
                &mut self.values.proxy_init.ignore_inbound_ports,
            ),
            (
                "proxyInit.ignoreOutboundPorts",
                &mut self.values.proxy_init.ignore_outbound_ports,
            ),
        ] {
            *list = all_valid(name, read::ports(list, &NamedPorts::new()))?;
        }
        for (name, list) in [
            ("clusterNetworks", &mut self.values.cluster_networks),
            (
                "proxyInit.skipSubnets",
                &mut self.values.proxy_init.skip_subnets,
            ),
        ] {
            *list = all_valid(name, read::networks(list))?;
        }
        let streams = &mut proxy.control.streams;
        for (name, time) in [
            (
                "proxy.outboundConnectTimeout",
                &mut proxy.outbound_connect_timeout,
            ),
            (
                "proxy.inboundConnectTimeout",
                &mut proxy.inbound_connect_timeout,
            ),
            (
                "proxy.outboundDiscoveryCacheUnusedTimeout",
                &mut proxy.outbound_discovery_cache_unused_timeout,
            ),
            (
                "proxy.inboundDiscoveryCacheUnusedTimeout",
                &mut proxy.inbound_discovery_cache_unused_timeout,
            ),
            (
                "proxy.shutdownGracePeriod",
                &mut proxy.shutdown_grace_period,
            ),
            (
                "proxy.control.streams.initialTimeout",
                &mut streams.initial_timeout,
            ),
            (
                "proxy.control.streams.idleTimeout",
                &mut streams.idle_timeout,
            ),
            ("proxy.control.streams.lifetime", &mut streams.lifetime),
        ] {
            if !time.is_empty() {
                *time = read::proxy_duration(time).map_err(|e| format!("{name}: {e}"))?;
            }
        }
        check_collector(&proxy.tracing)?;
        let init = self.values.proxy_init.resources.iter_mut();
        let all = [("proxy", &mut proxy.resources)];
        let all = all
            .into_iter()
            .chain(init.map(|resources| ("proxyInit", resources)));
        for (owner, kind, bounds) in all.flat_map(|(owner, resources)| {
            each(resources).map(|(kind, bounds)| (owner, kind, bounds))
        }) {
            for amount in [&bounds.request, &bounds.limit] {
                if !amount.is_empty() {
                    read::quantity(amount).map_err(|e| format!("{owner}.resources.{kind}: {e}"))?;
                }
            }
        }
        Ok(())
    }
}

/// The proxy does not start without knowing who the collector is.
fn check_collector(tracing: &Tracing) -> Result<(), String> {
    let collector = &tracing.collector;
    if !tracing.enabled || collector.endpoint.is_empty() {
        return Ok(());
    }
    let addr = parse::addr(&collector.endpoint)
        .map_err(|e| format!("proxy.tracing.collector.endpoint: {e}"))?;
    let identity = &collector.mesh_identity;
    let named = !identity.service_account_name.is_empty() && !identity.namespace.is_empty();
    match named || addr.is_loopback() {
        true => Ok(()),
        false => Err(
            "proxy.tracing.collector.meshIdentity needs serviceAccountName and namespace, so that the proxy knows its collector"
                .to_owned(),
        ),
    }
}

fn read_one(
    draft: &mut Draft<'_>,
    annotation: &Annotation,
    place: Place,
    value: &str,
    notes: &mut Vec<Note>,
) -> bool {
    let read = (annotation.apply)(draft, value);
    for reason in draft.faults.drain(..) {
        notes.push(Note::item(place, annotation.name, &reason));
    }
    match read {
        Ok(()) => true,
        Err(reason) => {
            notes.push(Note::new(place, annotation.name, value, &reason));
            false
        }
    }
}

fn note_unknown(annotations: &Annotations, place: Place, notes: &mut Vec<Note>) {
    let known = |name: &str| ANNOTATIONS.iter().any(|known| known.name == name);
    let ours = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in annotations {
        if ours(name) && !known(name) {
            notes.push(Note::new(
                place,
                name,
                value,
                "there is no such annotation here",
            ));
        }
    }
}

fn all_valid(name: &str, (valid, faults): (String, Vec<String>)) -> Result<String, String> {
    match faults.is_empty() {
        true => Ok(valid),
        false => Err(format!("{name}: {}", faults.join(", "))),
    }
}

/// The resources of a container with the name that Kubernetes gives them.
pub(super) fn each(resources: &mut Resources) -> [(&'static str, &mut Bounds); 3] {
    [
        ("cpu", &mut resources.cpu),
        ("memory", &mut resources.memory),
        ("ephemeral-storage", &mut resources.ephemeral_storage),
    ]
}
