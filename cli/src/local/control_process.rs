//! Owns the control plane as the mesh host sees it: starts it and its proxy in their sandbox, keeps both running, and holds
//! what it has seen of the manifests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use weft_runtime::namespace::{self, Namespaces, NewNamespaces};

use super::control::{PodAddress, Seen, Tuning};
use super::facts::{self, Prepared};
use super::host::Host;
use super::netns::{CONTROL, Sandbox};
use super::place::{self, Place};
use super::protocol;
use super::sidecar::{CONTROL_NAME, ControlPlane, Facts, how};
use super::workload::StartError;
use crate::init::rules::Rules;

/// Longest wait for the control plane to serve.
const START: Duration = Duration::from_secs(20);
/// Longest wait for a manifest that was written just now to be seen.
const MANIFEST: Duration = Duration::from_secs(1);
/// Pause before an ended control plane is started again.
const RESTART: Duration = Duration::from_secs(1);

/// Lines read ahead; the host takes each at once.
const LINES: usize = 4;

type Addresses = BTreeMap<(String, String), IpAddr>;

/// The control plane of a mesh.
pub struct ControlProcess {
    arguments: Vec<String>,
    log: PathBuf,
    state: watch::Sender<State>,
    addresses: watch::Sender<Addresses>,
}

/// How far the control plane is.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What it has seen of the manifests.
    pub seen: Arc<Seen>,
    ready: bool,
    failed: Option<String>,
}

/// Why the control plane does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Its sandbox or its proxy.
    #[error(transparent)]
    Start(#[from] Box<StartError>),
    /// The process.
    #[error("cannot start the control plane: {0}")]
    Spawn(#[from] io::Error),
    /// It ended or said nothing.
    #[error("the control plane does not serve ({why}); its log ({}) ends with:\n{tail}", log.display())]
    Silent {
        /// What happened.
        why: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
}

struct Process {
    child: Child,
    orders: OwnedWriteHalf,
    lines: mpsc::Receiver<Seen>,
    told: Addresses,
}

impl ControlProcess {
    /// The control plane of a place; it is started by [`ControlProcess::run`].
    pub fn new(place: &Place, tuning: &Tuning) -> Self {
        let mut arguments = vec![
            "mesh-control".to_owned(),
            format!("--manifests={}", place.manifests.display()),
            format!("--authority={}", place.authority().display()),
        ];
        arguments.extend(tuning.arguments());
        let log = place.logs().join("mesh-control.log");
        ControlProcess {
            arguments,
            log,
            state: watch::Sender::default(),
            addresses: watch::Sender::default(),
        }
    }

    /// How far it is, as it changes.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Waits until it serves and has seen a Pod; after a moment without that Pod, gives back what it has seen.
    pub async fn ready(&self, namespace: &str, name: &str) -> Result<Arc<Seen>, StartError> {
        let mut watch = self.watch();
        // The sender lives in `self`, so that each wait ends by its condition.
        let state = watch
            .wait_for(|state| state.ready || state.failed.is_some())
            .await;
        if let Some(error) = state.ok().and_then(|state| state.failed.clone()) {
            return Err(StartError::Control(error));
        }
        let seen = watch.wait_for(|state| facts::find(&state.seen, namespace, name).is_ok());
        // Somebody else's manifest may be on its way; a Pod that is missing for longer is missing.
        let _ = timeout(MANIFEST, seen).await.is_ok();
        let seen = Arc::clone(&watch.borrow().seen);
        Ok(seen)
    }

    /// Gives a pod its address or takes it back; told to the control plane at once, and again should it be started anew.
    pub fn set_address(&self, namespace: &str, workload: &str, ip: Option<IpAddr>) {
        let key = (namespace.to_owned(), workload.to_owned());
        self.addresses.send_modify(|addresses| match ip {
            Some(ip) => drop(addresses.insert(key, ip)),
            None => drop(addresses.remove(&key)),
        });
    }

    /// Runs the control plane. When it cannot be started, clients are told why and nothing else happens.
    pub async fn run(&self, host: Arc<Host>) -> Infallible {
        match self.try_run(&host).await {
            Ok(never) => never,
            Err(error) => {
                tracing::error!(%error, "no control plane");
                self.state
                    .send_modify(|state| state.failed = Some(error.to_string()));
                std::future::pending().await
            }
        }
    }

    async fn try_run(&self, host: &Host) -> Result<Infallible, ControlError> {
        let hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        let idle = host
            .prepare(own_pod(), hosts, ControlPlane::Own)
            .await
            .map_err(Box::new)?;
        // Before its proxy, which asks for a certificate first of all.
        let mut process = self.start(idle.sandbox()).await?;
        let mut workload = idle.start().map_err(Box::new)?;
        workload
            .ready()
            .await
            .map_err(|error| Box::new(error.into()))?;
        host.note(workload.started());
        self.state.send_modify(|state| state.ready = true);
        let mut addresses = self.addresses.subscribe();
        addresses.mark_changed();
        loop {
            tokio::select! {
                seen = process.lines.recv() => match seen {
                    Some(seen) => self.saw(seen),
                    None => {
                        log_end(&mut process.child).await;
                        process = self.start_again(workload.sandbox()).await;
                        addresses.mark_changed();
                    }
                },
                _ = addresses.changed() => {
                    let current = addresses.borrow_and_update().clone();
                    process.tell(&current).await;
                }
                happening = workload.look_after() => {
                    if let Err(error) = happening {
                        tracing::error!(%error, "the proxy of the control plane");
                    }
                    host.note(workload.started());
                }
            }
        }
    }

    /// Starts the process and waits for its first line.
    async fn start(&self, sandbox: &Sandbox) -> Result<Process, ControlError> {
        let mut process = self.spawn(sandbox)?;
        let why = match timeout(START, process.lines.recv()).await {
            Ok(Some(seen)) => {
                self.saw(seen);
                return Ok(process);
            }
            Ok(None) => process
                .child
                .wait()
                .await
                .map_or_else(|error| error.to_string(), how),
            Err(_) => format!("nothing after {START:?}"),
        };
        Err(ControlError::Silent {
            why,
            log: self.log.clone(),
            tail: place::tail(&self.log),
        })
    }

    /// Starts the process until it serves; the proxies go on meanwhile with what they know.
    async fn start_again(&self, sandbox: &Sandbox) -> Process {
        loop {
            sleep(RESTART).await;
            match self.start(sandbox).await {
                Ok(process) => return process,
                Err(error) => tracing::error!(%error, "no control plane"),
            }
        }
    }

    fn spawn(&self, sandbox: &Sandbox) -> Result<Process, ControlError> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let (ours, theirs) = StdStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(&self.arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(log.try_clone()?)
            .stderr(log);
        command.kill_on_drop(true);
        let join = Namespaces {
            net: Some(sandbox.net.try_clone()?),
            mount: Some(sandbox.mount.try_clone()?),
            ..Namespaces::default()
        };
        let child = namespace::spawn(&mut command, &join, None, NewNamespaces::default(), true)?;
        ours.set_nonblocking(true)?;
        let (lines, orders) = UnixStream::from_std(ours)?.into_split();
        let (sender, receiver) = mpsc::channel(LINES);
        tokio::spawn(read_lines(lines, sender));
        Ok(Process {
            child,
            orders,
            lines: receiver,
            told: Addresses::new(),
        })
    }

    fn saw(&self, seen: Seen) {
        for error in &seen.errors {
            tracing::warn!(error, "a manifest is broken");
        }
        self.state.send_modify(|state| state.seen = Arc::new(seen));
    }
}

/// Reads what the control plane has seen, in a task of its own since a line must not be left half read.
async fn read_lines(lines: OwnedReadHalf, sender: mpsc::Sender<Seen>) {
    let mut lines = BufReader::new(lines);
    loop {
        match protocol::read(&mut lines).await {
            Ok(Some(seen)) => {
                if sender.send(seen).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the control plane is not understood");
                return;
            }
        }
    }
}

async fn log_end(child: &mut Child) {
    // One that still runs but cannot be understood is of no use.
    let _ = child.kill().await;
    let how = child
        .wait()
        .await
        .map_or_else(|error| error.to_string(), how);
    tracing::warn!(how, "the control plane ended; starting it again");
}

impl Process {
    /// Tells what differs from what it was told before. An error shows as its end.
    async fn tell(&mut self, addresses: &Addresses) {
        let new = addresses
            .iter()
            .filter(|(key, ip)| self.told.get(*key) != Some(*ip));
        let gone = self.told.keys().filter(|key| !addresses.contains_key(*key));
        let orders: Vec<PodAddress> = gone
            .map(|key| PodAddress::new(key, None))
            .chain(new.map(|(key, ip)| PodAddress::new(key, Some(*ip))))
            .collect();
        for order in orders {
            if protocol::write(&mut self.orders, &order).await.is_err() {
                return;
            }
        }
        self.told = addresses.clone();
    }
}

fn own_pod() -> Prepared {
    let facts = Facts {
        namespace: "linkerd".to_owned(),
        workload: CONTROL_NAME.to_owned(),
        service_account: CONTROL_NAME.to_owned(),
        ports: vec![8080, 8086, 8090],
        ..Facts::default()
    };
    Prepared {
        facts,
        rules: Some(Rules::default()),
        ip: CONTROL,
    }
}
