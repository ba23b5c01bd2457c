//! Owns pods made by hand, without anything of the mesh but the proxy and `weft init`: two network namespaces with a cable
//! between them, in each the rules, a control plane on loopback, and `weft-proxy` with linkerd2-proxy's environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use weft_cli::local::admin::{self, Page};
use weft_runtime::namespace::{self, Namespaces, NewNamespaces};

use crate::control::{ControlPlane, Endpoint, HTTP, OPAQUE};
use crate::eventually;
use crate::net::{Programs, bounded};
use crate::wire::{Listener, Wire};

/// User of the proxy (contract 1.3).
const USER: u32 = 2102;
/// Longest a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Ports of the services in each pod (contract 0).
const SERVICES: [(&str, u16); 3] = [("IDENTITY", 8080), ("DESTINATION", 8086), ("POLICY", 8090)];
/// Added to those ports, because the first one is an application's here.
const SHIFT: u16 = 20_000;

/// Two pods, `a` and `b`.
pub struct Pods {
    /// One.
    pub a: Pod,
    /// The other.
    pub b: Pod,
    /// Their control plane; [`Pod::serve_control`] makes it reachable.
    pub control: Arc<ControlPlane>,
}

/// A network namespace with the rules of a meshed pod.
pub struct Pod {
    /// Its address, its Service's, its identity.
    pub endpoint: Endpoint,
    /// The proxy's private folder.
    pub folder: PathBuf,
    name: String,
    net: OwnedFd,
    control: Arc<ControlPlane>,
    proxy: PathBuf,
}

/// A running proxy; killed when this is dropped.
pub struct Proxy {
    child: Child,
    log: PathBuf,
}

/// Runs a test with two pods; see [`crate::mesh`] for what happens when it fails or is not possible.
///
/// # Panics
/// When the test fails.
pub fn pods(test: impl AsyncFnOnce(&Pods) -> anyhow::Result<()>) {
    bounded(async |programs, folder| {
        let pods = Pods::new(&programs, folder).await?;
        test(&pods).await
    });
}

impl Pods {
    async fn new(programs: &Programs, folder: &Path) -> anyhow::Result<Self> {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o711))?;
        std::fs::create_dir_all(folder.join("state/logs"))?;
        // Its own folder may be closed to the proxy's user.
        let proxy = folder.join("weft-proxy");
        std::fs::copy(&programs.proxy, &proxy)?;
        let endpoints: Vec<Endpoint> = [("a", 1), ("b", 2)]
            .map(|(name, last)| Endpoint {
                ip: Ipv4Addr::new(10, 77, 0, last),
                cluster_ip: Ipv4Addr::new(10, 96, 0, last),
                identity: format!("{name}.demo.serviceaccount.identity.linkerd.cluster.local"),
            })
            .into();
        let control = ControlPlane::new(endpoints.clone())?;
        let pod = |name: &str, endpoint: &Endpoint| {
            anyhow::Ok(Pod {
                endpoint: endpoint.clone(),
                folder: folder.join(name),
                name: name.to_owned(),
                net: new_network()?,
                control: Arc::clone(&control),
                proxy: proxy.clone(),
            })
        };
        let (a, b) = (pod("a", &endpoints[0])?, pod("b", &endpoints[1])?);
        let other = format!("/proc/{}/fd/{}", std::process::id(), b.net.as_raw_fd());
        a.root(
            "ip",
            &[
                "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &other,
            ],
        )
        .await?;
        for pod in [&a, &b] {
            pod.prepare(&programs.weft).await?;
        }
        Ok(Pods { a, b, control })
    }
}

/// A network of its own, as long as the descriptor is open.
fn new_network() -> anyhow::Result<OwnedFd> {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok::<_, io::Error>(File::open("/proc/thread-self/ns/net")?.into())
    };
    Ok(std::thread::spawn(make)
        .join()
        .expect("it does not panic")?)
}

impl Pod {
    async fn prepare(&self, weft: &Path) -> anyhow::Result<()> {
        let addr = format!("{}/24", self.endpoint.ip);
        for line in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &addr, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
            // Somewhere to send what is for a Service, as a pod's default route is.
            &["route", "add", "default", "dev", "eth0"],
        ] {
            self.root("ip", line).await?;
        }
        let weft = weft.to_string_lossy();
        self.root(&weft, &["init", "--proxy-uid", "2102", "--ipv6=false"])
            .await?;
        let identity = self.folder.join("identity");
        std::fs::create_dir_all(&identity)?;
        std::fs::set_permissions(&self.folder, PermissionsExt::from_mode(0o711))?;
        std::fs::set_permissions(&identity, PermissionsExt::from_mode(0o700))?;
        chown(&identity, Some(USER), Some(USER))?;
        Ok(std::fs::write(
            self.folder.join("token"),
            format!("token of {}", self.name),
        )?)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn spawn(&self, command: &mut Command, identity: Option<(u32, u32)>) -> anyhow::Result<Child> {
        let join = Namespaces {
            net: Some(self.net.try_clone()?),
            ..Namespaces::default()
        };
        Ok(namespace::spawn(
            command,
            &join,
            identity,
            NewNamespaces::default(),
            true,
        )?)
    }

    /// Runs a command in the pod's network, as root; its standard output if it succeeds within 10 s.
    ///
    /// # Errors
    /// It does not.
    pub async fn root(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let child = self.spawn(self.command(program).args(arguments), None)?;
        let output = timeout(Duration::from_secs(10), child.wait_with_output()).await;
        let output = output.with_context(|| format!("{program} takes too long"))??;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {output:?}"
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a command in the pod's network as the proxy's user, whose traffic no rule redirects. Its standard input,
    /// output and error are pipes.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn bypass(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Child> {
        let mut command = self.command(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .current_dir(&self.folder);
        self.spawn(&mut command, Some((USER, USER)))
    }

    /// Writes a file into the pod's folder, for the proxy's user.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, contents)?;
        chown(&path, Some(USER), Some(USER))?;
        Ok(path)
    }

    async fn inside<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let net = self.net.try_clone()?;
        let thread = move || {
            setns(&net, CloneFlags::CLONE_NEWNET)?;
            make()
        };
        // Not one of the runtime's, which would stay in that network.
        let thread = std::thread::spawn(thread);
        let made = tokio::task::spawn_blocking(move || thread.join()).await?;
        Ok(made.expect("it does not panic")?)
    }

    /// A connection of an application in this pod.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(&self, addr: SocketAddr) -> anyhow::Result<Wire> {
        let connect = move || TcpStream::connect_timeout(&addr, CONNECT);
        Wire::new(
            self.inside(connect)
                .await
                .with_context(|| format!("connecting to {addr}"))?,
        )
    }

    /// A listener of an application in this pod, on all addresses.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn listen(&self, port: u16) -> anyhow::Result<Listener> {
        Listener::new(
            self.inside(move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
                .await?,
        )
    }

    /// Makes the control plane reachable on this pod's loopback, from now on.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn serve_control(&self) -> anyhow::Result<()> {
        for (_, port) in SERVICES {
            let addr = (Ipv4Addr::LOCALHOST, port + SHIFT);
            self.control
                .serve(self.inside(move || TcpListener::bind(addr)).await?)?;
        }
        Ok(())
    }

    /// What linkerd2-proxy would find in its environment (contract 1.2, right column; 1.3).
    pub fn environment(&self) -> BTreeMap<String, String> {
        let named = ENVIRONMENT
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let context = format!(
            "{{\"ns\":\"demo\", \"nodeName\":\"node\", \"pod\":\"{}\"}}\n",
            self.name
        );
        let workload = format!("{{\"ns\":\"demo\", \"pod\":\"{}\"}}\n", self.name);
        let own = [
            ("INBOUND_IPS", self.endpoint.ip.to_string()),
            ("INBOUND_PORTS", format!("{HTTP},{OPAQUE}")),
            (
                "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
                OPAQUE.to_string(),
            ),
            ("DESTINATION_CONTEXT", context),
            ("POLICY_WORKLOAD", workload),
            (
                "IDENTITY_DIR",
                self.folder.join("identity").display().to_string(),
            ),
            (
                "IDENTITY_TOKEN_FILE",
                self.folder.join("token").display().to_string(),
            ),
            ("IDENTITY_TRUST_ANCHORS", self.control.authority.pem.clone()),
            ("IDENTITY_LOCAL_NAME", self.endpoint.identity.clone()),
        ];
        // A loopback address may come without a name (contract 1.1).
        let services = SERVICES.map(|(name, port)| {
            (
                format!("LINKERD2_PROXY_{name}_SVC_ADDR"),
                format!("127.0.0.1:{}", port + SHIFT),
            )
        });
        let own = own.map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value));
        named.chain(own).chain(services).collect()
    }

    /// Starts the proxy as its own user.
    ///
    /// # Errors
    /// Those of the system.
    pub fn proxy(&self, environment: &BTreeMap<String, String>) -> anyhow::Result<Proxy> {
        let log = self.folder.join(format!("../state/logs/{}.log", self.name));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut command = self.command(&self.proxy.to_string_lossy());
        command
            .env_clear()
            .envs(environment)
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Proxy {
            child: self.spawn(&mut command, Some((USER, USER)))?,
            log,
        })
    }

    /// A page of the proxy's admin server, fetched from the pod's loopback.
    ///
    /// # Errors
    /// There is none.
    pub async fn page(&self, path: &str) -> anyhow::Result<Page> {
        Ok(admin::fetch(self.net.try_clone()?, path).await?)
    }

    /// Waits until the proxy says it is ready.
    ///
    /// # Errors
    /// It does not within 10 s.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let ready = async || {
            Ok(self
                .page("/ready")
                .await
                .ok()
                .filter(|page| page.status == 200)
                .map(drop))
        };
        eventually("the proxy is ready", Duration::from_secs(10), ready).await
    }
}

impl Proxy {
    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().context("it has ended")?;
        Ok(kill(Pid::from_raw(pid.try_into()?), signal)?)
    }

    /// Waits for its end; its exit code.
    ///
    /// # Errors
    /// It runs on, or a signal ended it.
    pub async fn exit_code(&mut self, limit: Duration) -> anyhow::Result<i32> {
        let status = timeout(limit, self.child.wait())
            .await
            .context("the proxy runs on")??;
        status.code().with_context(|| format!("{status}"))
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// Those of the system.
    pub fn runs(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// What it has written so far.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }
}

/// What does not depend on the pod.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("_pod_name", "pod"),
    ("_pod_ns", "demo"),
    ("_pod_nodeName", "node"),
    ("_l5d_ns", "linkerd"),
    ("_l5d_trustdomain", "cluster.local"),
    ("LINKERD2_PROXY_CORES", "1"),
    ("LINKERD2_PROXY_CORES_MIN", "1"),
    ("LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED", "false"),
    (
        "LINKERD2_PROXY_LOG",
        "warn,linkerd=info,weft=info,hickory=error,[{headers}]=off,[{request}]=off",
    ),
    ("LINKERD2_PROXY_LOG_FORMAT", "plain"),
    (
        "LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES",
        "svc.cluster.local.",
    ),
    ("LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS", NETWORKS),
    ("LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS", NETWORKS),
    (
        "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY",
        "all-unauthenticated",
    ),
    ("LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT", "100ms"),
    ("LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT", "1000ms"),
    ("LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "5s"),
    ("LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT", "90s"),
    ("LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT", "3s"),
    ("LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT", "5m"),
    ("LINKERD2_PROXY_CONTROL_STREAM_LIFETIME", "1h"),
    ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "0.0.0.0:4190"),
    ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "0.0.0.0:4191"),
    ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "127.0.0.1:4140"),
    ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140"),
    ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "0.0.0.0:4143"),
    ("LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE", "10000ms"),
    ("LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE", "10000ms"),
    ("LINKERD2_PROXY_INBOUND_ACCEPT_USER_TIMEOUT", "30s"),
    ("LINKERD2_PROXY_OUTBOUND_CONNECT_USER_TIMEOUT", "30s"),
    (
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL",
        "10s",
    ),
    (
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT",
        "3s",
    ),
    (
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL",
        "10s",
    ),
    (
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT",
        "3s",
    ),
];

const NETWORKS: &str = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8";
