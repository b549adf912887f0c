//! Makes the reconciler's writes, and processes the results.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lost_answers::LostAnswer;
use super::missing_namespace::{ABSENT_HINT, MissingNamespace, NAMESPACE_HINT, PROBE_PAUSE, ROLE_HINT};
use super::reconciler::Reconciler;
use super::reconciler::departure::{GoneCheck, LookUp, LookUpError, Remedy, WATCH_LAG};
use super::write_result::{Answered, Before, Confirmed, SentWrite, SkipReason, WriteOutcome};
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::runtime::{Ended, Failure, Proof};
use crate::sync::controller::write_error::WriteError;
use crate::sync::events::Reason;
use crate::sync::external_target::backend::Backend;
use crate::sync::external_target::decision::{CREATES, SyncMode, SyncPolicy, Write, WriteClass};
use crate::sync::external_target::desired::Stamp;
use crate::sync::external_target::observed_object::ObservedObject;
use crate::sync::k8s::forbidden::{Forbidden, LastingRefusal};
use crate::sync::k8s::object::{Object, ObjectId};
use crate::sync::removal::facts::{Budget, Facts, Found};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Question, Verdict, may_remove};
use crate::sync::source::service_links::set_has_finalizer;

/// The log limits its lines by code. The 403 of a terminating namespace has a code of its own there, so that a later 403 of
/// a missing Role is logged, too.
const TERMINATING_CODE: u16 = 1403;

impl Reconciler {
    /// Adds the lists and the deletion budget to the facts about a write. Returns whether the budget has room; otherwise
    /// the link waits. With [`SyncMode::Plan`] the removal counts as made.
    pub(crate) fn has_budget(&mut self, link: &Link, write: &Write, facts: &mut Facts) -> bool {
        let SyncPolicy { max_deletes: max, sync, .. } = self.context.policy;
        let (present, now) = (self.objects.number_of_links(), Instant::now());
        facts.lists = Some(self.lists_of(link));
        facts.budget = budget_key(write, facts).map(|object| {
            let (namespace, mut budget) = (link.key.namespace(), self.deletion_budget.lock());
            let answer = match sync {
                SyncMode::Plan => budget.reserve(max, namespace, &object, present, now),
                // The removal counts when it is sent: first the end of the Service has to be confirmed.
                SyncMode::On | SyncMode::Off => budget.allows(max, namespace, &object, present, now),
            };
            answer.map_or_else(|pause| Budget::UsedUp(pause.map(|pause| now + pause)), |()| Budget::Free)
        });
        let pause = match may_remove(facts, now) {
            Verdict::Wait(RemovalReason::RemovalHeld, until) => Some(until.saturating_duration_since(now)),
            Verdict::Keep(RemovalReason::RemovalHeld) => None,
            _ => return true,
        };
        self.wait_for_budget(link, pause);
        false
    }

    /// Reports that the removal of a link's external target is held back, and queues the link again after `pause`;
    /// `None` means never.
    fn wait_for_budget(&mut self, link: &Link, pause: Option<Duration>) {
        self.report.report_held_back(link, self.context.policy.max_deletes, pause);
        if let Some(pause) = pause {
            self.runtime.queue.add_after(link.key.clone(), pause);
        }
    }

    /// Starts a write, unless it has to wait; returns whether it was started.
    pub(crate) fn start(
        &mut self,
        link: &Arc<Link>,
        write: Write,
        mut removal: Option<Facts>,
        started_at: Instant,
    ) -> bool {
        let (key, id) = (link.key.clone(), write.id());
        let may_start = !self.is_stopping
            && self.runtime.queue.may_start(&key, link, &self.version_of(&id), false)
            && self.higher_term(&id).is_none()
            && removal.as_mut().is_none_or(|facts| self.has_budget(link, &write, facts))
            && self.runtime.may_send(&key, &write.classes());
        if !may_start {
            return false;
        }
        let before = self.objects.get(&id).map_or(Before::Other, |object| Before::by(&write, object));
        self.objects.write_begins(&id);
        self.lost_answers.write_begins(&write);
        let backend = self.context.backend.clone();
        let is_refused = self.refused_look_ups.get(&key).is_some_and(LastingRefusal::is_lasting);
        let gone_check = GoneCheck::of(link, &self.context, is_refused);
        if let (Some(facts), None) = (&mut removal, &gone_check) {
            // Manifests are always read as a whole.
            facts.found = Some(Found::Absent);
        }
        let budget_key = removal.and_then(|facts| budget_key(&write, &facts));
        let stamp = Stamp { instance: self.context.policy.instance.clone(), term: Some(self.term) };
        let (deletion_budget, max) = (Arc::clone(&self.deletion_budget), self.context.policy.max_deletes);
        let (present, namespace) = (self.objects.number_of_links(), key.clone());
        let (removed, sent, hint) = (budget_key.clone(), write.clone(), self.permission_hint());
        let request = async move {
            let ask = Verdict::Ask(Question::Service);
            let asks = removal.is_some_and(|facts| may_remove(&facts, Instant::now()) == ask);
            let mut look_up = None;
            // Look up last, right before the write: etcd may have been restored during any earlier wait.
            if let (Some(facts), Some(check)) = (&mut removal, gone_check.filter(|_| asks)) {
                look_up = Some(check.look_up().await);
                facts.found = look_up.as_ref().map(|answer| answer.found);
            }
            let confirmed = match removal.map(|facts| may_remove(&facts, Instant::now())) {
                None => None,
                Some(Verdict::Remove(reason)) => {
                    Some(Confirmed { reason, found: look_up.map(|answer| answer.found) })
                }
                Some(_) => return Err(SkipReason::Unconfirmed(look_up)),
            };
            if let Some(object) = &removed {
                deletion_budget
                    .lock()
                    .reserve(max, namespace.namespace(), object, present, Instant::now())
                    .map_err(SkipReason::Held)?;
            }
            let (code, result) = backend.write(sent, &stamp, hint).await;
            Ok(Answered { confirmed, code, result })
        };
        let proof = if write.is_unprotected() { Proof::Renewal } else { Proof::Clock };
        let sent = SentWrite { started_at, write, target: link.target.clone(), before, budget_key };
        self.runtime.start(&key, sent, false, (self.term, proof), request);
        true
    }

    pub(crate) fn on_write_end(&mut self, ended: Ended<SentWrite, WriteOutcome>) {
        let Ended { key, write, answer } = ended;
        match answer {
            Ok(Ok(answered)) => self.on_written(&key, write, answered),
            Ok(Err(why)) => self.on_skipped(&key, &write.write, why),
            Err(error) => {
                self.on_written(&key, write, Answered { confirmed: None, code: 0, result: Err(error) });
            }
        }
    }

    /// Processes a skipped write.
    fn on_skipped(&mut self, key: &ServiceKey, write: &Write, why: SkipReason) {
        self.runtime.done(key, 0, true);
        match why {
            SkipReason::Unconfirmed(look_up) => self.on_unconfirmed(key, look_up),
            SkipReason::Held(pause) => {
                // The leadership may have ended during the look-up.
                if let Some(link) = self.context.store.get(key).filter(|_| self.may_write()) {
                    self.wait_for_budget(&link, pause);
                }
            }
        }
        self.objects.write_ended(&write.id());
        self.report_lost_answer(&write.id());
        // Events that arrived meanwhile may have changed the decision.
        if self.context.store.get(key).is_none_or(|link| link.service_gone_since().is_none()) {
            self.runtime.queue.succeeded(key);
            self.runtime.queue.add(key);
        }
    }

    /// Processes an unconfirmed end of a Service.
    fn on_unconfirmed(&mut self, key: &ServiceKey, look_up: Option<LookUp>) {
        self.report.clear_held_back(key);
        let found = look_up.as_ref().map(|look_up| look_up.found);
        let by_authorizer = matches!(found, Some(Found::Refused { .. }));
        self.refused_look_ups.entry(key.clone()).or_default().note(by_authorizer);
        match look_up {
            Some(LookUp { found: Found::Exists { .. }, version, .. }) => {
                self.runtime.answered();
                self.report.report_confirmed();
                // Another list doesn't help: the Service is known, and can't be decoded.
                if self.context.store.is_unreadable(key) {
                    self.runtime.queue.add_rate_limited(key, None);
                    return;
                }
                match self.unreported_services.note(key, version, Instant::now()) {
                    Remedy::Wait => self.runtime.queue.add_after(key.clone(), WATCH_LAG),
                    Remedy::WaitLonger => drop(self.runtime.queue.add_rate_limited(key, None)),
                    Remedy::List => {
                        self.context.rewinds.record_restore_by_look_up(key);
                        self.runtime.queue.add_rate_limited(key, None);
                    }
                }
            }
            Some(LookUp { error: Some(LookUpError { code, message, retry_after }), .. }) => {
                self.runtime.answered();
                self.report.report_unconfirmed(code, &message);
                self.runtime.queue.add_rate_limited(key, retry_after);
            }
            // There was no answer, which has been logged.
            Some(_) => self.runtime.unanswered(key),
            None => drop(self.runtime.queue.add_rate_limited(key, None)),
        }
    }

    /// Returns an object and the version that the watch has shown last.
    fn version_of(&self, id: &ObjectId) -> String {
        let version = self.objects.get(id).and_then(|object| object.resource_version.as_deref());
        versioned(id, version)
    }

    fn on_written(&mut self, key: &ServiceKey, sent: SentWrite, answered: Answered) {
        let SentWrite { started_at, write, target, before, budget_key } = sent;
        let Answered { confirmed, code, result } = answered;
        self.report.clear_held_back(key);
        if let Some(object) = &budget_key {
            // Without an answer, or after an error of the API server, the object may be gone.
            let refused =
                result.is_err() && (400..500).contains(&code) && !matches!(result, Err(WriteError::Gone));
            self.deletion_budget.lock().record_result(object, refused);
        }
        let why = confirmed.map(|confirmed| confirmed.reason);
        let is_superseded = self.context.store.get(key).is_some_and(|link| link.target != target);
        self.runtime.done(key, code, result.is_err());
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            match confirmed.and_then(|confirmed| confirmed.found) {
                Some(Found::Refused { .. }) => self.report.counts_as_gone(key),
                Some(_) => {
                    self.refused_look_ups.remove(key);
                    self.report.report_confirmed();
                }
                None => {}
            }
            self.report.count(&write, code, &result, started_at);
        }
        let is_inconclusive = |error: &WriteError| {
            matches!(
                error,
                WriteError::NotLeading(_)
                    | WriteError::Unanswered
                    | WriteError::WholeClass { .. }
                    | WriteError::Refused { by: Forbidden::NamespaceTerminating, .. }
            )
        };
        if !result.as_ref().is_err_and(is_inconclusive) {
            self.close_breakers(&write);
        }
        if result.as_ref().is_err_and(WriteError::may_be_made) {
            self.lost_answers.add(key, &write, before);
        }
        if let Err(error) = &result
            && error.is_refusal()
            && !is_superseded
        {
            self.note_refusal(key, &write, error);
        }
        match result {
            Ok(after) => self.on_success(key, &write, (before, why), after),
            Err(error) => self.on_failure(key, &write, (before, why), (error, is_superseded)),
        }
        self.objects.write_ended(&write.id());
        // The watch may have been faster.
        self.report_lost_answer(&write.id());
    }

    /// Shows users that a write for a link was refused. A single refusal by an authorizer is no Event: an API server that
    /// has just started refuses everything.
    fn note_refusal(&self, key: &ServiceKey, write: &Write, error: &WriteError) {
        let (states, why) = (&self.context.external_target_states, error.to_string());
        states.set_failure(key, why.clone());
        let by = match error {
            WriteError::WholeClass { code: 403, .. } if self.runtime.breakers.is_probed(&write.class()) => {
                Forbidden::Authorizer
            }
            WriteError::Refused { by, .. } => *by,
            _ => return,
        };
        if let Some(link) = self.context.store.get(key).filter(|_| states.report_refusal(key, by)) {
            self.context.link_reporter.recorder.about(&link, Reason::Forbidden, &why);
        }
    }

    fn on_success(
        &mut self,
        key: &ServiceKey,
        write: &Write,
        (before, why): (Before, Option<RemovalReason>),
        after: Option<Object>,
    ) {
        let id = write.id();
        self.lost_answers.remove(&id, "");
        let link = self.context.store.get(key);
        if let Some(pause) = self.runtime.succeeded(key, link.as_ref()) {
            self.report.report_reverted_write(key, write, pause);
        }
        if self.report.report_written(key, link.as_deref(), write, before, why, after.as_ref()) {
            self.runtime.queue.resume();
        }
        match (write, after) {
            (Write::Finalizer { uid, add, .. }, _) => {
                drop(set_has_finalizer(&self.context.store, key, uid, *add));
            }
            (_, Some(after)) => self.change_object(&id, |objects| objects.answered(&after)),
            (_, None) => self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid())),
        }
        self.runtime.queue.add(key);
    }

    fn on_failure(
        &mut self,
        key: &ServiceKey,
        write: &Write,
        (before, why): (Before, Option<RemovalReason>),
        (error, is_superseded): (WriteError, bool),
    ) {
        let id = write.id();
        match error {
            WriteError::Gone if matches!(write, Write::Delete { .. }) => {
                if self.lost_answers.remove(&id, write.uid()) {
                    let link = self.context.store.get(key);
                    self.report.report_written(key, link.as_deref(), write, before, why, None);
                }
                self.runtime.queue.succeeded(key);
                self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid()));
                self.runtime.queue.add(key);
            }
            WriteError::Gone if matches!(write, Write::Finalizer { .. }) => {
                // The finalizers are gone with the Service.
                set_has_finalizer(&self.context.store, key, write.uid(), false);
                self.runtime.queue.add(key);
            }
            WriteError::WholeClass { code, mut message, retry_after } => {
                // Only a missing namespace has this code.
                if code == 404 {
                    message = format!("{message}; {ABSENT_HINT}");
                }
                self.report.report_class_error(write, code, &message);
                match code {
                    404 => self.open_breaker(key, write, Some(MissingNamespace::Absent), retry_after),
                    403 => self.open_breaker(key, write, Some(MissingNamespace::Refused), retry_after),
                    401 => self.open_breaker(key, write, None, retry_after),
                    // Writes of other objects may succeed: a webhook may be slow for this object.
                    _ => drop(self.runtime.queue.add_rate_limited(key, retry_after)),
                }
            }
            WriteError::Refused { by: Forbidden::NamespaceTerminating, message } => {
                let sentence = format!("can't {} {}s: {message}", write.verb(), id.kind);
                self.report.report_class_error(write, TERMINATING_CODE, &sentence);
                self.open_breaker(key, write, Some(MissingNamespace::Terminating), None);
            }
            error => {
                let is_of_namespace =
                    matches!(&error, WriteError::Refused { by, .. } if by.applies_to_namespace());
                let sent = versioned(&id, write.resource_version());
                let failure = self.runtime.failed(key, error, &sent, is_superseded);
                if let Failure::Own { message, pause, is_new } = failure {
                    self.report.report_failed(key, write, &message, pause, is_new);
                    if is_of_namespace {
                        self.runtime.queue.mark_limited(key);
                    }
                }
            }
        }
    }
}

impl Reconciler {
    /// Opens the breaker of a refused write. If the namespace is missing for certain, the creates of both kinds share a
    /// breaker, so that one object at a time probes. An authorizer may refuse one kind only, so that each kind has to
    /// probe by itself.
    pub(crate) fn open_breaker(
        &mut self,
        key: &ServiceKey,
        write: &Write,
        missing: Option<MissingNamespace>,
        at_least: Option<Duration>,
    ) {
        let class = write.class();
        if missing == Some(MissingNamespace::Refused) && matches!(class, WriteClass::OfKind(..)) {
            self.refused.insert(class);
        }
        if !matches!(write, Write::Create(_)) {
            return self.runtime.breakers.record_failure(write.class(), key, at_least);
        }
        self.missing = missing.or(self.missing);
        let is_shared = missing.is_some_and(|missing| missing != MissingNamespace::Refused);
        let released = if is_shared {
            self.runtime.breakers.record_failure(
                WriteClass::AllCreates,
                key,
                at_least.max(Some(PROBE_PAUSE)),
            );
            CREATES.iter().flat_map(|class| self.runtime.breakers.record_success(class)).collect()
        } else {
            self.runtime.breakers.record_failure(write.class(), key, at_least);
            self.runtime.breakers.record_success(&WriteClass::AllCreates)
        };
        // These keys wait for the other breaker from now on.
        for waiting in &released {
            self.runtime.queue.add(waiting);
        }
    }

    /// Closes the breakers of a write that the API server has processed, and queues the keys that waited. After creates
    /// were refused, the objects are listed again: those of a deleted namespace are gone, and the watches may be in a
    /// long pause.
    pub(crate) fn close_breakers(&mut self, write: &Write) {
        let classes = write.classes();
        if matches!(write, Write::Create(_))
            && classes.iter().any(|class| self.runtime.breakers.is_open(class))
        {
            self.lists_again = true;
            // If the namespace was deleted, its objects are gone for that reason: no other client has reverted writes.
            self.runtime.queue.forget_writes();
        }
        for waiting in classes.iter().flat_map(|class| self.runtime.breakers.record_success(class)) {
            self.runtime.queue.add(&waiting);
        }
    }

    fn is_list_missing(&self) -> bool {
        self.is_list_refused && self.listed_in_term.len() < CREATES.len()
    }

    /// Returns the meaning of 403 in the target namespace.
    fn permission_hint(&self) -> &'static str {
        if self.is_list_missing() { NAMESPACE_HINT } else { ROLE_HINT }
    }

    /// Returns what an authorizer refuses, and what to do about it.
    fn why_refused(&self) -> Cow<'static, str> {
        let hint = self.permission_hint();
        if hint == NAMESPACE_HINT {
            return hint.into();
        }
        let verbs = self.refused.iter().filter_map(|class| match class {
            WriteClass::OfKind(verb, kind) => Some(format!("{verb} {kind}s")),
            WriteClass::AllCreates | WriteClass::Finalizers(_) => None,
        });
        format!("lb-linker may not {} there; {hint}", verbs.collect::<Vec<_>>().join(", ")).into()
    }

    /// Passes to readiness why external targets can't be written: `/ready` shows it, and stays ready.
    pub(crate) fn note_missing_namespace(&mut self) {
        self.refused.retain(|class| self.runtime.breakers.is_open(class));
        let are_creates_refused = self.runtime.breakers.is_open(&WriteClass::AllCreates)
            || CREATES.iter().any(|class| self.runtime.breakers.is_open(class));
        if !are_creates_refused {
            self.missing = None;
        }
        let is_refused = self.is_list_missing() || !self.refused.is_empty();
        let missing = self.missing.or(is_refused.then_some(MissingNamespace::Refused));
        let note = match (missing, &self.context.backend, self.context.policy.sync) {
            (Some(missing), Backend::Namespace { namespace, .. }, SyncMode::On) => {
                let why = missing.why().unwrap_or_else(|| self.why_refused());
                Some(format!("external targets can't be written to namespace {namespace} now: {why}"))
            }
            _ => None,
        };
        let shown = &self.context.link_reporter.findings.readiness.writes;
        if shown.load().as_deref() != note.as_ref() {
            shown.store(note.map(Arc::new));
        }
    }
}

impl Reconciler {
    /// Reports a write whose answer was lost if the object shows its effect, and reconciles the link without a pause.
    /// While the retry is under way, the effect may be the retry's, which its answer reports.
    pub(crate) fn report_lost_answer(&mut self, id: &ObjectId) {
        if self.objects.is_write_under_way(id) {
            return;
        }
        let present = self.objects.get(id);
        let Some(LostAnswer { key, write, before }) = self.lost_answers.take_if_made(id, present) else {
            return;
        };
        let present =
            present.filter(|_| !matches!(write, Write::Delete { .. })).map(ObservedObject::to_object);
        let link = self.context.store.get(&key);
        self.report.report_written(&key, link.as_deref(), &write, before, None, present.as_ref());
        self.runtime.queue.stop_timer(&key);
        self.runtime.queue.succeeded(&key);
        self.runtime.queue.add(&key);
    }
}

fn versioned(id: &ObjectId, version: Option<&str>) -> String {
    format!("{} {} {}", id.kind, id.name, version.unwrap_or_default())
}

/// Returns the deletion budget's key of a write, if the write counts.
fn budget_key(write: &Write, facts: &Facts) -> Option<String> {
    facts.is_counted().then(|| removal_of(&write.id().name, write.uid()))
}

/// Returns the deletion budget's key of an external target. The uid distinguishes successive targets of the same name.
pub(crate) fn removal_of(name: &str, uid: &str) -> String {
    format!("{name} {uid}")
}
