//! Owns the notes: what a user is told of a pod's settings, each in an Event and a warning. Does not post them.

use super::annotations::{ADDITIONAL_ENV, ENABLE_GATEWAY};
use super::decision::INJECT;
use super::settings::Settings;
use super::{Admission, Target, containers_of};

/// Something a user should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub(super) String);

impl Note {
    /// An annotation is not used.
    pub(super) fn new(place: Place, annotation: &str, value: &str, reason: &str) -> Self {
        let place = place.as_str();
        let shown = match annotation {
            ADDITIONAL_ENV => String::new(),
            _ => format!(" {:?}", excerpt(value)),
        };
        Self(format!(
            "{annotation}{shown} of the {place} is ignored: {}",
            excerpt(reason)
        ))
    }

    /// One item of a list is left out.
    pub(super) fn item(place: Place, annotation: &str, reason: &str) -> Self {
        Self(format!(
            "an item of {annotation} of the {} is ignored: {}",
            place.as_str(),
            excerpt(reason)
        ))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where an annotation is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Namespace,
    Pod,
}

impl Place {
    fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Pod => "pod",
        }
    }
}

pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// What is allowed, works, and is not what somebody would expect.
pub(super) fn dangers(
    admission: &Admission<'_>,
    settings: &Settings,
    target: &Target<'_>,
    notes: &mut Vec<Note>,
) {
    let proxy = &settings.values.proxy;
    let uid = Some(i64::from(proxy.uid));
    let of_pod = target.pod.spec.as_ref();
    let of_pod = of_pod.and_then(|spec| spec.security_context.as_ref()?.run_as_user);
    for container in containers_of(target.pod) {
        let own = container.security_context.as_ref();
        if own.and_then(|context| context.run_as_user).or(of_pod) == uid {
            notes.push(Note(format!(
                "container {} runs as user {}, the proxy's: its connections bypass the proxy; give it another runAsUser",
                container.name, proxy.uid
            )));
        }
    }
    let job = admission
        .owner
        .is_some_and(|owner| matches!(owner.kind.as_str(), "job" | "cronjob"));
    if job && !proxy.native_sidecar {
        notes.push(Note(
            "the Job does not complete while its proxy runs: enable native sidecars, or let the Job end its proxy by \
             POST /shutdown (annotation config.linkerd.io/proxy-admin-shutdown: enabled)"
                .to_owned(),
        ));
    }
}

/// Settings of Linkerd that reach the proxy, which does not act on them and says so in its log only.
pub(super) fn without_effect(settings: &Settings, target: &Target<'_>, notes: &mut Vec<Note>) {
    let proxy = &settings.values.proxy;
    let ingress = format!("{INJECT}: ingress");
    for (set, name, reason) in [
        (
            target.ingress,
            ingress.as_str(),
            "there is no ingress mode, the proxy sends traffic to the address it was sent to",
        ),
        (
            settings.gateway,
            ENABLE_GATEWAY,
            "the proxy is no gateway for other clusters",
        ),
        (
            proxy.has_access_log(),
            "config.linkerd.io/access-log (proxy.accessLog)",
            "the proxy writes no access log",
        ),
        (
            proxy.tracing.enabled,
            "proxy.tracing",
            "the proxy sends no traces",
        ),
        (
            proxy.metrics.hostname_labels,
            "config.linkerd.io/proxy-metrics-hostname-labels (proxy.metrics.hostnameLabels)",
            "the proxy's metrics have no label for host names",
        ),
    ] {
        if set {
            notes.push(Note(format!("{name} has no effect: {reason}")));
        }
    }
}
