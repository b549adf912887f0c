//! Builds server blocks from a Corefile, and serves them.

pub mod config;
pub(crate) mod corefile_source;
pub mod error;
pub(crate) mod http;
pub mod instance;
pub mod invalidation;
pub(crate) mod ns_addresses;
pub mod probes;
pub(crate) mod reload;
pub(crate) mod sockets;
pub mod target_checker;
