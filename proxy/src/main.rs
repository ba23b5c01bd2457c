//! The data plane's process: settings, logging, runtime. All else is in the library.

use std::process::ExitCode;
use weft_proxy::app;
use weft_proxy::settings::{ProcessEnv, Settings};
use weft_runtime::log;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A setting is not valid (contract 1.1).
const BAD_SETTINGS: u8 = 64;

fn main() -> ExitCode {
    let settings = match Settings::from_env(&ProcessEnv) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in errors {
                eprintln!("weft-proxy: {error}");
            }
            return ExitCode::from(BAD_SETTINGS);
        }
    };
    match run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    let log = log::init(&settings.log.directives, settings.log.format)?;
    if !settings.not_yet.is_empty() {
        tracing::warn!(names = ?settings.not_yet, "set, but not acted on by this version");
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = settings.runtime.workers.count(cpus);
    let mut runtime = match workers {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers > 1 {
        runtime.worker_threads(workers);
    }
    let runtime = runtime.enable_all().build()?;
    let ended = runtime.block_on(app::run(settings, log));
    // What is still running was given its grace period.
    runtime.shutdown_background();
    Ok(ended?)
}
