//! Owns policy: `InboundServerPolicies` and `OutboundPolicies` over the index of `weft_cluster` (contract 8.2). Runs in the
//! destination process. Does not read objects and does not write statuses.
//!
//! Started as `weft_destination` is, over the same index:
//! ```no_run
//! # async fn run(
//! #     shared: std::sync::Arc<weft_cluster::Shared>,
//! #     metrics: weft_runtime::grpc::Metrics,
//! #     shutdown: tokio_util::sync::CancellationToken,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mesh = weft_cluster::MeshSettings { assume_accepted: true, ..Default::default() };
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8090").await?;
//! weft_policy::serve_on(listener, weft_policy::Settings::new(mesh), shared, metrics, shutdown).await?;
//! # Ok(()) }
//! ```

mod inbound;
mod outbound;
mod service;
mod settings;
mod wire;

pub use inbound::InboundQuery;
pub use outbound::{Outbound, OutboundQuery, OutboundTarget};
pub use service::{Policies, serve_on};
pub use settings::Settings;
