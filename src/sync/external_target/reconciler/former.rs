//! What the terms on objects say: of another leader, or of a former one.

use std::collections::HashSet;
use std::time::Duration;

use tracing::warn;

use super::Reconciler;
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::{RecordedTerm, TERM, unix_now};
use crate::sync::external_target::decision::{OnDelete, SyncMode, SyncPolicy};
use crate::sync::external_target::desired::has_our_field_manager;
use crate::sync::external_target::observed_object::Packed;
use crate::sync::k8s::object::{Object, ObjectId};

/// How long the watch of load balancers may take to tell of one for which an object was made: two watches have no
/// common order.
const WATCH_LAG: Duration = Duration::from_secs(1);

/// Objects that a former leader has created since this one lists and watches, for Services that aren't there: it had
/// decided on them before it stood still. They are removed without the delay and the brakes, which are there for
/// what clients may rely on.
#[derive(Debug, Default)]
pub(crate) struct FormerLeaders {
    /// The uids of the objects.
    created: HashSet<String>,
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

impl Reconciler {
    /// Returns the term on an object of this instance, if it is one to be obeyed.
    fn term_on(&self, object: &Packed) -> Option<u64> {
        let text = object.annotation(TERM)?;
        let is_ours = !self.objects.is_of_another(object);
        RecordedTerm::read(Some(&text), unix_now()).term().filter(|_| is_ours)
    }

    /// Takes in the terms on all objects.
    pub(crate) fn see_terms(&self) {
        if let Some(highest) = self.highest_term() {
            self.settings.leadership.see(highest);
        }
    }

    fn highest_term(&self) -> Option<u64> {
        self.objects.iter().filter_map(|object| self.term_on(object)).max()
    }

    /// Takes in the terms on all objects at the start: without an election this process takes one above them.
    pub(super) fn take_term(&mut self) {
        let leadership = &self.settings.leadership;
        if self.settings.policy.sync == SyncMode::On && leadership.is_alone() {
            leadership.begin_above(self.highest_term().unwrap_or_default());
            // Its lists are as good in this term.
            self.term = self.settings.leadership.term();
        }
    }

    /// Takes in the term on an object that the watch has told of; `is_new` says that it wasn't there before.
    pub(crate) fn see_term(&mut self, object: &Object, is_new: bool) {
        let Some(packed) = self.objects.get(&object.id()) else { return };
        let Some(term) = self.term_on(packed) else { return };
        let owner = self.objects.owner_of(packed);
        self.settings.leadership.see(term);
        let unwanted = |key: ServiceKey| {
            self.settings.selection.watches(key.namespace())
                && self.are_links_listed(key.namespace())
                && !self.settings.store.contains(&key)
        };
        if is_new
            && term < self.term
            && self.may_write()
            && has_our_field_manager(object.meta())
            && owner.is_some_and(unwanted)
        {
            warn!(
                "{} {}: a former leader has created it in term {term}; it belongs to no existing load balancer and is \
                 removed",
                object.kind(),
                self.settings.backend.describe(&object.id().name)
            );
            self.former.created.insert(object.uid().to_owned());
        }
    }

    /// Returns the term on an object, if it is higher than this leader's: such an object isn't written.
    pub(crate) fn higher_term(&self, id: &ObjectId) -> Option<u64> {
        self.objects.get(id).and_then(|object| self.term_on(object)).filter(|term| *term > self.term)
    }
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
