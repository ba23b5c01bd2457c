//! Owns the mesh without Kubernetes: workloads are ordinary programs in network namespaces of their own, each with a proxy,
//! under a control plane that reads a directory of manifests. It knows nothing of what the programs do.
//!
//! - [`client`]: joins a mesh and starts commands in it ([`run`] is the command line on top).
//! - [`host`]: one process for each mesh, which is the network between the workloads; [`session`] is one client of it.
//! - [`control`]: the control plane's process; [`control_process`] keeps it running.
//! - [`workload`], [`sidecar`], [`facts`], [`netns`]: what one workload is made of.
//! - [`place`], [`preflight`], [`protocol`], [`admin`]: where, whether, and how they talk.
//!
//! ```text
//! weft run ──socket──▶ weft mesh-host (bridge 10.88.0.1) ──▶ weft-proxy ×N        each in the sandbox of its workload
//!    └─ the command, in the sandbox of its workload   └──▶ weft mesh-control      in a sandbox with a proxy of its own
//! ```

pub mod admin;
pub mod client;
pub mod control;
pub mod control_process;
pub mod facts;
pub mod host;
pub mod netns;
pub mod place;
pub mod preflight;
pub mod protocol;
pub mod run;
pub mod session;
pub mod sidecar;
pub mod workload;

pub use client::{Event, Mesh, MeshError, MeshOptions, Workload};
pub use control::Tuning;
