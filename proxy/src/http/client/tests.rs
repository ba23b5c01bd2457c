//! Connections to a server: which are kept, which are given up, what is sent again.

use super::*;
use crate::testing;
use bytes::BytesMut;
use http_body_util::BodyExt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU32;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn client(addr: SocketAddr) -> Client {
    let (context, _) = testing::outbound(&[]);
    let connector = Connector {
        addr,
        other: None,
        tls: None,
        header: None,
        timeout: Duration::from_secs(1),
        socket: Default::default(),
        series: context.metrics.tcp.series(Default::default()),
    };
    Client::new(connector, context.client)
}

/// A server that handles each connection with `serve` and counts them.
async fn server<F>(
    serve: impl Fn(TcpStream, u32) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicU32>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(io, counted.fetch_add(1, Ordering::Relaxed)));
        }
    });
    (addr, count)
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Answers each request that ends in `end`.
async fn answer_all(mut io: TcpStream, end: &'static [u8]) {
    let mut seen = BytesMut::new();
    while io.read_buf(&mut seen).await.is_ok_and(|n| n > 0) {
        if seen.ends_with(end) {
            seen.clear();
            io.write_all(ANSWER).await.unwrap();
        }
    }
}

fn request(method: Method, body: &'static str) -> Box<Request<Body>> {
    let request = Request::builder()
        .method(method)
        .uri("/")
        .header("host", "app")
        .header("content-length", body.len())
        .body(Body::full(body));
    Box::new(request.unwrap())
}

async fn ask(client: &Client, request: Box<Request<Body>>) -> Result<(), String> {
    let response = client
        .send(Version::Http1, request, || {})
        .await
        .map_err(|e| match e {
            SendError::Unsent(_, error) => error.to_string(),
            SendError::Failed(error) => error.to_string(),
        })?;
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|e| e.to_string())?;
    assert_eq!(body.to_bytes(), "ok");
    Ok(())
}

#[tokio::test]
async fn a_connection_is_used_again_with_and_without_a_request_body() {
    let (addr, count) = server(|io, _| answer_all(io, b"!")).await;
    let with_body = client(addr);
    for _ in 0..3 {
        ask(&with_body, request(Method::POST, "hello!"))
            .await
            .unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let (addr, count) = server(|io, _| answer_all(io, b"\r\n\r\n")).await;
    let without = client(addr);
    for _ in 0..3 {
        ask(&without, request(Method::GET, "")).await.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Answers once, and closes when the second request has come, without an answer.
async fn close_on_second(mut io: TcpStream, connection: u32) {
    let mut seen = [0; 1024];
    while io.read(&mut seen).await.is_ok_and(|n| n > 0) {
        if connection == 0 && seen[0] == 0 {
            return;
        }
        io.write_all(ANSWER).await.unwrap();
        if connection == 0 {
            let _ = io.read(&mut seen).await;
            return;
        }
    }
}

#[tokio::test]
async fn a_get_that_meets_a_closing_connection_is_sent_again() {
    let (addr, count) = server(close_on_second).await;
    let client = client(addr);
    for _ in 0..3 {
        ask(&client, request(Method::GET, "")).await.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 2, "case P16");
}

#[tokio::test]
async fn a_post_is_never_sent_twice() {
    let (addr, count) = server(close_on_second).await;
    let client = client(addr);
    ask(&client, request(Method::POST, "x")).await.unwrap();
    assert!(
        ask(&client, request(Method::POST, "x")).await.is_err(),
        "case P16"
    );
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_not_used() {
    let (addr, count) = server(|mut io, _| async move {
        let mut seen = [0; 1024];
        let _ = io.read(&mut seen).await;
        io.write_all(ANSWER).await.unwrap();
    })
    .await;
    let client = client(addr);
    for _ in 0..20 {
        ask(&client, request(Method::POST, "x")).await.unwrap();
        // The end is on its way.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(count.load(Ordering::Relaxed), 20);
}

#[tokio::test]
async fn idle_connections_are_closed_in_time() {
    tokio::time::pause();
    let (addr, _) = server(|io, _| answer_all(io, b"\r\n\r\n")).await;
    let client = client(addr);
    ask(&client, request(Method::GET, "")).await.unwrap();
    assert_eq!(client.idle.connections.lock().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(client.idle.connections.lock().len(), 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(client.idle.connections.lock().len(), 0, "case P17");
}

#[tokio::test]
async fn idle_connections_have_a_limit() {
    let (addr, _) = server(|io, _| answer_all(io, b"\r\n\r\n")).await;
    let client = client(addr);
    let max = client.settings.max_idle;
    let requests = (0..max + 8).map(|_| ask(&client, request(Method::GET, "")));
    for result in futures_util::future::join_all(requests).await {
        result.unwrap();
    }
    assert!(client.idle.connections.lock().len() <= max);
}

#[tokio::test]
async fn a_failed_attempt_is_shared_by_those_who_waited() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let client = client(addr);
    let attempts = (0..50).map(|_| client.send(Version::Http2, request(Method::GET, ""), || {}));
    let mut errors = Vec::new();
    for result in futures_util::future::join_all(attempts).await {
        match result {
            Err(SendError::Unsent(_, error)) => errors.push(error),
            _ => panic!("nobody listens"),
        }
    }
    let first = &errors[0];
    assert!(errors.iter().filter(|e| Arc::ptr_eq(e, first)).count() > 40);
}

#[tokio::test]
async fn http2_requests_share_a_connection() {
    let (addr, count) = server(|io, _| async move {
        let mut connection = h2::server::handshake(io).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            send.send_data(Bytes::from_static(b"ok"), true).unwrap();
        }
    })
    .await;
    let client = client(addr);
    let requests = (0..20).map(|_| async {
        let mut get = request(Method::GET, "");
        *get.uri_mut() = http::Uri::from_static("http://app/");
        *get.version_mut() = http::Version::HTTP_2;
        let response = client.send(Version::Http2, get, || {}).await;
        let Ok(response) = response else {
            panic!("no response")
        };
        response.into_body().collect().await.unwrap().to_bytes()
    });
    for body in futures_util::future::join_all(requests).await {
        assert_eq!(body, "ok");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
