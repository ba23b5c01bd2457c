//! Annotations about time limits, retries and circuit breaking: what is read, and which annotation is at fault.

use super::*;

fn annotations(pairs: &[(&str, &str)]) -> Annotations {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// The annotation at fault.
fn fault<T: std::fmt::Debug>(read: Result<T, Fault>) -> String {
    read.expect_err("a fault").0
}

#[test]
fn time_limits() {
    let read = |value| timeouts(&annotations(&[("timeout.linkerd.io/idle", value)]));
    assert_eq!(read("0"), Ok(None), "zero is unset");
    assert_eq!(
        read(" 5s ").map(|t| t.and_then(|t| t.idle)),
        Ok(Some(Duration::from_secs(5)))
    );
    for bad in ["1.5s", "5", "-1s", "", "1m30s"] {
        assert_eq!(
            fault(read(bad)),
            "metadata.annotations[timeout.linkerd.io/idle]",
            "{bad}"
        );
    }
}

#[test]
fn retries_of_http() {
    let read = |value| http_retry(&annotations(&[("retry.linkerd.io/http", value)]));
    for (value, expected) in [
        ("5xx", vec![500..=599]),
        ("gateway-error", vec![502..=504]),
        ("429", vec![429..=429]),
        ("500-502,504", vec![500..=502, 504..=504]),
        (
            "5xx,gateway-error,404",
            vec![500..=599, 502..=504, 404..=404],
        ),
    ] {
        let retry = read(value).expect("valid").expect("set");
        assert_eq!((retry.limit, retry.timeout), (1, None));
        assert_eq!(retry.conditions, expected, "{value}");
    }
    for bad in [
        "", "5xx, 429", "4xx", "99", "1000", "504-502", "500-", "a-b",
    ] {
        assert_eq!(
            fault(read(bad)),
            "metadata.annotations[retry.linkerd.io/http]",
            "{bad:?}"
        );
    }
}

#[test]
fn retries_of_grpc() {
    let read = |value| grpc_retry(&annotations(&[("retry.linkerd.io/grpc", value)]));
    let retry = read("cancelled,DEADLINE-exceeded,internal,resource-exhausted,unavailable");
    assert_eq!(retry.expect("valid").expect("set").conditions.len(), 5);
    for bad in ["", "unknown", "cancelled ", "14"] {
        assert_eq!(
            fault(read(bad)),
            "metadata.annotations[retry.linkerd.io/grpc]",
            "{bad:?}"
        );
    }
}

#[test]
fn limits_of_retries() {
    const LIMIT: &str = "retry.linkerd.io/limit";
    const TIMEOUT: &str = "retry.linkerd.io/timeout";
    for (pairs, expected) in [
        (vec![], None),
        (vec![(LIMIT, "0")], None),
        (vec![(TIMEOUT, "0s")], None),
        (vec![(LIMIT, "3")], Some((3, None))),
        (vec![(TIMEOUT, "100ms")], Some((1, Some(100)))),
        (
            vec![(LIMIT, "65535"), (TIMEOUT, "1s")],
            Some((65535, Some(1000))),
        ),
    ] {
        let http = http_retry(&annotations(&pairs)).expect("valid");
        let grpc = grpc_retry(&annotations(&pairs)).expect("valid");
        let millis = |t: Option<Duration>| t.map(|t| t.as_millis());
        assert_eq!(
            http.map(|r| (r.limit, millis(r.timeout))),
            expected,
            "{pairs:?}"
        );
        assert_eq!(
            grpc.map(|r| (r.limit, millis(r.timeout))),
            expected,
            "{pairs:?}"
        );
    }
    for (annotation, bad) in [
        (LIMIT, "65536"),
        (LIMIT, "-1"),
        (LIMIT, "x"),
        (TIMEOUT, "1"),
    ] {
        let read = http_retry(&annotations(&[(annotation, bad)]));
        assert_eq!(fault(read), format!("metadata.annotations[{annotation}]"));
    }
}

#[test]
fn circuit_breaking() {
    const MODE: &str = "balancer.linkerd.io/failure-accrual";
    const RATE: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate";
    const IN_A_ROW: &str = "balancer.linkerd.io/failure-accrual-consecutive";
    let read = |mode: &str, pairs: &[(String, &str)]| {
        let mut all = annotations(&[(MODE, mode)]);
        all.extend(pairs.iter().map(|(k, v)| (k.clone(), (*v).to_owned())));
        accrual(&all)
    };
    let rate = |name: &str| format!("{RATE}-{name}");
    let row = |name: &str| format!("{IN_A_ROW}-{name}");
    assert_eq!(accrual(&annotations(&[])), Ok(None));
    assert_eq!(
        accrual(&annotations(&[(
            "balancer.linkerd.io/failure-accrual-consecutive-max-failures",
            "3"
        )])),
        Ok(None),
        "nothing is on without a mode"
    );
    let consecutive = read("consecutive", &[(rate("threshold"), "7")]).expect("valid");
    assert_eq!(
        consecutive.expect("set").success_rate,
        None,
        "that is the other mode's"
    );
    let unified = read("unified", &[]).expect("valid").expect("set");
    let SuccessRate {
        window,
        min_requests,
        ..
    } = unified.success_rate.expect("set");
    assert_eq!(
        (window, min_requests, unified.max_failures),
        (Duration::from_secs(10), 5, 7)
    );
    for (mode, annotation, value) in [
        ("sometimes", MODE.to_owned(), ""),
        ("consecutive", row("max-failures"), "-1"),
        ("consecutive", row("min-penalty"), "1"),
        ("consecutive", row("max-penalty"), "0s"),
        ("consecutive", row("max-penalty"), "500ms"),
        ("consecutive", row("jitter-ratio"), "100.5"),
        ("consecutive", row("jitter-ratio"), "NaN"),
        ("unified", rate("threshold"), "1.1"),
        ("unified", rate("window"), "9ms"),
        ("unified", rate("window"), "0s"),
        ("unified", rate("min-requests"), "1000001"),
    ] {
        let pairs = [(annotation.clone(), value)];
        let pairs = if annotation == MODE {
            &[]
        } else {
            pairs.as_slice()
        };
        let found = fault(read(mode, pairs));
        assert_eq!(
            found,
            format!("metadata.annotations[{annotation}]"),
            "{value}"
        );
    }
    // Where the rate is switched off, its limits are no reason to refuse.
    let off = [
        (rate("threshold"), "0"),
        (rate("window"), "1ms"),
        (rate("min-requests"), "2000000"),
    ];
    assert!(read("unified", &off).is_ok());
}

#[test]
fn failures_as_load() {
    const SWITCH: &str = "balancer.alpha.linkerd.io/penalize-failures";
    for (value, on) in [
        ("1", true),
        ("T", true),
        ("True", true),
        ("false", false),
        ("0", false),
    ] {
        let read = penalty(&annotations(&[(SWITCH, value)])).expect("valid");
        let defaults = Penalty {
            penalty: Duration::from_secs(5),
            max_retry_after: Duration::from_secs(300),
        };
        assert_eq!(read, on.then_some(defaults), "{value}");
    }
    let found = fault(penalty(&annotations(&[(SWITCH, "yes")])));
    assert_eq!(found, format!("metadata.annotations[{SWITCH}]"));
    let long = [
        (SWITCH, "true"),
        ("balancer.alpha.linkerd.io/load-biaser-penalty", "50d"),
    ];
    assert!(penalty(&annotations(&long)).is_err());
}

proptest::proptest! {
    /// Whatever an annotation says, it is read or named.
    #[test]
    fn nothing_panics(text in "\\PC{0,12}|[0-9.,xsmhd-]{0,24}") {
        let all = annotations(&[
            ("timeout.linkerd.io/request", &text),
            ("retry.linkerd.io/http", &text),
            ("retry.linkerd.io/grpc", &text),
            ("retry.linkerd.io/limit", &text),
            ("balancer.linkerd.io/failure-accrual", "unified"),
            ("balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio", &text),
            ("balancer.alpha.linkerd.io/failure-accrual-success-rate-window", &text),
            ("balancer.alpha.linkerd.io/penalize-failures", &text),
        ]);
        let _ = timeouts(&all);
        let _ = accrual(&all);
        let _ = penalty(&all);
        if let Ok(Some(retry)) = http_retry(&all) {
            proptest::prop_assert!(retry.limit > 0);
        }
        let _ = grpc_retry(&all);
    }
}
