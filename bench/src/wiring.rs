//! Owns the addresses and ports of the bench: what the application, the proxies and the load generators agree on.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is spoken on a port of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// Bytes.
    Opaque,
}

/// All of them.
pub const PROTOCOLS: [Protocol; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Opaque];

impl Protocol {
    /// Port of the application in the server pod.
    pub fn app_port(self) -> u16 {
        match self {
            Protocol::Http1 => 8080,
            Protocol::Http2 => 8081,
            Protocol::Opaque => 9000,
        }
    }

    /// Port on loopback in the client pod, of a client-side proxy that is not redirected to.
    pub fn client_port(self) -> u16 {
        self.app_port() + 1000
    }

    /// Port in the server pod, of a server-side proxy that is not redirected to.
    pub fn server_port(self) -> u16 {
        self.app_port() + 2000
    }
}

/// Files of one workload's certificate, PEM.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its name, by which the other side knows it.
    pub name: String,
    /// The leaf and what is above it, without the root.
    pub chain: PathBuf,
    /// The key.
    pub key: PathBuf,
    /// Both in one file, for HAProxy.
    pub both: PathBuf,
}

/// What a static configuration is written from.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// Address of the server pod.
    pub server: Ipv4Addr,
    /// Certificate of the client-side proxy.
    pub client_leaf: Leaf,
    /// Certificate of the server-side proxy.
    pub server_leaf: Leaf,
    /// Trust anchors, PEM.
    pub anchors: PathBuf,
}

/// The end of a pair a proxy is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Beside the load generator: plaintext in, mTLS out.
    Client,
    /// Beside the application: mTLS in, plaintext out.
    Server,
}

impl Side {
    /// Its name in paths and messages.
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}
