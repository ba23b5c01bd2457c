//! The peers of tests as a process: `weft-peer KIND PORT [NAME [MILLISECONDS]]`. What they do is in the library.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, bail};
use weft_e2e::{Listener, grpc, peers};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments
        .next()
        .context("say what: sockets, http, slash, slow, grpc, banner or echo")?;
    if kind == "sockets" {
        return weft_e2e::serve_sockets();
    }
    let port: u16 = arguments.next().context("say on which port")?.parse()?;
    let name = arguments.next().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = Listener::new(std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?)?;
        match kind.as_str() {
            "http" => peers::http(listener, &name),
            "slash" => peers::slash(listener),
            "slow" => {
                let delay = arguments.next().context("say how slow, in ms")?.parse()?;
                peers::slow_http(listener, &name, Duration::from_millis(delay));
            }
            "grpc" => return grpc::serve(listener, &name).await,
            "banner" => peers::banner(listener, &name),
            "echo" => peers::echo(listener),
            _ => bail!("{kind} is no peer"),
        }
        // Process 1 of a container gets no signal that it has not asked for.
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
            .recv()
            .await;
        Ok(())
    })
}
