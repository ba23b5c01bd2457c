//! Owns the list of workloads: names, protocols, units, and which load each is. Running them is in `measure`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::app;
use crate::bed::Layout;
use crate::h2load::ClosedLoop;
use crate::load::shape::Shape;
use crate::wiring::Protocol;

/// Services of [`Workload::ManyServices`].
const SERVICES: usize = 200;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// HTTP/2, closed loop, 8 connections with 16 streams each.
    Http2,
    /// HTTP/1.1, closed loop, 32 connections.
    Http1,
    /// HTTP/2 at a fixed rate over 8 connections.
    Http2Rate,
    /// HTTP/1.1 at a fixed rate.
    Http1Rate,
    /// One bulk transfer of bytes.
    Opaque,
    /// A TCP connection for each short exchange of bytes.
    Short,
    /// HTTP/1.1 with `connection: close`.
    Close,
    /// gRPC, one message each way.
    Grpc,
    /// gRPC, a stream of 100 messages for each request.
    GrpcStream,
    /// Answers of 1 MiB over HTTP/2.
    Large,
    /// HTTP/2 to many Services in turn.
    ManyServices,
    /// Thousands of connections of bytes without traffic.
    IdleOpaque,
    /// Thousands of HTTP/2 connections with TLS to the server side, without traffic.
    IdleHttp2,
}

/// All of them, with their names and what they are.
const ALL: [(Workload, &str, &str); 13] = [
    (
        Workload::Http2,
        "http2",
        "HTTP/2, 8 connections × 16 streams, closed loop",
    ),
    (
        Workload::Http1,
        "http1",
        "HTTP/1.1, 32 connections, closed loop",
    ),
    (
        Workload::Http2Rate,
        "http2-rate",
        "HTTP/2 at a fixed rate over 8 connections, times from when a request was due",
    ),
    (
        Workload::Http1Rate,
        "http1-rate",
        "HTTP/1.1 at a fixed rate, times from when a request was due",
    ),
    (
        Workload::Opaque,
        "opaque",
        "bytes over one connection, iperf3",
    ),
    (
        Workload::Short,
        "short",
        "a TCP connection for each exchange of 16 bytes and 1 KiB, 16 at once",
    ),
    (
        Workload::Close,
        "close",
        "HTTP/1.1 with `connection: close`, 16 at once",
    ),
    (
        Workload::Grpc,
        "grpc",
        "gRPC unary, 100 bytes, 8 connections × 16 streams, closed loop",
    ),
    (
        Workload::GrpcStream,
        "grpc-stream",
        "gRPC answers of 100 messages, 8 connections × 4 streams, closed loop",
    ),
    (
        Workload::Large,
        "large",
        "answers of 1 MiB over HTTP/2, 8 connections × 1 stream, closed loop",
    ),
    (
        Workload::ManyServices,
        "many-services",
        "HTTP/2 to 200 Services of 2 endpoints each in turn, a connection each, 32 at once",
    ),
    (
        Workload::IdleOpaque,
        "idle-opaque",
        "connections of bytes without traffic",
    ),
    (
        Workload::IdleHttp2,
        "idle-http2",
        "HTTP/2 connections with mutual TLS to the server side, one request each, then no traffic",
    ),
];

/// What a workload is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests.
    Request,
    /// Messages of a stream.
    Message,
    /// 10⁹ bytes.
    Gigabyte,
    /// Connections.
    Connection,
}

impl Unit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Request => "request",
            Unit::Message => "message",
            Unit::Gigabyte => "GB",
            Unit::Connection => "connection",
        }
    }
}

/// What makes the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Generator {
    /// h2load.
    H2load {
        /// Its connections and streams.
        load: ClosedLoop,
        /// What is asked for.
        path: &'static str,
        /// Bytes of the answer.
        body: usize,
    },
    /// `weft-bench load`, with so many connections or workers.
    Own(Shape, usize),
    /// iperf3.
    Iperf,
    /// `weft-bench hold`.
    Hold,
}

impl Workload {
    /// What a run without a choice does.
    pub fn usual() -> Vec<Workload> {
        vec![
            Workload::Http2,
            Workload::Http1,
            Workload::Http2Rate,
            Workload::Opaque,
        ]
    }

    /// What it is, in a few words.
    pub fn description(self) -> &'static str {
        self.entry().2
    }

    /// What is spoken.
    pub fn protocol(self) -> Protocol {
        match self {
            Workload::Http1 | Workload::Http1Rate | Workload::Close => Protocol::Http1,
            Workload::Opaque | Workload::Short | Workload::IdleOpaque => Protocol::Opaque,
            _ => Protocol::Http2,
        }
    }

    /// What it is counted in.
    pub fn unit(self) -> Unit {
        match self {
            Workload::Opaque | Workload::Large => Unit::Gigabyte,
            Workload::IdleOpaque | Workload::IdleHttp2 => Unit::Connection,
            Workload::GrpcStream => Unit::Message,
            _ => Unit::Request,
        }
    }

    /// Units of one successful request of h2load.
    pub fn units_each(self) -> f64 {
        match self {
            Workload::Large => app::LARGE as f64 / 1e9,
            Workload::GrpcStream => app::MESSAGES as f64,
            _ => 1.0,
        }
    }

    /// Whether requests are due at a fixed rate.
    pub fn is_rated(self) -> bool {
        matches!(self, Workload::Http2Rate | Workload::Http1Rate)
    }

    /// What is needed in the bed.
    pub fn layout(self) -> Layout {
        match self {
            Workload::ManyServices => Layout {
                replicas: 2,
                services: SERVICES,
                ..Layout::default()
            },
            // iperf3 takes the port for bytes.
            Workload::Opaque => Layout {
                opaque: false,
                ..Layout::default()
            },
            _ => Layout::default(),
        }
    }

    /// What makes its load.
    pub fn generator(self) -> Generator {
        let h2load = |http1, connections, streams, path, body| Generator::H2load {
            load: ClosedLoop {
                http1,
                connections,
                streams,
                post: false,
            },
            path,
            body,
        };
        match self {
            Workload::Http2 => h2load(false, 8, 16, "/", app::BODY),
            Workload::Http1 => h2load(true, 32, 1, "/", app::BODY),
            Workload::Large => h2load(false, 8, 1, app::LARGE_PATH, app::LARGE),
            Workload::Grpc => grpc(16, app::UNARY_PATH, app::MESSAGE),
            Workload::GrpcStream => grpc(4, app::STREAM_PATH, app::MESSAGES * app::MESSAGE),
            Workload::Http2Rate => Generator::Own(Shape::Http2, 8),
            Workload::Http1Rate => Generator::Own(Shape::Http1, 8),
            Workload::Short => Generator::Own(Shape::Short, 16),
            Workload::Close => Generator::Own(Shape::Close, 16),
            Workload::ManyServices => Generator::Own(Shape::Http2, 32),
            Workload::Opaque => Generator::Iperf,
            Workload::IdleOpaque | Workload::IdleHttp2 => Generator::Hold,
        }
    }

    fn entry(self) -> (Workload, &'static str, &'static str) {
        // Each variant is in the list, which a test checks.
        ALL.into_iter()
            .find(|(workload, ..)| *workload == self)
            .unwrap_or((self, "?", "?"))
    }
}

fn grpc(streams: u32, path: &'static str, body: usize) -> Generator {
    let load = ClosedLoop {
        http1: false,
        connections: 8,
        streams,
        post: true,
    };
    Generator::H2load { load, path, body }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().1)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ALL.into_iter().find(|(_, name, _)| *name == text);
        found.map(|(workload, ..)| workload).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|(_, name, _)| *name).collect();
            format!("unknown workload `{text}`: there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (workload, name, _) in ALL {
            assert_eq!(name.parse(), Ok(workload));
            assert_eq!(workload.to_string(), name);
            assert_eq!(serde_json::to_value(workload).expect("a name"), name);
        }
        assert!(
            "http3"
                .parse::<Workload>()
                .expect_err("unknown")
                .contains("http2, http1")
        );
    }
}
