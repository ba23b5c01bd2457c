//! gRPC through the mesh: the four kinds of calls, status and trailers, and balancing of calls on one connection.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use weft_e2e::grpc::{EchoClient, Ping, serve};
use weft_e2e::{Client2, Manifests, Node, Way, eventually, mesh, over_each_hop};

async fn start(way: &Way) -> anyhow::Result<EchoClient> {
    tokio::spawn(serve(way.listener.try_clone()?, "one"));
    EchoClient::start(way.connect().await?, "web:80").await
}

fn ping(text: &str) -> Ping {
    Ping {
        payload: text.into(),
        ..Ping::default()
    }
}

#[test]
fn a_unary_call_is_answered() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        let pong = client.unary(ping("hello")).await?;
        assert_eq!(
            (pong.payload.as_slice(), pong.server.as_str()),
            (b"hello".as_slice(), "one")
        );
        Ok(())
    });
}

#[test]
fn replies_stream_as_they_come() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        let from = Instant::now();
        let call = Ping {
            replies: 10,
            delay_ms: 50,
            ..ping("x")
        };
        let (_, mut replies) = client.server_stream(call).await?;
        let mut times = Vec::new();
        while let Some(reply) = replies.message().await? {
            assert_eq!(reply.number as usize, times.len());
            times.push(from.elapsed());
        }
        assert_eq!(times.len(), 10);
        // Not all at the end.
        assert!(
            times[9] - times[0] >= Duration::from_millis(400),
            "{times:?}"
        );
        Ok(())
    });
}

#[test]
fn requests_stream_and_large_messages_are_whole() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        let pings: Vec<Ping> = (0..100).map(|_| ping(&"y".repeat(30_000))).collect();
        let sum = client.client_stream(tokio_stream::iter(pings)).await?;
        assert_eq!((sum.number, sum.payload.len()), (100, 3_000_000));
        Ok(())
    });
}

#[test]
fn both_directions_stream_in_turn() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        let (sender, pings) = mpsc::channel(1);
        sender.send(ping("0")).await?;
        let mut replies = client.both(ReceiverStream::new(pings)).await?;
        for number in 0..50_u32 {
            let reply = timeout(Duration::from_secs(5), replies.message())
                .await??
                .context("a reply")?;
            assert_eq!(
                (reply.number, reply.payload),
                (number, number.to_string().into_bytes())
            );
            sender.send(ping(&(number + 1).to_string())).await?;
        }
        drop(sender);
        assert_eq!(replies.message().await?.map(|reply| reply.number), Some(50));
        assert!(replies.message().await?.is_none());
        Ok(())
    });
}

#[test]
fn h01_codes_and_long_messages_arrive_unchanged() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        for code in 1..=16 {
            let status = client
                .unary(Ping {
                    code,
                    message_length: 10,
                    ..ping("")
                })
                .await
                .err()
                .context("an error")?;
            assert_eq!(status.code(), Code::from(i32::try_from(code)?));
        }
        for kib in [1, 11, 12, 13, 16, 40] {
            for replies in [0, 2] {
                let call = Ping {
                    code: 9,
                    message_length: kib << 10,
                    replies,
                    ..ping("")
                };
                let mut seen = 0;
                let status = match client.server_stream(call).await {
                    Err(status) => status,
                    Ok((_, mut stream)) => loop {
                        match stream.message().await {
                            Ok(reply) => seen += u32::from(reply.is_some()),
                            Err(status) => break status,
                        }
                    },
                };
                assert_eq!(
                    (status.code(), seen),
                    (Code::FailedPrecondition, replies),
                    "{kib} KiB: {status:?}"
                );
                let wanted = (kib << 10) as usize;
                assert_eq!(
                    (status.message().len(), status.details().len()),
                    (wanted, wanted),
                    "{kib} KiB"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn grpc_status_is_counted() {
    over_each_hop(async |way| {
        let mut client = start(way).await?;
        client.unary(ping("")).await?;
        for code in [5, 14] {
            assert!(client.unary(Ping { code, ..ping("") }).await.is_err());
        }
        let (node, direction) = match way.hop {
            weft_e2e::Hop::ServerOnly => (&way.server, "inbound"),
            _ => (&way.client, "outbound"),
        };
        let all = [("direction", direction), ("status_code", "200")];
        let page = node.metric("response_total", &all, 3.0).await?;
        for (status, class) in [("0", "success"), ("5", "success"), ("14", "failure")] {
            let labels = [
                ("direction", direction),
                ("grpc_status", status),
                ("classification", class),
            ];
            assert_eq!(page.sum("response_total", &labels), 1.0, "{status} {class}");
        }
        Ok(())
    });
}

/// What a gRPC client sees of an answer that a proxy made.
async fn refusal(client: &Node) -> anyhow::Result<http::Response<Vec<u8>>> {
    let client = Client2::start(client.connect("web:80").await?).await?;
    let request = http::Request::post("http://web/weft.e2e.Echo/Unary");
    let request = request
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    client.fetch(request.body(())?).await
}

#[test]
fn h03_what_the_proxies_refuse_is_said_in_grpc() {
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("web", &[8080])
        .pod("client", &[]);
    mesh(manifests, async |net| {
        let client = net.start("client").await?;
        let code =
            |response: &http::Response<Vec<u8>>| response.headers().get("grpc-status").cloned();
        let nobody = refusal(&client).await?;
        assert_eq!(
            (nobody.status(), &nobody.headers()["content-type"]),
            (http::StatusCode::OK, &"application/grpc".parse()?)
        );
        // Contract 4.7: failfast is a deadline that was missed.
        assert_eq!(code(&nobody), Some("4".parse()?), "{nobody:?}");
        assert!(nobody.headers().contains_key("grpc-message"), "{nobody:?}");
        let web = net.start("web").await?;
        let listener = web.listen(8080).await?;
        eventually(
            "the endpoint is known",
            Duration::from_secs(5),
            async || {
                client
                    .connect("web:80")
                    .await?
                    .send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    .await?;
                let page = client.metrics().await?;
                Ok((page.sum(
                    "outbound_http_balancer_endpoints",
                    &[("endpoint_state", "ready")],
                ) >= 1.0)
                    .then_some(()))
            },
        )
        .await?;
        drop(listener);
        let closed = refusal(&client).await?;
        assert_eq!(
            (closed.status(), code(&closed)),
            (http::StatusCode::OK, Some("14".parse()?)),
            "{closed:?}"
        );
        Ok(())
    });
}

#[test]
fn calls_on_one_connection_are_spread_over_all_replicas() {
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("client", &[]);
    let manifests = ["web-1", "web-2", "web-3"]
        .iter()
        .fold(manifests, |all, name| all.pod(name, &[8080]));
    mesh(manifests, async |net| {
        let mut nodes = Vec::new();
        for name in ["web-1", "web-2", "web-3"] {
            let node = net.start(name).await?;
            tokio::spawn(serve(node.listen(8080).await?, name));
            nodes.push(node);
        }
        let client = net.start("client").await?;
        let mut echo = EchoClient::start(client.connect("web:80").await?, "web:80").await?;
        echo.unary(ping("")).await?;
        let ready = [("endpoint_state", "ready"), ("backend_name", "web")];
        client
            .metric("outbound_http_balancer_endpoints", &ready, 3.0)
            .await?;
        let mut shares: BTreeMap<String, u32> = BTreeMap::new();
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let mut echo = echo.clone();
            callers.spawn(async move {
                let mut servers = Vec::new();
                for _ in 0..50 {
                    servers.push(
                        echo.unary(Ping {
                            delay_ms: 5,
                            ..ping("")
                        })
                        .await?
                        .server,
                    );
                }
                anyhow::Ok(servers)
            });
        }
        for server in callers
            .join_all()
            .await
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?
            .concat()
        {
            *shares.entry(server).or_default() += 1;
        }
        assert_eq!(shares.len(), 3, "{shares:?}");
        assert!(shares.values().all(|share| *share >= 30), "{shares:?}");
        Ok(())
    });
}

#[test]
fn a_slow_replica_gets_a_small_share() {
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("client", &[]);
    let manifests = ["web-1", "web-2", "web-3"]
        .iter()
        .fold(manifests, |all, name| all.pod(name, &[8080]));
    mesh(manifests, async |net| {
        let mut nodes = Vec::new();
        for name in ["web-1", "web-2", "web-3"] {
            let node = net.start(name).await?;
            // The proxies see how long each takes; what it is called decides nothing.
            let delay = if name == "web-1" { "60" } else { "2" };
            let peer = node.peer("slow", 8080, &[name, delay]).await?;
            nodes.push((node, peer));
        }
        let client = net.start("client").await?;
        let url = "http://web/";
        let ready = [("endpoint_state", "ready"), ("backend_name", "web")];
        client.curl(&[url]).await?;
        client
            .metric("outbound_http_balancer_endpoints", &ready, 3.0)
            .await?;
        let output = client
            .run("h2load", &["-n", "1500", "-c", "1", "-m", "6", url])
            .await?;
        assert!(output.stdout.contains("1500 succeeded"), "{output:?}");
        let slow = nodes[0].0.ip();
        let page = client
            .metric("request_total", &[("direction", "outbound")], 1500.0)
            .await?;
        let share = page.sum(
            "request_total",
            &[("direction", "outbound"), ("target_ip", &slow)],
        ) / 1500.0;
        assert!(share < 0.1, "the slow replica got {share}");
        Ok(())
    });
}
