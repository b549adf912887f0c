//! What keeps sync from its work at present: `/ready` shows it.

use std::borrow::Cow;

use arc_swap::ArcSwapOption;

use crate::model::object_texts::ObjectTexts;

/// The notes of sync, each a clause or a sentence.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Why the first list of load balancers isn't complete yet; `None` if that isn't known.
    pub list: ArcSwapOption<Cow<'static, str>>,
    /// Why manifests aren't used as they are now.
    pub manifests: ArcSwapOption<String>,
    /// Why StableNames can't be listed.
    pub stable_names: ArcSwapOption<String>,
    /// Until when the last targets of StableNames stay, because their CRD is gone.
    pub crd: ArcSwapOption<String>,
    /// Why this replica takes part in an election and knows no leader.
    pub election: ArcSwapOption<String>,
    /// What keeps external targets from being written.
    pub writes: ArcSwapOption<String>,
    /// Why statuses of StableNames can't be written; only the leader knows it.
    pub unwritten: ObjectTexts,
}

impl Readiness {
    /// Returns the notes about what can't be read from the API server or written. DNS answers anyway.
    #[must_use]
    pub fn of_cluster(&self) -> Vec<String> {
        let notes =
            [&self.election, &self.crd, &self.stable_names, &self.writes].map(ArcSwapOption::load_full);
        notes.into_iter().flatten().map(|note| note.to_string()).collect()
    }

    /// Returns the note about the StableNames that don't move.
    #[must_use]
    pub fn of_statuses(&self) -> Option<String> {
        let number = self.unwritten.number();
        (number > 0)
            .then(|| format!("StableNames that don't move, because their status can't be written: {number}"))
    }
}
