//! A small API server over real HTTP: each request goes to the test, which says what the answer is.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response, header::ACCEPT};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;

type Body = BoxBody<Bytes, Cut>;
type Chunk = Result<Frame<Bytes>, Cut>;

/// The connection breaks in the middle of a body.
#[derive(Debug)]
pub(super) struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}

impl std::error::Error for Cut {}

/// One request that waits for its answer.
pub(super) struct Ask {
    pub(super) path: String,
    pub(super) accept: String,
    answer: oneshot::Sender<Response<Body>>,
}

impl Ask {
    pub(super) fn json(self, status: u16, text: &str) {
        let body = Full::new(Bytes::from(text.to_owned()))
            .map_err(|never: Infallible| match never {})
            .boxed();
        self.send(status, body);
    }

    /// Opens a stream of events.
    pub(super) fn stream(self) -> Events {
        let (chunks, received) = mpsc::channel(64);
        self.send(
            200,
            BodyExt::boxed(StreamBody::new(ReceiverStream::new(received))),
        );
        Events { chunks }
    }

    fn send(self, status: u16, body: Body) {
        let answer = Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(body)
            .expect("an answer");
        // The client may have gone by now.
        let _ = self.answer.send(answer);
    }
}

/// A watch. Dropping it ends the stream in good order.
pub(super) struct Events {
    chunks: mpsc::Sender<Chunk>,
}

impl Events {
    pub(super) async fn send(&self, text: &str) {
        let frame = Frame::data(Bytes::from(text.to_owned()));
        self.chunks.send(Ok(frame)).await.expect("somebody reads");
    }

    pub(super) async fn cut(self) {
        self.chunks.send(Err(Cut)).await.expect("somebody reads");
    }
}

/// The server.
pub(super) struct ApiServer {
    pub(super) addr: SocketAddr,
    asks: mpsc::UnboundedReceiver<Ask>,
    tasks: JoinSet<()>,
}

impl ApiServer {
    pub(super) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address")).await
    }

    pub(super) async fn start_at(addr: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(addr).expect("free");
        let listener = socket.listen(64).expect("listening");
        let addr = listener.local_addr().expect("an address");
        let (sender, asks) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, sender));
        Self { addr, asks, tasks }
    }

    pub(super) fn client(&self) -> Client {
        let url = format!("http://{}", self.addr).parse().expect("a URL");
        let mut config = Config::new(url);
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }

    /// The next request.
    pub(super) async fn next(&mut self) -> Ask {
        timeout(Duration::from_secs(20), self.asks.recv())
            .await
            .expect("a request within 20 s")
            .expect("the server runs")
    }

    /// The next request, which is for this path and query.
    pub(super) async fn expect(&mut self, path: &str) -> Ask {
        let ask = self.next().await;
        assert_eq!(ask.path, path);
        ask
    }

    /// Nothing is asked for a while.
    pub(super) async fn quiet(&mut self, time: Duration) {
        if let Ok(ask) = timeout(time, self.asks.recv()).await {
            panic!(
                "nothing was expected, and {:?} came",
                ask.map(|ask| ask.path)
            );
        }
    }

    /// Ends the server and all its connections.
    pub(super) async fn stop(mut self) -> SocketAddr {
        self.tasks.shutdown().await;
        self.addr
    }
}

async fn accept(listener: TcpListener, asks: mpsc::UnboundedSender<Ask>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let asks = asks.clone();
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, asks.clone()));
            // A connection that breaks is part of the tests.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    asks: mpsc::UnboundedSender<Ask>,
) -> Result<Response<Body>, Cut> {
    let (sender, answer) = oneshot::channel();
    let accept = request.headers().get(ACCEPT).expect("a header");
    let ask = Ask {
        path: request.uri().to_string(),
        accept: accept.to_str().expect("ASCII").to_owned(),
        answer: sender,
    };
    asks.send(ask).map_err(|_| Cut)?;
    answer.await.map_err(|_| Cut)
}
