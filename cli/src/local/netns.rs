//! Owns the namespaces of a mesh: the fabric, a network of its own with a bridge, and one sandbox a workload. None has a name
//! or a file: when the last process in them has gone, the kernel removes interfaces, addresses, rules and mounts.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use tokio::net::TcpStream;

use super::preflight::{Mapping, Tools, maps};
use crate::init::rules::{Family, Rules};
use crate::init::{Firewall, InitError};

/// Network of the mesh, and the bits of its prefix.
pub const NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 88, 0, 0), 16);
/// The bridge: each workload's default route, and where the mesh host is.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// The control plane.
pub const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);

/// Stands for `/etc/resolv.conf` in each sandbox, relative to the private folder of the mesh.
const NO_NAMES: &str = "resolv.conf";
/// Nothing outside the mesh is reached, so asking the machine's name server would only wait for an answer that cannot come.
const NO_NAMES_TEXT: &str = "# Names of Services are in /etc/hosts; there is no name server here.\nnameserver 127.0.0.1\n\
     options timeout:1 attempts:1\n";

/// Why namespaces could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The kernel refused a namespace.
    #[error(
        "the kernel refuses {what}: {source}; a mesh needs root or user namespaces, and network namespaces"
    )]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// `ip` or a user-id helper failed.
    #[error("`{program}` failed to {what}: {message}")]
    Tool {
        /// Which.
        program: String,
        /// What it should do.
        what: &'static str,
        /// What it said.
        message: String,
    },
    /// No variant of iptables works.
    #[error(
        "no iptables can redirect connections here, the last said: {0}; the kernel needs nf_nat with REDIRECT and the matches \
         `owner` and `multiport` (modules nft_compat or ip_tables, xt_REDIRECT, xt_owner, xt_multiport)"
    )]
    Rules(#[source] InitError),
    /// The thread that makes a sandbox ended early.
    #[error("making a sandbox was interrupted")]
    Interrupted,
}

fn refused(what: &'static str) -> impl FnOnce(nix::Error) -> NamespaceError {
    move |source| NamespaceError::Refused {
        what,
        source: source.into(),
    }
}

/// Puts the calling process in a user namespace in which it is root and the proxy's user exists.
///
/// The process must have one thread. The maps are written by helpers of the system that stay outside.
pub fn enter_user_namespace(mapping: &Mapping, proxy_uid: u32) -> Result<(), NamespaceError> {
    let own = std::process::id();
    let [users, groups] = maps(mapping, proxy_uid);
    let script = format!(
        "read -r go && newuidmap {own} {} && newgidmap {own} {}",
        users.join(" "),
        groups.join(" ")
    );
    // Started before and waiting, because inside the namespace the helpers would have lost their rights.
    let mut helper = Command::new("sh")
        .args(["-c", &script])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| NamespaceError::Refused {
            what: "to start a shell",
            source,
        })?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(refused("a user namespace"))?;
    if let Some(mut stdin) = helper.stdin.take() {
        // If it has ended already, its status says so.
        let _ = stdin.write_all(b"go\n");
    }
    let output = helper
        .wait_with_output()
        .map_err(|source| NamespaceError::Refused {
            what: "to wait for a shell",
            source,
        })?;
    finished("newuidmap", "map the proxy's user", output)
}

/// Makes the fabric out of the calling process: a network and mounts of its own, `private` a file system in memory that
/// nobody else sees and that is the current directory from now on.
pub fn enter_fabric(tools: &Tools, private: &Path) -> Result<(), NamespaceError> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .map_err(refused("a network namespace"))?;
    keep_mounts_inside()?;
    let size = Some("size=64m,mode=0711");
    mount(
        Some("weft"),
        private,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        size,
    )
    .map_err(refused("a file system in memory"))?;
    let here = |source| NamespaceError::Refused {
        what: "to enter a file system in memory",
        source,
    };
    std::env::set_current_dir(private).map_err(&here)?;
    std::fs::write(NO_NAMES, NO_NAMES_TEXT).map_err(here)?;
    // What is sent outside the mesh is answered by "unreachable" instead of being dropped, so that nobody waits.
    if let Err(error) = std::fs::write("/proc/sys/net/ipv4/ip_forward", "1") {
        tracing::warn!(%error, "cannot forward packets: connections to the outside of the mesh will time out");
    }
    let (_, bits) = NETWORK;
    ip(
        tools,
        "make the bridge",
        &format!(
            "link set lo up\nlink add mesh0 type bridge\naddr add {GATEWAY}/{bits} dev mesh0\nlink set mesh0 up\n"
        ),
    )
}

/// Mounts made from now on are not seen by others, those of others still arrive here.
fn keep_mounts_inside() -> Result<(), NamespaceError> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SLAVE,
        None::<&str>,
    )
    .map_err(refused("to keep mounts to itself"))
}

/// Makes `file` readable under `at` for users who may not enter the folders above `file`.
pub fn bind(file: &Path, at: &Path) -> Result<(), NamespaceError> {
    mount(Some(file), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(refused("to bind a file"))
}

/// Takes away what [`enter_fabric`] mounted, as soon as nobody uses it any more.
pub fn unmount(private: &Path) {
    // Not being mounted is what is wanted.
    let _ = umount2(private, MntFlags::MNT_DETACH);
}

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the workload.
    pub ip: Ipv4Addr,
    /// Name of the bridge's end of its cable.
    pub cable: String,
    /// File that stands for `/etc/hosts` in it.
    pub hosts: PathBuf,
    /// What is redirected to its proxy.
    pub rules: Option<Rules>,
    /// Programs to use.
    pub tools: Tools,
}

/// The namespaces of a workload; they last as long as this and the processes in them.
#[derive(Debug)]
pub struct Sandbox {
    /// Its network.
    pub net: OwnedFd,
    /// Its mounts.
    pub mount: OwnedFd,
}

/// Makes a sandbox and plugs it into the bridge. Takes some 20 ms.
///
/// The calling process must be the fabric. The namespaces are made by a thread, because a thread can leave those of its
/// process without taking the others with it.
pub async fn sandbox(plan: Plan) -> Result<Sandbox, NamespaceError> {
    let (done, made) = tokio::sync::oneshot::channel();
    let (tools, cable) = (plan.tools.clone(), plan.cable.clone());
    let thread = std::thread::Builder::new().name("sandbox".to_owned());
    // Nobody listening means that the workload is no longer wanted; dropping the sandbox removes it.
    let body = move || drop(done.send(inside(&plan)));
    thread
        .spawn(body)
        .map_err(|source| NamespaceError::Refused {
            what: "a thread",
            source,
        })?;
    let sandbox = made.await.map_err(|_| NamespaceError::Interrupted)??;
    ip(
        &tools,
        "plug in a workload",
        &format!("link set dev {cable} master mesh0 up\n"),
    )?;
    Ok(sandbox)
}

/// Connects within a network. A socket stays in the network in which it was made, so a thread goes there to make it.
pub async fn connect(net: OwnedFd, addr: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let (done, made) = tokio::sync::oneshot::channel();
    let connect = move || {
        setns(&net, CloneFlags::CLONE_NEWNET)?;
        let stream = StdTcpStream::connect_timeout(&addr, limit)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    // Nobody listening means that the connection is no longer wanted.
    std::thread::Builder::new()
        .name("connect".to_owned())
        .spawn(move || drop(done.send(connect())))?;
    let stream: io::Result<StdTcpStream> = made.await.map_err(io::Error::other)?;
    TcpStream::from_std(stream?)
}

fn inside(plan: &Plan) -> Result<Sandbox, NamespaceError> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .map_err(refused("a network namespace"))?;
    keep_mounts_inside()?;
    bind(&plan.hosts, Path::new("/etc/hosts"))?;
    let names = Path::new("/etc/resolv.conf");
    if names.exists() {
        bind(Path::new(NO_NAMES), names)?;
    }
    let (own, (_, bits)) = (std::process::id(), NETWORK);
    let Plan {
        ip: address, cable, ..
    } = plan;
    ip(
        &plan.tools,
        "give a workload its network",
        &format!(
            "link set lo up\nlink add eth0 type veth peer name {cable} netns {own}\naddr add {address}/{bits} dev eth0\n\
             link set eth0 up\nroute add default via {GATEWAY}\n"
        ),
    )?;
    if let Some(rules) = &plan.rules {
        redirect(&plan.tools, rules)?;
    }
    let own = |name| {
        File::open(format!("/proc/thread-self/ns/{name}"))
            .map(OwnedFd::from)
            .map_err(|source| NamespaceError::Refused {
                what: "to open a namespace",
                source,
            })
    };
    Ok(Sandbox {
        net: own("net")?,
        mount: own("mnt")?,
    })
}

/// Applies the rules with the first variant of iptables that the kernel takes.
fn redirect(tools: &Tools, rules: &Rules) -> Result<(), NamespaceError> {
    let mut last = None;
    for program in &tools.iptables {
        match Firewall::of(&program.to_string_lossy(), None, true).apply(rules, Family::V4) {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(()), |error| Err(NamespaceError::Rules(error)))
}

/// Runs commands of `ip`, one a line.
fn ip(tools: &Tools, what: &'static str, lines: &str) -> Result<(), NamespaceError> {
    let program = tools.ip.display().to_string();
    let failed = |source: io::Error| NamespaceError::Tool {
        program: program.clone(),
        what,
        message: source.to_string(),
    };
    let mut child = Command::new(&tools.ip)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it has ended already, its status says so.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    finished(&program, what, output)
}

fn finished(
    program: &str,
    what: &'static str,
    output: std::process::Output,
) -> Result<(), NamespaceError> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    Err(NamespaceError::Tool {
        program: program.to_owned(),
        what,
        message,
    })
}
