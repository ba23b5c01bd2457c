//! TCP sockets as the mesh wants them: listeners, accepted and dialled streams, the address a redirected client meant.
//! It does not read or write a byte, and it does not know TLS.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

mod accept;
pub use accept::accept;

/// Linux refuses a longer keep-alive idle time (`MAX_TCP_KEEPIDLE`).
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);
/// The kernel's own interval between probes; longer ones only delay the verdict.
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(75);

/// What to set on a TCP stream besides `TCP_NODELAY`, which is always on.
///
/// With `keepalive` = k, a peer that vanished is noticed after k + 9 × min(k, 75 s); with `user_timeout` as well, after
/// about k + `user_timeout` (case T03).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SocketOptions {
    /// Silence after which the kernel probes the peer (`SO_KEEPALIVE`, `TCP_KEEPIDLE`); clamped to 1 s … 32767 s.
    #[serde(serialize_with = "text")]
    pub keepalive: Option<Duration>,
    /// How long sent bytes may stay unacknowledged before the connection is closed (`TCP_USER_TIMEOUT`).
    #[serde(serialize_with = "text")]
    pub user_timeout: Option<Duration>,
}

fn text<S: serde::Serializer>(duration: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => s.collect_str(&format_args!("{duration:?}")),
        None => s.serialize_none(),
    }
}

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {source}{}", remedy(.source))]
pub struct BindError {
    /// The address that was asked for.
    pub addr: SocketAddr,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; stop the program that listens there, or choose another port",
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE, choose a higher one"
        }
        _ => "",
    }
}

/// A stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The peer did not answer in time.
    #[error("connecting to {addr} took longer than {limit:?}")]
    Timeout {
        /// The peer.
        addr: SocketAddr,
        /// The limit that was exceeded.
        limit: Duration,
    },
    /// The kernel or the peer refused.
    #[error("cannot connect to {addr}: {source}")]
    Io {
        /// The peer.
        addr: SocketAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Opens a listener, with `SO_REUSEADDR`, and for `[::]` with both address families where the kernel has both. Where it has no
/// IPv6 (`ipv6.disable=1`), `[::]` is every address of IPv4.
///
/// `backlog` is the length of the queue of connections that wait to be accepted; without one it is the system's limit
/// (`net.core.somaxconn`).
///
/// # Errors
/// Names the address, the kernel's reason and, for the usual reasons, the remedy.
pub fn bind(addr: SocketAddr, backlog: Option<u32>) -> Result<TcpListener, BindError> {
    or_ipv4(addr, |addr| open_listener(addr, backlog)).map_err(|source| BindError { addr, source })
}

fn or_ipv4<T>(addr: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match open(addr) {
        Err(error)
            if addr.ip() == Ipv6Addr::UNSPECIFIED
                && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
        {
            tracing::info!(%addr, "this host has no IPv6; listening for IPv4 only");
            open((Ipv4Addr::UNSPECIFIED, addr.port()).into())
        }
        opened => opened,
    }
}

fn open_listener(addr: SocketAddr, backlog: Option<u32>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.ip() == Ipv6Addr::UNSPECIFIED {
        // A kernel without IPv4-mapped addresses keeps its v6-only listener rather than none.
        if let Err(error) = socket.set_only_v6(false) {
            tracing::warn!(%addr, %error, "listening for IPv6 only");
        }
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    let backlog = backlog
        .and_then(|n| i32::try_from(n).ok())
        .unwrap_or(i32::MAX);
    socket.listen(backlog)?;
    TcpListener::from_std(socket.into())
}

/// Sets `TCP_NODELAY` and the given options on an accepted stream.
///
/// # Errors
/// Whatever the kernel says; the peer may already be gone.
pub fn configure(stream: &TcpStream, options: &SocketOptions) -> io::Result<()> {
    apply(&SockRef::from(stream), options)
}

fn apply(socket: &Socket, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if let Some(idle) = options.keepalive {
        let idle = idle.clamp(Duration::from_secs(1), KEEPALIVE_MAX);
        let probes = TcpKeepalive::new()
            .with_time(idle)
            .with_interval(idle.min(PROBE_INTERVAL_MAX));
        socket.set_tcp_keepalive(&probes)?;
    }
    if let Some(limit) = options.user_timeout {
        // The option is a C int of milliseconds.
        let limit = limit.min(Duration::from_millis(i32::MAX as u64));
        socket.set_tcp_user_timeout(Some(limit))?;
    }
    Ok(())
}

/// Makes the peer see a reset, as from a closed port, when `stream` is dropped.
///
/// # Errors
/// Those of `setsockopt`.
pub fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// The address a client dialled before the packet filter redirected it here (`SO_ORIGINAL_DST`,
/// `IP6T_SO_ORIGINAL_DST`).
///
/// The family is that of the local address, where an IPv4 client of a `[::]` listener counts as IPv4 (case T09). A
/// connection that was tracked but not redirected answers with the listener's own address: the caller must guard
/// against dialling itself (case T07).
///
/// # Errors
/// When the connection is not tracked, or the kernel has no connection tracking.
pub fn original_dst(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let found = match unmap(stream.local_addr()?) {
        SocketAddr::V4(_) => socket.original_dst_v4()?,
        SocketAddr::V6(_) => socket.original_dst_v6()?,
    };
    found.as_socket().map(unmap).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's original destination is not an IP address",
        )
    })
}

/// Opens a stream to `addr`, with `TCP_NODELAY` and `options` set before the handshake, so that they hold for it too.
///
/// # Errors
/// [`ConnectError::Timeout`] after `timeout`, otherwise [`ConnectError::Io`]; both name the address.
pub async fn connect(
    addr: SocketAddr,
    timeout: Duration,
    options: &SocketOptions,
) -> Result<TcpStream, ConnectError> {
    match tokio::time::timeout(timeout, dial(addr, options)).await {
        Ok(result) => result.map_err(|source| ConnectError::Io { addr, source }),
        Err(_) => Err(ConnectError::Timeout {
            addr,
            limit: timeout,
        }),
    }
}

async fn dial(addr: SocketAddr, options: &SocketOptions) -> io::Result<TcpStream> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    apply(&SockRef::from(&socket), options)?;
    socket.connect(addr).await
}

/// The IPv4 address inside an IPv4-mapped IPv6 one (`::ffff:a.b.c.d`); any other address as it is.
pub fn unmap(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests;
