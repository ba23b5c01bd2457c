//! Owns the gates of whole requests: from the bytes of a client to those of a server and back, through the code of one proxy.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weft_core::name::Identity;
use weft_core::transport_header::{SessionProtocol, TransportHeader};
use weft_proxy::http::client::Version;
use weft_proxy::http::{h1, h2};
use weft_proxy::outbound::http::HttpConnection;
use weft_proxy::stream::Stream;
use weft_tls::{ClientConfigRef, TlsStream};

use crate::peers::{AT_ONCE, Fields, HOST, Http1Client, Http2Client};
use crate::world::{NAME, World, pair};

/// Where the client means to go.
pub fn destination(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 96, 0, 1), port).into()
}

pub async fn outbound_http1(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut client = Http1Client::start(outbound(&world, Version::Http1).await?);
    for _ in 0..times {
        client.ask().await?;
    }
    Ok(())
}

pub async fn outbound_http2(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let io = outbound(&world, Version::Http2).await?;
    let mut client = Http2Client::start(io, Fields::request(&[])).await?;
    for _ in 0..times / AT_ONCE {
        client.ask(AT_ONCE).await?;
    }
    Ok(())
}

pub async fn inbound_http1(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let io = inbound(&world, world.app_ports[0]).await?;
    // As the other proxy carries HTTP/1.
    let fields = Fields::request(&[("host", HOST), ("l5d-orig-proto", "HTTP/1.1")]);
    let mut client = Http2Client::start(io, fields).await?;
    for _ in 0..times {
        client.ask(1).await?;
    }
    Ok(())
}

pub async fn inbound_http2(times: u32) -> anyhow::Result<()> {
    let world = World::new().await?;
    let io = inbound(&world, world.app_ports[1]).await?;
    let mut client = Http2Client::start(io, Fields::request(&[])).await?;
    for _ in 0..times / AT_ONCE {
        client.ask(AT_ONCE).await?;
    }
    Ok(())
}

/// A connection that the outbound side serves, as it does after it has found out destination and protocol.
async fn outbound(world: &World, version: Version) -> anyhow::Result<TcpStream> {
    let (near, far) = pair().await?;
    let outbound = world.outbound.clone();
    let limit = outbound.context.settings.side.detect_timeout;
    let (destination, _) = outbound.discovery.find(destination(80), limit).await?;
    let mut stream = Stream::plain(far);
    let series = outbound.context.metrics.tcp.series(Default::default());
    stream.count(series.open());
    let (limits, http2) = (outbound.context.limits, outbound.context.server_http2);
    let drain = world.watch.clone();
    let handler = HttpConnection::new(outbound, destination, version, drain.clone());
    match version {
        Version::Http1 => drop(tokio::spawn(h1::serve(stream, handler, limits, drain))),
        Version::Http2 => drop(tokio::spawn(h2::serve(stream, handler, http2, drain))),
    }
    Ok(near)
}

/// A connection of another proxy to the inbound side, for a port of the application.
async fn inbound(world: &World, port: u16) -> anyhow::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(world.inbound_addr).await?;
    tcp.set_nodelay(true)?;
    let credentials = world.store.current().context("it was installed")?;
    let client = ClientConfigRef::Credentials(&credentials);
    let mut io = weft_tls::connect(tcp, client, &Identity::parse(NAME)?, NAME, true).await?;
    let header = TransportHeader {
        port,
        name: None,
        protocol: Some(SessionProtocol::Http2),
    };
    io.write_all(&header.encode()).await?;
    // The policy must have come before the first request is judged by it.
    world.inbound.ports.port(port)?.changed().await;
    Ok(io)
}
