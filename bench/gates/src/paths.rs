//! Owns the gates of single steps.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weft_core::detect::{self, ClientHello};
use weft_core::name::Identity;
use weft_proxy::http::headers;
use weft_proxy::metrics::Metrics;
use weft_proxy::metrics::http::Outcome;
use weft_proxy::metrics::labels::Labels;
use weft_proxy::outbound::backend::Backend;
use weft_proxy::outbound::policy::{Distribution, HttpRoutes, Policy, Protocol};
use weft_runtime::metrics::Registry;
use weft_tls::ClientConfigRef;

use crate::control::MANY;
use crate::peers::{HOST, PATH, REQUEST};
use crate::requests::destination;
use crate::world::{Authority, HOUR, NAME, World};

/// The first bytes of an HTTP/1 connection, of an HTTP/2 one, and of a TLS one.
pub fn detect(times: u32) -> anyhow::Result<()> {
    let http1 = format!("GET {PATH} HTTP/1.1\r\nhost: {HOST}\r\naccept: */*\r\n\r\n");
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let tls = client_hello(NAME);
    ensure!(detect::http(http1.as_bytes()) == detect::Http::Http1);
    ensure!(detect::client_hello(&tls) == ClientHello::Sni(NAME.to_owned()));
    for _ in 0..times {
        black_box(detect::client_hello(black_box(http1.as_bytes())));
        black_box(detect::http(black_box(http1.as_bytes())));
        black_box(detect::client_hello(black_box(http2)));
        black_box(detect::http(black_box(http2)));
        black_box(detect::client_hello(black_box(&tls)));
    }
    Ok(())
}

/// A ClientHello (RFC 8446 section 4.1.2) with a server name behind other extensions.
fn client_hello(name: &str) -> Vec<u8> {
    let with_length = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        [&length.to_be_bytes(), bytes].concat()
    };
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &with_length(body)].concat();
    let server_name = with_length(&[&[0], &with_length(name.as_bytes())[..]].concat());
    let extensions = [
        extension(43, &[2, 3, 4]),
        extension(10, &[0, 4, 0, 29, 0, 23]),
        extension(51, &[7; 107]),
        extension(0, &server_name),
    ]
    .concat();
    let hello = [
        &[3, 3][..],
        &[9; 32],
        &[32],
        &[9; 32],
        &with_length(&[0x13, 1, 0x13, 2, 0x13, 3]),
        &[1, 0],
        &with_length(&extensions),
    ]
    .concat();
    let handshake = [&[1, 0][..], &with_length(&hello)].concat();
    [&[22, 3, 1][..], &with_length(&handshake)].concat()
}

/// The policy of the control plane, whose routes are gone through for a request.
pub async fn route(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let policy = policy(&world, 80).await?;
    let routes = routes(&policy)?;
    let request = request(Version::HTTP_2)?;
    for _ in 0..times {
        let found = routes.find(&headers::view(black_box(&request)));
        ensure!(black_box(found).is_some(), "no route");
    }
    Ok(())
}

/// Endpoints that each have answered before.
pub async fn pick(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let policy = policy(&world, MANY).await?;
    let request = request(Version::HTTP_2)?;
    let rule = routes(&policy)?.find(&headers::view(&request));
    let backends = &rule.context("no route")?.backends;
    let Distribution::First(backends) = backends else {
        anyhow::bail!("another distribution than that of the control plane here");
    };
    let Some(Backend::Service(service)) = backends.first().map(|first| &first.backend) else {
        anyhow::bail!("another backend than that of the control plane here");
    };
    for _ in 0..times {
        ensure!(service.balancer.ready().await, "no endpoint");
    }
    Ok(())
}

async fn policy(world: &World, port: u16) -> anyhow::Result<Arc<Policy>> {
    let discovery = &world.outbound.discovery;
    Ok(discovery.find(destination(port), HOUR).await?.1)
}

fn routes(policy: &Policy) -> anyhow::Result<&HttpRoutes> {
    match &policy.protocol {
        Protocol::Detect { http2, .. } => Ok(http2),
        Protocol::Invalid(reason) => anyhow::bail!("{reason}"),
        _ => anyhow::bail!("another protocol than that of the control plane here"),
    }
}

fn request(version: Version) -> anyhow::Result<Request<()>> {
    let mut request = Request::get(PATH).version(version).header("host", HOST);
    for (name, value) in REQUEST.iter().filter(|(name, _)| !name.starts_with(':')) {
        request = request.header(*name, *value);
    }
    Ok(request.body(())?)
}

/// A request with hop-by-hop fields on its way through both proxies, and its response on the way back. Making the copies is
/// a part of it.
pub fn headers(times: u32) -> anyhow::Result<()> {
    let mut request = request(Version::HTTP_11)?;
    let fields: HeaderMap = [
        ("connection", "keep-alive, x-hop"),
        ("keep-alive", "timeout=5"),
        ("x-hop", "1"),
    ]
    .into_iter()
    .map(|(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    })
    .collect();
    request.headers_mut().extend(fields);
    let id = HeaderValue::from_static(NAME);
    let mut response = Response::new(());
    response.headers_mut().insert("content-length", 1024.into());
    for _ in 0..times {
        let mut request = black_box(&request).clone();
        headers::strip_hop_by_hop(request.headers_mut());
        headers::to_orig_proto(&mut request);
        let version = headers::from_orig_proto(&mut request).context("it was carried")?;
        request.headers_mut().insert(headers::CLIENT_ID, id.clone());
        let mut response = black_box(&response).clone();
        headers::strip_hop_by_hop(response.headers_mut());
        headers::mark_response(&mut response, version);
        headers::unmark_response(&mut response);
        black_box((request, response));
    }
    Ok(())
}

/// As many labels as a route to an endpoint has.
pub fn metrics(times: u32) -> anyhow::Result<()> {
    let metrics = Metrics::new(&Registry::new(HOUR));
    let mut labels = Labels::build()
        .with("direction", "outbound")
        .with("authority", HOST);
    for name in [
        "dst_namespace",
        "dst_pod",
        "dst_service",
        "dst_serviceaccount",
    ] {
        labels = labels.with(name, "web");
    }
    let series = metrics.outbound.http.series(labels.done());
    let outcome = Outcome {
        status: 200,
        grpc: None,
        error: "",
    };
    for at in 0..times {
        series.request();
        let latency = Duration::from_micros(u64::from(at % 64) * 100);
        series.response(black_box(outcome), latency);
    }
    Ok(())
}

/// Over a pipe in memory.
pub async fn tls(times: u32) -> anyhow::Result<()> {
    let store = Authority::new()?.store()?;
    let credentials = store.current().context("it was installed")?;
    let (near, far) = tokio::io::duplex(1 << 16);
    let (name, client) = (
        Identity::parse(NAME)?,
        ClientConfigRef::Credentials(&credentials),
    );
    let (client, server) = tokio::join!(
        weft_tls::connect(near, client, &name, NAME, false),
        weft_tls::accept(far, &credentials, false),
    );
    let (mut client, mut server) = (client?, server?.stream);
    let mut bytes = [7; 1024];
    for _ in 0..times {
        client.write_all(&bytes).await?;
        client.flush().await?;
        server.read_exact(&mut bytes).await?;
    }
    ensure!(bytes == [7; 1024], "other bytes came out");
    Ok(())
}
