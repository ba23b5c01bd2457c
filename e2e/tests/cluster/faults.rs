//! Restarts and losses under load: none of them may fail a request.

use anyhow::{Context, ensure};
use weft_e2e::cluster::{App, SOON, Space, alone, on_cluster, script, until};

async fn under_load(space: &Space) -> anyhow::Result<()> {
    space
        .start(&[App::server("web", "http").replicas(2)])
        .await?;
    space.start(&[App::load("load", "web:80", 50)]).await?;
    space.answered("load", 50).await?;
    Ok(())
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn a_rolling_restart_of_the_control_plane_fails_no_request() {
    alone("f-control", async |space| {
        under_load(space).await?;
        let control = Space::existing("linkerd");
        for (turn, name) in [
            "linkerd-identity",
            "linkerd-destination",
            "linkerd-proxy-injector",
        ]
        .into_iter()
        .enumerate()
        {
            control.restart(name).await?;
            space.answered("load", 100).await?;
            // And it works: a new pod gets a proxy, a certificate, endpoints.
            let client = format!("client-{turn}");
            space.start(&[App::client(&client)]).await?;
            ensure!(
                space.pod(&client).await?.is_meshed(),
                "no proxy after the restart of {name}"
            );
            ensure!(
                space.curl(&client, "http://web/").await?.status == 200,
                "after the restart of {name}"
            );
        }
        // What proxies know follows changes again.
        space.restart("web").await?;
        space.answered("load", 200).await?;
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d22_a_restart_of_the_api_server_is_survived() {
    alone("f-apiserver", async |space| {
        under_load(space).await?;
        let ready = |pods: Vec<weft_e2e::cluster::Pod>| {
            pods.iter()
                .map(|pod| pod.restarts("destination"))
                .sum::<u64>()
        };
        let control = Space::existing("linkerd");
        let before = ready(
            control
                .pods_by("linkerd.io/control-plane-component")
                .await?,
        );
        script("restart", &["kube-apiserver"]).await?;
        space.answered("load", 100).await?;
        // Endpoints that change afterwards are noticed, and policies.
        space
            .kubectl(&["scale", "deployment/web", "--replicas=3"])
            .await?;
        space.rolled_out("web").await?;
        for pod in space.pods("web").await? {
            until("requests at each pod", SOON, async || {
                let metrics = pod.metrics().await?;
                let came = metrics.sum(
                    "request_total",
                    &[("direction", "inbound"), ("tls", "true")],
                );
                Ok((came > 0.0).then_some(()))
            })
            .await?;
        }
        space.answered("load", 100).await?;
        let after = ready(
            control
                .pods_by("linkerd.io/control-plane-component")
                .await?,
        );
        ensure!(before == after, "a controller was started again");
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn a_proxy_that_was_killed_is_started_again() {
    on_cluster("f-kill", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        ensure!(space.curl("client", "http://web/").await?.status == 200);
        let pod = space.pod("web").await?;
        let id = pod.container_id("linkerd-proxy")?;
        script(
            "node",
            &[
                "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", &id,
            ],
        )
        .await?;
        until("a new proxy", SOON, async || {
            let pod = space.pod("web").await?;
            let ready = pod
                .status("linkerd-proxy")
                .is_some_and(|s| s["ready"] == true);
            Ok((pod.restarts("linkerd-proxy") == 1 && ready).then_some(()))
        })
        .await?;
        until("answers", SOON, async || {
            Ok((space.curl("client", "http://web/").await?.status == 200).then_some(()))
        })
        .await?;
        // The application has not noticed.
        ensure!(space.pod("web").await?.restarts("app") == 0);
        Ok(())
    });
}

/// R18: the replica that writes statuses hangs, and the other one takes over; the first one is told so when it goes on.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r18_another_replica_writes_statuses_when_one_hangs() {
    alone("f-lease", async |space| {
        let control = Space::existing("linkerd");
        let holder = async || {
            let path = "jsonpath={.spec.holderIdentity}";
            control
                .kubectl(&["get", "lease", "policy-controller-write", "-o", path])
                .await
        };
        control
            .kubectl(&["scale", "deployment/linkerd-destination", "--replicas=2"])
            .await?;
        let result = async {
            control.rolled_out("linkerd-destination").await?;
            let first = holder().await?;
            let pods = control
                .pods_by("linkerd.io/control-plane-component=destination")
                .await?;
            let leader = pods.iter().find(|pod| first.contains(&pod.name));
            let leader = leader.with_context(|| format!("{first} is no pod"))?;
            let id = leader.container_id("destination")?;
            script(
                "node",
                &[
                    "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGSTOP", &id,
                ],
            )
            .await?;
            until("another holder", SOON, async || {
                Ok((holder().await? != first).then_some(()))
            })
            .await?;
            space.start(&[App::server("web", "http")]).await?;
            space
                .apply(
                    "
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{group: core, kind: Service, name: web, port: 80}]}",
                )
                .await?;
            until("a status", SOON, async || {
                let route = space.json(&["httproutes.policy.linkerd.io", "web"]).await?;
                Ok((route["status"]["parents"][0]["controllerName"]
                    == "linkerd.io/policy-controller")
                    .then_some(()))
            })
            .await?;
            // The kubelet may have ended it meanwhile.
            let _ = script(
                "node",
                &[
                    "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGCONT", &id,
                ],
            )
            .await;
            let second = holder().await?;
            space.pause(5).await;
            ensure!(holder().await? == second, "the lease went back");
            Ok(())
        }
        .await;
        control
            .kubectl(&["scale", "deployment/linkerd-destination", "--replicas=1"])
            .await?;
        control.rolled_out("linkerd-destination").await?;
        result
    });
}

/// R17: the definitions of the Gateway API go and come; everything else goes on, and routes count again without a restart.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r17_the_gateway_api_goes_and_comes() {
    alone("f-gateway", async |space| {
        let control = Space::existing("linkerd");
        let programs = weft_e2e::cluster::folder().join("bin").canonicalize()?;
        let crds = programs.with_file_name("crds").display().to_string();
        let restarts = async || {
            let pods = control
                .pods_by("linkerd.io/control-plane-component=destination")
                .await?;
            anyhow::Ok(
                pods.iter()
                    .map(|pod| pod.restarts("destination"))
                    .sum::<u64>(),
            )
        };
        let before = restarts().await?;
        weft_e2e::cluster::kubectl(&["delete", "-f", &crds, "--wait=true"]).await?;
        let result = async {
            under_load(space).await?;
            space.restart("web").await?;
            space.answered("load", 100).await?;
            control.restart("linkerd-destination").await?;
            space.answered("load", 100).await
        }
        .await;
        weft_e2e::cluster::kubectl(&["apply", "--server-side", "-f", &crds]).await?;
        result?;
        space
            .start(&[App::server("new", "http"), App::client("client")])
            .await?;
        until("a route", SOON, async || {
            space
                .apply(
                    "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 80}]
  rules: [{backendRefs: [{name: new, port: 80}]}]",
                )
                .await?;
            Ok(Some(()))
        })
        .await?;
        until("the route is in force", SOON, async || {
            Ok(space
                .curl("client", "http://web/")
                .await?
                .body
                .contains("\"new-")
                .then_some(()))
        })
        .await?;
        ensure!(
            restarts().await? <= before,
            "the controller was started again"
        );
        Ok(())
    });
}
