//! Owns what a ServiceProfile object adds to the profile of its Service (contract 8.1): routes, budget, other
//! destinations. Does not choose the object.

use std::{collections::HashMap, time::Duration};

use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch,
        RetryBudget, Route, WeightedDst, request_match, response_match,
    },
    http_types::HttpMethod,
};
use weft_cluster::{
    Authority, Host, ServiceHost,
    index::{ProfileRoute, RequestCondition, ResponseCondition, ServiceProfile, WeightedTarget},
};

use crate::endpoint;

pub(super) fn apply(
    object: &ServiceProfile,
    port: u16,
    domain: &str,
    profile: &mut DestinationProfile,
) {
    profile.profile_ref = Some(endpoint::metadata(
        "linkerd.io",
        "ServiceProfile",
        &object.name,
        0,
    ));
    profile.routes = object.routes.iter().map(route).collect();
    if let Some(budget) = &object.retry_budget {
        profile.retry_budget = Some(RetryBudget {
            retry_ratio: budget.ratio,
            min_retries_per_second: budget.min_per_second,
            ttl: duration(budget.ttl),
        });
    }
    profile.dst_overrides = object
        .overrides
        .iter()
        .map(|target| weighted(target, port, domain))
        .collect();
}

fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

fn route(route: &ProfileRoute) -> Route {
    let classes = route.classes.iter().map(|class| ResponseClass {
        condition: Some(response(&class.condition)),
        is_failure: class.failure,
    });
    Route {
        condition: Some(request(&route.condition)),
        response_classes: classes.collect(),
        metrics_labels: HashMap::from([("route".to_owned(), route.name.to_string())]),
        is_retryable: route.retryable,
        timeout: route.timeout.and_then(duration),
    }
}

fn request(condition: &RequestCondition) -> RequestMatch {
    use request_match::{Match, Seq};
    let several = |conditions: &[RequestCondition]| Seq {
        matches: conditions.iter().map(request).collect(),
    };
    let found = match condition {
        RequestCondition::All(all) => Match::All(several(all)),
        RequestCondition::Any(any) => Match::Any(several(any)),
        RequestCondition::Not(not) => Match::Not(Box::new(request(not))),
        RequestCondition::Path(regex) => Match::Path(PathMatch {
            regex: regex.clone(),
        }),
        RequestCondition::Method(method) => Match::Method(http_method(method)),
    };
    RequestMatch {
        r#match: Some(found),
    }
}

/// Methods that have no number in the message go by name.
fn http_method(method: &str) -> HttpMethod {
    http::Method::from_bytes(method.to_uppercase().as_bytes())
        .unwrap_or_default()
        .into()
}

fn response(condition: &ResponseCondition) -> ResponseMatch {
    use response_match::{Match, Seq};
    let several = |conditions: &[ResponseCondition]| Seq {
        matches: conditions.iter().map(response).collect(),
    };
    let found = match condition {
        ResponseCondition::All(all) => Match::All(several(all)),
        ResponseCondition::Any(any) => Match::Any(several(any)),
        ResponseCondition::Not(not) => Match::Not(Box::new(response(not))),
        ResponseCondition::Status(min, max) => Match::Status(HttpStatusRange {
            min: u32::from(*min),
            max: u32::from(*max),
        }),
    };
    ResponseMatch {
        r#match: Some(found),
    }
}

/// An authority without a port has that of the Service.
fn weighted(target: &WeightedTarget, port: u16, domain: &str) -> WeightedDst {
    let read = Authority::parse(&target.authority);
    let explicit = read.as_ref().and_then(|authority| authority.port);
    let authority = match explicit {
        Some(_) => target.authority.to_string(),
        None => format!("{}:{port}", target.authority),
    };
    let service = match read.map(|authority| authority.host) {
        Some(Host::Name(name)) => ServiceHost::parse(&name, domain),
        _ => None,
    };
    WeightedDst {
        authority,
        weight: target.weight,
        backend_ref: service.map(|host| {
            endpoint::metadata("core", "Service", &host.service, explicit.unwrap_or(port))
        }),
    }
}
