//! Owns the workload.linkerd.io ExternalWorkload as it is written (contract 8.1, 10); does not check addresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

/// A meshed program outside of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalWorkload {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: ExternalWorkloadSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExternalWorkloadStatus>,
}

/// The definition of an [`ExternalWorkload`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalWorkloadSpec {
    /// Who it is. v1alpha1 spells the field `meshTls`.
    #[serde(rename = "meshTLS", alias = "meshTls")]
    pub mesh_tls: WorkloadTls,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<WorkloadPort>,
    /// Its addresses.
    #[serde(default, rename = "workloadIPs", skip_serializing_if = "Vec::is_empty")]
    pub workload_ips: Vec<WorkloadIp>,
}

/// The names in the certificate of an [`ExternalWorkload`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadTls {
    /// Its identity: a DNS name or a SPIFFE URI.
    pub identity: String,
    /// The name that clients ask for (SNI).
    pub server_name: String,
}

/// A port of an [`ExternalWorkload`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadPort {
    /// Name; `linkerd-proxy` is the inbound port of its proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number.
    pub port: u16,
    /// `TCP` (when absent) or `UDP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// An address of an [`ExternalWorkload`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadIp {
    /// IPv4 or IPv6.
    pub ip: String,
}

/// What controllers say about an [`ExternalWorkload`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExternalWorkloadStatus {
    /// `Ready`.
    pub conditions: Vec<Condition>,
}
