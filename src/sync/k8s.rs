//! The Kubernetes API: types, client, watches and errors.

pub(crate) mod annotations;
pub mod client;
pub mod deserialize_guard;
pub(crate) mod discovery;
pub(crate) mod endpoint_slice;
pub mod errors;
pub mod forbidden;
pub mod instance;
pub(crate) mod k8s_gateway;
pub(crate) mod labels;
pub mod listed;
pub mod metrics;
pub mod object;
pub(crate) mod probe;
pub(crate) mod rate_limiter;
pub(crate) mod refusals;
pub mod remotes;
pub mod rewinds;
pub mod service;
pub(crate) mod slim_resource;
pub mod watch;
