//! Traffic between meshed pods: mutual TLS with the right names for each protocol, and balancing while pods come and go.

use anyhow::ensure;
use weft_e2e::cluster::{App, SOON, Space, kubectl, on_cluster, until, weft_image};

/// Adds up a family over the pods of an app.
async fn sum(space: &Space, app: &str, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for pod in space.pods(app).await? {
        sum += pod.metrics().await?.sum(name, labels);
    }
    Ok(sum)
}

/// The identity of a ServiceAccount.
pub fn identity(space: &Space, account: &str) -> String {
    format!(
        "{account}.{}.serviceaccount.identity.linkerd.cluster.local",
        space.name
    )
}

/// The demo's programs: load → web (HTTP/1.1) → api (gRPC) → store (opaque TCP).
fn demo(replicas: u32) -> [App; 4] {
    [
        App::demo("store", &["store"]).port(6379, 6379),
        App::demo("api", &["api", "--store=store:6379"])
            .port(9000, 9000)
            .replicas(replicas),
        App::demo("web", &["web", "--api=api:9000"]).port(80, 8080),
        App::load("load", "web:80", 60),
    ]
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn http_grpc_and_opaque_traffic_is_mutual_tls_with_the_right_names() {
    on_cluster("t-mtls", async |space| {
        let apps = demo(3);
        space.start(&apps[..3]).await?;
        space.start(&apps[3..]).await?;
        space.answered("load", 300).await?;

        for (client, server, family) in [
            ("load", "web", "request_total"),
            ("web", "api", "request_total"),
            ("api", "store", "tcp_open_total"),
        ] {
            let (client_id, server_id) = (identity(space, client), identity(space, server));
            let out = [
                ("direction", "outbound"),
                ("tls", "true"),
                ("server_id", &server_id),
            ];
            let sent = sum(space, client, family, &out).await?;
            ensure!(sent > 0.0, "{client} → {server}: nothing with {out:?}");
            let into = [
                ("direction", "inbound"),
                ("tls", "true"),
                ("client_id", &client_id),
            ];
            let came = sum(space, server, family, &into).await?;
            ensure!(came > 0.0, "{client} → {server}: nothing with {into:?}");
            // Nothing of it without.
            let plain = [
                ("direction", "inbound"),
                (
                    "srv_port",
                    match server {
                        "web" => "8080",
                        "api" => "9000",
                        _ => "6379",
                    },
                ),
                ("tls", "no_identity"),
            ];
            let plain = sum(space, server, family, &plain).await?;
            ensure!(plain == 0.0, "{client} → {server}: {plain} without TLS");
        }

        // One gRPC connection of web, and every replica of api has its share of the requests.
        // One whose first answer was slow, as on a busy machine, is spared until that estimate has faded (10 s).
        until("a share for every replica", SOON, async || {
            let mut shares = Vec::new();
            for pod in space.pods("api").await? {
                shares.push(pod.metrics().await?.sum(
                    "request_total",
                    &[("direction", "inbound"), ("tls", "true")],
                ));
            }
            let all: f64 = shares.iter().sum();
            ensure!(shares.len() == 3 && all >= 300.0, "{shares:?}");
            Ok(shares.iter().all(|share| *share > all * 0.1).then_some(()))
        })
        .await
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn scaling_under_load_fails_no_request() {
    on_cluster("t-scale", async |space| {
        space
            .start(&[App::server("web", "http").replicas(3)])
            .await?;
        space.start(&[App::load("load", "web:80", 100)]).await?;
        space.answered("load", 100).await?;
        for replicas in [10, 1, 3] {
            let count = format!("--replicas={replicas}");
            space.kubectl(&["scale", "deployment/web", &count]).await?;
            space.rolled_out("web").await?;
            space.answered("load", 200).await?;
            let pods = until("as many pods", SOON, async || {
                let pods = space.pods("web").await?;
                Ok((pods.len() == replicas).then_some(pods))
            })
            .await?;
            // Those that are there now have all of the requests.
            for pod in pods {
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
        }
        space.answered("load", 100).await?;
        Ok(())
    });
}

/// docs/sample.yaml, as docs/kubernetes.md applies it.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_sample_of_the_guide() {
    on_cluster("sample", async |space| {
        let file = format!("{}/../docs/sample.yaml", env!("CARGO_MANIFEST_DIR"));
        let sample = std::fs::read_to_string(file)?.replace("weft.test/weft:0.1.0", &weft_image());
        space.apply(&sample).await?;
        space
            .kubectl(&[
                "wait",
                "--for=condition=available",
                "deployment",
                "--all",
                "--timeout=90s",
            ])
            .await?;
        let pod = space.pods("api").await?.swap_remove(0).name;
        let page = format!(
            "/api/v1/namespaces/{}/pods/{pod}:4191/proxy/metrics",
            space.name
        );
        let client = format!("client_id=\"{}\"", identity(space, "web"));
        until("requests of web", SOON, async || {
            let page = kubectl(&["get", "--raw", &page]).await?;
            Ok(page
                .lines()
                .any(|line| line.starts_with("request_total") && line.contains(&client))
                .then_some(()))
        })
        .await
    });
}
