//! What every program of the mesh needs from the operating system: sockets, byte copying, draining, metrics, logging,
//! processes; and the servers that the services of the control plane have in common ([`grpc`], [`service_admin`], [`admission`]).
//! It knows no service, nothing of policy or discovery, and it is the only crate that may contain `unsafe`.

// Tests may unwrap and panic: that is how they fail.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod admission;
pub mod allocations;
pub mod copy;
pub mod drain;
pub mod grpc;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod namespace;
pub mod net;
pub mod process;
pub mod service_admin;
