//! Owns what the proxy's own tests share: settings and contexts made from a few variables.

use crate::http::client::ClientSettings;
use crate::http::{Http2Params, Limits};
use crate::identity::testing::Authority;
use crate::limit::InFlight;
use crate::metrics::Metrics;
use crate::outbound::Context;
use crate::random::Random;
use crate::settings::Settings;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use weft_runtime::metrics::Registry;

/// Settings of a proxy that needs no control plane, with some variables (without prefix) changed.
pub fn settings(changes: &[(&str, &str)]) -> Settings {
    static ANCHOR: LazyLock<String> = LazyLock::new(|| Authority::new().pem);
    let pairs = [
        ("DESTINATION_SVC_ADDR", "127.0.0.1:8086"),
        ("POLICY_SVC_ADDR", "127.0.0.1:8090"),
        ("POLICY_WORKLOAD", "test:test"),
        ("IDENTITY_SVC_ADDR", "127.0.0.1:8080"),
        ("IDENTITY_DIR", "/nonexistent"),
        ("IDENTITY_TRUST_ANCHORS", ANCHOR.as_str()),
        ("IDENTITY_TOKEN_FILE", "/nonexistent/token"),
        (
            "IDENTITY_LOCAL_NAME",
            "test.test.serviceaccount.identity.linkerd.cluster.local",
        ),
    ];
    let env: HashMap<String, String> = pairs
        .iter()
        .chain(changes)
        .copied()
        .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value.to_owned()))
        .collect();
    Settings::from_env(&env).unwrap()
}

/// A context for outbound traffic without mesh TLS, and where its metrics are.
pub fn outbound(changes: &[(&str, &str)]) -> (Arc<Context>, Arc<Registry>) {
    let settings = settings(changes);
    let registry = Arc::new(Registry::new(Duration::from_secs(600)));
    let metrics = Metrics::new(&registry);
    let limits = Limits {
        max_header_bytes: settings.max_header_bytes,
        max_headers: 128,
    };
    let http2 = Http2Params {
        stream_window: 65_535,
        connection_window: 1 << 20,
        max_concurrent_streams: None,
        max_frame_size: None,
        max_pending_accept_reset_streams: None,
        max_send_buffer: None,
        limits,
        keep_alive: None,
    };
    let context = Context {
        client: ClientSettings {
            max_idle: 16,
            idle_timeout: Duration::from_secs(3),
            http2,
            limits,
        },
        limits,
        server_http2: http2,
        store: Authority::new().store("test", Duration::from_secs(3600)),
        local_ips: settings.inbound.ips.clone(),
        settings: settings.outbound,
        metrics: metrics.outbound,
        in_flight: InFlight::new("test", 100),
        random: Random::seeded(42),
    };
    (Arc::new(context), registry)
}

/// The value of the series of `family` whose line contains every part.
pub fn sample(registry: &Registry, family: &str, parts: &[&str]) -> Option<f64> {
    registry
        .encode()
        .lines()
        .find(|line| line.starts_with(family) && parts.iter().all(|part| line.contains(part)))
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

/// Both ends of a TCP connection.
pub async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, server) = tokio::join!(client, listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// A channel to where nobody listens.
pub fn dead_channel() -> tonic::transport::Channel {
    tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy()
}

/// How the streams of a dead channel are kept.
pub fn watch() -> crate::control::stream::Watch {
    let second = Duration::from_secs(1);
    crate::control::stream::Watch {
        what: "test".into(),
        limits: Default::default(),
        backoff: weft_core::backoff::ExponentialBackoff::new(second, second, 0.0).unwrap(),
        terminal: &[],
    }
}

/// `limit` has passed since `start`; timers are exact to a millisecond.
pub fn assert_elapsed(start: tokio::time::Instant, limit: Duration) {
    let over = start.elapsed().checked_sub(limit);
    assert!(
        over.is_some_and(|over| over <= Duration::from_millis(1)),
        "{:?}",
        start.elapsed()
    );
}
