//! Owns the demo's own programs: `load → web → api → store`, ordinary network code that knows nothing of a mesh. It does
//! not start or measure them from outside; each prints its own count once in a while.

pub mod api;
pub mod items;
pub mod load;
pub mod store;
pub mod web;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

/// How often a program prints its count.
const PRINT_EVERY: Duration = Duration::from_millis(200);

/// The programs of the demo.
#[derive(Subcommand, Clone, Debug)]
pub enum DemoApp {
    /// Sends checked HTTP/1.1 requests at a fixed rate
    Load(load::LoadArgs),
    /// Answers HTTP/1.1 by asking api over gRPC
    Web(web::WebArgs),
    /// Answers gRPC by asking store
    Api(api::ApiArgs),
    /// Answers lines on TCP, speaking first
    Store(store::StoreArgs),
}

/// What a program says about itself on standard output, one JSON line each time; numbers count from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Requests sent to the program behind it and answered or failed.
    pub requests: u64,
    /// Those that failed: an error, a wrong status or a wrong answer.
    pub failed: u64,
    /// TCP connections made to the program behind it.
    pub connections: u64,
    /// True in the last line before it ends.
    pub last: bool,
    /// The first few different reasons for failures.
    pub reasons: Vec<String>,
}

/// The running count of a program, shared by its tasks.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    requests: AtomicU64,
    failed: AtomicU64,
    connections: AtomicU64,
    working: AtomicBool,
    reasons: parking_lot::Mutex<Vec<String>>,
}

/// Reasons kept; the count goes on.
const REASONS: usize = 5;

impl Tally {
    /// Counts one finished request.
    pub fn request<T>(&self, result: &anyhow::Result<T>) {
        if let Err(error) = result {
            self.0.failed.fetch_add(1, Ordering::Relaxed);
            let mut reasons = self.0.reasons.lock();
            let reason = format!("{error:#}");
            if reasons.len() < REASONS && !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        self.0.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one connection made.
    pub fn connection(&self) {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// The program listens, or whatever else its work begins with; its first line says so to whoever started it.
    pub fn working(&self) {
        self.0.working.store(true, Ordering::Relaxed);
    }

    fn count(&self, last: bool) -> Count {
        Count {
            requests: self.0.requests.load(Ordering::Relaxed),
            failed: self.0.failed.load(Ordering::Relaxed),
            connections: self.0.connections.load(Ordering::Relaxed),
            last,
            reasons: self.0.reasons.lock().clone(),
        }
    }

    /// Prints the count until the program is done.
    async fn print_forever(&self) {
        let mut every = tokio::time::interval(PRINT_EVERY);
        loop {
            every.tick().await;
            while !self.0.working.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            print_line(&self.count(false));
        }
    }
}

/// Whoever read the output may be gone; a demo program must not end for that before it is told to.
fn print_line(count: &Count) {
    if let Ok(line) = serde_json::to_string(count) {
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

/// Runs one of the programs until SIGTERM or SIGINT.
pub async fn run(app: DemoApp) -> anyhow::Result<()> {
    let tally = Tally::default();
    let program = async {
        match app {
            DemoApp::Load(args) => load::run(args, tally.clone(), stop_signal()?).await,
            DemoApp::Web(args) => web::run(args, tally.clone(), stop_signal()?).await,
            DemoApp::Api(args) => api::run(args, tally.clone(), stop_signal()?).await,
            DemoApp::Store(args) => store::run(args, tally.clone(), stop_signal()?).await,
        }
    };
    tokio::select! {
        result = program => result?,
        () = tally.print_forever() => {}
    }
    print_line(&tally.count(true));
    Ok(())
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
