//! Owns ServiceProfiles as facts (contract 8.1): routes, retry budget, other destinations, opaque ports, all checked. Does
//! not choose between two of one Service (the client's namespace wins), whoever answers does.

mod numbers;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use weft_core::{name::PortSet, parse, route as core};

use super::notes::Notes;
use crate::{
    authority::Authority,
    objects::{Name, profile},
};

/// Conditions within conditions. Whoever decodes the message has a limit as well, and one that is too deep would cost
/// it the whole profile.
const MAX_DEPTH: usize = 16;

/// Limits of what proxies take as a retry budget; linkerd2-proxy ends when it is given others.
const RETRY_RATIO: std::ops::RangeInclusive<f32> = 0.0..=1000.0;
const RETRY_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);

/// A ServiceProfile.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceProfile {
    /// Its name: the namespace may be the client's, the name is the DNS name of the Service.
    pub name: Name,
    /// Routes in order; the first that matches counts.
    pub routes: Vec<ProfileRoute>,
    /// How many retries there may be.
    pub retry_budget: Option<RetryBudget>,
    /// Destinations that take a share each, instead of the Service.
    pub overrides: Vec<WeightedTarget>,
    /// Ports without protocol detection.
    pub opaque_ports: PortSet,
}

/// A route of a [`ServiceProfile`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRoute {
    /// Its name in metrics.
    pub name: Arc<str>,
    /// Which requests.
    pub condition: RequestCondition,
    /// Which responses are failures and which are not.
    pub classes: Vec<ResponseClass>,
    /// Whether failed requests may be sent again.
    pub retryable: bool,
    /// Time limit of the whole exchange.
    pub timeout: Option<Duration>,
}

/// Which requests a route is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestCondition {
    /// All of these.
    All(Vec<RequestCondition>),
    /// At least one of these.
    Any(Vec<RequestCondition>),
    /// Not this.
    Not(Box<RequestCondition>),
    /// The path matches this regular expression.
    Path(String),
    /// The method is this.
    Method(String),
}

/// Says which responses are failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    /// Which responses.
    pub condition: ResponseCondition,
    /// Whether they are failures.
    pub failure: bool,
}

/// Which responses a class is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseCondition {
    /// All of these.
    All(Vec<ResponseCondition>),
    /// At least one of these.
    Any(Vec<ResponseCondition>),
    /// Not this.
    Not(Box<ResponseCondition>),
    /// The status is in this range, both ends included.
    Status(u16, u16),
}

/// How many retries there may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Retries per request.
    pub ratio: f32,
    /// Retries per second that are always allowed.
    pub min_per_second: u32,
    /// How long a request counts.
    pub ttl: Duration,
}

/// A destination and its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedTarget {
    /// A name, with or without a port.
    pub authority: Arc<str>,
    /// Its share in ten-thousandths (contract 8.1: thousandths times ten).
    pub weight: u32,
}

pub(super) fn read(
    profile: &profile::ServiceProfile,
    name: &Name,
    notes: &mut Notes,
) -> Option<ServiceProfile> {
    let spec = &profile.spec;
    let mut routes = Vec::new();
    for (index, route) in spec.routes.iter().enumerate() {
        routes.push(read_route(route, &format!("spec.routes[{index}]"), notes)?);
    }
    let retry_budget = match &spec.retry_budget {
        Some(budget) => Some(read_budget(budget, notes)?),
        None => None,
    };
    let mut overrides = Vec::new();
    for (index, target) in spec.dst_overrides.iter().enumerate() {
        let field = format!("spec.dstOverrides[{index}]");
        overrides.push(read_target(target, &field, notes)?);
    }
    let mut opaque_ports = Vec::new();
    for (index, text) in spec.opaque_ports.iter().enumerate() {
        match parse::port_set(text) {
            Ok(_) => opaque_ports.push(text.as_str()),
            Err(error) => notes.ignore(&format!("spec.opaquePorts[{index}]"), error),
        }
    }
    Some(ServiceProfile {
        name: name.clone(),
        routes,
        retry_budget,
        overrides,
        opaque_ports: parse::port_set(&opaque_ports.join(",")).unwrap_or_default(),
    })
}

fn read_route(
    route: &profile::ProfileRoute,
    field: &str,
    notes: &mut Notes,
) -> Option<ProfileRoute> {
    let condition = request(&route.condition, &format!("{field}.condition"), 0, notes)?;
    let mut classes = Vec::new();
    for (index, class) in route.response_classes.iter().enumerate() {
        let field = format!("{field}.responseClasses[{index}].condition");
        classes.push(ResponseClass {
            condition: response(&class.condition, &field, 0, notes)?,
            failure: class.is_failure,
        });
    }
    let timeout = route.timeout.as_deref().filter(|text| !text.is_empty());
    let timeout = timeout.and_then(|text| match numbers::duration(text) {
        Ok(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        Err(reason) => {
            notes.ignore(&format!("{field}.timeout"), reason);
            None
        }
    });
    Some(ProfileRoute {
        name: route.name.as_str().into(),
        condition,
        classes,
        retryable: route.is_retryable,
        timeout,
    })
}

fn request(
    from: &profile::RequestMatch,
    field: &str,
    depth: usize,
    notes: &mut Notes,
) -> Option<RequestCondition> {
    if depth == MAX_DEPTH {
        return notes.refuse(field, too_deep());
    }
    let mut several = |from: &[profile::RequestMatch], kind: &str| -> Option<Vec<_>> {
        let each = from.iter().enumerate();
        each.map(|(index, m)| request(m, &format!("{field}.{kind}[{index}]"), depth + 1, notes))
            .collect()
    };
    let mut found = Vec::new();
    if let Some(all) = &from.all {
        found.push(RequestCondition::All(several(all, "all")?));
    }
    if let Some(any) = &from.any {
        found.push(RequestCondition::Any(several(any, "any")?));
    }
    if let Some(method) = from.method.as_deref().filter(|text| !text.is_empty()) {
        if !method
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        {
            return notes.refuse(
                &format!("{field}.method"),
                format!("{method:?} is no method"),
            );
        }
        found.push(RequestCondition::Method(method.to_owned()));
    }
    if let Some(not) = &from.not {
        let not = request(not, &format!("{field}.not"), depth + 1, notes)?;
        found.push(RequestCondition::Not(Box::new(not)));
    }
    if let Some(regex) = from.path_regex.as_deref().filter(|text| !text.is_empty()) {
        if let Err(error) = core::PathMatch::regex(regex) {
            return notes.refuse(&format!("{field}.pathRegex"), error);
        }
        found.push(RequestCondition::Path(regex.to_owned()));
    }
    match found.len() {
        0 => notes.refuse(field, "empty: give one of all, any, not, pathRegex, method"),
        1 => found.pop(),
        _ => Some(RequestCondition::All(found)),
    }
}

fn response(
    from: &profile::ResponseMatch,
    field: &str,
    depth: usize,
    notes: &mut Notes,
) -> Option<ResponseCondition> {
    if depth == MAX_DEPTH {
        return notes.refuse(field, too_deep());
    }
    let mut several = |from: &[profile::ResponseMatch], kind: &str| -> Option<Vec<_>> {
        let each = from.iter().enumerate();
        each.map(|(index, m)| response(m, &format!("{field}.{kind}[{index}]"), depth + 1, notes))
            .collect()
    };
    let mut found = Vec::new();
    if let Some(all) = &from.all {
        found.push(ResponseCondition::All(several(all, "all")?));
    }
    if let Some(any) = &from.any {
        found.push(ResponseCondition::Any(several(any, "any")?));
    }
    if let Some(status) = &from.status {
        match status_range(status) {
            Some((min, max)) => found.push(ResponseCondition::Status(min, max)),
            None => {
                let reason = "not a range of status codes (100 to 599, min not above max)";
                return notes.refuse(&format!("{field}.status"), reason);
            }
        }
    }
    if let Some(not) = &from.not {
        let not = response(not, &format!("{field}.not"), depth + 1, notes)?;
        found.push(ResponseCondition::Not(Box::new(not)));
    }
    match found.len() {
        0 => notes.refuse(field, "empty: give one of all, any, not, status"),
        1 => found.pop(),
        _ => Some(ResponseCondition::All(found)),
    }
}

fn too_deep() -> String {
    format!("more than {MAX_DEPTH} conditions within each other")
}

/// An end that is absent or zero is the other one.
fn status_range(range: &profile::StatusRange) -> Option<(u16, u16)> {
    let end = |end: Option<u32>| end.filter(|status| *status != 0);
    let min = end(range.min).or(end(range.max))?;
    let max = end(range.max).unwrap_or(min);
    let status = |status: u32| {
        let status = u16::try_from(status).ok()?;
        (100..600).contains(&status).then_some(status)
    };
    Some((status(min)?, status(max)?)).filter(|(min, max)| min <= max)
}

fn read_budget(budget: &profile::RetryBudget, notes: &mut Notes) -> Option<RetryBudget> {
    let ttl = match numbers::duration(&budget.ttl) {
        Ok(ttl) if RETRY_TTL.contains(&ttl) => ttl,
        Ok(_) => return notes.refuse("spec.retryBudget.ttl", "not between 1s and 60s"),
        Err(reason) => return notes.refuse("spec.retryBudget.ttl", reason),
    };
    if !RETRY_RATIO.contains(&budget.retry_ratio) {
        return notes.refuse("spec.retryBudget.retryRatio", "not between 0 and 1000");
    }
    Some(RetryBudget {
        ratio: budget.retry_ratio,
        min_per_second: budget.min_retries_per_second,
        ttl,
    })
}

fn read_target(
    target: &profile::WeightedDestination,
    field: &str,
    notes: &mut Notes,
) -> Option<WeightedTarget> {
    if Authority::parse(&target.authority).is_none() {
        let reason = format!("{:?} is not host or host:port", target.authority);
        return notes.refuse(&format!("{field}.authority"), reason);
    }
    let text = match &target.weight {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    let weight = numbers::thousandths(&text)
        .and_then(|n| n.checked_mul(10))
        .and_then(|n| u32::try_from(n).ok());
    let Some(weight) = weight else {
        let reason = format!("{text:?} is not a weight such as 900m or 1");
        return notes.refuse(&format!("{field}.weight"), reason);
    };
    Some(WeightedTarget {
        authority: target.authority.as_str().into(),
        weight,
    })
}
