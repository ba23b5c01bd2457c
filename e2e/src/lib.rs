//! Owns what tests of the whole mesh share: a mesh for one test ([`mesh`], [`Net`]), its workloads ([`Node`]), sockets in
//! their networks ([`Wire`], [`Listener`]), peers that speak HTTP/2 and gRPC, and the figures of a proxy ([`Samples`]).
//! It tests nothing itself.
//!
//! A test is a function of a running mesh. Peers live in the test itself: a socket is made in the network of a workload,
//! through that network's iptables rules, and handed to the test, which so sees and says each byte in the order it
//! likes. Whatever must be a real process (curl, h2load, something to kill) is run in the workload's namespaces.
//!
//! ```no_run
//! use weft_e2e::{Manifests, mesh};
//!
//! let manifests = Manifests::default().service("web", &[(80, 8080)]).pod("web", &[8080]).pod("client", &[]);
//! mesh(manifests, async |net| {
//!     let (web, client) = (net.start("web").await?, net.start("client").await?);
//!     let listener = web.listen(8080).await?;
//!     let mut app = client.connect("web:80").await?;
//!     app.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await?;
//!     let mut server = listener.accept().await?;
//!     assert_eq!(server.head().await?.first, "GET / HTTP/1.1");
//!     Ok(())
//! });
//! ```

mod broker;
mod hops;
mod http2;
mod manifests;
mod metrics;
mod net;
mod node;
mod wire;

pub mod by_hand;
pub mod cluster;
pub mod control;
pub mod grpc;
pub mod peers;
pub mod replicas;

pub use broker::serve as serve_sockets;
pub use hops::{Hop, Way, over, over_each_hop};
pub use http2::{Client2, Server2, head, read_body};
pub use manifests::{Manifests, NAMESPACE};
pub use metrics::{Sample, Samples};
pub use net::{Net, mesh, mesh_with, skip};
pub use node::{Node, Output, Process};
pub use wire::{Head, Listener, Message, Wire};

use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

/// Asks again and again, every 10 ms, until there is an answer.
///
/// # Errors
/// None within `limit`.
pub async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let until = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= until {
            bail!("not within {limit:?}: {what}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}
