//! Makes the reconciler's writes, and processes the results.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;

use super::lost_answers::LostAnswer;
use super::missing_namespace::{MissingNamespace, PROBE_PAUSE};
use super::reconciler::Reconciler;
use super::reconciler::departure::{Confirmed, GoneCheck, Remedy, Unconfirmed, WATCH_LAG};
use super::write_result::{SkipReason, WriteEnd, WriteResult};
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::work_queue::CONFLICT_TIMEOUT;
use crate::sync::external_target::backend::{Backend, WriteError};
use crate::sync::external_target::decision::{CREATES, SyncMode, SyncPolicy, Write, WriteClass};
use crate::sync::external_target::desired::Stamp;
use crate::sync::external_target::observed_object::ObservedObject;
use crate::sync::k8s::forbidden::{Forbidden, LastingRefusal};
use crate::sync::k8s::object::{ObjectId, ObjectKind};

/// Stands for the code 403 of a terminating namespace in the log, which limits its lines by code: the 403 of a missing
/// Role may follow.
const TERMINATING_CODE: u16 = 1403;

impl Reconciler {
    /// Returns the deletion budget's key if a write removes an external target for good, rather than an object under a
    /// former name.
    pub(crate) fn removal(link: &Link, write: &Write) -> Option<String> {
        let Write::Delete { id, .. } = write else { return None };
        let leftover = link.service_gone_since().is_none() && id.name != link.external_target();
        (id.kind == ObjectKind::Service && !leftover).then(|| removal_of(&id.name, write.uid()))
    }

    /// Returns whether a removal may be made now; otherwise the link waits. With [`SyncMode::Plan`] the removal counts
    /// as made.
    pub(crate) fn may_remove(&mut self, link: &Link, object: &str) -> bool {
        let SyncPolicy { max_deletes: max, sync, .. } = self.context.policy;
        let (present, now) = (self.objects.number_of_links(), Instant::now());
        let (namespace, mut budget) = (link.key.namespace(), self.deletion_budget.lock());
        let answer = match sync {
            SyncMode::Plan => budget.reserve(max, namespace, object, present, now),
            // The removal counts when it is sent: first the end of the Service has to be confirmed.
            SyncMode::On | SyncMode::Off => budget.allows(max, namespace, object, present, now),
        };
        drop(budget);
        answer.inspect_err(|pause| self.wait_for_budget(link, *pause)).is_ok()
    }

    /// Reports that the removal of a link's external target is held back, and queues the link again after `pause`;
    /// `None` means never.
    fn wait_for_budget(&mut self, link: &Link, pause: Option<Duration>) {
        self.report.report_held_back(link, self.context.policy.max_deletes, pause);
        if let Some(pause) = pause {
            self.work_queue.add_after(link.key.clone(), pause);
        }
    }

    /// Starts a write, unless it has to wait; returns whether it was started.
    pub(crate) fn start(&mut self, link: &Arc<Link>, write: Write, started_at: Instant) -> bool {
        if self.is_stopping {
            return false;
        }
        let (key, id) = (link.key.clone(), write.id());
        if let Some((outdated, since)) = self.stale_versions.get(&id) {
            let remaining = CONFLICT_TIMEOUT.saturating_sub(since.elapsed());
            if *outdated == self.version_of(&id) && !remaining.is_zero() {
                self.work_queue.add_after(key, remaining);
                return false;
            }
            self.stale_versions.remove(&id);
        }
        if let Some(pause) = self.work_queue.throttled_for(&key, link) {
            self.work_queue.add_after(key, pause);
            return false;
        }
        if self.higher_term(&id).is_some() {
            return false;
        }
        let budget_key = Self::removal(link, &write)
            .filter(|_| !link.was_never_observed() || !self.unwanted.contains(write.uid()));
        if budget_key.as_ref().is_some_and(|object| !self.may_remove(link, object)) {
            return false;
        }
        if !self.breakers.admit(&key, &write.classes()) {
            return false;
        }
        let is_foreign =
            |before: &ObservedObject| before.labelled_for.is_none() && !before.has_our_field_manager;
        let adopted = self.objects.get(&id).is_some_and(is_foreign);
        self.work_queue.begin(&key);
        self.objects.write_begins(&id);
        self.lost_answers.write_begins(&write);
        let backend = self.context.backend.clone();
        let is_refused = self.refused_look_ups.get(&key).is_some_and(LastingRefusal::is_lasting);
        let gone_check = GoneCheck::of(link, &write, &self.context, is_refused);
        let (leadership, term) = (self.context.leadership.clone(), self.term);
        let stamp = Stamp { instance: self.context.policy.instance.clone(), term: Some(term) };
        let (deletion_budget, max) = (Arc::clone(&self.deletion_budget), self.context.policy.max_deletes);
        let (present, target) = (self.objects.number_of_links(), link.target.clone());
        self.writes.spawn(async move {
            let request = async {
                // Confirm last, right before the write: etcd may have been restored during any earlier wait.
                let confirmed = match &gone_check {
                    Some(gone_check) => Some(gone_check.confirm().await.map_err(SkipReason::Unconfirmed)?),
                    None => None,
                };
                if let Some(object) = &budget_key {
                    deletion_budget
                        .lock()
                        .reserve(max, key.namespace(), object, present, Instant::now())
                        .map_err(SkipReason::Held)?;
                }
                Ok((confirmed, backend.write(write.clone(), &stamp).await))
            };
            let request = AssertUnwindSafe(request).catch_unwind();
            let written = match write.is_unprotected() {
                true => leadership.write_confirmed(term, request).await,
                false => leadership.write(term, request).await,
            };
            let (confirmed, (code, result)) = match written {
                Ok(Ok(Ok(answered))) => answered,
                Ok(Ok(Err(why))) => return WriteEnd::Skipped { key, write, why },
                Ok(Err(_)) => (None, (0, Err(WriteError::panicked()))),
                Err(not_leading) => (None, (0, Err(not_leading.into()))),
            };
            WriteEnd::Written(WriteResult {
                key,
                started_at,
                write,
                target,
                adopted,
                confirmed,
                budget_key,
                code,
                result,
            })
        });
        true
    }

    pub(crate) fn on_write_end(&mut self, ended: WriteEnd) {
        match ended {
            WriteEnd::Written(written) => self.on_written(written),
            WriteEnd::Skipped { key, write, why } => self.on_skipped(&key, &write, why),
        }
    }

    /// Processes a skipped write.
    fn on_skipped(&mut self, key: &ServiceKey, write: &Write, why: SkipReason) {
        self.work_queue.done(key);
        self.breakers.probe_ended(key);
        match why {
            SkipReason::Unconfirmed(why) => self.on_unconfirmed(key, why),
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
            self.work_queue.succeeded(key);
            self.work_queue.add(key);
        }
    }

    /// Processes an unconfirmed end of a Service.
    fn on_unconfirmed(&mut self, key: &ServiceKey, why: Unconfirmed) {
        self.report.clear_held_back(key);
        let by_authorizer = matches!(why, Unconfirmed::Refused { by_authorizer: true, .. });
        self.refused_look_ups.entry(key.clone()).or_default().note(by_authorizer);
        match why {
            Unconfirmed::Exists { version } => {
                self.report.report_confirmed();
                // Another list doesn't help: the Service is known, and can't be decoded.
                if self.context.store.is_unreadable(key) {
                    self.work_queue.add_rate_limited(key, None);
                    return;
                }
                match self.unreported_services.note(key, version, Instant::now()) {
                    Remedy::Wait => self.work_queue.add_after(key.clone(), WATCH_LAG),
                    Remedy::WaitLonger => drop(self.work_queue.add_rate_limited(key, None)),
                    Remedy::List => {
                        self.context.rewinds.record_restore_by_look_up(key);
                        self.work_queue.add_rate_limited(key, None);
                    }
                }
            }
            Unconfirmed::Unanswered => {
                self.unanswered = true;
                self.work_queue.add_rate_limited(key, None);
            }
            Unconfirmed::Refused { code, message, retry_after, .. } => {
                self.report.report_unconfirmed(code, &message);
                self.work_queue.add_rate_limited(key, retry_after);
            }
        }
    }

    fn version_of(&self, id: &ObjectId) -> Option<String> {
        self.objects.get(id)?.resource_version.clone().map(Into::into)
    }

    pub(crate) fn on_written(&mut self, written: WriteResult) {
        let WriteResult { key, started_at, write, target, adopted, confirmed, budget_key, code, result } =
            written;
        self.report.clear_held_back(&key);
        if let Some(object) = &budget_key {
            // Without an answer, or after an error of the API server, the object may be gone.
            let refused =
                result.is_err() && (400..500).contains(&code) && !matches!(result, Err(WriteError::Gone));
            self.deletion_budget.lock().record_result(object, refused);
        }
        let id = write.id();
        let is_superseded = self.context.store.get(&key).is_some_and(|link| link.target != target);
        self.work_queue.done(&key);
        self.breakers.probe_ended(&key);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            match confirmed {
                Some(Confirmed::Absent) => {
                    self.refused_look_ups.remove(&key);
                    self.report.report_confirmed();
                }
                Some(Confirmed::Refused) => self.report.counts_as_gone(&key),
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
            self.lost_answers.add(&key, &write, adopted);
        }
        match result {
            Ok(after) => {
                self.lost_answers.remove(&id, "");
                self.work_queue.succeeded_and_release(&key);
                let link = self.context.store.get(&key);
                if let Some(link) = &link
                    && let Some(pause) = self.work_queue.record_write(&key, link)
                {
                    self.report.report_reverted_write(&key, &write, pause);
                }
                let unanswered = std::mem::take(&mut self.unanswered);
                let link = link.as_deref();
                if self.report.report_written(&key, link, &write, adopted, after.as_ref()) || unanswered {
                    self.work_queue.resume();
                }
                match (&write, after) {
                    (Write::Finalizer { uid, add, .. }, _) => {
                        drop(self.context.store.set_has_finalizer(&key, uid, *add));
                    }
                    (_, Some(after)) => self.change_object(&id, |objects| objects.answered(&after)),
                    (_, None) => self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid())),
                }
                self.work_queue.add(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Delete { .. }) => {
                if self.lost_answers.remove(&id, write.uid()) {
                    let link = self.context.store.get(&key);
                    self.report.report_written(&key, link.as_deref(), &write, adopted, None);
                }
                self.work_queue.succeeded(&key);
                self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid()));
                self.work_queue.add(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Finalizer { .. }) => {
                // The finalizers are gone with the Service.
                self.context.store.set_has_finalizer(&key, write.uid(), false);
                self.work_queue.add(&key);
            }
            Err(WriteError::Conflict | WriteError::Gone) => {
                // Another client's write came first. The object isn't written again until the watch delivers another
                // version, or `CONFLICT_TIMEOUT` ends.
                let sent = write.resource_version().map(ToOwned::to_owned);
                if self.version_of(&id) == sent {
                    self.stale_versions.insert(id, (sent, Instant::now()));
                }
                self.work_queue.add(&key);
            }
            // The lease has ended by the clock. The election may report the end of leadership a moment later.
            Err(WriteError::NotLeading(_)) => drop(self.work_queue.add_rate_limited(&key, None)),
            Err(WriteError::Unanswered) => {
                self.unanswered = true;
                self.work_queue.add_rate_limited(&key, None);
            }
            Err(WriteError::WholeClass { code, message, retry_after }) => {
                self.report.report_class_error(&write, code, &message);
                if matches!(code, 401 | 403 | 404) {
                    let missing = match code {
                        404 => Some(MissingNamespace::Absent),
                        403 => Some(MissingNamespace::Refused),
                        _ => None,
                    };
                    self.open_breaker(&key, &write, missing, retry_after);
                } else {
                    // Writes of other objects may succeed: a webhook may be slow for this object.
                    self.work_queue.add_rate_limited(&key, retry_after);
                }
            }
            Err(WriteError::Refused { by: Forbidden::NamespaceTerminating, message }) => {
                let sentence = format!("can't {} {}s: {message}", write.verb(), id.kind);
                self.report.report_class_error(&write, TERMINATING_CODE, &sentence);
                self.open_breaker(&key, &write, Some(MissingNamespace::Terminating), None);
            }
            // The target has changed since the write was sent: the failure concerns the old target.
            Err(WriteError::Refused { .. } | WriteError::Other { .. }) if is_superseded => {
                self.work_queue.add(&key);
            }
            Err(WriteError::Refused { by, message }) => {
                self.failed(&key, &write, &message, None);
                if by.applies_to_namespace() {
                    self.work_queue.mark_limited(&key);
                }
            }
            Err(WriteError::Other { message, retry_after }) => {
                self.failed(&key, &write, &message, retry_after);
            }
        }
        self.objects.write_ended(&write.id());
        // The watch may have been faster.
        self.report_lost_answer(&write.id());
    }

    /// Schedules the retry of a write that failed for a reason of this link alone.
    fn failed(&mut self, key: &ServiceKey, write: &Write, reason: &str, at_least: Option<Duration>) {
        let (pause, is_new) = self.work_queue.add_refused(key, at_least, reason);
        self.report.report_failed(key, write, reason, pause, is_new);
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
        if !matches!(write, Write::Create(_)) {
            return self.breakers.record_failure(write.class(), key, at_least);
        }
        self.missing = missing.or(self.missing);
        let is_shared = missing.is_some_and(|missing| missing != MissingNamespace::Refused);
        let released = if is_shared {
            self.breakers.record_failure(WriteClass::AllCreates, key, at_least.max(Some(PROBE_PAUSE)));
            CREATES.iter().flat_map(|class| self.breakers.record_success(class)).collect()
        } else {
            self.breakers.record_failure(write.class(), key, at_least);
            self.breakers.record_success(&WriteClass::AllCreates)
        };
        // These keys wait for the other breaker from now on.
        for waiting in &released {
            self.work_queue.add(waiting);
        }
    }

    /// Closes the breakers of a write that the API server has processed, and queues the keys that waited. After creates
    /// were refused, the objects are listed again: those of a deleted namespace are gone, and the watches may be in a
    /// long pause.
    pub(crate) fn close_breakers(&mut self, write: &Write) {
        let classes = write.classes();
        if matches!(write, Write::Create(_)) && classes.iter().any(|class| self.breakers.is_open(class)) {
            self.lists_again = true;
        }
        for waiting in classes.iter().flat_map(|class| self.breakers.record_success(class)) {
            self.work_queue.add(&waiting);
        }
    }

    /// Passes what is missing to the store: `/ready` shows it, and stays ready.
    pub(crate) fn note_missing_namespace(&mut self) {
        let are_creates_refused = self.breakers.is_open(&WriteClass::AllCreates)
            || CREATES.iter().any(|class| self.breakers.is_open(class));
        if !are_creates_refused {
            self.missing = None;
        }
        let is_list_missing = self.is_list_refused && self.listed_in_term.len() < CREATES.len();
        let missing = self.missing.or(is_list_missing.then_some(MissingNamespace::Refused));
        let note = match (missing, &self.context.backend, self.context.policy.sync) {
            (Some(missing), Backend::Namespace { namespace, .. }, SyncMode::On) => {
                let why = missing.why();
                Some(format!("external targets can't be written to namespace {namespace} now: {why}"))
            }
            _ => None,
        };
        self.context.store.set_sync_note(note);
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
        let Some(LostAnswer { key, write, adopted }) = self.lost_answers.take_if_made(id, present) else {
            return;
        };
        let present =
            present.filter(|_| !matches!(write, Write::Delete { .. })).map(ObservedObject::to_object);
        let link = self.context.store.get(&key);
        self.report.report_written(&key, link.as_deref(), &write, adopted, present.as_ref());
        self.work_queue.stop_timer(&key);
        self.work_queue.succeeded(&key);
        self.work_queue.add(&key);
    }
}

/// Returns the deletion budget's key of an external target. The uid distinguishes successive targets of the same name.
pub(crate) fn removal_of(name: &str, uid: &str) -> String {
    format!("{name} {uid}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::link::LinkState;
    use crate::sync::external_target::desired::Precondition;

    fn delete(kind: ObjectKind, name: &str) -> Write {
        let precondition = Precondition { uid: Some("o".to_owned()), resource_version: None };
        Write::Delete { id: ObjectId { kind, name: name.to_owned() }, precondition }
    }

    #[test]
    fn only_final_removals_of_external_targets_count() {
        let living = Link::new(ServiceKey::new("default", "web"), "u");
        let gone = Link { state: LinkState::Gone(Instant::now()), ..living.clone() };
        let (own, former) = ("web-default-ext", "former-ext");
        let removal = |link, kind, name| Reconciler::removal(link, &delete(kind, name));
        assert_eq!(removal(&gone, ObjectKind::Service, own), Some("web-default-ext o".to_owned()));
        assert!(removal(&gone, ObjectKind::Service, former).is_some());
        assert!(removal(&living, ObjectKind::Service, own).is_some(), "with --ip-targets skip");
        assert_eq!(removal(&living, ObjectKind::Service, former), None, "it has another name now");
        assert_eq!(removal(&gone, ObjectKind::EndpointSlice, own), None);
    }
}
