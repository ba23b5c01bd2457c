//! Owns the settings of the control plane's clients: where each service is, who it must be, how long its streams live.
//! Does not connect to any.

use super::reader::Reader;
use super::serial;
use ipnet::IpNet;
use serde::Serialize;
use std::time::Duration;
use weft_core::name::Identity;
use weft_core::parse::{self, Addr, DnsSuffix};

/// A service of the control plane (`*_ADDR` and `*_NAME`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControlAddr {
    /// Where it is.
    pub addr: Addr,
    /// Who it must prove to be; none means no TLS, as it is on loopback.
    pub name: Option<Identity>,
}

/// Discovery (contract 4.1).
#[derive(Clone, Debug, Serialize)]
pub struct Destination {
    /// `DESTINATION_SVC_{ADDR,NAME}`.
    pub service: ControlAddr,
    /// `DESTINATION_CONTEXT`, sent verbatim.
    pub context: String,
    /// `DESTINATION_PROFILE_SUFFIXES`: names that may have a profile.
    pub profile_suffixes: Vec<DnsSuffix>,
    /// `DESTINATION_PROFILE_NETWORKS`: addresses that may have a profile.
    pub profile_networks: Vec<IpNet>,
    /// `DESTINATION_PROFILE_INITIAL_TIMEOUT`: inbound goes on without a profile after this.
    #[serde(serialize_with = "serial::duration")]
    pub profile_initial_timeout: Duration,
}

/// What all control-plane clients share.
#[derive(Clone, Debug, Serialize)]
pub struct Control {
    /// `CONTROL_STREAM_*`. For a certain service, see [`Control::stream_limits`].
    pub streams: StreamLimits,
}

/// How long a stream may go on: first message, silence between messages, altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamLimits {
    /// `CONTROL_STREAM_INITIAL_TIMEOUT`.
    #[serde(serialize_with = "serial::optional_duration")]
    pub initial: Option<Duration>,
    /// `CONTROL_STREAM_IDLE_TIMEOUT`.
    #[serde(serialize_with = "serial::optional_duration")]
    pub idle: Option<Duration>,
    /// `CONTROL_STREAM_LIFETIME`.
    #[serde(serialize_with = "serial::optional_duration")]
    pub lifetime: Option<Duration>,
}

impl ControlAddr {
    /// Reads a pair that must be there.
    pub(super) fn read(r: &mut Reader<'_>, base: &str) -> Option<Self> {
        let service = Self::read_optional(r, base);
        if service.is_none() {
            let why = "the proxy cannot work without this service";
            r.missing(&format!("{base}_ADDR"), why);
        }
        service
    }

    /// Reads a pair that may be left out.
    pub(super) fn read_optional(r: &mut Reader<'_>, base: &str) -> Option<Self> {
        let (addr_name, name_name) = (format!("{base}_ADDR"), format!("{base}_NAME"));
        let addr = r.read(&addr_name, parse::addr);
        let name = r.read(&name_name, Identity::parse);
        match (addr, name) {
            // A service of the same pod speaks for itself: its TLS is what the proxy in front of it does for others (contract 0).
            (Some(addr), _) if addr.is_loopback() => Some(Self { addr, name: None }),
            (Some(addr), name @ Some(_)) => Some(Self { addr, name }),
            (Some(_), None) => {
                let why = "only a loopback address may come without the name to expect";
                r.missing(&name_name, why);
                None
            }
            (None, Some(_)) => {
                r.missing(&addr_name, "the service's name is set, but not its address");
                None
            }
            (None, None) => None,
        }
    }
}

impl Destination {
    pub(super) fn read(r: &mut Reader<'_>) -> Option<Self> {
        let suffixes = r.read("DESTINATION_PROFILE_SUFFIXES", parse::dns_suffixes);
        let networks = r.read("DESTINATION_PROFILE_NETWORKS", parse::networks);
        let context = r.text("DESTINATION_CONTEXT");
        let timeout = Duration::from_millis(500);
        let timeout = r.duration_or("DESTINATION_PROFILE_INITIAL_TIMEOUT", timeout);
        let service = ControlAddr::read(r, "DESTINATION_SVC")?;
        Some(Self {
            service,
            context: context.unwrap_or_default(),
            profile_suffixes: suffixes.unwrap_or_else(default_suffixes),
            profile_networks: networks.unwrap_or_default(),
            profile_initial_timeout: timeout,
        })
    }
}

fn default_suffixes() -> Vec<DnsSuffix> {
    parse::dns_suffixes("svc.cluster.local.").expect("a suffix of the right form")
}

impl Control {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            streams: StreamLimits::read(r),
        }
    }

    /// The limits for the streams of a service: none on loopback, where the peer is in this pod (contract 1.2).
    pub fn stream_limits(&self, service: &ControlAddr) -> StreamLimits {
        if service.addr.is_loopback() {
            StreamLimits::default()
        } else {
            self.streams
        }
    }
}

impl StreamLimits {
    fn read(r: &mut Reader<'_>) -> Self {
        const NAMES: [&str; 3] = [
            "CONTROL_STREAM_INITIAL_TIMEOUT",
            "CONTROL_STREAM_IDLE_TIMEOUT",
            "CONTROL_STREAM_LIFETIME",
        ];
        let [initial, idle, lifetime] = NAMES.map(|name| r.non_empty(name, parse::duration));
        for (shorter, longer, names) in [
            (initial, idle, (NAMES[0], NAMES[1])),
            (idle, lifetime, (NAMES[1], NAMES[2])),
            // Without an idle time these two still have to be in order.
            (
                initial.filter(|_| idle.is_none()),
                lifetime,
                (NAMES[0], NAMES[2]),
            ),
        ] {
            if shorter
                .zip(longer)
                .is_some_and(|(shorter, longer)| shorter > longer)
            {
                let reason = format!("it is longer than {}{}", super::PREFIX, names.1);
                r.refuse(names.0, &reason, "shorten it, or lengthen the other");
            }
        }
        Self {
            initial,
            idle,
            lifetime,
        }
    }
}
