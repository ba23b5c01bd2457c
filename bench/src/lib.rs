//! The bench as a library: what is compared ([`peer`]), where ([`bed`]), under which load ([`workload`], [`measure`]), and
//! what is made of the figures ([`figures`], [`report`]). It starts proxies from outside and knows nothing of their inside.

pub mod app;
pub mod balance;
pub mod bed;
pub mod certificates;
pub mod control_plane;
pub mod facts;
pub mod figures;
pub mod h2load;
pub mod hold;
pub mod iperf;
pub mod load;
pub mod measure;
pub mod peer;
pub mod process;
pub mod relay;
pub mod report;
pub mod results;
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
    /// Simulates ways to balance, and lets real pods show Weft's
    Balance(balance::BalanceArgs),
    /// Measures the control plane under thousands of subscriptions
    ControlPlane(control_plane::ControlPlaneArgs),
    /// Writes the report of a folder of results again, from its runs.json
    Report {
        /// The folder
        folder: std::path::PathBuf,
    },
    /// The application that is asked; started by `run`
    #[command(hide = true)]
    App(app::AppArgs),
    /// A load generator; started by `run`
    #[command(hide = true)]
    Load(load::LoadArgs),
    /// The services that are asked; started by `control-plane`
    #[command(hide = true)]
    ControlServer(control_plane::server::ServerArgs),
    /// Holds connections; started by `run`
    #[command(hide = true)]
    Hold(hold::HoldArgs),
    /// A proxy that only passes bytes on; started by `run`
    #[command(hide = true)]
    Relay(relay::RelayArgs),
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match command {
        Command::Run(args) => runtime.block_on(run::run(*args)),
        Command::Balance(args) => runtime.block_on(balance::run(args)),
        Command::ControlPlane(args) => runtime.block_on(control_plane::run(args)),
        Command::ControlServer(args) => runtime.block_on(control_plane::server::run(args)),
        Command::Report { folder } => {
            let results = serde_json::from_slice(&std::fs::read(folder.join("runs.json"))?)?;
            report::write(&results, &folder)
        }
        Command::App(args) => runtime.block_on(app::run(args)),
        Command::Load(args) => runtime.block_on(load::run(args)),
        Command::Hold(args) => runtime.block_on(hold::run(args)),
        Command::Relay(args) => runtime.block_on(relay::run(args)),
    }
}
