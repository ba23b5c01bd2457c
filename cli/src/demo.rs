//! Owns `weft demo`: a small system in a real mesh on this machine, told as a story with live figures from the proxies.
//! Namespaces and proxies are the work of [`crate::local`].

pub mod apps;
pub mod report;
pub mod scrape;
pub mod stage;
pub mod story;
pub mod table;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::local::run::{own_program, proxy_beside};
use crate::local::{Mesh, MeshOptions, Tuning};
use report::Report;
use stage::Stage;
use story::{Act, LEAVER};
use table::Scene;

/// How often the figures are read and shown.
const TICK: Duration = Duration::from_secs(1);

/// Arguments of `weft demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// How long to run, e.g. `20s` or `5m`; without it until Ctrl-C
    #[arg(long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// What to print; by default a table on a terminal and lines otherwise
    #[arg(long, value_enum)]
    pub output: Option<Output>,
    /// Folder for manifests and logs, kept at the end; by default a temporary one
    #[arg(long)]
    pub state_dir: Option<PathBuf>,
    /// The proxy program; by default the weft-proxy beside this program
    #[arg(long)]
    pub proxy: Option<PathBuf>,
}

/// Forms of output.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A table, redrawn in place
    Table,
    /// A line a second, the table at the end
    Lines,
    /// One JSON document at the end
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = weft_core::parse::duration(text).map_err(|error| error.to_string())?;
    if duration < Duration::from_secs(5) {
        Err("at least 5s are needed".to_owned())
    } else {
        Ok(duration)
    }
}

/// Runs `weft demo`. The exit code is 1 if a request failed, an edge was not mutual TLS, or counts disagree.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::Builder::new().prefix("weft-demo-").tempdir()?;
    let folder = args
        .state_dir
        .clone()
        .unwrap_or_else(|| temporary.path().to_owned());
    let manifests = folder.join("manifests");
    write_manifests(&manifests)?;
    let options = MeshOptions {
        manifests: manifests.clone(),
        state_dir: Some(folder.join("mesh")),
        weft: own_program()?,
        proxy: proxy_beside(args.proxy.clone())?,
        ephemeral: args.state_dir.is_none().then(|| folder.clone()),
        tuning: Tuning {
            certificate_seconds: story::certificate_seconds(args.duration),
            min_refresh_ms: Some(1000),
            ..Tuning::default()
        },
    };
    let screen = Screen::new(&args);
    let show = async {
        let mesh = Mesh::open(&options).await?;
        let stage = Stage::new(mesh, own_program()?, &manifests);
        Show {
            stage,
            screen,
            duration: args.duration,
            act: Act::All,
        }
        .run()
        .await
    };
    let report = tokio::select! {
        report = show => report?,
        () = interrupted_twice() => bail!("interrupted"),
    };
    for problem in &report.problems {
        eprintln!("weft demo: {problem}");
    }
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write_manifests(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in story::manifests() {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The first Ctrl-C ends the traffic and shows the figures, the second one ends at once.
async fn interrupted_twice() {
    weft_runtime::process::terminated().await;
    weft_runtime::process::terminated().await;
}

struct Show {
    stage: Stage,
    screen: Screen,
    duration: Option<Duration>,
    act: Act,
}

impl Show {
    async fn run(mut self) -> anyhow::Result<Report> {
        let stop = weft_runtime::process::terminated();
        tokio::pin!(stop);
        for name in story::WORKLOADS {
            self.screen
                .progress(&format!("starting {name} and its proxy"));
            tokio::select! {
                started = self.stage.start(name) => started?,
                // Nothing to report yet; dropping all connections ends the mesh.
                _ = &mut stop => bail!("interrupted"),
            }
        }
        let start = Instant::now();
        self.play(start, stop).await?;
        let played = start.elapsed();
        self.screen
            .progress("the traffic ends; comparing all counts");
        self.stage.end_traffic().await?;
        self.stage.look().await?;
        let report = self.stage.ledger.report(true);
        let scene = self
            .screen
            .scene(played, self.duration, "the end".to_owned(), &report);
        self.screen.last(&report, &scene)?;
        self.stage.close().await?;
        Ok(report)
    }

    async fn play(
        &mut self,
        start: Instant,
        mut stop: Pin<&mut impl Future>,
    ) -> anyhow::Result<()> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            // Only between two acts, so that no figures are lost.
            tokio::select! {
                _ = tick.tick() => {}
                _ = &mut stop => return Ok(()),
            }
            if self
                .duration
                .is_some_and(|duration| start.elapsed() >= duration)
            {
                return Ok(());
            }
            if let Some(broken) = self.stage.broken() {
                bail!("{broken}");
            }
            self.follow(Act::at(start.elapsed(), self.duration)).await?;
            self.stage.look().await?;
            let report = self.stage.ledger.report(false);
            let scene = self
                .screen
                .scene(start.elapsed(), self.duration, self.act.line(), &report);
            self.screen.show(&report, &scene)?;
        }
    }

    /// Does what leads to `act`, and what comes before it if that was not done yet.
    async fn follow(&mut self, act: Act) -> anyhow::Result<()> {
        while self.act != act {
            if self.act == Act::Draining {
                sleep(story::DRAIN_AT_LEAST).await;
            }
            self.act = self.act.next();
            self.screen.progress(&self.act.line());
            match self.act {
                Act::All => {}
                Act::Draining => self.stage.list(LEAVER, false)?,
                Act::Away => self.stage.stop(LEAVER).await?,
                Act::Back => {
                    self.stage.list(LEAVER, true)?;
                    self.stage.start(LEAVER).await?;
                }
            }
        }
        Ok(())
    }
}

/// Where the figures are shown.
struct Screen {
    output: Output,
    drawn: usize,
    before: Option<(Duration, Vec<u64>)>,
}

impl Screen {
    fn new(args: &DemoArgs) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let output = args.output.unwrap_or(if terminal {
            Output::Table
        } else {
            Output::Lines
        });
        Screen {
            output,
            drawn: 0,
            before: None,
        }
    }

    /// Tells what is being done; the table says it by itself once it is there.
    fn progress(&self, what: &str) {
        if self.output != Output::Table || self.drawn == 0 {
            eprintln!("weft demo: {what}");
        }
    }

    fn scene(
        &mut self,
        elapsed: Duration,
        duration: Option<Duration>,
        story: String,
        report: &Report,
    ) -> Scene {
        let now: Vec<u64> = report.edges.iter().map(|edge| edge.requests).collect();
        let rates = self
            .before
            .as_ref()
            .map_or_else(Vec::new, |(then, before)| {
                let seconds = elapsed.saturating_sub(*then).as_secs_f64().max(0.001);
                now.iter()
                    .zip(before)
                    .map(|(now, before)| now.saturating_sub(*before) as f64 / seconds)
                    .collect()
            });
        self.before = Some((elapsed, now));
        let duration_s = duration.map(|duration| duration.as_secs_f64());
        Scene {
            elapsed_s: elapsed.as_secs_f64(),
            duration_s,
            story,
            rates,
        }
    }

    fn show(&mut self, report: &Report, scene: &Scene) -> std::io::Result<()> {
        let mut to = std::io::stdout().lock();
        match self.output {
            Output::Table => {
                let text = table::table(report, scene);
                write!(to, "{}{text}", table::redraw(self.drawn))?;
                self.drawn = text.lines().count();
            }
            Output::Lines => writeln!(to, "{}", table::line(report, scene))?,
            Output::Json => {}
        }
        to.flush()
    }

    fn last(&mut self, report: &Report, scene: &Scene) -> anyhow::Result<()> {
        if self.output == Output::Table {
            return Ok(self.show(report, scene)?);
        }
        let mut to = std::io::stdout().lock();
        match self.output {
            Output::Json => writeln!(to, "{}", serde_json::to_string_pretty(report)?)?,
            _ => write!(to, "\n{}", table::table(report, scene))?,
        }
        Ok(to.flush()?)
    }
}
