//! Owns policy: `InboundServerPolicies` and `OutboundPolicies` over the index of `weft_cluster` (contract 8.2), the statuses of
//! its objects ([`status`]) and the webhooks that judge them ([`admission`]). Runs in the destination process. Does not read
//! objects from anywhere.
//!
//! Started as `weft_destination` is, over the same index:
//! ```no_run
//! # async fn run(
//! #     shared: std::sync::Arc<weft_cluster::Shared>,
//! #     metrics: weft_runtime::grpc::Metrics,
//! #     shutdown: tokio_util::sync::CancellationToken,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mesh = weft_cluster::MeshSettings::default();
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8090").await?;
//! weft_policy::serve_on(listener, weft_policy::Settings::new(mesh), shared, metrics, shutdown).await?;
//! # Ok(()) }
//! ```

mod acceptance;
pub mod admission;
mod inbound;
pub mod lease;
mod outbound;
mod service;
mod settings;
pub mod status;
#[cfg(test)]
mod testing;
mod wire;

pub use inbound::{InboundQuery, InboundWorkload};
pub use outbound::{Outbound, OutboundQuery, OutboundTarget, Speaker};
pub use service::{Policies, serve_on};
pub use settings::Settings;
