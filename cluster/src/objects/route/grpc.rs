//! Owns the gateway.networking.k8s.io GRPCRoute as it is written; what it shares with HTTPRoutes is in `route`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, Filter, ParentRef, RouteStatus, ValueMatch};

/// Routes gRPC requests of its parents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrpcRoute {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    #[serde(default)]
    pub spec: GrpcRouteSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The definition of a [`GrpcRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteSpec {
    /// Services, Servers or EgressNetworks.
    pub parent_refs: Vec<ParentRef>,
    /// Hosts; none = all.
    pub hostnames: Vec<String>,
    /// Rules in order; none = everything to the parent.
    pub rules: Vec<GrpcRule>,
}

/// One rule: what it takes and where that goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// Any of these; none = everything.
    pub matches: Vec<GrpcMatch>,
    /// In order.
    pub filters: Vec<Filter>,
    /// Where requests go; none = the parent.
    pub backend_refs: Vec<BackendRef>,
}

/// All of these must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    /// Service and method; none = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    /// Headers.
    pub headers: Vec<ValueMatch>,
}

/// A gRPC service, method or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcMethodMatch {
    /// `Exact` (when absent) or `RegularExpression`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<super::MatchKind>,
    /// Full name of the service; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Name of the method; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
