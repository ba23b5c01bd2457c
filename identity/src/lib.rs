//! The certificate authority of the mesh: checks who asks, signs workload certificates, keeps its issuer up to date.
//! Speaks Linkerd's identity API (contract 2.2, 2.5) in plaintext HTTP/2; the sidecar in front of it does TLS. Stores nothing.

pub mod authority;
pub mod csr;
mod events;
pub mod kubernetes;
mod leaf;
pub mod local;
mod metrics;
pub mod reload;
pub mod roots;
mod server;
pub mod service;
pub mod throttle;
pub mod token;

pub use authority::Scheme;
pub use local::{LocalAuthority, LocalError};
pub use server::{Config, ServeError, serve, serve_on};
pub use throttle::Rate;
pub use token::{LocalTokens, TokenCheck, TokenReviews};

#[cfg(test)]
mod testing;
