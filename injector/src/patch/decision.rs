//! Owns the decision whether a pod gets a proxy (contract 9.2), and the names of the reasons why not. Patches nothing.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::containers::{INIT, PROXY, VALIDATOR};
use super::settings::Annotations;

/// Annotation of namespaces and pods that asks for the proxy.
pub const INJECT: &str = "linkerd.io/inject";
/// The kubelet marks with it what the API server shows of pods that come from files on a node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Why a pod stays as it is. The names are those of metrics (`skip_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Nobody asked for it.
    NotEnabled,
    /// The pod asks not to.
    Disabled,
    /// The namespace's annotation has an unknown value.
    InvalidNamespaceAnnotation,
    /// The pod's annotation has an unknown value.
    InvalidPodAnnotation,
    /// The pod shares its node's network.
    HostNetwork,
    /// There is a proxy.
    SidecarExists,
    /// No token to prove the identity with.
    NoServiceAccountToken,
    /// Not a pod that can have one.
    Unsupported,
}

impl Skip {
    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotEnabled => "injection_enable_annotation_absent",
            Self::Disabled => "injection_disable_annotation_present",
            Self::InvalidNamespaceAnnotation => "invalid_inject_annotation_at_ns",
            Self::InvalidPodAnnotation => "invalid_inject_annotation_at_workload",
            Self::HostNetwork => "host_network_enabled",
            Self::SidecarExists => "sidecar_already_exists",
            Self::NoServiceAccountToken => "disabled_automount_service_account_token_account",
            Self::Unsupported => "unsupported_resource",
        }
    }

    /// What a person can do with it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotEnabled => {
                "neither the namespace nor the pod has the annotation linkerd.io/inject: enabled"
            }
            Self::Disabled => "the pod has the annotation linkerd.io/inject: disabled",
            Self::InvalidNamespaceAnnotation => {
                "linkerd.io/inject of the namespace must be enabled, ingress or disabled"
            }
            Self::InvalidPodAnnotation => {
                "linkerd.io/inject of the pod must be enabled, ingress or disabled"
            }
            Self::HostNetwork => {
                "the pod uses the network of its node (hostNetwork), whose traffic must not be redirected"
            }
            Self::SidecarExists => "the pod has a proxy already",
            Self::NoServiceAccountToken => {
                "the pod mounts no service account token (automountServiceAccountToken), which its proxy needs"
            }
            Self::Unsupported => "pods of this kind (static, or for Windows) cannot have a proxy",
        }
    }
}

/// What the annotations say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Why not; empty = inject.
    pub skip: Vec<Skip>,
    /// Which annotation decided: `workload`, `namespace` or none.
    pub annotation_at: &'static str,
    /// The proxy does not use the destination that the application dialed but its HTTP host.
    pub ingress: bool,
}

/// The table of contract 9.2.
pub(super) fn judge(pod: &Pod, namespace: &Annotations, token_projection: bool) -> Verdict {
    let annotations = pod.metadata.annotations.as_ref();
    let value = |annotations: Option<&Annotations>| {
        let value = annotations.and_then(|all| all.get(INJECT));
        value.map_or(Some(Inject::Unset), |text| Inject::read(text))
    };
    let (of_namespace, of_pod) = (value(Some(namespace)), value(annotations));
    let mut verdict = Verdict::default();
    let refused = match (of_namespace, of_pod) {
        (None, _) => Some((Skip::InvalidNamespaceAnnotation, "namespace")),
        (_, None) => Some((Skip::InvalidPodAnnotation, "workload")),
        (Some(Inject::Enabled { .. }), Some(Inject::Disabled)) => {
            Some((Skip::Disabled, "workload"))
        }
        (Some(Inject::Unset | Inject::Disabled), Some(Inject::Unset | Inject::Disabled)) => {
            Some((Skip::NotEnabled, ""))
        }
        (_, Some(Inject::Enabled { ingress })) => {
            verdict.ingress = ingress;
            verdict.annotation_at = "workload";
            None
        }
        (Some(Inject::Enabled { ingress }), _) => {
            verdict.ingress = ingress;
            verdict.annotation_at = "namespace";
            None
        }
    };
    if let Some((skip, place)) = refused {
        verdict.skip.push(skip);
        verdict.annotation_at = place;
    }
    let spec = pod.spec.as_ref();
    let found = [
        (
            Skip::HostNetwork,
            spec.is_some_and(|spec| spec.host_network == Some(true)),
        ),
        (Skip::SidecarExists, has_sidecar(pod)),
        (Skip::Unsupported, is_unsupported(pod)),
        (
            Skip::NoServiceAccountToken,
            !token_projection && super::api_token_mount(pod).is_none(),
        ),
    ];
    let found = found.into_iter().filter(|(_, found)| *found);
    verdict.skip.extend(found.map(|(skip, _)| skip));
    verdict
}

#[derive(Clone, Copy)]
enum Inject {
    Unset,
    Disabled,
    Enabled { ingress: bool },
}

impl Inject {
    fn read(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Unset,
            "disabled" => Self::Disabled,
            "enabled" => Self::Enabled { ingress: false },
            "ingress" => Self::Enabled { ingress: true },
            _ => return None,
        })
    }
}

/// A proxy of ours or of another mesh, whichever way it came into the pod (case J09).
fn has_sidecar(pod: &Pod) -> bool {
    const PROXIES: [&str; 2] = [PROXY, "istio-proxy"];
    const INITS: [&str; 4] = [INIT, VALIDATOR, "istio-init", "istio-validation"];
    // From whichever registry: many clusters have a mirror.
    const IMAGES: [&str; 2] = ["/linkerd/proxy:", "/istio-release/proxyv2:"];
    let is_proxy = |container: &Container| {
        let image = container.image.as_deref().unwrap_or_default();
        PROXIES.contains(&container.name.as_str()) || IMAGES.iter().any(|name| image.contains(name))
    };
    pod.spec.as_ref().is_some_and(|spec| {
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        spec.containers.iter().chain(inits).any(is_proxy)
            || inits.iter().any(|init| INITS.contains(&init.name.as_str()))
    })
}

fn is_unsupported(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let is_static = annotations.is_some_and(|all| all.contains_key(MIRROR));
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    is_static || os.is_some_and(|os| os.name == "windows")
}
