//! The `weft` program as a library: its command line and the parts that have no crate of their own ([`init`], [`local`],
//! [`demo`]). Services are other crates; this one hosts them.

pub mod demo;
pub mod destination;
mod flags;
pub mod identity;
pub mod init;
pub mod injector;
pub mod local;
pub mod shutdown;
pub mod validate_network;
pub mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line of `weft`.
#[derive(Parser, Debug)]
#[command(
    name = "weft",
    version,
    about = "A service mesh that speaks Linkerd's interfaces"
)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `weft`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Shows a mesh of real processes on this machine
    Demo(demo::DemoArgs),
    /// Runs a command as a workload of a mesh on this machine
    Run(local::run::RunArgs),
    /// Looks at a mesh on this machine
    #[command(subcommand)]
    Mesh(local::run::MeshCommand),
    /// Serves the certificate authority
    Identity(identity::IdentityArgs),
    /// Serves discovery and policy
    Destination(Box<destination::DestinationArgs>),
    /// Adds the proxy to pods that are created
    Injector(injector::InjectorArgs),
    /// Redirects the connections of a pod to its proxy
    Init(init::InitArgs),
    /// Waits until the proxy of a pod is ready; started in pods by the injector
    #[command(hide = true)]
    Await(wait::AwaitArgs),
    /// Tells the proxy of a pod to end; run in the proxy's container
    Shutdown(shutdown::ShutdownArgs),
    /// Checks that a CNI plugin redirects the connections of a pod; started in pods by the injector
    #[command(hide = true)]
    ValidateNetwork(validate_network::ValidateArgs),
    /// The network and the supervisor of a mesh on this machine; started by `run`
    #[command(hide = true)]
    MeshHost(local::host::HostArgs),
    /// The control plane of a mesh on this machine; started by the mesh host
    #[command(hide = true)]
    MeshControl(local::control::ControlArgs),
    /// A program of the demo; started by `demo`
    #[command(hide = true, subcommand)]
    DemoApp(demo::apps::DemoApp),
}

/// Reads the command line and does what it says. The exit code is 1 after an error, which is printed.
pub fn main() -> ExitCode {
    let arguments = flags::with_long_flags(std::env::args_os());
    match execute(Cli::parse_from(arguments).command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weft: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        // These two change the namespaces of the process, so no thread may be there yet.
        Command::MeshHost(args) => {
            start_log(&args.tuning.log)?;
            local::host::run_host(args).map(done)
        }
        Command::Init(args) => Ok(init::run_init(&args).map(done)?),
        // One thread, with which the commands that are started by it end.
        Command::Demo(args) => single()?.block_on(demo::run(args)),
        Command::Run(args) => single()?.block_on(local::run::run(args)),
        Command::Mesh(command) => single()?.block_on(local::run::look(command)).map(done),
        Command::DemoApp(app) => single()?.block_on(demo::apps::run(app)).map(done),
        Command::MeshControl(args) => {
            start_log(&args.tuning.log)?;
            single()?
                .block_on(local::control::run_control(args))
                .map(done)
        }
        Command::Identity(args) => single()?.block_on(identity::run(args)).map(done),
        Command::Injector(args) => single()?.block_on(injector::run(args)).map(done),
        Command::Await(args) => single()?.block_on(wait::run(args)).map(done),
        Command::Shutdown(args) => single()?.block_on(shutdown::run(args)).map(done),
        Command::ValidateNetwork(args) => single()?.block_on(validate_network::run(args)).map(done),
        Command::Destination(args) => single()?.block_on(destination::run(*args)).map(done),
    }
}

fn start_log(directives: &str) -> Result<(), weft_runtime::log::LogError> {
    weft_runtime::log::init(directives, weft_runtime::log::Format::Plain).map(drop)
}

fn single() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
