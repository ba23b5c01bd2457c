//! Owns the policy.linkerd.io types for traffic that leaves the cluster and for rate limits as they are written
//! (contract 8.2, 10); does not check networks or rates.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::policy::{Cidr, ConditionsStatus, TypedRef, readable_conditions};

/// Destinations outside of the cluster, a parent of routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressNetwork {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: EgressNetworkSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ConditionsStatus>,
}

/// The definition of an [`EgressNetwork`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressNetworkSpec {
    /// Any of these; absent = everything but the cluster's networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Cidr>>,
    /// What happens to traffic that no route takes.
    pub traffic_policy: TrafficPolicy,
}

/// What happens to traffic that no route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// It goes where it wants to.
    Allow,
    /// It is refused.
    Deny,
}

/// Limits the rate of HTTP requests of each pod behind a Server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpLocalRateLimitPolicy {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: HttpLocalRateLimitPolicySpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<HttpLocalRateLimitPolicyStatus>,
}

/// The definition of an [`HttpLocalRateLimitPolicy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpLocalRateLimitPolicySpec {
    /// A Server of the policy's namespace.
    pub target_ref: TypedRef,
    /// Limit of all clients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<RateLimit>,
    /// Limit of each client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<RateLimit>,
    /// Limits of certain clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Vec<RateLimitOverride>>,
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Requests per second.
    pub requests_per_second: u32,
}

/// A rate for certain clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitOverride {
    /// Requests per second.
    pub requests_per_second: u32,
    /// ServiceAccounts.
    pub client_refs: Vec<TypedRef>,
}

/// What controllers say about an [`HttpLocalRateLimitPolicy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpLocalRateLimitPolicyStatus {
    /// `Accepted`.
    #[serde(default, deserialize_with = "readable_conditions")]
    pub conditions: Vec<Condition>,
    /// The target that the conditions are about.
    pub target_ref: TypedRef,
}
