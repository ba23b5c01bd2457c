//! Owns `Settings`: everything the proxy is told by its environment (contract 1), checked once, all errors in one go.
//! Does not act on any of it and does not read files: the token and the key never get here.

use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use weft_core::parse;
use weft_runtime::log;

mod control;
mod env;
mod identity;
mod policy;
mod reader;
mod serial;
mod traffic;
mod workers;

pub use control::{Control, ControlAddr, Destination, StreamLimits};
pub use env::{Env, NotUnicode, ProcessEnv};
pub use identity::LocalIdentity;
pub use policy::{DefaultPolicy, Policy};
pub use traffic::{
    Accept, Connect, Http2Server, Http2Windows, Inbound, KeepAlive, Outbound, Queue, Side,
};
pub use workers::Workers;

use reader::Reader;

/// What every variable name begins with, but for those that are Weft's own.
pub const PREFIX: &str = "LINKERD2_PROXY_";
/// The limit of a request's or response's head; a name of Weft's own.
pub const MAX_HEADER_BYTES: &str = "WEFT_PROXY_MAX_HEADER_BYTES";

/// The settings of a proxy. Serializable, and free of secrets.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Traffic of the application to others.
    pub outbound: Outbound,
    /// Traffic of others to the application.
    pub inbound: Inbound,
    /// The admin server.
    pub admin: Admin,
    /// Who this proxy is, and how it proves that.
    pub identity: LocalIdentity,
    /// Discovery.
    pub destination: Destination,
    /// Policy.
    pub policy: Policy,
    /// What all control-plane clients share.
    pub control: Control,
    /// Flow control of HTTP/2 clients (`HTTP2_INITIAL_*_WINDOW_SIZE`).
    pub http2_client: Http2Windows,
    /// Most bytes of the head of a message; more is answered with 431.
    pub max_header_bytes: usize,
    /// Metrics.
    pub metrics: Metrics,
    /// Name resolution.
    pub dns: Dns,
    /// Log lines.
    pub log: Log,
    /// The process.
    pub runtime: Runtime,
    /// Variables that are set to something this version does not act on. Log it once.
    pub not_yet: Vec<String>,
}

/// The admin server (contract 5).
#[derive(Clone, Debug, Serialize)]
pub struct Admin {
    /// `ADMIN_LISTEN_ADDR`.
    pub listen: SocketAddr,
    /// `SHUTDOWN_ENDPOINT_ENABLED`: whether `POST /shutdown` exists.
    pub shutdown_endpoint: bool,
}

/// Metrics (contract 6).
#[derive(Clone, Debug, Serialize)]
pub struct Metrics {
    /// `METRICS_RETAIN_IDLE`: how long a series outlives its last use.
    #[serde(serialize_with = "serial::duration")]
    pub retain_idle: Duration,
}

/// Limits of the time an answer of DNS is used.
#[derive(Clone, Debug, Serialize)]
pub struct Dns {
    /// `DNS_MIN_TTL`.
    #[serde(serialize_with = "serial::optional_duration")]
    pub min_ttl: Option<Duration>,
    /// `DNS_MAX_TTL`.
    #[serde(serialize_with = "serial::optional_duration")]
    pub max_ttl: Option<Duration>,
}

/// Log lines.
#[derive(Clone, Debug, Serialize)]
pub struct Log {
    /// `LOG`, in the form of [`weft_runtime::log::init`].
    pub directives: String,
    /// `LOG_FORMAT`.
    pub format: log::Format,
}

/// The process.
#[derive(Clone, Debug, Serialize)]
pub struct Runtime {
    /// `CORES*`: how many worker threads.
    pub workers: Workers,
    /// `SHUTDOWN_GRACE_PERIOD`: the longest drain.
    #[serde(serialize_with = "serial::duration")]
    pub shutdown_grace: Duration,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The variable.
    pub name: String,
    /// Its value, cut to a printable length; none if it is unset.
    pub value: Option<String>,
    /// What is wrong with it.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            reason,
            remedy,
        } = self;
        match value {
            Some(value) => write!(f, "{name}={value:?}: {reason}; {remedy}"),
            None => write!(f, "{name} is not set: {reason}; {remedy}"),
        }
    }
}

impl std::error::Error for SettingError {}

impl Settings {
    /// Reads and checks all settings.
    ///
    /// # Errors
    /// Every setting at fault, in the order of contract 1.2; never empty. Unknown variables are no error.
    pub fn from_env(env: &dyn Env) -> Result<Self, Vec<SettingError>> {
        let mut reader = Reader::new(env);
        let r = &mut reader;
        let outbound = Outbound::read(r);
        let inbound = Inbound::read(r);
        let admin = Admin::read(r);
        let destination = Destination::read(r);
        let policy = Policy::read(r);
        let control = Control::read(r);
        let identity = LocalIdentity::read(r);
        let http2_client = Http2Windows::read(r, "HTTP2");
        let max_header_bytes = read_max_header_bytes(r);
        let metrics = Metrics {
            retain_idle: r.duration_or("METRICS_RETAIN_IDLE", Duration::from_secs(600)),
        };
        let dns = Dns::read(r);
        let log = Log::read(r);
        let runtime = Runtime {
            workers: Workers::read(r),
            shutdown_grace: r.duration_or("SHUTDOWN_GRACE_PERIOD", Duration::from_secs(120)),
        };
        read_later(r);
        let (not_yet, errors) = reader.finish();
        match (identity, destination, policy) {
            (Some(identity), Some(destination), Some(policy)) if errors.is_empty() => Ok(Self {
                outbound,
                inbound,
                admin,
                identity,
                destination,
                policy,
                control,
                http2_client,
                max_header_bytes,
                metrics,
                dns,
                log,
                runtime,
                not_yet,
            }),
            _ => Err(errors),
        }
    }
}

impl Admin {
    fn read(r: &mut Reader<'_>) -> Self {
        Self {
            listen: r.socket_addr_or("ADMIN_LISTEN_ADDR", ([127, 0, 0, 1], 4191)),
            shutdown_endpoint: r.boolean_or("SHUTDOWN_ENDPOINT_ENABLED", false),
        }
    }
}

impl Dns {
    fn read(r: &mut Reader<'_>) -> Self {
        let min_ttl = r.duration("DNS_MIN_TTL");
        let max_ttl = r.duration("DNS_MAX_TTL");
        if min_ttl.zip(max_ttl).is_some_and(|(min, max)| min > max) {
            r.refuse(
                "DNS_MIN_TTL",
                "it is longer than DNS_MAX_TTL",
                "swap the two or unset one",
            );
        }
        Self { min_ttl, max_ttl }
    }
}

impl Log {
    fn read(r: &mut Reader<'_>) -> Self {
        const DEFAULT: &str = "warn,linkerd=info,hickory=error";
        let directives = r.read("LOG", |text| log::check(text).map(|()| text.to_owned()));
        let format = r.read("LOG_FORMAT", |text| match text {
            "plain" => Ok(log::Format::Plain),
            "json" => Ok(log::Format::Json),
            _ => Err("expected plain or json"),
        });
        Self {
            directives: directives.unwrap_or_else(|| DEFAULT.to_owned()),
            format: format.unwrap_or_default(),
        }
    }
}

fn read_max_header_bytes(r: &mut Reader<'_>) -> usize {
    /// Twice the 64 KiB that must pass, since HTTP/2 counts 32 bytes more for each header (RFC 9113 section 10.5.1).
    const DEFAULT: usize = 128 * 1024;
    let allowed = 16 * 1024..=1024 * 1024;
    r.read(MAX_HEADER_BYTES, |text| {
        parse::number(text)
            .ok()
            .filter(|n| allowed.contains(n))
            .ok_or("expected a number of bytes from 16384 to 1048576")
    })
    .unwrap_or(DEFAULT)
}

/// Settings of what comes in a later version: checked where that is cheap, and listed.
fn read_later(r: &mut Reader<'_>) {
    let tap = r.non_empty("TAP_SVC_NAME", weft_core::name::Identity::parse);
    let _ = r.socket_addr_or("CONTROL_LISTEN_ADDR", ([0, 0, 0, 0], 4190));
    if tap.is_some() {
        r.later("TAP_SVC_NAME");
    }
    if ControlAddr::read_optional(r, "TRACE_COLLECTOR_SVC").is_some() {
        r.later("TRACE_COLLECTOR_SVC_ADDR");
    }
    let access_log = r.text("ACCESS_LOG").unwrap_or_default();
    if !matches!(access_log.as_str(), "" | "none" | "off") {
        r.later("ACCESS_LOG");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests;
