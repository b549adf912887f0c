//! Builds server blocks from a Corefile, and keeps them running.

pub mod config;
pub mod invalidation;
pub mod probes;
