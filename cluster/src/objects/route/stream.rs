//! Owns the gateway.networking.k8s.io TLSRoute and TCPRoute as they are written; what they share with HTTPRoutes is in
//! `route`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteStatus};

/// Routes TLS connections of its parents by the name that the client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsRoute {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: TlsRouteSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The definition of a [`TlsRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsRouteSpec {
    /// Services or EgressNetworks.
    pub parent_refs: Vec<ParentRef>,
    /// Names that clients ask for (SNI); none = all.
    pub hostnames: Vec<String>,
    /// One rule (contract 9.6).
    pub rules: Vec<StreamRule>,
}

/// Routes connections of its parents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpRoute {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: TcpRouteSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The definition of a [`TcpRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpRouteSpec {
    /// Services or EgressNetworks.
    pub parent_refs: Vec<ParentRef>,
    /// One rule (contract 9.6).
    pub rules: Vec<StreamRule>,
}

/// Where connections go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRule {
    /// In shares by weight; none = the parent.
    pub backend_refs: Vec<BackendRef>,
}
