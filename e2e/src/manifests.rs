//! Owns the manifests of a test as a list of Kubernetes objects, and writing them as files. Does not read them.

use std::path::Path;

use serde_json::{Value, json};

/// The namespace of everything that tests make.
pub const NAMESPACE: &str = "demo";

/// The objects a test starts with.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    objects: Vec<Value>,
    texts: Vec<String>,
}

impl Manifests {
    /// A Service for the pods of the same name's `app`, with pairs of port and target port.
    pub fn service(self, name: &str, ports: &[(u16, u16)]) -> Self {
        self.annotated_service(name, ports, &[])
    }

    /// The same with annotations.
    pub fn annotated_service(
        mut self,
        name: &str,
        ports: &[(u16, u16)],
        annotations: &[(&str, &str)],
    ) -> Self {
        let ports: Vec<Value> = ports
            .iter()
            .map(|(port, target)| json!({ "name": format!("p{port}"), "port": port, "targetPort": target }))
            .collect();
        self.objects.push(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": NAMESPACE, "annotations": map(annotations) },
            "spec": { "selector": { "app": name }, "ports": ports },
        }));
        self
    }

    /// A Pod with its container ports. Label `app` and service account are its name up to the first `-`, so that `web-1`
    /// and `web-2` are replicas of `web`.
    pub fn pod(self, name: &str, ports: &[u16]) -> Self {
        self.annotated_pod(name, ports, &[])
    }

    /// The same with annotations.
    pub fn annotated_pod(
        mut self,
        name: &str,
        ports: &[u16],
        annotations: &[(&str, &str)],
    ) -> Self {
        let app = name.split('-').next().unwrap_or(name);
        let ports: Vec<Value> = ports
            .iter()
            .map(|port| json!({ "name": format!("p{port}"), "containerPort": port }))
            .collect();
        self.objects.push(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": { "app": app },
                "annotations": map(annotations),
            },
            "spec": {
                "serviceAccountName": app,
                "containers": [{ "name": "app", "ports": ports }],
            },
        }));
        self
    }

    /// A Pod without proxy and without rules: what is not in the mesh.
    pub fn stranger(self, name: &str, ports: &[u16]) -> Self {
        self.annotated_pod(name, ports, &[("linkerd.io/inject", "disabled")])
    }

    /// Any other objects, as YAML.
    pub fn yaml(mut self, text: &str) -> Self {
        self.texts.push(text.to_owned());
        self
    }

    /// Writes everything into a folder.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        // JSON is YAML.
        let documents = self
            .objects
            .iter()
            .map(Value::to_string)
            .chain(self.texts.iter().cloned());
        let text: Vec<String> = documents.collect();
        std::fs::write(folder.join("test.yaml"), text.join("\n---\n"))
    }
}

fn map(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
