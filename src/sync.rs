//! Watches load balancers, keeps their links in the store, and reconciles the external targets with the store.

pub mod alerts;
pub mod controller;
pub mod election;
pub mod events;
pub mod external_target;
pub mod k8s;
pub mod removal;
pub mod source;
pub mod source_annotation;
pub mod stable_name;
pub mod task;
#[cfg(test)]
pub(crate) mod test_support;
