//! What both controllers share: work queue, circuit breaker, backoff, supervision.

pub(crate) mod circuit_breaker;
pub(crate) mod work_queue;
