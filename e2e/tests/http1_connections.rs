//! HTTP/1 connections through the mesh: reuse, order, ends, tunnels and upgrades. What messages look like is in `http1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use weft_e2e::{Hop, Manifests, Way, Wire, mesh, over, over_each_hop};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\n\r\n";

#[test]
fn connections_are_kept_on_both_sides() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin(GET).await?;
        for _ in 0..20 {
            server.head().await?;
            server.send(OK).await?;
            assert_eq!(app.message().await?.text(), "ok");
            app.send(GET).await?;
        }
        way.listener.nobody(Duration::from_millis(50)).await
    });
}

#[test]
fn p25_pipelined_requests_are_answered_in_order() {
    over_each_hop(async |way| {
        let requests = "GET /1 HTTP/1.1\r\nHost: web\r\n\r\nHEAD /2 HTTP/1.1\r\nHost: web\r\n\r\n\
                        GET /3 HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let (mut app, mut server) = way.begin(requests).await?;
        for number in 1..=3 {
            // An idle connection may be used again, or a new one made.
            let head = match number {
                1 => server.head().await?,
                _ => next(way, &mut server).await?,
            };
            assert_eq!(
                head.first.split(' ').nth(1),
                Some(format!("/{number}").as_str())
            );
            if number == 1 {
                sleep(Duration::from_millis(300)).await;
            }
            let body = if number == 2 { "" } else { "x" };
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx-number: {number}\r\n\r\n");
            server.send(head + body).await?;
        }
        for number in ["1", "2", "3"] {
            let head = app.head().await?;
            assert_eq!(head.field("x-number"), Some(number));
            if number != "2" {
                assert_eq!(app.exactly(1).await?, b"x");
            }
        }
        app.ended().await
    });
}

/// The head of the next request, on this connection or a new one.
async fn next(way: &Way, server: &mut Wire) -> anyhow::Result<weft_e2e::Head> {
    tokio::select! {
        Ok(head) = server.head() => Ok(head),
        new = way.listener.accept() => {
            *server = new?;
            server.head().await
        }
    }
}

#[test]
fn p15_a_client_that_says_close_is_answered_close_and_closed() {
    over_each_hop(async |way| {
        let request = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let (mut app, mut server) = way.begin(request).await?;
        server.head().await?;
        server
            .send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
            .await?;
        let answer = app.message().await?;
        assert_eq!(answer.head.field("connection"), Some("close"));
        assert_eq!(answer.text(), "ok");
        app.ended().await
    });
}

#[test]
fn a_server_that_closes_after_its_answer_does_not_close_the_client() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin(GET).await?;
        for round in 0..3 {
            server.head().await?;
            server
                .send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
                .await?;
            drop(server);
            assert_eq!(app.message().await?.text(), "ok", "round {round}");
            app.send(GET).await?;
            server = way.listener.accept().await?;
        }
        Ok(())
    });
}

#[test]
fn a_body_that_ends_with_the_servers_connection_is_whole() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin(GET).await?;
        server.head().await?;
        server
            .send(format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000)))
            .await?;
        drop(server);
        assert_eq!(app.message().await?.body.len(), 100_000);
        Ok(())
    });
}

#[test]
fn a_body_that_breaks_off_is_not_made_whole() {
    over_each_hop(async |way| {
        for head in ["content-length: 100", "transfer-encoding: chunked"] {
            let (mut app, mut server) = way.begin(GET).await?;
            server.head().await?;
            server
                .send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhello\r\n"))
                .await?;
            assert_eq!(app.head().await?.status(), 200);
            app.exactly(10).await?;
            server.reset()?;
            let rest = app.rest().await;
            assert!(
                rest.is_err()
                    || rest
                        .as_ref()
                        .is_ok_and(|rest| !rest.ends_with(b"0\r\n\r\n")),
                "{head}: {rest:?}"
            );
        }
        Ok(())
    });
}

/// Serves on connections that it closes when they were idle for `idle`, as most servers do, and counts the requests that
/// it has processed. A request that comes as it closes is lost.
fn closing_idle(way: &Way, idle: Duration) -> anyhow::Result<Arc<AtomicUsize>> {
    let count = Arc::new(AtomicUsize::new(0));
    let served = Arc::clone(&count);
    way.listener.try_clone()?.serve(move |mut wire| {
        let served = Arc::clone(&served);
        async move {
            // A new connection is given time.
            let mut patience = Duration::from_secs(5);
            while let Ok(Ok(_)) = timeout(patience, wire.message()).await {
                patience = idle;
                served.fetch_add(1, Ordering::Relaxed);
                wire.send(OK).await?;
            }
            Ok(())
        }
    });
    Ok(count)
}

/// Sends requests on one connection, each after a pause of about `idle`; gives back how many had which answer.
async fn at_intervals(
    way: &Way,
    request: &str,
    idle: Duration,
    rounds: u32,
) -> anyhow::Result<(usize, usize)> {
    let (mut app, mut good, mut bad) = (way.connect().await?, 0, 0);
    for round in 0..rounds {
        app.send(request).await?;
        let answer = app.message().await?;
        match answer.head.status() {
            200 => good += 1,
            _ => bad += 1,
        }
        if answer.head.field("connection") == Some("close") {
            app = way.connect().await?;
        }
        // From 1.5 ms too early to 1.5 ms too late.
        sleep(
            idle + Duration::from_micros(u64::from(round % 31) * 100) - Duration::from_micros(1500),
        )
        .await;
    }
    Ok((good, bad))
}

#[test]
fn p16_a_get_never_meets_a_connection_that_is_being_closed() {
    over_each_hop(async |way| {
        let idle = Duration::from_millis(8);
        let served = closing_idle(way, idle)?;
        assert_eq!(at_intervals(way, GET, idle, 200).await?, (200, 0));
        assert_eq!(served.load(Ordering::Relaxed), 200);
        Ok(())
    });
}

#[test]
fn p16_a_post_is_never_sent_twice() {
    over_each_hop(async |way| {
        let idle = Duration::from_millis(8);
        let served = closing_idle(way, idle)?;
        let post = "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\n\r\nx";
        let (good, bad) = at_intervals(way, post, idle, 200).await?;
        let served = served.load(Ordering::Relaxed);
        assert_eq!(
            good, served,
            "each answer is of a request that was processed once; {bad} were lost"
        );
        assert!(bad < 60, "{bad} of 200 lost");
        Ok(())
    });
}

#[test]
fn p16_a_connection_that_was_closed_after_the_answer_is_not_used_again() {
    over_each_hop(async |way| {
        way.listener.try_clone()?.serve(|mut wire| async move {
            wire.message().await?;
            // No word of it in the answer.
            wire.send(OK).await
        });
        let mut app = way.connect().await?;
        for request in [
            GET,
            "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\n\r\nx",
        ]
        .repeat(25)
        {
            app.send(request).await?;
            assert_eq!(app.message().await?.head.status(), 200, "{request:?}");
            // The end of the connection is on its way, on another one than the next request.
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    });
}

#[test]
fn p05_connect_reaches_the_forward_proxy_unchanged() {
    over_each_hop(async |way| {
        let request = "CONNECT www.example.com:443 HTTP/1.1\r\nHost: www.example.com:443\r\n\r\n";
        let (mut app, mut server) = way.begin(request).await?;
        let head = server.head().await?;
        assert_eq!(head.first, "CONNECT www.example.com:443 HTTP/1.1");
        assert_eq!(head.field("host"), Some("www.example.com:443"));
        server
            .send("HTTP/1.1 200 Connection established\r\n\r\n")
            .await?;
        let head = app.head().await?;
        assert_eq!(
            (head.status(), head.field("transfer-encoding")),
            (200, None)
        );
        tunnel(&mut app, &mut server).await?;
        server.finish().await?;
        assert!(app.rest().await?.is_empty());
        Ok(())
    });
}

#[test]
fn p05_a_refused_connect_is_an_ordinary_answer() {
    over_each_hop(async |way| {
        let request = "CONNECT www.example.com:443 HTTP/1.1\r\nHost: www.example.com:443\r\n\r\n";
        let (mut app, mut server) = way.begin(request).await?;
        server.head().await?;
        server
            .send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
            .await?;
        let answer = app.message().await?;
        assert_eq!((answer.head.status(), answer.text().as_str()), (403, "no"));
        Ok(())
    });
}

#[test]
fn p07_tunnels_work_when_one_end_speaks_1_0() {
    for (request, answer) in [("1.0", "1.1"), ("1.1", "1.0")] {
        over_each_hop(async |way| {
            let request = format!("CONNECT h:443 HTTP/{request}\r\nHost: h:443\r\n\r\n");
            let (mut app, mut server) = way.begin(&request).await?;
            assert!(
                server
                    .head()
                    .await?
                    .first
                    .starts_with("CONNECT h:443 HTTP/1.")
            );
            server
                .send(format!("HTTP/{answer} 200 Connection established\r\n\r\n"))
                .await?;
            assert_eq!(app.head().await?.status(), 200);
            tunnel(&mut app, &mut server).await
        });
    }
}

/// Bytes pass both ways, in pieces and in bulk.
async fn tunnel(app: &mut Wire, server: &mut Wire) -> anyhow::Result<()> {
    for number in 0..100 {
        let text = format!("frame {number}\n");
        app.send(&text).await?;
        assert_eq!(server.line().await?, text.trim_end());
        server.send(&text).await?;
        assert_eq!(app.line().await?, text.trim_end());
    }
    let bulk = vec![7; 1 << 20];
    let (sent, read) = tokio::join!(app.send(&bulk), server.exactly(bulk.len()));
    sent?;
    assert_eq!(read?, bulk);
    Ok(())
}

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: web\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Key: abc\r\n\r\n";
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n";

async fn upgraded(way: &Way) -> anyhow::Result<(Wire, Wire)> {
    let (mut app, mut server) = way.begin(UPGRADE).await?;
    let head = server.head().await?;
    assert_eq!(head.field("upgrade"), Some("websocket"), "{head:?}");
    assert!(
        head.field("connection")
            .is_some_and(|v| v.to_ascii_lowercase().contains("upgrade")),
        "{head:?}"
    );
    assert_eq!(head.field("sec-websocket-key"), Some("abc"));
    server.send(SWITCHING).await?;
    let head = app.head().await?;
    assert_eq!(
        (head.status(), head.field("upgrade")),
        (101, Some("websocket"))
    );
    assert!(
        head.field("connection")
            .is_some_and(|v| v.eq_ignore_ascii_case("upgrade")),
        "{head:?}"
    );
    Ok((app, server))
}

#[test]
fn p22_a_websocket_passes_and_ends_from_the_server() {
    over_each_hop(async |way| {
        let (mut app, mut server) = upgraded(way).await?;
        tunnel(&mut app, &mut server).await?;
        server.finish().await?;
        assert!(app.rest().await?.is_empty());
        app.finish().await?;
        assert!(server.rest().await?.is_empty());
        Ok(())
    });
}

#[test]
fn p22_a_websocket_ends_from_the_client() {
    over_each_hop(async |way| {
        let (app, mut server) = upgraded(way).await?;
        drop(app);
        server.ended().await
    });
}

#[test]
fn p22_bytes_sent_right_after_the_switch_are_not_lost() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin(UPGRADE).await?;
        server.head().await?;
        server
            .send(format!("{SWITCHING}hello from the server\n"))
            .await?;
        assert_eq!(app.head().await?.status(), 101);
        assert_eq!(app.line().await?, "hello from the server");
        Ok(())
    });
}

#[test]
fn p22_an_upgrade_reaches_an_endpoint_behind_a_transport_header() {
    // The pod says that its port is opaque, the Service does not: the client's proxy reads HTTP, and tells the server's by
    // a transport header that these are bytes.
    let manifests = Manifests::default()
        .service("web", &[(80, 8080)])
        .annotated_pod(
            "web",
            &[8080],
            &[("config.linkerd.io/opaque-ports", "8080")],
        )
        .pod("client", &[]);
    mesh(manifests, async |net| {
        let (web, client) = (net.start("web").await?, net.start("client").await?);
        let listener = web.listen(8080).await?;
        for request in [GET, UPGRADE] {
            let mut app = client.connect("web:80").await?;
            app.send(request).await?;
            let mut server = listener.accept().await?;
            assert_eq!(
                server.head().await?.field("upgrade").is_some(),
                request == UPGRADE
            );
            if request == GET {
                server.send(OK).await?;
                assert_eq!(app.message().await?.text(), "ok");
                continue;
            }
            server.send(SWITCHING).await?;
            assert_eq!(app.head().await?.status(), 101);
            tunnel(&mut app, &mut server).await?;
        }
        client
            .metric(
                "request_total",
                &[("direction", "outbound"), ("tls", "true")],
                1.0,
            )
            .await?;
        let both = [
            ("direction", "inbound"),
            ("peer", "src"),
            ("tls", "true"),
            ("target_port", "8080"),
        ];
        web.metric("tcp_open_total", &both, 1.0).await?;
        Ok(())
    });
}

#[test]
fn an_upgrade_that_the_server_declines_is_an_ordinary_answer() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin(UPGRADE).await?;
        server.head().await?;
        server.send(OK).await?;
        assert_eq!(app.message().await?.text(), "ok");
        app.send(GET).await?;
        next(way, &mut server).await?;
        server.send(OK).await?;
        assert_eq!(app.message().await?.text(), "ok");
        Ok(())
    });
}

#[test]
fn an_idle_connection_is_not_cut() {
    over(Hop::Both, async |way| {
        let (mut app, mut server) = way.begin(GET).await?;
        server.head().await?;
        server.send(OK).await?;
        app.message().await?;
        app.silent(Duration::from_secs(5)).await?;
        let from = Instant::now();
        app.send(GET).await?;
        next(way, &mut server).await?;
        server.send(OK).await?;
        assert_eq!(app.message().await?.text(), "ok");
        assert!(from.elapsed() < Duration::from_millis(500));
        Ok(())
    });
}
