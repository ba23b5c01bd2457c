//! Owns the configuration of nginx for either side. Text only.

use std::path::Path;

use crate::wiring::{Protocol, Side, Wiring};

/// What all configurations begin with: one process, no log, files in `folder`. `stream` is the module for bytes.
fn head(folder: &Path, stream: Option<&Path>) -> String {
    let load = stream.map_or(String::new(), |path| {
        format!("load_module {};\n", path.display())
    });
    format!(
        "{load}daemon off;\nmaster_process off;\nuser root;\nworker_processes 1;\nerror_log stderr error;\n\
         pid {0}/nginx.pid;\nworker_rlimit_nofile 65536;\nevents {{ worker_connections 32768; }}\n",
        folder.display()
    )
}

/// Directives of `http` that keep nginx from writing files and from closing busy connections.
fn http(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "access_log off;\nkeepalive_requests 1000000000;\nkeepalive_timeout 1h;\nclient_body_temp_path {folder}/body;\n\
         proxy_temp_path {folder}/proxy;\nfastcgi_temp_path {folder}/fastcgi;\nscgi_temp_path {folder}/scgi;\n\
         uwsgi_temp_path {folder}/uwsgi;\n"
    )
}

/// The configuration. Debian's nginx speaks only HTTP/1.1 to servers, so that HTTP/2 ends at the client side.
pub fn configuration(side: Side, wiring: &Wiring, folder: &Path, stream: Option<&Path>) -> String {
    let one = |protocol| match side {
        Side::Client => client(protocol, wiring),
        Side::Server => server(protocol, wiring),
    };
    let opaque = stream.map_or(String::new(), |_| {
        format!("stream {{\n{}}}\n", one(Protocol::Opaque))
    });
    format!(
        "{}http {{\n{}{}{}}}\n{opaque}",
        head(folder, stream),
        http(folder),
        one(Protocol::Http1),
        one(Protocol::Http2),
    )
}

fn client(protocol: Protocol, wiring: &Wiring) -> String {
    let (leaf, other) = (&wiring.client_leaf, &wiring.server_leaf.name);
    let tls = format!(
        "proxy_ssl_protocols TLSv1.3;\nproxy_ssl_certificate {};\nproxy_ssl_certificate_key {};\n\
         proxy_ssl_trusted_certificate {};\nproxy_ssl_verify on;\nproxy_ssl_verify_depth 2;\nproxy_ssl_name {other};\n\
         proxy_ssl_server_name on;\nproxy_ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;\n",
        leaf.chain.display(),
        leaf.key.display(),
        wiring.anchors.display(),
    );
    let (listen, upstream) = (
        format!("127.0.0.1:{}", protocol.client_port()),
        format!("{}:{}", wiring.server, protocol.server_port()),
    );
    match protocol {
        Protocol::Opaque => {
            format!("server {{\nlisten {listen};\nproxy_ssl on;\n{tls}proxy_pass {upstream};\n}}\n")
        }
        _ => format!(
            "{}server {{\nlisten {listen}{};\n{tls}{}}}\n",
            pool(protocol, &upstream),
            http2(protocol),
            pass(protocol, "https")
        ),
    }
}

fn server(protocol: Protocol, wiring: &Wiring) -> String {
    let leaf = &wiring.server_leaf;
    let tls = format!(
        "ssl_protocols TLSv1.3;\nssl_certificate {};\nssl_certificate_key {};\nssl_client_certificate {};\n\
         ssl_verify_client on;\nssl_verify_depth 2;\nssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;\n",
        leaf.chain.display(),
        leaf.key.display(),
        wiring.anchors.display(),
    );
    let listen = protocol.server_port();
    // The application's HTTP/1.1 port for both, see above.
    match protocol {
        Protocol::Opaque => format!(
            "server {{\nlisten {listen} ssl;\n{tls}proxy_pass 127.0.0.1:{};\n}}\n",
            protocol.app_port()
        ),
        _ => {
            let upstream = format!("127.0.0.1:{}", Protocol::Http1.app_port());
            format!(
                "{}server {{\nlisten {listen} ssl;\n{tls}{}}}\n",
                pool(protocol, &upstream),
                pass(protocol, "http")
            )
        }
    }
}

fn http2(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Http2 {
        " http2"
    } else {
        ""
    }
}

fn pool(protocol: Protocol, upstream: &str) -> String {
    format!(
        "upstream {protocol:?} {{\nserver {upstream};\nkeepalive 512;\nkeepalive_requests 1000000000;\nkeepalive_timeout 1h;\n}}\n"
    )
}

fn pass(protocol: Protocol, scheme: &str) -> String {
    format!(
        "location / {{\nproxy_http_version 1.1;\nproxy_set_header Connection \"\";\nproxy_set_header Host $host;\n\
         proxy_pass {scheme}://{protocol:?};\n}}\n"
    )
}
