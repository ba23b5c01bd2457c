//! Owns the objects a control plane reads, the pure index over them and the two ways to fill it; does not speak gRPC
//! and does not decide policy.
//!
//! The parts, from the outside in:
//! - [`objects`]: Kubernetes and Linkerd objects as Rust types, parsed by `apiVersion` and `kind`.
//! - [`crd`]: the CustomResourceDefinitions of Linkerd's kinds, from which a chart is made.
//! - [`kube`](mod@kube): an API server, listed and watched.
//! - [`manifests`]: a directory of manifests, watched, completed to what a cluster would have made of it.
//! - [`Index`]: the pure store (`apply`, `delete`, `reset` → the keys that changed).
//! - [`Shared`]: the index behind a lock, and who is told when a key changes.
//! - [`Views`]: states computed from the index, one per distinct question, each behind a `tokio::sync::watch`.
//! - [`Authority`], [`ServiceHost`], [`Workload`]: how proxies name the objects they ask about, and themselves.
//!
//! Everything of a local control plane, from a directory of manifests:
//! ```no_run
//! use std::sync::Arc;
//! use tokio_util::sync::CancellationToken;
//! use weft_cluster::{ManifestSource, MeshSettings, Shared, manifests::LocalMesh};
//! # async fn start() {
//! let shutdown = CancellationToken::new();
//! let shared = Shared::new();
//! let source = ManifestSource::new("manifests".into(), LocalMesh::new("linkerd"), Arc::clone(&shared));
//! source.reload();
//! tokio::spawn(Arc::clone(&source).watch(shutdown.clone()));
//! let mesh = MeshSettings { external_workloads_ready: true, ..MeshSettings::default() };
//! // weft_destination::serve_on(listener_8086, weft_destination::Settings::new(mesh.clone()), shared.clone(), …)
//! // weft_policy::serve_on(listener_8090, weft_policy::Settings::new(mesh), shared, …)
//! # }
//! ```

mod authority;
pub mod crd;
pub mod index;
pub mod kube;
pub mod manifests;
mod mesh;
pub mod objects;
mod shared;
mod token;
mod views;

pub use crate::kube::KubeSource;
pub use authority::{Authority, Host, ServiceHost};
pub use index::{Changed, Index, Invalid, Key, Reader};
pub use manifests::{ManifestError, ManifestSource};
pub use mesh::{DefaultPolicy, MeshSettings, UnknownDefaultPolicy};
pub use objects::{Kind, Name, Object, ObjectRef};
pub use shared::{Listener, NotFilled, Shared};
pub use token::Workload;
pub use views::{Query, Subscription, TooManyViews, Views};
