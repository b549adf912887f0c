//! Parts that both controllers share: work queue, circuit breaker, backoff, supervision.

pub(crate) mod backoff;
pub(crate) mod circuit_breaker;
pub mod supervisor;
pub(crate) mod work_queue;
