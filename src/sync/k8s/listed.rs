//! Which lists of load balancers are complete. A leader lists everything in its term, and every replica after etcd was
//! restored: nothing is written for a namespace on the strength of what was heard there before.

use std::collections::{BTreeMap, BTreeSet};

/// Up to when something has been listed completely: in this term, and after so many rewinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedUpTo {
    /// The term in which the list began.
    pub term: u64,
    /// [`super::rewinds::Rewinds::count`] when the list began.
    pub rewinds: u64,
}

/// The lists of load balancers: one of all namespaces, or one of each namespace that is watched.
#[derive(Clone, Debug, Default)]
pub struct LinkLists(BTreeMap<Option<String>, LinkList>);

#[derive(Clone, Copy, Debug, Default)]
struct LinkList {
    /// What the last complete list is good for.
    complete: ListedUpTo,
    /// What the last list that has failed would have been good for.
    failed: Option<ListedUpTo>,
}

impl LinkLists {
    /// Returns complete lists of these namespaces, or of all where none is named.
    #[must_use]
    pub fn new(namespaces: &BTreeSet<String>, complete: ListedUpTo) -> Self {
        let list = LinkList { complete, failed: None };
        if namespaces.is_empty() {
            return Self(BTreeMap::from([(None, list)]));
        }
        Self(namespaces.iter().map(|namespace| (Some(namespace.clone()), list)).collect())
    }

    /// Takes in that a list is complete, or that it has failed. Returns whether that changes anything.
    pub fn note(&mut self, namespace: Option<&str>, at: ListedUpTo, is_complete: bool) -> bool {
        let list = self.0.entry(namespace.map(ToOwned::to_owned)).or_default();
        let is_news = if is_complete { list.complete != at } else { list.failed != Some(at) };
        if is_complete {
            list.complete = at;
        } else {
            list.failed = Some(at);
        }
        is_news
    }

    /// Returns what the last complete list of a namespace is good for; nothing where the namespace isn't watched.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Option<ListedUpTo> {
        let list = self.0.get(&None).or_else(|| self.0.get(&Some(namespace.to_owned())))?;
        Some(list.complete)
    }

    /// Returns whether what is known of a namespace is of a list that is good for this, or the namespace isn't watched.
    #[must_use]
    pub fn covers(&self, namespace: &str, at: ListedUpTo) -> bool {
        self.of(namespace).is_none_or(|complete| complete == at)
    }

    /// Returns whether each list that is due for this is complete or has failed: a failed list holds up
    /// only what depends on it.
    #[must_use]
    pub fn is_settled(&self, at: ListedUpTo) -> bool {
        self.0.values().all(|list| list.complete == at || list.failed == Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_list_holds_up_its_own_namespace_alone() {
        let namespaces = ["a", "b"].map(ToOwned::to_owned).into();
        let (before, now) = (ListedUpTo { term: 1, rewinds: 0 }, ListedUpTo { term: 2, rewinds: 0 });
        let mut lists = LinkLists::new(&namespaces, before);
        assert!(lists.is_settled(before) && lists.covers("a", before));
        assert!(lists.note(Some("a"), now, true) && !lists.note(Some("a"), now, true));
        assert!(!lists.is_settled(now), "the other list may come any moment");
        assert!(lists.note(Some("b"), now, false) && !lists.note(Some("b"), now, false));
        assert!(lists.is_settled(now) && lists.covers("a", now) && !lists.covers("b", now));
        assert!(lists.covers("c", now), "it isn't watched");
        assert!(lists.note(Some("b"), now, true) && lists.covers("b", now));
    }

    #[test]
    fn one_list_is_of_all_namespaces() {
        let at = ListedUpTo { term: 1, rewinds: 1 };
        let mut lists = LinkLists::new(&BTreeSet::new(), ListedUpTo::default());
        lists.note(None, at, false);
        assert!(lists.is_settled(at) && !lists.covers("a", at));
        lists.note(None, at, true);
        assert!(lists.covers("a", at) && lists.covers("b", at));
    }
}
