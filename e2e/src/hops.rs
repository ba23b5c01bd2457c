//! Owns the three ways HTTP takes through the mesh, so that a test of what must not change can be run over each. Does not
//! say what must not change.

use anyhow::Context;

use crate::manifests::Manifests;
use crate::net::{Net, mesh};
use crate::node::Node;
use crate::wire::{Listener, Wire};

/// Which proxies a request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The client's and the server's, HTTP/1 on HTTP/2 between them, with mutual TLS.
    Both,
    /// The client's only: the server is not in the mesh.
    ClientOnly,
    /// The server's only: the client is not in the mesh.
    ServerOnly,
}

/// A client and a server with the mesh between them.
pub struct Way {
    /// Which proxies are between them.
    pub hop: Hop,
    /// Where the client is.
    pub client: Node,
    /// Where the server is.
    pub server: Node,
    /// What the server listens on, port 8080.
    pub listener: Listener,
    /// What the client calls the server, `host:port`.
    pub to: String,
}

impl Way {
    /// A new connection of the client.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(&self) -> anyhow::Result<Wire> {
        self.client.connect(&self.to).await
    }

    /// Sends a request on a new connection and takes the connection on which it arrives.
    ///
    /// # Errors
    /// It does not arrive.
    pub async fn begin(&self, request: &str) -> anyhow::Result<(Wire, Wire)> {
        let mut app = self.connect().await?;
        app.send(request).await?;
        Ok((app, self.listener.accept().await?))
    }
}

/// Runs a test over each way, each in a mesh of its own.
pub fn over_each_hop(test: impl AsyncFn(&Way) -> anyhow::Result<()>) {
    for hop in [Hop::Both, Hop::ClientOnly, Hop::ServerOnly] {
        over(hop, &test);
    }
}

/// Runs a test over one way.
pub fn over(hop: Hop, test: impl AsyncFn(&Way) -> anyhow::Result<()>) {
    let manifests = Manifests::default().service("web", &[(80, 8080)]);
    let manifests = match hop {
        Hop::Both => manifests.pod("web", &[8080]).pod("client", &[]),
        Hop::ClientOnly => manifests.stranger("web", &[8080]).pod("client", &[]),
        Hop::ServerOnly => manifests.pod("web", &[8080]).stranger("client", &[]),
    };
    // Shown only when the test fails.
    println!("over hop {hop:?}");
    mesh(manifests, async |net| {
        let way = Way::open(net, hop).await?;
        test(&way)
            .await
            .with_context(|| format!("over hop {hop:?}"))
    });
}

impl Way {
    async fn open(net: &Net, hop: Hop) -> anyhow::Result<Self> {
        let (server, client) = (net.start("web").await?, net.start("client").await?);
        // There is no kube-proxy that would spread the Service's address for those without a proxy.
        let to = if hop == Hop::ServerOnly {
            format!("{}:8080", server.ip())
        } else {
            "web:80".to_owned()
        };
        let listener = server.listen(8080).await?;
        Ok(Way {
            hop,
            client,
            server,
            listener,
            to,
        })
    }
}
