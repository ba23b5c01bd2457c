//! Owns the one Rust shape of both HTTPRoute kinds as they are written (policy.linkerd.io and
//! gateway.networking.k8s.io) and what all route kinds share; does not check values.

mod grpc;
mod stream;

pub use grpc::{GrpcMatch, GrpcMethodMatch, GrpcRoute, GrpcRouteSpec, GrpcRule};
pub use stream::{StreamRule, TcpRoute, TcpRouteSpec, TlsRoute, TlsRouteSpec};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::policy::readable_conditions;

/// Which of the two HTTPRoute kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum RouteGroup {
    /// policy.linkerd.io
    Policy,
    /// gateway.networking.k8s.io
    Gateway,
}

impl RouteGroup {
    /// The API group.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy.linkerd.io",
            Self::Gateway => "gateway.networking.k8s.io",
        }
    }
}

/// Routes HTTP requests of its parents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpRoute {
    /// Name, labels, age.
    pub metadata: ObjectMeta,
    /// The definition.
    pub spec: HttpRouteSpec,
    /// What controllers say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The definition of an [`HttpRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteSpec {
    /// Services, Servers or EgressNetworks.
    pub parent_refs: Vec<ParentRef>,
    /// Hosts; none = all.
    pub hostnames: Vec<String>,
    /// Rules in order; none = everything to the parent.
    pub rules: Vec<Rule>,
}

/// A parent of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// API group; gateway.networking.k8s.io when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; Gateway when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace; the route's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Part of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port of the parent; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// One rule: what it takes and where that goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Any of these; none = everything.
    pub matches: Vec<RouteMatch>,
    /// In order.
    pub filters: Vec<Filter>,
    /// Where requests go; none = the parent.
    pub backend_refs: Vec<BackendRef>,
    /// Time limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
}

/// All of these must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteMatch {
    /// Path; none = prefix `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<ValueMatch>,
    /// Headers.
    pub headers: Vec<ValueMatch>,
    /// Query parameters.
    pub query_params: Vec<ValueMatch>,
    /// Method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A path, header or query parameter and how it is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueMatch {
    /// How; `Exact` for headers and parameters, `PathPrefix` for paths when absent.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchKind>,
    /// Name of the header or parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Compared value; `/` when a path has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatchKind {
    /// Equal.
    Exact,
    /// By whole path segments.
    PathPrefix,
    /// The whole value matches.
    RegularExpression,
}

/// A filter; the field of its type is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    /// `RequestHeaderModifier`, `ResponseHeaderModifier`, `RequestRedirect`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Changes request headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes response headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HeaderModifier>,
    /// Answers with a redirect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<Redirect>,
}

/// Changes headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Replaced.
    pub set: Vec<Header>,
    /// Added.
    pub add: Vec<Header>,
    /// Removed.
    pub remove: Vec<String>,
}

/// A header with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A redirect; what is absent stays as the request has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Redirect {
    /// `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// Host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    /// Port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Status code, 302 when absent (Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}

/// Changes a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum PathModifier {
    /// All of it.
    ReplaceFullPath {
        /// The new path.
        replace_full_path: String,
    },
    /// The matched prefix.
    ReplacePrefixMatch {
        /// The new prefix.
        replace_prefix_match: String,
    },
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// API group; core when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; Service when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; the route's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Port; a Service needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Share among the backends of the rule; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Filters for requests that go here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
}

/// Time limits in the Gateway API's format (GEP-2257), e.g. `1h30m`, `100ms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// Of the whole exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<String>,
}

/// What controllers say about a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    /// One entry per parent and controller.
    pub parents: Vec<ParentStatus>,
}

/// What one controller says about one parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The parent.
    pub parent_ref: ParentRef,
    /// Who says it.
    pub controller_name: String,
    /// `Accepted`, `ResolvedRefs`.
    #[serde(default, deserialize_with = "readable_conditions")]
    pub conditions: Vec<Condition>,
}
