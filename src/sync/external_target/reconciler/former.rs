//! Objects that former leaders have created for Services that don't exist.

use std::collections::HashSet;
/// Objects that a former leader has created after this leader's lists, for Services that don't exist: the former leader
/// decided on them before it was paused.
#[derive(Debug, Default)]
pub(crate) struct UnwantedObjects {
    /// The uids of the objects.
    pub(super) created: HashSet<String>,
}

impl UnwantedObjects {
    /// Returns whether former leaders have created all these objects, given by uid; false if there are none.
    pub(super) fn contains_all<'a>(&self, mut uids: impl Iterator<Item = &'a str>) -> bool {
        !self.created.is_empty()
            && uids.next().is_some_and(|uid| self.created.contains(uid))
            && uids.all(|uid| self.created.contains(uid))
    }

    pub(crate) fn contains(&self, uid: &str) -> bool {
        self.created.contains(uid)
    }

    /// Records that an object is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.created.remove(uid);
    }

    /// Forgets all objects: objects that exist at the beginning of a term are treated normally.
    pub(super) fn clear(&mut self) {
        self.created.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrote_all_is_true_only_if_former_leaders_created_all() {
        let mut former = UnwantedObjects::default();
        assert!(!former.contains_all([].into_iter()) && !former.contains_all(["a"].into_iter()));
        former.created.extend(["a".to_owned(), "b".to_owned()]);
        assert!(former.contains_all(["a", "b"].into_iter()));
        assert!(!former.contains_all(["a", "c"].into_iter()), "c was there before");
        assert!(!former.contains_all([].into_iter()));
        former.forget("b");
        assert!(!former.contains_all(["a", "b"].into_iter()));
    }
}
