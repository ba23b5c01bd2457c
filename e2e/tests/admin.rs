//! The admin port (contract 5) as probes, Prometheus and the command line see it.

use anyhow::ensure;
use weft_e2e::{Manifests, Net, Node, mesh};

fn manifests() -> Manifests {
    Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("web", &[8080])
        .pod("client", &[])
        .stranger("outside", &[])
}

async fn start(net: &Net) -> anyhow::Result<(Node, Node)> {
    Ok((net.start("web").await?, net.start("outside").await?))
}

/// Status and body of a request by curl.
async fn ask(node: &Node, arguments: &[&str]) -> anyhow::Result<(u16, String)> {
    let output = node
        .curl(&[&["-w", "\n%{http_code}"], arguments].concat())
        .await?;
    let (body, status) = output.rsplit_once('\n').unwrap_or(("", &output));
    Ok((status.parse()?, body.to_owned()))
}

const LOCAL: &str = "http://127.0.0.1:4191";

#[test]
fn probes_are_answered_to_anybody_by_any_method() {
    mesh(manifests(), async |net| {
        let (web, outside) = start(net).await?;
        let client = net.start("client").await?;
        let remote = format!("http://{}:4191", web.ip());
        for (node, base) in [
            (&web, LOCAL),
            (&outside, remote.as_str()),
            (&client, remote.as_str()),
        ] {
            for (path, body) in [("/live", "live\n"), ("/ready", "ready\n")] {
                let url = format!("{base}{path}");
                assert_eq!(ask(node, &[&url]).await?, (200, body.to_owned()), "{url}");
                assert_eq!(ask(node, &["-X", "POST", &url]).await?.0, 200, "{url}");
                assert_eq!(
                    ask(node, &["--http2-prior-knowledge", &url]).await?,
                    (200, body.to_owned()),
                    "{url}"
                );
            }
            assert_eq!(ask(node, &[&format!("{base}/nothing")]).await?.0, 404);
            assert_eq!(ask(node, &[&format!("{base}/tasks")]).await?.0, 404);
        }
        Ok(())
    });
}

#[test]
fn metrics_come_as_text_and_compressed_if_asked() {
    mesh(manifests(), async |net| {
        let (_web, outside) = start(net).await?;
        let url = format!("http://{}:4191/metrics", _web.ip());
        let plain = outside.curl(&["-i", &url]).await?;
        assert!(
            plain
                .to_ascii_lowercase()
                .contains("\r\ncontent-type: text/plain"),
            "{}",
            &plain[..300]
        );
        assert!(plain.ends_with("# EOF\n"));
        let packed = outside
            .curl(&["-i", "--compressed", "-H", "accept-encoding: gzip", &url])
            .await?;
        assert!(
            packed
                .to_ascii_lowercase()
                .contains("\r\ncontent-encoding: gzip"),
            "{}",
            &packed[..300]
        );
        assert!(packed.ends_with("# EOF\n"));
        let open = outside
            .curl(&[
                "-i",
                "-H",
                "accept: application/openmetrics-text; version=1.0.0",
                &url,
            ])
            .await?;
        assert!(open.ends_with("# EOF\n"));
        Ok(())
    });
}

#[test]
fn the_environment_is_json_and_has_no_secrets() {
    mesh(manifests(), async |net| {
        let (web, outside) = start(net).await?;
        let url = format!("http://{}:4191/env.json", web.ip());
        let (status, body) = ask(&outside, &[&url]).await?;
        let all: serde_json::Value = serde_json::from_str(&body)?;
        assert_eq!(
            (status, &all["LINKERD2_PROXY_INBOUND_LISTEN_ADDR"]),
            (200, &"0.0.0.0:4143".into())
        );
        assert!(!body.contains("PRIVATE KEY"));
        let names = format!("{url}?LINKERD2_PROXY_INBOUND_LISTEN_ADDR&NOTHING");
        let some: serde_json::Value = serde_json::from_str(&ask(&outside, &[&names]).await?.1)?;
        assert_eq!(
            some,
            serde_json::json!({ "LINKERD2_PROXY_INBOUND_LISTEN_ADDR": "0.0.0.0:4143", "NOTHING": null })
        );
        assert_eq!(ask(&outside, &[&format!("{url}?A=1")]).await?.0, 400);
        assert_eq!(
            ask(&outside, &["-H", "accept: text/html", &url]).await?.0,
            406
        );
        assert_eq!(ask(&outside, &["-X", "POST", &url]).await?.0, 405);
        Ok(())
    });
}

#[test]
fn only_the_pod_itself_may_change_the_proxy() {
    mesh(manifests(), async |net| {
        let (web, outside) = start(net).await?;
        let client = net.start("client").await?;
        for path in ["/shutdown", "/proxy-log-level"] {
            let url = format!("http://{}:4191{path}", web.ip());
            for node in [&outside, &client] {
                for method in ["GET", "PUT", "POST"] {
                    assert_eq!(
                        ask(node, &["-X", method, &url]).await?.0,
                        403,
                        "{method} {path}"
                    );
                }
            }
            // The pod's own address is not loopback.
            assert_eq!(ask(&web, &["-X", "PUT", &url]).await?.0, 403, "{path}");
        }
        // It is switched off by default (contract 1.2), and says so.
        let (status, why) = ask(&web, &["-X", "POST", &format!("{LOCAL}/shutdown")]).await?;
        assert_eq!(status, 404);
        assert!(why.contains("not enabled"), "{why}");
        Ok(())
    });
}

#[test]
fn the_log_level_changes_while_the_proxy_runs() {
    mesh(manifests(), async |net| {
        let (web, outside) = start(net).await?;
        let url = format!("{LOCAL}/proxy-log-level");
        let (status, before) = ask(&web, &[&url]).await?;
        ensure!(
            status == 200 && before.contains("warn"),
            "{status} {before}"
        );
        assert_eq!(ask(&web, &["-X", "PUT", "-d", "debug", &url]).await?.0, 204);
        assert_eq!(ask(&web, &[&url]).await?.1.trim(), "debug");
        // A connection that ends is told of at this level.
        assert_eq!(
            outside
                .connect(&format!("{}:9", web.ip()))
                .await?
                .rest()
                .await
                .map_or(0, |r| r.len()),
            0
        );
        weft_e2e::eventually(
            "the log says more",
            std::time::Duration::from_secs(2),
            async || Ok(web.log()?.contains("DEBUG").then_some(())),
        )
        .await?;
        assert_eq!(
            ask(&web, &["-X", "PUT", "-d", "weft=[[[", &url]).await?.0,
            400
        );
        assert_eq!(ask(&web, &[&url]).await?.1.trim(), "debug");
        assert_eq!(ask(&web, &["-X", "DELETE", &url]).await?.0, 405);
        Ok(())
    });
}

#[test]
fn the_admin_port_shows_the_proxys_identity_over_tls() {
    mesh(manifests(), async |net| {
        let (web, outside) = start(net).await?;
        let name = "web.demo.serviceaccount.identity.linkerd.cluster.local";
        let to = format!("{}:4191", web.ip());
        let output = outside
            .run(
                "openssl",
                &[
                    "s_client",
                    "-connect",
                    &to,
                    "-servername",
                    name,
                    "-showcerts",
                ],
            )
            .await?;
        assert!(output.stdout.contains("BEGIN CERTIFICATE"), "{output:?}");
        assert!(output.stdout.contains("TLSv1.3"), "{output:?}");
        Ok(())
    });
}
