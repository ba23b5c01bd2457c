//! Owns the settings of traffic: what both directions have, and what only one of them has.
//! Does not open a socket.

use super::reader::Reader;
use super::serial;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use weft_core::backoff::ExponentialBackoff;
use weft_core::name::PortSet;
use weft_core::parse::{self, DnsSuffix};
use weft_runtime::net::SocketOptions;

/// Windows of HTTP/2 flow control go up to this (RFC 9113 section 6.9.1).
const WINDOWS: RangeInclusive<u32> = 1..=(1 << 31) - 1;
/// HTTP/2 frames may be allowed to have these sizes (RFC 9113 section 6.5.2).
const FRAMES: RangeInclusive<u32> = (1 << 14)..=(1 << 24) - 1;

/// Traffic of the application to others.
#[derive(Clone, Debug, Serialize)]
pub struct Outbound {
    /// `OUTBOUND_LISTEN_ADDRS`, or the older `OUTBOUND_LISTEN_ADDR`: one or two addresses.
    pub listen: Vec<SocketAddr>,
    /// What both directions have.
    #[serde(flatten)]
    pub side: Side,
    /// `OUTBOUND_TCP_*`: connections that wait for an endpoint.
    pub tcp: Queue,
    /// `OUTBOUND_DISABLE_INFORMATIONAL_HEADERS`: no `l5d-proxy-*` headers for the application.
    pub disable_informational_headers: bool,
    /// `INGRESS_MODE`.
    pub ingress_mode: bool,
    /// `OUTBOUND_METRICS_HOSTNAME_LABELS`.
    pub hostname_labels: bool,
}

/// Traffic of others to the application.
#[derive(Clone, Debug, Serialize)]
pub struct Inbound {
    /// `INBOUND_LISTEN_ADDR`.
    pub listen: SocketAddr,
    /// What both directions have.
    #[serde(flatten)]
    pub side: Side,
    /// `INBOUND_IPS`: the addresses of this workload; empty means any.
    pub ips: BTreeSet<IpAddr>,
    /// `INBOUND_PORTS`: ports whose policy is watched from the start and never forgotten.
    pub ports: PortSet,
    /// `INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION`: opaque until policy says otherwise.
    pub opaque_ports: PortSet,
    /// `INBOUND_GATEWAY_SUFFIXES`: names this proxy is a gateway for; empty means that it is none.
    pub gateway_suffixes: Vec<DnsSuffix>,
    /// `INBOUND_METRICS_AUTHORITY_LABELS=unsafe`: label inbound metrics with what clients claim.
    pub authority_labels: bool,
}

/// What both directions have.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// `*_DETECT_TIMEOUT`: time for the first bytes that tell TLS and protocol.
    #[serde(serialize_with = "serial::duration")]
    pub detect_timeout: Duration,
    /// Accepted connections.
    pub accept: Accept,
    /// Dialled connections.
    pub connect: Connect,
    /// `*_HTTP_QUEUE_CAPACITY`, `*_HTTP_FAILFAST_TIMEOUT`: requests that wait for an endpoint.
    pub http: Queue,
    /// `MAX_IDLE_CONNS_PER_ENDPOINT`, `OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT`: HTTP/1 connections kept.
    pub max_idle_conns_per_endpoint: usize,
    /// `*_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT`: how long they are kept.
    #[serde(serialize_with = "serial::duration")]
    pub http1_idle_timeout: Duration,
    /// `*_MAX_IN_FLIGHT`: requests at once; more are refused.
    pub max_in_flight: usize,
    /// `*_DISCOVERY_IDLE_TIMEOUT`: how long what was discovered outlives its last use.
    #[serde(serialize_with = "serial::duration")]
    pub discovery_idle_timeout: Duration,
    /// `*_SERVER_HTTP2_*`.
    pub http2: Http2Server,
}

/// Accepted connections.
#[derive(Clone, Debug, Serialize)]
pub struct Accept {
    /// `*_ACCEPT_KEEPALIVE`, `*_ACCEPT_USER_TIMEOUT`.
    pub socket: SocketOptions,
    /// `*_TCP_LISTEN_BACKLOG`; none means the system's limit.
    pub backlog: Option<u32>,
}

/// Dialled connections.
#[derive(Clone, Debug, Serialize)]
pub struct Connect {
    /// `*_CONNECT_TIMEOUT`: for TCP, TLS and transport header together.
    #[serde(serialize_with = "serial::duration")]
    pub timeout: Duration,
    /// `*_CONNECT_EXP_BACKOFF_{MIN,MAX,JITTER}`.
    pub backoff: ExponentialBackoff,
    /// `*_CONNECT_KEEPALIVE`, `*_CONNECT_USER_TIMEOUT`.
    pub socket: SocketOptions,
}

/// A bounded wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// How many may wait, at least 1.
    pub capacity: usize,
    /// How long until they are refused, and new ones at once.
    #[serde(serialize_with = "serial::duration")]
    pub failfast_timeout: Duration,
}

/// Initial windows of HTTP/2 flow control, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Http2Windows {
    /// Of each stream.
    pub stream: u32,
    /// Of the connection.
    pub connection: u32,
}

/// An HTTP/2 server. What is none is left to the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Http2Server {
    /// `ADAPTIVE_FLOW_CONTROL`: windows follow the measured throughput.
    pub adaptive_flow_control: bool,
    /// `INITIAL_STREAM_WINDOW_SIZE` and `INITIAL_CONNECTION_WINDOW_SIZE`, which count only together.
    pub windows: Http2Windows,
    /// `KEEP_ALIVE_INTERVAL` and `KEEP_ALIVE_TIMEOUT`, which count only together.
    pub keep_alive: Option<KeepAlive>,
    /// `MAX_CONCURRENT_STREAMS`.
    pub max_concurrent_streams: Option<u32>,
    /// `MAX_FRAME_SIZE` in bytes.
    pub max_frame_size: Option<u32>,
    /// `MAX_HEADER_LIST_SIZE` in bytes.
    pub max_header_list_size: Option<u32>,
    /// `MAX_PENDING_ACCEPT_RESET_STREAMS`.
    pub max_pending_accept_reset_streams: Option<usize>,
    /// `MAX_SEND_BUF_SIZE` in bytes.
    pub max_send_buf_size: Option<usize>,
}

/// HTTP/2 pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KeepAlive {
    /// Silence before a ping.
    #[serde(serialize_with = "serial::duration")]
    pub interval: Duration,
    /// Time for its answer.
    #[serde(serialize_with = "serial::duration")]
    pub timeout: Duration,
}

/// Defaults in which the directions differ, and the name of one of them.
struct Direction {
    name: &'static str,
    idle_conns: &'static str,
    connect_timeout: Duration,
    backoff_max: Duration,
    http_failfast: Duration,
    discovery_idle: Duration,
}

const OUTBOUND: Direction = Direction {
    name: "OUTBOUND",
    idle_conns: "OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT",
    connect_timeout: Duration::from_secs(1),
    backoff_max: Duration::from_secs(60),
    http_failfast: Duration::from_secs(3),
    discovery_idle: Duration::from_secs(5),
};

const INBOUND: Direction = Direction {
    name: "INBOUND",
    // The one name without the direction in it.
    idle_conns: "MAX_IDLE_CONNS_PER_ENDPOINT",
    connect_timeout: Duration::from_millis(300),
    backoff_max: Duration::from_secs(10),
    http_failfast: Duration::from_secs(1),
    discovery_idle: Duration::from_secs(90),
};

impl Outbound {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let older = r.socket_addr_or("OUTBOUND_LISTEN_ADDR", ([127, 0, 0, 1], 4140));
        let listen = r.read("OUTBOUND_LISTEN_ADDRS", parse::socket_addrs);
        let ingress_mode = r.boolean_or("INGRESS_MODE", false);
        let hostname_labels = r.boolean_or("OUTBOUND_METRICS_HOSTNAME_LABELS", false);
        if ingress_mode {
            r.later("INGRESS_MODE");
        }
        if hostname_labels {
            r.later("OUTBOUND_METRICS_HOSTNAME_LABELS");
        }
        Self {
            listen: listen.unwrap_or_else(|| vec![older]),
            side: Side::read(r, &OUTBOUND),
            tcp: Queue::read(r, "OUTBOUND_TCP", Duration::from_secs(3)),
            disable_informational_headers: r
                .boolean_or("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", ingress_mode),
            ingress_mode,
            hostname_labels,
        }
    }
}

impl Inbound {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let gateway = r
            .read("INBOUND_GATEWAY_SUFFIXES", parse::dns_suffixes)
            .unwrap_or_default();
        if !gateway.is_empty() {
            r.later("INBOUND_GATEWAY_SUFFIXES");
        }
        let opaque = "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION";
        Self {
            listen: r.socket_addr_or("INBOUND_LISTEN_ADDR", ([0, 0, 0, 0], 4143)),
            side: Side::read(r, &INBOUND),
            ips: r.read("INBOUND_IPS", parse::ip_set).unwrap_or_default(),
            ports: r.read("INBOUND_PORTS", parse::port_set).unwrap_or_default(),
            opaque_ports: r.read(opaque, parse::port_set).unwrap_or_default(),
            gateway_suffixes: gateway,
            authority_labels: r.text("INBOUND_METRICS_AUTHORITY_LABELS").as_deref()
                == Some("unsafe"),
        }
    }
}

impl Side {
    fn read(r: &mut Reader<'_>, direction: &Direction) -> Self {
        let name = |rest: &str| format!("{}_{rest}", direction.name);
        let seconds = Duration::from_secs;
        Self {
            detect_timeout: r.duration_or(&name("DETECT_TIMEOUT"), seconds(10)),
            accept: Accept {
                socket: socket_options(r, &name("ACCEPT")),
                backlog: r.read(&name("TCP_LISTEN_BACKLOG"), parse::number),
            },
            connect: Connect {
                timeout: r.duration_or(&name("CONNECT_TIMEOUT"), direction.connect_timeout),
                backoff: backoff(r, &name("CONNECT_EXP_BACKOFF"), direction.backoff_max),
                socket: socket_options(r, &name("CONNECT")),
            },
            http: Queue::read(r, &name("HTTP"), direction.http_failfast),
            max_idle_conns_per_endpoint: r
                .read(direction.idle_conns, parse::number)
                .unwrap_or(10_000),
            http1_idle_timeout: r
                .duration_or(&name("HTTP1_CONNECTION_POOL_IDLE_TIMEOUT"), seconds(3)),
            max_in_flight: r.count_or(&name("MAX_IN_FLIGHT"), 100_000),
            discovery_idle_timeout: r
                .duration_or(&name("DISCOVERY_IDLE_TIMEOUT"), direction.discovery_idle),
            http2: Http2Server::read(r, &name("SERVER_HTTP2")),
        }
    }
}

impl Queue {
    fn read(r: &mut Reader<'_>, prefix: &str, failfast: Duration) -> Self {
        Self {
            capacity: r.count_or(&format!("{prefix}_QUEUE_CAPACITY"), 10_000),
            failfast_timeout: r.duration_or(&format!("{prefix}_FAILFAST_TIMEOUT"), failfast),
        }
    }
}

impl Default for Http2Windows {
    /// RFC 9113's own size for a stream, and 1 MiB for a connection (contract 1.2).
    fn default() -> Self {
        Self {
            stream: 65_535,
            connection: 1024 * 1024,
        }
    }
}

impl Http2Windows {
    /// Each window by itself.
    pub(super) fn read(r: &mut Reader<'_>, prefix: &str) -> Self {
        let (stream, connection) = Self::read_both(r, prefix);
        let default = Self::default();
        Self {
            stream: stream.unwrap_or(default.stream),
            connection: connection.unwrap_or(default.connection),
        }
    }

    fn read_both(r: &mut Reader<'_>, prefix: &str) -> (Option<u32>, Option<u32>) {
        let mut window = |which: &str| {
            let name = format!("{prefix}_INITIAL_{which}_WINDOW_SIZE");
            r.read(&name, |text| within(text, WINDOWS))
        };
        (window("STREAM"), window("CONNECTION"))
    }
}

impl Http2Server {
    fn read(r: &mut Reader<'_>, prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}_{rest}");
        let windows = match Http2Windows::read_both(r, prefix) {
            (Some(stream), Some(connection)) => Http2Windows { stream, connection },
            _ => Http2Windows::default(),
        };
        let interval = r.read(&name("KEEP_ALIVE_INTERVAL"), positive_duration);
        let timeout = r.read(&name("KEEP_ALIVE_TIMEOUT"), positive_duration);
        Self {
            adaptive_flow_control: r.boolean_or(&name("ADAPTIVE_FLOW_CONTROL"), false),
            windows,
            keep_alive: interval
                .zip(timeout)
                .map(|(interval, timeout)| KeepAlive { interval, timeout }),
            max_concurrent_streams: r.read(&name("MAX_CONCURRENT_STREAMS"), parse::number),
            max_frame_size: r.read(&name("MAX_FRAME_SIZE"), |text| within(text, FRAMES)),
            max_header_list_size: r.read(&name("MAX_HEADER_LIST_SIZE"), parse::number),
            max_pending_accept_reset_streams: r
                .read(&name("MAX_PENDING_ACCEPT_RESET_STREAMS"), parse::number),
            max_send_buf_size: r.read(&name("MAX_SEND_BUF_SIZE"), parse::number),
        }
    }
}

fn socket_options(r: &mut Reader<'_>, prefix: &str) -> SocketOptions {
    SocketOptions {
        keepalive: r.duration(&format!("{prefix}_KEEPALIVE")),
        user_timeout: r.duration(&format!("{prefix}_USER_TIMEOUT")),
    }
}

fn backoff(r: &mut Reader<'_>, prefix: &str, default_max: Duration) -> ExponentialBackoff {
    let name = |rest: &str| format!("{prefix}_{rest}");
    let default_min = Duration::from_millis(100);
    let min = r.duration_or(&name("MIN"), default_min);
    let max = r.duration_or(&name("MAX"), default_max);
    let jitter = r.read(&name("JITTER"), parse::number).unwrap_or(0.1);
    ExponentialBackoff::new(min, max, jitter).unwrap_or_else(|error| {
        // The minimum stands for the three: one of them is at fault, and the reason says which.
        r.refuse(
            &name("MIN"),
            &error.to_string(),
            "correct MIN, MAX and JITTER together",
        );
        ExponentialBackoff::new(default_min, default_max, 0.1).expect("the defaults are in order")
    })
}

fn within<T>(text: &str, allowed: RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    parse::number(text)
        .ok()
        .filter(|n| allowed.contains(n))
        .ok_or_else(|| {
            format!(
                "expected a number from {} to {}",
                allowed.start(),
                allowed.end()
            )
        })
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match parse::duration(text) {
        Ok(Duration::ZERO) => Err("expected more than zero".to_owned()),
        other => other.map_err(|e| e.to_string()),
    }
}
