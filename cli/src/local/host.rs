//! Owns the mesh host: the process that is the fabric, starts workloads for its clients and ends when the last of them has
//! gone. What it says to clients is in [`super::protocol`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use nix::unistd::{Uid, geteuid, setsid};
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;
use weft_identity::LocalAuthority;

use super::control::{SeenPod, Tuning};
use super::control_process::ControlProcess;
use super::facts::{self, Prepared};
use super::netns::{self, Plan};
use super::place::Place;
use super::preflight::{self, Privilege, Tools};
use super::protocol::Started;
use super::session::Session;
use super::sidecar::{Common, ControlPlane, PROXY_USER};
use super::workload::{self, Idle, Start, StartError, Workload};

/// How long the host stays without clients: the next `weft run` of a script finds it still there.
const LINGER: Duration = Duration::from_millis(500);
/// How long the host waits for its first client.
const FIRST: Duration = Duration::from_secs(10);

/// Arguments of `weft mesh-host`.
#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Directory of manifests
    #[arg(long)]
    pub manifests: PathBuf,
    /// State folder
    #[arg(long)]
    pub state_dir: PathBuf,
    /// The proxy program
    #[arg(long)]
    pub proxy: PathBuf,
    /// A folder to remove at the end
    #[arg(long)]
    pub ephemeral: Option<PathBuf>,
    /// The set-up
    #[command(flatten)]
    pub tuning: Tuning,
}

/// Runs `weft mesh-host` until no client is left. Must be called before the process has a second thread.
pub fn run_host(args: HostArgs) -> anyhow::Result<()> {
    let place = Place::new(&args.manifests, Some(&args.state_dir))?;
    // Bound in the machine's network, before we leave it: abstract names are known per network namespace.
    let listener = match StdListener::bind_addr(&place.socket()?) {
        Ok(listener) => listener,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => return Ok(()),
        Err(error) => return Err(error).context("cannot open the socket of the mesh host"),
    };
    // Fails when we lead a process group already, as when started by hand; then there is nothing to leave.
    let _ = setsid();
    let result = serve_place(&args, &place, listener);
    if let Some(folder) = &args.ephemeral {
        std::env::set_current_dir("/")?;
        netns::unmount(&place.state.join(PRIVATE));
        // The demo removes it too, whoever ends last.
        let _ = std::fs::remove_dir_all(folder);
    }
    result
}

/// Folder in the state folder over which the file system in memory is mounted.
const PRIVATE: &str = "private";

fn serve_place(args: &HostArgs, place: &Place, listener: StdListener) -> anyhow::Result<()> {
    let tools = preflight::tools(&args.proxy)?;
    let user = match preflight::privilege()? {
        Privilege::Root => None,
        Privilege::UserNamespace(mapping) => {
            netns::enter_user_namespace(&mapping, PROXY_USER)?;
            Some(PathBuf::from(format!(
                "/proc/{}/ns/user",
                std::process::id()
            )))
        }
    };
    let private = place.state.join(PRIVATE);
    std::fs::create_dir_all(&private)?;
    netns::enter_fabric(&tools, &private)?;
    std::fs::write("weft-proxy", "")?;
    netns::bind(&tools.proxy, Path::new("weft-proxy"))?;
    let authority = LocalAuthority::open(&place.authority())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let host = Arc::new(Host::new(args, place, tools, authority, user));
        let linger = if args.ephemeral.is_some() {
            Duration::ZERO
        } else {
            LINGER
        };
        tokio::select! {
            result = host.serve(listener, linger) => result,
            signal = weft_runtime::process::terminated() => {
                tracing::info!(signal, "asked to end");
                Ok(())
            }
        }
    })
}

/// The state of the host, shared by its sessions.
pub struct Host {
    place: Place,
    tools: Tools,
    authority: Arc<LocalAuthority>,
    common: Common,
    user: Option<PathBuf>,
    /// The control plane.
    pub control: ControlProcess,
    running: Mutex<Running>,
    cables: AtomicU32,
}

#[derive(Default)]
struct Running {
    workloads: BTreeMap<(String, String), Option<Started>>,
    /// Kept after a workload has ended, so that it comes back at the same address.
    addresses: BTreeMap<(String, String), Ipv4Addr>,
}

/// A name that is taken until this is dropped.
pub struct Claim {
    host: Arc<Host>,
    key: (String, String),
}

impl Claim {
    /// Makes the workload an endpoint.
    pub fn announce(&self, ip: Ipv4Addr) {
        self.host
            .control
            .set_address(&self.key.0, &self.key.1, Some(ip.into()));
    }

    /// Takes the workload out of the endpoints; it runs on.
    pub fn withdraw(&self) {
        self.host
            .control
            .set_address(&self.key.0, &self.key.1, None);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.withdraw();
        self.host.running.lock().workloads.remove(&self.key);
    }
}

impl Host {
    fn new(
        args: &HostArgs,
        place: &Place,
        tools: Tools,
        authority: LocalAuthority,
        user: Option<PathBuf>,
    ) -> Self {
        let common = Common {
            trust_anchors: authority.trust_anchors_pem().to_owned(),
            min_refresh: args.tuning.min_refresh_ms.map(Duration::from_millis),
            log: args.tuning.log.clone(),
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
        };
        let control = ControlProcess::new(place, &args.tuning);
        let (running, cables) = (Mutex::default(), AtomicU32::new(0));
        Host {
            place: place.clone(),
            tools,
            authority: Arc::new(authority),
            common,
            user,
            control,
            running,
            cables,
        }
    }

    async fn serve(
        self: &Arc<Self>,
        listener: UnixListener,
        linger: Duration,
    ) -> anyhow::Result<()> {
        let (count, counted) = watch::channel(0_usize);
        let count = Arc::new(count);
        let control = self.control.run(Arc::clone(self));
        let unused = unused(counted, linger);
        tokio::pin!(control, unused);
        loop {
            tokio::select! {
                accepted = listener.accept() => self.accept(accepted?.0, &count),
                () = &mut unused => return Ok(()),
                never = &mut control => match never {},
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: UnixStream, count: &Arc<watch::Sender<usize>>) {
        if !stream
            .peer_cred()
            .is_ok_and(|peer| Uid::from_raw(peer.uid()) == geteuid())
        {
            tracing::warn!("refused a client of another user");
            return;
        }
        count.send_modify(|count| *count += 1);
        let (host, count) = (Arc::clone(self), Arc::clone(count));
        tokio::spawn(async move {
            Session::new(host).run(stream).await;
            count.send_modify(|count| *count -= 1);
        });
    }

    /// Starts a workload of the manifests; it is ready when this returns.
    pub async fn start(
        self: &Arc<Self>,
        namespace: &str,
        name: &str,
    ) -> Result<(Workload, Claim), StartError> {
        let seen = self.control.ready(namespace, name).await?;
        let pod = facts::find(&seen, namespace, name)?;
        let (claim, ip) = self.claim(pod)?;
        let prepared = Prepared {
            facts: facts::facts(pod)?,
            rules: facts::rules(pod)?,
            ip,
        };
        let hosts = facts::hosts(&seen, namespace, name, ip);
        let mut workload = self
            .prepare(prepared, hosts, ControlPlane::Other)
            .await?
            .start()?;
        if let Err(error) = workload.ready().await {
            workload.end().await;
            return Err(error.into());
        }
        self.note(workload.started());
        Ok((workload, claim))
    }

    /// Makes the sandbox of a workload.
    pub async fn prepare(
        &self,
        pod: Prepared,
        hosts: String,
        control: ControlPlane,
    ) -> Result<Idle, StartError> {
        let cable = format!("w{}", self.cables.fetch_add(1, Ordering::Relaxed));
        let sidecar = workload::sidecar(&pod, &self.common, &self.place.logs(), control);
        let plan = Plan {
            ip: pod.ip,
            cable,
            hosts: PathBuf::new(),
            rules: pod.rules,
            tools: self.tools.clone(),
        };
        let (namespace, ports) = (pod.facts.namespace.clone(), pod.facts.ports.clone());
        let (authority, facts) = (Arc::clone(&self.authority), pod.facts);
        let token: workload::Token = Box::new(move |lifetime| {
            authority.issue_token(
                &facts.namespace,
                &facts.service_account,
                &facts.workload,
                lifetime,
            )
        });
        Idle::new(Start {
            sidecar,
            plan,
            hosts,
            token,
            namespace,
            ports,
            user: self.user.clone(),
        })
        .await
    }

    /// Keeps what others may ask for.
    pub fn note(&self, started: &Started) {
        let key = (started.namespace.clone(), started.workload.clone());
        self.running
            .lock()
            .workloads
            .insert(key, Some(started.clone()));
    }

    /// Workloads that are ready.
    pub fn list(&self) -> Vec<Started> {
        self.running
            .lock()
            .workloads
            .values()
            .flatten()
            .cloned()
            .collect()
    }

    /// The network of a workload that is ready.
    pub fn network(&self, namespace: &str, name: &str) -> Option<OwnedFd> {
        let running = self.running.lock();
        let started = running
            .workloads
            .get(&(namespace.to_owned(), name.to_owned()))?
            .as_ref()?;
        File::open(&started.net).map(OwnedFd::from).ok()
    }

    fn claim(self: &Arc<Self>, pod: &SeenPod) -> Result<(Claim, Ipv4Addr), StartError> {
        let key = (pod.namespace.clone(), pod.name.clone());
        let mut running = self.running.lock();
        if running.workloads.contains_key(&key) {
            return Err(StartError::Running(pod.name.clone()));
        }
        let others: BTreeSet<Ipv4Addr> = running
            .addresses
            .iter()
            .filter(|(other, _)| **other != key)
            .map(|(_, ip)| *ip)
            .collect();
        let ip = match (running.addresses.get(&key), pod.ip) {
            (Some(before), _) => *before,
            (None, wanted) => facts::address(wanted, &others).ok_or_else(|| match wanted {
                Some(wanted) => StartError::Address(pod.name.clone(), wanted.to_string()),
                None => StartError::Full,
            })?,
        };
        running.addresses.insert(key.clone(), ip);
        running.workloads.insert(key.clone(), None);
        Ok((
            Claim {
                host: Arc::clone(self),
                key,
            },
            ip,
        ))
    }
}

/// Waits until nobody has come for [`FIRST`], or the last client has been gone for `linger`.
async fn unused(mut clients: watch::Receiver<usize>, linger: Duration) {
    let mut patience = FIRST;
    loop {
        if *clients.borrow_and_update() > 0 {
            patience = linger;
            // The other end lives as long as the host.
            let _ = clients.wait_for(|count| *count == 0).await;
        }
        if timeout(patience, clients.wait_for(|count| *count > 0))
            .await
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_host_without_clients_ends() {
        let (_count, counted) = watch::channel(0);
        let start = Instant::now();
        unused(counted, LINGER).await;
        assert_eq!(start.elapsed(), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_stays_for_the_next_client_but_not_for_long() {
        let (count, counted) = watch::channel(1);
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let clients = async {
            for clients in [2, 0, 1] {
                sleep(LINGER / 2).await;
                count.send_replace(clients);
            }
            sleep(second).await;
            count.send_replace(0);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = unused(counted, LINGER) => {}
            () = clients => {}
        }
        assert_eq!(start.elapsed(), LINGER * 3 / 2 + second + LINGER);
    }
}
