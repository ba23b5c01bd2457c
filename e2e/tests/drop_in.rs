//! `weft-proxy` where linkerd2-proxy was: its environment, its exit codes, and any control plane that speaks
//! `linkerd2-proxy-api` on loopback (contract 1).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::ensure;
use nix::sys::signal::Signal;
use weft_e2e::by_hand::{Pod, pods};
use weft_e2e::control::{HTTP, OPAQUE};
use weft_e2e::{Client2, Samples, peers};

/// Longest a proxy may take to end by itself.
const END: Duration = Duration::from_secs(10);

fn at(ip: Ipv4Addr, port: u16) -> SocketAddr {
    (ip, port).into()
}

/// HTTP/1.1, HTTP/2 and opaque TCP from one pod to the other, by the address of the Service and by that of the pod.
async fn carries(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    for ip in [to.endpoint.cluster_ip, to.endpoint.ip] {
        let mut http1 = from.connect(at(ip, HTTP)).await?;
        http1
            .send("POST /a?b HTTP/1.1\r\nHost: b\r\ncontent-length: 4\r\n\r\nbody")
            .await?;
        let answer = http1.message().await?;
        let seen: serde_json::Value = serde_json::from_slice(&answer.body)?;
        assert_eq!(answer.head.status(), 200);
        assert_eq!(
            (&seen["first"], &seen["body"]),
            (&"POST /a?b HTTP/1.1".into(), &"body".into())
        );
        let id = serde_json::json!(["l5d-client-id", from.endpoint.identity]);
        ensure!(
            seen["fields"]
                .as_array()
                .is_some_and(|all| all.contains(&id)),
            "{seen}"
        );

        let http2 = Client2::start(from.connect(at(ip, HTTP)).await?).await?;
        let answer = http2.get("http://b/c").await?;
        let seen: serde_json::Value = serde_json::from_slice(answer.body())?;
        assert_eq!(
            (answer.status().as_u16(), &seen["first"]),
            (200, &"GET http://b/c HTTP/2".into())
        );

        let mut opaque = from.connect(at(ip, OPAQUE)).await?;
        assert_eq!(opaque.line().await?, "hello", "the server speaks first");
        opaque.send("a line\n").await?;
        assert_eq!(opaque.line().await?, "a line");
    }
    Ok(())
}

async fn metrics(pod: &Pod) -> anyhow::Result<Samples> {
    Samples::parse(&pod.page("/metrics").await?.body)
}

#[test]
fn http1_http2_and_opaque_tcp_are_carried_in_both_directions() {
    pods(async |pods| {
        let mut proxies = Vec::new();
        for pod in [&pods.a, &pods.b] {
            pod.serve_control().await?;
            proxies.push(pod.proxy(&pod.environment())?);
            peers::http(pod.listen(HTTP).await?, "server");
            peers::banner(pod.listen(OPAQUE).await?, "hello");
            pod.ready().await?;
        }
        for (from, to) in [(&pods.a, &pods.b), (&pods.b, &pods.a)] {
            carries(from, to).await?;
            let (client, server) = (metrics(from).await?, metrics(to).await?);
            let target = [("target_addr", &*format!("{}:{HTTP}", to.endpoint.ip))];
            let meshed = [
                target[0],
                ("tls", "true"),
                ("server_id", &to.endpoint.identity),
            ];
            assert_eq!(client.sum("request_total", &meshed), 4.0);
            assert_eq!(
                client.sum("request_total", &target),
                4.0,
                "nothing without TLS"
            );
            let client_id = [
                ("direction", "inbound"),
                ("client_id", &*from.endpoint.identity),
            ];
            assert_eq!(server.sum("request_total", &client_id), 4.0);
            let opaque = [
                ("peer", "src"),
                client_id[0],
                client_id[1],
                ("target_port", "9000"),
            ];
            assert_eq!(server.sum("tcp_open_total", &opaque), 2.0);
        }
        for mut proxy in proxies {
            proxy.signal(Signal::SIGTERM)?;
            assert_eq!(proxy.exit_code(END).await?, 0);
        }
        Ok(())
    });
}

#[test]
fn the_token_and_the_request_of_the_identity_folder_reach_the_identity_service() {
    pods(async |pods| {
        let pod = &pods.a;
        pod.serve_control().await?;
        let _proxy = pod.proxy(&pod.environment())?;
        pod.ready().await?;
        let certified = pods.control.certified.borrow().clone();
        assert_eq!(certified.len(), 1);
        let (csr, token) = &certified[0];
        assert_eq!(token, b"token of a", "the token goes as it is in the file");
        assert_eq!(*csr, std::fs::read(pod.folder.join("identity/csr.der"))?);
        Ok(())
    });
}

#[test]
fn all_bad_settings_are_reported_at_once_with_exit_code_64() {
    pods(async |pods| {
        let bad = [
            ("LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT", "1m30s"),
            ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "nowhere"),
            ("LINKERD2_PROXY_INBOUND_DEFAULT_POLICY", "everybody"),
            ("LINKERD2_PROXY_INBOUND_PORTS", "9-8"),
            ("LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED", "yes"),
            ("LINKERD2_PROXY_IDENTITY_DISABLED", "1"),
        ];
        let mut environment = pods.a.environment();
        environment.remove("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS");
        environment.remove("LINKERD2_PROXY_POLICY_WORKLOAD");
        environment.extend(bad.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let mut proxy = pods.a.proxy(&environment)?;
        assert_eq!(proxy.exit_code(END).await?, 64);
        let log = proxy.log()?;
        for name in bad
            .map(|(name, _)| name)
            .into_iter()
            .chain(["LINKERD2_PROXY_POLICY_WORKLOAD"])
        {
            assert!(log.contains(name), "{name} is not in {log}");
        }
        Ok(())
    });
}

#[test]
fn a_setting_that_only_fails_when_it_is_used_ends_with_exit_code_1() {
    pods(async |pods| {
        // Somebody else has the port.
        let _taken = pods.a.listen(4143).await?;
        let mut proxy = pods.a.proxy(&pods.a.environment())?;
        assert_eq!(proxy.exit_code(END).await?, 1);
        assert!(proxy.log()?.contains("4143"), "{}", proxy.log()?);
        Ok(())
    });
}

#[test]
fn names_that_are_not_known_are_tolerated() {
    pods(async |pods| {
        let unknown = [
            ("LINKERD2_PROXY_INBOUND_SERVER_HTTP2_SOMETHING_NEW", "7"),
            ("LINKERD2_PROXY_TRACE_PROTOCOL", "opentelemetry"),
            (
                "LINKERD2_PROXY_TRACE_ANNOTATIONS_PATH",
                "/var/run/linkerd/podinfo/annotations",
            ),
            ("LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_IDENTITY", "8080"),
            ("LINKERD2_PROXY_FROM_ANOTHER_YEAR", ""),
            ("SOMETHING_ELSE", "x"),
        ];
        let mut environment: BTreeMap<String, String> = pods.a.environment();
        environment.extend(unknown.map(|(name, value)| (name.to_owned(), value.to_owned())));
        pods.a.serve_control().await?;
        let mut proxy = pods.a.proxy(&environment)?;
        pods.a.ready().await?;
        assert!(proxy.runs()?);
        Ok(())
    });
}
