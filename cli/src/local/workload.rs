//! Owns one workload in the mesh host: its sandbox, its proxy, its token and its `/etc/hosts`, from start to end. The
//! command that it is for is run by the client, not here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{Instant, sleep, sleep_until};

use super::facts::{self, FactsError};
use super::netns::{self, NamespaceError, Plan, Sandbox};
use super::protocol::{Reply, Started};
use super::sidecar::{self, ControlPlane, Program, Sidecar, SidecarError};

/// Validity of a workload's token, as in a cluster (contract 2.1).
const TOKEN_LIFETIME: Duration = Duration::from_secs(86_400);
/// A token is replaced when half of its life is over.
const TOKEN_RENEWAL: Duration = Duration::from_secs(43_200);
/// How often to look whether the command listens by now. A cluster has readiness probes for this; here the kernel is asked,
/// so that no request comes before it can be taken.
const LISTENING: Duration = Duration::from_millis(25);
/// Pause before an ended proxy is started again, as a kubelet would.
const RESTART: Duration = Duration::from_secs(1);

/// Why a workload cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its Pod.
    #[error(transparent)]
    Pod(#[from] FactsError),
    /// It runs already.
    #[error(
        "workload `{0}` runs already in this mesh; stop that one, or add a second Pod with another name"
    )]
    Running(String),
    /// Its address belongs to another one, or to none of the mesh's.
    #[error(
        "status.podIP of Pod `{0}` must be a free address of 10.88.0.0/16, not {1}; leave it out to get one"
    )]
    Address(String, String),
    /// All addresses are in use.
    #[error("no address of 10.88.0.0/16 is left")]
    Full,
    /// There is no control plane.
    #[error("{0}")]
    Control(String),
    /// Its namespaces.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Its proxy.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// A file of it.
    #[error("cannot make {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What signs the tokens of a workload; a function so that this file need not know the authority.
pub type Token = Box<dyn Fn(Duration) -> String + Send + Sync>;

/// What happened to a workload.
pub enum Happening {
    /// Its command listens now, so that it can be an endpoint.
    Listens,
    /// The client is to be told.
    Tell(Reply),
}

/// What to start.
pub struct Start {
    /// The proxy.
    pub sidecar: Sidecar,
    /// Namespaces without the path of the hosts file, which is set here.
    pub plan: Plan,
    /// First text of `/etc/hosts`.
    pub hosts: String,
    /// Makes tokens.
    pub token: Token,
    /// Its namespace.
    pub namespace: String,
    /// Its container ports.
    pub ports: Vec<u16>,
    /// File to open for the user namespace of the mesh, if it has one.
    pub user: Option<PathBuf>,
}

/// A workload whose namespaces are made and whose proxy is still to be started.
pub struct Idle {
    start: Start,
    sandbox: Sandbox,
    hosts: File,
}

impl Idle {
    /// Makes the namespaces and the files of a workload.
    pub async fn new(mut start: Start) -> Result<Self, StartError> {
        start.sidecar.prepare(&(start.token)(TOKEN_LIFETIME))?;
        let path = start.sidecar.folder.join("hosts");
        let failed = |source| StartError::File {
            path: path.clone(),
            source,
        };
        let hosts = File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&path)
            .map_err(failed)?;
        write_hosts(&hosts, &start.hosts).map_err(failed)?;
        start.plan.hosts = path.clone();
        let sandbox = netns::sandbox(start.plan.clone()).await?;
        Ok(Idle {
            start,
            sandbox,
            hosts,
        })
    }

    /// Its namespaces.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Starts the proxy, without waiting until it is ready.
    pub fn start(self) -> Result<Workload, StartError> {
        let Idle {
            start,
            sandbox,
            hosts,
        } = self;
        let proxy = start.sidecar.spawn(&sandbox, true)?;
        let own = |fd: i32| PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let started = Started {
            namespace: start.namespace,
            workload: start.sidecar.workload.clone(),
            ip: start.plan.ip,
            proxy_pid: proxy.id().unwrap_or_default(),
            proxy_log: start.sidecar.log.clone(),
            net: own(sandbox.net.as_raw_fd()),
            mount: own(sandbox.mount.as_raw_fd()),
            user: start.user,
        };
        let upkeep = Upkeep {
            restart: None,
            renewal: Instant::now() + TOKEN_RENEWAL,
            listens: false,
        };
        let (sidecar, token, ports) = (start.sidecar, start.token, start.ports);
        Ok(Workload {
            sidecar,
            sandbox,
            proxy,
            hosts,
            token,
            upkeep,
            ended: String::new(),
            ports,
            started,
        })
    }
}

/// A workload that runs.
pub struct Workload {
    sidecar: Sidecar,
    sandbox: Sandbox,
    proxy: Child,
    hosts: File,
    token: Token,
    upkeep: Upkeep,
    /// How the proxy ended, until it is started again.
    ended: String,
    ports: Vec<u16>,
    started: Started,
}

impl Workload {
    /// Waits until the proxy is ready.
    pub async fn ready(&mut self) -> Result<(), SidecarError> {
        self.sidecar.ready(&self.sandbox, &mut self.proxy).await
    }

    /// Where it is.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Its namespaces.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Replaces its `/etc/hosts`.
    pub fn set_hosts(&self, text: &str) -> io::Result<()> {
        write_hosts(&self.hosts, text)
    }

    /// Keeps the token fresh and the proxy running; returns when there is something to tell. It may be dropped and called
    /// again at any time.
    pub async fn look_after(&mut self) -> Result<Happening, SidecarError> {
        loop {
            let due = tokio::select! {
                status = self.proxy.wait(), if self.upkeep.restart.is_none() => {
                    self.ended = status.map_or_else(|error| error.to_string(), sidecar::how);
                    tracing::warn!(workload = self.sidecar.workload, how = self.ended, "the proxy ended; starting it again");
                    self.upkeep.restart = Some(Instant::now() + RESTART);
                    continue;
                }
                due = self.upkeep.due() => due,
            };
            match due {
                Due::Restart => {
                    self.proxy = self.sidecar.spawn(&self.sandbox, false)?;
                    let (how, proxy_pid) = (
                        std::mem::take(&mut self.ended),
                        self.proxy.id().unwrap_or_default(),
                    );
                    self.started.proxy_pid = proxy_pid;
                    return Ok(Happening::Tell(Reply::ProxyRestarted { how, proxy_pid }));
                }
                Due::Token => self.sidecar.write_token(&(self.token)(TOKEN_LIFETIME))?,
                Due::Look => {
                    let open = listening(self.started.proxy_pid);
                    if self.ports.is_empty() || self.ports.iter().any(|port| open.contains(port)) {
                        self.upkeep.listens = true;
                        return Ok(Happening::Listens);
                    }
                }
            }
        }
    }

    /// Drains the proxy, ends whatever is left in the namespaces and removes its files.
    pub async fn end(mut self) {
        sidecar::end(&mut self.proxy).await;
        kill_all_in(&self.sandbox.net);
        if let Err(error) = std::fs::remove_dir_all(&self.sidecar.folder) {
            tracing::warn!(folder = %self.sidecar.folder.display(), %error, "cannot remove the files of a workload");
        }
    }
}

/// Writes over the same file, because the bind mount follows the file and not its name; never empty in between.
fn write_hosts(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// When to do what for a running workload.
struct Upkeep {
    /// When to start the proxy again, while it is down.
    restart: Option<Instant>,
    /// When to replace the token.
    renewal: Instant,
    /// The command has been seen to listen.
    listens: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Restart,
    Token,
    Look,
}

impl Upkeep {
    /// Waits for the next thing to do. May be dropped and called again: what is due then comes at once.
    async fn due(&mut self) -> Due {
        tokio::select! {
            biased;
            () = sleep_until(self.restart.unwrap_or(self.renewal)), if self.restart.is_some() => {
                self.restart = None;
                Due::Restart
            }
            () = sleep_until(self.renewal) => {
                self.renewal += TOKEN_RENEWAL;
                Due::Token
            }
            () = sleep(LISTENING), if !self.listens => Due::Look,
        }
    }
}

/// The TCP ports on which somebody listens in the network of a process (proc(5), `/proc/PID/net/tcp`).
fn listening(pid: u32) -> Vec<u16> {
    // Without IPv6 there is no second file, and none at all once the process has gone.
    let read =
        |name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    listening_ports(&(read("tcp") + &read("tcp6")))
}

fn listening_ports(table: &str) -> Vec<u16> {
    const LISTEN: &str = "0A";
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        let port = local.rsplit_once(':').filter(|_| state == LISTEN)?.1;
        u16::from_str_radix(port, 16).ok()
    };
    table.lines().filter_map(line).collect()
}

/// Kills all processes in a network: children of a command may outlive it.
pub fn kill_all_in(net: &OwnedFd) {
    let Ok(file) = net
        .try_clone()
        .map(File::from)
        .and_then(|file| file.metadata())
    else {
        return;
    };
    for pid in processes_in((file.dev(), file.ino())) {
        // It may have ended since.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The processes whose network namespace is this one (device and inode of its file).
pub fn processes_in(net: (u64, u64)) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let file = std::fs::metadata(Path::new("/proc").join(pid.to_string()).join("ns/net"));
        file.is_ok_and(|file| (file.dev(), file.ino()) == net)
    })
    .collect()
}

/// The sidecar of a Pod, in a folder below the current one.
pub fn sidecar(
    pod: &facts::Prepared,
    common: &sidecar::Common,
    logs: &Path,
    control: ControlPlane,
) -> Sidecar {
    let name = format!("{}.{}", pod.facts.namespace, pod.facts.workload);
    Sidecar {
        workload: pod.facts.workload.clone(),
        log: logs.join(format!("{name}.log")),
        folder: PathBuf::from(name),
        // Bound beside the folders of the workloads, because its own folder may be closed to the proxy's user.
        program: match pod.rules {
            Some(_) => Program::Proxy(PathBuf::from("../weft-proxy")),
            None => Program::Pause,
        },
        environment: sidecar::environment(common, &pod.facts, pod.ip, control),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:0050 0100007F:A2B4 01 00000000:00000000\n\
             0: 00000000000000000000000000000000:18EB 00000000000000000000000000000000:0000 0A 0\n";
        assert_eq!(listening_ports(table), [8080, 6379]);
    }

    #[tokio::test(start_paused = true)]
    async fn things_are_done_when_they_are_due() {
        let start = Instant::now();
        let mut upkeep = Upkeep {
            restart: Some(start + RESTART),
            renewal: start + TOKEN_RENEWAL,
            listens: false,
        };
        assert_eq!(upkeep.due().await, Due::Look);
        assert_eq!(start.elapsed(), LISTENING);
        upkeep.listens = true;
        assert_eq!(upkeep.due().await, Due::Restart);
        assert_eq!(start.elapsed(), RESTART);
        for round in 1..=2 {
            assert_eq!(upkeep.due().await, Due::Token);
            assert_eq!(start.elapsed(), TOKEN_RENEWAL * round);
        }
        assert!(TOKEN_RENEWAL < TOKEN_LIFETIME);
    }

    #[test]
    fn a_hosts_file_is_replaced_in_place() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for text in ["a longer text\n", "short\n"] {
            write_hosts(file.as_file(), text).expect("writes");
            assert_eq!(std::fs::read_to_string(file.path()).expect("reads"), text);
        }
    }

    #[test]
    fn we_are_in_our_own_network() {
        let own = std::fs::metadata("/proc/self/ns/net").expect("there is one");
        let pids = processes_in((own.dev(), own.ino()));
        assert!(pids.contains(&i32::try_from(std::process::id()).expect("a process id")));
    }
}
