//! Writes decided statuses, and reports what a written status has changed.

use std::time::Duration;

use kube::api::Patch;

use super::super::FailoverController;
use super::super::alerts::add_condition;
use super::super::status_format::{PublishedNames, merge_patch, own_part, to_stored};
use super::super::write::{StatusAnswer, StatusWrite, patch_status};
use super::state::{DecisionState, refusal_of};
use crate::api::status::StableNameStatus;
use crate::model::link::has_same_entries;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::controller::runtime::{Ended, Failure, Proof};
use crate::sync::controller::write_error::WriteError;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::events::{Reason, Regarding};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::source::service_links::dns_names;
use crate::sync::stable_name::decision::decide::EventReason;
use crate::sync::stable_name::decision::spec::RefusalReason;
use crate::sync::stable_name::decision::status::{ConditionStatus, ConditionType};
use crate::sync::stable_name::decision::times::end_of_wait;

/// The time after an announcement in which a change of Ready to True is written at once.
const FIRST_READY: Duration = Duration::from_secs(60);

impl FailoverController {
    /// Writes the decided status, unless the API server has it.
    pub(super) fn publish(&mut self, key: &ServiceKey) {
        let link = self.context.store.get(key);
        // Nothing is written until the lists of this term are complete: each complete list queues a decision.
        let followed = self.objects.get(key).filter(|followed| self.may_decide(&followed.object));
        let (Some(followed), Some(state)) = (followed, self.leader.states.get_mut(key)) else {
            if !self.objects.contains_key(key) {
                self.leader.runtime.forget(key);
            }
            return;
        };
        let (object, status) = (&followed.object, &state.status);
        let link = link.as_deref().filter(|_| status.target.is_some());
        let namespace = &self.context.target_namespace;
        let service = link.map(|link| format!("{namespace}/{}", link.external_target())).unwrap_or_default();
        let dns_names = link.map(|link| dns_names(&self.context.store, link)).unwrap_or_default();
        let published = PublishedNames { service: &service, dns_names: &dns_names };
        let mut after = to_stored(status, &published);
        let has_metrics = self.leader.metrics_limit.allows(key.namespace());
        let rule = self.context.rules.state(key);
        add_condition(&mut after, object, rule, has_metrics, self.leader.decided_at);
        let before = own_part(&object.status);
        if has_same_entries(&before.dns_names, &after.dns_names) {
            after.dns_names.clone_from(&before.dns_names);
        }
        let is_ready =
            status.condition(ConditionType::Ready).is_some_and(|ready| ready.status == ConditionStatus::True);
        if has_metrics {
            // Until a move is written, the names lead to the former target.
            let is_moving = state.changes.moved.is_some();
            let in_use = if is_moving { before.target.as_ref() } else { after.target.as_ref() };
            let place = in_use.and_then(|in_use| status.place_of(&in_use.source));
            self.context.metrics.set(key, is_ready && (state.is_written_target_working || !is_moving), place);
        }
        let is_plan = self.context.policy.sync == SyncMode::Plan;
        if before == after {
            state.sent.take_if(|_| is_plan);
            // No write is needed any more, whatever became of the last one.
            self.leader.runtime.queue.succeeded(key);
            self.clear_failure(key);
            self.report_changes(key, &before);
            return;
        }
        if is_plan {
            return plan(key, state, (&before, after), &self.context.link_reporter.log.about("StableName"));
        }
        let version = object.version.clone();
        let moved = status.target.as_ref().filter(|_| is_ready).map(|target| target.since);
        let is_new = moved.is_some_and(|since| end_of_wait(since, FIRST_READY) > self.leader.decided_at);
        let is_urgent = is_urgent(&before, &after, is_new);
        let Some(term) = self.leader.term else { return };
        if !self.leader.runtime.queue.may_start(key, &after, &version, is_urgent)
            || !self.leader.runtime.may_send(key, &[])
        {
            return;
        }
        let patch = merge_patch(Some(&object.status), &after, &object.uid.to_string(), &version);
        state.begin_write(&after);
        state.sent = Some(after);
        let (client, availability) = (self.context.client.clone(), self.context.availability.clone());
        let written = key.clone();
        let request =
            async move { patch_status(client, &availability, &written, &Patch::Merge(patch)).await };
        self.leader.runtime.start(key, StatusWrite { version }, is_urgent, (term, Proof::Clock), request);
    }

    pub(in super::super) fn written(&mut self, ended: Ended<StatusWrite, StatusAnswer>) {
        let (key, StatusWrite { version }, code, result) = ended.into_result();
        self.leader.runtime.done(&key, code, result.is_err());
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write("patch", "StableName", code);
        }
        if let Some(state) = self.leader.states.get_mut(&key) {
            match &result {
                Ok(_) => state.write_succeeded(),
                // The lease may have ended during the request.
                Err(error) => {
                    state.write_failed(error.may_be_made() || matches!(error, WriteError::NotLeading(_)));
                }
            }
        }
        match result {
            Ok(object) => {
                let sent = self.leader.states.get(&key).and_then(|state| state.sent.clone());
                let known = self.objects.get(&key).map(|followed| &followed.object);
                if known.is_some_and(|known| known.uid == object.uid && known.revision() < object.revision())
                {
                    self.applied(*object);
                }
                let pause = self.leader.runtime.succeeded(&key, sent.as_ref());
                self.clear_failure(&key);
                if let Some(sent) = sent {
                    if let Some(pause) = pause {
                        let line = format_args!(
                            "StableName {key}: another client changes the written status; it was written again, \
                             and the next write is made after {pause:.0?}"
                        );
                        self.log().warn(&key, line);
                    }
                    self.report_changes(&key, &sent);
                }
                self.leader.to_decide.add(&key);
            }
            // An error of an object is reported although the decision has changed: the next write may be equal.
            Err(error) => match self.leader.runtime.failed(&key, error, &version, false) {
                Failure::Unremarkable => {}
                Failure::Shared { code, message } => {
                    self.show_failure(&key, &message);
                    self.leader.error_log.report(code, &message);
                }
                Failure::Own { message, pause, is_new } => {
                    self.show_failure(&key, &message);
                    let (log, what) = (self.log(), format_args!("the status of StableName {key}"));
                    self.leader.refusals.report(&log, &key, what, &message, pause, is_new);
                }
            },
        }
    }

    /// Shows users that a decision has no effect, because it can't be written.
    fn show_failure(&self, key: &ServiceKey, message: &str) {
        if !self.objects.contains_key(key) {
            return;
        }
        let why = format!("its status can't be written, so nothing moves: {message}");
        self.context.link_reporter.findings.readiness.unwritten.set(key, Some(&why));
    }

    fn clear_failure(&mut self, key: &ServiceKey) {
        let unwritten = &self.context.link_reporter.findings.readiness.unwritten;
        if unwritten.set(key, None) && unwritten.number() == 0 {
            self.leader.error_log.recovered("statuses of StableNames can be written again");
        }
    }

    /// Reports the changes that the written status contains, and a new refusal.
    fn report_changes(&mut self, key: &ServiceKey, written: &StableNameStatus) {
        let Some(state) = self.leader.states.get_mut(key) else { return };
        let Some(followed) = self.objects.get_mut(key) else { return };
        let written_changes = state.take_written();
        for moved in written_changes.iter().filter_map(|changes| changes.moved) {
            self.context.metrics.switches.with_label_values(&[moved.as_str()]).inc();
            if self.leader.metrics_limit.allows(key.namespace()) {
                self.context.metrics.changed(key);
            }
        }
        let LinkReporter { recorder, log, .. } = &self.context.link_reporter;
        let log = log.about("StableName");
        let regarding = || Regarding::stable_name(key, &followed.object.uid);
        for event in written_changes.into_iter().flat_map(|changes| changes.events) {
            let (reason, message) = (reason_of(event.reason), event.message());
            let line = format_args!("StableName {key}: {reason}: {message}");
            if reason.event_type() == "Warning" {
                log.warn(key, line)
            } else {
                log.info(key, line)
            }
            recorder.record(regarding(), reason, &message);
        }
        let refusal = refusal_of(written);
        let is_news = state.initial_refusal.take() != refusal;
        if refusal != followed.logged_refusal {
            if let Some((reason, message)) = &refusal {
                log.warn(key, format_args!("StableName {key}: {reason}: {message}"));
                if let Some(reason) = reason_of_refusal(reason).filter(|_| is_news) {
                    recorder.record(regarding(), reason, message);
                }
            }
            followed.logged_refusal = refusal;
        }
    }
}

fn plan(
    key: &ServiceKey,
    state: &mut DecisionState,
    (before, after): (&StableNameStatus, StableNameStatus),
    log: &ObjectLog,
) {
    let shown = |status: &StableNameStatus| {
        status.target.as_ref().map(|target| (target.source.clone(), target.display.clone()))
    };
    if shown(before) == shown(&after) {
        state.sent = None;
    } else if state.sent.as_ref().is_none_or(|sent| shown(sent) != shown(&after)) {
        let target = after.target.as_ref().map_or("none", |target| &*target.display);
        log.info(key, format_args!("plan for StableName {key}: status.target → {target}"));
        state.sent = Some(after);
    }
}

/// Returns whether `kubectl wait` or a GitOps tool may wait for a status: for a changed target, a changed spec, or Ready
/// becoming True soon after a move.
fn is_urgent(before: &StableNameStatus, after: &StableNameStatus, is_ready_after_move: bool) -> bool {
    before.target != after.target
        || before.observed_generation != after.observed_generation
        || is_ready_after_move && !is_condition_true(before, "Ready")
}

fn is_condition_true(status: &StableNameStatus, kind: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn reason_of(reason: EventReason) -> Reason {
    match reason {
        EventReason::TargetChanged => Reason::TargetChanged,
        EventReason::FailedOver => Reason::FailedOver,
        EventReason::FailedBack => Reason::FailedBack,
        EventReason::CutoverTimedOut => Reason::CutoverTimedOut,
        EventReason::NoHealthySource => Reason::NoHealthySource,
        EventReason::PinnedTargetFailed => Reason::PinnedTargetFailed,
        EventReason::FailoverHeld => Reason::FailoverHeld,
    }
}

/// Returns the Event's reason for a reason of the condition Accepted; `None` for other texts.
fn reason_of_refusal(reason: &str) -> Option<Reason> {
    Some(match RefusalReason::ALL.into_iter().find(|known| known.as_str() == reason)? {
        RefusalReason::RefNotPermitted => Reason::RefNotPermitted,
        RefusalReason::Forbidden => Reason::Forbidden,
        // It is no fault of the object.
        RefusalReason::NotListed => return None,
        RefusalReason::TargetRefused => Reason::TargetRefused,
        RefusalReason::CheckRefused => Reason::CheckRefused,
        RefusalReason::HostnameRefused => Reason::HostnameRefused,
        RefusalReason::Conflict => Reason::Conflict,
        RefusalReason::InvalidSpec => Reason::InvalidSpec,
    })
}
