//! Limits on the size of what there is once for each connection, each request or each endpoint: it grows unseen, by one more
//! value held across an await. A test that fails here says by how much; raise the limit if that is worth it. Limits are a
//! few percent above the sizes without optimisation, which keeps more apart than is needed.

use crate::http::body::{Body, Observer};
use crate::http::client::{Client, Version};
use crate::http::h1::{self, UpstreamH1};
use crate::http::{Handler, h2};
use crate::outbound::balance::{Balancer, Pending};
use crate::outbound::endpoint::Endpoint;
use crate::stream::Stream;
use crate::{inbound, outbound};
use ::h2::client::SendRequest;
use bytes::Bytes;
use http::Request;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpStream;
use weft_tls::TlsStream;

fn future<A, F: Future>(_: impl Fn(A) -> F) -> usize {
    size_of::<F>()
}

fn handle<H: Handler>() -> usize {
    future(|(handler, request): (H, Box<Request<Body>>)| handler.handle(request))
}

fn connection<H: Handler>() -> (usize, usize) {
    (
        future(|(io, handler, limits, drain)| h1::serve::<H>(io, handler, limits, drain)),
        future(|(io, handler, params, drain)| h2::serve::<H>(io, handler, params, drain)),
    )
}

/// Each name with its size and its limit, in bytes.
fn check(sizes: &[(&str, usize, usize)]) {
    let lines: Vec<String> = sizes
        .iter()
        .map(|(name, size, limit)| format!("{name}: {size} of {limit}"))
        .collect();
    let within = sizes.iter().all(|(_, size, limit)| size <= limit);
    assert!(within, "too large:\n{}", lines.join("\n"));
}

/// Ten thousand idle connections are ten thousand of these.
#[test]
fn what_a_connection_holds_is_small() {
    type In = inbound::http::HttpConnection;
    type Out = outbound::http::HttpConnection;
    let ((in1, in2), (out1, out2)) = (connection::<In>(), connection::<Out>());
    check(&[
        ("Stream", size_of::<Stream>(), 96),
        ("TLS over TCP", size_of::<TlsStream<TcpStream>>(), 832),
        ("TLS over a stream", size_of::<TlsStream<Stream>>(), 896),
        ("inbound, HTTP/1", in1, 1184),
        ("inbound, HTTP/2", in2, 2848),
        ("outbound, HTTP/1", out1, 1184),
        ("outbound, HTTP/2", out2, 2848),
    ]);
}

/// A request holds the whole of its task's size from its head to the end of its response.
#[test]
fn what_a_request_holds_is_small() {
    type Send = (&'static Arc<Balancer>, Box<Request<Body>>, Instant);
    type ToEndpoint = (
        &'static Endpoint,
        Box<Request<Body>>,
        Option<Pending>,
        Instant,
    );
    type ToClient = (&'static Client, Version, Box<Request<Body>>);
    type OnStream = (&'static mut SendRequest<Bytes>, Box<Request<Body>>);
    check(&[
        (
            "inbound, stream",
            h2::stream_task::<inbound::http::HttpConnection>(),
            1296,
        ),
        (
            "outbound, stream",
            h2::stream_task::<outbound::http::HttpConnection>(),
            1584,
        ),
        (
            "inbound, handle",
            handle::<inbound::http::HttpConnection>(),
            680,
        ),
        (
            "outbound, handle",
            handle::<outbound::http::HttpConnection>(),
            976,
        ),
        ("balance", future(|(b, r, at): Send| b.send(r, at)), 744),
        (
            "endpoint",
            future(|(e, r, p, at): ToEndpoint| e.send(r, p, at)),
            656,
        ),
        (
            "client",
            future(|(c, v, r): ToClient| c.send(v, r, || ())),
            488,
        ),
        (
            "HTTP/2 send",
            future(|(s, r): OnStream| h2::send(s, r)),
            192,
        ),
        ("body moved", future(|(s, b)| h2::send_body(s, b)), 224),
        ("Request<Body>", size_of::<Request<Body>>(), 288),
        ("Body", size_of::<Body>(), 64),
        ("UpstreamH1", size_of::<UpstreamH1>(), 64),
        ("Observer", size_of::<Observer>(), 72),
    ]);
}

/// Ten thousand endpoints are a large cluster.
#[test]
fn what_an_endpoint_holds_is_small() {
    check(&[
        ("Endpoint", size_of::<Endpoint>(), 848),
        ("Client", size_of::<Client>(), 440),
        ("Balancer", size_of::<Balancer>(), 344),
    ]);
}
