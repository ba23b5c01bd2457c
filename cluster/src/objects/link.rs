//! Owns the multicluster.linkerd.io Link as it is written (contract 10); does not check durations or numbers in texts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

/// Another cluster whose Services are mirrored here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    #[serde(default)]
    pub spec: LinkSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LinkStatus>,
}

/// The definition of a [`Link`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkSpec {
    /// Name of the other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cluster_name: Option<String>,
    /// Domain of its Service names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cluster_domain: Option<String>,
    /// Namespace of its control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cluster_linkerd_namespace: Option<String>,
    /// Secret with the credentials for its API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_credentials_secret: Option<String>,
    /// Addresses of its gateway, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_address: Option<String>,
    /// Identity of its gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_identity: Option<String>,
    /// Port of its gateway, a number in a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_port: Option<String>,
    /// How its gateway is probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_spec: Option<ProbeSpec>,
    /// Services that are mirrored through the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Services whose endpoints are read from the other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_discovery_selector: Option<LabelSelector>,
    /// Services that join a federated Service (v1alpha2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub federated_service_selector: Option<LabelSelector>,
    /// Annotations that mirrors do not take over (v1alpha3).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_annotations: Vec<String>,
    /// Labels that mirrors do not take over (v1alpha3).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_labels: Vec<String>,
}

/// How a gateway is probed; numbers and durations are texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeSpec {
    /// Failures in a row until the gateway counts as down; 3 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Time between probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Time limit of a probe; 30s when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// What controllers say about a [`Link`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkStatus {
    /// One entry per mirrored Service.
    pub mirror_services: Vec<ServiceStatus>,
    /// One entry per Service that joined a federated one.
    pub federated_services: Vec<ServiceStatus>,
}

/// What controllers say about one Service of another cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// Who says it.
    pub controller_name: String,
    /// The Service.
    pub remote_ref: RemoteRef,
    /// `Mirrored`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Names an object of another cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRef {
    /// API group; empty for core kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}
