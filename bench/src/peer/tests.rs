//! Tests of peers and of the texts of their configurations.

use std::net::Ipv4Addr;

use super::*;
use crate::wiring::Leaf;

fn wiring() -> Wiring {
    let leaf = |name: &str| Leaf {
        name: name.to_owned(),
        chain: format!("/c/{name}.crt").into(),
        key: format!("/c/{name}.key").into(),
        both: format!("/c/{name}.pem").into(),
    };
    Wiring {
        server: Ipv4Addr::new(10, 88, 0, 3),
        client_leaf: leaf("a"),
        server_leaf: leaf("b"),
        anchors: "/c/ca.crt".into(),
    }
}

#[test]
fn programs_are_named_strictly() {
    assert!(program("x").is_err());
    assert!(program("a b=/bin/sh").is_err());
    assert!(program("a=/nowhere/x").is_err());
    let peer = program("linkerd=/bin/sh").expect("a program");
    assert!(peer.is_mesh());
    assert_eq!(
        peer.target(Protocol::Http2, "10.0.0.1"),
        ("app".to_owned(), 8081)
    );
}

#[test]
fn unknown_peers_are_told_the_known_ones() {
    let programs = Programs::find(Path::new("/nowhere"), None);
    let error = programs.peer("traefik").expect_err("not known").to_string();
    assert!(error.contains("haproxy, nginx"), "{error}");
    assert!(programs.peer("weft").is_err());
    assert_eq!(
        programs.peer("none").expect("always there").kind,
        Kind::None
    );
}

#[test]
fn each_side_authenticates_the_other() {
    let client = haproxy::configuration(Side::Client, &wiring());
    assert_eq!(
        client
            .matches("verify required sni str(b) verifyhost b")
            .count(),
        3
    );
    assert_eq!(client.matches("bind 127.0.0.1:").count(), 3);
    let server = haproxy::configuration(Side::Server, &wiring());
    assert_eq!(server.matches("verify required").count(), 3);
    assert_eq!(server.matches("127.0.0.1:8081 proto h2").count(), 1);

    let client = nginx::configuration(
        Side::Client,
        &wiring(),
        Path::new("/f"),
        Some(Path::new("/m.so")),
    );
    assert_eq!(client.matches("proxy_ssl_verify on;").count(), 3);
    let server = nginx::configuration(Side::Server, &wiring(), Path::new("/f"), None);
    assert_eq!(server.matches("ssl_verify_client on;").count(), 2);
    assert!(!server.contains("\nstream {"));

    let envoy: serde_json::Value =
        serde_json::from_str(&envoy::configuration(Side::Server, &wiring())).expect("JSON");
    for listener in envoy["static_resources"]["listeners"]
        .as_array()
        .expect("a list")
    {
        let context = &listener["filter_chains"][0]["transport_socket"]["typed_config"];
        assert_eq!(context["require_client_certificate"], true, "{listener}");
    }
}

#[test]
fn versions_name_no_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("it");
    fs::write(&script, "#!/bin/sh\necho\necho $0 version 1.2\n").expect("written");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("ours");
    assert_eq!(version(&script, "-v").as_deref(), Some("it version 1.2"));
}
