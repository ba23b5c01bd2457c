//! Tests of the text that is scraped.

use super::*;
use crate::metrics::{Histogram, LATENCY_BUCKETS_MS, ProcessCollector, Text, latency_ms};
use std::collections::BTreeSet;

type Pairs = Vec<(&'static str, Text)>;

fn registry() -> Registry {
    Registry::new(Duration::from_secs(600))
}

#[test]
fn families_are_written_as_in_the_golden_files() {
    let registry = registry();
    let results = Family::<Pairs, Counter>::new(Counter::default);
    let name = "inbound_tcp_detect_http_results_total";
    registry.register(name, "Results of detection", results.clone());
    let cost = Family::<Pairs, Counter>::new(Counter::default);
    registry.register("outbound_tcp_transfer_cost_bytes", "Bytes", cost.clone());
    results.resolve(&vec![("result", "http/1".into())]).inc();
    cost.resolve(&vec![("op", "read".into())]).inc_by(5);
    assert_eq!(
        registry.encode(),
        "# HELP inbound_tcp_detect_http_results Results of detection.\n\
         # TYPE inbound_tcp_detect_http_results counter\n\
         inbound_tcp_detect_http_results_total{result=\"http/1\"} 1\n\
         # HELP outbound_tcp_transfer_cost_bytes Bytes.\n\
         # TYPE outbound_tcp_transfer_cost_bytes counter\n\
         # UNIT outbound_tcp_transfer_cost_bytes bytes\n\
         outbound_tcp_transfer_cost_bytes_total{op=\"read\"} 5\n\
         # EOF\n"
    );
}

#[test]
fn legacy_families_keep_the_names_and_bounds_of_their_consumers() {
    let registry = registry();
    let requests = Family::<Pairs, Counter>::new(Counter::default);
    registry.register_legacy("request_total", "HTTP requests", requests.clone());
    let latency = Family::<Pairs, Histogram>::new(latency_ms);
    registry.register_legacy("response_latency_ms", "Latency", latency.clone());
    let forged = Text::from("x_bucket{le=\"7.0\"");
    requests.resolve(&vec![("authority", forged)]).inc();
    latency
        .resolve(&vec![("status_code", "200".into())])
        .observe(12.5);
    let text = registry.encode();
    let counter = "# HELP request_total HTTP requests.\n\
         # TYPE request_total counter\n\
         request_total{authority=\"x_bucket{le=\\\"7.0\\\"\"} 1\n\
         # HELP response_latency_ms Latency.\n\
         # TYPE response_latency_ms histogram\n";
    assert!(text.starts_with(counter), "{text}");
    let buckets: Vec<_> = text.lines().filter(|l| l.contains("_bucket{le=")).collect();
    assert_eq!(buckets.len(), 1 + LATENCY_BUCKETS_MS.len() + 1);
    for line in [
        "response_latency_ms_bucket{le=\"10\",status_code=\"200\"} 0",
        "response_latency_ms_bucket{le=\"20\",status_code=\"200\"} 1",
        "response_latency_ms_bucket{le=\"50000\",status_code=\"200\"} 1",
        "response_latency_ms_bucket{le=\"+Inf\",status_code=\"200\"} 1",
        "response_latency_ms_sum{status_code=\"200\"} 12.5",
        "response_latency_ms_count{status_code=\"200\"} 1",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in {text}"
        );
    }
}

#[test]
fn label_values_from_outside_cannot_forge_labels() {
    let registry = registry();
    let family = Family::<Pairs, Counter>::new(Counter::default);
    registry.register("seen", "Seen", family.clone());
    family.resolve(&vec![("name", "a\"} 1\nb\\ü".into())]).inc();
    let text = registry.encode();
    assert!(
        text.contains("seen_total{name=\"a\\\"} 1\\nb\\\\ü\"} 1\n"),
        "{text}"
    );
}

#[test]
fn no_family_appears_twice() {
    let clash = |first: &str, second: fn(&Registry)| {
        let registry = registry();
        registry.register(first, "", Family::<Pairs, Histogram>::new(latency_ms));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second(&registry)));
        assert!(result.is_err(), "{first} was accepted twice");
    };
    clash("a", |r| {
        r.register_legacy("a", "", Family::<Pairs, Histogram>::new(latency_ms))
    });
    clash("b", |r| drop(r.gauge("b_count", "")));
    clash("process_cpu_seconds", |r| {
        drop(r.gauge("process_open_fds", ""));
        r.collector(&ProcessCollector::NAMES, ProcessCollector::new());
    });
    let registry = registry();
    let _ = (registry.counter("c", ""), registry.gauge("c", ""));
}

#[test]
fn a_full_family_is_told_by_name() {
    let registry = registry();
    let family = Family::<Pairs, Counter>::with_limit(Counter::default, 0);
    registry.register("seen_total", "Seen", family.clone());
    assert!(!registry.encode().contains("series_dropped"));
    family.resolve(&Vec::new()).inc();
    let line = "weft_metrics_series_dropped_total{family=\"seen\"} 1\n# EOF\n";
    assert!(registry.encode().ends_with(line));
}

#[test]
fn sweeping_empties_all_families() {
    let registry = registry();
    let family = Family::<Pairs, Counter>::new(Counter::default);
    registry.register("seen", "Seen", family.clone());
    family.resolve(&Vec::new()).inc();
    let start = Instant::now();
    registry.sweep(start);
    registry.sweep(start + Duration::from_secs(600));
    assert_eq!(registry.encode(), "# EOF\n");
}

#[test]
fn single_metrics_and_facts_are_written() {
    let registry = registry();
    registry.counter("errors_total", "Errors").inc();
    registry.gauge("open", "Open").set(-2);
    registry.float_gauge("expires_seconds", "Expiry").set(1.5);
    let labels: Pairs = vec![("version", "1.2.3".into())];
    registry.info("proxy_build_info", "Build", &labels);
    let text = registry.encode();
    for line in [
        "errors_total 1",
        "open -2",
        "expires_seconds 1.5",
        "# UNIT expires_seconds seconds",
        "proxy_build_info{version=\"1.2.3\"} 1",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in {text}"
        );
    }
}

#[test]
fn the_process_is_described_completely() {
    let registry = registry();
    registry.collector(&ProcessCollector::NAMES, ProcessCollector::new());
    let text = registry.encode();
    let samples: Vec<(&str, f64)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    let names: BTreeSet<&str> = samples.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, BTreeSet::from(ProcessCollector::NAMES));
    assert_eq!(names.len(), samples.len());
    let value = |name: &str| samples.iter().find(|(n, _)| *n == name).unwrap().1;
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_threads") >= 2.0);
    assert!(value("process_open_fds") >= 3.0);
    assert!(value("process_start_time_seconds") <= value("process_clock_time_seconds"));
    let types = text.lines().filter(|l| l.starts_with("# TYPE")).count();
    assert_eq!(types, samples.len());
}
