//! Owns the linkerd.io ServiceProfile as it is written (contract 8.1, 10); does not check conditions, durations or
//! quantities.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use serde::{Deserialize, Serialize};

/// Routes, retry budget and other destinations of one Service; its name is the Service's DNS name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceProfile {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition; v1alpha2 allows it to be absent.
    #[serde(default)]
    pub spec: ServiceProfileSpec,
}

/// The definition of a [`ServiceProfile`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceProfileSpec {
    /// Routes in order; the first that matches counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<ProfileRoute>,
    /// How many retries there may be; the default budget when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<RetryBudget>,
    /// Other destinations that take a share each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dst_overrides: Vec<WeightedDestination>,
    /// Ports without protocol detection, numbers and ranges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque_ports: Vec<String>,
}

/// A route of a [`ServiceProfile`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileRoute {
    /// Its name in metrics.
    pub name: String,
    /// Which requests.
    pub condition: RequestMatch,
    /// Which responses are successes or failures; the first that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_classes: Vec<ResponseClass>,
    /// Whether failed requests may be sent again.
    #[serde(default)]
    pub is_retryable: bool,
    /// Time limit of the whole exchange, as Go writes durations, e.g. `300ms`, `1m30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// Which requests: each field that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMatch {
    /// All of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<RequestMatch>>,
    /// At least one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<RequestMatch>>,
    /// Not this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not: Option<Box<RequestMatch>>,
    /// The whole path matches this regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
    /// The method is this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// Says which responses are failures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseClass {
    /// Which responses.
    pub condition: ResponseMatch,
    /// Whether they are failures.
    #[serde(default)]
    pub is_failure: bool,
}

/// Which responses: each field that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseMatch {
    /// All of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<ResponseMatch>>,
    /// At least one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<ResponseMatch>>,
    /// Not this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not: Option<Box<ResponseMatch>>,
    /// The status is in this range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusRange>,
}

/// A range of status codes, both ends included; an absent end is the other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusRange {
    /// First.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// How many retries there may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryBudget {
    /// Retries per original request, 0.2 = one in five.
    pub retry_ratio: f32,
    /// Retries per second that are always allowed.
    pub min_retries_per_second: u32,
    /// How long a request counts, as Go writes durations.
    pub ttl: String,
}

/// A destination and its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightedDestination {
    /// DNS name of a Service, with or without a port.
    pub authority: String,
    /// Its share as a Kubernetes quantity, e.g. `900m` or 1.
    pub weight: IntOrString,
}
