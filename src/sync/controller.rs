//! Work queue, circuit breaker, backoff and supervision, for the controllers of external targets and of source
//! annotations.

pub(crate) mod backoff;
pub(crate) mod circuit_breaker;
pub mod supervisor;
pub(crate) mod work_queue;
