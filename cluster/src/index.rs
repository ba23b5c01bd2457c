//! Owns the pure store of facts that answers proxies: `apply`, `delete` and `reset` return the keys that changed.
//! No I/O, no clock, no logging; whoever feeds it reports the objects it refuses.

mod authorization;
mod egress;
mod node;
mod notes;
mod pod;
mod profile;
mod rate_limit;
mod reader;
mod route;
mod selector;
mod server;
mod service;
mod slice;
mod status;
mod table;
mod traffic;
mod workload;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

pub use authorization::{
    AuthenticationRef, Authorization, AuthorizationTarget, ClientAuthentication, Identities,
    NetworkMatch, ServerAuthz, ServerChoice,
};
pub use egress::EgressNetwork;
pub use node::Node;
pub use pod::{CONTROL_NAMESPACE_LABEL, ContainerPort, HostPort, PROXY_CONTAINER, Pod, ProxyPorts};
pub use profile::{
    ProfileRoute, RequestCondition, ResponseClass, ResponseCondition, RetryBudget, ServiceProfile,
    WeightedTarget,
};
pub use rate_limit::RateLimit;
pub use reader::Reader;
pub use route::{
    Backend, BackendKind, GrpcMatch, HeaderFilter, HostMatch, PathMatch, Route, RouteFilter,
    RouteMatch, RouteParent, RouteParentKind, RouteRule, RouteRules, TextMatch, gateway_duration,
};
pub use selector::Selector;
pub use server::{PortRef, Server};
pub use service::{AppProtocol, Service, ServicePort};
pub use slice::{EndpointTarget, SERVICE_NAME_LABEL, Slice, SliceEndpoint, SlicePort};
pub use status::WrittenStatus;
pub use traffic::{
    Backoff, FailureAccrual, GrpcCode, GrpcConditions, HttpConditions, Penalty, Retries, Retry,
    RouteTimeouts, SuccessRate, Traffic,
};
pub use workload::ExternalWorkload;

use crate::objects::{Kind, Name, Object, ObjectRef};
use table::{ByGroup, Rows, Table};

/// Age of an object: nanoseconds since 1970, `None` when it has no creationTimestamp (oldest).
pub type Created = Option<i128>;

/// One thing somebody may have read from the index.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A Service.
    Service(Name),
    /// The slices of a Service.
    Slices(Name),
    /// A pod.
    Pod(Name),
    /// A node.
    Node(Arc<str>),
    /// The Services, pods and external workloads that have an address.
    Address(IpAddr),
    /// The pods that a port of a node leads to.
    HostPort(SocketAddr),
    /// The external workloads of a namespace.
    Workloads(Arc<str>),
    /// A ServiceProfile.
    Profile(Name),
    /// The Servers of a namespace.
    Servers(Arc<str>),
    /// The AuthorizationPolicies and ServerAuthorizations of a namespace.
    Authorizations(Arc<str>),
    /// A MeshTLSAuthentication or NetworkAuthentication of this name.
    Authentication(Name),
    /// The EgressNetworks of a namespace.
    EgressNetworks(Arc<str>),
    /// The HTTPLocalRateLimitPolicies of a namespace.
    RateLimits(Arc<str>),
    /// The routes that have this parent.
    Routes(RouteParentKind, Name),
    /// What controllers have written about an object.
    Status(ObjectRef),
}

/// Why an object, or one field of it, does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The object.
    pub object: ObjectRef,
    /// Path of the field, e.g. `spec.port`.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
    /// Whether the whole object was refused (its previous version stays in force) or only this field.
    pub refused: bool,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            object,
            field,
            reason,
            ..
        } = self;
        let effect = if self.refused {
            "the object is ignored, its last good version stays in force"
        } else {
            "the field is ignored"
        };
        write!(f, "{object}: {field}: {reason}; {effect}")
    }
}

/// What an update changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// What has another value than before.
    pub keys: HashSet<Key>,
    /// What was refused.
    pub invalid: Vec<Invalid>,
}

impl Changed {
    /// Adds what another update changed.
    pub fn merge(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.invalid.extend(other.invalid);
    }
}

/// The store.
#[derive(Debug, Default)]
pub struct Index {
    services: Table<Service>,
    services_by_ip: ByGroup<IpAddr>,
    slices: Table<Slice>,
    slices_by_service: ByGroup<Name>,
    pods: Table<Pod>,
    pods_by_ip: ByGroup<IpAddr>,
    pods_by_host_port: ByGroup<SocketAddr>,
    workloads: Table<ExternalWorkload>,
    workloads_by_ip: ByGroup<IpAddr>,
    service_profiles: Table<ServiceProfile>,
    nodes: Table<Node>,
    servers: Table<Server>,
    authorizations: Table<Authorization>,
    server_authzs: Table<ServerAuthz>,
    identities: Table<Identities>,
    networks: Table<Vec<NetworkMatch>>,
    egress_networks: Table<EgressNetwork>,
    rate_limits: Table<RateLimit>,
    routes: HashMap<Kind, Table<Route>>,
    routes_by_parent: ByGroup<(RouteParentKind, Name, Kind)>,
    statuses: HashMap<Kind, Table<WrittenStatus>>,
}

impl Index {
    /// Stores an object. An equal one changes nothing; an invalid one is refused and its last good version stays.
    pub fn apply(&mut self, object: &Object) -> Changed {
        let name = object.name();
        let mut notes = notes::Notes::new(object.reference());
        let keys = match object {
            Object::Service(o) => {
                service::read(o, &mut notes).map(|v| self.set_service(&name, Some(v)))
            }
            Object::EndpointSlice(o) => {
                slice::read(o, &name, &mut notes).map(|v| self.set_slice(&name, Some(v)))
            }
            Object::Pod(o) => Some(self.set_pod(&name, Some(pod::read(o, &name, &mut notes)))),
            Object::Node(o) => Some(self.set_node(&name, Some(node::read(o)))),
            Object::Server(o) => {
                server::read(o, &name, &mut notes).map(|v| self.set_server(&name, Some(v)))
            }
            Object::AuthorizationPolicy(o) => {
                authorization::read_policy(o, &name, &mut notes).map(|v| {
                    authorization_keys(&name, self.authorizations.set(&name, Some(v)).is_some())
                })
            }
            Object::ServerAuthorization(o) => {
                authorization::read_server_authorization(o, &name, &mut notes).map(|v| {
                    authorization_keys(&name, self.server_authzs.set(&name, Some(v)).is_some())
                })
            }
            Object::MeshTlsAuthentication(o) => {
                authorization::read_identities(o, &name, &mut notes).map(|v| {
                    authentication_keys(&name, self.identities.set(&name, Some(v)).is_some())
                })
            }
            Object::NetworkAuthentication(o) => {
                authorization::read_networks(&o.spec.networks, "spec.networks", &mut notes).map(
                    |v| authentication_keys(&name, self.networks.set(&name, Some(v)).is_some()),
                )
            }
            Object::EgressNetwork(o) => egress::read(o, &name, &mut notes)
                .map(|v| egress_keys(&name, self.egress_networks.set(&name, Some(v)).is_some())),
            Object::HttpLocalRateLimitPolicy(o) => rate_limit::read(o, &name, &mut notes)
                .map(|v| rate_limit_keys(&name, self.rate_limits.set(&name, Some(v)).is_some())),
            Object::HttpRoute(..)
            | Object::GrpcRoute(_)
            | Object::TlsRoute(_)
            | Object::TcpRoute(_) => route::read(object, &name, &mut notes)
                .map(|v| self.set_route(object.kind(), &name, Some(v))),
            Object::ExternalWorkload(o) => {
                workload::read(o, &name, &mut notes).map(|v| self.set_workload(&name, Some(v)))
            }
            Object::ServiceProfile(o) => {
                profile::read(o, &name, &mut notes).map(|v| self.set_profile(&name, Some(v)))
            }
            Object::Link(_) => None,
        };
        Changed {
            keys: self.with_status(object.reference(), status::read(object), keys),
            invalid: notes.finish(),
        }
    }

    /// Removes an object; one that is not there changes nothing.
    pub fn delete(&mut self, object: &ObjectRef) -> Changed {
        let name = &object.name;
        let keys = match object.kind {
            Kind::Service => self.set_service(name, None),
            Kind::EndpointSlice => self.set_slice(name, None),
            Kind::Pod => self.set_pod(name, None),
            Kind::Node => self.set_node(name, None),
            Kind::Server => self.set_server(name, None),
            Kind::AuthorizationPolicy => {
                authorization_keys(name, self.authorizations.set(name, None).is_some())
            }
            Kind::ServerAuthorization => {
                authorization_keys(name, self.server_authzs.set(name, None).is_some())
            }
            Kind::MeshTlsAuthentication => {
                authentication_keys(name, self.identities.set(name, None).is_some())
            }
            Kind::NetworkAuthentication => {
                authentication_keys(name, self.networks.set(name, None).is_some())
            }
            Kind::EgressNetwork => {
                egress_keys(name, self.egress_networks.set(name, None).is_some())
            }
            Kind::HttpLocalRateLimitPolicy => {
                rate_limit_keys(name, self.rate_limits.set(name, None).is_some())
            }
            Kind::PolicyHttpRoute
            | Kind::GatewayHttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute => self.set_route(object.kind, name, None),
            Kind::ExternalWorkload => self.set_workload(name, None),
            Kind::ServiceProfile => self.set_profile(name, None),
            Kind::Link => HashSet::new(),
        };
        Changed {
            keys: self.with_status(object.clone(), None, Some(keys)),
            invalid: Vec::new(),
        }
    }

    /// Replaces all objects of a kind (a watch that starts over). Objects of other kinds in `objects` are ignored.
    pub fn reset(&mut self, kind: Kind, objects: &[Object]) -> Changed {
        self.reset_but(kind, objects, &[])
    }

    /// Replaces all objects of a kind but those in `kept`, which exist in a version that cannot be read.
    pub fn reset_but(&mut self, kind: Kind, objects: &[Object], kept: &[Name]) -> Changed {
        let mut changed = Changed::default();
        let wanted: HashSet<Name> = objects
            .iter()
            .filter(|o| o.kind() == kind)
            .map(Object::name)
            .chain(kept.iter().cloned())
            .collect();
        let mut gone = self.rows(kind).map(Rows::names).unwrap_or_default();
        gone.retain(|name| !wanted.contains(name));
        for name in gone {
            changed.merge(self.delete(&ObjectRef { kind, name }));
        }
        for object in objects.iter().filter(|o| o.kind() == kind) {
            changed.merge(self.apply(object));
        }
        changed
    }

    /// How many objects of a kind there are; those that were refused do not count.
    pub fn count(&self, kind: Kind) -> usize {
        self.rows(kind).map(Rows::len).unwrap_or_default()
    }

    /// What controllers have written about the objects whose status the mesh writes, by kind, then by name.
    pub fn statuses(&self) -> impl Iterator<Item = (ObjectRef, &WrittenStatus)> {
        let kinds = Kind::ALL.into_iter();
        kinds.flat_map(|kind| {
            let table = self.statuses.get(&kind).into_iter();
            table.flat_map(Table::iter).map(move |(name, status)| {
                let name = name.clone();
                (ObjectRef { kind, name }, &**status)
            })
        })
    }

    /// The pods of a namespace, by name. Not read through a [`Reader`]: for whoever compares everything anew from time to time.
    pub fn pods_of(&self, namespace: &Arc<str>) -> impl Iterator<Item = &Pod> + use<'_> {
        self.pods.in_namespace(namespace).map(Arc::as_ref)
    }

    /// Stores what is written about an object, whatever became of the rest of it. The key changes with the facts only: one
    /// that was refused changes nothing for anybody.
    fn with_status(
        &mut self,
        object: ObjectRef,
        mut status: Option<WrittenStatus>,
        facts: Option<HashSet<Key>>,
    ) -> HashSet<Key> {
        let table = match status {
            Some(_) => Some(self.statuses.entry(object.kind).or_default()),
            None => self.statuses.get_mut(&object.kind),
        };
        if let (Some(status), Some(table), None) = (&mut status, &table, &facts) {
            status.generation = table
                .find(&object.name)
                .and_then(|before| before.generation);
        }
        let changed = table.is_some_and(|table| table.set(&object.name, status).is_some());
        let Some(mut keys) = facts else {
            return HashSet::new();
        };
        if changed {
            keys.insert(Key::Status(object));
        }
        keys
    }

    fn rows(&self, kind: Kind) -> Option<&dyn Rows> {
        Some(match kind {
            Kind::Service => &self.services,
            Kind::EndpointSlice => &self.slices,
            Kind::Pod => &self.pods,
            Kind::Node => &self.nodes,
            Kind::Server => &self.servers,
            Kind::AuthorizationPolicy => &self.authorizations,
            Kind::ServerAuthorization => &self.server_authzs,
            Kind::MeshTlsAuthentication => &self.identities,
            Kind::NetworkAuthentication => &self.networks,
            Kind::EgressNetwork => &self.egress_networks,
            Kind::HttpLocalRateLimitPolicy => &self.rate_limits,
            Kind::PolicyHttpRoute
            | Kind::GatewayHttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute => self.routes.get(&kind)?,
            Kind::ExternalWorkload => &self.workloads,
            Kind::ServiceProfile => &self.service_profiles,
            Kind::Link => return None,
        })
    }

    fn set_service(&mut self, name: &Name, service: Option<Service>) -> HashSet<Key> {
        let new: Vec<IpAddr> = service
            .as_ref()
            .map(|s| s.cluster_ips.clone())
            .unwrap_or_default();
        let Some(old) = self.services.set(name, service) else {
            return HashSet::new();
        };
        let old = old.map(|s| s.cluster_ips.clone()).unwrap_or_default();
        self.services_by_ip.regroup(name, &old, &new);
        let addresses = old.into_iter().chain(new).map(Key::Address);
        addresses.chain([Key::Service(name.clone())]).collect()
    }

    fn set_slice(&mut self, name: &Name, slice: Option<Slice>) -> HashSet<Key> {
        let new: Vec<Name> = slice.iter().map(|s| s.service.clone()).collect();
        let Some(old) = self.slices.set(name, slice) else {
            return HashSet::new();
        };
        let old: Vec<Name> = old.iter().map(|s| s.service.clone()).collect();
        self.slices_by_service.regroup(name, &old, &new);
        old.into_iter().chain(new).map(Key::Slices).collect()
    }

    fn set_pod(&mut self, name: &Name, pod: Option<Pod>) -> HashSet<Key> {
        let of = |pod: Option<&Pod>| {
            pod.map(|pod| (pod.addresses(), pod.host_addresses()))
                .unwrap_or_default()
        };
        let (new, new_host) = of(pod.as_ref());
        let Some(old) = self.pods.set(name, pod) else {
            return HashSet::new();
        };
        let (old, old_host) = of(old.as_deref());
        self.pods_by_ip.regroup(name, &old, &new);
        self.pods_by_host_port.regroup(name, &old_host, &new_host);
        let addresses = old.into_iter().chain(new).map(Key::Address);
        let host_ports = old_host.into_iter().chain(new_host).map(Key::HostPort);
        addresses
            .chain(host_ports)
            .chain([Key::Pod(name.clone())])
            .collect()
    }

    fn set_workload(&mut self, name: &Name, workload: Option<ExternalWorkload>) -> HashSet<Key> {
        let ips = |workload: Option<&ExternalWorkload>| {
            workload
                .map(|workload| workload.ips.clone())
                .unwrap_or_default()
        };
        let new = ips(workload.as_ref());
        let Some(old) = self.workloads.set(name, workload) else {
            return HashSet::new();
        };
        let old = ips(old.as_deref());
        self.workloads_by_ip.regroup(name, &old, &new);
        let addresses = old.into_iter().chain(new).map(Key::Address);
        let workloads = Key::Workloads(Arc::clone(&name.namespace));
        addresses.chain([workloads]).collect()
    }

    fn set_profile(&mut self, name: &Name, profile: Option<ServiceProfile>) -> HashSet<Key> {
        let changed = self.service_profiles.set(name, profile).is_some();
        changed
            .then(|| Key::Profile(name.clone()))
            .into_iter()
            .collect()
    }

    fn set_node(&mut self, name: &Name, node: Option<Node>) -> HashSet<Key> {
        let changed = self.nodes.set(name, node).is_some();
        changed
            .then(|| Key::Node(Arc::clone(&name.name)))
            .into_iter()
            .collect()
    }

    fn set_server(&mut self, name: &Name, server: Option<Server>) -> HashSet<Key> {
        let changed = self.servers.set(name, server).is_some();
        changed
            .then(|| Key::Servers(Arc::clone(&name.namespace)))
            .into_iter()
            .collect()
    }

    fn set_route(&mut self, kind: Kind, name: &Name, route: Option<Route>) -> HashSet<Key> {
        let groups = |route: Option<&Route>| -> Vec<_> {
            route
                .into_iter()
                .flat_map(|r| &r.parents)
                .map(|p| (p.kind, p.name.clone(), kind))
                .collect()
        };
        let new = groups(route.as_ref());
        let table = self.routes.entry(kind).or_default();
        let Some(old) = table.set(name, route) else {
            return HashSet::new();
        };
        let old = groups(old.as_deref());
        self.routes_by_parent.regroup(name, &old, &new);
        old.into_iter()
            .chain(new)
            .map(|(kind, parent, _)| Key::Routes(kind, parent))
            .collect()
    }
}

fn authorization_keys(name: &Name, changed: bool) -> HashSet<Key> {
    changed
        .then(|| Key::Authorizations(Arc::clone(&name.namespace)))
        .into_iter()
        .collect()
}

fn egress_keys(name: &Name, changed: bool) -> HashSet<Key> {
    changed
        .then(|| Key::EgressNetworks(Arc::clone(&name.namespace)))
        .into_iter()
        .collect()
}

fn rate_limit_keys(name: &Name, changed: bool) -> HashSet<Key> {
    changed
        .then(|| Key::RateLimits(Arc::clone(&name.namespace)))
        .into_iter()
        .collect()
}

fn authentication_keys(name: &Name, changed: bool) -> HashSet<Key> {
    changed
        .then(|| Key::Authentication(name.clone()))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests;
