//! Which addresses and ports lead where: refusals, loops, a pod's own Service, and servers that are not there.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;
use weft_e2e::{Manifests, Node, eventually, mesh, peers};

fn manifests() -> Manifests {
    Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("web", &[8080])
        .pod("client", &[])
        .stranger("outside", &[])
}

/// The connection is refused, or ended before a byte came, soon. A client in the mesh may be told in terms of HTTP.
async fn refused(node: &Node, addr: &str) -> anyhow::Result<()> {
    let from = Instant::now();
    if let Ok(mut wire) = node.connect(addr).await {
        // Whether that still is taken does not matter.
        let _ = wire.send("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        match wire.ended().await {
            Err(error) if format!("{error}").contains("HTTP/1.1 502 Bad Gateway") => {}
            ended => ended.map_err(|error| error.context(format!("to {addr}")))?,
        }
    }
    ensure!(
        from.elapsed() < Duration::from_secs(1),
        "{addr} took {:?}",
        from.elapsed()
    );
    Ok(())
}

#[test]
fn t07_connections_to_the_proxys_own_ports_are_refused_without_a_loop() {
    mesh(manifests(), async |net| {
        let (web, client, outside) = (
            net.start("web").await?,
            net.start("client").await?,
            net.start("outside").await?,
        );
        let (fds, memory) = (
            web.metrics().await?.sum("process_open_fds", &[]),
            web.proxy_memory().await?,
        );
        for round in 0..5 {
            for port in [4140, 4143] {
                refused(&outside, &format!("{}:{port}", web.ip())).await?;
                refused(&client, &format!("{}:{port}", web.ip())).await?;
                refused(&web, &format!("{}:{port}", web.ip())).await?;
                refused(&web, &format!("127.0.0.1:{port}")).await?;
            }
            ensure!(web.page("/live").await?.status == 200, "round {round}");
        }
        let page = web.metrics().await?;
        ensure!(
            page.sum("process_open_fds", &[]) <= fds + 8.0,
            "descriptors grow: {fds}"
        );
        ensure!(
            web.proxy_memory().await? < memory + (8 << 10),
            "memory grows"
        );
        ensure!(
            page.sum("inbound_tcp_errors_total", &[]) > 0.0,
            "a refusal is counted"
        );
        Ok(())
    });
}

#[test]
fn t06_a_pod_reaches_itself_by_its_service_and_by_its_address() {
    mesh(manifests(), async |net| {
        let web = net.start("web").await?;
        peers::http(web.listen(8080).await?, "web");
        for addr in ["web:80".to_owned(), format!("{}:8080", web.ip())] {
            let from = Instant::now();
            let answer = web.curl(&[&format!("http://{addr}/")]).await?;
            assert!(answer.contains("\"server\":\"web\""), "{answer}");
            ensure!(
                from.elapsed() < Duration::from_secs(2),
                "{addr} took {:?}",
                from.elapsed()
            );
            let output = web
                .run(
                    "h2load",
                    &["-n", "20", "-c", "2", &format!("http://{addr}/")],
                )
                .await?;
            assert!(output.stdout.contains("20 succeeded"), "{addr}: {output:?}");
        }
        Ok(())
    });
}

#[test]
fn t06_a_pod_among_replicas_reaches_all_of_them_by_its_service() {
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("web-1", &[8080])
        .pod("web-2", &[8080]);
    mesh(manifests, async |net| {
        let (one, two) = (net.start("web-1").await?, net.start("web-2").await?);
        peers::http(one.listen(8080).await?, "web-1");
        peers::http(two.listen(8080).await?, "web-2");
        let mut seen = std::collections::BTreeSet::new();
        eventually("both answer", Duration::from_secs(10), async || {
            let answer = one.curl(&["http://web/"]).await?;
            seen.extend(
                ["web-1", "web-2"]
                    .into_iter()
                    .filter(|name| answer.contains(&format!("\"server\":\"{name}\""))),
            );
            Ok((seen.len() == 2).then_some(()))
        })
        .await
    });
}

#[test]
fn t15_a_port_that_the_service_does_not_declare_is_refused_at_once() {
    mesh(manifests(), async |net| {
        let (web, client) = (net.start("web").await?, net.start("client").await?);
        peers::http(web.listen(8080).await?, "web");
        client.curl(&["http://web/"]).await?;
        refused(&client, "web:8080").await?;
        // The pod's own port is open all the same.
        client
            .curl(&[&format!("http://{}:8080/", web.ip())])
            .await?;
        let page = client.metrics().await?;
        let why: Vec<_> = page
            .find("outbound_tcp_errors_total", &[("target_port", "8080")])
            .collect();
        ensure!(
            why.iter().map(|sample| sample.value).sum::<f64>() >= 1.0,
            "the metric says why: {why:?}"
        );
        Ok(())
    });
}

#[test]
fn a_server_that_does_not_listen_any_more_is_a_502() {
    mesh(manifests(), async |net| {
        let (web, client, outside) = (
            net.start("web").await?,
            net.start("client").await?,
            net.start("outside").await?,
        );
        let listener = web.listen(8080).await?;
        // It is an endpoint now, and stays one.
        let mut app = client.connect("web:80").await?;
        app.send("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        listener.accept().await?.head().await?;
        drop(listener);
        let direct = format!("http://{}:8080/", web.ip());
        for (node, url, meshed) in [
            (&client, "http://web/", true),
            (&outside, direct.as_str(), false),
        ] {
            let from = Instant::now();
            let answer = node.curl(&["-i", url]).await?;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
            ensure!(
                from.elapsed() < Duration::from_secs(2),
                "{:?}",
                from.elapsed()
            );
            if !meshed {
                assert!(!answer.contains("l5d-"), "case P26: {answer}");
            }
        }
        // And it is well again as soon as the server is (case L10).
        peers::http(web.listen(8080).await?, "web");
        client.curl(&["-f", "http://web/"]).await?;
        Ok(())
    });
}

#[test]
fn a_service_without_endpoints_fails_fast_and_recovers_at_once() {
    mesh(manifests(), async |net| {
        let client = net.start("client").await?;
        let from = Instant::now();
        let answer = client.curl(&["-i", "http://web/"]).await?;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
        assert!(answer.contains("l5d-proxy-error: "), "{answer}");
        let waited = from.elapsed();
        ensure!(
            waited > Duration::from_millis(2500) && waited < Duration::from_secs(5),
            "{waited:?}"
        );
        // The gate is shut: others do not wait.
        let from = Instant::now();
        assert!(
            client
                .curl(&["-i", "http://web/"])
                .await?
                .starts_with("HTTP/1.1 504 ")
        );
        ensure!(
            from.elapsed() < Duration::from_millis(500),
            "{:?}",
            from.elapsed()
        );
        let web = net.start("web").await?;
        peers::http(web.listen(8080).await?, "web");
        eventually("it recovers", Duration::from_secs(2), async || {
            Ok(client.curl(&["-f", "http://web/"]).await.ok())
        })
        .await?;
        Ok(())
    });
}

#[test]
fn a_pod_outside_the_mesh_is_reached_in_plain_text_and_labelled_so() {
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .stranger("web", &[8080])
        .pod("client", &[]);
    mesh(manifests, async |net| {
        let (web, client) = (net.start("web").await?, net.start("client").await?);
        peers::http(web.listen(8080).await?, "web");
        client.curl(&["-f", "http://web/"]).await?;
        let plain = [
            ("direction", "outbound"),
            ("tls", "no_identity"),
            ("no_tls_reason", "not_provided_by_service_discovery"),
        ];
        client.metric("request_total", &plain, 1.0).await?;
        Ok(())
    });
}
