//! Owns reading the index so that what was read is remembered: a state computed with a [`Reader`] is computed again when
//! one of those keys changes, and no dependency can be forgotten. Does not change the index.

use std::{
    cell::RefCell,
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    Authorization, EgressNetwork, ExternalWorkload, Identities, Index, Key, NetworkMatch, Node,
    Pod, RateLimit, Route, RouteParentKind, Server, ServerAuthz, Service, ServiceProfile, Slice,
};
use crate::objects::{Kind, Name};

/// Reads an index and remembers what was read.
#[derive(Debug)]
pub struct Reader<'a> {
    index: &'a Index,
    keys: RefCell<HashSet<Key>>,
}

impl<'a> Reader<'a> {
    /// Starts with nothing read.
    pub fn new(index: &'a Index) -> Self {
        Self {
            index,
            keys: RefCell::default(),
        }
    }

    /// What was read.
    pub fn into_keys(self) -> HashSet<Key> {
        self.keys.into_inner()
    }

    fn note(&self, key: Key) {
        self.keys.borrow_mut().insert(key);
    }

    /// A Service.
    pub fn service(&self, name: &Name) -> Option<&'a Service> {
        self.note(Key::Service(name.clone()));
        self.index.services.find(name).map(Arc::as_ref)
    }

    /// The Services that have a ClusterIP; more than one is a fault of the cluster.
    pub fn services_at(&self, address: IpAddr) -> Vec<&'a Name> {
        self.note(Key::Address(address));
        self.index.services_by_ip.members(&address).collect()
    }

    /// The slices of a Service, by name.
    pub fn slices(&self, service: &Name) -> impl Iterator<Item = &'a Slice> + use<'a> {
        self.note(Key::Slices(service.clone()));
        let index = self.index;
        index
            .slices_by_service
            .members(service)
            .filter_map(|name| index.slices.find(name))
            .map(Arc::as_ref)
    }

    /// A pod.
    pub fn pod(&self, name: &Name) -> Option<&'a Pod> {
        self.note(Key::Pod(name.clone()));
        self.index.pods.find(name).map(Arc::as_ref)
    }

    /// The running pod that has an address as its own; of several (one that is going) the first by name.
    pub fn pod_at(&self, address: IpAddr) -> Option<&'a Pod> {
        self.note(Key::Address(address));
        let name = self.index.pods_by_ip.members(&address).next()?;
        self.pod(name)
    }

    /// The running pod that a port of its node leads to, and its own port behind that.
    pub fn pod_at_host_port(&self, address: SocketAddr) -> Option<(&'a Pod, u16)> {
        self.note(Key::HostPort(address));
        let name = self.index.pods_by_host_port.members(&address).next()?;
        let pod = self.pod(name)?;
        let port = pod.host_ports.iter().find(|port| port.host == address)?;
        Some((pod, port.container))
    }

    /// The external workloads of a namespace, by name.
    pub fn workloads(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &'a ExternalWorkload> + use<'a> {
        self.note(Key::Workloads(Arc::clone(namespace)));
        let workloads = self.index.workloads.in_namespace(namespace);
        workloads.map(Arc::as_ref)
    }

    /// An external workload.
    pub fn workload(&self, name: &Name) -> Option<&'a ExternalWorkload> {
        self.note(Key::Workloads(Arc::clone(&name.namespace)));
        self.index.workloads.find(name).map(Arc::as_ref)
    }

    /// The external workload that has an address; of several the first by name.
    pub fn workload_at(&self, address: IpAddr) -> Option<&'a ExternalWorkload> {
        self.note(Key::Address(address));
        let name = self.index.workloads_by_ip.members(&address).next()?;
        self.workload(name)
    }

    /// A ServiceProfile.
    pub fn service_profile(&self, name: &Name) -> Option<&'a ServiceProfile> {
        self.note(Key::Profile(name.clone()));
        self.index.service_profiles.find(name).map(Arc::as_ref)
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&'a Node> {
        let name = Name::new("", name);
        self.note(Key::Node(Arc::clone(&name.name)));
        self.index.nodes.find(&name).map(Arc::as_ref)
    }

    /// The Server that speaks for a port of a pod: the oldest, then the first by name (contract 8.2).
    pub fn server_of(&self, pod: &Pod, port: u16) -> Option<&'a Server> {
        // They come in the order of names, and min_by_key takes the first of equals.
        self.servers(&pod.name.namespace)
            .filter(|server| server.selects(pod, port))
            .min_by_key(|server| server.created)
    }

    /// The Server that speaks for a port of an external workload, chosen by the same rule.
    pub fn server_of_workload(&self, workload: &ExternalWorkload, port: u16) -> Option<&'a Server> {
        self.servers(&workload.name.namespace)
            .filter(|server| server.selects_workload(workload, port))
            .min_by_key(|server| server.created)
    }

    /// The Servers of a namespace, by name.
    pub fn servers(&self, namespace: &Arc<str>) -> impl Iterator<Item = &'a Server> + use<'a> {
        self.note(Key::Servers(Arc::clone(namespace)));
        let servers = self.index.servers.in_namespace(namespace);
        servers.map(Arc::as_ref)
    }

    /// A Server by name.
    pub fn server(&self, name: &Name) -> Option<&'a Server> {
        self.note(Key::Servers(Arc::clone(&name.namespace)));
        self.index.servers.find(name).map(Arc::as_ref)
    }

    /// The AuthorizationPolicies of a namespace, by name.
    pub fn authorizations(&self, namespace: &Arc<str>) -> Vec<&'a Authorization> {
        self.note(Key::Authorizations(Arc::clone(namespace)));
        self.index
            .authorizations
            .in_namespace(namespace)
            .map(Arc::as_ref)
            .collect()
    }

    /// An AuthorizationPolicy.
    pub fn authorization(&self, name: &Name) -> Option<&'a Authorization> {
        self.note(Key::Authorizations(Arc::clone(&name.namespace)));
        self.index.authorizations.find(name).map(Arc::as_ref)
    }

    /// The ServerAuthorizations of a namespace, by name.
    pub fn server_authorizations(&self, namespace: &Arc<str>) -> Vec<&'a ServerAuthz> {
        self.note(Key::Authorizations(Arc::clone(namespace)));
        self.index
            .server_authzs
            .in_namespace(namespace)
            .map(Arc::as_ref)
            .collect()
    }

    /// A MeshTLSAuthentication.
    pub fn identities(&self, name: &Name) -> Option<&'a Identities> {
        self.note(Key::Authentication(name.clone()));
        self.index.identities.find(name).map(Arc::as_ref)
    }

    /// A NetworkAuthentication.
    pub fn networks(&self, name: &Name) -> Option<&'a [NetworkMatch]> {
        self.note(Key::Authentication(name.clone()));
        self.index
            .networks
            .find(name)
            .map(|networks| networks.as_slice())
    }

    /// An EgressNetwork.
    pub fn egress_network(&self, name: &Name) -> Option<&'a EgressNetwork> {
        self.note(Key::EgressNetworks(Arc::clone(&name.namespace)));
        self.index.egress_networks.find(name).map(Arc::as_ref)
    }

    /// The EgressNetworks of a namespace, by name.
    pub fn egress_networks(&self, namespace: &Arc<str>) -> Vec<&'a Arc<EgressNetwork>> {
        self.note(Key::EgressNetworks(Arc::clone(namespace)));
        self.index.egress_networks.in_namespace(namespace).collect()
    }

    /// The HTTPLocalRateLimitPolicies for a Server, oldest first, then by name (contract 8.2).
    pub fn rate_limits(&self, server: &Name) -> Vec<&'a RateLimit> {
        self.note(Key::RateLimits(Arc::clone(&server.namespace)));
        let limits = self.index.rate_limits.in_namespace(&server.namespace);
        let limits = limits.map(Arc::as_ref);
        let mut limits: Vec<&RateLimit> = limits.filter(|l| l.server == server.name).collect();
        // The table is in the order of names, and sorting keeps the order of equals.
        limits.sort_by_key(|limit| limit.created);
        limits
    }

    /// An HTTPLocalRateLimitPolicy.
    pub fn rate_limit(&self, name: &Name) -> Option<&'a RateLimit> {
        self.note(Key::RateLimits(Arc::clone(&name.namespace)));
        self.index.rate_limits.find(name).map(Arc::as_ref)
    }

    /// The routes of all kinds that have a parent, oldest first, then by name (contract 8.2).
    pub fn routes(&self, kind: RouteParentKind, parent: &Name) -> Vec<&'a Route> {
        let mut routes: Vec<&Route> = Vec::new();
        for route in Route::KINDS {
            routes.extend(self.routes_of_kind(route, kind, parent));
        }
        routes.sort_by_key(|route| (route.created, route.name.clone()));
        routes
    }

    /// The routes of one kind that have a parent, by name.
    pub fn routes_of_kind(
        &self,
        route: Kind,
        kind: RouteParentKind,
        parent: &Name,
    ) -> impl Iterator<Item = &'a Route> + use<'a> {
        self.note(Key::Routes(kind, parent.clone()));
        let index = self.index;
        let table = index.routes.get(&route);
        let names = index
            .routes_by_parent
            .members(&(kind, parent.clone(), route));
        names
            .filter_map(move |name| table?.find(name))
            .map(Arc::as_ref)
    }

    /// A route. One that is not there is not noted as read: nobody waits for a route by its name.
    pub fn route(&self, kind: Kind, name: &Name) -> Option<&'a Route> {
        let route = self.index.routes.get(&kind)?.find(name)?;
        for parent in &route.parents {
            self.note(Key::Routes(parent.kind, parent.name.clone()));
        }
        Some(route)
    }
}
