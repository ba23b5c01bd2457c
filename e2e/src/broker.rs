//! Owns getting sockets out of a workload's network: a small process in its namespaces makes them and hands them over.
//! Does not use them.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use weft_cli::local::Workload;

/// Longest a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the broker's answer; over [`CONNECT`], so that the better error wins.
const ANSWER: Duration = Duration::from_secs(7);
/// Longest answer, in bytes.
const TEXT: usize = 512;

/// The test's end.
pub struct Broker {
    socket: Arc<Mutex<UnixStream>>,
    _process: Child,
}

impl Broker {
    /// Starts the process.
    pub fn start(workload: &Workload, peer: &std::path::Path) -> anyhow::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(ANSWER))?;
        let mut command = Command::new(peer);
        command
            .arg("sockets")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .kill_on_drop(true);
        let process = workload.spawn(&mut command)?;
        Ok(Broker {
            socket: Arc::new(Mutex::new(ours)),
            _process: process,
        })
    }

    /// A connection to `host:port`.
    pub async fn connect(&self, addr: &str) -> anyhow::Result<TcpStream> {
        Ok(self.ask(format!("connect {addr}\n")).await?.into())
    }

    /// A listener on all addresses.
    pub async fn listen(&self, port: u16) -> anyhow::Result<TcpListener> {
        Ok(self.ask(format!("listen {port}\n")).await?.into())
    }

    async fn ask(&self, request: String) -> anyhow::Result<OwnedFd> {
        let socket = Arc::clone(&self.socket).lock_owned().await;
        tokio::task::spawn_blocking(move || exchange(&socket, &request)).await?
    }
}

fn exchange(socket: &UnixStream, request: &str) -> anyhow::Result<OwnedFd> {
    io::Write::write_all(&mut &*socket, request.as_bytes())?;
    let (mut text, mut space) = ([0; TEXT], [MaybeUninit::uninit(); 64]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let got = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .context("the broker of sockets does not answer")?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    bail!(
        "{}: {}",
        request.trim(),
        String::from_utf8_lossy(&text[..got.bytes])
    )
}

/// The broker's end: serves requests on standard input, a Unix socket, until it is closed.
///
/// # Errors
/// Those of that socket.
pub fn serve() -> anyhow::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    for line in BufReader::new(socket.try_clone()?).lines() {
        match answer(&line?) {
            Ok(descriptor) => hand_over(&socket, descriptor.as_fd())?,
            Err(error) => {
                let text = format!("{error:#}");
                io::Write::write_all(&mut &socket, &text.as_bytes()[..text.len().min(TEXT)])?;
            }
        }
    }
    Ok(())
}

fn answer(request: &str) -> anyhow::Result<OwnedFd> {
    match request.split_once(' ') {
        Some(("connect", addr)) => {
            let mut addrs = addr
                .to_socket_addrs()
                .with_context(|| format!("cannot resolve {addr}"))?;
            let addr = addrs.next().context("the name has no address")?;
            Ok(TcpStream::connect_timeout(&addr, CONNECT)?.into())
        }
        Some(("listen", port)) => {
            Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.parse()?))?.into())
        }
        _ => bail!("not understood"),
    }
}

fn hand_over(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> anyhow::Result<()> {
    let mut space = [MaybeUninit::uninit(); 64];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        socket,
        &[IoSlice::new(b"+")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}
