//! Owns the application of the bench (`weft-bench app`): answers of fixed sizes over HTTP/1.1, HTTP/2, gRPC and bytes, by
//! plain hyper on one thread. It knows nothing of proxies.

mod work;

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::balance::scenario::Scenario;
use crate::wiring::{PROTOCOLS, Protocol};
use work::Work;

/// Bytes of an answer.
pub const BODY: usize = 1024;
/// Bytes of the answer to [`LARGE_PATH`].
pub const LARGE: usize = 1 << 20;
/// Bytes of a gRPC message with its prefix of five.
pub const MESSAGE: usize = 105;
/// Messages of a stream.
pub const MESSAGES: usize = 100;
/// Where the large answer is.
pub const LARGE_PATH: &str = "/large";
/// A gRPC method with one message as its answer.
pub const UNARY_PATH: &str = "/weft.bench.Bench/Unary";
/// A gRPC method that answers with [`MESSAGES`] messages.
pub const STREAM_PATH: &str = "/weft.bench.Bench/Stream";

/// Arguments of `weft-bench app`.
#[derive(Args, Clone, Debug)]
pub struct AppArgs {
    /// Leave the port for bytes to another program
    #[arg(long)]
    pub no_opaque: bool,
    /// Work on each request as a replica in this scenario does; its change comes with SIGUSR1
    #[arg(long, value_enum)]
    pub scenario: Option<Scenario>,
    /// Number of the replica
    #[arg(long, default_value_t = 0)]
    pub replica: usize,
}

/// Serves until it is killed.
///
/// # Errors
/// A port is in use.
pub async fn run(args: AppArgs) -> anyhow::Result<()> {
    let mut serving = tokio::task::JoinSet::new();
    let work = args
        .scenario
        .map(|scenario| Work::new(scenario, args.replica));
    let work = work.map(Arc::new);
    if let Some(work) = work.clone() {
        tokio::spawn(async move { work.wait_for_change().await });
    }
    for protocol in PROTOCOLS {
        if protocol == Protocol::Opaque && args.no_opaque {
            continue;
        }
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, protocol.app_port())).await?;
        serving.spawn(accept(listener, protocol, work.clone()));
    }
    serving.join_all().await;
    Ok(())
}

async fn accept(listener: TcpListener, protocol: Protocol, work: Option<Arc<Work>>) {
    loop {
        // What fails is one connection, or descriptors that come back.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        // Without it the second write of an answer waits for an acknowledgement.
        let _ = stream.set_nodelay(true);
        tokio::spawn(serve(stream, protocol, work.clone()));
    }
}

/// Errors are those of the client's connection, which the load generator counts.
async fn serve(stream: TcpStream, protocol: Protocol, work: Option<Arc<Work>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let work = work.clone();
        async move { answer(request, work.as_deref()).await }
    });
    match protocol {
        Protocol::Http1 => {
            let mut served = hyper::server::conn::http1::Builder::new();
            served.timer(TokioTimer::new());
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        }
        Protocol::Http2 => {
            let mut served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // A generator that ends resets its streams, which proxies pass on; the next load must not suffer from that.
            served
                .timer(TokioTimer::new())
                .max_concurrent_streams(1024)
                .max_pending_accept_reset_streams(1024);
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        }
        Protocol::Opaque => drop(echo(stream).await),
    }
}

/// Whatever comes is answered by [`BODY`] bytes, until the client closes.
async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut buffer, answer) = ([0; 512], [b'x'; BODY]);
    while stream.read(&mut buffer).await? > 0 {
        stream.write_all(&answer).await?;
    }
    Ok(())
}

/// Answers when it has read the request, as an application would.
async fn answer(
    mut request: Request<Incoming>,
    work: Option<&Work>,
) -> Result<Response<Answer>, Infallible> {
    while let Some(Ok(_)) = request.body_mut().frame().await {}
    if let Some(work) = work
        && !work.one().await
    {
        let mut response = Response::new(Answer::Whole(None));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return Ok(response);
    }
    static TEXT: [u8; LARGE] = [b'x'; LARGE];
    let (content_type, answer) = match request.uri().path() {
        LARGE_PATH => ("text/plain", Answer::whole(&TEXT)),
        UNARY_PATH => ("application/grpc", Answer::messages(1)),
        STREAM_PATH => ("application/grpc", Answer::messages(MESSAGES)),
        _ => ("text/plain", Answer::whole(&TEXT[..BODY])),
    };
    let mut response = Response::new(answer);
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static(content_type));
    Ok(response)
}

/// The body of an answer.
enum Answer {
    /// All at once; taken when it is sent.
    Whole(Option<Bytes>),
    /// gRPC messages still to come, each a frame of its own, then the status.
    Messages {
        /// How many.
        left: usize,
        /// The last thing was a message: let the connection run before the next.
        pause: bool,
        /// The status has been sent.
        ended: bool,
    },
}

impl Answer {
    fn whole(bytes: &'static [u8]) -> Self {
        Answer::Whole(Some(Bytes::from_static(bytes)))
    }

    fn messages(left: usize) -> Self {
        Answer::Messages {
            left,
            pause: false,
            ended: false,
        }
    }
}

/// A message of gRPC (its protocol over HTTP/2): not compressed, the length in four bytes, the bytes.
pub static GRPC_MESSAGE: [u8; MESSAGE] = {
    let mut message = [b'm'; MESSAGE];
    message[0] = 0;
    message[1] = 0;
    message[2] = 0;
    message[3] = 0;
    message[4] = (MESSAGE - 5) as u8;
    message
};

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Answer::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Answer::Messages { pause, .. } if *pause => {
                *pause = false;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Answer::Messages { left, pause, .. } if *left > 0 => {
                *left -= 1;
                *pause = *left > 0;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&GRPC_MESSAGE)))))
            }
            Answer::Messages { ended, .. } if !*ended => {
                *ended = true;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Answer::Messages { .. } => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(
            self,
            Answer::Whole(None) | Answer::Messages { ended: true, .. }
        )
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Answer::Messages { .. } => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_its_messages_and_a_status() {
        let collected = Answer::messages(3).collect().await.expect("it cannot fail");
        let trailers = collected.trailers().cloned().expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(collected.to_bytes().len(), 3 * MESSAGE);
    }

    #[tokio::test]
    async fn bytes_are_answered_until_the_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let addr = listener.local_addr().expect("its address");
        let server = tokio::spawn(accept(listener, Protocol::Opaque, None));
        let mut client = TcpStream::connect(addr).await.expect("connects");
        client.write_all(b"?").await.expect("writes");
        let mut answer = vec![0; BODY];
        client.read_exact(&mut answer).await.expect("reads");
        server.abort();
    }
}
