//! Owns the configuration of Envoy for either side. Text only.

use serde_json::{Value, json};

use crate::wiring::{Leaf, PROTOCOLS, Protocol, Side, Wiring};

const TYPE: &str = "type.googleapis.com/envoy.extensions";

/// The configuration, which is JSON and therefore YAML too.
pub fn configuration(side: Side, wiring: &Wiring) -> String {
    let listeners: Vec<Value> = PROTOCOLS
        .iter()
        .map(|p| listener(side, *p, wiring))
        .collect();
    let clusters: Vec<Value> = PROTOCOLS
        .iter()
        .map(|p| cluster(side, *p, wiring))
        .collect();
    json!({ "static_resources": { "listeners": listeners, "clusters": clusters } }).to_string()
}

fn listener(side: Side, protocol: Protocol, wiring: &Wiring) -> Value {
    let (address, port) = match side {
        Side::Client => ("127.0.0.1", protocol.client_port()),
        Side::Server => ("0.0.0.0", protocol.server_port()),
    };
    let mut chain = json!({ "filters": [filter(side, protocol)] });
    if side == Side::Server {
        let context = json!({
            "@type": format!("{TYPE}.transport_sockets.tls.v3.DownstreamTlsContext"),
            "require_client_certificate": true,
            "common_tls_context": common(&wiring.server_leaf, wiring, protocol, &wiring.client_leaf.name),
        });
        chain["transport_socket"] = tls(context);
    }
    json!({
        "name": name(protocol),
        "address": socket(address, port),
        "filter_chains": [chain],
    })
}

fn filter(side: Side, protocol: Protocol) -> Value {
    let name = name(protocol);
    if protocol == Protocol::Opaque {
        return json!({
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": format!("{TYPE}.filters.network.tcp_proxy.v3.TcpProxy"),
                "stat_prefix": name,
                "cluster": name,
                "idle_timeout": "0s",
            },
        });
    }
    // Between the two it is always HTTP/2.
    let codec = if side == Side::Server || protocol == Protocol::Http2 {
        "HTTP2"
    } else {
        "HTTP1"
    };
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": format!("{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": name,
            "codec_type": codec,
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": { "@type": format!("{TYPE}.filters.http.router.v3.Router") },
            }],
            "route_config": { "virtual_hosts": [{
                "name": name,
                "domains": ["*"],
                "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": name } }],
            }] },
        },
    })
}

fn cluster(side: Side, protocol: Protocol, wiring: &Wiring) -> Value {
    let name = name(protocol);
    let (address, port) = match side {
        Side::Client => (wiring.server.to_string(), protocol.server_port()),
        Side::Server => ("127.0.0.1".to_owned(), protocol.app_port()),
    };
    // The defaults of 1024 would refuse the workload of idle connections.
    let limits = json!({ "max_connections": 65_536, "max_pending_requests": 65_536, "max_requests": 65_536 });
    let mut cluster = json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [limits] },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(&address, port) } }] }],
        },
    });
    if protocol != Protocol::Opaque && (side == Side::Client || protocol == Protocol::Http2) {
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": format!("{TYPE}.upstreams.http.v3.HttpProtocolOptions"),
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        });
    }
    if side == Side::Client {
        let context = json!({
            "@type": format!("{TYPE}.transport_sockets.tls.v3.UpstreamTlsContext"),
            "sni": wiring.server_leaf.name,
            "common_tls_context": common(&wiring.client_leaf, wiring, protocol, &wiring.server_leaf.name),
        });
        cluster["transport_socket"] = tls(context);
    }
    cluster
}

fn common(leaf: &Leaf, wiring: &Wiring, protocol: Protocol, other: &str) -> Value {
    let alpn: &[&str] = if protocol == Protocol::Opaque {
        &[]
    } else {
        &["h2"]
    };
    json!({
        "alpn_protocols": alpn,
        "tls_params": { "tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3" },
        "tls_certificates": [{
            "certificate_chain": { "filename": leaf.chain },
            "private_key": { "filename": leaf.key },
        }],
        "validation_context": {
            "trusted_ca": { "filename": wiring.anchors },
            "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": other } }],
        },
    })
}

fn tls(context: Value) -> Value {
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

fn name(protocol: Protocol) -> String {
    format!("{protocol:?}")
}
