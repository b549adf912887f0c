//! The terms in the annotations of objects: this leader's, a former leader's, or a higher one.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Reconciler;
use crate::model::link::Link;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::{RecordedTerm, TERM, unix_now};
use crate::sync::external_target::decision::{Actual, NextStep, SyncMode, Write, adoption, term_repair};
use crate::sync::external_target::desired::has_our_field_manager;
use crate::sync::external_target::observed_object::ObservedObject;
use crate::sync::external_target::states::WRITE_LAG;
use crate::sync::k8s::labels::STABLE_NAME_UID;
use crate::sync::k8s::object::{Object, ObjectId};
use crate::sync::removal::facts::Lists;
use crate::sync::removal::reason::RemovalReason;
use crate::sync::source::service_links::is_present;

/// How long the process with the higher term has time to make a write that this process would make, too.
const SURPASS_AFTER: Duration = Duration::from_secs(20);

impl Reconciler {
    /// Returns which lists the writes for a link may be based on.
    pub(crate) fn lists_of(&self, link: &Link) -> Lists {
        let namespace = link.key.namespace();
        // The StableName of an external target may exist although the link has no override.
        let records_override =
            || self.objects.of_link(&link.key).iter().any(|it| it.annotation(STABLE_NAME_UID).is_some());
        let is_override_listed = link.overridden.is_none() && !records_override()
            || self.context.overrides_listed.borrow().covers(namespace, self.lists());
        if !self.context.selection.watches(namespace) {
            Lists::Unwatched
        } else if !self.may_write() || !is_override_listed {
            Lists::Missing
        } else if self.are_links_listed(namespace) || self.needs_no_service(link) {
            Lists::Complete
        } else if self.context.links_listed.borrow().covers_rewinds(namespace, self.rewinds) {
            Lists::BeforeTerm
        } else {
            Lists::Missing
        }
    }

    /// Returns whether the StableName of a link says everything that is written for the link, while the Services of its
    /// namespace may not be listed. A recorded hostname may be one of the Service with the name of the StableName.
    fn needs_no_service(&self, link: &Link) -> bool {
        let is_announced =
            |by: &LinkOverride| !by.is_provisional && matches!(by.announced, Announcement::Target(_));
        link.active_override().is_some_and(is_announced)
            && self.context.links_listed.borrow().is_refused(link.key.namespace(), self.lists())
            && self.recorded_hostnames(&link.key).iter().all(|name| link.hostnames.contains(name))
    }

    /// Returns the term on an object; `None` if the term is missing or unusable, or the object belongs to another
    /// instance.
    fn term_on(&self, object: &ObservedObject) -> Option<u64> {
        let text = object.annotation(TERM)?;
        let is_ours = !self.objects.is_of_another(object);
        RecordedTerm::read(Some(text), unix_now()).term().filter(|_| is_ours)
    }

    /// Passes the highest term on any object to the leadership.
    pub(crate) fn process_all_terms(&self) {
        if let Some(highest) = self.highest_term() {
            self.context.leadership.observe_term(highest);
        }
    }

    fn highest_term(&self) -> Option<u64> {
        self.objects.iter().filter_map(|object| self.term_on(object)).max()
    }

    /// At the start of a process without leader election that may write: takes a term above the highest term on any
    /// object.
    pub(super) fn begin_term_without_election(&mut self) {
        let leadership = &self.context.leadership;
        if self.context.policy.sync == SyncMode::On && leadership.is_without_election() {
            // No other process leads, so the lists that were made before are valid in this term, too.
            if leadership.raise_term() {
                self.term = leadership.term();
            }
        }
    }

    /// Processes the term on an object that the watch has reported. `is_new` tells whether the cache had no object with
    /// this uid. Records a new object of a former leader that belongs to no link.
    pub(crate) fn process_object_term(&mut self, object: &Object, is_new: bool) {
        let Some(observed) = self.objects.get(&object.id()) else { return };
        let Some(term) = self.term_on(observed) else { return };
        let owner = self.objects.owner_of(observed);
        self.context.leadership.observe_term(term);
        let unwanted = |key: ServiceKey| {
            self.context.selection.watches(key.namespace())
                && self.are_links_listed(key.namespace())
                && !is_present(&self.context.store, &key)
        };
        if is_new
            && term < self.term
            && self.may_write()
            && has_our_field_manager(object.meta())
            && owner.is_some_and(unwanted)
        {
            warn!(
                "{} {}: a former leader has created it in term {term}; it belongs to no existing load balancer and is \
                 removed ({})",
                object.kind(),
                self.context.backend.describe(&object.id().name),
                RemovalReason::FormerLeader
            );
            self.unwanted.created.insert(object.uid().to_owned());
        }
    }

    /// Returns the term on an object, if it is higher than this leader's: this leader must not write the object.
    pub(crate) fn higher_term(&self, id: &ObjectId) -> Option<u64> {
        self.objects.get(id).and_then(|object| self.term_on(object)).filter(|term| *term > self.term)
    }

    /// Without a leader election, makes a conflict of the next step if its object has a higher term: another process
    /// writes it, too. If that process hasn't made the write in time, takes a higher term still, and lists everything
    /// again.
    pub(super) fn yield_to_higher_term(&mut self, link: &Link, step: NextStep, now: Instant) -> NextStep {
        let object = match &step {
            NextStep::Write(write)
                if self.context.policy.sync == SyncMode::On && self.may_write_for(link) =>
            {
                Some(write.id())
            }
            _ => None,
        };
        let Some((object, term)) = object.and_then(|id| self.higher_term(&id).map(|term| (id, term))) else {
            self.outdated.remove(&link.key);
            return step;
        };
        let since = *self.outdated.entry(link.key.clone()).or_insert(now);
        let waited = now.duration_since(since);
        let why = format!(
            "its annotation {TERM} says {term}, which is higher than the term of this process, {}: another lb-linker \
             writes it, or did, and one of the two has no leader election",
            self.term
        );
        if waited >= SURPASS_AFTER && self.context.leadership.raise_term() {
            info!(
                "continuing in term {}, above those on external targets that weren't kept up to date; all objects are \
                 listed again",
                self.context.leadership.term()
            );
        }
        let next = if waited < WRITE_LAG { WRITE_LAG } else { SURPASS_AFTER };
        self.runtime
            .queue
            .add_after(link.key.clone(), next.saturating_sub(waited).max(Duration::from_secs(1)));
        if waited < WRITE_LAG { step } else { NextStep::Conflict { object, why } }
    }

    /// Returns the annotation-only writes of a link that needs no other write: the repair of an unusable term, and the
    /// adoption of an object by this instance.
    pub(super) fn wanted_annotations(
        &self,
        link: &Link,
        actual: Actual<'_>,
        step: &NextStep,
    ) -> (Option<Write>, Option<Write>) {
        let policy = &self.context.policy;
        if *step != NextStep::Done || policy.sync != SyncMode::On || !self.may_write_for(link) {
            return (None, None);
        }
        (term_repair(link, actual, policy, self.term, unix_now()), adoption(link, actual, policy))
    }
}
