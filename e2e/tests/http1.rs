//! HTTP/1 through the mesh keeps its form, framing and connections. Case ids are those of the list of real-world faults.

use weft_e2e::{Manifests, Net, Node, Wire, mesh};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn manifests() -> Manifests {
    Manifests::default().service("web", &[(80, 8080)]).pod("web", &[8080]).pod("client", &[])
}

async fn start(net: &Net) -> anyhow::Result<(Node, Node)> {
    Ok((net.start("web").await?, net.start("client").await?))
}

#[test]
fn a_request_arrives_over_mutual_tls_and_is_answered() {
    mesh(manifests(), async |net| {
        let (web, client) = start(net).await?;
        let listener = web.listen(8080).await?;
        let mut app = client.connect("web:80").await?;
        app.send("GET /a?b=c HTTP/1.1\r\nHost: web\r\n\r\n").await?;
        let mut server = listener.accept().await?;
        let head = server.head().await?;
        assert_eq!(head.first, "GET /a?b=c HTTP/1.1");
        assert_eq!(head.field("host"), Some("web"));
        server.send(OK).await?;
        let answer = app.message().await?;
        assert_eq!((answer.head.status(), answer.text().as_str()), (200, "ok"));
        client.metric("request_total", &[("direction", "outbound"), ("tls", "true")], 1.0).await?;
        web.metric("request_total", &[("direction", "inbound"), ("tls", "true")], 1.0).await?;
        Ok(())
    });
}

#[test]
fn p01_http_1_0_is_served_and_closed() {
    mesh(manifests(), async |net| {
        let (web, client) = start(net).await?;
        let listener = web.listen(8080).await?;
        let mut app = client.connect("web:80").await?;
        app.send("GET / HTTP/1.0\r\nHost: web\r\n\r\n").await?;
        let mut server = listener.accept().await?;
        let head = server.head().await?;
        assert_eq!(head.field("host"), Some("web"));
        server.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await?;
        let answer = app.message().await?;
        assert_eq!(answer.head.field("transfer-encoding"), None, "a 1.0 client cannot read chunks");
        assert_eq!(answer.text(), "ok");
        app.ended().await
    });
}
