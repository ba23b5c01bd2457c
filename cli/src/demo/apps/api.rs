//! Owns the demo's api: a gRPC server that asks store over a small pool of TCP connections and takes a set time to think.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use super::items::{Items, ItemsService, LookupReply};
use super::{Tally, store};

/// Requests on one connection to store before it is replaced, so that connections come and go.
const USES: u32 = 50;
/// Idle connections kept.
const IDLE: usize = 8;
/// Longest an answer of store may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Where to listen, whom to ask and how long to think.
#[derive(Args, Clone, Debug)]
pub struct ApiArgs {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:9000")]
    pub listen: SocketAddr,
    /// `host:port` of store
    #[arg(long)]
    pub store: String,
    /// Milliseconds each request takes on top
    #[arg(long, default_value_t = 2)]
    pub delay_ms: u64,
}

/// Serves until `stop`; calls under way are finished.
pub async fn run(
    args: ApiArgs,
    tally: Tally,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    tally.working();
    let delay = Duration::from_millis(args.delay_ms);
    let api = Api {
        store: args.store,
        delay,
        tally,
        idle: Mutex::default(),
    };
    let server = Server::builder().add_service(ItemsService(Arc::new(api)));
    Ok(server
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
        .await?)
}

struct Api {
    store: String,
    delay: Duration,
    tally: Tally,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    stream: BufReader<TcpStream>,
    uses: u32,
}

#[tonic::async_trait]
impl Items for Api {
    async fn lookup(&self, id: u64) -> Result<LookupReply, tonic::Status> {
        let value = match timeout(LIMIT, self.ask_store(id)).await {
            Ok(value) => value,
            Err(_) => Err(anyhow::anyhow!("store gave no answer within {LIMIT:?}")),
        };
        self.tally.request(&value);
        let value = value.map_err(|error| tonic::Status::unavailable(format!("{error:#}")))?;
        tokio::time::sleep(self.delay).await;
        Ok(LookupReply { id, value })
    }
}

impl Api {
    async fn ask_store(&self, id: u64) -> anyhow::Result<String> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection
            .stream
            .write_all(format!("GET {id}\n").as_bytes())
            .await
            .context("cannot ask store")?;
        let answer = connection.line().await?;
        let Some(value) = answer.strip_prefix("VALUE ") else {
            bail!("store said `{answer}`")
        };
        let value = value.to_owned();
        connection.uses += 1;
        let mut idle = self.idle.lock();
        if connection.uses < USES && idle.len() < IDLE {
            idle.push(connection);
        }
        Ok(value)
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.store)
            .await
            .with_context(|| format!("cannot reach {}", self.store))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection {
            stream: BufReader::new(stream),
            uses: 0,
        };
        let banner = connection.line().await?;
        if banner != store::BANNER {
            bail!("store greeted with `{banner}`");
        }
        self.tally.connection();
        Ok(connection)
    }
}

impl Connection {
    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self
            .stream
            .read_line(&mut line)
            .await
            .context("store broke off")?
            == 0
        {
            bail!("store closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }
}
