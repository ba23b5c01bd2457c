//! Owns what a bed is made from: the Kubernetes objects of its pods, and certificates for static proxies.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use weft_cli::local::{Mesh, Workload};
use weft_identity::LocalAuthority;

use super::{Layout, NAMESPACE};
use crate::certificates;
use crate::peer::Peer;
use crate::wiring::{PROTOCOLS, Protocol, Wiring};

/// Name of the pod of a replica.
pub(super) fn replica(number: usize) -> String {
    match number {
        0 => "app".to_owned(),
        more => format!("app-{more}"),
    }
}

/// The Kubernetes objects: the application with its Services, and the load. JSON is YAML.
pub(super) fn objects(peer: &Peer, layout: &Layout) -> String {
    let opaque = Protocol::Opaque.app_port().to_string();
    let mut annotations = json!({ "config.linkerd.io/opaque-ports": opaque });
    if !peer.is_mesh() {
        annotations["linkerd.io/inject"] = Value::from("disabled");
    }
    let ports = PROTOCOLS.map(Protocol::app_port);
    let service = |name: String| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
            "spec": {
                "selector": { "app": "app" },
                "ports": ports.map(|port| json!({ "name": format!("p{port}"), "port": port })),
            },
        })
    };
    let pod = |name: &str, app: &str, ports: &[u16], annotations: &Value| {
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
                "labels": { "app": app },
                "annotations": annotations,
            },
            "spec": { "serviceAccountName": app, "containers": [{ "name": "main", "ports": ports }] },
        })
    };
    let mut all = vec![
        service("app".to_owned()),
        pod("load", "load", &[], &annotations),
        pod(
            "outside",
            "outside",
            &[],
            &json!({ "linkerd.io/inject": "disabled" }),
        ),
    ];
    all.extend((0..layout.services).map(|number| service(format!("s{number}"))));
    let replicas = 0..layout.replicas.max(1);
    all.extend(replicas.map(|number| pod(&replica(number), "app", &ports, &annotations)));
    let all: Vec<String> = all.iter().map(Value::to_string).collect();
    all.join("\n---\n") + "\n"
}

/// Issues the certificates of static proxies, in any case: what is the same for all peers cannot favour one.
pub(super) fn wiring(mesh: &Mesh, servers: &[Workload], folder: &Path) -> anyhow::Result<Wiring> {
    let server = servers.first().context("a bed without a server")?;
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
        let count = |kind, layout| objects(&peer(kind), &layout).matches(disabled).count();
        assert_eq!(count(Kind::None, Layout::default()), 4);
        assert_eq!(count(Kind::Mesh("/x".into()), Layout::default()), 1);
    }

    #[test]
    fn every_service_selects_every_replica() {
        let peer = Peer {
            name: "x".to_owned(),
            kind: Kind::Mesh("/x".into()),
        };
        let layout = Layout {
            replicas: 2,
            services: 3,
            ..Layout::default()
        };
        let text = objects(&peer, &layout);
        assert_eq!(text.matches(r#""selector":{"app":"app"}"#).count(), 4);
        assert_eq!(text.matches(r#""labels":{"app":"app"}"#).count(), 2);
        assert!(text.contains(r#""name":"app-1""#) && text.contains(r#""name":"s2""#));
    }
}
