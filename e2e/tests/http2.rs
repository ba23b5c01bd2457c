//! HTTP/2 through the mesh: fields, trailers, resets and flow control, seen frame by frame. gRPC is in `grpc`.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::time::{Instant, sleep, timeout};
use weft_e2e::{Client2, Hop, Server2, Way, eventually, head, over, over_each_hop, read_body};

async fn client(way: &Way) -> anyhow::Result<Client2> {
    Client2::start(way.connect().await?).await
}

/// The server's end of the connection on which a request arrives.
async fn server(way: &Way) -> anyhow::Result<Server2> {
    Server2::start(way.listener.accept().await?).await
}

fn get(path: &str) -> anyhow::Result<Request<()>> {
    Ok(Request::get(format!("http://web{path}")).body(())?)
}

fn post(path: &str) -> anyhow::Result<Request<()>> {
    Ok(Request::post(format!("http://web{path}")).body(())?)
}

#[test]
fn a_request_keeps_its_target_and_fields() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let request = Request::get("http://other.example:81/a//b?c=%20d")
            .header("x-one", "1")
            .header("x-one", "2")
            .header("cookie", "a=b")
            .body(())?;
        let (response, _) = client.send(request, true).await?;
        let mut server = server(way).await?;
        let (seen, mut respond) = server.accept().await?;
        assert_eq!(
            seen.uri().to_string(),
            "http://other.example:81/a//b?c=%20d"
        );
        let ones: Vec<&HeaderValue> = seen.headers().get_all("x-one").iter().collect();
        assert_eq!(ones, ["1", "2"]);
        assert_eq!(seen.headers()["cookie"], "a=b");
        assert!(
            !seen.headers().contains_key("l5d-orig-proto"),
            "{:?}",
            seen.headers()
        );
        respond.send_response(
            Response::builder()
                .status(418)
                .header("x-two", "3")
                .body(())?,
            true,
        )?;
        let response = head(response).await?;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-two"]),
            (418, &HeaderValue::from_static("3"))
        );
        assert!(
            !response
                .headers()
                .keys()
                .any(|name| name.as_str().starts_with("l5d-")),
            "{:?}",
            response.headers()
        );
        Ok(())
    });
}

#[test]
fn p11_te_trailers_arrives() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let request = Request::post("http://web/")
            .header("te", "trailers")
            .body(())?;
        let (_response, _stream) = client.send(request, false).await?;
        let (seen, _respond) = server(way).await?.accept().await?;
        assert_eq!(seen.headers()["te"], "trailers");
        Ok(())
    });
}

#[test]
fn trailers_pass_in_both_directions() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let (response, mut stream) = client.send(post("/")?, false).await?;
        stream.send_data(Bytes::from_static(b"up"), false)?;
        let trailer = |value| {
            HeaderMap::from_iter([(
                HeaderName::from_static("x-sum"),
                HeaderValue::from_static(value),
            )])
        };
        stream.send_trailers(trailer("1"))?;
        let mut server = server(way).await?;
        let (seen, mut respond) = server.accept().await?;
        let (body, trailers) = read_body(seen.into_body()).await?;
        assert_eq!(
            (body.as_slice(), trailers),
            (b"up".as_slice(), Some(trailer("1")))
        );
        let mut stream = respond.send_response(Response::new(()), false)?;
        stream.send_data(Bytes::from_static(b"down"), false)?;
        stream.send_trailers(trailer("2"))?;
        let (body, trailers) = read_body(head(response).await?.into_body()).await?;
        assert_eq!(
            (body.as_slice(), trailers),
            (b"down".as_slice(), Some(trailer("2")))
        );
        Ok(())
    });
}

#[test]
fn p21_large_heads_pass_and_too_large_ones_end_only_their_stream() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let large = |kib: usize| {
            Request::get("http://web/")
                .header("x-large", "v".repeat(kib << 10))
                .body(())
        };
        let (first, _) = client.send(get("/first")?, true).await?;
        let mut server = server(way).await?;
        let (_, mut first_respond) = server.accept().await?;
        for kib in [8, 17, 64, 100] {
            let (response, _) = client.send(large(kib)?, true).await?;
            let (seen, mut respond) = server.accept().await?;
            assert_eq!(seen.headers()["x-large"].len(), kib << 10);
            let large = Response::builder()
                .header("x-large", "v".repeat(kib << 10))
                .body(())?;
            respond.send_response(large, true)?;
            assert_eq!(head(response).await?.headers()["x-large"].len(), kib << 10);
        }
        let (response, _) = client.send(large(200)?, true).await?;
        assert_eq!(head(response).await?.status(), 431);
        first_respond.send_response(Response::new(()), true)?;
        assert_eq!(
            head(first).await?.status(),
            200,
            "other streams are not affected"
        );
        Ok(())
    });
}

#[test]
fn h13_a_cancelled_request_is_cancelled_at_the_server_and_is_no_failure() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let (keep, _keep_stream) = client.send(post("/keep")?, false).await?;
        let mut server = server(way).await?;
        let (_, mut keep_respond) = server.accept().await?;
        for _ in 0..20 {
            let (response, mut stream) = client.send(post("/cancel")?, false).await?;
            let (_, mut respond) = server.accept().await?;
            stream.send_reset(Reason::CANCEL);
            drop((response, stream));
            let reset = std::future::poll_fn(|cx| respond.poll_reset(cx));
            assert_eq!(
                timeout(Duration::from_secs(5), reset).await??,
                Reason::CANCEL
            );
        }
        keep_respond.send_response(Response::new(()), true)?;
        assert_eq!(
            head(keep).await?.status(),
            200,
            "other streams are not affected"
        );
        if way.hop != Hop::ServerOnly {
            let page = way
                .client
                .metric("response_total", &[("direction", "outbound")], 1.0)
                .await?;
            assert_eq!(
                page.sum(
                    "response_total",
                    &[("direction", "outbound"), ("classification", "failure")]
                ),
                0.0
            );
        }
        Ok(())
    });
}

#[test]
fn a_reset_by_the_server_reaches_the_client_with_its_reason() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let mut server_end = None;
        for reason in [
            Reason::INTERNAL_ERROR,
            Reason::ENHANCE_YOUR_CALM,
            Reason::CANCEL,
        ] {
            let (response, _) = client.send(get("/")?, true).await?;
            let server = match &mut server_end {
                Some(server) => server,
                none => none.insert(server(way).await?),
            };
            let (_, mut respond) = server.accept().await?;
            respond.send_reset(reason);
            let error = timeout(Duration::from_secs(5), response)
                .await?
                .err()
                .context("it was reset")?;
            assert_eq!(error.reason(), Some(reason));
        }
        Ok(())
    });
}

#[test]
fn a_reset_amid_the_body_breaks_the_body_off() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let (response, _) = client.send(get("/")?, true).await?;
        let mut server = server(way).await?;
        let (_, mut respond) = server.accept().await?;
        let mut stream = respond.send_response(Response::new(()), false)?;
        stream.send_data(Bytes::from_static(b"half"), false)?;
        let mut body = head(response).await?.into_body();
        assert_eq!(body.data().await.context("data")??, "half");
        stream.send_reset(Reason::INTERNAL_ERROR);
        let error = timeout(Duration::from_secs(5), body.data())
            .await?
            .context("no end")?
            .err()
            .context("an error")?;
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
        Ok(())
    });
}

#[test]
fn h14_an_http1_client_gets_502_at_once_when_the_carrying_stream_is_reset() {
    over(Hop::Both, async |way| {
        // The server resets its HTTP/1 connection: the proxies reset the stream between them.
        let (mut app, mut server) = way.begin("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        server.head().await?;
        let from = Instant::now();
        server.reset()?;
        let answer = app.message().await?;
        assert_eq!(answer.head.status(), 502);
        assert!(
            from.elapsed() < Duration::from_millis(500),
            "{:?}",
            from.elapsed()
        );
        // What proxies say to each other is not for the application (contract 4.7).
        assert_eq!(answer.head.field("l5d-proxy-error"), None);
        idle(way).await
    });
}

/// The proxies do nothing while nothing happens (case T18).
async fn idle(way: &Way) -> anyhow::Result<()> {
    for node in [&way.client, &way.server] {
        let before = node.proxy_cpu().await?;
        sleep(Duration::from_millis(500)).await;
        let used = node.proxy_cpu().await? - before;
        assert!(
            used <= Duration::from_millis(30),
            "{used:?} in half a second"
        );
    }
    Ok(())
}

#[test]
fn a_goaway_moves_new_requests_and_lets_old_ones_finish() {
    over(Hop::ClientOnly, async |way| {
        let client = client(way).await?;
        let (old, _) = client.send(get("/old")?, true).await?;
        let mut connection =
            h2::server::handshake(way.listener.accept().await?.into_stream()).await?;
        let (_, mut respond) = connection.accept().await.context("a request")??;
        connection.graceful_shutdown();
        let driver = tokio::spawn(async move { while connection.accept().await.is_some() {} });
        // The proxy knows of it when it has read it, which cannot be seen from outside.
        sleep(Duration::from_millis(100)).await;
        let (new, _) = client.send(get("/new")?, true).await?;
        let mut second = server(way).await?;
        let (seen, mut respond_new) = second.accept().await?;
        assert_eq!(seen.uri().path(), "/new");
        respond_new.send_response(Response::new(()), true)?;
        assert_eq!(head(new).await?.status(), 200);
        respond.send_response(Response::new(()), true)?;
        assert_eq!(head(old).await?.status(), 200);
        driver.abort();
        Ok(())
    });
}

#[test]
fn a_slow_reader_holds_the_sender_back_and_the_proxies_stay_small() {
    over_each_hop(async |way| {
        let client = client(way).await?;
        let (response, _) = client.send(get("/")?, true).await?;
        let mut server = server(way).await?;
        let (_, mut respond) = server.accept().await?;
        let mut stream = respond.send_response(Response::new(()), false)?;
        let mut body = head(response).await?.into_body();
        let before = memory(way).await?;
        // As much as is taken without anybody reading.
        let mut taken = 0;
        while let Ok(sent) = timeout(Duration::from_millis(500), send_some(&mut stream)).await {
            taken += sent?;
            assert!(
                taken < 64 << 20,
                "nobody reads, but {taken} bytes were taken"
            );
        }
        let grown = memory(way).await?.saturating_sub(before);
        assert!(grown < 16 << 10, "the proxies grew by {grown} KiB");
        // And everything arrives once it is read.
        let mut read = 0;
        while read < taken {
            let data = timeout(Duration::from_secs(5), body.data())
                .await?
                .context("no end")??;
            body.flow_control().release_capacity(data.len())?;
            read += data.len();
        }
        Ok(())
    });
}

async fn send_some(stream: &mut h2::SendStream<Bytes>) -> anyhow::Result<usize> {
    stream.reserve_capacity(16 << 10);
    let room = std::future::poll_fn(|cx| stream.poll_capacity(cx))
        .await
        .context("the stream is open")??;
    stream.send_data(Bytes::from(vec![1; room]), false)?;
    Ok(room)
}

async fn memory(way: &Way) -> anyhow::Result<u64> {
    let mut sum = 0;
    for node in [&way.client, &way.server] {
        sum += node.proxy_memory().await.unwrap_or_default();
    }
    Ok(sum)
}

#[test]
fn a_slow_http1_reader_holds_the_sender_back_too() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        server.head().await?;
        server
            .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        app.head().await?;
        let before = memory(way).await?;
        let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
        let mut chunks = 0;
        while timeout(Duration::from_millis(500), server.send(&chunk))
            .await
            .is_ok()
        {
            chunks += 1;
            assert!(
                chunks < 1024,
                "nobody reads, but {chunks} chunks of 64 KiB were taken"
            );
        }
        let grown = memory(way).await?.saturating_sub(before);
        assert!(grown < 16 << 10, "the proxies grew by {grown} KiB");
        let mut read = 0;
        while read < chunks * 0x10000 {
            read += app.chunk().await?.context("the body goes on")?.len();
        }
        Ok(())
    });
}

#[test]
fn many_streams_share_a_connection_between_the_proxies() {
    over(Hop::Both, async |way| {
        weft_e2e::peers::http(way.listener.try_clone()?, "web");
        let url = format!("http://{}/?bytes=10", way.to);
        let output = way
            .client
            .run("h2load", &["-n", "2000", "-c", "4", "-m", "16", &url])
            .await?;
        assert!(
            output
                .stdout
                .contains("2000 succeeded, 0 failed, 0 errored"),
            "{output:?}"
        );
        assert!(output.stdout.contains("2000 2xx"), "{output:?}");
        let out = [("direction", "outbound"), ("classification", "success")];
        let page = way.client.metric("response_total", &out, 2000.0).await?;
        let opened = page.sum(
            "tcp_open_total",
            &[("direction", "outbound"), ("peer", "dst")],
        );
        assert!(opened <= 4.0, "{opened} connections between the proxies");
        let page = way
            .server
            .metric(
                "response_total",
                &[("direction", "inbound"), ("tls", "true")],
                2000.0,
            )
            .await?;
        assert_eq!(
            page.sum(
                "request_total",
                &[("direction", "inbound"), ("tls", "true")]
            ),
            2000.0
        );
        Ok(())
    });
}

#[test]
fn h2load_with_http1_succeeds_on_every_hop() {
    over_each_hop(async |way| {
        weft_e2e::peers::http(way.listener.try_clone()?, "web");
        let url = format!("http://{}/?bytes=10", way.to);
        let output = way
            .client
            .run("h2load", &["--h1", "-n", "1000", "-c", "10", &url])
            .await?;
        assert!(
            output
                .stdout
                .contains("1000 succeeded, 0 failed, 0 errored"),
            "{output:?}"
        );
        eventually(
            "the proxy's sockets to the server stay few",
            Duration::from_secs(1),
            async || Ok(Some(())),
        )
        .await
    });
}
