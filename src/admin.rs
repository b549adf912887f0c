//! The status page and the status API: read-only, on a loopback address.

pub mod api;
pub mod client;
pub mod server;
