//! The admin server that every service of the control plane has: `/ping`, `/live`, `/ready`, `/metrics` (contract 2.5, last point).
//! Not the proxy's admin server, which can do more.

use crate::metrics::Registry;
use crate::net;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Kubelet, Prometheus and a person: anything beyond this waits.
const CONNECTIONS_MAX: usize = 64;
/// From one request to the end of the next one's head; ends idle connections too. Prometheus scrapes every 15 s to 60 s.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// The longest a connection lives, so that a peer that stops reading does not keep its place.
const CONNECTION_MAX: Duration = Duration::from_secs(15 * 60);
const HEAD_MAX: usize = 16 * 1024;
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

type Reply = Response<Full<Bytes>>;

/// Serves until `shutdown`; connections end with it.
///
/// `ready` is asked at each `/ready`: its error is the answer's text, with status 500. `/metrics` writes `metrics` as it is.
pub async fn serve<R>(
    listener: TcpListener,
    ready: R,
    metrics: Arc<Registry>,
    shutdown: CancellationToken,
) where
    R: Fn() -> Result<(), String> + Send + Sync + 'static,
{
    if let Ok(addr) = listener.local_addr() {
        tracing::info!(%addr, "admin server listening");
    }
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let ready = Arc::new(ready);
    loop {
        let (stream, place) = tokio::select! {
            () = shutdown.cancelled() => return,
            next = next_connection(&listener, places.clone()) => next,
        };
        let (ready, metrics, shutdown) = (ready.clone(), metrics.clone(), shutdown.clone());
        tokio::spawn(async move {
            let connection =
                serve_connection(stream, move |request| reply(request, &*ready, &metrics));
            tokio::select! {
                () = shutdown.cancelled() => {}
                _ = tokio::time::timeout(CONNECTION_MAX, connection) => {}
            }
            drop(place);
        });
    }
}

/// Waits for a place first: connections beyond the limit stay in the kernel's queue.
async fn next_connection(
    listener: &TcpListener,
    places: Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = places
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    let (stream, _) = net::accept(listener).await;
    (stream, place)
}

async fn serve_connection(
    stream: TcpStream,
    reply: impl Fn(&Request<hyper::body::Incoming>) -> Reply,
) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(reply(&request))));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended early");
    }
}

fn reply<B>(
    request: &Request<B>,
    ready: &dyn Fn() -> Result<(), String>,
    metrics: &Registry,
) -> Reply {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD\n".to_owned(),
        );
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/ping" => text(StatusCode::OK, "pong\n".to_owned()),
        "/live" => text(StatusCode::OK, "ok\n".to_owned()),
        "/ready" => match ready() {
            Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
            Err(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")),
        },
        "/metrics" => {
            let mut answer = text(StatusCode::OK, metrics.encode());
            answer.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
            answer
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; there are /ping, /live, /ready and /metrics\n".to_owned(),
        ),
    }
}

fn text(status: StatusCode, body: String) -> Reply {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, PLAIN);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(addr: std::net::SocketAddr, head: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.expect("connect");
        let request = format!("{head}\r\nhost: admin\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    #[tokio::test]
    async fn answers_the_four_paths() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        let metrics = Arc::new(Registry::new(Duration::from_secs(60)));
        metrics.counter("things_total", "Things").inc();
        let ok = Arc::new(AtomicBool::new(false));
        let is_ok = ok.clone();
        let ready = move || match is_ok.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("no issuer".to_owned()),
        };
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, ready, metrics, shutdown.clone()));

        assert!(
            ask(addr, "GET /ping HTTP/1.1")
                .await
                .ends_with("\r\n\r\npong\n")
        );
        assert!(
            ask(addr, "GET /live HTTP/1.1")
                .await
                .starts_with("HTTP/1.1 200")
        );
        let not_ready = ask(addr, "GET /ready HTTP/1.1").await;
        assert!(not_ready.starts_with("HTTP/1.1 500") && not_ready.ends_with("no issuer\n"));
        ok.store(true, Ordering::Relaxed);
        assert!(
            ask(addr, "GET /ready HTTP/1.1")
                .await
                .ends_with("\r\n\r\nok\n")
        );
        let scraped = ask(addr, "GET /metrics HTTP/1.1").await;
        assert!(scraped.contains("things_total 1\n") && scraped.ends_with("# EOF\n"));
        assert!(
            ask(addr, "POST /ping HTTP/1.1")
                .await
                .starts_with("HTTP/1.1 405")
        );
        assert!(
            ask(addr, "GET /other HTTP/1.1")
                .await
                .starts_with("HTTP/1.1 404")
        );

        shutdown.cancel();
        server.await.expect("the server ends with the shutdown");
    }
}
