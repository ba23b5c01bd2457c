//! Owns discovery: `Destination.Get` and `Destination.GetProfile` over the index of `weft_cluster` (contract 8.1). Does not
//! read objects and does not decide policy.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use tokio_util::sync::CancellationToken;
//! use weft_cluster::{ManifestSource, MeshSettings, Shared, manifests::LocalMesh};
//! use weft_destination::Settings;
//! use weft_runtime::{grpc, metrics::Registry};
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let shutdown = CancellationToken::new();
//! let shared = Shared::new();
//! let source = ManifestSource::new("manifests".into(), LocalMesh::new("linkerd"), Arc::clone(&shared));
//! source.reload();
//! tokio::spawn(source.watch(shutdown.clone()));
//! let metrics = grpc::Metrics::register(&Registry::new(Duration::from_secs(600)));
//! let mesh = MeshSettings { external_workloads_ready: true, ..MeshSettings::default() };
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8086").await?;
//! weft_destination::serve_on(listener, Settings::new(mesh), shared, metrics, shutdown).await?;
//! # Ok(()) }
//! ```

mod endpoint;
mod get;
mod profile;
mod service;
mod settings;
mod wire;

pub use get::{EndpointSet, Endpoints, EndpointsQuery};
pub use profile::{KnownProfile, Profile, ProfileQuery, ProfileTarget};
pub use service::{Destination, serve_on};
pub use settings::{Http2Params, Http2ParamsError, KeepAlive, OutboundTransport, Settings};
/// What [`serve_on`] counts with.
pub use weft_runtime::grpc;
