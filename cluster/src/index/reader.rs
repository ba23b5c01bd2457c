//! Owns reading the index so that what was read is remembered: a state computed with a [`Reader`] is computed again when
//! one of those keys changes, and no dependency can be forgotten. Does not change the index.

use std::{cell::RefCell, collections::HashSet, net::IpAddr, sync::Arc};

use super::{
    Authorization, Identities, Index, Key, NetworkMatch, Node, Pod, Route, RouteParentKind, Server,
    ServerAuthz, Service, Slice,
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

    /// A node.
    pub fn node(&self, name: &str) -> Option<&'a Node> {
        let name = Name::new("", name);
        self.note(Key::Node(Arc::clone(&name.name)));
        self.index.nodes.find(&name).map(Arc::as_ref)
    }

    /// The Server that speaks for a port of a pod: the oldest, then the first by name (contract 8.2).
    pub fn server_of(&self, pod: &Pod, port: u16) -> Option<&'a Server> {
        let namespace = &pod.name.namespace;
        self.note(Key::Servers(Arc::clone(namespace)));
        let servers = self.index.servers.in_namespace(namespace).map(Arc::as_ref);
        // The table is in the order of names, and min_by_key takes the first of equals.
        servers
            .filter(|server| server.selects(pod, port))
            .min_by_key(|server| server.created)
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

    /// The routes that have a parent, oldest first, then by name (contract 8.2).
    pub fn routes(&self, kind: RouteParentKind, parent: &Name) -> Vec<&'a Route> {
        self.note(Key::Routes(kind, parent.clone()));
        let tables = [
            (Kind::PolicyHttpRoute, &self.index.policy_routes),
            (Kind::GatewayHttpRoute, &self.index.gateway_routes),
        ];
        let mut routes = Vec::new();
        for (group, table) in tables {
            let names = self
                .index
                .routes_by_parent
                .members(&(kind, parent.clone(), group));
            routes.extend(names.filter_map(|name| table.find(name)).map(Arc::as_ref));
        }
        routes.sort_by_key(|route| (route.created, route.name.clone()));
        routes
    }
}
