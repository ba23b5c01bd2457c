//! Owns the policy.linkerd.io types for servers and authorizations as they are written (contract 10); does not own
//! routes, and does not check what a schema cannot.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, ObjectMeta},
    util::intstr::IntOrString,
};
use serde::{Deserialize, Deserializer, Serialize};

/// A port of some pods, its protocol and who may connect when nothing else says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: ServerSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ConditionsStatus>,
}

/// A status that is a list of conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConditionsStatus {
    /// `Accepted`, `ResolvedRefs`.
    #[serde(deserialize_with = "readable_conditions")]
    pub conditions: Vec<Condition>,
}

/// Conditions without those that lack something. Others write them too, and what they write must not make a policy unreadable:
/// it would not be in force then.
pub(super) fn readable_conditions<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<Condition>, D::Error> {
    let given = Option::<Vec<serde_json::Value>>::deserialize(from)?;
    let readable = given.into_iter().flatten().map(Condition::deserialize);
    Ok(readable.flatten().collect())
}

/// The definition of a [`Server`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// Pods in the Server's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// External workloads in the Server's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_workload_selector: Option<LabelSelector>,
    /// Number or name of the container port.
    pub port: IntOrString,
    /// What is spoken there.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// A default policy name; `deny` when absent (v1beta3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_policy: Option<String>,
}

/// The protocol of a [`Server`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyProtocol {
    /// Detected per connection.
    #[default]
    #[serde(rename = "unknown")]
    Unknown,
    /// HTTP/1.x without detection.
    #[serde(rename = "HTTP/1")]
    Http1,
    /// HTTP/2 without detection.
    #[serde(rename = "HTTP/2")]
    Http2,
    /// gRPC (HTTP/2).
    #[serde(rename = "gRPC")]
    Grpc,
    /// Bytes.
    #[serde(rename = "opaque")]
    Opaque,
    /// TLS made by the application.
    #[serde(rename = "TLS")]
    Tls,
}

/// The older way to authorize clients of a [`Server`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerAuthorization {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: ServerAuthorizationSpec,
}

/// The definition of a [`ServerAuthorization`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerAuthorizationSpec {
    /// Which Servers.
    pub server: ServerSelector,
    /// Which clients.
    pub client: ServerClient,
}

/// Chooses Servers by name or by label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerSelector {
    /// One Server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Servers with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Clients of a [`ServerAuthorization`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerClient {
    /// Where they may be; absent = the cluster's networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Cidr>>,
    /// Whether they may be without a certificate.
    #[serde(default)]
    pub unauthenticated: bool,
    /// Who they must be.
    #[serde(default, rename = "meshTLS", skip_serializing_if = "Option::is_none")]
    pub mesh_tls: Option<MeshTlsClient>,
}

/// Identities of a [`ServerClient`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshTlsClient {
    /// Any connection over mesh TLS, with or without a client certificate.
    #[serde(rename = "unauthenticatedTLS")]
    pub unauthenticated_tls: bool,
    /// Names, `*.suffix` or `*`.
    pub identities: Vec<String>,
    /// Service accounts.
    pub service_accounts: Vec<ServiceAccountRef>,
}

/// A service account; the namespace defaults to that of the object that names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceAccountRef {
    /// Name of the account.
    pub name: String,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A network less some of its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cidr {
    /// Network or single address.
    pub cidr: String,
    /// Networks or addresses within that do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except: Option<Vec<String>>,
}

/// Requires authentications of the clients of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthorizationPolicy {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: AuthorizationPolicySpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ConditionsStatus>,
}

/// The definition of an [`AuthorizationPolicy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationPolicySpec {
    /// A Server, HTTPRoute or the policy's own namespace.
    pub target_ref: TypedRef,
    /// All of these must hold; none = everyone.
    pub required_authentication_refs: Vec<TypedRef>,
}

/// A reference with a group and a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypedRef {
    /// API group; empty or `core` for core kinds.
    #[serde(default)]
    pub group: String,
    /// Kind, without a version.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace; that of the referring object when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Clients by identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeshTlsAuthentication {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: MeshTlsAuthenticationSpec,
}

/// The definition of a [`MeshTlsAuthentication`]: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshTlsAuthenticationSpec {
    /// Names, `*.suffix` or `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    /// ServiceAccounts or Namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_refs: Option<Vec<TypedRef>>,
}

/// Clients by network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkAuthentication {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: NetworkAuthenticationSpec,
}

/// The definition of a [`NetworkAuthentication`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkAuthenticationSpec {
    /// Any of these.
    pub networks: Vec<Cidr>,
}
