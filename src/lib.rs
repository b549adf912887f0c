//! lb-linker keeps names in step with load balancers.
//!
//! A cloud load balancer that is deleted and recreated gets another hostname. lb-linker watches
//! LoadBalancer Services ([`sync`]) into a map of links ([`store`]), keeps an `ExternalName`
//! Service for each, and answers DNS for them from the same map ([`dns`]). [`app`] wires it up.

pub mod app;
pub mod cli;
pub mod dns;
pub mod metrics;
pub mod model;
pub mod store;
pub mod sync;
pub mod takeover;

#[cfg(test)]
#[path = "../tests/e2e/harness/port.rs"]
mod held_port;
