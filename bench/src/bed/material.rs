//! Owns what a bed is made from: the Kubernetes objects of its pods, and certificates for static proxies.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use weft_cli::local::{Mesh, Workload};
use weft_identity::LocalAuthority;

use super::NAMESPACE;
use crate::certificates;
use crate::peer::Peer;
use crate::wiring::{PROTOCOLS, Protocol, Wiring};

/// The Kubernetes objects: the application with its Service, and the load. JSON is YAML.
pub(super) fn objects(peer: &Peer) -> String {
    let opaque = Protocol::Opaque.app_port().to_string();
    let mut annotations = json!({ "config.linkerd.io/opaque-ports": opaque });
    if !peer.is_mesh() {
        annotations["linkerd.io/inject"] = Value::from("disabled");
    }
    let ports = PROTOCOLS.map(Protocol::app_port);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "app", "namespace": NAMESPACE, "annotations": annotations },
        "spec": {
            "selector": { "app": "app" },
            "ports": ports.map(|port| json!({ "name": format!("p{port}"), "port": port })),
        },
    });
    let pod = |name: &str, ports: &[u16], annotations: &Value| {
        let ports: Vec<Value> = ports
            .iter()
            .map(|port| json!({ "containerPort": port }))
            .collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": { "app": name },
                "annotations": annotations,
            },
            "spec": { "serviceAccountName": name, "containers": [{ "name": "main", "ports": ports }] },
        })
    };
    let pods = [
        pod("app", &ports, &annotations),
        pod("load", &[], &annotations),
        pod("outside", &[], &json!({ "linkerd.io/inject": "disabled" })),
    ];
    format!(
        "{service}\n---\n{}\n",
        pods.map(|pod| pod.to_string()).join("\n---\n")
    )
}

/// Issues the certificates of static proxies, in any case: what is the same for all peers cannot favour one.
pub(super) fn wiring(mesh: &Mesh, server: &Workload, folder: &Path) -> anyhow::Result<Wiring> {
    let folder = folder.join("certificates");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let authority = LocalAuthority::open(&mesh.place().authority())?;
    let issue = |account: &str| {
        let name = format!("{account}.{NAMESPACE}.serviceaccount.identity.linkerd.cluster.local");
        certificates::issue(&authority, &folder, account, &name)
    };
    Ok(Wiring {
        server: server.started().ip,
        client_leaf: issue("load")?,
        server_leaf: issue("app")?,
        anchors: authority.trust_roots(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Kind;

    #[test]
    fn static_peers_have_no_sidecar() {
        let peer = |kind| Peer {
            name: "x".to_owned(),
            kind,
        };
        let disabled = r#""linkerd.io/inject":"disabled""#;
        assert_eq!(objects(&peer(Kind::None)).matches(disabled).count(), 4);
        assert_eq!(
            objects(&peer(Kind::Mesh("/x".into())))
                .matches(disabled)
                .count(),
            1
        );
    }
}
