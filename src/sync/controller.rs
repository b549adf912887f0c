//! The runtime that all controllers share: queue, turns of namespaces, limits, circuit breakers, writes under way.

pub(crate) mod circuit_breaker;
pub(crate) mod limits;
pub(crate) mod runtime;
pub(crate) mod turns;
pub(crate) mod work_queue;
pub mod write_error;
