//! Owns the set of objects the control plane reads and how one is recognised by `apiVersion` and `kind`; does not
//! check what they say beyond their types (the index does).

pub mod link;
pub mod node;
pub mod pod;
pub mod policy;
pub mod profile;
pub mod route;
pub mod traffic;
pub mod workload;

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use link::Link;
use node::Node;
use pod::Pod;
use policy::{
    AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication, Server, ServerAuthorization,
};
use profile::ServiceProfile;
use route::{GrpcRoute, HttpRoute, RouteGroup, TcpRoute, TlsRoute};
use traffic::{EgressNetwork, HttpLocalRateLimitPolicy};
use workload::ExternalWorkload;

/// Namespace and name of an object; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Name {
    /// Namespace; empty for objects of the whole cluster (Node).
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
}

impl Name {
    /// Joins a namespace and a name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What an object is. The two HTTPRoute groups are two kinds, because their names are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Kind {
    /// core/v1 Service
    Service,
    /// discovery.k8s.io/v1 EndpointSlice
    EndpointSlice,
    /// core/v1 Pod
    Pod,
    /// core/v1 Node
    Node,
    /// policy.linkerd.io Server
    Server,
    /// policy.linkerd.io ServerAuthorization
    ServerAuthorization,
    /// policy.linkerd.io AuthorizationPolicy
    AuthorizationPolicy,
    /// policy.linkerd.io MeshTLSAuthentication
    MeshTlsAuthentication,
    /// policy.linkerd.io NetworkAuthentication
    NetworkAuthentication,
    /// policy.linkerd.io HTTPRoute
    PolicyHttpRoute,
    /// gateway.networking.k8s.io HTTPRoute
    GatewayHttpRoute,
    /// gateway.networking.k8s.io GRPCRoute
    GrpcRoute,
    /// gateway.networking.k8s.io TLSRoute
    TlsRoute,
    /// gateway.networking.k8s.io TCPRoute
    TcpRoute,
    /// policy.linkerd.io EgressNetwork
    EgressNetwork,
    /// policy.linkerd.io HTTPLocalRateLimitPolicy
    HttpLocalRateLimitPolicy,
    /// linkerd.io ServiceProfile
    ServiceProfile,
    /// workload.linkerd.io ExternalWorkload
    ExternalWorkload,
    /// multicluster.linkerd.io Link
    Link,
}

/// What a kind is called in the API (contract 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// API group; empty for core kinds.
    pub group: &'static str,
    /// Kind, as it is written in a manifest.
    pub kind: &'static str,
    /// Name of the collection in URLs.
    pub plural: &'static str,
    /// Versions that this control plane reads, the preferred one first.
    pub versions: &'static [&'static str],
}

impl Kind {
    /// All kinds that this control plane reads.
    pub const ALL: [Self; 19] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Pod,
        Self::Node,
        Self::Server,
        Self::ServerAuthorization,
        Self::AuthorizationPolicy,
        Self::MeshTlsAuthentication,
        Self::NetworkAuthentication,
        Self::PolicyHttpRoute,
        Self::GatewayHttpRoute,
        Self::GrpcRoute,
        Self::TlsRoute,
        Self::TcpRoute,
        Self::EgressNetwork,
        Self::HttpLocalRateLimitPolicy,
        Self::ServiceProfile,
        Self::ExternalWorkload,
        Self::Link,
    ];

    /// Recognises a kind; `None` for anything this control plane does not read (contract 10).
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self::ALL.into_iter().find(|known| {
            let api = known.api();
            api.group == group && api.kind == kind && api.versions.contains(&version)
        })
    }

    /// What it is called in the API.
    pub fn api(self) -> Api {
        const POLICY: &str = "policy.linkerd.io";
        const GATEWAY: &str = "gateway.networking.k8s.io";
        let (group, kind, plural, versions): (_, _, _, &[&str]) = match self {
            Self::Service => ("", "Service", "services", &["v1"]),
            Self::EndpointSlice => (
                "discovery.k8s.io",
                "EndpointSlice",
                "endpointslices",
                &["v1"],
            ),
            Self::Pod => ("", "Pod", "pods", &["v1"]),
            Self::Node => ("", "Node", "nodes", &["v1"]),
            Self::Server => (
                POLICY,
                "Server",
                "servers",
                &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
            ),
            Self::ServerAuthorization => (
                POLICY,
                "ServerAuthorization",
                "serverauthorizations",
                &["v1beta1", "v1alpha1"],
            ),
            Self::AuthorizationPolicy => (
                POLICY,
                "AuthorizationPolicy",
                "authorizationpolicies",
                &["v1alpha1"],
            ),
            Self::MeshTlsAuthentication => (
                POLICY,
                "MeshTLSAuthentication",
                "meshtlsauthentications",
                &["v1alpha1"],
            ),
            Self::NetworkAuthentication => (
                POLICY,
                "NetworkAuthentication",
                "networkauthentications",
                &["v1alpha1"],
            ),
            Self::PolicyHttpRoute => (
                POLICY,
                "HTTPRoute",
                "httproutes",
                &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
            ),
            Self::GatewayHttpRoute => (GATEWAY, "HTTPRoute", "httproutes", &["v1", "v1beta1"]),
            Self::GrpcRoute => (GATEWAY, "GRPCRoute", "grpcroutes", &["v1", "v1alpha2"]),
            Self::TlsRoute => (
                GATEWAY,
                "TLSRoute",
                "tlsroutes",
                &["v1", "v1alpha3", "v1alpha2"],
            ),
            Self::TcpRoute => (GATEWAY, "TCPRoute", "tcproutes", &["v1alpha2"]),
            Self::EgressNetwork => (POLICY, "EgressNetwork", "egressnetworks", &["v1alpha1"]),
            Self::HttpLocalRateLimitPolicy => (
                POLICY,
                "HTTPLocalRateLimitPolicy",
                "httplocalratelimitpolicies",
                &["v1alpha1"],
            ),
            Self::ServiceProfile => (
                "linkerd.io",
                "ServiceProfile",
                "serviceprofiles",
                &["v1alpha2", "v1alpha1"],
            ),
            Self::ExternalWorkload => (
                "workload.linkerd.io",
                "ExternalWorkload",
                "externalworkloads",
                &["v1beta1", "v1alpha1"],
            ),
            Self::Link => (
                "multicluster.linkerd.io",
                "Link",
                "links",
                &["v1alpha3", "v1alpha2", "v1alpha1"],
            ),
        };
        Api {
            group,
            kind,
            plural,
            versions,
        }
    }

    /// The `kind` as people write it; with its group where two groups have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PolicyHttpRoute => "HTTPRoute.policy.linkerd.io",
            Self::GatewayHttpRoute => "HTTPRoute.gateway.networking.k8s.io",
            other => other.api().kind,
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub fn namespaced(self) -> bool {
        self != Self::Node
    }
}

/// Names one object among all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ObjectRef {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub name: Name,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// One object, as the API server or a manifest has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// core/v1 Service
    Service(Box<Service>),
    /// discovery.k8s.io/v1 EndpointSlice
    EndpointSlice(Box<EndpointSlice>),
    /// core/v1 Pod
    Pod(Box<Pod>),
    /// core/v1 Node
    Node(Box<Node>),
    /// policy.linkerd.io Server
    Server(Box<Server>),
    /// policy.linkerd.io ServerAuthorization
    ServerAuthorization(Box<ServerAuthorization>),
    /// policy.linkerd.io AuthorizationPolicy
    AuthorizationPolicy(Box<AuthorizationPolicy>),
    /// policy.linkerd.io MeshTLSAuthentication
    MeshTlsAuthentication(Box<MeshTlsAuthentication>),
    /// policy.linkerd.io NetworkAuthentication
    NetworkAuthentication(Box<NetworkAuthentication>),
    /// HTTPRoute of either group
    HttpRoute(RouteGroup, Box<HttpRoute>),
    /// gateway.networking.k8s.io GRPCRoute
    GrpcRoute(Box<GrpcRoute>),
    /// gateway.networking.k8s.io TLSRoute
    TlsRoute(Box<TlsRoute>),
    /// gateway.networking.k8s.io TCPRoute
    TcpRoute(Box<TcpRoute>),
    /// policy.linkerd.io EgressNetwork
    EgressNetwork(Box<EgressNetwork>),
    /// policy.linkerd.io HTTPLocalRateLimitPolicy
    HttpLocalRateLimitPolicy(Box<HttpLocalRateLimitPolicy>),
    /// linkerd.io ServiceProfile
    ServiceProfile(Box<ServiceProfile>),
    /// workload.linkerd.io ExternalWorkload
    ExternalWorkload(Box<ExternalWorkload>),
    /// multicluster.linkerd.io Link
    Link(Box<Link>),
}

impl Object {
    /// Reads an object of a known kind, with whatever format the deserializer has.
    ///
    /// # Errors
    /// Those of the deserializer: a field that is missing or of the wrong type.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(
        kind: Kind,
        from: D,
    ) -> Result<Self, D::Error> {
        Ok(match kind {
            Kind::Service => Self::Service(Deserialize::deserialize(from)?),
            Kind::EndpointSlice => Self::EndpointSlice(Deserialize::deserialize(from)?),
            Kind::Pod => Self::Pod(Deserialize::deserialize(from)?),
            Kind::Node => Self::Node(Deserialize::deserialize(from)?),
            Kind::Server => Self::Server(Deserialize::deserialize(from)?),
            Kind::ServerAuthorization => Self::ServerAuthorization(Deserialize::deserialize(from)?),
            Kind::AuthorizationPolicy => Self::AuthorizationPolicy(Deserialize::deserialize(from)?),
            Kind::MeshTlsAuthentication => {
                Self::MeshTlsAuthentication(Deserialize::deserialize(from)?)
            }
            Kind::NetworkAuthentication => {
                Self::NetworkAuthentication(Deserialize::deserialize(from)?)
            }
            Kind::PolicyHttpRoute => {
                Self::HttpRoute(RouteGroup::Policy, Deserialize::deserialize(from)?)
            }
            Kind::GatewayHttpRoute => {
                Self::HttpRoute(RouteGroup::Gateway, Deserialize::deserialize(from)?)
            }
            Kind::GrpcRoute => Self::GrpcRoute(Deserialize::deserialize(from)?),
            Kind::TlsRoute => Self::TlsRoute(Deserialize::deserialize(from)?),
            Kind::TcpRoute => Self::TcpRoute(Deserialize::deserialize(from)?),
            Kind::EgressNetwork => Self::EgressNetwork(Deserialize::deserialize(from)?),
            Kind::HttpLocalRateLimitPolicy => {
                Self::HttpLocalRateLimitPolicy(Deserialize::deserialize(from)?)
            }
            Kind::ServiceProfile => Self::ServiceProfile(Deserialize::deserialize(from)?),
            Kind::ExternalWorkload => Self::ExternalWorkload(Deserialize::deserialize(from)?),
            Kind::Link => Self::Link(Deserialize::deserialize(from)?),
        })
    }

    /// What this object is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Pod(_) => Kind::Pod,
            Self::Node(_) => Kind::Node,
            Self::Server(_) => Kind::Server,
            Self::ServerAuthorization(_) => Kind::ServerAuthorization,
            Self::AuthorizationPolicy(_) => Kind::AuthorizationPolicy,
            Self::MeshTlsAuthentication(_) => Kind::MeshTlsAuthentication,
            Self::NetworkAuthentication(_) => Kind::NetworkAuthentication,
            Self::HttpRoute(RouteGroup::Policy, _) => Kind::PolicyHttpRoute,
            Self::HttpRoute(RouteGroup::Gateway, _) => Kind::GatewayHttpRoute,
            Self::GrpcRoute(_) => Kind::GrpcRoute,
            Self::TlsRoute(_) => Kind::TlsRoute,
            Self::TcpRoute(_) => Kind::TcpRoute,
            Self::EgressNetwork(_) => Kind::EgressNetwork,
            Self::HttpLocalRateLimitPolicy(_) => Kind::HttpLocalRateLimitPolicy,
            Self::ServiceProfile(_) => Kind::ServiceProfile,
            Self::ExternalWorkload(_) => Kind::ExternalWorkload,
            Self::Link(_) => Kind::Link,
        }
    }

    /// Name, labels, annotations and times.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Service(o) => &o.metadata,
            Self::EndpointSlice(o) => &o.metadata,
            Self::Pod(o) => &o.metadata,
            Self::Node(o) => &o.metadata,
            Self::Server(o) => &o.metadata,
            Self::ServerAuthorization(o) => &o.metadata,
            Self::AuthorizationPolicy(o) => &o.metadata,
            Self::MeshTlsAuthentication(o) => &o.metadata,
            Self::NetworkAuthentication(o) => &o.metadata,
            Self::HttpRoute(_, o) => &o.metadata,
            Self::GrpcRoute(o) => &o.metadata,
            Self::TlsRoute(o) => &o.metadata,
            Self::TcpRoute(o) => &o.metadata,
            Self::EgressNetwork(o) => &o.metadata,
            Self::HttpLocalRateLimitPolicy(o) => &o.metadata,
            Self::ServiceProfile(o) => &o.metadata,
            Self::ExternalWorkload(o) => &o.metadata,
            Self::Link(o) => &o.metadata,
        }
    }

    /// Namespace and name; a missing namespace is `default`, as `kubectl apply` has it.
    pub fn name(&self) -> Name {
        let metadata = self.metadata();
        let namespace = match (self.kind().namespaced(), metadata.namespace.as_deref()) {
            (false, _) => "",
            (true, None | Some("")) => "default",
            (true, Some(namespace)) => namespace,
        };
        Name::new(namespace, metadata.name.as_deref().unwrap_or_default())
    }

    /// The reference under which the index keeps this object.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: self.kind(),
            name: self.name(),
        }
    }
}

#[cfg(test)]
mod tests;
