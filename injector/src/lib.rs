//! Owns the injector: which pods get the proxy, and the JSON patch that adds it ([`patch`], pure), behind an admission webhook
//! (contract 9). Does not render the control plane's own pods (the chart does) and does not set up iptables (`weft init` does).

// Tests may unwrap and panic: that is how they fail.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod patch;
pub mod server;
