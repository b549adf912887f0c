//! The Kubernetes API: types, client, watches and errors.

pub mod client;
pub mod deserialize_guard;
pub mod errors;
pub mod forbidden;
pub mod instance;
pub mod listed;
pub mod object;
pub(crate) mod refusals;
pub mod rewinds;
pub mod service;
pub mod watch;
