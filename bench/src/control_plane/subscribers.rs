//! Owns many `Destination.Get` streams and the times at which a change reaches them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use linkerd2_proxy_api::destination::destination_client::DestinationClient;
use linkerd2_proxy_api::destination::{GetDestination, Update, update};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::ControlPlaneArgs;
use super::server::{PORT, name, number_of};

/// Streams that are being opened at once.
const AT_ONCE: usize = 256;
/// Longest wait for the first answer of a stream.
const FIRST: Duration = Duration::from_secs(30);

/// Open streams, each read by a task.
pub struct Subscribers {
    tasks: JoinSet<anyhow::Result<()>>,
    awaited: Arc<Awaited>,
    /// Subscriptions of each service.
    each: Vec<usize>,
}

/// The change that is waited for.
struct Awaited {
    change: Mutex<Change>,
    complete: Notify,
}

struct Change {
    number: u32,
    wanted: usize,
    begin: Instant,
    times_us: Vec<u64>,
}

impl Awaited {
    /// A stream has seen the endpoint of a change.
    fn seen(&self, number: u32) {
        let mut change = self.change.lock();
        if number == change.number {
            let time = change.begin.elapsed().as_micros();
            change
                .times_us
                .push(u64::try_from(time).unwrap_or(u64::MAX));
            if change.times_us.len() == change.wanted {
                self.complete.notify_one();
            }
        }
    }
}

impl Subscribers {
    /// Opens all streams; each has had its first answer when this returns.
    ///
    /// # Errors
    /// A connection or a stream is refused.
    pub async fn open(port: u16, args: &ControlPlaneArgs, services: usize) -> anyhow::Result<Self> {
        let mut channels = Vec::new();
        for _ in 0..args.connections {
            // Windows as proxies have them (contract 1.2).
            let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?
                .initial_stream_window_size(65_535)
                .initial_connection_window_size(1 << 20);
            channels.push(endpoint.connect().await?);
        }
        let change = Change {
            number: 0,
            wanted: 0,
            begin: Instant::now(),
            times_us: Vec::new(),
        };
        let awaited = Arc::new(Awaited {
            change: Mutex::new(change),
            complete: Notify::new(),
        });
        let (mut tasks, mut each) = (JoinSet::new(), vec![0; services]);
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut opening = JoinSet::new();
        for number in 0..args.subscriptions {
            let service = number % services;
            if let Some(count) = each.get_mut(service) {
                *count += 1;
            }
            let channel = channels
                .get(number % channels.len())
                .cloned()
                .context("a connection")?;
            let permit = Arc::clone(&room).acquire_owned().await?;
            opening.spawn(async move {
                let opened = subscribe(channel, service).await;
                drop(permit);
                opened
            });
            while let Some(stream) = opening.try_join_next() {
                tasks.spawn(follow(stream??, Arc::clone(&awaited)));
            }
        }
        for stream in opening.join_all().await {
            tasks.spawn(follow(stream?, Arc::clone(&awaited)));
        }
        Ok(Subscribers {
            tasks,
            awaited,
            each,
        })
    }

    /// From now on, a change of this number to a service is waited for.
    pub fn expect(&self, number: u32, service: usize) {
        let wanted = self.each.get(service).copied().unwrap_or(0);
        let times_us = Vec::with_capacity(wanted);
        *self.awaited.change.lock() = Change {
            number,
            wanted,
            begin: Instant::now(),
            times_us,
        };
    }

    /// Waits until all subscribers of the service have the change; the times, µs, rising.
    ///
    /// # Errors
    /// A stream has ended.
    pub async fn all(&mut self) -> anyhow::Result<Vec<u64>> {
        tokio::select! {
            () = self.awaited.complete.notified() => Ok(std::mem::take(&mut self.awaited.change.lock().times_us)),
            Some(ended) = self.tasks.join_next() => {
                ended??;
                bail!("a stream has ended")
            }
        }
    }
}

async fn subscribe(channel: Channel, service: usize) -> anyhow::Result<Streaming<Update>> {
    let request = GetDestination {
        path: format!("{}.bench.svc.cluster.local:{PORT}", name(service)),
        context_token: "{\"ns\":\"bench\"}\n".to_owned(),
        ..GetDestination::default()
    };
    let mut stream = DestinationClient::new(channel)
        .get(request)
        .await?
        .into_inner();
    timeout(FIRST, stream.message())
        .await
        .context("no first answer")??;
    Ok(stream)
}

/// Reads a stream to its end.
async fn follow(mut stream: Streaming<Update>, awaited: Arc<Awaited>) -> anyhow::Result<()> {
    while let Some(update) = stream.message().await? {
        let Some(update::Update::Add(set)) = update.update else {
            continue;
        };
        for address in set.addrs.into_iter().filter_map(|weighted| weighted.addr) {
            let address = SocketAddr::try_from(address)?.ip();
            if let IpAddr::V4(address) = address
                && let Some(number) = number_of(address)
            {
                awaited.seen(number);
            }
        }
    }
    Ok(())
}
