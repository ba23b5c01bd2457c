//! Owns the configuration of HAProxy for either side. Text only.

use std::fmt::Write;

use crate::wiring::{PROTOCOLS, Protocol, Side, Wiring};

/// The configuration: one thread, TLS 1.3 with both sides authenticated, HTTP/2 between the two, no log;
/// as many connections as the limit of descriptors allows.
pub fn configuration(side: Side, wiring: &Wiring) -> String {
    let mut text = String::from(
        "global\n  nbthread 1\n\
         defaults\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n",
    );
    for protocol in PROTOCOLS {
        let (bind, server) = match side {
            Side::Client => client(protocol, wiring),
            Side::Server => server(protocol, wiring),
        };
        let mode = if protocol == Protocol::Opaque {
            "tcp"
        } else {
            "http"
        };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "listen {protocol:?}\n  mode {mode}\n  bind {bind}\n  server one {server}\n"
        );
        if mode == "http" {
            text.push_str("  http-reuse always\n  option http-keep-alive\n");
        }
    }
    text
}

const TLS: &str = "ssl ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256";

fn client(protocol: Protocol, wiring: &Wiring) -> (String, String) {
    let alpn = if protocol == Protocol::Opaque {
        ""
    } else {
        " alpn h2"
    };
    let (leaf, other) = (wiring.client_leaf.both.display(), &wiring.server_leaf.name);
    (
        format!("127.0.0.1:{}", protocol.client_port()),
        format!(
            "{}:{} {TLS}{alpn} crt {leaf} ca-file {} verify required sni str({other}) verifyhost {other}",
            wiring.server,
            protocol.server_port(),
            wiring.anchors.display(),
        ),
    )
}

fn server(protocol: Protocol, wiring: &Wiring) -> (String, String) {
    let alpn = if protocol == Protocol::Opaque {
        ""
    } else {
        " alpn h2"
    };
    let proto = if protocol == Protocol::Http2 {
        " proto h2"
    } else {
        ""
    };
    (
        format!(
            ":{} {TLS}{alpn} crt {} ca-file {} verify required",
            protocol.server_port(),
            wiring.server_leaf.both.display(),
            wiring.anchors.display(),
        ),
        format!("127.0.0.1:{}{proto}", protocol.app_port()),
    )
}
