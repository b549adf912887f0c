//! Keeps the external targets in sync with the links.

pub mod backend;
pub mod decision;
pub mod deletion_budget;
pub mod desired;
pub(crate) mod handlers;
pub mod left_out;
mod lost_answers;
pub mod metrics;
pub(crate) mod missing_namespace;
pub mod object_cache;
pub mod observed_object;
pub mod orphans;
pub mod output_dir;
pub mod reconciler;
pub mod removal_facts;
pub mod states;
pub(crate) mod status_log;
pub(crate) mod write;
mod write_result;
