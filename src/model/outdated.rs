//! Whether something that answers depend on is outdated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether what an answer depends on was replaced, or isn't served any more. Copies of the flag share the state.
#[derive(Clone, Debug, Default)]
pub struct OutdatedFlag(Arc<AtomicBool>);

impl OutdatedFlag {
    /// Makes all answers outdated that depend on the flag.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
