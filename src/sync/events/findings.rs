//! What is wrong with objects at present, for `lb-linker links` and the status page: the facts of the log lines and
//! Events, as long as they hold.

use std::sync::Arc;

use super::asking_objects::AskingObjects;
use crate::model::object_texts::ObjectTexts;
use crate::readiness::Readiness;

#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The parts of load balancers that are denied, invalid or ignored.
    pub services: ObjectTexts,
    /// Why StableNames aren't Ready, are Degraded or not accepted, or aren't checked in time.
    pub stable_names: ObjectTexts,
    /// Why external targets aren't removed yet although their load balancers are gone: there are too many.
    pub held_removals: ObjectTexts,
    /// When external targets are removed whose load balancers are gone, or why they stay.
    pub removals: ObjectTexts,
    /// Which flag leaves out a load balancer, and what follows for its names.
    pub left_out: ObjectTexts,
    /// Which objects ask for names.
    pub asking: AskingObjects,
    /// What keeps sync from its work.
    pub readiness: Arc<Readiness>,
}

impl Findings {
    /// Returns no findings but those of `readiness`.
    #[must_use]
    pub fn new(readiness: Arc<Readiness>) -> Self {
        Self { readiness, ..Self::default() }
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        let Self { services, stable_names, held_removals, removals, left_out, asking, readiness } = self;
        let versions = [services, stable_names, &readiness.unwritten, held_removals, removals, left_out]
            .map(ObjectTexts::version);
        versions.into_iter().fold(asking.version(), u64::wrapping_add)
    }
}
