//! HTTP/1 through the mesh keeps its form, its headers and its bodies. Connections are in `http1_connections`. Ids in names
//! are those of the list of real-world faults.

use std::time::{Duration, Instant};

use weft_e2e::{Hop, over, over_each_hop};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn a_request_arrives_and_is_answered_over_mutual_tls() {
    over(Hop::Both, async |way| {
        let (mut app, mut server) = way
            .begin("GET /a?b=c HTTP/1.1\r\nHost: web\r\n\r\n")
            .await?;
        let head = server.head().await?;
        assert_eq!(head.first, "GET /a?b=c HTTP/1.1");
        server.send(OK).await?;
        let answer = app.message().await?;
        assert_eq!(
            (answer.head.first.as_str(), answer.text().as_str()),
            ("HTTP/1.1 200 OK", "ok")
        );
        way.client
            .metric(
                "request_total",
                &[("direction", "outbound"), ("tls", "true")],
                1.0,
            )
            .await?;
        way.server
            .metric(
                "request_total",
                &[("direction", "inbound"), ("tls", "true")],
                1.0,
            )
            .await?;
        Ok(())
    });
}

#[test]
fn p01_http_1_0_is_served_without_chunks_and_closed() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("GET / HTTP/1.0\r\nHost: web\r\n\r\n").await?;
        let head = server.head().await?;
        assert_eq!(head.field("host"), Some("web"));
        server
            .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .await?;
        let answer = app.message().await?;
        assert_eq!((answer.head.status(), answer.text().as_str()), (200, "ok"));
        assert_eq!(
            answer.head.field("transfer-encoding"),
            None,
            "a 1.0 client cannot read chunks"
        );
        app.ended().await
    });
}

#[test]
fn p01_http_1_0_may_keep_its_connection() {
    over_each_hop(async |way| {
        let request = "GET / HTTP/1.0\r\nHost: web\r\nConnection: keep-alive\r\n\r\n";
        let (mut app, mut server) = way.begin(request).await?;
        server.head().await?;
        server.send(OK).await?;
        let answer = app.message().await?;
        assert!(
            answer
                .head
                .field("connection")
                .is_some_and(|v| v.eq_ignore_ascii_case("keep-alive")),
            "{answer:?}"
        );
        app.send(request).await?;
        server.head().await?;
        server.send(OK).await?;
        assert_eq!(app.message().await?.text(), "ok");
        Ok(())
    });
}

#[test]
fn p02_http_1_0_without_host_is_routed_by_its_destination() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("GET /x HTTP/1.0\r\n\r\n").await?;
        let head = server.head().await?;
        assert!(head.first.starts_with("GET /x HTTP/1."), "{head:?}");
        assert!(
            head.all("host").all(str::is_empty),
            "no Host is invented: {head:?}"
        );
        server.send(OK).await?;
        assert_eq!(app.message().await?.text(), "ok");
        Ok(())
    });
}

#[test]
fn p04_the_form_of_the_target_and_host_are_kept() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way
            .begin("GET /a HTTP/1.1\r\nHost: other.example\r\n\r\n")
            .await?;
        let mut heads = vec![server.head().await?];
        server.send(OK).await?;
        app.message().await?;
        for request in [
            "GET http://web.example:8000/b?c HTTP/1.1\r\nHost: web.example:8000\r\n\r\n",
            "GET //c//d/../e?x=1&y=%20 HTTP/1.1\r\nHost: web\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: web\r\n\r\n",
        ] {
            app.send(request).await?;
            heads.push(server.head().await?);
            server.send(OK).await?;
            app.message().await?;
        }
        let seen: Vec<(&str, Option<&str>)> = heads
            .iter()
            .map(|h| (h.first.as_str(), h.field("host")))
            .collect();
        let wanted = [
            ("GET /a HTTP/1.1", Some("other.example")),
            (
                "GET http://web.example:8000/b?c HTTP/1.1",
                Some("web.example:8000"),
            ),
            ("GET //c//d/../e?x=1&y=%20 HTTP/1.1", Some("web")),
            ("OPTIONS * HTTP/1.1", Some("web")),
        ];
        assert_eq!(seen, wanted);
        Ok(())
    });
}

#[test]
fn p19_unusual_targets_have_one_fate_each() {
    over_each_hop(async |way| {
        way.listener.try_clone()?.serve(|mut wire| async move {
            loop {
                let seen = wire.message().await?.head.first;
                wire.send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{seen}",
                    seen.len()
                ))
                .await?;
            }
        });
        for odd in [
            "{a}", "\"a\"", "a|b", "a^b", "a[1]", "\u{e9}", "%zz", "a\\b", "<a>",
        ] {
            let line = format!("GET /{odd}?{odd} HTTP/1.1");
            let mut fates = std::collections::BTreeSet::new();
            for _ in 0..10 {
                let mut app = way.connect().await?;
                app.send(format!("{line}\r\nHost: web\r\n\r\n")).await?;
                let answer = app.message().await?;
                fates.insert((answer.head.status(), answer.text()));
            }
            let passed = fates == [(200, line.clone())].into();
            let refused = fates == [(400, String::new())].into();
            assert!(passed || refused, "{line:?}: {fates:?}");
        }
        Ok(())
    });
}

#[test]
fn p01_netcat_as_a_client_of_1_0_is_served() {
    over_each_hop(async |way| {
        way.listener.try_clone()?.serve(|mut wire| async move {
            wire.message().await?;
            wire.send(OK).await
        });
        let (host, port) = way.to.split_once(':').unwrap_or_default();
        let mut nc = way.client.spawn("nc", &[host, port])?;
        nc.write(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n").await?;
        // It ends when the server has closed.
        let output = nc.output(Duration::from_secs(5)).await?;
        assert!(
            output.stdout.starts_with("HTTP/1.0 200 OK\r\n") && output.stdout.ends_with("ok"),
            "{output:?}"
        );
        Ok(())
    });
}

#[test]
fn p23_names_of_fields_keep_their_case_without_http2_between() {
    for hop in [Hop::ClientOnly, Hop::ServerOnly] {
        over(hop, async |way| {
            let request = "GET / HTTP/1.1\r\nHost: web\r\nX-CustomID: 1\r\nSOAPAction: x\r\nsoapaction: y\r\n\r\n";
            let (mut app, mut server) = way.begin(request).await?;
            let head = server.head().await?;
            let names: Vec<&str> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
            for name in ["Host", "X-CustomID", "SOAPAction", "soapaction"] {
                assert!(names.contains(&name), "{name} in {names:?}");
            }
            assert_eq!(head.all("soapaction").collect::<Vec<_>>(), ["x", "y"]);
            server
                .send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nWWW-Authenticate: a\r\n\r\n")
                .await?;
            let answer = app.message().await?;
            assert!(
                answer
                    .head
                    .fields
                    .iter()
                    .any(|(name, _)| name == "WWW-Authenticate"),
                "{answer:?}"
            );
            Ok(())
        });
    }
}

#[test]
fn p13_chunks_stream_both_ways_without_waiting_for_the_end() {
    over_each_hop(async |way| {
        let head = "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (mut app, mut server) = way.begin(head).await?;
        assert_eq!(
            server.head().await?.field("transfer-encoding"),
            Some("chunked")
        );
        server
            .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        assert_eq!(
            app.head().await?.field("transfer-encoding"),
            Some("chunked")
        );
        let mut rounds = Vec::new();
        for number in 0..10 {
            let (text, from) = (format!("chunk-{number}"), Instant::now());
            app.send(format!("7\r\n{text}\r\n")).await?;
            assert_eq!(server.chunk().await?.as_deref(), Some(text.as_bytes()));
            server.send(format!("7\r\n{text}\r\n")).await?;
            assert_eq!(app.chunk().await?.as_deref(), Some(text.as_bytes()));
            rounds.push(from.elapsed());
        }
        // The machine may be busy for a while, but a proxy that waits for more waits in each round.
        rounds.sort();
        assert!(rounds[5] < Duration::from_millis(50), "{rounds:?}");
        app.send("0\r\n\r\n").await?;
        assert_eq!(server.chunk().await?, None);
        server.send("0\r\n\r\n").await?;
        assert_eq!(app.chunk().await?, None);
        // The client's connection is good for more; the server's may be another one.
        app.send("GET /again HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        assert_eq!(
            way.listener.accept().await?.head().await?.first,
            "GET /again HTTP/1.1"
        );
        Ok(())
    });
}

#[test]
fn p14_framing_fields_are_equal_on_both_sides() {
    // Request and response as sent; the fields of framing must arrive as they are.
    let exchanges = [
        (
            "GET / HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            "HEAD / HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 123\r\n\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 77\r\n\r\n",
        ),
        (
            "DELETE / HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ),
        (
            "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ),
        (
            "HEAD / HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
        (
            "GET /last HTTP/1.1\r\nHost: web\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
    ];
    let framing = |head: &weft_e2e::Head| {
        let field = |name| head.field(name).map(str::to_owned);
        (field("content-length"), field("transfer-encoding"))
    };
    over_each_hop(async |way| {
        let mut app = way.connect().await?;
        let mut server = None;
        for (request, response) in exchanges {
            app.send(request).await?;
            // One connection to the server for all of them.
            let server = match &mut server {
                Some(server) => server,
                none => none.insert(way.listener.accept().await?),
            };
            let sent = head_of(request);
            let arrived = server.message().await?;
            assert_eq!(framing(&arrived.head), framing(&sent), "{request:?}");
            server.send(response).await?;
            let (sent, arrived) = (head_of(response), app.head().await?);
            if request.starts_with("HEAD") && sent.field("transfer-encoding").is_some() {
                // A transfer coding without a body may be left out (RFC 9112 section 6.1); nothing may be made up.
                assert_eq!(
                    arrived.field("content-length"),
                    None,
                    "{request:?} {response:?}"
                );
            } else {
                assert_eq!(
                    framing(&arrived),
                    framing(&sent),
                    "{request:?} {response:?}"
                );
            }
            if !request.starts_with("HEAD") && sent.status() == 200 {
                let body = app.body(&arrived).await?;
                assert_eq!(body.len(), if response.ends_with("ok") { 2 } else { 0 });
            }
        }
        Ok(())
    });
}

fn head_of(text: &str) -> weft_e2e::Head {
    weft_e2e::Head::parse(text.split("\r\n\r\n").next().unwrap_or_default())
}

#[test]
fn expect_100_continue_is_decided_by_the_server() {
    over_each_hop(async |way| {
        let head =
            "PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        let (mut app, mut server) = way.begin(head).await?;
        let seen = server.head().await?;
        assert_eq!(
            (seen.field("expect"), seen.field("content-length")),
            (Some("100-continue"), Some("4"))
        );
        server.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
        assert_eq!(app.head().await?.status(), 100);
        app.send("body").await?;
        assert_eq!(server.exactly(4).await?, b"body");
        server.send(OK).await?;
        assert_eq!(app.message().await?.head.status(), 200);
        Ok(())
    });
}

#[test]
fn a_refused_expectation_is_passed_on() {
    over_each_hop(async |way| {
        let head =
            "PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        let (mut app, mut server) = way.begin(head).await?;
        server.head().await?;
        server
            .send("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n")
            .await?;
        assert_eq!(app.head().await?.status(), 417);
        Ok(())
    });
}

#[test]
fn a_server_that_ignores_the_expectation_gets_the_body_all_the_same() {
    over_each_hop(async |way| {
        let head =
            "PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        let (mut app, mut server) = way.begin(&format!("{head}body")).await?;
        server.head().await?;
        assert_eq!(server.exactly(4).await?, b"body");
        server.send(OK).await?;
        let mut answer = app.message().await?;
        if answer.head.status() == 100 {
            answer = app.message().await?;
        }
        assert_eq!(answer.text(), "ok");
        Ok(())
    });
}

#[test]
fn curl_uploads_and_downloads_with_all_its_defaults() {
    over_each_hop(async |way| {
        let size = 1_500_000;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "x".repeat(size))?;
        let (url, data) = (
            format!("http://{}/up", way.to),
            format!("@{}", file.path().display()),
        );
        let arguments = ["--data-binary", &data, "-w", "%{http_code}", &url];
        let curl = way.client.curl(&arguments);
        let server = async {
            let mut server = way.listener.accept().await?;
            let head = server.head().await?;
            if head.field("expect").is_some() {
                server.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            assert_eq!(server.body(&head).await?.len(), size);
            server
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n{}",
                    "y".repeat(size)
                ))
                .await
        };
        let (output, served) = tokio::join!(curl, server);
        served?;
        assert_eq!(output?, "y".repeat(size) + "200");
        Ok(())
    });
}

#[test]
fn hop_by_hop_fields_stay_on_their_hop() {
    over_each_hop(async |way| {
        let request = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close-me, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                       Proxy-Connection: keep-alive\r\nUpgrade-Insecure-Requests: 1\r\nX-End: 2\r\n\r\n";
        let (mut app, mut server) = way.begin(request).await?;
        let head = server.head().await?;
        for gone in ["connection", "x-hop", "keep-alive", "proxy-connection"] {
            assert_eq!(head.field(gone), None, "{gone}: {head:?}");
        }
        assert_eq!(
            (head.field("x-end"), head.field("upgrade-insecure-requests")),
            (Some("2"), Some("1"))
        );
        server.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x-hop\r\nx-hop: 1\r\nx-end: 2\r\n\r\n").await?;
        let head = app.head().await?;
        assert_eq!(
            (head.field("x-hop"), head.field("x-end")),
            (None, Some("2"))
        );
        Ok(())
    });
}

#[test]
fn nothing_of_the_mesh_reaches_the_application() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        let head = server.head().await?;
        let ours = head
            .fields
            .iter()
            .filter(|(name, _)| name.starts_with("l5d-"))
            .map(|(name, _)| name.as_str());
        let wanted: &[&str] = if way.hop == Hop::Both {
            &["l5d-client-id"]
        } else {
            &[]
        };
        assert_eq!(ours.collect::<Vec<_>>(), wanted);
        server.send(OK).await?;
        let head = app.message().await?.head;
        assert!(
            !head.fields.iter().any(|(name, _)| name.starts_with("l5d-")),
            "{head:?}"
        );
        Ok(())
    });
}

#[test]
fn p26_a_forged_client_id_is_replaced_by_the_verified_one() {
    over_each_hop(async |way| {
        let forged = "GET / HTTP/1.1\r\nHost: web\r\nl5d-client-id: admin.demo\r\nL5D-Client-ID: root.demo\r\n\r\n";
        let (_app, mut server) = way.begin(forged).await?;
        let head = server.head().await?;
        let seen: Vec<&str> = head.all("l5d-client-id").collect();
        match way.hop {
            Hop::Both => assert_eq!(
                seen,
                ["client.demo.serviceaccount.identity.linkerd.cluster.local"]
            ),
            Hop::ServerOnly => assert!(seen.is_empty(), "{seen:?}"),
            // Nobody vouches for it where the server has no proxy.
            Hop::ClientOnly => {}
        }
        Ok(())
    });
}

#[test]
fn p21_large_heads_pass_up_to_128_kib_and_get_431_above() {
    over_each_hop(async |way| {
        let mut app = way.connect().await?;
        let mut server = None;
        for kib in [8, 15, 17, 64, 120] {
            let value = "v".repeat(kib << 10);
            app.send(format!(
                "GET / HTTP/1.1\r\nHost: web\r\nx-large: {value}\r\n\r\n"
            ))
            .await?;
            let server = match &mut server {
                Some(server) => server,
                none => none.insert(way.listener.accept().await?),
            };
            let head = server.head().await?;
            assert_eq!(head.field("x-large").map(str::len), Some(value.len()));
            server
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-large: {value}\r\n\r\n"
                ))
                .await?;
            assert_eq!(
                app.head().await?.field("x-large").map(str::len),
                Some(value.len())
            );
        }
        for kib in [200, 600] {
            let mut app = way.connect().await?;
            let request = format!(
                "GET / HTTP/1.1\r\nHost: web\r\nx-large: {}\r\n\r\n",
                "v".repeat(kib << 10)
            );
            // The answer may come before all of it is taken.
            let _ = app.send(request).await;
            assert_eq!(app.head().await?.status(), 431, "{kib} KiB");
        }
        Ok(())
    });
}

#[test]
fn p21_long_targets_and_many_fields_pass() {
    over_each_hop(async |way| {
        let (target, fields) = (
            "q".repeat(9 << 10),
            (0..150)
                .map(|n| format!("x-{n}: {n}\r\n"))
                .collect::<String>(),
        );
        let request = format!("GET /?{target} HTTP/1.1\r\nHost: web\r\n{fields}\r\n");
        let (_app, mut server) = way.begin(&request).await?;
        let head = server.head().await?;
        assert_eq!(head.first.len(), "GET /? HTTP/1.1".len() + target.len());
        assert_eq!(
            head.fields
                .iter()
                .filter(|(name, _)| name.starts_with("x-"))
                .count(),
            150
        );
        Ok(())
    });
}
