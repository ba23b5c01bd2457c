//! Owns the load generator for what h2load cannot do (`weft-bench load`): requests that are due at fixed times, whatever
//! became of those before, and one connection for each request. What a request is, is in [`shape`].
//!
//! A time is taken from when the request was *due*, so that a server that stalls is charged for every request that would
//! have come meanwhile (coordinated omission).

pub mod shape;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::figures::Load;
use crate::stats::Percentiles;
use shape::{Client, Shape};

/// Requests under way at most; those due beyond wait, which counts as their time.
const IN_FLIGHT: usize = 4096;
/// Longest a request may take before it counts as failed.
const LIMIT: Duration = Duration::from_secs(5);

/// Arguments of `weft-bench load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// What a request is
    #[arg(long, value_enum)]
    pub shape: Shape,
    /// Where to: HOST:PORT
    #[arg(long)]
    pub target: String,
    /// Take turns between so many targets, the number of each in the place of `*`
    #[arg(long, default_value_t = 1)]
    pub services: usize,
    /// Connections of HTTP/2, or workers of a closed loop
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Requests a second that are due; without it each worker goes on as soon as it has its answer
    #[arg(long)]
    pub rate: Option<u32>,
    /// How long
    #[arg(long)]
    pub seconds: f64,
}

impl LoadArgs {
    /// The same as arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            "load".to_owned(),
            format!("--shape={}", self.shape.name()),
            format!("--target={}", self.target),
            format!("--services={}", self.services),
            format!("--connections={}", self.connections),
            format!("--seconds={}", self.seconds),
        ];
        list.extend(self.rate.map(|rate| format!("--rate={rate}")));
        list
    }
}

/// Runs the load and prints a [`Load`] as JSON.
///
/// # Errors
/// The first connection fails.
pub async fn run(args: LoadArgs) -> anyhow::Result<()> {
    let target = |number: usize| args.target.replace('*', &number.to_string());
    let targets = (0..args.services.max(1)).map(target).collect();
    let client = Arc::new(Client::connect(args.shape, targets, args.connections).await?);
    let record = Arc::new(Record::default());
    let begin = Instant::now();
    match args.rate {
        Some(rate) => open(client, &record, rate, args.seconds).await?,
        None => closed(client, &record, args.connections, args.seconds).await,
    }
    let load = record.load(begin.elapsed());
    Ok(writeln!(
        std::io::stdout().lock(),
        "{}",
        serde_json::to_string(&load)?
    )?)
}

/// Times of what was answered, and the number of what was not.
#[derive(Debug, Default)]
struct Record {
    times_us: Mutex<Vec<u64>>,
    failed: AtomicU64,
}

impl Record {
    /// Runs one request and takes its time since `due`.
    async fn shoot(&self, client: &Client, due: Instant) {
        match timeout(LIMIT, client.shoot()).await {
            Ok(Ok(())) => {
                let time = due.elapsed().as_micros();
                self.times_us
                    .lock()
                    .push(u64::try_from(time).unwrap_or(u64::MAX));
            }
            Ok(Err(_)) | Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn load(&self, elapsed: Duration) -> Load {
        let times = std::mem::take(&mut *self.times_us.lock());
        Load {
            seconds: elapsed.as_secs_f64(),
            units: times.len() as f64,
            failed: self.failed.load(Ordering::Relaxed),
            latency: Percentiles::of(times),
        }
    }
}

/// Requests at fixed times.
async fn open(
    client: Arc<Client>,
    record: &Arc<Record>,
    rate: u32,
    seconds: f64,
) -> anyhow::Result<()> {
    let mut due = pace(rate, seconds)?;
    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut shots = JoinSet::new();
    while let Some(due) = due.recv().await {
        let permit = Arc::clone(&room).acquire_owned().await?;
        let (client, record) = (Arc::clone(&client), Arc::clone(record));
        shots.spawn(async move {
            record.shoot(&client, due).await;
            drop(permit);
        });
        while shots.try_join_next().is_some() {}
    }
    shots.join_all().await;
    Ok(())
}

/// Says when a request is due, at the time it is due. A thread does that, since the timer of the runtime has steps of 1 ms,
/// more than the times that are measured.
fn pace(rate: u32, seconds: f64) -> anyhow::Result<mpsc::Receiver<Instant>> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let (begin, total) = (Instant::now(), (f64::from(rate) * seconds).round() as u32);
    let body = move || {
        for number in 0..total {
            let due = begin + Duration::from_secs_f64(f64::from(number) / f64::from(rate));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if sender.blocking_send(due).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("pace".to_owned())
        .spawn(body)?;
    Ok(receiver)
}

/// Workers that each have one request under way.
async fn closed(client: Arc<Client>, record: &Arc<Record>, workers: usize, seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (client, record) = (Arc::clone(&client), Arc::clone(record));
        running.spawn(async move {
            while Instant::now() < until {
                record.shoot(&client, Instant::now()).await;
            }
        });
    }
    running.join_all().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_due_at_its_time() {
        let mut due = pace(1000, 0.02).expect("a thread");
        let times: Vec<Instant> = std::iter::from_fn(|| due.blocking_recv()).collect();
        assert_eq!(times.len(), 20);
        for pair in times.windows(2) {
            let step = pair[1] - pair[0];
            assert!(
                step.abs_diff(Duration::from_millis(1)) < Duration::from_micros(1),
                "{step:?}"
            );
        }
    }

    #[test]
    fn arguments_are_read_back() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: LoadArgs,
        }
        let args = LoadArgs {
            shape: Shape::Close,
            target: "a*:1".to_owned(),
            services: 5,
            connections: 3,
            rate: Some(7),
            seconds: 1.5,
        };
        let read = Line::parse_from(args.arguments()).args;
        assert_eq!(
            (read.shape, read.services, read.rate, read.seconds),
            (Shape::Close, 5, Some(7), 1.5)
        );
    }
}
