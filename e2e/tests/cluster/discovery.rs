//! Discovery from real EndpointSlices (cases D): what the kubelet and the controllers of Kubernetes write, not what a test thinks they do.

use anyhow::ensure;
use serde_json::json;
use weft_e2e::cluster::{App, SOON, Space, command, kubectl, namespace, on_cluster, until};

/// Requests that came to the pods of an app by mutual TLS.
async fn meshed_requests(space: &Space, app: &str) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for pod in space.pods(app).await? {
        let tls = [("direction", "inbound"), ("tls", "true")];
        sum += pod.metrics().await?.sum("request_total", &tls);
    }
    Ok(sum)
}

/// Calls from the client until there is an answer of 200.
async fn reached(space: &Space, url: &str) -> anyhow::Result<String> {
    until(url, SOON, async || {
        let answer = space.curl("client", url).await?;
        match answer.status {
            200 => Ok(Some(answer.body)),
            _ => anyhow::bail!("{answer:?}"),
        }
    })
    .await
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d05_d06_named_ports() {
    on_cluster("d-ports", async |space| {
        // The same name is another port in each version; one more port is in an init container that stays.
        let version = |name: &str, port: u16| {
            App::new(
                name,
                weft_e2e::cluster::TOOLS,
                &["weft-peer", "http", &port.to_string(), "$(POD)"],
            )
            .pod(
                "/containers/0/ports",
                json!([{ "name": "web", "containerPort": port }]),
            )
            .pod(
                "/initContainers",
                json!([{
                    "name": "side", "image": weft_e2e::cluster::TOOLS, "restartPolicy": "Always",
                    "command": ["weft-peer", "http", "9999", "side"],
                    "ports": [{ "name": "side", "containerPort": 9999 }],
                }]),
            )
        };
        space
            .start(&[
                version("one", 8080),
                version("two", 9090),
                App::client("client"),
            ])
            .await?;
        for app in ["one", "two"] {
            let path = r#"{"spec":{"template":{"metadata":{"labels":{"group":"both"}}}}}"#;
            space
                .kubectl(&["patch", "deployment", app, "-p", path])
                .await?;
            space.rolled_out(app).await?;
        }
        space
            .apply(
                "
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  selector: {group: both}
  ports: [{name: http, port: 80, targetPort: web}, {name: admin, port: 81, targetPort: side}]
---
apiVersion: v1
kind: Service
metadata: {name: unnamed}
spec:
  selector: {group: both}
  ports: [{port: 80, targetPort: web}]",
            )
            .await?;
        for service in ["both", "unnamed"] {
            until("both versions", SOON, async || {
                let mut seen = String::new();
                for _ in 0..8 {
                    seen += &reached(space, &format!("http://{service}/")).await?;
                }
                Ok((seen.contains("\"one-") && seen.contains("\"two-")).then_some(()))
            })
            .await?;
        }
        ensure!(
            reached(space, "http://both:81/")
                .await?
                .contains("\"side\"")
        );
        for app in ["one", "two"] {
            ensure!(
                meshed_requests(space, app).await? > 0.0,
                "{app} is not meshed"
            );
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d07_d22_pods_of_a_stateful_set() {
    on_cluster("d-stateful", async |space| {
        space.start(&[App::client("client")]).await?;
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
            "spec": {
                "serviceName": "db", "replicas": 2, "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": { "app": "db" } },
                "template": { "metadata": { "labels": { "app": "db" } }, "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "app", "image": weft_e2e::cluster::TOOLS, "command": ["weft-peer", "http", "8080", "$(POD)"],
                        "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                        "ports": [{ "containerPort": 8080 }] }],
                } },
            },
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" },
            "spec": { "clusterIP": "None", "selector": { "app": "db" }, "ports": [{ "port": 8080 }] },
        });
        space.apply(&set.to_string()).await?;
        space.apply(&service.to_string()).await?;
        space
            .kubectl(&["rollout", "status", "statefulset/db", "--timeout=90s"])
            .await?;
        for pod in ["db-0", "db-1"] {
            let body = reached(space, &format!("http://{pod}.db:8080/")).await?;
            ensure!(
                body.contains(&format!("\"server\":\"{pod}\"")),
                "{pod}: {body}"
            );
        }
        let pods = space.pods("db").await?;
        for pod in &pods {
            let body = reached(space, &format!("http://{}:8080/", pod.ip)).await?;
            ensure!(body.contains(&pod.name), "{}: {body}", pod.name);
            let tls = [("direction", "inbound"), ("tls", "true")];
            let came = pod.metrics().await?.sum("request_total", &tls);
            ensure!(came >= 2.0, "{}: {came} requests by mutual TLS", pod.name);
        }
        reached(space, "http://db:8080/").await?;
        // The same name again, with another address, is known at once.
        for _ in 0..5 {
            space
                .kubectl(&["delete", "pod", "db-0", "--wait=true"])
                .await?;
            space
                .kubectl(&["rollout", "status", "statefulset/db", "--timeout=90s"])
                .await?;
            let body = reached(space, "http://db-0.db:8080/").await?;
            ensure!(
                body.contains("\"server\":\"db-0\"") && body.contains("l5d-client-id"),
                "{body}"
            );
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d09_a_name_for_another_service() {
    on_cluster("d-external", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        let target = format!("web.{}.svc.cluster.local", space.name);
        space
            .kubectl(&[
                "create",
                "service",
                "externalname",
                "alias",
                "--external-name",
                &target,
            ])
            .await?;
        reached(space, "http://alias/").await?;
        ensure!(
            meshed_requests(space, "web").await? >= 1.0,
            "not by mutual TLS"
        );
        Ok(())
    });
}

/// D11: a pod without a proxy on a port that is opaque by default. D13: a pod that is running and not ready, by its address.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn d11_d13_pods_by_their_address() {
    on_cluster("d-address", async |space| {
        let redis = App::new(
            "redis",
            weft_e2e::cluster::TOOLS,
            &["weft-peer", "http", "6379", "redis"],
        )
        .annotation("linkerd.io/inject", "disabled");
        space.start(&[redis, App::client("client")]).await?;
        let plain = space.pod("redis").await?;
        reached(space, &format!("http://{}:6379/", plain.ip)).await?;

        let never = json!({ "exec": { "command": ["bash", "-c", "exit 1"] }, "periodSeconds": 1 });
        let objects = App::server("late", "http")
            .pod("/containers/0/readinessProbe", never)
            .objects();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        space.apply(&list.to_string()).await?;
        let late = until("the application runs", SOON, async || {
            let pod = space.pod("late").await?;
            Ok(pod
                .status("app")
                .is_some_and(|s| !s["state"]["running"].is_null())
                .then_some(pod))
        })
        .await?;
        let body = reached(space, &format!("http://{}:8080/", late.ip)).await?;
        ensure!(body.contains("l5d-client-id"), "not by mutual TLS: {body}");
        Ok(())
    });
}

/// A Server and a workload have no effect in other namespaces, whatever their labels.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn d17_namespaces_are_apart() {
    on_cluster("d-apart", async |space| {
        let other = format!("{}-2", space.name);
        let object = namespace(&other, &[]);
        command("kubectl", &["apply", "-f", "-"], &object.to_string()).await?;
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        let server = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, port: 8080, proxyProtocol: opaque, accessPolicy: deny}";
        Space::existing(&other).apply(server).await?;
        space.pause(3).await;
        for _ in 0..3 {
            reached(space, "http://web/").await?;
        }
        ensure!(
            meshed_requests(space, "web").await? >= 3.0,
            "no requests were seen: the port is opaque"
        );
        kubectl(&["delete", "namespace", &other, "--wait=false"]).await?;
        Ok(())
    });
}

/// D21: a route takes over as soon as the profile of the Service is gone.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn d21_a_profile_gives_way_to_a_route() {
    on_cluster("d-profile", async |space| {
        let server = |name: &str| App::server(name, "http");
        space
            .start(&[
                server("web"),
                server("old"),
                server("new"),
                App::client("client"),
            ])
            .await?;
        let name = format!("web.{}.svc.cluster.local", space.name);
        let profile = format!(
            "
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {{name: {name}}}
spec:
  routes: []
  dstOverrides: [{{authority: 'old.{0}.svc.cluster.local:80', weight: 1}}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{group: core, kind: Service, name: web, port: 80}}]
  rules: [{{backendRefs: [{{name: new, port: 80}}]}}]",
            space.name
        );
        space.apply(&profile).await?;
        let goes_to = async |server: &str| {
            until(server, SOON, async || {
                let body = space.curl("client", "http://web/").await?.body;
                Ok(body
                    .contains(&format!("\"server\":\"{server}-"))
                    .then_some(()))
            })
            .await
        };
        goes_to("old").await?;
        space.kubectl(&["delete", "serviceprofile", &name]).await?;
        goes_to("new").await
    });
}

/// D03: of several slices one goes, and an address moves from one to the other; only what is in none of them is gone.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn d03_slices_by_hand() {
    on_cluster("d-slices", async |space| {
        space
            .start(&[App::server("one", "http"), App::server("two", "http")])
            .await?;
        let (one, two) = (space.pod("one").await?, space.pod("two").await?);
        let service = "
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {ports: [{port: 80, targetPort: 8080}]}";
        let slice = |name: &str, pods: &[&weft_e2e::cluster::Pod]| {
            let endpoints: Vec<_> = pods
                .iter()
                .map(|pod| {
                    json!({
                        "addresses": [pod.ip], "conditions": { "ready": true },
                        "targetRef": { "kind": "Pod", "name": pod.name, "namespace": space.name },
                    })
                })
                .collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "both" } },
                "endpoints": endpoints, "ports": [{ "port": 8080, "protocol": "TCP", "name": "" }],
            })
            .to_string()
        };
        space.apply(service).await?;
        space.apply(&slice("a", &[&one])).await?;
        space.apply(&slice("b", &[&two])).await?;
        space.start(&[App::load("load", "both:80", 50)]).await?;
        space.answered("load", 100).await?;
        ensure!(
            meshed_requests(space, "one").await? > 0.0
                && meshed_requests(space, "two").await? > 0.0
        );

        // In both for a moment, then only in the second.
        space.apply(&slice("b", &[&two, &one])).await?;
        space.answered("load", 50).await?;
        space.kubectl(&["delete", "endpointslice", "a"]).await?;
        space.answered("load", 50).await?;
        let before = meshed_requests(space, "one").await?;
        space.answered("load", 50).await?;
        ensure!(
            meshed_requests(space, "one").await? > before,
            "gone, though the other slice has it"
        );
        space.apply(&slice("b", &[&two])).await?;
        until(
            "no more requests for what is in no slice",
            SOON,
            async || {
                let before = meshed_requests(space, "one").await?;
                space.answered("load", 50).await?;
                Ok((meshed_requests(space, "one").await? == before).then_some(()))
            },
        )
        .await
    });
}
