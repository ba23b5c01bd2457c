//! Owns the tests of the figures, on metrics text as proxies print it.

use super::*;
use crate::demo::scrape::parse;

const OUT: &str = r#"direction="outbound",authority="api.demo.svc.cluster.local:9000",tls="true",server_id="api.demo.x""#;

fn ledger(inbound: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for workload in ["load", "web", "api-0", "api-1", "store"] {
        ledger.begin(workload);
    }
    let web = format!(
        "request_total{{{OUT},dst_pod=\"api-0\",target_addr=\"10.88.0.4:9000\"}} 90\n\
         request_total{{{OUT},dst_pod=\"api-1\",target_addr=\"10.88.0.5:9000\"}} 10\n\
         response_total{{{OUT},dst_pod=\"api-0\",classification=\"success\"}} 90\n\
         response_total{{{OUT},dst_pod=\"api-1\",classification=\"success\"}} 10\n\
         response_latency_ms_bucket{{{OUT},dst_pod=\"api-0\",le=\"2\"}} 90\n\
         response_latency_ms_bucket{{{OUT},dst_pod=\"api-0\",le=\"+Inf\"}} 90\n\
         response_latency_ms_bucket{{{OUT},dst_pod=\"api-1\",le=\"2\"}} 0\n\
         response_latency_ms_bucket{{{OUT},dst_pod=\"api-1\",le=\"50\"}} 10\n\
         response_latency_ms_bucket{{{OUT},dst_pod=\"api-1\",le=\"+Inf\"}} 10\n\
         response_latency_ms_sum{{{OUT},dst_pod=\"api-1\"}} 400\n\
         response_latency_ms_count{{{OUT},dst_pod=\"api-1\"}} 10\n\
         control_identity_cert_refreshes_total{{result=\"ok\"}} 3\n"
    );
    ledger.scraped("web", parse(&web));
    ledger.counted(
        "web",
        Count {
            requests: 100,
            ..Count::default()
        },
    );
    let inbound_labels =
        r#"direction="inbound",target_port="9000",tls="true",client_id="web.demo.x""#;
    let api = format!(
        "request_total{{{inbound_labels}}} {inbound}\nresponse_total{{{inbound_labels},classification=\"success\"}} {inbound}\n\
         request_total{{direction=\"inbound\",target_port=\"4191\",tls=\"no_identity\"}} 7\n"
    );
    ledger.scraped("api-0", parse(&api));
    ledger
}

#[test]
fn an_edge_has_identities_shares_and_quantiles() {
    let report = ledger(100).report(false);
    let edge = &report.edges[1];
    assert!(edge.mtls);
    assert_eq!(
        edge.server_identities,
        BTreeSet::from(["api.demo.x".to_owned()])
    );
    assert_eq!(
        edge.client_identities,
        BTreeSet::from(["web.demo.x".to_owned()])
    );
    assert_eq!((edge.requests, edge.success_rate), (100, Some(1.0)));
    assert!(
        edge.p50_ms.expect("there were answers") < 2.0
            && edge.p95_ms.expect("there were answers") > 2.0
    );
    let slow = report
        .endpoints
        .iter()
        .find(|e| e.endpoint == "api-1")
        .expect("the endpoint is listed");
    assert_eq!(
        (slow.requests, slow.share, slow.latency_ms),
        (10, 0.1, Some(40.0))
    );
    assert_eq!(
        report
            .certificates
            .iter()
            .find(|c| c.workload == "web")
            .map(|c| c.rotations),
        Some(2)
    );
}

#[test]
fn runs_of_a_workload_add_up() {
    let mut ledger = ledger(60);
    ledger.begin("api-0");
    ledger.scraped(
        "api-0",
        parse(r#"response_total{direction="inbound",target_port="9000",tls="true",client_id="web.demo.x"} 40"#),
    );
    assert_eq!(ledger.disagreements(&LINKS[1]), Vec::<String>::new());
}

#[test]
fn a_disagreement_is_named() {
    let report = ledger(99).report(true);
    let said = "web counted 100 requests to api, its proxy 100, the proxy of api 99";
    assert!(
        report.problems.iter().any(|problem| problem == said),
        "{:?}",
        report.problems
    );
    assert!(!report.is_good());
}

#[test]
fn plain_text_is_never_called_mutual() {
    let mut ledger = ledger(100);
    ledger.begin("api-1");
    let plain = r#"request_total{direction="inbound",target_port="9000",tls="no_identity"} 1"#;
    ledger.scraped("api-1", parse(plain));
    assert!(!ledger.report(false).edges[1].mtls);
}

#[test]
fn workloads_are_matched_by_whole_names() {
    assert!(is_of("api-1", "api") && is_of("web", "web"));
    assert!(!is_of("apis", "api") && !is_of("load", "web"));
}
