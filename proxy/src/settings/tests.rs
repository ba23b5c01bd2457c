//! Tests of single settings: defaults, what the injector sets, what is refused, and how errors look.

use super::*;
use std::collections::HashMap;
use std::net::IpAddr;

mod rules;

/// The least a proxy must be told.
fn minimal() -> HashMap<String, String> {
    let name = |sa: &str| format!("{sa}.linkerd.serviceaccount.identity.linkerd.cluster.local");
    let anchors = rcgen::generate_simple_self_signed(vec!["root".to_owned()])
        .unwrap()
        .cert
        .pem();
    [
        (
            "DESTINATION_SVC_ADDR",
            "linkerd-dst-headless.linkerd.svc.cluster.local.:8086".to_owned(),
        ),
        ("DESTINATION_SVC_NAME", name("linkerd-destination")),
        (
            "POLICY_SVC_ADDR",
            "linkerd-policy.linkerd.svc.cluster.local.:8090".to_owned(),
        ),
        ("POLICY_SVC_NAME", name("linkerd-destination")),
        (
            "POLICY_WORKLOAD",
            "{\"ns\":\"a\", \"pod\":\"b\"}\n".to_owned(),
        ),
        (
            "IDENTITY_SVC_ADDR",
            "linkerd-identity-headless.linkerd.svc.cluster.local.:8080".to_owned(),
        ),
        ("IDENTITY_SVC_NAME", name("linkerd-identity")),
        (
            "IDENTITY_DIR",
            "/var/run/linkerd/identity/end-entity".to_owned(),
        ),
        ("IDENTITY_TRUST_ANCHORS", anchors),
        (
            "IDENTITY_TOKEN_FILE",
            "/var/run/secrets/tokens/linkerd-identity-token".to_owned(),
        ),
        ("IDENTITY_LOCAL_NAME", name("web").to_uppercase()),
    ]
    .into_iter()
    .map(|(name, value)| (full(name), value))
    .collect()
}

fn full(name: &str) -> String {
    if name.starts_with("WEFT_") {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}

/// Settings from the least environment with `changes`, where `None` takes a variable away.
fn with(changes: &[(&str, Option<&str>)]) -> Result<Settings, Vec<SettingError>> {
    let mut env = minimal();
    for (name, value) in changes {
        match value {
            Some(value) => env.insert(full(name), (*value).to_owned()),
            None => env.remove(&full(name)),
        };
    }
    Settings::from_env(&env)
}

fn set(changes: &[(&str, &str)]) -> Settings {
    let changes: Vec<_> = changes
        .iter()
        .map(|(name, value)| (*name, Some(*value)))
        .collect();
    with(&changes).unwrap()
}

/// The names at fault, without prefix.
fn faults(changes: &[(&str, Option<&str>)]) -> Vec<String> {
    let errors = match with(changes) {
        Ok(_) => Vec::new(),
        Err(errors) => errors,
    };
    errors
        .iter()
        .map(|e| e.name.trim_start_matches(PREFIX).to_owned())
        .collect()
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn defaults_are_those_of_the_contract() {
    let all = set(&[]);
    let (out, inb) = (&all.outbound, &all.inbound);
    assert_eq!(out.listen, ["127.0.0.1:4140".parse().unwrap()]);
    assert_eq!(inb.listen, "0.0.0.0:4143".parse().unwrap());
    assert_eq!(all.admin.listen, "127.0.0.1:4191".parse().unwrap());
    assert!(!all.admin.shutdown_endpoint);
    assert_eq!(
        (out.side.detect_timeout, inb.side.detect_timeout),
        (s(10), s(10))
    );
    assert_eq!(
        (out.side.connect.timeout, inb.side.connect.timeout),
        (s(1), ms(300))
    );
    assert_eq!(out.side.connect.backoff.delay(20, 0), s(60));
    assert_eq!(inb.side.connect.backoff.delay(20, 0), s(10));
    assert_eq!(inb.side.connect.backoff.delay(0, u64::MAX), ms(110));
    assert_eq!(
        out.side.http,
        Queue {
            capacity: 10_000,
            failfast_timeout: s(3)
        }
    );
    assert_eq!(
        inb.side.http,
        Queue {
            capacity: 10_000,
            failfast_timeout: s(1)
        }
    );
    assert_eq!(
        out.tcp,
        Queue {
            capacity: 10_000,
            failfast_timeout: s(3)
        }
    );
    assert_eq!(
        (
            out.side.discovery_idle_timeout,
            inb.side.discovery_idle_timeout
        ),
        (s(5), s(90))
    );
    for side in [&out.side, &inb.side] {
        assert_eq!(side.max_idle_conns_per_endpoint, 10_000);
        assert_eq!(side.max_in_flight, 100_000);
        assert_eq!(side.http1_idle_timeout, s(3));
        assert_eq!(side.accept.backlog, None);
        assert_eq!(
            (side.accept.socket, side.connect.socket),
            Default::default()
        );
        assert_eq!(
            side.http2.windows,
            Http2Windows {
                stream: 65_535,
                connection: 1 << 20
            }
        );
        assert_eq!(side.http2.keep_alive, None);
    }
    assert!(inb.ips.is_empty() && inb.ports.is_empty() && inb.opaque_ports.is_empty());
    assert_eq!(all.policy.default, DefaultPolicy::AllUnauthenticated);
    assert!(all.destination.profile_suffixes[0].matches("web.default.svc.cluster.local"));
    assert!(all.destination.profile_networks.is_empty());
    assert_eq!(all.destination.profile_initial_timeout, ms(500));
    assert_eq!(all.destination.context, "");
    assert_eq!(
        (all.identity.min_refresh, all.identity.max_refresh),
        (s(10), s(86_400))
    );
    assert_eq!(all.control.streams, StreamLimits::default());
    assert_eq!(all.metrics.retain_idle, s(600));
    assert_eq!(all.runtime.shutdown_grace, s(120));
    assert_eq!(all.runtime.workers.count(64), 1);
    assert_eq!(all.log.directives, "warn,linkerd=info,hickory=error");
    assert_eq!(all.log.format, log::Format::Plain);
    assert_eq!(all.max_header_bytes, 128 * 1024);
    assert!(!out.disable_informational_headers && !inb.authority_labels);
    assert!(all.not_yet.is_empty());
}

#[test]
fn what_the_injector_sets_is_understood() {
    let all = set(&[
        ("OUTBOUND_LISTEN_ADDR", "127.0.0.1:4140"),
        ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140,[::1]:4140"),
        ("INBOUND_LISTEN_ADDR", "[::]:4143"),
        ("CONTROL_LISTEN_ADDR", "[::]:4190"),
        ("ADMIN_LISTEN_ADDR", "[::]:4191"),
        ("INBOUND_IPS", "10.0.0.7,fd00::7"),
        ("INBOUND_PORTS", "80,8080, ,9000-9001"),
        ("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", "25,587,3306"),
        ("INBOUND_PORTS_REQUIRE_TLS", "whatever"),
        ("OUTBOUND_DETECT_TIMEOUT", "365d"),
        ("INBOUND_CONNECT_TIMEOUT", "100ms"),
        ("INBOUND_ACCEPT_KEEPALIVE", "10000ms"),
        ("INBOUND_ACCEPT_USER_TIMEOUT", "30s"),
        ("OUTBOUND_CONNECT_KEEPALIVE", "10000ms"),
        ("OUTBOUND_CONNECT_USER_TIMEOUT", "30s"),
        ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "10s"),
        ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", "3s"),
        ("DESTINATION_CONTEXT", "{\"ns\":\"a\"}\n"),
        ("DESTINATION_PROFILE_SUFFIXES", "."),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8,fd00::/8"),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8,fd00::/8"),
        ("CONTROL_STREAM_INITIAL_TIMEOUT", "3s"),
        ("CONTROL_STREAM_IDLE_TIMEOUT", "5m"),
        ("CONTROL_STREAM_LIFETIME", "1h"),
        ("CORES", "1"),
        ("CORES_MIN", "1"),
        (
            "LOG",
            "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off",
        ),
        ("LOG_FORMAT", "json"),
        ("TRACE_PROTOCOL", "opentelemetry"),
        ("INBOUND_FUTURE_SETTING_NOBODY_KNOWS", "1m30s"),
    ]);
    assert_eq!(all.outbound.listen.len(), 2);
    assert!(
        all.inbound
            .ips
            .contains(&"fd00::7".parse::<IpAddr>().unwrap())
    );
    assert_eq!(
        all.inbound.ports.iter().collect::<Vec<_>>(),
        [80, 8080, 9000, 9001]
    );
    assert_eq!(all.outbound.side.detect_timeout, s(365 * 86_400));
    assert_eq!(all.inbound.side.accept.socket.keepalive, Some(s(10)));
    assert_eq!(all.outbound.side.connect.socket.user_timeout, Some(s(30)));
    assert_eq!(all.outbound.side.accept.socket.keepalive, None);
    let ping = KeepAlive {
        interval: s(10),
        timeout: s(3),
    };
    assert_eq!(all.inbound.side.http2.keep_alive, Some(ping));
    assert_eq!(all.outbound.side.http2.keep_alive, None);
    assert_eq!(all.destination.context, "{\"ns\":\"a\"}\n");
    assert_eq!(all.policy.workload, "{\"ns\":\"a\", \"pod\":\"b\"}\n");
    assert!(all.destination.profile_suffixes[0].matches("example.org"));
    assert_eq!(all.destination.profile_networks.len(), 2);
    assert_eq!(all.control.streams.idle, Some(s(300)));
    assert_eq!(all.log.format, log::Format::Json);
    assert!(all.not_yet.is_empty(), "{:?}", all.not_yet);
}

#[test]
fn every_unreadable_value_is_named() {
    let cases = [
        (
            "OUTBOUND_LISTEN_ADDRS",
            "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        ),
        ("OUTBOUND_LISTEN_ADDRS", ""),
        ("OUTBOUND_LISTEN_ADDR", "localhost:4140"),
        ("INBOUND_LISTEN_ADDR", "0.0.0.0"),
        ("CONTROL_LISTEN_ADDR", "x"),
        ("ADMIN_LISTEN_ADDR", ":4191"),
        ("INBOUND_IPS", "10.0.0.0/8"),
        ("INBOUND_PORTS", "9001-9000"),
        ("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", "70000"),
        ("INBOUND_DEFAULT_POLICY", "all-authenticate"),
        ("INBOUND_DETECT_TIMEOUT", "10"),
        ("OUTBOUND_DETECT_TIMEOUT", "1m30s"),
        ("INBOUND_CONNECT_TIMEOUT", "1.5s"),
        ("INBOUND_CONNECT_EXP_BACKOFF_MIN", "0"),
        ("OUTBOUND_CONNECT_EXP_BACKOFF_MAX", "-1s"),
        ("OUTBOUND_CONNECT_EXP_BACKOFF_JITTER", "much"),
        ("INBOUND_ACCEPT_KEEPALIVE", ""),
        ("OUTBOUND_CONNECT_USER_TIMEOUT", "30 s"),
        ("INBOUND_TCP_LISTEN_BACKLOG", "-1"),
        ("INBOUND_HTTP_QUEUE_CAPACITY", "0"),
        ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "3"),
        ("OUTBOUND_TCP_QUEUE_CAPACITY", "many"),
        ("MAX_IDLE_CONNS_PER_ENDPOINT", "1e3"),
        ("OUTBOUND_MAX_IN_FLIGHT", "0"),
        ("INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", "3S"),
        ("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "5sec"),
        ("METRICS_RETAIN_IDLE", "10min"),
        ("INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE", "16383"),
        (
            "INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE",
            "2147483648",
        ),
        ("OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "0"),
        ("OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL", "yes"),
        ("HTTP2_INITIAL_CONNECTION_WINDOW_SIZE", "0"),
        ("SHUTDOWN_GRACE_PERIOD", ""),
        ("SHUTDOWN_ENDPOINT_ENABLED", "True"),
        ("INGRESS_MODE", "1"),
        ("INBOUND_GATEWAY_SUFFIXES", "-.local"),
        ("DESTINATION_PROFILE_SUFFIXES", "a..b"),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.1-10.0.0.9"),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/33"),
        ("CONTROL_STREAM_LIFETIME", "1hour"),
        ("IDENTITY_DISABLED", "true"),
        ("IDENTITY_DIR", ""),
        ("IDENTITY_TRUST_ANCHORS", "not a certificate"),
        ("IDENTITY_LOCAL_NAME", "spiffe://td/web"),
        ("IDENTITY_MIN_REFRESH", "25h"),
        ("IDENTITY_SVC_ADDR", "linkerd-identity"),
        ("TAP_SVC_NAME", "not a name"),
        ("DNS_MIN_TTL", "x"),
        ("CORES_MAX", "0"),
        ("CORES_MAX_RATIO", "0"),
        ("LOG", "linkerd=loud"),
        ("LOG_FORMAT", "xml"),
        ("WEFT_PROXY_MAX_HEADER_BYTES", "2000000"),
    ];
    for (name, value) in cases {
        assert_eq!(
            faults(&[(name, Some(value))]),
            [name],
            "for {name}={value:?}"
        );
    }
}

#[test]
fn all_errors_come_in_one_go() {
    let errors = Settings::from_env(&HashMap::from([
        (full("INBOUND_DETECT_TIMEOUT"), "soon".to_owned()),
        (full("IDENTITY_TRUST_ANCHORS"), "A".repeat(10_000)),
    ]))
    .unwrap_err();
    let names: Vec<_> = errors
        .iter()
        .map(|e| e.name.trim_start_matches(PREFIX))
        .collect();
    assert_eq!(
        names,
        [
            "INBOUND_DETECT_TIMEOUT",
            "DESTINATION_SVC_ADDR",
            "POLICY_WORKLOAD",
            "POLICY_SVC_ADDR",
            "IDENTITY_LOCAL_NAME",
            "IDENTITY_DIR",
            "IDENTITY_TRUST_ANCHORS",
            "IDENTITY_TOKEN_FILE",
            "IDENTITY_SVC_ADDR",
        ]
    );
    let printed: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(printed[0].starts_with("LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT=\"soon\": expected"));
    assert!(printed[3].starts_with("LINKERD2_PROXY_POLICY_SVC_ADDR is not set: "));
    assert!(printed.iter().all(|line| line.len() < 400), "{printed:?}");
}

#[test]
fn text_that_is_not_unicode_is_refused_once() {
    struct Broken(HashMap<String, String>);
    impl Env for Broken {
        fn var(&self, name: &str) -> Result<Option<String>, NotUnicode> {
            if name.ends_with("IDENTITY_SVC_ADDR") {
                Err(NotUnicode)
            } else {
                self.0.var(name)
            }
        }
    }
    let errors = Settings::from_env(&Broken(minimal())).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].name, full("IDENTITY_SVC_ADDR"));
}

#[test]
fn settings_print_as_json_with_readable_times_and_no_token() {
    let json = serde_json::to_value(set(&[("OUTBOUND_ACCEPT_KEEPALIVE", "10s")])).unwrap();
    assert_eq!(json["inbound"]["connect"]["timeout"], "300ms");
    assert_eq!(json["outbound"]["accept"]["socket"]["keepalive"], "10s");
    assert_eq!(
        json["identity"]["token_file"],
        "/var/run/secrets/tokens/linkerd-identity-token"
    );
    assert_eq!(json["policy"]["default"], "all-unauthenticated");
}
