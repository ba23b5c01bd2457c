//! TLS between workloads of the mesh: trust anchors, keys, credentials that rotate live, and the two handshakes.
//!
//! Owns what a certificate must look like and whose it is. Does not own when a certificate is asked for (that is the
//! proxy's identity loop), nor which connection is to be encrypted, nor any timeout: callers bound each handshake.

// Tests may unwrap: a panic is how they fail.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod accept;
pub mod anchors;
pub mod connect;
pub mod csr;
mod handshake;
pub mod key;
pub mod names;
pub mod parameters;
pub mod pem;
mod record;
pub mod store;
pub mod stream;
mod verify;

pub use accept::{AcceptError, Accepted, accept};
pub use anchors::{AnchorsError, TrustAnchors};
pub use connect::{ClientConfigRef, ConnectError, connect};
pub use csr::{CsrError, KeyAndCsr, load_or_create};
pub use key::{KeyError, PrivateKey};
pub use store::{Credentials, InstallError, Store};
pub use stream::TlsStream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
