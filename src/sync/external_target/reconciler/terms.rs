//! Terms that objects bear: of this leader, of a former one, or of a leader with a higher term.

use tracing::warn;

use super::Reconciler;
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::{RecordedTerm, TERM, unix_now};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::desired::has_our_field_manager;
use crate::sync::external_target::observed_object::ObservedObject;
use crate::sync::k8s::object::{Object, ObjectId};

impl Reconciler {
    /// Returns the term on an object of this instance, if it is one to be obeyed.
    fn term_on(&self, object: &ObservedObject) -> Option<u64> {
        let text = object.annotation(TERM)?;
        let is_ours = !self.objects.is_of_another(object);
        RecordedTerm::read(Some(text), unix_now()).term().filter(|_| is_ours)
    }

    /// Takes in the terms on all objects.
    pub(crate) fn see_terms(&self) {
        if let Some(highest) = self.highest_term() {
            self.settings.leadership.observe_term(highest);
        }
    }

    fn highest_term(&self) -> Option<u64> {
        self.objects.iter().filter_map(|object| self.term_on(object)).max()
    }

    /// Takes in the terms on all objects at the start: without an election this process takes one above them.
    pub(super) fn take_term(&mut self) {
        let leadership = &self.settings.leadership;
        if self.settings.policy.sync == SyncMode::On && leadership.is_without_election() {
            leadership.raise_term_above(self.highest_term().unwrap_or_default());
            // Its lists are as good in this term.
            self.term = self.settings.leadership.term();
        }
    }

    /// Takes in the term on an object that the watch has told of; `is_new` says that it wasn't there before.
    pub(crate) fn see_term(&mut self, object: &Object, is_new: bool) {
        let Some(observed) = self.objects.get(&object.id()) else { return };
        let Some(term) = self.term_on(observed) else { return };
        let owner = self.objects.owner_of(observed);
        self.settings.leadership.observe_term(term);
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
