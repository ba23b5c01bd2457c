//! Gates on the cost of hot paths: instructions (by callgrind) and allocations of each, against what was accepted before.
//! Neither depends on how busy the machine is. What the paths are, is in `paths`, `requests` and `world`.

mod baseline;
mod callgrind;
mod control;
mod paths;
mod peers;
mod requests;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weft_runtime::allocations::{Counting, allocations};

use baseline::{Baseline, Cost, Verdict};

/// That of `weft-proxy`, counted.
#[global_allocator]
static ALLOCATOR: Counting<tikv_jemallocator::Jemalloc> = Counting(tikv_jemallocator::Jemalloc);

/// Gates on instructions and allocations of hot paths
#[derive(Parser)]
#[command(name = "weft-gates")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Take what is measured as the new baseline
    #[arg(long)]
    accept: bool,
    /// Only these gates
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Goes a path so many times and says how many allocations all of it took; this is what is measured
    Go { name: String, times: u32 },
}

/// A path that is measured.
struct Gate {
    name: &'static str,
    /// What is gone once, for people.
    what: &'static str,
    /// How often it is gone in the shorter of the two runs; the longer one goes it six times as often. Requests are many
    /// of 16, which is how many are sent at once over HTTP/2.
    times: u32,
}

const GATES: [Gate; 10] = [
    gate("detect", "HTTP/1, HTTP/2 and TLS told apart", 1000),
    gate("route", "one of 20 routes for a request", 1000),
    gate("pick", "one of 10 endpoints: p2c, peak-EWMA", 1000),
    gate("headers", "HTTP/1 carried on HTTP/2 and restored", 1000),
    gate("metrics", "a request and its response counted", 1000),
    gate("tls", "1 KiB sealed, sent and opened", 500),
    gate("outbound-http1", "a request to another proxy", 160),
    gate("outbound-http2", "the same, 16 at once", 160),
    gate("inbound-http1", "a request to the application", 160),
    gate("inbound-http2", "the same, 16 at once", 160),
];

const fn gate(name: &'static str, what: &'static str, times: u32) -> Gate {
    Gate { name, what, times }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Go { name, times }) => go(&name, times).map(|()| true),
        None => check(&cli.only, cli.accept),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft-gates: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One thread, as the proxy has with one worker.
fn go(name: &str, times: u32) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match name {
            "detect" => paths::detect(times),
            "route" => paths::route(times).await,
            "pick" => paths::pick(times).await,
            "headers" => paths::headers(times),
            "metrics" => paths::metrics(times),
            "tls" => paths::tls(times).await,
            "outbound-http1" => requests::outbound_http1(times).await,
            "outbound-http2" => requests::outbound_http2(times).await,
            "inbound-http1" => requests::inbound_http1(times).await,
            "inbound-http2" => requests::inbound_http2(times).await,
            _ => anyhow::bail!("there is no gate `{name}`"),
        }
    })?;
    println!("{}", allocations());
    Ok(())
}

/// Measures the gates; whether all are within the tolerance. Prints like `cargo test` does.
fn check(only: &[String], accept: bool) -> anyhow::Result<bool> {
    if let Some(unknown) = only.iter().find(|o| GATES.iter().all(|g| g.name != **o)) {
        anyhow::bail!("there is no gate `{unknown}`");
    }
    let mut baseline = Baseline::read()?;
    let runs = callgrind::usable();
    if let Err(reason) = &runs {
        println!("instructions are not counted: {reason:#}");
    }
    let gates = GATES
        .iter()
        .filter(|g| only.is_empty() || only.iter().any(|o| g.name == o));
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    for gate in gates {
        let measured = callgrind::cost(gate, runs.is_ok())?;
        let known = baseline.cost(gate.name);
        let verdicts = Cost::compare(known, measured);
        println!("gate {:<15} {} ({})", gate.name, verdicts, gate.what);
        for verdict in verdicts.0 {
            match verdict {
                Verdict::Within => passed += 1,
                Verdict::NotMeasured => ignored += 1,
                Verdict::Beyond(text) => failures.push(format!("{}: {text}", gate.name)),
            }
        }
        baseline.accept(gate.name, measured);
    }
    if accept {
        baseline.write()?;
        println!("accepted: {}", baseline::path().display());
        return Ok(true);
    }
    if !failures.is_empty() {
        println!("\n{}\n{}", failures.join("\n"), baseline.advice());
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {ignored} ignored",
        failures.len()
    );
    Ok(failures.is_empty())
}
