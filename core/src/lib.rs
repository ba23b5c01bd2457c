//! The decisions of the mesh: pure functions and small state machines. No I/O, no clock, no randomness, no environment:
//! whoever calls passes the bytes, the `Instant` and the random number, so each rule has an exact test.

pub mod authorize;
pub mod backoff;
pub mod balance;
pub mod classify;
pub mod detect;
pub mod name;
pub mod parse;
pub mod route;
pub mod transport_header;
