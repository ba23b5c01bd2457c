//! Owns the workloads of tests on a cluster: a Deployment with its ServiceAccount and Service. Their programs are those of our image,
//! the demo's among them, and those of the image of tools (`e2e/cluster/tools-image`).

use serde_json::{Value, json};

use super::folder;

/// The image with `weft-peer`, curl and h2load.
pub const TOOLS: &str = "weft.test/tools:1";

/// The image that the mesh was installed with.
///
/// # Panics
/// It was not, by `e2e/cluster/mesh`.
pub fn weft_image() -> String {
    let tag = std::fs::read_to_string(folder().join("run/mesh/tag")).expect("e2e/cluster/mesh");
    format!("weft.test/weft:{}", tag.trim())
}

/// A Namespace with annotations.
pub fn namespace(name: &str, annotations: &[(&str, &str)]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "annotations": map(annotations) },
    })
}

fn map(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// A workload.
#[derive(Clone, Debug)]
pub struct App {
    deployment: Value,
    service: Option<Value>,
}

impl App {
    /// Pods that run a command; each with a ServiceAccount of the same name.
    pub fn new(name: &str, image: &str, command: &[&str]) -> Self {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": name } },
                "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
                "template": {
                    "metadata": { "labels": { "app": name }, "annotations": {} },
                    "spec": {
                        "serviceAccountName": name,
                        "terminationGracePeriodSeconds": 10,
                        "containers": [{
                            "name": "app", "image": image, "command": command,
                            "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                        }],
                    },
                },
            },
        });
        App {
            deployment,
            service: None,
        }
    }

    /// A server that says its pod's name, of a kind that `weft-peer` knows, reached by the Service `name:80`. It answers for two
    /// seconds more once it is told to end, as an application should.
    pub fn server(name: &str, kind: &str) -> Self {
        let mut app = App::new(name, TOOLS, &["weft-peer", kind, "8080", "$(POD)"])
            .port(80, 8080)
            .pod(
                "/containers/0/readinessProbe",
                json!({ "tcpSocket": { "port": 8080 }, "periodSeconds": 1 }),
            );
        app.container()["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 2 } } });
        app
    }

    /// A pod with curl that does nothing by itself.
    pub fn client(name: &str) -> Self {
        App::new(name, TOOLS, &["sleep", "infinity"]).quick()
    }

    /// One of the programs of `weft demo`.
    pub fn demo(name: &str, args: &[&str]) -> Self {
        let image = weft_image();
        // The image's own user is that of the proxy, whose connections are never redirected.
        App::new(name, &image, &[&["weft", "demo-app"], args].concat())
            .pod("/securityContext", json!({ "runAsUser": 1000 }))
    }

    /// The demo's load: HTTP/1.1 to `target` over 4 connections, each answer checked.
    pub fn load(name: &str, target: &str, rate: u32) -> Self {
        let rate = format!("--rate={rate}");
        App::demo(
            name,
            &["load", "--target", target, &rate, "--connections=4"],
        )
    }

    /// Adds a Service with a port, and the container's port for it.
    #[must_use]
    pub fn port(mut self, port: u16, target: u16) -> Self {
        let name = self.name().to_owned();
        self.container()["ports"] = json!([{ "containerPort": target }]);
        self.service = Some(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name },
            "spec": { "selector": { "app": name }, "ports": [{ "port": port, "targetPort": target }] },
        }));
        self
    }

    /// So many pods.
    #[must_use]
    pub fn replicas(mut self, count: u32) -> Self {
        self.deployment["spec"]["replicas"] = count.into();
        self
    }

    /// An annotation of the pods.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.template()["metadata"]["annotations"][name] = value.into();
        self
    }

    /// Ended without waiting, for programs that do not listen to signals.
    #[must_use]
    pub fn quick(self) -> Self {
        self.pod("/terminationGracePeriodSeconds", json!(1))
    }

    /// Sets a field of the pods' spec, by JSON pointer; the object above it must be there.
    ///
    /// # Panics
    /// It is not.
    #[must_use]
    pub fn pod(mut self, pointer: &str, value: Value) -> Self {
        let (above, field) = pointer.rsplit_once('/').expect("a pointer");
        let spec = &mut self.template()["spec"];
        spec.pointer_mut(above).expect("the object above")[field] = value;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.deployment["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
    }

    /// What to create.
    pub fn objects(&self) -> Vec<Value> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": self.name() },
        });
        let mut objects = vec![account, self.deployment.clone()];
        objects.extend(self.service.clone());
        objects
    }

    fn template(&mut self) -> &mut Value {
        &mut self.deployment["spec"]["template"]
    }

    fn container(&mut self) -> &mut Value {
        &mut self.template()["spec"]["containers"][0]
    }
}
