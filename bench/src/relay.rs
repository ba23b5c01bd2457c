//! Owns the least that a pair of proxies can do (`weft-bench relay`): each byte is read and written, without TLS, HTTP, policy or
//! metrics. What it adds to a time is what two more processes on the way cost, whatever they do.

use std::net::SocketAddr;

use clap::Args;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use weft_runtime::{copy, net};

/// Arguments of `weft-bench relay`.
#[derive(Args, Clone, Debug)]
pub struct RelayArgs {
    /// Where connections come in and where they lead: ADDRESS=ADDRESS; may be repeated
    #[arg(required = true, value_parser = way)]
    pub ways: Vec<(SocketAddr, SocketAddr)>,
}

fn way(text: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let (from, to) = text.split_once('=').ok_or("write ADDRESS=ADDRESS")?;
    let read = |addr: &str| addr.parse().map_err(|error| format!("`{addr}`: {error}"));
    Ok((read(from)?, read(to)?))
}

/// Relays until the process is ended.
///
/// # Errors
/// An address is taken.
pub async fn run(args: RelayArgs) -> anyhow::Result<()> {
    let mut relays = JoinSet::new();
    for (from, to) in args.ways {
        relays.spawn(accept(net::bind(from, None)?, to));
    }
    relays.join_all().await;
    Ok(())
}

async fn accept(listener: TcpListener, to: SocketAddr) {
    loop {
        let (from, _) = net::accept(&listener).await;
        tokio::spawn(async move {
            if let Err(error) = relay(from, to).await {
                eprintln!("relay to {to}: {error:#}");
            }
        });
    }
}

async fn relay(from: TcpStream, to: SocketAddr) -> anyhow::Result<()> {
    let to = TcpStream::connect(to).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    copy::bidirectional(from, to).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_way_is_two_addresses() {
        assert!(way("127.0.0.1:1=127.0.0.1:2").is_ok());
        assert_eq!(
            way("127.0.0.1:1").expect_err("one only"),
            "write ADDRESS=ADDRESS"
        );
        assert!(way("here=there").expect_err("names").contains("here"));
    }

    #[tokio::test]
    async fn bytes_come_back() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let entrance = listener.local_addr().expect("bound");
        tokio::spawn(accept(listener, server.local_addr().expect("bound")));
        let mut client = TcpStream::connect(entrance).await.expect("it listens");
        client.write_all(b"ping").await.expect("open");
        let (mut there, _) = server.accept().await.expect("relayed");
        let mut heard = [0; 4];
        there.read_exact(&mut heard).await.expect("sent");
        there.write_all(&heard).await.expect("open");
        client.read_exact(&mut heard).await.expect("sent back");
        assert_eq!(&heard, b"ping");
    }
}
