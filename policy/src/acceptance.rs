//! Owns the rules by which routes, EgressNetworks and rate limits are accepted (contract 8.2), as pure functions over the
//! index; Servers and AuthorizationPolicies are in `inbound`. Serving applies them directly, so it does not wait for statuses to
//! be written; the status writer says what they say. Neither reads nor writes a status.

mod inbound;

use weft_cluster::{
    Kind, MeshSettings, Name, Reader,
    index::{
        Backend, BackendKind, EgressNetwork, RateLimit, Route, RouteParent, RouteParentKind,
        RouteRules,
    },
};

pub(crate) use inbound::{authentications, authorization, server, server_port};

/// Why a condition does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The `reason` of the condition.
    pub(crate) reason: &'static str,
    /// The `message` of the condition; empty when the reason says it all.
    pub(crate) message: String,
}

fn refuse(reason: &'static str, message: impl Into<String>) -> Result<(), Refusal> {
    let message = message.into();
    Err(Refusal { reason, message })
}

const NO_MATCHING_PARENT: &str = "NoMatchingParent";
const CONFLICTED: &str = "RouteReasonConflicted";
const INVALID_KIND: &str = "InvalidKind";
const BACKEND_NOT_FOUND: &str = "BackendNotFound";

/// `Accepted` of a route at one of its parents.
///
/// # Errors
/// Why it is not.
pub(crate) fn route(
    index: &Reader<'_>,
    mesh: &MeshSettings,
    route: &Route,
    parent: &RouteParent,
) -> Result<(), Refusal> {
    match parent.kind {
        RouteParentKind::Service => match index.service(&parent.name) {
            None => return refuse(NO_MATCHING_PARENT, ""),
            Some(service) if service.cluster_ips.is_empty() => {
                return refuse(NO_MATCHING_PARENT, "parent service must have a ClusterIP");
            }
            Some(_) => {}
        },
        RouteParentKind::Server => {
            // A Server takes routes of its own namespace only.
            let elsewhere = parent.name.namespace != route.name.namespace;
            if elsewhere || index.server(&parent.name).is_none() {
                return refuse(NO_MATCHING_PARENT, "");
            }
            if matches!(route.rules, RouteRules::Stream(_)) {
                let message = "a Server takes HTTPRoutes and GRPCRoutes only";
                return refuse(NO_MATCHING_PARENT, message);
            }
        }
        RouteParentKind::EgressNetwork => match index.egress_network(&parent.name) {
            None => return refuse(NO_MATCHING_PARENT, ""),
            Some(network) if egress_network(mesh, network).is_err() => {
                return refuse(
                    NO_MATCHING_PARENT,
                    "the EgressNetwork itself is not accepted",
                );
            }
            Some(_) => {}
        },
    }
    match rival(index, route, parent) {
        None => Ok(()),
        Some(rival) => {
            let message = format!("{} {} has this parent", rival.kind.as_str(), rival.name);
            refuse(CONFLICTED, message)
        }
    }
}

/// A route of a higher-ranked kind at the same parent and port. A consumer's route does not displace the routes of
/// others: only those of the parent's namespace and of the route's own count.
fn rival<'a>(index: &Reader<'a>, route: &Route, parent: &RouteParent) -> Option<&'a Route> {
    let higher = Route::KINDS.into_iter();
    let mut routes = higher
        .filter(|kind| rank(*kind) < rank(route.kind))
        .flat_map(|kind| index.routes_of_kind(kind, parent.kind, &parent.name));
    routes.find(|other| {
        let namespace = &other.name.namespace;
        other.parents.contains(parent)
            && (*namespace == parent.name.namespace || *namespace == route.name.namespace)
    })
}

/// The most specific kind first (GEP-1426).
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::GrpcRoute => 0,
        Kind::PolicyHttpRoute | Kind::GatewayHttpRoute => 1,
        Kind::TlsRoute => 2,
        _ => 3,
    }
}

/// `ResolvedRefs` of a route at one of its parents: whether each of its backends can be reached from there. Parents that
/// are Servers have no such condition.
///
/// # Errors
/// The backend that cannot be reached; one of a wrong kind first, because that stays whatever is created.
pub(crate) fn backends(
    index: &Reader<'_>,
    route: &Route,
    parent: &RouteParent,
) -> Result<(), Refusal> {
    let backends = route.rules.backends();
    let faults = backends
        .into_iter()
        .filter_map(|b| backend(index, b, parent.kind, &parent.name).err());
    match faults.min_by_key(|fault| fault.reason != INVALID_KIND) {
        None => Ok(()),
        Some(fault) => Err(fault),
    }
}

/// Whether one backend can be reached from a parent of the route.
///
/// # Errors
/// Why it cannot.
pub(crate) fn backend(
    index: &Reader<'_>,
    backend: &Backend,
    parent_kind: RouteParentKind,
    parent: &Name,
) -> Result<(), Refusal> {
    let name = &backend.name;
    match &backend.kind {
        BackendKind::Service if index.service(name).is_none() => refuse(
            BACKEND_NOT_FOUND,
            format!("backend Service {name} does not exist"),
        ),
        BackendKind::Service if backend.port.is_none() => refuse(
            BACKEND_NOT_FOUND,
            format!("backend Service {name} is given without a port"),
        ),
        BackendKind::Service => Ok(()),
        BackendKind::EgressNetwork if index.egress_network(name).is_none() => refuse(
            BACKEND_NOT_FOUND,
            format!("backend EgressNetwork {name} does not exist"),
        ),
        BackendKind::EgressNetwork => match parent_kind {
            RouteParentKind::EgressNetwork if parent == name => Ok(()),
            _ => refuse(
                INVALID_KIND,
                format!("backend EgressNetwork {name} is not the parent of the route"),
            ),
        },
        BackendKind::Other(kind) => refuse(
            INVALID_KIND,
            format!("backend {name} is a {kind}, not a Service or EgressNetwork"),
        ),
    }
}

/// `Accepted` of an EgressNetwork.
///
/// # Errors
/// Why it is not.
pub(crate) fn egress_network(mesh: &MeshSettings, network: &EgressNetwork) -> Result<(), Refusal> {
    if network.overlaps(&mesh.cluster_networks) {
        let message = "spec.networks has addresses that are also in the networks of the cluster";
        return refuse("EgressReasonNetworkOverlap", message);
    }
    Ok(())
}

/// `Accepted` of an HTTPLocalRateLimitPolicy: its Server exists and no older policy limits it.
///
/// # Errors
/// Why it is not.
pub(crate) fn rate_limit(index: &Reader<'_>, limit: &RateLimit) -> Result<(), Refusal> {
    let server = Name {
        namespace: limit.name.namespace.clone(),
        name: limit.server.clone(),
    };
    if index.server(&server).is_none() {
        return refuse("NoMatchingTarget", "");
    }
    match index.rate_limits(&server).first() {
        Some(first) if first.name != limit.name => refuse(
            "RateLimitReasonAlreadyExists",
            format!("HTTPLocalRateLimitPolicy {} limits this Server", first.name),
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
