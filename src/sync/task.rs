//! Supervision of the tasks of sync, and their pauses.

pub(crate) mod backoff;
pub mod supervisor;
