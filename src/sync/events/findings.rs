//! What is wrong with objects at present, for `lb-linker links` and the status page: the facts of the log lines and
//! Events, as long as they hold.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::readiness::Readiness;
use crate::sync::k8s::errors::ObjectTexts;

#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The parts of load balancers that are denied, invalid or ignored.
    pub services: ObjectTexts,
    /// Why StableNames aren't Ready, or are Degraded.
    pub stable_names: ObjectTexts,
    /// The number of external targets whose removal `--max-deletes` holds back; only the leader knows it.
    pub held_removals: Arc<AtomicUsize>,
    /// What keeps sync from its work.
    pub readiness: Arc<Readiness>,
}

impl Findings {
    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.services.version().wrapping_add(self.stable_names.version())
    }
}
