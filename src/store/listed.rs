//! Which sources are listed completely, and for which zones. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::owner::{Source, Zone};

/// The zones, as they are configured, whose names of a source are known completely.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    pub(super) now: BTreeMap<Source, Vec<Zone>>,
    /// As it was before the last change of the zones: blocks that are in force may have these zones still.
    pub(super) before: BTreeMap<Source, Vec<Zone>>,
    /// The part of [`Self::before`] whose sources aren't read any more: nothing of them is missing.
    pub(super) ended: BTreeMap<Source, Vec<Zone>>,
    /// The sources that were listed since then.
    pub(super) since: BTreeSet<Source>,
}

impl Listed {
    /// Takes a change of the zones. A zone that returns is still listed if its source wasn't listed meanwhile.
    pub(super) fn change_zones(&mut self, zones: &[Zone]) {
        let Self { now, before, since, .. } = std::mem::take(self);
        let returns = |source: &Source, zone: &Zone| !since.contains(source) && has(&before, source, zone);
        for source in now.keys().chain(before.keys()) {
            let is_listed = |zone: &&Zone| has(&now, source, zone) || returns(source, zone);
            self.now.insert(source.clone(), zones.iter().filter(is_listed).cloned().collect());
        }
        self.before = now;
    }

    /// Takes that a source isn't read any more.
    pub(super) fn end(&mut self, source: &Source) {
        self.now.remove(source);
        self.ended.extend(self.before.remove_entry(source));
    }

    /// Returns whether blocks that are still in force miss no name of a source in a zone as they know it.
    pub(super) fn had(&self, source: &Source, zone: &Zone) -> bool {
        has(&self.before, source, zone) || has(&self.ended, source, zone)
    }
}

pub(super) fn has(listed: &BTreeMap<Source, Vec<Zone>>, source: &Source, zone: &Zone) -> bool {
    listed.get(source).is_some_and(|zones| zones.contains(zone))
}
