//! Owns the demo's store: a TCP protocol in which the server speaks first, then answers lines.

use std::net::SocketAddr;

use clap::Args;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Tally, items};

/// The line that greets a client.
pub const BANNER: &str = "STORE 1 ready";

/// Longest line taken, in bytes.
const LINE: u64 = 256;

/// Where to listen.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:6379")]
    pub listen: SocketAddr,
}

/// Serves until `stop`.
pub async fn run(
    args: StoreArgs,
    tally: Tally,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    tally.working();
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => return Ok(()),
            accepted = listener.accept() => accepted?.0,
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream));
    }
}

async fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("{BANNER}\n").as_bytes()).await?;
    let mut line = String::new();
    while (&mut stream).take(LINE).read_line(&mut line).await? > 0 {
        let answer = match line
            .trim_end()
            .strip_prefix("GET ")
            .and_then(|id| id.parse().ok())
        {
            Some(id) => format!("VALUE {}\n", items::value_of(id)),
            None => "ERROR say GET and a number\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}
