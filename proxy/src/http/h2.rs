//! Owns HTTP/2 on both sides, directly on the h2 crate: one task a stream, in which the request
//! is handled and both bodies are moved. Does not choose servers.

use super::body::Body;
use super::expect::Continue;
use super::gather::{Gathered, Turns, gather};
use super::{Handler, Http2Params, KeepAlive};
use crate::stream::Stream;
use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use weft_runtime::drain;

/// Serves HTTP/2 with prior knowledge on `io` until the client is done. When draining begins the
/// client is told to go (GOAWAY) and the streams in flight run to their end.
///
/// # Errors
/// Those of the connection: broken framing, i/o, a peer that does not answer pings.
pub async fn serve<H: Handler>(
    io: Stream,
    handler: H,
    params: Http2Params,
    drain: drain::Watch,
) -> Result<(), h2::Error> {
    let (io, turns) = gather(io);
    let handshake = params.server().handshake(io);
    let mut connection: h2::server::Connection<_, Bytes> = turns.run(handshake).await?;
    let mut keep_alive = pin!(watch_peer(connection.ping_pong(), params.keep_alive));
    let mut draining = pin!(drain.signaled());
    let mut told = false;
    // Whoever comes while we drain gets an answer, too (case T14), before it is told to go.
    let mut awaited = drain.is_draining();
    loop {
        tokio::select! {
            biased;
            accepted = turns.run(connection.accept()) => match accepted {
                Some(Ok((request, respond))) => {
                    awaited = false;
                    tokio::spawn(serve_stream(handler.clone(), received(request), respond));
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            () = draining.as_mut(), if !told && !awaited => {
                told = true;
                connection.graceful_shutdown();
            }
            () = keep_alive.as_mut() => {
                connection.abrupt_shutdown(Reason::NO_ERROR);
                tracing::debug!("HTTP/2 client does not answer pings");
                return Ok(());
            }
        }
    }
}

fn received(request: Request<RecvStream>) -> Box<Request<Body>> {
    let (head, recv) = request.into_parts();
    let body = Body::h2(&head.headers, recv);
    Box::new(Request::from_parts(head, body))
}

/// One request: handle it, answer it, and stop at once if the client resets the stream.
async fn serve_stream<H: Handler>(
    handler: H,
    mut request: Box<Request<Body>>,
    mut respond: h2::server::SendResponse<Bytes>,
) {
    let mut waits = Continue::expected(&mut request);
    let mut answer = pin!(handler.handle(request));
    let answer = poll_fn(|cx| {
        // First: a request that was cancelled fails in other ways too, which mean nothing (case H13).
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        let answer = answer.as_mut().poll(cx).map(Some);
        if answer.is_pending() && waits.as_ref().is_some_and(|w| w.poll_wanted(cx).is_ready()) {
            waits = None;
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            // An error here means that the stream is gone, which shows soon.
            let _ = respond.send_informational(go_on);
        }
        answer
    })
    .await;
    let response = match answer {
        Some(Ok(response)) => response,
        Some(Err(reason)) => return respond.send_reset(reason),
        None => return,
    };
    let (mut head, body) = response.into_parts();
    head.version = http::Version::HTTP_2;
    let end = body.is_empty();
    match respond.send_response(Response::from_parts(head, ()), end) {
        Ok(_) if end => {}
        Ok(send) => send_body(send, body).await,
        Err(error) => tracing::debug!(%error, "HTTP/2 response was not sent"),
    }
}

/// Moves `body` into `send` as the peer's window allows, trailers included. A body that breaks
/// off resets the stream; a peer that resets the stream drops the body.
pub async fn send_body(mut send: SendStream<Bytes>, body: Body) {
    let mut body = pin!(body);
    loop {
        send.reserve_capacity(1);
        let room = poll_fn(|cx| {
            while send.capacity() == 0 {
                match send.poll_capacity(cx) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(false),
                    Poll::Pending => return send.poll_reset(cx).map(|_| false),
                }
            }
            Poll::Ready(true)
        });
        if !room.await {
            return;
        }
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => send.poll_reset(cx).map(|_| None),
        });
        let Some(frame) = frame.await else { return };
        let sent = match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let end = body.is_end_stream();
                    match send.send_data(data, end) {
                        Ok(()) if end => return,
                        sent => sent,
                    }
                }
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => {
                        // An error here means that the stream is gone.
                        let _ = send.send_trailers(trailers);
                        return;
                    }
                    Err(_) => Ok(()),
                },
            },
            Some(Err(error)) => return send.send_reset(error.reason()),
            None => {
                let _ = send.send_data(Bytes::new(), true);
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Sends a request on a stream of its own and waits for the head of the response. The request's
/// body is moved meanwhile, and goes on in a task of its own if it has not ended by then.
///
/// # Errors
/// The stream's or the connection's end.
pub async fn send(
    connection: &mut h2::client::SendRequest<Bytes>,
    request: Box<Request<Body>>,
) -> Result<Response<Body>, h2::Error> {
    let waits = Continue::of(&request);
    let (head, body) = request.into_parts();
    let end = body.is_empty();
    let (response, send) = connection.send_request(Request::from_parts(head, ()), end)?;
    let mut response = pin!(response);
    let response = if end {
        drop(send);
        response.await?
    } else {
        let mut upload = Box::pin(send_body(send, body));
        let mut sending = true;
        let response = poll_fn(|cx| {
            if sending && upload.as_mut().poll(cx).is_ready() {
                sending = false;
            }
            if let Some(waits) = &waits
                && let Poll::Ready(Some(Ok(said))) = response.poll_informational(cx)
            {
                waits.informed(said.status());
            }
            response.as_mut().poll(cx)
        })
        .await?;
        if sending && !waits.is_some_and(|waits| waits.responded()) {
            tokio::spawn(upload);
        }
        response
    };
    let (head, recv) = response.into_parts();
    let body = Body::h2(&head.headers, recv);
    Ok(Response::from_parts(head, body))
}

/// Resolves when the peer has not answered a ping in time; never without keep-alive.
pub async fn watch_peer(pings: Option<h2::PingPong>, keep_alive: Option<KeepAlive>) {
    let (Some(mut pings), Some(keep_alive)) = (pings, keep_alive) else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(keep_alive.interval).await;
        let pong = pings.ping(h2::Ping::opaque());
        match tokio::time::timeout(keep_alive.timeout, pong).await {
            Ok(Ok(_)) => {}
            // The connection has ended; it says so itself.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_elapsed) => return,
        }
    }
}

/// Drives a client connection to its end.
pub async fn drive(
    connection: h2::client::Connection<Gathered, Bytes>,
    turns: Turns,
    pings: Option<h2::PingPong>,
    keep_alive: Option<KeepAlive>,
) {
    let mut connection = pin!(turns.run(connection));
    let mut keep_alive = pin!(watch_peer(pings, keep_alive));
    let ended = poll_fn(|cx| {
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        keep_alive.as_mut().poll(cx).map(|()| None)
    })
    .await;
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "HTTP/2 connection ended"),
        None => tracing::debug!("HTTP/2 server does not answer pings"),
    }
}

/// Bytes of what is spawned for each stream.
#[cfg(test)]
pub(crate) fn stream_task<H: Handler>() -> usize {
    fn size<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }
    size(|(handler, request, respond)| serve_stream::<H>(handler, request, respond))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const KEEP_ALIVE: KeepAlive = KeepAlive {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(3),
    };

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_pings_is_given_up() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move { h2::server::handshake(server).await.unwrap() });
        let (_send, mut connection): (h2::client::SendRequest<Bytes>, _) =
            h2::client::handshake(client).await.unwrap();
        let pings = connection.ping_pong();
        tokio::spawn(connection);
        // The server is there, but nobody drives it any more.
        let _idle = server.await.unwrap();
        let start = tokio::time::Instant::now();
        watch_peer(pings, Some(KEEP_ALIVE)).await;
        crate::testing::assert_elapsed(start, KEEP_ALIVE.interval + KEEP_ALIVE.timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_pings_is_kept() {
        let (client, server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(server).await.unwrap();
            connection.accept().await.is_none()
        });
        let (_send, mut connection): (h2::client::SendRequest<Bytes>, _) =
            h2::client::handshake(client).await.unwrap();
        let pings = connection.ping_pong();
        tokio::spawn(connection);
        let watched = watch_peer(pings, Some(KEEP_ALIVE));
        let limit = Duration::from_secs(300);
        assert!(tokio::time::timeout(limit, watched).await.is_err());
    }

    /// A pair whose server is configured as ours are.
    async fn pair() -> (
        h2::client::SendRequest<Bytes>,
        h2::server::Connection<tokio::io::DuplexStream, Bytes>,
    ) {
        let (client, server) = tokio::io::duplex(1 << 20);
        let params = crate::testing::outbound(&[]).0.server_http2;
        let (client, server) = tokio::join!(
            h2::client::handshake(client),
            params.server().handshake(server)
        );
        let (send, connection) = client.unwrap();
        tokio::spawn(connection);
        (send, server.unwrap())
    }

    fn post() -> Request<()> {
        Request::post("http://web/").body(()).unwrap()
    }

    /// A frame of RFC 9113 section 4.1.
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    #[tokio::test]
    async fn bodies_that_nobody_wants_any_more_do_not_end_a_connection() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const REQUESTS: u32 = 3_000;
        const END_HEADERS: u8 = 4;
        const END_STREAM: u8 = 1;
        // POST, http, /, and a host, of the static table of RFC 7541.
        const HEADERS: &[u8] = b"\x83\x86\x84\x41\x03web";
        let (client, server) = tokio::io::duplex(1 << 20);
        let params = crate::testing::outbound(&[]).0.server_http2;
        let serving = tokio::spawn(async move {
            let mut server = params.server().handshake(server).await.unwrap();
            while let Some(request) = server.accept().await {
                let (_, mut respond): (_, h2::server::SendResponse<Bytes>) = request?;
                let refused = Response::builder().status(403).body(()).unwrap();
                let _ = respond.send_response(refused, true);
            }
            Ok::<(), h2::Error>(())
        });
        let (mut read, mut write) = tokio::io::split(client);
        let heard = tokio::spawn(async move {
            let mut all = Vec::new();
            read.read_to_end(&mut all).await.map(|_| all)
        });
        write
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        write.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        for stream in (0..REQUESTS).map(|n| 2 * n + 1) {
            write
                .write_all(&frame(1, END_HEADERS, stream, HEADERS))
                .await
                .unwrap();
            // The server answers and resets before the body comes.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            write
                .write_all(&frame(0, END_STREAM, stream, b"late"))
                .await
                .unwrap();
        }
        write.shutdown().await.unwrap();
        let all = heard.await.unwrap().unwrap();
        let goaway = all.windows(24).any(|w| w == b"too_many_internal_resets");
        assert!(!goaway, "the server ended the connection");
        serving.abort();
    }

    #[tokio::test]
    async fn many_small_frames_that_wait_do_not_end_a_connection() {
        const FRAMES: usize = 5_000;
        let (mut client, mut server) = pair().await;
        let (_response, mut send) = client.send_request(post(), false).unwrap();
        let sending = tokio::spawn(async move {
            for _ in 0..FRAMES {
                send.send_data(Bytes::from_static(b"x"), false).unwrap();
                tokio::task::yield_now().await;
            }
            send.send_data(Bytes::new(), true).unwrap();
        });
        let (request, _respond) = server.accept().await.unwrap().unwrap();
        let driving = tokio::spawn(async move { server.accept().await.is_none() });
        sending.await.unwrap();
        let mut body = request.into_body();
        let mut read = 0;
        while let Some(data) = body.data().await {
            read += data.unwrap().len();
        }
        assert_eq!(read, FRAMES);
        driving.abort();
    }

    #[tokio::test]
    async fn a_client_that_leaves_with_many_streams_does_not_end_those_of_others() {
        let (mut client, mut server) = pair().await;
        let (kept, _send) = client.send_request(post(), true).unwrap();
        let leaving: Vec<_> = (0..200)
            .map(|_| client.send_request(post(), false).unwrap())
            .collect();
        tokio::task::yield_now().await;
        drop(leaving);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let serving = tokio::spawn(async move {
            while let Some(Ok((_, mut respond))) = server.accept().await {
                let _ = respond.send_response(Response::new(()), true);
            }
        });
        assert_eq!(kept.await.unwrap().status(), StatusCode::OK);
        serving.abort();
    }
}
