//! Rules between settings, and rules of single ones that are more than a form.

use super::*;
use weft_core::parse::Addr;

#[test]
fn a_control_plane_address_needs_its_name_unless_on_loopback() {
    let cases: [(Option<&str>, Option<&str>, &[&str]); 8] = [
        (Some("10.0.0.1:8086"), Some("dst.linkerd"), &[]),
        (Some("10.0.0.1:8086"), None, &["DESTINATION_SVC_NAME"]),
        (None, Some("dst.linkerd"), &["DESTINATION_SVC_ADDR"]),
        (None, None, &["DESTINATION_SVC_ADDR"]),
        (Some("127.0.0.1:8086"), None, &[]),
        (Some("[::1]:8086"), None, &[]),
        (Some("localhost.:8086"), None, &[]),
        (Some("localhost"), None, &["DESTINATION_SVC_ADDR"]),
    ];
    for (addr, name, expected) in cases {
        let changes = [
            ("DESTINATION_SVC_ADDR", addr),
            ("DESTINATION_SVC_NAME", name),
        ];
        assert_eq!(faults(&changes), expected, "for {addr:?} and {name:?}");
    }
    let bad_name = [("DESTINATION_SVC_NAME", Some("a b"))];
    assert_eq!(faults(&bad_name), ["DESTINATION_SVC_NAME"]);
}

/// The charts set names for all proxies, also for those of the control plane, whose own service is beside them.
#[test]
fn there_is_no_tls_on_loopback_whatever_the_name() {
    for addr in ["localhost.:8080", "127.0.0.1:8080"] {
        let settings = set(&[
            ("IDENTITY_SVC_ADDR", addr),
            ("IDENTITY_SVC_NAME", "identity.linkerd"),
        ]);
        assert_eq!(settings.identity.service.name, None, "{addr}");
    }
}

#[test]
fn stream_limits_must_be_in_order_and_spare_loopback() {
    let cases: [([&str; 3], bool); 7] = [
        (["3s", "5m", "1h"], true),
        (["3s", "3s", "3s"], true),
        (["", "", ""], true),
        (["5m", "3s", "1h"], false),
        (["3s", "1h", "5m"], false),
        (["2h", "", "1h"], false),
        (["3s", "", ""], true),
    ];
    for (values, fine) in cases {
        let faults = faults(&[
            ("CONTROL_STREAM_INITIAL_TIMEOUT", Some(values[0])),
            ("CONTROL_STREAM_IDLE_TIMEOUT", Some(values[1])),
            ("CONTROL_STREAM_LIFETIME", Some(values[2])),
        ]);
        assert_eq!(faults.is_empty(), fine, "for {values:?}: {faults:?}");
    }
    let all = set(&[
        ("CONTROL_STREAM_LIFETIME", "1h"),
        ("POLICY_SVC_ADDR", "localhost.:8090"),
    ]);
    assert_eq!(
        all.control.stream_limits(&all.destination.service).lifetime,
        Some(s(3600))
    );
    assert_eq!(
        all.control.stream_limits(&all.policy.service).lifetime,
        None
    );
}

#[test]
fn default_policies_of_the_cluster_need_its_networks() {
    for name in ["deny", "all-authenticated", "all-unauthenticated"] {
        assert_eq!(
            set(&[("INBOUND_DEFAULT_POLICY", name)])
                .policy
                .default
                .as_str(),
            name
        );
    }
    for name in ["cluster-authenticated", "cluster-unauthenticated", "audit"] {
        let alone = ("INBOUND_DEFAULT_POLICY", Some(name));
        assert_eq!(faults(&[alone]), ["INBOUND_DEFAULT_POLICY"]);
        let all = set(&[
            ("INBOUND_DEFAULT_POLICY", name),
            ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8"),
        ]);
        assert_eq!(all.policy.default.to_string(), name);
    }
}

#[test]
fn the_local_name_is_one_or_a_pair() {
    let identity = |changes: &[(&str, Option<&str>)]| with(changes).unwrap().identity;
    let single = identity(&[("IDENTITY_LOCAL_NAME", Some("web.ns."))]);
    assert_eq!(
        (single.id.as_str(), &*single.server_name),
        ("web.ns", "web.ns")
    );
    let pair = [
        ("IDENTITY_SERVER_ID", Some("spiffe://td/web")),
        ("IDENTITY_SERVER_NAME", Some("web.ns")),
    ];
    let both = identity(&pair);
    assert_eq!(
        (both.id.as_str(), &*both.server_name),
        ("spiffe://td/web", "web.ns")
    );
    let without = ("IDENTITY_LOCAL_NAME", None);
    assert_eq!(
        identity(&[pair[0], pair[1], without]).id.as_str(),
        "spiffe://td/web"
    );
    assert_eq!(faults(&[without]), ["IDENTITY_LOCAL_NAME"]);
    assert_eq!(faults(&[without, pair[0]]), ["IDENTITY_SERVER_NAME"]);
    assert_eq!(faults(&[without, pair[1]]), ["IDENTITY_SERVER_ID"]);
}

#[test]
fn spire_alone_is_one_clear_error_and_otherwise_noted() {
    let spire = ("IDENTITY_SPIRE_SOCKET", Some("unix:///run/spire.sock"));
    let gone = [
        "IDENTITY_DIR",
        "IDENTITY_TRUST_ANCHORS",
        "IDENTITY_TOKEN_FILE",
    ];
    let mut changes: Vec<_> = gone.iter().map(|name| (*name, None)).collect();
    changes.push(spire);
    assert_eq!(faults(&changes), ["IDENTITY_SPIRE_SOCKET"]);
    assert_eq!(
        with(&[spire]).unwrap().not_yet,
        ["LINKERD2_PROXY_IDENTITY_SPIRE_SOCKET"]
    );
}

#[test]
fn what_comes_later_is_listed_and_does_not_fail() {
    let all = set(&[
        ("INGRESS_MODE", "true"),
        ("OUTBOUND_METRICS_HOSTNAME_LABELS", "true"),
        ("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local."),
        ("TAP_SVC_NAME", "tap.linkerd-viz"),
        ("TRACE_COLLECTOR_SVC_ADDR", "collector.tracing:4317"),
        ("TRACE_COLLECTOR_SVC_NAME", "collector.tracing"),
        ("ACCESS_LOG", "apache"),
    ]);
    let names: Vec<_> = all
        .not_yet
        .iter()
        .map(|n| n.trim_start_matches(PREFIX))
        .collect();
    assert_eq!(
        names,
        [
            "INGRESS_MODE",
            "OUTBOUND_METRICS_HOSTNAME_LABELS",
            "INBOUND_GATEWAY_SUFFIXES",
            "TAP_SVC_NAME",
            "TRACE_COLLECTOR_SVC_ADDR",
            "ACCESS_LOG",
        ]
    );
    assert!(
        all.outbound.disable_informational_headers,
        "follows ingress mode"
    );
    let shown = set(&[
        ("INGRESS_MODE", "true"),
        ("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", "false"),
    ]);
    assert!(!shown.outbound.disable_informational_headers);
}

#[test]
fn http2_servers_take_pairs_only_together() {
    let http2 = |changes: &[(&str, &str)]| {
        let changes: Vec<_> = changes
            .iter()
            .map(|(name, value)| (format!("INBOUND_SERVER_HTTP2_{name}"), *value))
            .collect();
        let changes: Vec<_> = changes.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        set(&changes).inbound.side.http2
    };
    let default = Http2Windows::default();
    assert_eq!(
        http2(&[("INITIAL_STREAM_WINDOW_SIZE", "1")]).windows,
        default
    );
    assert_eq!(
        http2(&[("INITIAL_CONNECTION_WINDOW_SIZE", "1")]).windows,
        default
    );
    assert_eq!(http2(&[("KEEP_ALIVE_INTERVAL", "1s")]).keep_alive, None);
    let all = http2(&[
        ("INITIAL_STREAM_WINDOW_SIZE", "1"),
        ("INITIAL_CONNECTION_WINDOW_SIZE", "2"),
        ("ADAPTIVE_FLOW_CONTROL", "true"),
        ("MAX_CONCURRENT_STREAMS", "3"),
        ("MAX_FRAME_SIZE", "16384"),
        ("MAX_HEADER_LIST_SIZE", "4"),
        ("MAX_PENDING_ACCEPT_RESET_STREAMS", "5"),
        ("MAX_SEND_BUF_SIZE", "6"),
    ]);
    assert_eq!(
        all,
        Http2Server {
            adaptive_flow_control: true,
            windows: Http2Windows {
                stream: 1,
                connection: 2
            },
            keep_alive: None,
            max_concurrent_streams: Some(3),
            max_frame_size: Some(16_384),
            max_header_list_size: Some(4),
            max_pending_accept_reset_streams: Some(5),
            max_send_buf_size: Some(6),
        }
    );
    let client = set(&[("HTTP2_INITIAL_STREAM_WINDOW_SIZE", "7")]).http2_client;
    assert_eq!(
        client,
        Http2Windows {
            stream: 7,
            connection: 1 << 20
        }
    );
}

#[test]
fn workers_follow_the_rule_of_the_contract() {
    type Case = (&'static [(&'static str, &'static str)], usize, usize);
    // Variables, CPUs, workers.
    let cases: [Case; 12] = [
        (&[], 8, 1),
        (&[("CORES", "2")], 8, 2),
        (&[("CORES", "2"), ("CORES_MIN", "3")], 8, 3),
        (&[("CORES_MAX", "4")], 8, 4),
        (&[("CORES_MAX", "4")], 2, 2),
        (&[("CORES_MAX_RATIO", "0.5")], 8, 4),
        (&[("CORES_MAX_RATIO", "0.3")], 8, 2),
        (&[("CORES_MAX_RATIO", "0.01")], 8, 1),
        (&[("CORES_MAX_RATIO", "9")], 8, 8),
        (&[("CORES_MAX", "2"), ("CORES_MAX_RATIO", "1")], 8, 2),
        (&[("CORES_MIN", "6"), ("CORES_MAX", "2")], 8, 6),
        (&[("CORES_MIN", "16")], 8, 8),
    ];
    for (changes, cpus, expected) in cases {
        let workers = set(changes).runtime.workers;
        assert_eq!(
            workers.count(cpus),
            expected,
            "for {changes:?} on {cpus} CPUs"
        );
    }
    assert_eq!(set(&[]).runtime.workers.count(0), 1);
}

#[test]
fn addresses_networks_and_limits_are_kept_as_given() {
    let all = set(&[
        ("DESTINATION_SVC_ADDR", "10.1.2.3:8086"),
        ("DNS_MIN_TTL", "1s"),
        ("DNS_MAX_TTL", "1m"),
        ("INBOUND_METRICS_AUTHORITY_LABELS", "unsafe"),
        ("WEFT_PROXY_MAX_HEADER_BYTES", "65536"),
    ]);
    assert_eq!(
        all.destination.service.addr,
        Addr::Socket("10.1.2.3:8086".parse().unwrap())
    );
    assert_eq!(
        (all.dns.min_ttl, all.dns.max_ttl),
        (Some(s(1)), Some(s(60)))
    );
    assert!(all.inbound.authority_labels);
    assert_eq!(all.max_header_bytes, 65_536);
    let reversed = [("DNS_MIN_TTL", Some("2m")), ("DNS_MAX_TTL", Some("1m"))];
    assert_eq!(faults(&reversed), ["DNS_MIN_TTL"]);
    let backoff = [
        ("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", Some("2m")),
        ("OUTBOUND_CONNECT_EXP_BACKOFF_MAX", Some("1m")),
    ];
    assert_eq!(faults(&backoff), ["OUTBOUND_CONNECT_EXP_BACKOFF_MIN"]);
}
