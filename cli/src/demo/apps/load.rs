//! Owns the demo's load: closed-loop HTTP/1.1 keep-alive connections at a fixed rate, each answer checked.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Tally, items};

/// Longest a request may take before it counts as failed.
const LIMIT: Duration = Duration::from_secs(10);

/// What to send where.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// `host:port` to send to
    #[arg(long)]
    pub target: String,
    /// Requests a second over all connections
    #[arg(long, default_value_t = 200)]
    pub rate: u32,
    /// Connections kept open
    #[arg(long, default_value_t = 8)]
    pub connections: u32,
}

/// Sends until `stop`, then waits for the answers that are still to come.
pub async fn run(
    args: LoadArgs,
    tally: Tally,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let connections = args.connections.clamp(1, 1000);
    let pace = Duration::from_secs(1) * connections / args.rate.max(1);
    tally.working();
    let (stopping, stopped) = watch::channel(false);
    let senders = (0..connections).map(|number| {
        let sender = Sender {
            target: args.target.clone(),
            tally: tally.clone(),
            connection: None,
        };
        sender.run(
            pace,
            u64::from(number),
            u64::from(connections),
            stopped.clone(),
        )
    });
    tokio::join!(join_all(senders), async {
        stop.await;
        stopping.send_replace(true);
    });
    Ok(())
}

struct Sender {
    target: String,
    tally: Tally,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Sender {
    async fn run(
        mut self,
        pace: Duration,
        first: u64,
        step: u64,
        mut stopped: watch::Receiver<bool>,
    ) {
        // Spread the connections over the pace, so that they do not all send at once.
        tokio::time::sleep(pace.mul_f64(first as f64 / step as f64)).await;
        let mut every = interval(pace);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut id = first;
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                _ = every.tick() => {}
            }
            let result = match timeout(LIMIT, self.request(id)).await {
                Ok(result) => result,
                Err(_) => Err(anyhow::anyhow!("no answer within {LIMIT:?}")),
            };
            if result.is_err() {
                self.connection = None;
            }
            self.tally.request(&result);
            id = id.wrapping_add(step);
        }
    }

    async fn request(&mut self, id: u64) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        let request = http::Request::get(format!("/item/{id}"))
            .header("host", self.target.as_str())
            .body(Empty::new())?;
        let answer = connection
            .send_request(request)
            .await
            .context("no answer")?;
        self.connection = Some(connection);
        let status = answer.status();
        let body = answer
            .into_body()
            .collect()
            .await
            .context("the answer broke off")?
            .to_bytes();
        let body = String::from_utf8_lossy(&body);
        if status != http::StatusCode::OK {
            bail!("status {status}: {}", body.trim());
        }
        if body.trim() != items::value_of(id) {
            bail!("wrong answer for {id}: {}", body.trim());
        }
        Ok(())
    }

    /// The open connection, or a new one when the other side has closed it between two requests.
    async fn connect(&mut self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        if let Some(mut open) = self.connection.take()
            && open.ready().await.is_ok()
        {
            return Ok(open);
        }
        let stream = TcpStream::connect(&self.target)
            .await
            .with_context(|| format!("cannot reach {}", self.target))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        self.tally.connection();
        tokio::spawn(connection);
        Ok(sender)
    }
}
