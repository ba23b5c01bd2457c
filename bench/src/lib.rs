//! The bench as a library: what is compared ([`peer`]), where ([`bed`]), under which load ([`workload`], [`measure`]), and
//! what is made of the figures ([`figures`], [`report`]). It starts proxies from outside and knows nothing of their inside.

pub mod bed;
pub mod certificates;
pub mod facts;
pub mod figures;
pub mod h2load;
pub mod iperf;
pub mod measure;
pub mod peer;
pub mod process;
pub mod report;
pub mod run;
pub mod stats;
pub mod syscalls;
pub mod wiring;
pub mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line of `weft-bench`.
#[derive(Parser, Debug)]
#[command(name = "weft-bench", version, about = "Measures proxies side by side")]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `weft-bench`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Compares proxies between two pods on this machine
    Run(Box<run::RunArgs>),
}

/// Reads the command line and does what it says. The exit code is 1 after an error, which is printed.
pub fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    // One thread, with which the programs that are started by it end.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Run(args) => runtime.block_on(run::run(*args)),
    }
}
