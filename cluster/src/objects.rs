//! Owns the set of objects the control plane reads and how one is recognised by `apiVersion` and `kind`; does not
//! check what they say beyond their types (the index does).

pub mod policy;
pub mod route;

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use policy::{
    AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication, Server, ServerAuthorization,
};
use route::{HttpRoute, RouteGroup};

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
}

impl Kind {
    /// Recognises a kind; `None` for anything this control plane does not read (contract 10).
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let policy = group == "policy.linkerd.io";
        Some(match (group, version, kind) {
            ("", "v1", "Service") => Self::Service,
            ("", "v1", "Pod") => Self::Pod,
            ("", "v1", "Node") => Self::Node,
            ("discovery.k8s.io", "v1", "EndpointSlice") => Self::EndpointSlice,
            (_, "v1alpha1" | "v1beta1" | "v1beta2" | "v1beta3", "Server") if policy => Self::Server,
            (_, "v1alpha1" | "v1beta1", "ServerAuthorization") if policy => {
                Self::ServerAuthorization
            }
            (_, "v1alpha1", "AuthorizationPolicy") if policy => Self::AuthorizationPolicy,
            (_, "v1alpha1", "MeshTLSAuthentication") if policy => Self::MeshTlsAuthentication,
            (_, "v1alpha1", "NetworkAuthentication") if policy => Self::NetworkAuthentication,
            (_, "v1alpha1" | "v1beta1" | "v1beta2" | "v1beta3", "HTTPRoute") if policy => {
                Self::PolicyHttpRoute
            }
            ("gateway.networking.k8s.io", "v1beta1" | "v1", "HTTPRoute") => Self::GatewayHttpRoute,
            _ => return None,
        })
    }

    /// The `kind` as it is written in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Server => "Server",
            Self::ServerAuthorization => "ServerAuthorization",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::MeshTlsAuthentication => "MeshTLSAuthentication",
            Self::NetworkAuthentication => "NetworkAuthentication",
            Self::PolicyHttpRoute => "HTTPRoute.policy.linkerd.io",
            Self::GatewayHttpRoute => "HTTPRoute.gateway.networking.k8s.io",
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
