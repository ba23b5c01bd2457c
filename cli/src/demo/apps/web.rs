//! Owns the demo's web: an HTTP/1.1 server that asks api by gRPC over one long HTTP/2 connection.

use std::net::SocketAddr;

use bytes::Bytes;
use clap::Args;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use super::{Tally, items};

/// Where to listen and whom to ask.
#[derive(Args, Clone, Debug)]
pub struct WebArgs {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// `host:port` of api
    #[arg(long)]
    pub api: String,
}

/// Serves until `stop`; requests under way are finished.
pub async fn run(
    args: WebArgs,
    tally: Tally,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    tally.working();
    let channel = Endpoint::from_shared(format!("http://{}", args.api))?.connect_lazy();
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted?.0,
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(
            stream,
            channel.clone(),
            tally.clone(),
            stopped.clone(),
        ));
    }
    stopping.send_replace(true);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve(
    stream: tokio::net::TcpStream,
    channel: Channel,
    tally: Tally,
    mut stopped: watch::Receiver<bool>,
) {
    let service = service_fn(|request| answer(request, channel.clone(), tally.clone()));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // A client that goes away is its own business; the load counts what it missed.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(
    request: Request<Incoming>,
    channel: Channel,
    tally: Tally,
) -> http::Result<Response<Full<Bytes>>> {
    let id = request
        .uri()
        .path()
        .strip_prefix("/item/")
        .and_then(|id| id.parse().ok());
    let Some(id) = id else {
        return Response::builder()
            .status(StatusCode::NOT_FOUND)
            .body(Full::from("ask for /item/NUMBER\n"));
    };
    let reply = items::lookup(channel, id)
        .await
        .map_err(anyhow::Error::from);
    tally.request(&reply);
    match reply {
        Ok(item) => Response::builder()
            .header("content-type", "text/plain")
            .body(Full::from(item.value + "\n")),
        Err(error) => Response::builder()
            .status(StatusCode::BAD_GATEWAY)
            .body(Full::from(format!("api: {error}\n"))),
    }
}
