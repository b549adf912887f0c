//! What the terms on objects say: of another leader, or of a former one.

use std::collections::HashSet;
use std::time::Duration;

use crate::sync::external_target::decision::{OnDelete, SyncPolicy};

/// How long the watch of load balancers may take to tell of one for which an object was made: two watches have no
/// common order.
const WATCH_LAG: Duration = Duration::from_secs(1);

/// Objects that a former leader has created since this one lists and watches, for Services that aren't there: it had
/// decided on them before it stood still. They are removed without the delay and the brakes, which are there for
/// what clients may rely on.
#[derive(Debug, Default)]
pub(crate) struct FormerLeaders {
    /// The uids of the objects.
    pub(super) created: HashSet<String>,
}

impl FormerLeaders {
    /// Returns whether former leaders have created all these objects, given by uid, and there is one.
    pub(super) fn wrote_all<'a>(&self, mut uids: impl Iterator<Item = &'a str>) -> bool {
        !self.created.is_empty()
            && uids.next().is_some_and(|uid| self.created.contains(uid))
            && uids.all(|uid| self.created.contains(uid))
    }

    /// Returns whether a former leader has created the object with this uid.
    pub(crate) fn wrote(&self, uid: &str) -> bool {
        self.created.contains(uid)
    }

    /// Takes in that an object is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.created.remove(uid);
    }

    /// Forgets all: what is there when a term begins is treated like anything else.
    pub(super) fn clear(&mut self) {
        self.created.clear();
    }
}

/// Returns the policy for an object that only a former leader wanted.
pub(super) fn policy(policy: &SyncPolicy) -> SyncPolicy {
    let delete_delay = WATCH_LAG.min(policy.delete_delay);
    SyncPolicy { on_delete: OnDelete::Delete, delete_delay, ..policy.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_former_leaders_alone_go_at_once() {
        let mut former = FormerLeaders::default();
        assert!(!former.wrote_all([].into_iter()) && !former.wrote_all(["a"].into_iter()));
        former.created.extend(["a".to_owned(), "b".to_owned()]);
        assert!(former.wrote_all(["a", "b"].into_iter()));
        assert!(!former.wrote_all(["a", "c"].into_iter()), "one was there before");
        assert!(!former.wrote_all([].into_iter()));
        former.forget("b");
        assert!(!former.wrote_all(["a", "b"].into_iter()));
    }
}
