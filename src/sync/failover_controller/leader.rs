//! The leader's part: checks targets, decides, and writes statuses.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hickory_proto::rr::Name;
use jiff::Timestamp;
use kube::api::Patch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::check_queue::{CheckKey, CheckQueue};
use super::checks::{CheckEnd, DnsCheck, check};
use super::leads::annotations;
use super::object::{Followed, ObservedExternalTarget};
use super::status_format::{Published, merge_patch, own_part, read, write};
use super::write::{StatusWrite, patch_status};
use super::write_budget::WriteBudget;
use super::{FailoverController, sources_of};
use crate::api::status::ExternalTargetStatus;
use crate::model::lead::{Announcement, Lead};
use crate::model::link::{Link, Target};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::controller::supervisor::SyncError;
use crate::sync::controller::work_queue::{CONFLICT_TIMEOUT, WorkQueue};
use crate::sync::events::link_log::lost_hostnames_of;
use crate::sync::events::{Reason, Regarding};
use crate::sync::external_target::backend::WriteError;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::standing::Standing;
use crate::sync::failover::checks::{CheckOutcome, CheckRecords, CheckResult};
use crate::sync::failover::decision::{FailoverDecision, FailoverEvent};
use crate::sync::failover::facts::Inputs;
use crate::sync::failover::mass_failure::MassFailureGuard;
use crate::sync::failover::outlook::PlannedCheck;
use crate::sync::failover::spec::{Refusal, RefusalReason};
use crate::sync::failover::status::{
    ConditionStatus, ConditionType, FailoverStatus, MoveReason, restore_times,
};
use crate::sync::failover::upstream_answers::UpstreamAnswers;
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::k8s::listed::ListEpoch;
use crate::sync::k8s::refusals::RefusalLog;

/// Maximum number of concurrent writes of statuses.
const MAX_WRITES: usize = 16;
/// How often a decision is repeated with its own status as the former one, until nothing changes.
const MAX_ROUNDS: usize = 3;
/// The time that the external target has to follow a new target before the ExternalTarget isn't Ready.
const WRITE_LAG: Duration = Duration::from_secs(10);
/// The time after which an ExternalTarget is looked at again whose sources aren't all listed yet.
const LIST_WAIT: Duration = Duration::from_secs(5);
/// The longest timer: wall clock times are compared again after it, because the clock may have been set.
const MAX_TIMER: Duration = Duration::from_secs(60);
/// Maximum number of ExternalTargets with metrics of their own.
const MAX_METRICS: usize = 1000;

/// The state of a term of leadership.
pub(super) struct Leader {
    /// The term; `None` while another replica leads.
    pub(super) term: Option<u64>,
    pub(super) work_queue: WorkQueue<ExternalTargetStatus>,
    pub(super) checks: JoinSet<CheckEnd>,
    pub(super) writes: JoinSet<StatusWrite>,
    check_queue: CheckQueue,
    decided: HashMap<ServiceKey, Decided>,
    guard: MassFailureGuard,
    upstreams: UpstreamAnswers,
    budget: WriteBudget,
    error_log: ThrottledLog,
    refusals: RefusalLog,
    /// The time of the last decision.
    now: Timestamp,
}

impl Default for Leader {
    fn default() -> Self {
        Self {
            term: None,
            work_queue: WorkQueue::new(MAX_WRITES),
            checks: JoinSet::new(),
            writes: JoinSet::new(),
            check_queue: CheckQueue::default(),
            decided: HashMap::new(),
            guard: MassFailureGuard::default(),
            upstreams: UpstreamAnswers::default(),
            budget: WriteBudget::default(),
            error_log: ThrottledLog::default(),
            refusals: RefusalLog::default(),
            now: Timestamp::now(),
        }
    }
}

/// What the leader knows about an ExternalTarget.
struct Decided {
    /// The last decision of this term, written or not.
    status: FailoverStatus,
    /// The status that was sent last.
    sent: Option<ExternalTargetStatus>,
    records: CheckRecords,
    /// The resourceVersion for which the API server has returned a conflict, and since when.
    stale: Option<(String, Instant)>,
    /// What has happened since the last write.
    events: Vec<FailoverEvent>,
    moved: Option<MoveReason>,
    /// The refusal that was reported last.
    refusal: Option<(String, String)>,
}

impl Decided {
    fn new(object: &ObservedExternalTarget) -> Self {
        Self {
            status: read(&object.status),
            sent: None,
            records: CheckRecords::default(),
            stale: None,
            events: Vec::new(),
            moved: None,
            refusal: None,
        }
    }
}

impl Leader {
    /// Processes a new version of an ExternalTarget, or the first one. If another client has changed the status,
    /// decisions begin with that.
    pub(super) fn observed(
        &mut self,
        object: &ObservedExternalTarget,
        before: Option<&ObservedExternalTarget>,
    ) {
        let Some(decided) = self.decided.get_mut(&object.key) else { return };
        decided.stale.take_if(|(version, _)| *version != object.version);
        let status = own_part(&object.status);
        let is_known = before.is_some_and(|before| own_part(&before.status) == status);
        if !is_known && decided.sent.as_ref() != Some(&status) {
            decided.status = read(&object.status);
            (decided.events, decided.moved) = (Vec::new(), None);
        }
    }

    /// Records that an ExternalTarget has changed: earlier failures of its writes don't count any more.
    pub(super) fn changed(&mut self, key: &ServiceKey) {
        if self.decided.get(key).is_some_and(|decided| decided.stale.is_none()) {
            self.work_queue.changed(key);
        }
    }

    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.decided.remove(key);
        self.check_queue.forget(key);
        self.guard.forget(key);
        self.work_queue.forget(key);
    }

    /// Returns when another check may begin.
    pub(super) fn checks_due(&self) -> Option<Instant> {
        self.check_queue.due(Instant::now())
    }
}

impl FailoverController {
    /// Begins or ends a term.
    pub(super) fn on_leadership(&mut self) {
        let term = match self.context.policy.sync {
            SyncMode::Off => None,
            SyncMode::On | SyncMode::Plan => self.context.leadership.current_term(),
        };
        if term != self.leader.term {
            self.leader = Leader { term, ..Leader::default() };
            self.context.metrics.reset();
        }
        self.queue_all();
    }

    /// Decides about queued ExternalTargets, and starts checks and writes, up to their limits.
    pub(super) fn drain(&mut self) {
        while let Some(key) = self.leader.work_queue.next() {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.decide(&key)));
            if outcome.is_err() {
                let pause = self.leader.work_queue.add_rate_limited(&key, None);
                error!(
                    "ExternalTarget {key}: deciding has panicked, a defect of lb-linker; next try in {pause:.1?}"
                );
            }
        }
        while let Some(key) = self.leader.check_queue.next(Instant::now()) {
            let names =
                self.leader.check_queue.waiters(&key).flat_map(|waiter| self.own_names(waiter)).collect();
            let check = check(key.clone(), names, Arc::clone(&self.context.check_dns));
            self.leader.checks.spawn(async move {
                let ended = AssertUnwindSafe(check).catch_unwind().await;
                ended.unwrap_or_else(|_| CheckEnd { key, result: DnsCheck::without_answer() })
            });
        }
    }

    /// Returns the DNS names of an ExternalTarget.
    fn own_names(&self, key: &ServiceKey) -> Vec<Name> {
        let link = self.context.store.get(key);
        let names = link.map(|link| self.context.store.dns_names(&link)).unwrap_or_default();
        names.iter().filter_map(|name| Name::from_ascii(format!("{name}.")).ok()).collect()
    }

    /// Returns whether everything is listed that decisions about an ExternalTarget depend on.
    fn may_decide(&self, object: &ObservedExternalTarget) -> bool {
        let Some(term) = self.leader.term else { return false };
        let epoch = ListEpoch { term, rewinds: self.context.rewinds.count() };
        let listed = self.context.links_listed.borrow();
        self.is_listed()
            && self.context.store.is_synced()
            && self.context.store.are_owners_known()
            && object.services().all(|service| listed.covers(service.namespace(), epoch))
    }

    fn decide(&mut self, key: &ServiceKey) {
        self.leader.work_queue.stop_timer(key);
        let Some(followed) = self.objects.get(key) else { return };
        let object = &followed.object;
        if !self.may_decide(object) {
            return self.leader.work_queue.add_after(key.clone(), LIST_WAIT);
        }
        let (now, all) = (Timestamp::now(), self.objects.len());
        if now < self.leader.now {
            self.leader.upstreams.forget_after(now);
        }
        self.leader.now = now;
        let policy = Arc::clone(&self.context.hostname_policy.borrow());
        let sources = sources_of(&self.context, &policy);
        let link = self.context.store.get(key);
        let standing = self.context.standing.get(key);
        let refusal = self.refusal(followed, link.as_deref(), standing.as_ref());
        let present = self.present(key).and_then(standing_of);
        let is_written = is_written(object, standing.as_ref(), now);
        let spec = object.failover_spec();
        let namespace = key.namespace();
        let is_living = |uid: &Uid| sources.is_living(uid, namespace, object.services());
        let leader = &mut self.leader;
        let decided = leader.decided.entry(key.clone()).or_insert_with(|| Decided::new(object));
        let mut decision: Option<FailoverDecision> = None;
        for _ in 0..MAX_ROUNDS {
            let former = decided.status.clone();
            let offers = sources.offers(object, former.target.as_ref());
            let denied = |target: &Target| {
                let fixed = former.target.as_ref().filter(|announced| announced.target == *target);
                let is_fixed = fixed.is_some_and(|announced| announced.uid.is_empty());
                sources.allowed(target, is_fixed, namespace).is_none()
            };
            let next = leader.guard.decide(
                key,
                all,
                &Inputs {
                    spec: &spec,
                    offers: &offers,
                    checks: &decided.records,
                    upstreams: &leader.upstreams,
                    former: &former,
                    standing: present.as_ref().map(|(target, uid)| (target, uid)),
                    is_written,
                    is_living: &is_living,
                    denied: &denied,
                    refusal: refusal.as_ref(),
                    is_failover_held: false,
                    now,
                },
            );
            decided.records.retain(&next.checks, now);
            decided.status = next.status.clone();
            decided.moved = decided.moved.or(next.moved);
            decided.events.extend(next.events.iter().cloned());
            let is_settled = next.status == former;
            decision = Some(next);
            if is_settled {
                break;
            }
        }
        let Some(decision) = decision else { return };
        restore_times(&mut decided.status, &read(&object.status));

        // Checks.
        let timeout = spec.check.timeout;
        let mut wake = decision.again;
        for planned in &decision.checks {
            let due = decided.records.next_check(planned, &spec.check, &leader.upstreams, now);
            let PlannedCheck { target, tcp_port, .. } = planned.clone();
            let check = CheckKey { target, tcp_port, timeout };
            if leader.check_queue.is_waiting(&check, key) {
                continue;
            }
            if due <= now {
                leader.check_queue.add(check, key.clone());
            } else {
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
            }
        }
        if let Some(wake) = wake {
            let pause = Duration::try_from(wake.duration_since(now)).unwrap_or_default();
            // The next decision must come after that time, whatever the clocks' resolutions.
            let pause = pause.saturating_add(Duration::from_millis(1)).min(MAX_TIMER);
            leader.work_queue.add_after(key.clone(), pause);
        }
        self.publish(key, link.as_deref());
    }

    /// Returns why an ExternalTarget isn't accepted, apart from its sources.
    fn refusal(
        &self,
        followed: &Followed,
        link: Option<&Link>,
        standing: Option<&Standing>,
    ) -> Option<Refusal> {
        let conflict = |message| Refusal { reason: RefusalReason::Conflict, message };
        let policy = self.context.hostname_policy.borrow();
        let of_names = || annotations(&followed.object, &policy, &followed.inherited).1;
        let lost = || lost_hostnames_of(link.filter(|link| link.lead().is_some())?).map(conflict);
        let taken = || match standing {
            Some(Standing::Conflict(why)) => Some(conflict(format!("the external target: {why}"))),
            _ => None,
        };
        followed.object.invalid.clone().or_else(of_names).or_else(lost).or_else(taken)
    }

    /// Writes the decided status, unless the API server has it.
    fn publish(&mut self, key: &ServiceKey, link: Option<&Link>) {
        let (Some(followed), Some(decided)) = (self.objects.get(key), self.leader.decided.get_mut(key))
        else {
            return;
        };
        let object = &followed.object;
        let status = &decided.status;
        let link = link.filter(|_| status.target.is_some());
        let service =
            link.map(|link| format!("{}/{}", self.context.target_namespace, link.external_target()));
        let dns_names = link.map(|link| self.context.store.dns_names(link)).unwrap_or_default();
        let published = Published { service: service.as_deref().unwrap_or_default(), dns_names: &dns_names };
        let after = write(status, &published);
        let before = own_part(&object.status);
        let is_ready =
            status.condition(ConditionType::Ready).is_some_and(|ready| ready.status == ConditionStatus::True);
        let place = status
            .target
            .as_ref()
            .and_then(|target| object.sources().iter().position(|source| source.name == target.source));
        if self.objects.len() <= MAX_METRICS {
            self.context.metrics.set(key, is_ready, place);
        } else {
            self.context.metrics.reset();
        }
        if before == after {
            self.leader.work_queue.succeeded(key);
            self.report_changes(key);
            return;
        }
        if self.context.policy.sync == SyncMode::Plan {
            if decided.sent.as_ref() != Some(&after) {
                let target = after.target.as_ref().map_or("none", |target| &*target.display);
                info!("plan for ExternalTarget {key}: status.target → {target}");
                decided.sent = Some(after);
            }
            return;
        }
        let version = object.version.clone();
        if let Some((_, since)) = decided.stale.as_ref().filter(|(stale, _)| *stale == version) {
            let remaining = CONFLICT_TIMEOUT.saturating_sub(since.elapsed());
            if !remaining.is_zero() {
                return self.wake_within(key, remaining);
            }
        }
        if let Some(pause) = self.leader.work_queue.throttled_for(key, &after) {
            return self.wake_within(key, pause);
        }
        let is_urgent =
            before.target != after.target || before.observed_generation != after.observed_generation;
        if is_urgent {
            self.leader.budget.record_urgent(key, Instant::now());
        } else if let Err(pause) = self.leader.budget.take(key, Instant::now()) {
            return self.wake_within(key, pause);
        }
        let patch = merge_patch(Some(&object.status), &after, &object.uid.to_string(), &version);
        decided.sent = Some(after);
        self.leader.work_queue.begin(key);
        let Some(term) = self.leader.term else { return };
        let (client, availability) = (self.context.client.clone(), self.context.availability.clone());
        let (leadership, key) = (self.context.leadership.clone(), key.clone());
        self.leader.writes.spawn(async move {
            let patch = Patch::Merge(patch);
            let request = AssertUnwindSafe(patch_status(client, &availability, &key, &patch)).catch_unwind();
            let (code, result) = match leadership.write(term, request).await {
                Ok(Ok(answered)) => answered,
                Ok(Err(_)) => (0, Err(WriteError::panicked())),
                Err(not_leading) => (0, Err(not_leading.into())),
            };
            StatusWrite { key, version, code, result }
        });
    }

    /// Decides again after this time at the latest.
    fn wake_within(&mut self, key: &ServiceKey, pause: Duration) {
        self.leader.work_queue.add_within(key, pause);
    }

    pub(super) fn written(&mut self, StatusWrite { key, version, code, result }: StatusWrite) {
        self.leader.work_queue.done(&key);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.wrote("patch", "ExternalTarget", code);
        }
        match result {
            Ok(object) => {
                let sent = self.leader.decided.get(&key).and_then(|decided| decided.sent.clone());
                let known = self.objects.get(&key).map(|followed| &followed.object);
                if known.is_some_and(|known| known.uid == object.uid && known.revision() < object.revision())
                {
                    self.applied(*object);
                }
                self.leader.work_queue.succeeded(&key);
                if let Some(sent) = sent
                    && let Some(pause) = self.leader.work_queue.record_write(&key, &sent)
                {
                    warn!(
                        "ExternalTarget {key}: another client changes the status that is written; it is written again, \
                         and then not before {pause:.0?} have passed"
                    );
                }
                self.report_changes(&key);
                self.leader.work_queue.add(&key);
            }
            Err(WriteError::Conflict | WriteError::Gone) => {
                let known = self.objects.get(&key).map(|followed| &followed.object.version);
                if let Some(decided) = self.leader.decided.get_mut(&key)
                    && known == Some(&version)
                {
                    decided.stale = Some((version, Instant::now()));
                }
                self.leader.work_queue.add(&key);
            }
            // The lease may have been renewed during a slow request: then no new term begins.
            Err(WriteError::NotLeading(_) | WriteError::Unanswered) => {
                self.leader.work_queue.add_rate_limited(&key, None);
            }
            Err(WriteError::WholeClass { code, message, retry_after }) => {
                self.leader.error_log.report(code, &message);
                self.leader.work_queue.add_rate_limited(&key, retry_after);
            }
            Err(WriteError::Refused { message, .. }) => self.refused(&key, &message, None),
            Err(WriteError::Other { message, retry_after }) => self.refused(&key, &message, retry_after),
        }
    }

    fn refused(&mut self, key: &ServiceKey, message: &str, retry_after: Option<Duration>) {
        let (pause, is_new) = self.leader.work_queue.add_refused(key, retry_after, message);
        self.leader.refusals.report(
            format_args!("the status of ExternalTarget {key}"),
            message,
            pause,
            is_new,
        );
    }

    /// Reports what has happened since the last write of a status, and a new refusal.
    fn report_changes(&mut self, key: &ServiceKey) {
        let Some(decided) = self.leader.decided.get_mut(key) else { return };
        let Some(followed) = self.objects.get(key) else { return };
        if let Some(moved) = decided.moved.take() {
            self.context.metrics.switches.with_label_values(&[moved.as_str()]).inc();
            if self.objects.len() <= MAX_METRICS {
                self.context.metrics.changed(key);
            }
        }
        let recorder = &self.context.telemetry.recorder;
        let regarding = || Regarding::external_target(key, &followed.object.uid);
        for FailoverEvent { reason, message } in decided.events.drain(..) {
            info!("ExternalTarget {key}: {reason}: {message}");
            recorder.record(regarding(), reason_of(reason), &message);
        }
        let accepted = decided.status.condition(ConditionType::Accepted);
        let refused = accepted.filter(|accepted| accepted.status == ConditionStatus::False);
        let refusal = refused.map(|condition| (condition.reason.clone(), condition.message.clone()));
        if refusal != decided.refusal {
            if let Some((reason, message)) = &refusal {
                warn!("ExternalTarget {key}: {reason}: {message}");
                recorder.record(regarding(), reason_of(reason), message);
            }
            decided.refusal = refusal;
        }
    }

    /// Records the result of a check for all ExternalTargets that wait for it.
    pub(super) fn checked(&mut self, ended: Result<CheckEnd, JoinError>) -> Result<(), SyncError> {
        let CheckEnd { key, result } = ended?;
        let leader = &mut self.leader;
        for (upstream, question, at) in &result.answers {
            leader.upstreams.record(*upstream, question, *at);
        }
        let kind = if key.tcp_port.is_some() { "tcp" } else { "dns" };
        let is_failed = result.outcomes.iter().any(|outcome| matches!(outcome, CheckOutcome::Failed(_)));
        let result_label = match is_failed {
            true => "failed",
            false if result.outcomes.contains(&CheckOutcome::Passed) => "passed",
            false => "unknown",
        };
        self.context.metrics.checks.with_label_values(&[kind, result_label]).inc();
        for waiter in leader.check_queue.done(&key) {
            if let Some(decided) = leader.decided.get_mut(&waiter) {
                let result = CheckResult { at: result.at, outcomes: result.outcomes.clone() };
                decided.records.record(&key.target, key.tcp_port, result, &leader.upstreams);
            }
            leader.work_queue.add(&waiter);
        }
        Ok(())
    }
}

/// Returns the target of a lead, and the uid of the Service that has it.
fn standing_of(lead: Lead) -> Option<(Target, Uid)> {
    match lead.announced {
        Announcement::Target(target) => Some((target, lead.service_uid)),
        Announcement::Never | Announcement::Withdrawn => None,
    }
}

/// Returns whether the external target stands as the status of the API server says. It has some time to follow.
fn is_written(object: &ObservedExternalTarget, standing: Option<&Standing>, now: Timestamp) -> bool {
    let Some(Standing::At(target)) = standing else { return false };
    let announced = read(&object.status).target;
    announced.is_none_or(|announced| {
        let age = Duration::try_from(now.duration_since(announced.since)).unwrap_or_default();
        announced.target == *target || age < WRITE_LAG
    })
}

/// Returns the reason of an Event.
fn reason_of(reason: &str) -> Reason {
    match reason {
        "FailedOver" => Reason::FailedOver,
        "FailedBack" => Reason::FailedBack,
        "CutoverTimedOut" => Reason::CutoverTimedOut,
        "NoHealthySource" => Reason::NoHealthySource,
        "RefNotPermitted" => Reason::RefNotPermitted,
        "TargetRefused" => Reason::TargetRefused,
        "CheckRefused" => Reason::CheckRefused,
        "HostnameRefused" => Reason::HostnameRefused,
        "Conflict" => Reason::Conflict,
        "InvalidSpec" => Reason::InvalidSpec,
        _ => Reason::TargetChanged,
    }
}
