//! Owns the client's end of a mesh: finds its host or starts one, and starts commands in the namespaces of workloads. The
//! work is done by the host.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command as StdCommand, Stdio};
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep, timeout};
use weft_runtime::namespace::{self, Namespaces, NewNamespaces};

use super::admin::Page;
use super::control::Tuning;
use super::place::{self, Place, PlaceError};
use super::preflight::{self, Missing};
use super::protocol::{self, LineError, Reply, Request, Started};
use super::workload::kill_all_in;

/// Longest wait for a host that is being started.
const START: Duration = Duration::from_secs(10);
/// Longest wait for a host to end after its last client has left.
const END: Duration = Duration::from_secs(2);
/// Longest wait for an answer; the start of the first workload includes that of the control plane.
const ANSWER: Duration = Duration::from_secs(60);

/// What a mesh is made of.
#[derive(Clone, Debug)]
pub struct MeshOptions {
    /// Directory of manifests.
    pub manifests: PathBuf,
    /// State folder; by default one that follows from the user and the directory of manifests.
    pub state_dir: Option<PathBuf>,
    /// The `weft` program.
    pub weft: PathBuf,
    /// The `weft-proxy` program.
    pub proxy: PathBuf,
    /// A folder that the host removes when it ends.
    pub ephemeral: Option<PathBuf>,
    /// The set-up; what counts is that of whoever starts the host.
    pub tuning: Tuning,
}

/// Why a mesh or a workload of it cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The directory of manifests or the state folder.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The machine lacks something.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The host cannot be started.
    #[error("cannot start the mesh host: {0}")]
    Spawn(io::Error),
    /// The host ended.
    #[error("the mesh host ended at once; its log ({}) ends with:\n{tail}", log.display())]
    Ended {
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// There is no mesh, and none was to be started.
    #[error("no mesh of {} runs; start a workload of it with `weft run`", .0.display())]
    None(PathBuf),
    /// The host says no.
    #[error("{0}")]
    Refused(String),
    /// The host has gone.
    #[error("the mesh host has gone")]
    Gone,
    /// The host says nothing.
    #[error("the mesh host gave no answer within {ANSWER:?}")]
    Slow,
    /// The host says something else.
    #[error("the mesh host gave an answer of another kind; it is of another build")]
    Unexpected,
    /// The connection.
    #[error("talking to the mesh host: {0}")]
    Line(#[from] LineError),
}

/// A running mesh. It runs as long as this, or a workload of it, is there.
pub struct Mesh {
    place: Place,
    link: Mutex<Link>,
    /// The host, if it was started here.
    host: Option<Process>,
}

struct Link {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl Mesh {
    /// Joins the mesh of a directory of manifests, starting it if it does not run. Must be called in a runtime, best one
    /// with a single thread (see [`Workload::spawn`]).
    pub async fn open(options: &MeshOptions) -> Result<Self, MeshError> {
        preflight::tools(&options.proxy)?;
        preflight::privilege()?;
        let place = Place::new(&options.manifests, options.state_dir.as_deref())?;
        let (until, mut host) = (Instant::now() + START, None::<Process>);
        loop {
            if let Ok(stream) = connect(&place) {
                let mut link = Link::new(stream);
                // A host that was about to end when we came does not answer any more; then a new one is started.
                if !matches!(link.ask(&Request::List).await, Err(MeshError::Gone)) {
                    return Ok(Mesh {
                        place,
                        link: Mutex::new(link),
                        host,
                    });
                }
            }
            match host.as_mut().map(Process::try_wait) {
                None => host = Some(spawn_host(options, &place).map_err(MeshError::Spawn)?),
                // Another client's host was faster; it answers soon.
                Some(Ok(Some(status))) if status.success() => host = None,
                Some(Ok(Some(_)) | Err(_)) => return Err(ended(&place)),
                Some(Ok(None)) => {}
            }
            if Instant::now() > until {
                return Err(ended(&place));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Joins the mesh only if it runs.
    pub async fn find(manifests: &Path, state_dir: Option<&Path>) -> Result<Self, MeshError> {
        let place = Place::new(manifests, state_dir)?;
        let stream = connect(&place).map_err(|_| MeshError::None(place.manifests.clone()))?;
        Ok(Mesh {
            place,
            link: Mutex::new(Link::new(stream)),
            host: None,
        })
    }

    /// Starts the sandbox and the proxy of a Pod of the manifests; its proxy is ready when this returns.
    pub async fn start(&self, namespace: &str, workload: &str) -> Result<Workload, MeshError> {
        let mut link = Link::new(connect(&self.place).map_err(|_| MeshError::Gone)?);
        let request = Request::Start {
            namespace: namespace.to_owned(),
            workload: workload.to_owned(),
        };
        match link.ask(&request).await? {
            Reply::Started(started) => Workload::new(started, link),
            _ => Err(MeshError::Unexpected),
        }
    }

    /// A page of the admin server of a running workload's proxy, e.g. `/metrics`.
    pub async fn fetch(
        &self,
        namespace: &str,
        workload: &str,
        path: &str,
    ) -> Result<Page, MeshError> {
        let (namespace, workload, path) =
            (namespace.to_owned(), workload.to_owned(), path.to_owned());
        match self
            .link
            .lock()
            .await
            .ask(&Request::Fetch {
                namespace,
                workload,
                path,
            })
            .await?
        {
            Reply::Page { status, body } => Ok(Page { status, body }),
            _ => Err(MeshError::Unexpected),
        }
    }

    /// The workloads that run, the control plane among them.
    pub async fn list(&self) -> Result<Vec<Started>, MeshError> {
        match self.link.lock().await.ask(&Request::List).await? {
            Reply::Running { workloads } => Ok(workloads),
            _ => Err(MeshError::Unexpected),
        }
    }

    /// Leaves the mesh. If its host was started here and has no other client, waits until it has ended.
    pub async fn close(self) {
        let Mesh { link, host, .. } = self;
        drop(link);
        let until = Instant::now() + END;
        if let Some(mut host) = host {
            while matches!(host.try_wait(), Ok(None)) && Instant::now() < until {
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

fn connect(place: &Place) -> io::Result<UnixStream> {
    let stream = StdStream::connect_addr(&place.socket()?)?;
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    // Anybody can take an abstract name; only a host of our own user is ours.
    if stream.peer_cred()?.uid() == geteuid().as_raw() {
        Ok(stream)
    } else {
        Err(io::Error::other(
            "the socket of the mesh host belongs to another user",
        ))
    }
}

fn spawn_host(options: &MeshOptions, place: &Place) -> io::Result<Process> {
    let log = File::create(place.host_log())?;
    let mut command = StdCommand::new(&options.weft);
    command.arg("mesh-host").args(options.tuning.arguments());
    command
        .arg("--manifests")
        .arg(&place.manifests)
        .arg("--state-dir")
        .arg(&place.state);
    command.arg("--proxy").arg(&options.proxy);
    if let Some(folder) = &options.ephemeral {
        command.arg("--ephemeral").arg(folder);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .current_dir("/")
        .spawn()
}

fn ended(place: &Place) -> MeshError {
    let log = place.host_log();
    MeshError::Ended {
        tail: place::tail(&log),
        log,
    }
}

impl Link {
    fn new(stream: UnixStream) -> Self {
        let (from, to) = stream.into_split();
        Link {
            from: BufReader::new(from),
            to,
        }
    }

    async fn ask(&mut self, request: &Request) -> Result<Reply, MeshError> {
        protocol::write(&mut self.to, request)
            .await
            .map_err(|_| MeshError::Gone)?;
        match timeout(ANSWER, protocol::read(&mut self.from)).await {
            Ok(Ok(Some(Reply::Failed { error }))) => Err(MeshError::Refused(error)),
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Ok(None) | Err(LineError::Io(_))) => Err(MeshError::Gone),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(MeshError::Slow),
        }
    }
}

/// A workload whose proxy runs; it ends when this is dropped.
pub struct Workload {
    started: Started,
    replies: mpsc::Receiver<Reply>,
    to: OwnedWriteHalf,
    net: OwnedFd,
    mount: OwnedFd,
    user: Option<OwnedFd>,
}

/// Something that happened to a workload without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its proxy ended and was started again.
    ProxyRestarted {
        /// How the earlier one ended.
        how: String,
    },
    /// The host has gone, and the proxy with it.
    Lost,
}

impl Workload {
    fn new(started: Started, link: Link) -> Result<Self, MeshError> {
        let open = |path: &PathBuf| {
            File::open(path)
                .map(OwnedFd::from)
                .map_err(|error| MeshError::Line(error.into()))
        };
        let (net, mount) = (open(&started.net)?, open(&started.mount)?);
        let user = started.user.as_ref().map(open).transpose()?;
        let (sender, replies) = mpsc::channel(4);
        let mut from = link.from;
        // By a task of its own, since a line must not be left half read.
        tokio::spawn(async move {
            while let Ok(Some(reply)) = protocol::read(&mut from).await {
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        });
        Ok(Workload {
            started,
            replies,
            to: link.to,
            net,
            mount,
            user,
        })
    }

    /// Its address, its proxy, its log.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Starts a command in the workload's namespaces, as the same user. It is killed when the calling *thread* ends, so call
    /// this from the thread that lives longest; and it must be awaited or killed before the workload is stopped.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let join = Namespaces {
            net: Some(self.net.try_clone()?),
            mount: Some(self.mount.try_clone()?),
            user: self.user.as_ref().map(OwnedFd::try_clone).transpose()?,
        };
        namespace::spawn(command, &join, None, NewNamespaces::default(), true)
    }

    /// Waits for something to happen. May be dropped and called again.
    pub async fn event(&mut self) -> Event {
        loop {
            match self.replies.recv().await {
                Some(Reply::ProxyRestarted { how, proxy_pid }) => {
                    self.started.proxy_pid = proxy_pid;
                    return Event::ProxyRestarted { how };
                }
                Some(_) => {}
                None => return Event::Lost,
            }
        }
    }

    /// Takes the workload out of the endpoints; call it before its command is told to end.
    pub async fn leave(&mut self) -> Result<(), MeshError> {
        self.ask(&Request::Leave, &Reply::Left).await
    }

    /// Ends the proxy, after it has drained, and whatever still runs in the namespaces.
    pub async fn stop(mut self) -> Result<(), MeshError> {
        self.ask(&Request::Stop, &Reply::Stopped).await
    }

    async fn ask(&mut self, request: &Request, wanted: &Reply) -> Result<(), MeshError> {
        protocol::write(&mut self.to, request)
            .await
            .map_err(|_| MeshError::Gone)?;
        let answer = async {
            loop {
                match self.replies.recv().await {
                    Some(reply) if reply == *wanted => return Ok(()),
                    Some(Reply::Failed { error }) => return Err(MeshError::Refused(error)),
                    Some(_) => {}
                    None => return Err(MeshError::Gone),
                }
            }
        };
        timeout(ANSWER, answer)
            .await
            .unwrap_or(Err(MeshError::Slow))
    }

    /// Kills all processes in the workload's network: needed when the host has gone, which would do it otherwise.
    pub fn kill_all(&self) {
        kill_all_in(&self.net);
    }
}
