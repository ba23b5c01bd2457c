//! Owns what is refused at admission although the index could live with it (contract 9.6), kind by kind; a fault is the path
//! of a field and what is wrong with it. ServiceProfiles are in `profile`.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_cluster::{
    Object,
    index::gateway_duration,
    objects::{
        policy::{AuthorizationPolicy, Cidr, MeshTlsAuthentication, ServerAuthorization, TypedRef},
        profile::ServiceProfile,
        route::{BackendRef, HttpRoute, ParentRef, RouteGroup},
        traffic::HttpLocalRateLimitPolicy,
    },
};

use super::{GATEWAY, identity};

/// The path of a field, and what is wrong with it.
pub(super) type Fault = (String, String);

const POLICY: &str = "policy.linkerd.io";
/// What a policy can be for.
const TARGETS: &[(&str, &str)] = &[
    (POLICY, "Server"),
    (POLICY, "HTTPRoute"),
    (GATEWAY, "HTTPRoute"),
    (GATEWAY, "GRPCRoute"),
    ("", "Namespace"),
];
/// What a policy can require.
const AUTHENTICATIONS: &[(&str, &str)] = &[
    (POLICY, "MeshTLSAuthentication"),
    (POLICY, "NetworkAuthentication"),
    ("", "ServiceAccount"),
];
/// What routes of the mesh hang on.
const PARENTS: &[(&str, &str)] = &[
    ("", "Service"),
    (POLICY, "Server"),
    (POLICY, "EgressNetwork"),
];

/// Checks the rules of the object's kind.
pub(super) fn check(object: &Object) -> Result<(), Fault> {
    match object {
        Object::AuthorizationPolicy(o) => authorization(o),
        Object::MeshTlsAuthentication(o) => mesh_tls(o),
        Object::NetworkAuthentication(o) => networks(&o.spec.networks, "spec.networks"),
        Object::ServerAuthorization(o) => server_authorization(o),
        Object::EgressNetwork(o) => match &o.spec.networks {
            Some(given) => networks(given, "spec.networks"),
            None => Ok(()),
        },
        Object::HttpLocalRateLimitPolicy(o) => rate_limit(o),
        Object::HttpRoute(RouteGroup::Policy, o) => {
            egress_ports(&o.spec.parent_refs)?;
            timeouts(o)
        }
        Object::HttpRoute(RouteGroup::Gateway, o) => {
            egress_ports(&o.spec.parent_refs)?;
            backend_ports(o.spec.rules.iter().map(|rule| &*rule.backend_refs))
        }
        Object::GrpcRoute(o) => {
            egress_ports(&o.spec.parent_refs)?;
            backend_ports(o.spec.rules.iter().map(|rule| &*rule.backend_refs))
        }
        Object::TlsRoute(o) => egress_ports(&o.spec.parent_refs),
        Object::TcpRoute(o) => egress_ports(&o.spec.parent_refs),
        Object::ServiceProfile(o) => route_names(o),
        _ => Ok(()),
    }
}

/// The parents of a route; `None` for what is no route.
pub(super) fn parents(object: &Object) -> Option<&[ParentRef]> {
    Some(match object {
        Object::HttpRoute(_, o) => &o.spec.parent_refs,
        Object::GrpcRoute(o) => &o.spec.parent_refs,
        Object::TlsRoute(o) => &o.spec.parent_refs,
        Object::TcpRoute(o) => &o.spec.parent_refs,
        _ => return None,
    })
}

/// Whether a parent is of a kind that the mesh serves.
pub(super) fn is_ours(parent: &ParentRef) -> bool {
    let (group, kind) = (parent.group.as_deref(), parent.kind.as_deref());
    // Without a group it is that of the Gateway API, without a kind it is Gateway.
    group
        .zip(kind)
        .is_some_and(|(group, kind)| PARENTS.contains(&(core(group), kind)))
}

/// What the author of a parent that is not ours may have meant.
pub(super) fn meant(parent: &ParentRef) -> Option<&'static str> {
    match parent.kind.as_deref()? {
        "Service" => Some("core"),
        "Server" | "EgressNetwork" => Some(POLICY),
        _ => None,
    }
}

fn core(group: &str) -> &str {
    if group == "core" { "" } else { group }
}

fn fault<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T, Fault> {
    Err((field.into(), reason.into()))
}

/// The most common mistake in a reference is its group (case R11), so the message says what it must be.
fn reference(given: &TypedRef, field: &str, allowed: &[(&str, &str)]) -> Result<(), Fault> {
    let TypedRef { group, kind, .. } = given;
    if allowed.contains(&(core(group), kind)) {
        return Ok(());
    }
    let same = allowed
        .iter()
        .filter(|(_, known)| known.eq_ignore_ascii_case(kind));
    let meant: Vec<String> = same
        .map(|(group, kind)| match *group {
            "" => format!("group: core, kind: {kind}"),
            group => format!("group: {group}, kind: {kind}"),
        })
        .collect();
    let names = || {
        let names: Vec<&str> = allowed.iter().map(|(_, kind)| *kind).collect();
        format!("none of {}", names.join(", "))
    };
    let remedy = match meant.is_empty() {
        true => names(),
        false => format!("write {}", meant.join(", or ")),
    };
    fault(
        field,
        format!("group {group:?} with kind {kind:?}: {remedy}"),
    )
}

fn authorization(policy: &AuthorizationPolicy) -> Result<(), Fault> {
    reference(&policy.spec.target_ref, "spec.targetRef", TARGETS)?;
    for (index, required) in policy.spec.required_authentication_refs.iter().enumerate() {
        let field = format!("spec.requiredAuthenticationRefs[{index}]");
        reference(required, &field, AUTHENTICATIONS)?;
    }
    Ok(())
}

fn mesh_tls(authentication: &MeshTlsAuthentication) -> Result<(), Fault> {
    let spec = &authentication.spec;
    if spec.identities.is_some() && spec.identity_refs.is_some() {
        return fault("spec", "give one of identities and identityRefs, not both");
    }
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        if let Err(reason) = identity::check(identity) {
            return fault(format!("spec.identities[{index}]"), reason);
        }
    }
    for (index, given) in spec.identity_refs.iter().flatten().enumerate() {
        let field = format!("spec.identityRefs[{index}]");
        reference(given, &field, &[("", "ServiceAccount"), ("", "Namespace")])?;
        if given.kind == "Namespace" && given.namespace.is_some() {
            let reason = "a Namespace is in no namespace: leave it out";
            return fault(format!("{field}.namespace"), reason);
        }
    }
    Ok(())
}

/// Networks that are no networks are left to the index.
fn networks(given: &[Cidr], field: &str) -> Result<(), Fault> {
    if given.is_empty() {
        return fault(field, "empty: give at least one network");
    }
    for (index, network) in given.iter().enumerate() {
        let excepts = network.except.iter().flatten().enumerate();
        for (at, except) in excepts {
            let (Some(net), Some(part)) = (parse(&network.cidr), parse(except)) else {
                continue;
            };
            if part.contains(&net) {
                let field = format!("{field}[{index}].except[{at}]");
                return fault(
                    field,
                    format!("{except} leaves nothing of {}", network.cidr),
                );
            }
        }
    }
    Ok(())
}

fn parse(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

fn server_authorization(authorization: &ServerAuthorization) -> Result<(), Fault> {
    let client = &authorization.spec.client;
    if let Some(tls) = &client.mesh_tls
        && tls.unauthenticated_tls
        && !(tls.identities.is_empty() && tls.service_accounts.is_empty())
    {
        let reason =
            "unauthenticatedTLS lets everybody in: take it out, or identities and serviceAccounts";
        return fault("spec.client.meshTLS", reason);
    }
    match &client.networks {
        Some(given) => networks(given, "spec.client.networks"),
        None => Ok(()),
    }
}

fn rate_limit(policy: &HttpLocalRateLimitPolicy) -> Result<(), Fault> {
    let spec = &policy.spec;
    reference(&spec.target_ref, "spec.targetRef", &[(POLICY, "Server")])?;
    let Some(total) = spec.total.map(|limit| limit.requests_per_second) else {
        return Ok(());
    };
    let identity = spec
        .identity
        .map(|limit| ("spec.identity".to_owned(), limit.requests_per_second));
    let overrides = spec.overrides.iter().flatten().enumerate();
    let overrides = overrides.map(|(i, o)| (format!("spec.overrides[{i}]"), o.requests_per_second));
    for (field, rate) in identity.into_iter().chain(overrides) {
        if rate > total {
            let reason = format!("{rate} is more than spec.total.requestsPerSecond, {total}");
            return fault(format!("{field}.requestsPerSecond"), reason);
        }
    }
    Ok(())
}

fn egress_ports(parents: &[ParentRef]) -> Result<(), Fault> {
    for (index, parent) in parents.iter().enumerate() {
        if is_ours(parent)
            && parent.kind.as_deref() == Some("EgressNetwork")
            && parent.port.is_none()
        {
            let field = format!("spec.parentRefs[{index}].port");
            return fault(field, "missing: a route needs the port of an EgressNetwork");
        }
    }
    Ok(())
}

fn backend_ports<'a>(rules: impl Iterator<Item = &'a [BackendRef]>) -> Result<(), Fault> {
    for (rule, backends) in rules.enumerate() {
        for (index, backend) in backends.iter().enumerate() {
            let group = backend.group.as_deref().unwrap_or_default();
            let kind = backend.kind.as_deref().unwrap_or("Service");
            if (core(group), kind) == ("", "Service") && backend.port.is_none() {
                let field = format!("spec.rules[{rule}].backendRefs[{index}].port");
                return fault(field, "missing: a Service as a backend needs a port");
            }
        }
    }
    Ok(())
}

/// `timeouts.request` is left to the index; zero is no limit.
fn timeouts(route: &HttpRoute) -> Result<(), Fault> {
    for (index, rule) in route.spec.rules.iter().enumerate() {
        let Some(timeouts) = &rule.timeouts else {
            continue;
        };
        let Some(text) = &timeouts.backend_request else {
            continue;
        };
        let field = format!("spec.rules[{index}].timeouts.backendRequest");
        let Some(backend) = gateway_duration(text) else {
            return fault(
                field,
                format!("{text:?} is not a duration such as 100ms or 1h30m"),
            );
        };
        let request = timeouts.request.as_deref().and_then(gateway_duration);
        if request.is_some_and(|request| !request.is_zero() && backend > request) {
            return fault(field, format!("{text} is more than timeouts.request"));
        }
    }
    Ok(())
}

fn route_names(profile: &ServiceProfile) -> Result<(), Fault> {
    match profile
        .spec
        .routes
        .iter()
        .position(|route| route.name.is_empty())
    {
        Some(index) => fault(
            format!("spec.routes[{index}].name"),
            "empty: give the route a name",
        ),
        None => Ok(()),
    }
}
