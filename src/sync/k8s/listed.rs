//! Tracks the complete lists of load balancers, and of StableNames. A new leader lists everything in its term, and
//! so does every replica after a restore of etcd: nothing is written for a namespace based on earlier observations.

use std::collections::{BTreeMap, BTreeSet};

/// The term and the rewind count of a complete list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListEpoch {
    /// The term in which the list began.
    pub term: u64,
    /// The value of [`super::rewinds::RestoreCounter::count`] when the list began.
    pub rewinds: u64,
}

/// What the lists of a namespace tell about its objects at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// An authorizer permits the lists, as far as known.
    Permitted,
    /// An authorizer refuses the lists since a complete list for this term and rewind count.
    Outdated,
    /// An authorizer refuses the lists, including the list for this term and rewind count.
    Refused,
}

/// The lists of one resource: one for all namespaces, or one per watched namespace.
#[derive(Clone, Debug, Default)]
pub struct CompletedLists(BTreeMap<Option<String>, ListState>);

#[derive(Clone, Copy, Debug, Default)]
struct ListState {
    /// The epoch of the last complete list.
    complete: Option<ListEpoch>,
    /// The epoch of the last failed list.
    failed: Option<ListEpoch>,
    /// Whether an authorizer has refused all lists for [`super::forbidden::REFUSED_AFTER`].
    is_refused: bool,
}

impl CompletedLists {
    /// Returns the lists of these namespaces, or of all namespaces if the set is empty. `complete` is the epoch of
    /// their last complete list; `None` if nothing has been listed yet.
    #[must_use]
    pub fn new(namespaces: &BTreeSet<String>, complete: impl Into<Option<ListEpoch>>) -> Self {
        let list = ListState { complete: complete.into(), ..ListState::default() };
        if namespaces.is_empty() {
            return Self(BTreeMap::from([(None, list)]));
        }
        Self(namespaces.iter().map(|namespace| (Some(namespace.clone()), list)).collect())
    }

    /// Records that a list is complete, or that it has failed. Returns whether that changes anything.
    pub fn note(&mut self, namespace: Option<&str>, at: ListEpoch, is_complete: bool) -> bool {
        let list = self.0.entry(namespace.map(ToOwned::to_owned)).or_default();
        let last = if is_complete { &mut list.complete } else { &mut list.failed };
        last.replace(at) != Some(at)
    }

    /// Records whether an authorizer refuses the lists of a namespace. Returns whether that changes anything.
    pub fn set_refused(&mut self, namespace: Option<&str>, is_refused: bool) -> bool {
        let list = self.0.entry(namespace.map(ToOwned::to_owned)).or_default();
        std::mem::replace(&mut list.is_refused, is_refused) != is_refused
    }

    /// Returns what the lists of a namespace tell, for this term and rewind count.
    #[must_use]
    pub fn reading(&self, namespace: &str, at: ListEpoch) -> Reading {
        match self.of(namespace).filter(|list| list.is_refused) {
            Some(list) if list.complete == Some(at) => Reading::Outdated,
            Some(list) if list.failed == Some(at) => Reading::Refused,
            _ => Reading::Permitted,
        }
    }

    /// Returns whether an authorizer refuses the lists of a namespace, including the list for this term and rewind
    /// count.
    #[must_use]
    pub fn is_refused(&self, namespace: &str, at: ListEpoch) -> bool {
        self.reading(namespace, at) == Reading::Refused
    }

    /// Returns the list of a namespace; `None` if the namespace isn't watched.
    fn of(&self, namespace: &str) -> Option<&ListState> {
        self.0.get(&None).or_else(|| self.0.get(&Some(namespace.to_owned())))
    }

    /// Returns whether the last complete list of a namespace has this rewind count, or the namespace isn't watched.
    #[must_use]
    pub fn covers_rewinds(&self, namespace: &str, rewinds: u64) -> bool {
        self.of(namespace)
            .is_none_or(|list| list.complete.is_some_and(|complete| complete.rewinds == rewinds))
    }

    /// Returns whether the last complete list of a namespace has this term and rewind count, or the namespace isn't
    /// watched.
    #[must_use]
    pub fn covers(&self, namespace: &str, at: ListEpoch) -> bool {
        self.of(namespace).is_none_or(|list| list.complete == Some(at))
    }

    /// Returns whether a watched namespace has never been listed, or its list for this term and rewind count has
    /// failed.
    #[must_use]
    pub fn lacks(&self, namespace: &str, at: ListEpoch) -> bool {
        self.of(namespace).is_some_and(|ListState { complete, failed, .. }| {
            complete.is_none() || *complete != Some(at) && *failed == Some(at)
        })
    }

    /// Returns whether each list for this term and rewind count is complete or has failed: a failed list delays only
    /// the work that depends on it.
    #[must_use]
    pub fn is_settled(&self, at: ListEpoch) -> bool {
        self.0.values().all(|list| [list.complete, list.failed].contains(&Some(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_list_delays_its_own_namespace_only() {
        let namespaces = ["a", "b"].map(ToOwned::to_owned).into();
        let (before, now) = (ListEpoch { term: 1, rewinds: 0 }, ListEpoch { term: 2, rewinds: 0 });
        let mut lists = CompletedLists::new(&namespaces, before);
        assert!(lists.is_settled(before) && lists.covers("a", before));
        assert!(lists.note(Some("a"), now, true) && !lists.note(Some("a"), now, true));
        assert!(!lists.is_settled(now), "the other list may come any moment");
        assert!(lists.note(Some("b"), now, false) && !lists.note(Some("b"), now, false));
        assert!(lists.is_settled(now) && lists.covers("a", now) && !lists.covers("b", now));
        assert!(!lists.lacks("a", now) && lists.lacks("b", now) && !lists.lacks("b", before));
        assert!(!lists.is_refused("b", now) && lists.set_refused(Some("b"), true));
        assert!(lists.is_refused("b", now) && !lists.is_refused("b", before) && !lists.is_refused("c", now));
        assert!(lists.covers("c", now), "it isn't watched");
        assert!(lists.note(Some("b"), now, true) && lists.covers("b", now));
        assert!(!lists.is_refused("b", now) && lists.reading("b", now) == Reading::Outdated);
        assert!(lists.set_refused(Some("b"), false) && lists.reading("b", now) == Reading::Permitted);
    }

    #[test]
    fn single_list_covers_all_namespaces() {
        let at = ListEpoch { term: 1, rewinds: 1 };
        let mut lists = CompletedLists::new(&BTreeSet::new(), None);
        assert!(!lists.is_settled(at) && !lists.covers("a", at) && lists.lacks("a", at));
        lists.note(None, at, false);
        assert!(lists.is_settled(at) && !lists.covers("a", at));
        lists.note(None, at, true);
        assert!(lists.covers("a", at) && lists.covers("b", at));
    }
}
