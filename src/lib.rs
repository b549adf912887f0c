//! lb-linker keeps names in step with load balancers.
//!
//! A cloud load balancer that is deleted and recreated gets another hostname. lb-linker watches LoadBalancer Services
//! ([`sync`]) and stores them in a map of links ([`store`]), writes an `ExternalName` Service for each link, and
//! answers DNS queries from the same map ([`dns`]). [`app`] connects these parts.

// The bound is in clippy.toml.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod admin;
pub mod api;
pub mod app;
pub(crate) mod boot_clock;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod dns;
pub mod file_watcher;
pub(crate) mod label_selector;
pub mod links;
pub mod metrics;
pub mod model;
pub mod object_log;
pub mod query;
pub mod readiness;
pub mod scan;
pub mod snapshot;
pub mod store;
pub mod stub;
pub mod sync;
pub mod takeover;

#[cfg(test)]
mod captured_log;
#[cfg(test)]
#[path = "../tests/e2e/harness/port.rs"]
mod held_port;
