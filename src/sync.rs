//! Watches load balancers into the store, and reconciles the external targets with it.

pub mod alerts;
pub mod controller;
pub mod election;
pub mod events;
pub mod external_target;
pub mod failover;
pub mod failover_controller;
pub mod k8s;
pub mod source;
pub mod source_annotation;
#[cfg(test)]
pub(crate) mod test_support;
