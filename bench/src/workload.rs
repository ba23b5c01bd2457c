//! Owns the list of workloads: names, protocols, units, and which load each is. Running them is in `measure`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::h2load::ClosedLoop;
use crate::wiring::Protocol;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// HTTP/2, closed loop, 8 connections with 16 streams each.
    Http2,
    /// HTTP/1.1, closed loop, 32 connections.
    Http1,
    /// One bulk transfer of bytes.
    Opaque,
}

/// All of them, with their names and what they are.
const ALL: [(Workload, &str, &str); 3] = [
    (Workload::Http2, "http2", "HTTP/2, 8 connections × 16 streams, closed loop"),
    (Workload::Http1, "http1", "HTTP/1.1, 32 connections, closed loop"),
    (Workload::Opaque, "opaque", "bytes over one connection, iperf3"),
];

/// What a workload is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests.
    Request,
    /// 10⁹ bytes.
    Gigabyte,
}

impl Workload {
    /// What a run without a choice does.
    pub fn usual() -> Vec<Workload> {
        vec![Workload::Http2, Workload::Http1]
    }

    /// What it is, in a few words.
    pub fn description(self) -> &'static str {
        self.entry().2
    }

    /// What is spoken.
    pub fn protocol(self) -> Protocol {
        match self {
            Workload::Http2 => Protocol::Http2,
            Workload::Http1 => Protocol::Http1,
            Workload::Opaque => Protocol::Opaque,
        }
    }

    /// What it is counted in.
    pub fn unit(self) -> Unit {
        match self {
            Workload::Opaque => Unit::Gigabyte,
            _ => Unit::Request,
        }
    }

    /// The load of h2load it is, if it is one, and the path asked for.
    pub fn closed_loop(self) -> Option<(ClosedLoop, &'static str)> {
        match self {
            Workload::Http2 => Some((ClosedLoop { http1: false, connections: 8, streams: 16 }, "/")),
            Workload::Http1 => Some((ClosedLoop { http1: true, connections: 32, streams: 1 }, "/")),
            Workload::Opaque => None,
        }
    }

    fn entry(self) -> (Workload, &'static str, &'static str) {
        // Each variant is in the list, which a test checks.
        ALL.into_iter().find(|(workload, ..)| *workload == self).unwrap_or((self, "?", "?"))
    }
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
        assert!("http3".parse::<Workload>().expect_err("unknown").contains("http2, http1"));
    }
}
