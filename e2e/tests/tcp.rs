//! Bytes that are not HTTP through the mesh: opaque ports, unknown protocols, half-closed connections, the application's
//! own TLS. Which connections are refused is in `ports`.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep};
use weft_e2e::{Hop, Manifests, Net, Node, Way, Wire, eventually, mesh, over_each_hop, peers};

/// A port that is opaque by default (contract 10.1), behind a Service with a ClusterIP and one without.
fn database(pod: impl FnOnce(Manifests) -> Manifests) -> Manifests {
    let headless = "{apiVersion: v1, kind: Service, metadata: {name: db-headless, namespace: demo}, \
                    spec: {clusterIP: None, selector: {app: db}, ports: [{port: 3306}]}}";
    pod(Manifests::default())
        .service("db", &[(3306, 3306)])
        .yaml(headless)
        .pod("client", &[])
}

/// The first byte comes within 100 ms; the machine may be busy once or twice.
async fn greeted_at_once(client: &Node, addr: &str) -> anyhow::Result<Wire> {
    let mut times = Vec::new();
    loop {
        let from = Instant::now();
        let mut wire = client.connect(addr).await?;
        let line = wire.line().await.with_context(|| format!("to {addr}"))?;
        times.push(from.elapsed());
        ensure!(line == "5.7 greetings", "{addr}: {line}");
        if from.elapsed() < Duration::from_millis(100) {
            return Ok(wire);
        }
        ensure!(times.len() < 3, "{addr}: the first byte took {times:?}");
    }
}

async fn start_database(net: &Net) -> anyhow::Result<(Node, Node)> {
    let (db, client) = (net.start("db").await?, net.start("client").await?);
    peers::banner(db.listen(3306).await?, "5.7 greetings");
    // Until it is known as an endpoint, a connection waits for it.
    eventually(
        "the database is an endpoint",
        Duration::from_secs(5),
        async || {
            let mut wire = client.connect("db:3306").await?;
            Ok(wire.line().await.ok())
        },
    )
    .await?;
    Ok((db, client))
}

#[test]
fn t02_a_server_that_speaks_first_is_heard_at_once_on_an_opaque_port() {
    mesh(database(|all| all.pod("db", &[3306])), async |net| {
        let (db, client) = start_database(net).await?;
        for addr in ["db:3306".to_owned(), format!("{}:3306", db.ip())] {
            let mut wire = greeted_at_once(&client, &addr).await?;
            wire.send("select\n").await?;
            assert_eq!(wire.line().await?, "select");
        }
        let both = [
            ("direction", "inbound"),
            ("peer", "src"),
            ("tls", "true"),
            ("target_port", "3306"),
        ];
        let page = db.metric("tcp_open_total", &both, 2.0).await?;
        let id = "client.demo.serviceaccount.identity.linkerd.cluster.local";
        assert!(
            page.sum(
                "tcp_open_total",
                &[("target_port", "3306"), ("client_id", id)]
            ) >= 2.0
        );
        Ok(())
    });
}

#[test]
fn t02_also_where_the_server_is_not_in_the_mesh_or_not_known_to_it() {
    mesh(database(|all| all.stranger("db", &[3306])), async |net| {
        let (db, client) = start_database(net).await?;
        // An address of no pod stands for one outside the cluster.
        let added = db
            .run("ip", &["addr", "add", "10.88.99.99/16", "dev", "eth0"])
            .await?;
        ensure!(added.code == Some(0), "{added:?}");
        for addr in [
            "db:3306".to_owned(),
            format!("{}:3306", db.ip()),
            "10.88.99.99:3306".to_owned(),
        ] {
            greeted_at_once(&client, &addr).await?;
        }
        Ok(())
    });
}

#[test]
fn an_annotation_makes_a_port_opaque() {
    let opaque = [("config.linkerd.io/opaque-ports", "9000")];
    let manifests = Manifests::default()
        .annotated_service("web", &[(9000, 9000)], &opaque)
        .annotated_pod("web", &[9000], &opaque)
        .pod("client", &[]);
    mesh(manifests, async |net| {
        let (web, client) = (net.start("web").await?, net.start("client").await?);
        peers::banner(web.listen(9000).await?, "5.7 greetings");
        client.connect("web:9000").await?.line().await?;
        greeted_at_once(&client, "web:9000").await?;
        Ok(())
    });
}

#[test]
fn an_unknown_protocol_passes_and_loses_nothing() {
    over_each_hop(async |way| {
        for first in [
            b"\x00\x01\x02binary\n".as_slice(),
            b"* OK IMAP4 is not HTTP\n",
            b"GET\tlost\n",
        ] {
            let mut app = way.connect().await?;
            app.send(first).await?;
            let mut server = way.listener.accept().await?;
            assert_eq!(server.exactly(first.len()).await?, first);
            server.send("answer\n").await?;
            assert_eq!(app.line().await?, "answer");
        }
        Ok(())
    });
}

#[test]
fn each_side_may_finish_first() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("\x00client says\n").await?;
        assert_eq!(server.line().await?, "\0client says");
        app.finish().await?;
        assert!(server.rest().await?.is_empty());
        sleep(Duration::from_millis(50)).await;
        server.send("server goes on\n").await?;
        assert_eq!(app.line().await?, "server goes on");
        server.finish().await?;
        assert!(app.rest().await?.is_empty());

        let (mut app, mut server) = way.begin("\x00client says\n").await?;
        server.line().await?;
        server.finish().await?;
        assert!(app.rest().await?.is_empty());
        sleep(Duration::from_millis(50)).await;
        app.send("client goes on\n").await?;
        assert_eq!(server.line().await?, "client goes on");
        app.finish().await?;
        assert!(server.rest().await?.is_empty());
        no_connection_is_left(way).await
    });
}

#[test]
fn a_reset_is_passed_on() {
    over_each_hop(async |way| {
        let (app, mut server) = way.begin("\x00client says\n").await?;
        server.line().await?;
        app.reset()?;
        server.ended().await?;
        let (mut app, mut server) = way.begin("\x00client says\n").await?;
        server.line().await?;
        server.reset()?;
        app.ended().await?;
        no_connection_is_left(way).await
    });
}

async fn no_connection_is_left(way: &Way) -> anyhow::Result<()> {
    for (node, direction) in [(&way.client, "outbound"), (&way.server, "inbound")] {
        let meshed = match way.hop {
            Hop::Both => true,
            Hop::ClientOnly => direction == "outbound",
            Hop::ServerOnly => direction == "inbound",
        };
        if meshed {
            // The admin port, by which we look, aside.
            eventually(
                "all connections are closed",
                Duration::from_secs(2),
                async || {
                    let page = node.metrics().await?;
                    let side = [("direction", direction)];
                    let open = page.find("tcp_open_connections", &side);
                    let open = open.filter(|s| {
                        s.labels
                            .get("target_port")
                            .is_none_or(|port| port != "4191")
                    });
                    let open: Vec<_> = open.filter(|sample| sample.value != 0.0).collect();
                    Ok(open.is_empty().then_some(()))
                },
            )
            .await?;
        }
    }
    Ok(())
}

#[test]
fn a_large_transfer_arrives_bit_for_bit_in_both_directions() {
    over_each_hop(async |way| {
        let total = if way.hop == Hop::Both {
            100 << 20
        } else {
            30 << 20
        };
        let (app, mut server) = way.begin("\x00start\n").await?;
        server.line().await?;
        let (app, server) = (&mut app.into_stream(), &mut server.into_stream());
        let ((mut app_read, mut app_write), (mut server_read, mut server_write)) =
            (app.split(), server.split());
        let (up, down) = (pattern(1), pattern(2));
        tokio::try_join!(
            write_pattern(&mut app_write, &up, total),
            read_pattern(&mut server_read, &up, total),
            write_pattern(&mut server_write, &down, total),
            read_pattern(&mut app_read, &down, total),
        )?;
        Ok(())
    });
}

/// Bytes that do not repeat within any buffer; their length is no power of two.
fn pattern(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..1_000_003).map(|_| byte()).collect()
}

async fn write_pattern(
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    pattern: &[u8],
    total: usize,
) -> anyhow::Result<()> {
    let mut sent = 0;
    while sent < total {
        let at = sent % pattern.len();
        let piece = &pattern[at..pattern.len().min(at + total - sent)];
        tokio::io::AsyncWriteExt::write_all(to, piece).await?;
        sent += piece.len();
    }
    Ok(tokio::io::AsyncWriteExt::shutdown(to).await?)
}

async fn read_pattern(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    pattern: &[u8],
    total: usize,
) -> anyhow::Result<()> {
    let (mut seen, mut buffer) = (0, vec![0; 256 << 10]);
    loop {
        let count = tokio::io::AsyncReadExt::read(from, &mut buffer).await?;
        if count == 0 {
            ensure!(seen == total, "{seen} of {total} bytes came");
            return Ok(());
        }
        let mut read = &buffer[..count];
        while !read.is_empty() {
            let wanted = &pattern[seen % pattern.len()..];
            let length = read.len().min(wanted.len());
            ensure!(
                read[..length] == wanted[..length],
                "bytes differ after {seen}"
            );
            (seen, read) = (seen + length, &read[length..]);
        }
    }
}

#[test]
fn a_slow_reader_holds_the_sender_back() {
    over_each_hop(async |way| {
        let (mut app, mut server) = way.begin("\x00start\n").await?;
        server.line().await?;
        let (block, mut sent) = (vec![7; 64 << 10], 0);
        while tokio::time::timeout(Duration::from_millis(300), server.send(&block))
            .await
            .is_ok()
        {
            sent += block.len();
            ensure!(
                sent < 200 << 20,
                "nobody reads, but {sent} bytes were taken"
            );
        }
        let read = app.exactly(sent).await?;
        assert!(read.iter().all(|byte| *byte == 7));
        Ok(())
    });
}

#[test]
fn t03_many_short_connections_leave_nothing_behind() {
    over_each_hop(async |way| {
        way.listener.try_clone()?.serve(|mut wire| async move {
            wire.some().await?;
            wire.send("bye\n").await
        });
        let node = if way.hop == Hop::ServerOnly {
            &way.server
        } else {
            &way.client
        };
        let before = node.metrics().await?.sum("process_open_fds", &[]);
        for _ in 0..200 {
            let mut app = way.connect().await?;
            app.send("\x00hello\n").await?;
            assert_eq!(app.line().await?, "bye");
            app.ended().await?;
        }
        no_connection_is_left(way).await?;
        let after = node.metrics().await?.sum("process_open_fds", &[]);
        // Streams to the control plane may have come since.
        ensure!(
            after <= before + 8.0,
            "{before} descriptors before, {after} after"
        );
        Ok(())
    });
}

#[test]
fn a_pool_of_idle_connections_costs_little() {
    over_each_hop(async |way| {
        let node = if way.hop == Hop::ServerOnly {
            &way.server
        } else {
            &way.client
        };
        let (mut pairs, before) = (Vec::new(), node.proxy_memory().await?);
        for _ in 0..200 {
            pairs.push(way.begin("\x00idle\n").await?);
        }
        let grown = node.proxy_memory().await?.saturating_sub(before);
        ensure!(grown < 16 << 10, "200 idle connections cost {grown} KiB");
        Ok(())
    });
}
