//! The data plane of Weft: a sidecar proxy that speaks linkerd2-proxy's environment and the
//! control-plane API of the crate `linkerd2-proxy-api`. `ARCHITECTURE.md` draws the life of a
//! connection and of a request; `inbound` and `outbound` are where to start reading.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod admin;
pub mod app;
pub mod connect;
pub mod control;
pub mod convert;
pub mod detect;
pub mod error;
pub mod http;
pub mod identity;
pub mod inbound;
pub mod limit;
pub mod metrics;
pub mod outbound;
pub mod random;
pub mod settings;
pub mod stream;

#[cfg(test)]
mod sizes;
#[cfg(test)]
mod testing;
