//! Owns what `weft run` and the mesh host say to each other: one JSON document a line over a Unix socket. A connection
//! stands for at most one workload, which ends with it.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest line, in bytes; a page of metrics is the longest there is.
const LINE: u64 = 16 << 20;

/// Asked of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Make the namespaces of a workload and start its proxy; answered by `Started` or `Failed`.
    Start {
        /// Namespace of its Pod.
        namespace: String,
        /// Name of its Pod.
        workload: String,
    },
    /// Take the workload out of the endpoints, because its command is about to end; answered by `Left`.
    Leave,
    /// The command has ended: drain and stop the proxy; answered by `Stopped`.
    Stop,
    /// Fetch a page of the admin server of a running workload; answered by `Page` or `Failed`.
    Fetch {
        /// Namespace of its Pod.
        namespace: String,
        /// Name of its Pod.
        workload: String,
        /// For example `/metrics`.
        path: String,
    },
    /// Which workloads run; answered by `Running`.
    List,
}

/// Said by the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Reply {
    /// The workload is ready for its command.
    Started(Started),
    /// Its proxy ended by itself and has been started again.
    ProxyRestarted {
        /// How the earlier one ended.
        how: String,
        /// The new one.
        proxy_pid: u32,
    },
    /// The workload is no endpoint any more.
    Left,
    /// The proxy has ended and the namespaces are gone.
    Stopped,
    /// A page of an admin server.
    Page {
        /// HTTP status.
        status: u16,
        /// Its text.
        body: String,
    },
    /// Workloads that run, the control plane among them.
    Running {
        /// In order of their names.
        workloads: Vec<Started>,
    },
    /// It could not be done.
    Failed {
        /// The reason and the remedy, for the user.
        error: String,
    },
}

/// A running workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Namespace of its Pod.
    pub namespace: String,
    /// Name of its Pod.
    pub workload: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Process id of its proxy.
    pub proxy_pid: u32,
    /// The proxy's log.
    pub proxy_log: PathBuf,
    /// File to open for its network namespace.
    pub net: PathBuf,
    /// File to open for its mount namespace.
    pub mount: PathBuf,
    /// File to open for the user namespace to enter first, unless root made the mesh.
    pub user: Option<PathBuf>,
}

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The line is no document of this protocol: the two sides are of different builds, most likely.
    #[error("not understood: {0}; stop the mesh of the other build first")]
    Syntax(#[from] serde_json::Error),
    /// The line is too long.
    #[error("a line has more than {LINE} bytes")]
    TooLong,
}

/// Reads one document; `None` at the end of the connection.
pub async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
) -> Result<Option<T>, LineError> {
    let mut line = Vec::new();
    let length = from.take(LINE).read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) if length as u64 == LINE => Err(LineError::TooLong),
        // The other side died while it wrote.
        Some(_) => Ok(None),
    }
}

/// Writes one document.
pub async fn write<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    document: &T,
) -> Result<(), LineError> {
    let mut line = serde_json::to_vec(document)?;
    line.push(b'\n');
    to.write_all(&line).await?;
    Ok(to.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn documents_survive_the_wire() {
        let request = Request::Start {
            namespace: "demo".into(),
            workload: "web".into(),
        };
        let mut wire = Vec::new();
        write(&mut wire, &request).await.expect("writes");
        write(&mut wire, &Request::Stop).await.expect("writes");
        let mut wire = wire.as_slice();
        assert_eq!(read(&mut wire).await.expect("reads"), Some(request));
        assert_eq!(read(&mut wire).await.expect("reads"), Some(Request::Stop));
        assert_eq!(read::<Request>(&mut wire).await.expect("the end"), None);
    }

    #[tokio::test]
    async fn a_half_line_is_the_end_and_nonsense_is_an_error() {
        assert_eq!(
            read::<Request>(&mut b"{\"do\":".as_slice())
                .await
                .expect("the end"),
            None
        );
        assert!(matches!(
            read::<Request>(&mut b"{}\n".as_slice()).await,
            Err(LineError::Syntax(_))
        ));
    }
}
