//! Retries and circuit breaking on the wire, and which of a route and its parent says them.

use std::time::Duration;

use linkerd2_proxy_api::outbound::{FailureAccrual, failure_accrual as accrual, grpc_route};

use super::*;

fn annotated(annotations: &str) -> String {
    WEB.replace(
        "{name: web}",
        &format!("{{name: web, annotations: {{{annotations}}}}}"),
    )
}

fn time(duration: Option<prost_types::Duration>) -> Option<Duration> {
    duration.and_then(|d| Duration::try_from(d).ok())
}

/// Limit, time of a try and status ranges.
type Shown = (u32, Option<Duration>, Vec<(u32, u32)>);

fn show(retry: &rules::Retry) -> Shown {
    assert_eq!(retry.max_request_bytes, 64 * 1024);
    let backoff = retry.backoff.expect("set");
    assert_eq!(time(backoff.min_backoff), Some(Duration::from_millis(25)));
    assert_eq!(time(backoff.max_backoff), Some(Duration::from_millis(250)));
    assert!((backoff.jitter_ratio - 1.0).abs() < f32::EPSILON);
    let conditions = retry.conditions.clone().expect("always set");
    let ranges = conditions
        .status_ranges
        .iter()
        .map(|r| (r.start, r.end))
        .collect();
    (retry.max_retries, time(retry.timeout), ranges)
}

fn http_retry(texts: &[&str]) -> Option<Shown> {
    let policy = ask(&at("10.96.0.10:80"), texts);
    routes(&policy)[0].rules[0].retry.as_ref().map(show)
}

#[test]
fn retries_of_http_routes() {
    let second = Some(Duration::from_secs(1));
    let all = "retry.linkerd.io/http: '5xx,429', retry.linkerd.io/limit: '3', retry.linkerd.io/timeout: 1s";
    let both = "retry.linkerd.io/http: gateway-error";
    let route = |annotations: &str| {
        super::route(
            GATEWAY,
            &format!("name: r, annotations: {{{annotations}}}"),
            "",
            "",
        )
    };
    for (service, routes, expected) in [
        ("", None, None),
        (all, None, Some((3, second, vec![(500, 599), (429, 429)]))),
        ("retry.linkerd.io/limit: '2'", None, Some((2, None, vec![]))),
        ("retry.linkerd.io/limit: '0'", None, None),
        ("retry.linkerd.io/grpc: internal", None, None),
        (
            all,
            Some(""),
            Some((3, second, vec![(500, 599), (429, 429)])),
        ),
        // What the route says replaces what the Service says as a whole.
        (all, Some(both), Some((1, None, vec![(502, 504)]))),
        ("", Some(both), Some((1, None, vec![(502, 504)]))),
        // Time limits are another group.
        (
            all,
            Some("timeout.linkerd.io/idle: 9s"),
            Some((3, second, vec![(500, 599), (429, 429)])),
        ),
    ] {
        let service_text = annotated(service);
        let mut texts = vec![service_text.as_str()];
        let route = routes.map(route);
        texts.extend(route.as_deref());
        assert_eq!(http_retry(&texts), expected, "{service} {routes:?}");
    }
}

#[test]
fn a_bad_annotation_of_a_service_drops_its_group_only() {
    let shared = Shared::new();
    let text = annotated("retry.linkerd.io/http: ' 5xx', timeout.linkerd.io/request: 7s");
    let changed = shared.apply(&objects(&text)[0]);
    assert_eq!(changed.invalid.len(), 1);
    assert!(!changed.invalid[0].refused);
    let views = Views::new(
        Arc::clone(&shared),
        Settings::new(MeshSettings::default()),
        100,
    );
    let Outbound::Known(policy, _) = views.once(&at("10.96.0.10:80")) else {
        panic!("known")
    };
    let rule = &routes(&policy)[0].rules[0];
    assert_eq!(rule.retry, None);
    assert_eq!(
        time(rule.timeouts.expect("set").request),
        Some(Duration::from_secs(7))
    );
}

#[test]
fn retries_of_grpc_routes() {
    let route = |annotations: &str| {
        super::route(
            GATEWAY,
            &format!("name: r, annotations: {{{annotations}}}"),
            "",
            "",
        )
        .replace("HTTPRoute", "GRPCRoute")
    };
    let retry = |service: &str, annotations: &str| -> Option<grpc_route::Retry> {
        let policy = ask(
            &at("10.96.0.10:80"),
            &[&annotated(service), &route(annotations)],
        );
        let Protocol::Grpc(grpc) = kind(&policy) else {
            panic!("gRPC")
        };
        let rule = &grpc.routes[0].rules[0];
        assert!(rule.timeouts.is_some());
        rule.retry
    };
    assert_eq!(retry("", ""), None);
    assert_eq!(retry("retry.linkerd.io/http: 5xx", ""), None);
    let own = retry(
        "retry.linkerd.io/limit: '9'",
        "retry.linkerd.io/grpc: 'cancelled,Unavailable,resource-exhausted'",
    )
    .expect("set");
    assert_eq!(own.max_retries, 1);
    assert_eq!(
        own.conditions,
        Some(grpc_route::retry::Conditions {
            cancelled: true,
            unavailable: true,
            resource_exhausted: true,
            ..Default::default()
        })
    );
    let of_service = retry("retry.linkerd.io/grpc: 'deadline-exceeded,internal'", "").expect("set");
    assert_eq!(
        of_service.conditions,
        Some(grpc_route::retry::Conditions {
            deadine_exceeded: true,
            internal: true,
            ..Default::default()
        })
    );
}

/// That of each protocol that has one; the same for all.
fn accrual_of(texts: &[&str]) -> Option<FailureAccrual> {
    let policy = ask(&at("10.96.0.10:80"), texts);
    match kind(&policy) {
        Protocol::Detect(detect) => {
            let one = detect.http1.as_ref().and_then(|h| h.failure_accrual);
            assert_eq!(one, detect.http2.as_ref().and_then(|h| h.failure_accrual));
            one
        }
        Protocol::Http1(http) => http.failure_accrual,
        Protocol::Http2(http) => http.failure_accrual,
        Protocol::Grpc(grpc) => grpc.failure_accrual,
        other => panic!("{other:?}"),
    }
}

#[test]
fn circuit_breaking() {
    assert_eq!(accrual_of(&[WEB]), None);
    let with = |rest: &str| {
        let text = annotated(&format!("balancer.linkerd.io/failure-accrual: {rest}"));
        accrual_of(&[&text]).and_then(|a| a.kind).expect("set")
    };
    let accrual::Kind::ConsecutiveFailures(defaults) = with("consecutive") else {
        panic!("consecutive")
    };
    let backoff = defaults.backoff.expect("always set");
    assert_eq!(defaults.max_failures, 7);
    assert_eq!(time(backoff.min_backoff), Some(Duration::from_secs(1)));
    assert_eq!(time(backoff.max_backoff), Some(Duration::from_secs(60)));
    assert!((backoff.jitter_ratio - 0.5).abs() < f32::EPSILON && !backoff.respect_retry_after_hint);

    let rest = "unified, balancer.linkerd.io/failure-accrual-consecutive-max-failures: '3', \
        balancer.linkerd.io/failure-accrual-consecutive-min-penalty: 2s, \
        balancer.linkerd.io/failure-accrual-consecutive-max-penalty: 4m, \
        balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio: '1.5', \
        balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold: '0.9', \
        balancer.alpha.linkerd.io/failure-accrual-success-rate-window: 30s, \
        balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests: '100', \
        balancer.alpha.linkerd.io/failure-accrual-honor-retry-after: 'T'";
    let accrual::Kind::Unified(unified) = with(rest) else {
        panic!("unified")
    };
    let backoff = unified.backoff.expect("always set");
    assert_eq!(
        (unified.max_consecutive_failures, unified.min_requests),
        (3, 100)
    );
    assert!((unified.success_rate_threshold - 0.9).abs() < f64::EPSILON);
    assert_eq!(time(unified.decay), Some(Duration::from_secs(30)));
    assert_eq!(time(backoff.max_backoff), Some(Duration::from_secs(240)));
    assert!((backoff.jitter_ratio - 1.5).abs() < f32::EPSILON && backoff.respect_retry_after_hint);

    for protocol in ["http", "kubernetes.io/h2c"] {
        let text = annotated("balancer.linkerd.io/failure-accrual: consecutive")
            .replace("port: 80}", &format!("port: 80, appProtocol: {protocol}}}"));
        assert!(accrual_of(&[&text]).is_some(), "{protocol}");
    }
    let text = annotated("balancer.linkerd.io/failure-accrual: consecutive");
    let grpc = super::route(GATEWAY, "name: r", "", "").replace("HTTPRoute", "GRPCRoute");
    assert!(accrual_of(&[&text, &grpc]).is_some());
}

#[test]
fn failures_as_load() {
    let text = annotated(
        "balancer.alpha.linkerd.io/penalize-failures: 'true', balancer.alpha.linkerd.io/load-biaser-penalty: 3s",
    );
    let policy = ask(&at("10.96.0.10:80"), &[&text]);
    let opaque = match kind(&policy) {
        Protocol::Detect(detect) => detect.opaque.as_ref().expect("set"),
        other => panic!("{other:?}"),
    };
    for shown in [format!("{:?}", routes(&policy)), format!("{opaque:?}")] {
        assert!(shown.contains("PenaltyPeakEwma"), "{shown}");
        assert!(
            shown.contains("penalty: Some(Duration { seconds: 3, nanos: 0 })"),
            "{shown}"
        );
        assert!(
            shown.contains("max_retry_after: Some(Duration { seconds: 300, nanos: 0 })"),
            "{shown}"
        );
    }
}
