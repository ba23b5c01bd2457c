//! The charts with the real Helm: what is there after `helm install`, upgrade, rollback, uninstall; and how much it takes.

use std::time::Instant;

use anyhow::{Context, ensure};
use weft_e2e::cluster::{App, SOON, Space, alone, command, kubectl, on_cluster, say, until};

use crate::certificates::reinstall;

const DEPLOYMENTS: [&str; 3] = [
    "linkerd-identity",
    "linkerd-destination",
    "linkerd-proxy-injector",
];

/// Runs Helm in the namespace of the control plane.
async fn helm(args: &[&str]) -> anyhow::Result<String> {
    command("helm", &[&["-n", "linkerd"], args].concat(), "").await
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_control_plane_is_ready_and_meshed() {
    on_cluster("c-ready", async |_| {
        let control = Space::existing("linkerd");
        for name in DEPLOYMENTS {
            control.rolled_out(name).await?;
            let selector = format!("linkerd.io/proxy-deployment={name}");
            for pod in control.pods_by(&selector).await? {
                ensure!(pod.is_meshed(), "{} has no proxy", pod.name);
                let metrics = pod.metrics().await?;
                let renewed = metrics.sum("control_identity_cert_refreshes_total", &[])
                    + metrics.sum("identity_cert_refresh_count", &[]);
                ensure!(renewed > 0.0, "{} has no certificate", pod.name);
            }
        }
        // What is asked for comes in the form that is expected.
        let log = control
            .kubectl(&[
                "logs",
                "deployment/linkerd-destination",
                "-c",
                "destination",
            ])
            .await?;
        let ignored: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("Node /node"))
            .collect();
        ensure!(ignored.is_empty(), "{ignored:?}");
        Ok(())
    });
}

/// Memory of each container of the control plane, and how long a pod takes to be ready with and without a proxy.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn memory_and_start_times() {
    alone("c-figures", async |space| {
        let control = Space::existing("linkerd");
        let figures = kubectl(&["get", "--raw", "/api/v1/nodes/node/proxy/stats/summary"]).await?;
        let figures: serde_json::Value = serde_json::from_str(&figures)?;
        let pods = figures["pods"].as_array().context("pods")?;
        for pod in pods
            .iter()
            .filter(|p| p["podRef"]["namespace"] == control.name.as_str())
        {
            for container in pod["containers"].as_array().into_iter().flatten() {
                let bytes = container["memory"]["workingSetBytes"]
                    .as_f64()
                    .unwrap_or_default();
                let rss = container["memory"]["rssBytes"].as_f64().unwrap_or_default();
                say(&format!(
                    "memory {} {}: working set {:.1} MB, RSS {:.1} MB",
                    pod["podRef"]["name"],
                    container["name"],
                    bytes / 1e6,
                    rss / 1e6
                ));
                ensure!(bytes < 200e6, "more than 200 MB");
            }
        }
        for (kind, inject) in [("without", "disabled"), ("with", "enabled")] {
            let mut times = Vec::new();
            for turn in 0..3 {
                let app = App::server(&format!("{kind}-{turn}"), "http")
                    .annotation("linkerd.io/inject", inject);
                let began = Instant::now();
                space.start(&[app]).await?;
                times.push(began.elapsed());
            }
            times.sort();
            say(&format!(
                "from creation to ready {kind} a proxy: {:.1?} (median of 3)",
                times[1]
            ));
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn helm_upgrade_rollback_and_uninstall() {
    alone("c-helm", async |space| {
        let control = Space::existing("linkerd");
        space.start(&[App::server("web", "http")]).await?;
        space.start(&[App::load("load", "web:80", 50)]).await?;
        space.answered("load", 50).await?;
        let chart = format!(
            "{}/../charts/linkerd-control-plane",
            env!("CARGO_MANIFEST_DIR")
        );
        let image =
            |pod: &weft_e2e::cluster::Pod| pod.object["metadata"]["annotations"]["t"].clone();

        let before = helm(&["history", "linkerd-control-plane", "-o", "json"]).await?;
        let before: Vec<serde_json::Value> = serde_json::from_str(&before)?;
        let revision = before.last().context("a revision")?["revision"].to_string();
        helm(&[
            "upgrade",
            "linkerd-control-plane",
            &chart,
            "--reuse-values",
            "--set-string",
            "podAnnotations.t=1",
            "--wait",
            "--timeout=150s",
        ])
        .await?;
        for name in DEPLOYMENTS {
            let pods = control
                .pods_by(&format!("linkerd.io/proxy-deployment={name}"))
                .await?;
            ensure!(
                pods.iter().all(|pod| image(pod) == "1"),
                "{name} was not upgraded"
            );
        }
        space.answered("load", 100).await?;
        helm(&[
            "rollback",
            "linkerd-control-plane",
            &revision,
            "--wait",
            "--timeout=150s",
        ])
        .await?;
        for name in DEPLOYMENTS {
            let pods = control
                .pods_by(&format!("linkerd.io/proxy-deployment={name}"))
                .await?;
            ensure!(
                pods.iter().all(|pod| image(pod).is_null()),
                "{name} was not rolled back"
            );
        }
        space.answered("load", 100).await?;

        // Without a control plane the mesh goes on with what it knows, and pods are created without a proxy.
        helm(&[
            "uninstall",
            "linkerd-control-plane",
            "--wait",
            "--timeout=120s",
        ])
        .await?;
        let left = kubectl(&[
            "get", "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name",
        ])
        .await?;
        let left: Vec<&str> = left
            .lines()
            .filter(|name| name.contains("linkerd"))
            .collect();
        let own = control
            .kubectl(&[
                "get",
                "all,configmaps,secrets,roles,rolebindings,serviceaccounts",
                "-o",
                "name",
            ])
            .await?;
        let own: Vec<&str> = own
            .lines()
            .filter(|name| {
                name.contains("linkerd")
                    && !name.contains("sh.helm.release.v1.linkerd-crds")
                    && !name.starts_with("pod/")
            })
            .collect();
        let result = async {
            ensure!(
                left.is_empty() && own.is_empty(),
                "left behind: {left:?} {own:?}"
            );
            space.answered("load", 100).await?;
            space.start(&[App::client("later")]).await?;
            ensure!(!space.pod("later").await?.is_meshed());
            Ok(())
        }
        .await;
        reinstall().await?;
        result?;
        space.answered("load", 100).await?;
        space.restart("later").await?;
        until("a meshed pod", SOON, async || {
            Ok(space.pod("later").await?.is_meshed().then_some(()))
        })
        .await
    });
}

/// C03: no controller writes a field that the chart declares: after hours of work the same values are no change. Also C05.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn c03_c05_nothing_differs_from_the_chart() {
    alone("c-diff", async |_| {
        for release in ["linkerd-crds", "linkerd-control-plane"] {
            let manifest = helm(&["get", "manifest", release]).await?;
            // By server-side apply, as GitOps tools compare; exit code 1 and the difference, if there is one.
            let args = [
                "diff",
                "--server-side",
                "--force-conflicts",
                "--field-manager=helm",
                "-n",
                "linkerd",
                "-f",
                "-",
            ];
            command("kubectl", &args, &manifest)
                .await
                .with_context(|| release.to_owned())?;
        }
        Ok(())
    });
}

/// C06: no definition is too large for a client that keeps it in an annotation. C07: those of the Gateway API are not among them.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn c06_c07_definitions_fit_client_side_apply_and_are_only_ours() {
    on_cluster("c-size", async |_| {
        let manifest = helm(&["get", "manifest", "linkerd-crds"]).await?;
        command(
            "kubectl",
            &["apply", "--dry-run=server", "-f", "-"],
            &manifest,
        )
        .await?;
        ensure!(!manifest.contains("\n  group: gateway.networking.k8s.io\n"));
        for document in manifest.split("\n---") {
            ensure!(document.len() < 200_000, "{} bytes", document.len());
        }
        Ok(())
    });
}

/// C09: everything at once and in the worst order, with a webhook that must not be away: it comes up by itself.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn c09_the_order_of_objects_does_not_matter() {
    alone("c-order", async |space| {
        let control = Space::existing("linkerd");
        let chart = format!(
            "{}/../charts/linkerd-control-plane",
            env!("CARGO_MANIFEST_DIR")
        );
        let values = helm(&["get", "values", "linkerd-control-plane", "-o", "yaml"]).await?;
        let args = [
            "template",
            "x",
            &chart,
            "-f",
            "-",
            "--set-string",
            "webhookFailurePolicy=Fail",
        ];
        let args = [&["-n", "linkerd"], args.as_slice()].concat();
        let rendered = command("helm", &args, &values).await?;
        let mut objects: Vec<&str> = rendered
            .split("\n---")
            .map(|object| object.trim_start_matches("---"))
            .collect();
        // Webhooks first, then Deployments, and what these need last.
        objects.sort_by_key(|object| {
            let kind = object
                .lines()
                .find_map(|line| line.strip_prefix("kind: "))
                .unwrap_or_default();
            match kind {
                kind if kind.contains("Webhook") => 0,
                "Deployment" => 1,
                _ => 2,
            }
        });
        let all = objects.join("\n---\n");
        helm(&[
            "uninstall",
            "linkerd-control-plane",
            "--wait",
            "--timeout=120s",
        ])
        .await?;
        let result = async {
            control.apply(&all).await?;
            for name in DEPLOYMENTS {
                control.rolled_out(name).await?;
            }
            space.start(&[App::client("client")]).await?;
            ensure!(space.pod("client").await?.is_meshed());
            Ok(())
        }
        .await;
        command(
            "kubectl",
            &["delete", "-n", "linkerd", "--ignore-not-found", "-f", "-"],
            &all,
        )
        .await?;
        reinstall().await?;
        result
    });
}

/// C10: the namespace of the control plane is itself to be meshed; its pods have the proxy of the chart, and only that.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn c10_the_namespace_of_the_control_plane_may_be_meshed() {
    alone("c-self", async |_| {
        let control = Space::existing("linkerd");
        kubectl(&[
            "annotate",
            "namespace",
            "linkerd",
            "linkerd.io/inject=enabled",
        ])
        .await?;
        let restarted = control.restart("linkerd-proxy-injector").await;
        kubectl(&["annotate", "namespace", "linkerd", "linkerd.io/inject-"]).await?;
        restarted?;
        for pod in control
            .pods_by("linkerd.io/control-plane-component=proxy-injector")
            .await?
        {
            let mut containers = pod.containers();
            containers.sort_unstable();
            ensure!(
                containers == ["linkerd-init", "linkerd-proxy", "proxy-injector"],
                "{containers:?}"
            );
        }
        Ok(())
    });
}
