//! What keeps sync from its work at present: `/ready` shows it.

use std::borrow::Cow;

use arc_swap::ArcSwapOption;

use crate::model::object_texts::ObjectTexts;
use crate::model::service_key::ServiceKey;

/// Lists that the API server forbids.
#[derive(Debug)]
pub struct ForbiddenLists {
    pub note: String,
    /// The namespaces of the lists; none for a list of all namespaces.
    pub namespaces: Vec<String>,
}

impl ForbiddenLists {
    /// Returns the lists with these namespaces and reasons, if there are any. The note has the first reason in full.
    #[must_use]
    pub fn of<'a>(lists: impl Iterator<Item = (Option<&'a str>, &'a str)>, effect: &str) -> Option<Self> {
        let (namespaces, reasons): (Vec<_>, Vec<_>) = lists.unzip();
        let others = match reasons.len() {
            0 | 1 => String::new(),
            number => format!(" (and in {} more namespaces)", number - 1),
        };
        let note = format!("{}{others}; {effect}", reasons.first()?);
        Some(Self { note, namespaces: namespaces.into_iter().flatten().map(ToOwned::to_owned).collect() })
    }

    /// Returns whether an object of this key isn't read.
    #[must_use]
    pub fn concerns(&self, key: &ServiceKey) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|namespace| *namespace == *key.namespace())
    }
}

/// The notes of sync, each a clause or a sentence.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Why the first list of load balancers isn't complete yet; `None` if that isn't known.
    pub list: ArcSwapOption<Cow<'static, str>>,
    /// Why manifests aren't used as they are now.
    pub manifests: ArcSwapOption<String>,
    /// Why load balancers that were listed before can't be read any more.
    pub load_balancers: ArcSwapOption<ForbiddenLists>,
    /// Why StableNames can't be listed.
    pub stable_names: ArcSwapOption<ForbiddenLists>,
    /// Why the last targets of StableNames stay: they went with their CRD.
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
        let text = |note: &ArcSwapOption<String>| note.load_full().map(|note| note.to_string());
        let forbidden = |lists: &ArcSwapOption<ForbiddenLists>| Some(lists.load_full()?.note.clone());
        let notes = [
            text(&self.election),
            forbidden(&self.load_balancers),
            text(&self.crd),
            forbidden(&self.stable_names),
            text(&self.writes),
        ];
        notes.into_iter().flatten().collect()
    }

    /// Returns the note about the StableNames that don't move.
    #[must_use]
    pub fn of_statuses(&self) -> Option<String> {
        let number = self.unwritten.number();
        (number > 0)
            .then(|| format!("StableNames that don't move, because their status can't be written: {number}"))
    }
}
