//! Owns what annotations of Services, EgressNetworks and routes say about time limits, retries and circuit breaking
//! (contract 10.1), read into numbers. Which of two objects wins is decided where a policy is put together.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use weft_core::parse;

use super::notes::{Notes, annotation_path};

/// The annotations of an object.
type Annotations = BTreeMap<String, String>;
/// The path of an annotation at fault, and what is wrong with it.
type Fault = (String, String);

/// What a Service or an EgressNetwork says about the traffic to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Annotations `timeout.linkerd.io/*`.
    pub timeouts: Option<RouteTimeouts>,
    /// Annotations `retry.linkerd.io/*`.
    pub retries: Retries,
    /// Annotations `balancer.*.linkerd.io/failure-accrual*`.
    pub accrual: Option<FailureAccrual>,
    /// Annotations `balancer.alpha.linkerd.io/{penalize-failures,load-biaser-*}`.
    pub penalty: Option<Penalty>,
}

/// Annotations `timeout.linkerd.io/{request,response,idle}`; zero counts as unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    /// Of the whole exchange.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Without any frame.
    pub idle: Option<Duration>,
}

/// When requests are tried again, by the kind of their route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// Of HTTP routes.
    pub http: Option<Retry<HttpConditions>>,
    /// Of gRPC routes.
    pub grpc: Option<Retry<GrpcConditions>>,
}

/// How requests are tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry<C> {
    /// How often, at least once.
    pub limit: u16,
    /// Of one try.
    pub timeout: Option<Duration>,
    /// After which answers, besides those a proxy always tries again.
    pub conditions: C,
}

/// Status codes of HTTP.
pub type HttpConditions = Vec<RangeInclusive<u16>>;
/// Status codes of gRPC.
pub type GrpcConditions = BTreeSet<GrpcCode>;

/// A gRPC status that can be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrpcCode {
    /// 1
    Cancelled,
    /// 4
    DeadlineExceeded,
    /// 8
    ResourceExhausted,
    /// 13
    Internal,
    /// 14
    Unavailable,
}

/// When an endpoint is left alone because it fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureAccrual {
    /// After so many failures in a row; 0 = never for this reason.
    pub max_failures: u32,
    /// When too few requests succeed; only in the mode `unified`.
    pub success_rate: Option<SuccessRate>,
    /// How long it is left alone.
    pub backoff: Backoff,
}

/// The share of requests that must succeed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuccessRate {
    /// 0 to 1; 0 = never for this reason.
    pub threshold: f64,
    /// Over this time.
    pub window: Duration,
    /// Counted from so many requests in the window on.
    pub min_requests: u32,
}

/// How long an endpoint is left alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first time.
    pub min: Duration,
    /// At most.
    pub max: Duration,
    /// Random part, as a share of the time: 0 to 100.
    pub jitter: f32,
    /// Whether the `Retry-After` of a response counts.
    pub honor_retry_after: bool,
}

/// How the balancer takes failures into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// A failure counts as a latency of at least this.
    pub penalty: Duration,
    /// The longest `Retry-After` that counts.
    pub max_retry_after: Duration,
}

impl Traffic {
    /// Reads the annotations of a Service or EgressNetwork; a bad one drops its group (contract 10.1).
    pub(super) fn read(annotations: Option<&Annotations>, notes: &mut Notes) -> Self {
        let none = Annotations::new();
        let annotations = annotations.unwrap_or(&none);
        Self {
            timeouts: kept(timeouts(annotations), notes),
            retries: Retries {
                http: kept(http_retry(annotations), notes),
                grpc: kept(grpc_retry(annotations), notes),
            },
            accrual: kept(accrual(annotations), notes),
            penalty: kept(penalty(annotations), notes),
        }
    }
}

fn kept<T: Default>(read: Result<T, Fault>, notes: &mut Notes) -> T {
    read.unwrap_or_else(|(field, reason)| {
        notes.ignore(&field, reason);
        T::default()
    })
}

/// Time limits; `None` when there are none.
pub(super) fn timeouts(annotations: &Annotations) -> Result<Option<RouteTimeouts>, Fault> {
    let limit = |name: &str| {
        let annotation = format!("timeout.linkerd.io/{name}");
        let limit = value(annotations, &annotation, parse::duration);
        limit.map(|limit| limit.filter(|limit| !limit.is_zero()))
    };
    let timeouts = RouteTimeouts {
        request: limit("request")?,
        response: limit("response")?,
        idle: limit("idle")?,
    };
    Ok(Some(timeouts).filter(|timeouts| *timeouts != RouteTimeouts::default()))
}

/// Retries of HTTP routes.
pub(super) fn http_retry(
    annotations: &Annotations,
) -> Result<Option<Retry<HttpConditions>>, Fault> {
    retry(annotations, "retry.linkerd.io/http", |item| match item {
        "5xx" => Some(500..=599),
        "gateway-error" => Some(502..=504),
        range => {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let code = |text: &str| {
                let number = parse::number(text).ok();
                number.filter(|code| (100..1000_u16).contains(code))
            };
            let range = code(first)?..=code(last)?;
            (!range.is_empty()).then_some(range)
        }
    })
}

/// Retries of gRPC routes.
pub(super) fn grpc_retry(
    annotations: &Annotations,
) -> Result<Option<Retry<GrpcConditions>>, Fault> {
    retry(annotations, "retry.linkerd.io/grpc", |item| {
        Some(match item.to_ascii_lowercase().as_str() {
            "cancelled" => GrpcCode::Cancelled,
            "deadline-exceeded" => GrpcCode::DeadlineExceeded,
            "internal" => GrpcCode::Internal,
            "resource-exhausted" => GrpcCode::ResourceExhausted,
            "unavailable" => GrpcCode::Unavailable,
            _ => return None,
        })
    })
}

/// Any of the three annotations switches retries on; the list is split at commas and blanks are not trimmed.
fn retry<T, C: FromIterator<T>>(
    annotations: &Annotations,
    conditions: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<Retry<C>>, Fault> {
    let limit = value(annotations, "retry.linkerd.io/limit", parse::number::<u16>)?;
    let limit = limit.filter(|limit| *limit > 0);
    let timeout = value(annotations, "retry.linkerd.io/timeout", parse::duration)?;
    let timeout = timeout.filter(|timeout| !timeout.is_zero());
    let listed = annotations.get(conditions).map(|list| {
        let item = |item| read(item).ok_or(item);
        list.split(',').map(item).collect::<Result<C, &str>>()
    });
    let listed = match listed.transpose() {
        Ok(listed) => listed,
        Err(item) => {
            let reason = format!("{item:?} is not a condition for a retry");
            return Err((annotation_path(conditions), reason));
        }
    };
    if limit.is_none() && timeout.is_none() && listed.is_none() {
        return Ok(None);
    }
    Ok(Some(Retry {
        limit: limit.unwrap_or(1),
        timeout,
        conditions: listed.unwrap_or_else(|| C::from_iter([])),
    }))
}

fn accrual(annotations: &Annotations) -> Result<Option<FailureAccrual>, Fault> {
    const MODE: &str = "balancer.linkerd.io/failure-accrual";
    let success_rate = match annotations.get(MODE).map(String::as_str) {
        None => return Ok(None),
        Some("consecutive") => None,
        Some("unified") => Some(success_rate(annotations)?),
        Some(other) => {
            let reason = format!("{other:?} is not consecutive or unified");
            return Err((annotation_path(MODE), reason));
        }
    };
    const MAX_FAILURES: &str = "balancer.linkerd.io/failure-accrual-consecutive-max-failures";
    Ok(Some(FailureAccrual {
        max_failures: value(annotations, MAX_FAILURES, parse::number)?.unwrap_or(7),
        success_rate,
        backoff: backoff(annotations)?,
    }))
}

fn backoff(annotations: &Annotations) -> Result<Backoff, Fault> {
    const MIN: &str = "balancer.linkerd.io/failure-accrual-consecutive-min-penalty";
    const MAX: &str = "balancer.linkerd.io/failure-accrual-consecutive-max-penalty";
    const JITTER: &str = "balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio";
    const HONOR: &str = "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after";
    let min = value(annotations, MIN, parse::duration)?.unwrap_or(Duration::from_secs(1));
    let max = value(annotations, MAX, parse::duration)?.unwrap_or(Duration::from_secs(60));
    if max.is_zero() || min > max {
        let reason = format!("{max:?} is not above zero and at least the min-penalty, {min:?}");
        return Err((annotation_path(MAX), reason));
    }
    Ok(Backoff {
        min,
        max,
        jitter: within(annotations, JITTER, 0.0..=100.0_f32)?.unwrap_or(0.5),
        honor_retry_after: value(annotations, HONOR, boolean)?.unwrap_or_default(),
    })
}

fn success_rate(annotations: &Annotations) -> Result<SuccessRate, Fault> {
    const THRESHOLD: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold";
    const WINDOW: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate-window";
    const MIN_REQUESTS: &str =
        "balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests";
    const SHORTEST: Duration = Duration::from_millis(10);
    const MOST: u32 = 1_000_000;
    let threshold = within(annotations, THRESHOLD, 0.0..=1.0_f64)?.unwrap_or(0.8);
    let window = value(annotations, WINDOW, parse::duration)?.unwrap_or(Duration::from_secs(10));
    let min_requests = value(annotations, MIN_REQUESTS, parse::number)?.unwrap_or(5);
    // A proxy refuses the whole policy beyond these two limits (contract 4.4), unless the rate is switched off.
    if window.is_zero() || (threshold > 0.0 && window < SHORTEST) {
        return Err((
            annotation_path(WINDOW),
            format!("{window:?} is shorter than {SHORTEST:?}"),
        ));
    }
    if threshold > 0.0 && min_requests > MOST {
        return Err((
            annotation_path(MIN_REQUESTS),
            format!("{min_requests} is more than {MOST}"),
        ));
    }
    Ok(SuccessRate {
        threshold,
        window,
        min_requests,
    })
}

fn penalty(annotations: &Annotations) -> Result<Option<Penalty>, Fault> {
    const SWITCH: &str = "balancer.alpha.linkerd.io/penalize-failures";
    const PENALTY: &str = "balancer.alpha.linkerd.io/load-biaser-penalty";
    const MAX_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/load-biaser-max-retry-after";
    /// Proxies count in milliseconds of 32 bits.
    const LONGEST: Duration = Duration::from_millis(u32::MAX as u64);
    if !value(annotations, SWITCH, boolean)?.unwrap_or_default() {
        return Ok(None);
    }
    let penalty = value(annotations, PENALTY, parse::duration)?.unwrap_or(Duration::from_secs(5));
    if penalty > LONGEST {
        return Err((
            annotation_path(PENALTY),
            format!("{penalty:?} is longer than {LONGEST:?}"),
        ));
    }
    let max_retry_after = value(annotations, MAX_RETRY_AFTER, parse::duration)?;
    Ok(Some(Penalty {
        penalty,
        max_retry_after: max_retry_after.unwrap_or(Duration::from_secs(300)),
    }))
}

fn value<T, E: ToString>(
    annotations: &Annotations,
    annotation: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Fault> {
    let text = annotations.get(annotation).map(|text| text.trim());
    let fault = |error: E| (annotation_path(annotation), error.to_string());
    text.map(read).transpose().map_err(fault)
}

fn within<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    annotations: &Annotations,
    annotation: &str,
    range: RangeInclusive<T>,
) -> Result<Option<T>, Fault> {
    match value(annotations, annotation, parse::number::<T>)? {
        Some(number) if !range.contains(&number) => {
            let (first, last) = range.into_inner();
            let reason = format!("{number} is not between {first} and {last}");
            Err((annotation_path(annotation), reason))
        }
        number => Ok(number),
    }
}

/// What Go's `strconv.ParseBool` takes.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("{other:?} is not true or false")),
    }
}

#[cfg(test)]
mod tests;
