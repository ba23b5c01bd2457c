//! Owns HTTPLocalRateLimitPolicies as facts (contract 8.2, 10); which of two for one Server counts is decided elsewhere.

use std::sync::Arc;

use super::{Created, notes::Notes, pod::created};
use crate::objects::{
    Name,
    traffic::{HttpLocalRateLimitPolicy, RateLimitOverride},
};

/// An HTTPLocalRateLimitPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// The Server of its namespace that it is for.
    pub server: Arc<str>,
    /// Requests per second of all clients together.
    pub total: Option<u32>,
    /// Requests per second of each client.
    pub identity: Option<u32>,
    /// Requests per second of certain clients.
    pub overrides: Vec<(u32, Vec<Name>)>,
}

pub(super) fn read(
    policy: &HttpLocalRateLimitPolicy,
    name: &Name,
    notes: &mut Notes,
) -> Option<RateLimit> {
    let spec = &policy.spec;
    let target = &spec.target_ref;
    let elsewhere = |namespace: &str| namespace != &*name.namespace;
    if (target.group.as_str(), target.kind.as_str()) != ("policy.linkerd.io", "Server")
        || target.namespace.as_deref().is_some_and(elsewhere)
    {
        let reason = "a rate limit is for a Server.policy.linkerd.io of its own namespace";
        return notes.refuse("spec.targetRef", reason);
    }
    let overrides = spec.overrides.iter().flatten().enumerate();
    let overrides: Option<Vec<_>> = overrides
        .map(|(index, given)| {
            let field = format!("spec.overrides[{index}]");
            let rate = rate(given.requests_per_second, &field, notes)?;
            Some((rate, clients(given, name, &field, notes)?))
        })
        .collect();
    let overrides = overrides?;
    let total = match spec.total {
        None => None,
        Some(limit) => Some(rate(limit.requests_per_second, "spec.total", notes)?),
    };
    let identity = match spec.identity {
        None => None,
        Some(limit) => Some(rate(limit.requests_per_second, "spec.identity", notes)?),
    };
    Some(RateLimit {
        name: name.clone(),
        created: created(&policy.metadata),
        server: target.name.as_str().into(),
        total,
        identity,
        overrides,
    })
}

fn rate(per_second: u32, field: &str, notes: &mut Notes) -> Option<u32> {
    if per_second == 0 {
        let field = format!("{field}.requestsPerSecond");
        return notes.refuse(&field, "0 is not a rate, at least 1 is needed");
    }
    Some(per_second)
}

fn clients(
    given: &RateLimitOverride,
    name: &Name,
    field: &str,
    notes: &mut Notes,
) -> Option<Vec<Name>> {
    let mut clients = Vec::with_capacity(given.client_refs.len());
    for (index, client) in given.client_refs.iter().enumerate() {
        match (client.group.as_str(), client.kind.as_str()) {
            ("" | "core", "ServiceAccount") => {
                let namespace = client.namespace.as_deref().unwrap_or(&name.namespace);
                clients.push(Name::new(namespace, &client.name));
            }
            (group, kind) => {
                let field = format!("{field}.clientRefs[{index}]");
                return notes.refuse(&field, format!("{kind}.{group} is not a ServiceAccount"));
            }
        }
    }
    Some(clients)
}
