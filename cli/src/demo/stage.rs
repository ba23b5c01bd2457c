//! Owns what runs during the demo: each workload's command in its sandbox, and what it and its proxy say. What is to happen
//! when is in [`super::story`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::apps::Count;
use super::report::Ledger;
use super::scrape;
use super::story::{self, NAMESPACE};
use crate::local::{Mesh, Workload};

/// Longest wait for a program to begin or to end its work.
const LIMIT: Duration = Duration::from_secs(10);
/// After the last request, counters of all proxies and lines of all programs are up to date within this time.
const QUIET: Duration = Duration::from_millis(500);

/// All that runs.
pub struct Stage {
    mesh: Mesh,
    program: PathBuf,
    manifests: PathBuf,
    players: BTreeMap<&'static str, Player>,
    /// What is known so far.
    pub ledger: Ledger,
}

struct Player {
    workload: Workload,
    child: Child,
    count: watch::Receiver<Option<Count>>,
}

impl Stage {
    /// An empty stage for a mesh.
    pub fn new(mesh: Mesh, program: PathBuf, manifests: &Path) -> Self {
        let (manifests, players) = (manifests.to_owned(), BTreeMap::new());
        Stage {
            mesh,
            program,
            manifests,
            players,
            ledger: Ledger::default(),
        }
    }

    /// Starts a workload and its program; it works when this returns.
    pub async fn start(&mut self, name: &'static str) -> anyhow::Result<()> {
        let workload = self.mesh.start(NAMESPACE, name).await?;
        let mut command = Command::new(&self.program);
        command.arg("demo-app").args(story::arguments(name));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = workload
            .spawn(&mut command)
            .with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().context("a child without output")?;
        let (sender, mut count) = watch::channel(None);
        tokio::spawn(read_counts(output, sender));
        let working = timeout(LIMIT, count.wait_for(Option::is_some)).await;
        if !matches!(working, Ok(Ok(_))) {
            bail!("{name} does not begin its work");
        }
        drop(working);
        self.ledger.begin(name);
        self.players.insert(
            name,
            Player {
                workload,
                child,
                count,
            },
        );
        Ok(())
    }

    /// Takes a workload's Pod out of the manifests, as a person or a pipeline would, or puts it back.
    pub fn list(&self, name: &str, listed: bool) -> anyhow::Result<()> {
        let file = self.manifests.join(story::file_of(name));
        let aside = file.with_extension("aside");
        let (from, to) = if listed { (aside, file) } else { (file, aside) };
        std::fs::rename(&from, &to).with_context(|| format!("cannot rename {}", from.display()))
    }

    /// Ends a workload: SIGTERM to its program, a last look at its proxy, then the proxy.
    pub async fn stop(&mut self, name: &'static str) -> anyhow::Result<()> {
        let Some(mut player) = self.players.remove(name) else {
            return Ok(());
        };
        end(name, &mut player).await?;
        sleep(QUIET).await;
        let page = self.mesh.fetch(NAMESPACE, name, "/metrics").await?;
        self.ledger.scraped(name, scrape::parse(&page.body));
        self.ledger.counted(name, last_count(name, &player)?);
        player
            .workload
            .stop()
            .await
            .with_context(|| format!("{name} has ended, but"))
    }

    /// Ends the traffic and waits until nothing is under way.
    pub async fn end_traffic(&mut self) -> anyhow::Result<()> {
        if let Some(load) = self.players.get_mut("load") {
            end("load", load).await?;
        }
        sleep(QUIET).await;
        Ok(())
    }

    /// Reads what all programs and proxies say.
    pub async fn look(&mut self) -> anyhow::Result<()> {
        for (name, player) in &mut self.players {
            let page = self.mesh.fetch(NAMESPACE, name, "/metrics").await;
            let page = page.with_context(|| format!("cannot read the figures of {name}"))?;
            self.ledger.scraped(name, scrape::parse(&page.body));
            self.ledger.counted(name, last_count(name, player)?);
        }
        Ok(())
    }

    /// Returns when a program has ended that should not have, or the mesh is lost.
    pub fn broken(&mut self) -> Option<String> {
        self.players
            .iter_mut()
            .find_map(|(name, player)| match player.child.try_wait() {
                Ok(Some(status)) if !(*name == "load" && status.success()) => {
                    Some(format!("{name} ended: {status}"))
                }
                _ => None,
            })
    }

    /// Ends everything, those who ask before those who answer.
    pub async fn close(mut self) -> anyhow::Result<()> {
        for name in story::WORKLOADS.into_iter().rev() {
            if let Some(mut player) = self.players.remove(name) {
                end(name, &mut player).await?;
                player
                    .workload
                    .stop()
                    .await
                    .with_context(|| format!("{name} has ended, but"))?;
            }
        }
        self.mesh.close().await;
        Ok(())
    }
}

async fn end(name: &str, player: &mut Player) -> anyhow::Result<()> {
    if let Some(pid) = player.child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    match timeout(LIMIT, player.child.wait()).await {
        Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => {}
        Ok(status) => bail!("{name} ended with {status:?}"),
        Err(_) => bail!("{name} does not end on SIGTERM"),
    }
    // Its last line is in the pipe by now, and the end of the pipe behind it.
    let _ = timeout(
        LIMIT,
        player
            .count
            .wait_for(|count| count.as_ref().is_some_and(|count| count.last)),
    )
    .await;
    Ok(())
}

fn last_count(name: &str, player: &Player) -> anyhow::Result<Count> {
    player
        .count
        .borrow()
        .clone()
        .with_context(|| format!("{name} has said nothing"))
}

/// Keeps the latest line of a program.
async fn read_counts(output: ChildStdout, sender: watch::Sender<Option<Count>>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(count) => drop(sender.send_replace(Some(count))),
            Err(error) => tracing::warn!(line, %error, "a demo program said something else"),
        }
    }
}
