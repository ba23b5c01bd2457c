//! Owns the settings of discovery (contract 8.1); does not read flags.

use std::{str::FromStr, time::Duration};

use linkerd2_proxy_api::destination::{Http2ClientParams, http2_client_params as params};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weft_cluster::MeshSettings;

/// How `Get` and `GetProfile` answer.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// What the whole mesh agrees on.
    pub mesh: MeshSettings,
    /// Meshed endpoints are said to take HTTP/1 over HTTP/2.
    pub enable_h2_upgrade: bool,
    /// When meshed endpoints are reached at their proxy's inbound port.
    pub outbound_transport: OutboundTransport,
    /// HTTP/2 settings for connections to meshed endpoints.
    pub meshed_http2: Http2Params,
    /// Largest number of different targets watched at a time, for each of the two calls.
    pub max_targets: usize,
    /// Largest number of streams at a time.
    pub max_streams: usize,
}

impl Settings {
    /// As the chart has it.
    pub fn new(mesh: MeshSettings) -> Self {
        Self {
            mesh,
            enable_h2_upgrade: true,
            outbound_transport: OutboundTransport::TransportHeader,
            meshed_http2: Http2Params::default(),
            max_targets: 50_000,
            max_streams: 50_000,
        }
    }
}

/// When a transport header is used (flag `outbound-transport-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutboundTransport {
    /// For opaque ports only.
    Transparent,
    /// For all ports of meshed pods.
    TransportHeader,
}

impl FromStr for OutboundTransport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "transparent" => Ok(Self::Transparent),
            "transport-header" => Ok(Self::TransportHeader),
            other => Err(format!("{other:?} is not transparent or transport-header")),
        }
    }
}

/// HTTP/2 settings in the JSON form of the flag `meshed-http2-client-params`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http2Params {
    /// Pings.
    #[serde(default)]
    pub keep_alive: Option<KeepAlive>,
}

/// HTTP/2 pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepAlive {
    /// Between two pings.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Until an answer must have come.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Also without any stream.
    #[serde(default)]
    pub while_idle: bool,
}

impl Default for Http2Params {
    /// `{"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}`
    fn default() -> Self {
        let (interval, timeout) = (Duration::from_secs(10), Duration::from_secs(3));
        Self {
            keep_alive: Some(KeepAlive {
                interval,
                timeout,
                while_idle: true,
            }),
        }
    }
}

impl Http2Params {
    /// As it goes over the wire.
    pub(crate) fn message(&self) -> Http2ClientParams {
        let wire = |duration: Duration| prost_types::Duration::try_from(duration).ok();
        let keep_alive = self.keep_alive.map(|keep_alive| params::KeepAlive {
            interval: wire(keep_alive.interval),
            timeout: wire(keep_alive.timeout),
            while_idle: keep_alive.while_idle,
        });
        Http2ClientParams {
            flow_control: None,
            keep_alive,
            internals: None,
        }
    }
}

/// The text of `meshed-http2-client-params` is not what it should be.
#[derive(Debug, Error)]
#[error(
    "not HTTP/2 parameters such as {{\"keep_alive\":{{\"interval\":{{\"seconds\":10}},\"timeout\":{{\"seconds\":3}},\"while_idle\":true}}}}: {0}"
)]
pub struct Http2ParamsError(#[from] serde_json::Error);

impl FromStr for Http2Params {
    type Err = Http2ParamsError;

    fn from_str(text: &str) -> Result<Self, Http2ParamsError> {
        Ok(serde_json::from_str(text)?)
    }
}

/// Protobuf's JSON-like form of a duration: `{"seconds": 10, "nanos": 0}`.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Serialize, Deserialize)]
    struct Parts {
        #[serde(default)]
        seconds: u64,
        #[serde(default)]
        nanos: u32,
    }

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        Parts {
            seconds: duration.as_secs(),
            nanos: duration.subsec_nanos(),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let parts = Parts::deserialize(from)?;
        if parts.nanos >= 1_000_000_000 {
            return Err(D::Error::custom("nanos must be below one second"));
        }
        Ok(Duration::new(parts.seconds, parts.nanos))
    }
}
