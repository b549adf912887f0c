//! Work queue, circuit breaker, backoff, and supervision of sync tasks, which the controllers share.

pub(crate) mod backoff;
pub(crate) mod circuit_breaker;
mod fair_keys;
pub mod supervisor;
pub(crate) mod work_queue;
mod write_slots;
