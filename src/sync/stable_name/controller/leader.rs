//! The leader's part: checks targets, decides, and writes statuses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use kube::api::Patch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::absence::{LookUpEnd, MissingServices};
use super::alerts::add_condition;
use super::check_queue::{CheckKey, CheckQueue};
use super::checks::{FinishedCheck, TargetCheckResult, check};
use super::metrics_limit::{MAX_METRICS, MetricsLimit};
use super::object::{ObservedStableName, TrackedStableName};
use super::overrides::annotations;
use super::status_format::{PublishedNames, from_stored, merge_patch, own_part, to_stored};
use super::write::{StatusAnswer, StatusWrite, patch_status};
use super::{FailoverController, sources_of};
use crate::api::status::StableNameStatus;
use crate::model::link::{Link, Target, has_same_entries};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::object_log::ObjectLog;
use crate::sync::controller::limits::Limits;
use crate::sync::controller::runtime::{Ended, Failure, Proof, Runtime, panics, report_panic};
use crate::sync::controller::work_queue::WorkQueue;
use crate::sync::controller::write_error::WriteError;
use crate::sync::election::Leadership;
use crate::sync::events::link_log::{LinkReporter, lost_hostnames_of};
use crate::sync::events::{Reason, Regarding};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::states::{ExternalTargetState, WRITE_LAG};
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::k8s::listed::{CompletedLists, ListEpoch};
use crate::sync::k8s::refusals::FailedWriteLog;
use crate::sync::stable_name::decision::checks::{CheckOutcome, CheckRecords, CheckResult};
use crate::sync::stable_name::decision::decide::{EventReason, FailoverEvent};
use crate::sync::stable_name::decision::facts::Inputs;
use crate::sync::stable_name::decision::mass_failure::MassFailureGuard;
use crate::sync::stable_name::decision::outlook::PlannedCheck;
use crate::sync::stable_name::decision::spec::{Refusal, RefusalReason};
use crate::sync::stable_name::decision::status::{
    ConditionStatus, ConditionType, FailoverStatus, MoveReason, restore_times,
};
use crate::sync::stable_name::decision::times::end_of_wait;
use crate::sync::stable_name::decision::upstream_answers::UpstreamAnswers;

/// At most 16 writes of statuses at once, and of those that aren't urgent 20 a second, and one in 10 s of a StableName.
const LIMITS: Limits = Limits { at_once: 16, starts: Some((20, Duration::from_secs(1))) };
const OBJECT_INTERVAL: Duration = Duration::from_secs(10);
/// The time after an announcement in which a change of Ready to True is written at once.
const FIRST_READY: Duration = Duration::from_secs(60);
/// The time after which a decision that waits for a complete list is tried again.
const LIST_WAIT: Duration = Duration::from_secs(5);
/// The longest timer: wall clock times are compared again after it, because the clock may have been set.
const MAX_TIMER: Duration = Duration::from_secs(60);
/// Maximum number of decisions before other tasks have a turn.
const MAX_DECISIONS: usize = 64;
/// Multiplied by the number of StableNames: the shortest time between two decisions about the same StableName
/// after changes of objects and check results. So these cause at most 2,000 decisions a second.
const DECISION_INTERVAL: Duration = Duration::from_micros(500);
/// Maximum number of Events of a write of the status, and of failed writes whose Events are reported with a later one;
/// the newest ones are kept.
const MAX_EVENTS: usize = 16;

/// The state of a term of leadership.
pub(super) struct LeaderTerm {
    /// The term; `None` while this replica doesn't lead, and with `--sync off`.
    pub(super) term: Option<u64>,
    /// The StableNames to decide about. Slow and refused writes don't delay decisions.
    pub(super) to_decide: WorkQueue<()>,
    /// The StableNames with a decided status to write.
    pub(super) runtime: Runtime<StableNameStatus, (), StatusWrite, StatusAnswer>,
    pub(super) absences: MissingServices,
    pub(super) checks: JoinSet<FinishedCheck>,
    check_queue: CheckQueue,
    states: HashMap<ServiceKey, DecisionState>,
    mass_failure_guard: MassFailureGuard,
    upstreams: UpstreamAnswers,
    error_log: ThrottledLog,
    refusals: FailedWriteLog,
    metrics_limit: MetricsLimit,
    /// Whether StableNames were added or removed since the last decision about their metrics.
    is_number_changed: bool,
    /// The time of the last decision.
    decided_at: Timestamp,
}

impl LeaderTerm {
    pub(super) fn new(term: Option<u64>, leadership: Leadership) -> Self {
        Self {
            term,
            to_decide: WorkQueue::new(Limits::at_once(usize::MAX), Duration::ZERO),
            runtime: Runtime::new(LIMITS, OBJECT_INTERVAL, leadership),
            absences: MissingServices::default(),
            checks: JoinSet::new(),
            check_queue: CheckQueue::default(),
            states: HashMap::new(),
            mass_failure_guard: MassFailureGuard::default(),
            upstreams: UpstreamAnswers::default(),
            error_log: ThrottledLog::default(),
            refusals: FailedWriteLog::default(),
            metrics_limit: MetricsLimit::default(),
            is_number_changed: true,
            decided_at: Timestamp::now(),
        }
    }
}

/// What the leader knows about a StableName.
struct DecisionState {
    /// The last decision of this term, written or not; before it, and after another client's change, the stored status.
    status: FailoverStatus,
    /// When the last decision was made.
    decided_at: Option<Instant>,
    /// The status that was sent last; with `--sync plan`, the status that was logged last.
    sent: Option<StableNameStatus>,
    records: CheckRecords,
    /// What the decisions since the last write have changed.
    changes: UnreportedEvents,
    /// The changes that the write under way contains, after those of former writes that may have been made although
    /// they have failed.
    in_flight: Vec<UnreportedEvents>,
    /// The reason and the message of the refusal that was reported last.
    refusal: Option<(String, String)>,
}

impl DecisionState {
    fn new(object: &ObservedStableName) -> Self {
        Self {
            status: from_stored(&object.status),
            decided_at: None,
            sent: None,
            records: CheckRecords::new(object.key.namespace()),
            changes: UnreportedEvents::default(),
            in_flight: Vec::new(),
            refusal: None,
        }
    }
}

/// The Events of decisions, and the reason of a move. They are reported once the status is written.
#[derive(Default)]
struct UnreportedEvents {
    events: Vec<FailoverEvent>,
    moved: Option<MoveReason>,
    /// The status of the write that contains them.
    written: Option<StableNameStatus>,
    /// Whether another client has changed the status since: then these changes are dropped if the write fails.
    is_void: bool,
}

impl UnreportedEvents {
    /// Adds what happened later. Moves that haven't been written in between become one.
    fn extend(&mut self, later: Self) {
        let failover =
            [self.moved, later.moved].into_iter().find(|moved| *moved == Some(MoveReason::FailedOver));
        self.moved = failover.flatten().or(self.moved).or(later.moved);
        for event in later.events {
            match self.events.pop() {
                Some(former) if former.is_move() && event.is_move() => match former.followed_by(event) {
                    Some(both) => self.events.push(both),
                    None if !self.events.iter().any(FailoverEvent::is_move) => self.moved = None,
                    None => {}
                },
                former => self.events.extend(former.into_iter().chain([event])),
            }
        }
        self.events.drain(..self.events.len().saturating_sub(MAX_EVENTS));
    }
}

impl DecisionState {
    /// Moves the changes to the write of a status that begins, also if the API server has this status already.
    fn begin_write(&mut self, status: &StableNameStatus) {
        self.in_flight
            .push(UnreportedEvents { written: Some(status.clone()), ..std::mem::take(&mut self.changes) });
        self.in_flight.drain(..self.in_flight.len().saturating_sub(MAX_EVENTS));
    }

    /// Processes that the write under way has failed: its changes are reported with the next write. If the write
    /// may have been made, later moves aren't merged with them.
    fn write_failed(&mut self, may_be_made: bool) {
        let unwritten = self.in_flight.pop();
        self.in_flight.retain(|former| !former.is_void);
        let Some(mut unwritten) = unwritten.filter(|unwritten| !unwritten.is_void) else { return };
        if !may_be_made {
            unwritten.extend(std::mem::take(&mut self.changes));
            self.changes = unwritten;
        } else if !unwritten.events.is_empty() {
            self.in_flight.push(unwritten);
        }
    }
}

impl LeaderTerm {
    /// Processes a new version of a StableName. If another client has changed the status, the next decision begins
    /// with the changed status.
    pub(super) fn observed(&mut self, object: &ObservedStableName, before: Option<&ObservedStableName>) {
        let Some(state) = self.states.get_mut(&object.key) else { return };
        let status = own_part(&object.status);
        let is_known = before.is_some_and(|before| own_part(&before.status) == status);
        let is_own = |written: &Option<StableNameStatus>| written.as_ref() == Some(&status);
        let is_own = is_own(&state.sent) || state.in_flight.iter().any(|changes| is_own(&changes.written));
        if !is_known && !is_own {
            state.status = from_stored(&object.status);
            state.changes = UnreportedEvents::default();
            state.in_flight.iter_mut().for_each(|changes| changes.is_void = true);
        }
    }

    /// Records that a StableName has changed: earlier failures of its writes don't count any more.
    pub(super) fn changed(&mut self, key: &ServiceKey) {
        self.runtime.queue.changed(key);
    }

    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.is_number_changed = true;
        self.states.remove(key);
        self.check_queue.forget(key);
        self.mass_failure_guard.forget(key);
        self.absences.forget(key);
        self.to_decide.forget(key);
        self.runtime.queue.forget(key);
    }

    /// Queues a decision about a StableName; `all` is the number of StableNames. If the last decision about
    /// this one is recent, the new decision waits: a tenant whose objects change all the time delays no other tenant.
    pub(super) fn queue(&mut self, key: &ServiceKey, all: usize) {
        let interval = DECISION_INTERVAL.saturating_mul(u32::try_from(all).unwrap_or(u32::MAX));
        let last = self.states.get(key).and_then(|state| state.decided_at);
        let pause = last.map(|last| interval.saturating_sub(last.elapsed())).unwrap_or_default();
        if pause.is_zero() {
            self.to_decide.add(key);
        } else {
            self.to_decide.add_within(key, pause);
        }
    }

    /// Returns when another check may begin.
    pub(super) fn checks_due(&self) -> Option<Instant> {
        self.check_queue.due(Instant::now())
    }
}

impl FailoverController {
    /// Begins or ends a term if leadership has changed, and queues all decisions.
    pub(super) fn refresh_term(&mut self) {
        let term = match self.context.policy.sync {
            SyncMode::Off => None,
            SyncMode::On | SyncMode::Plan => self.context.leadership.current_term(),
        };
        if term != self.leader.term {
            self.leader = LeaderTerm::new(term, self.context.leadership.clone());
            self.context.metrics.reset();
        }
        self.queue_all();
    }

    /// Starts or stops exporting metrics of single StableNames, depending on the number of StableNames. Called
    /// at least every 30 s.
    fn limit_metrics(&mut self) {
        let (limit, now) = (&mut self.leader.metrics_limit, Instant::now());
        let is_due = self.leader.is_number_changed && limit.is_due(self.objects.len(), now);
        if self.leader.term.is_none() || !is_due {
            return;
        }
        self.leader.is_number_changed = false;
        let before = limit.left_out();
        let changed = limit.decide(self.objects.keys().map(ServiceKey::namespace), now);
        if before == 0 && limit.left_out() > 0 {
            warn!(
                "there are more than {MAX_METRICS} StableNames: in the namespaces with the most StableNames no \
                 metrics of single StableNames are exported, and the alerts of spec.alerts don't fire"
            );
        }
        for key in self.objects.keys().filter(|key| changed.contains(key.namespace())) {
            if !limit.allows(key.namespace()) {
                self.context.metrics.remove(key);
            }
            self.leader.to_decide.add(key);
        }
    }

    /// Decides about queued StableNames, and starts look-ups, checks and writes, up to their limits. Returns
    /// whether decisions remain, apart from retries.
    pub(super) fn drain(&mut self) -> bool {
        self.limit_metrics();
        for _ in 0..MAX_DECISIONS {
            let Some(key) = self.leader.to_decide.next() else { break };
            if panics(|| self.decide(&key)) {
                let log = self.log();
                report_panic(&mut self.leader.to_decide, &log, "StableName", &key);
            } else {
                self.leader.to_decide.succeeded(&key);
            }
        }
        while let Some(key) = self.leader.runtime.queue.next() {
            self.publish(&key);
        }
        let context = &self.context;
        self.leader.absences.start(&context.client, &context.availability, &context.selection);
        while let Some(key) = self.leader.check_queue.next(Instant::now()) {
            let check = check(key.clone(), Arc::clone(&self.context.check_dns));
            self.leader.checks.spawn(async move {
                let ended = AssertUnwindSafe(check).catch_unwind().await;
                ended.unwrap_or_else(|_| FinishedCheck { key, result: TargetCheckResult::without_answer() })
            });
        }
        self.leader.to_decide.has_ready()
    }

    /// Returns whether this replica leads, and all lists that a decision about this StableName needs are complete.
    fn may_decide(&self, object: &ObservedStableName) -> bool {
        let Some(term) = self.leader.term else { return false };
        let epoch = ListEpoch { term, rewinds: self.context.rewinds.count() };
        let (listed, overrides) =
            (self.context.links_listed.borrow(), self.context.overrides_listed.borrow());
        overrides.is_settled(epoch)
            && overrides.covers(object.key.namespace(), epoch)
            && self.context.store.is_synced()
            && self.context.store.are_owners_known()
            && object.services().all(|service| may_use(&listed, epoch, &object.key, &service))
    }

    fn decide(&mut self, key: &ServiceKey) {
        self.leader.to_decide.stop_timer(key);
        let Some(followed) = self.objects.get(key) else { return };
        let object = &followed.object;
        if !self.may_decide(object) {
            return self.leader.to_decide.add_after(key.clone(), LIST_WAIT);
        }
        let Some(term) = self.leader.term else { return };
        let epoch = ListEpoch { term, rewinds: self.context.rewinds.count() };
        let listed = self.context.links_listed.borrow();
        let is_refused = |namespace: &str| listed.is_refused(namespace, epoch);
        let (now, all) = (Timestamp::now(), self.objects.len());
        self.leader.upstreams.forget_after(now);
        self.leader.decided_at = now;
        let policy = Arc::clone(&self.context.hostname_policy.borrow());
        let sources = sources_of(&self.context, &policy);
        let link = self.context.store.get(key);
        let is_overridden = link.as_deref().is_some_and(|link| link.active_override().is_some());
        let external_target = self.context.external_target_states.get(key).filter(|_| is_overridden);
        let refusal = self.refusal(followed, link.as_deref(), external_target.as_ref());
        // Drop a uid that no Service has: restored Services have new uids and may have no target yet, and the target in
        // use mustn't be withdrawn for that.
        let is_known = |uid: &Uid| sources.is_open_to(uid, key.namespace(), followed.services()).is_some();
        let present = link.as_deref().and_then(Link::active_override).and_then(target_of);
        let present = present.map(|(target, uid)| (target, Some(uid).filter(is_known).unwrap_or_default()));
        let (is_written, lag_ends) = write_progress(object, link.as_deref(), external_target.as_ref(), now);
        let spec = object.failover_spec();
        let namespace = key.namespace();
        let leader = &mut self.leader;
        let state = leader.states.entry(key.clone()).or_insert_with(|| DecisionState::new(object));
        state.decided_at = Some(Instant::now());
        let former = state.status.clone();
        let offers = sources.offers(object, former.target.as_ref(), is_refused);
        let denied = |target: &Target| {
            let fixed = former.target.as_ref().filter(|announced| announced.target == *target);
            let is_fixed = fixed.is_some_and(|announced| announced.uid.is_empty());
            sources.allowed(target, is_fixed, namespace).is_none()
        };
        let absences = RefCell::new(&mut leader.absences);
        let is_missing = Cell::new(false);
        let is_living = |uid: &Uid| {
            if let Some(is_open) = sources.is_open_to(uid, namespace, followed.services()) {
                return is_open;
            }
            let seen = followed.former_source.as_ref().filter(|seen| seen.uid == *uid);
            let announced = former.target.as_ref().filter(|announced| announced.uid == *uid);
            let named = || object.service_named(&announced?.source);
            let service = seen.map(|seen| seen.key.clone()).or_else(named);
            if may_exist(service.as_ref(), followed.services(), is_refused) {
                return true;
            }
            // A Service without a known name can't be looked up: it counts as gone.
            service.is_some_and(|service| {
                is_missing.set(true);
                !absences.borrow_mut().confirm_gone(key, &service, uid)
            })
        };
        let decision = leader.mass_failure_guard.decide(
            key,
            all,
            &Inputs {
                spec: &spec,
                offers: &offers,
                checks: &state.records,
                upstreams: &leader.upstreams,
                former: &former,
                present_target: present.as_ref().map(|(target, uid)| (target, uid)),
                is_written,
                is_living: &is_living,
                denied: &denied,
                refusal: refusal.as_ref(),
                is_failover_held: false,
                now,
            },
        );
        if !is_missing.get() {
            leader.absences.forget(key);
        }
        state.records.retain(&decision.checks, now);
        state.status = decision.status.clone();
        state.changes.extend(UnreportedEvents {
            events: decision.events,
            moved: decision.moved,
            ..UnreportedEvents::default()
        });
        restore_times(&mut state.status, &from_stored(&object.status));

        let timeout = spec.check.timeout;
        let check_of = |planned: &PlannedCheck| CheckKey {
            target: planned.target.clone(),
            namespace: matches!(planned.target, Target::Hostname(_)).then(|| namespace.into()),
            tcp_port: planned.tcp_port,
            timeout,
        };
        leader.check_queue.retain(key, &decision.checks.iter().map(check_of).collect::<Vec<_>>());
        let mut wake = decision.again.into_iter().chain(lag_ends).min();
        for planned in &decision.checks {
            let due = state.records.next_check(planned, &spec.check, &leader.upstreams, now);
            let check = check_of(planned);
            if leader.check_queue.is_waiting(&check, key) {
                continue;
            }
            if due <= now {
                leader.check_queue.add(check, key.clone());
            } else {
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
            }
        }
        let look_up_in = leader.absences.due(key).map(|due| due.saturating_duration_since(Instant::now()));
        if let Some(pause) = look_up_in {
            leader.to_decide.add_after(key.clone(), pause);
        }
        if let Some(wake) = wake {
            let pause = Duration::try_from(wake.duration_since(now)).unwrap_or_default();
            // The next decision must come after that time, whatever the clocks' resolutions.
            let pause = pause.saturating_add(Duration::from_millis(1)).min(MAX_TIMER);
            leader.to_decide.add_within(key, pause);
        }
        leader.runtime.queue.add(key);
    }

    /// Returns why a StableName isn't accepted, apart from its sources.
    fn refusal(
        &self,
        followed: &TrackedStableName,
        link: Option<&Link>,
        external_target: Option<&ExternalTargetState>,
    ) -> Option<Refusal> {
        let conflict = |message| Refusal { reason: RefusalReason::Conflict, message };
        let policy = self.context.hostname_policy.borrow();
        let of_names = || annotations(&followed.object, &policy, &followed.inherited).1;
        let lost = || lost_hostnames_of(link.filter(|link| link.active_override().is_some())?).map(conflict);
        let taken = || match external_target {
            Some(ExternalTargetState::Conflict { why, .. }) => {
                Some(conflict(format!("the external target: {why}")))
            }
            _ => None,
        };
        followed.object.invalid.clone().or_else(of_names).or_else(lost).or_else(taken)
    }

    /// Writes the decided status, unless the API server has it.
    fn publish(&mut self, key: &ServiceKey) {
        let link = self.context.store.get(key);
        // Nothing is written until the lists of this term are complete: each complete list queues a decision.
        let followed = self.objects.get(key).filter(|followed| self.may_decide(&followed.object));
        let (Some(followed), Some(state)) = (followed, self.leader.states.get_mut(key)) else { return };
        let object = &followed.object;
        let status = &state.status;
        let link = link.as_deref().filter(|_| status.target.is_some());
        let service =
            link.map(|link| format!("{}/{}", self.context.target_namespace, link.external_target()));
        let dns_names = link.map(|link| self.context.store.dns_names(link)).unwrap_or_default();
        let published =
            PublishedNames { service: service.as_deref().unwrap_or_default(), dns_names: &dns_names };
        let mut after = to_stored(status, &published);
        add_condition(
            &mut after,
            object,
            self.context.rules.state(key),
            self.leader.metrics_limit.allows(key.namespace()),
            self.leader.decided_at,
        );
        let before = own_part(&object.status);
        if has_same_entries(&before.dns_names, &after.dns_names) {
            after.dns_names.clone_from(&before.dns_names);
        }
        let is_ready =
            status.condition(ConditionType::Ready).is_some_and(|ready| ready.status == ConditionStatus::True);
        let position = status
            .target
            .as_ref()
            .and_then(|target| object.sources().iter().position(|source| source.name == target.source));
        if self.leader.metrics_limit.allows(key.namespace()) {
            self.context.metrics.set(key, is_ready, position);
        }
        if before == after {
            self.leader.runtime.queue.succeeded(key);
            state.begin_write(&before);
            self.report_changes(key, &before);
            return;
        }
        if self.context.policy.sync == SyncMode::Plan {
            if state.sent.as_ref() != Some(&after) {
                let target = after.target.as_ref().map_or("none", |target| &*target.display);
                let line = format_args!("plan for StableName {key}: status.target → {target}");
                self.context.link_reporter.log.about("StableName").info(key, line);
                state.sent = Some(after);
            }
            state.changes = UnreportedEvents::default();
            return;
        }
        let version = object.version.clone();
        // A changed target, a changed spec, and Ready becoming True soon after a move are urgent: `kubectl wait` and
        // GitOps tools wait for them.
        let is_first_ready = is_ready
            && !is_condition_true(&before, "Ready")
            && status
                .target
                .as_ref()
                .is_some_and(|target| end_of_wait(target.since, FIRST_READY) > self.leader.decided_at);
        let is_urgent = before.target != after.target
            || before.observed_generation != after.observed_generation
            || is_first_ready;
        let Some(term) = self.leader.term else { return };
        if !self.leader.runtime.queue.admit(key, &after, &version, is_urgent) {
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

    pub(super) fn written(&mut self, ended: Ended<StatusWrite, StatusAnswer>) {
        let (key, StatusWrite { version }, code, result) = ended.into_result();
        self.leader.runtime.queue.done(&key, result.is_err());
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write("patch", "StableName", code);
        }
        if let Err(error) = &result {
            // The lease may have ended during the request.
            let may_be_made = error.may_be_made() || matches!(error, WriteError::NotLeading(_));
            if let Some(state) = self.leader.states.get_mut(&key) {
                state.write_failed(may_be_made);
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
                Failure::Shared { code, message } => self.leader.error_log.report(code, &message),
                Failure::Own { message, pause, is_new } => {
                    let (log, what) = (self.log(), format_args!("the status of StableName {key}"));
                    self.leader.refusals.report(&log, &key, what, &message, pause, is_new);
                }
            },
        }
    }

    /// Returns the log about StableNames.
    fn log(&self) -> ObjectLog {
        self.context.link_reporter.log.about("StableName")
    }

    /// Reports the changes that the written status contains, and a new refusal.
    fn report_changes(&mut self, key: &ServiceKey, written: &StableNameStatus) {
        let Some(state) = self.leader.states.get_mut(key) else { return };
        let Some(followed) = self.objects.get(key) else { return };
        let written_changes = std::mem::take(&mut state.in_flight);
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
        let accepted = written.conditions.iter().find(|condition| condition.type_ == "Accepted");
        let refused = accepted.filter(|accepted| accepted.status == "False");
        let refusal = refused.map(|condition| (condition.reason.clone(), condition.message.clone()));
        if refusal != state.refusal {
            if let Some((reason, message)) = &refusal {
                log.warn(key, format_args!("StableName {key}: {reason}: {message}"));
                if let Some(reason) = reason_of_refusal(reason) {
                    recorder.record(regarding(), reason, message);
                }
            }
            state.refusal = refusal;
        }
    }

    /// Records the result of a check for all StableNames that wait for it.
    pub(super) fn checked(&mut self, FinishedCheck { key, result }: FinishedCheck) {
        let (leader, now) = (&mut self.leader, Timestamp::now());
        leader.upstreams.forget_after(now);
        // An answer with a later time than now came before the clock was set back.
        for (upstream, question, at) in result.answers.iter().filter(|(_, _, at)| *at <= now) {
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
            if let Some(state) = leader.states.get_mut(&waiter) {
                let result = CheckResult { at: result.at, outcomes: result.outcomes_for(&waiter) };
                state.records.record(&key.target, key.tcp_port, result, &leader.upstreams);
            }
            leader.queue(&waiter, self.objects.len());
        }
    }

    /// Processes the end of a look-up of a Service that seems to be gone.
    pub(super) fn looked_up(&mut self, ended: LookUpEnd) {
        for key in self.leader.absences.record(ended) {
            self.leader.to_decide.add(&key);
        }
    }
}

/// Returns whether a decision needn't wait for the list of the namespace of `service`, a source: the list is complete,
/// or it is refused and the StableName is in another namespace.
fn may_use(listed: &CompletedLists, epoch: ListEpoch, object: &ServiceKey, service: &ServiceKey) -> bool {
    let namespace = service.namespace();
    listed.covers(namespace, epoch)
        || *namespace != *object.namespace() && listed.is_refused(namespace, epoch)
}

/// Returns whether the Service of the announced target, which the watch lacks, may exist in a namespace whose lists are
/// refused. If its key isn't known, it may be in the namespace of any source.
fn may_exist(
    announced: Option<&ServiceKey>,
    mut sources: impl Iterator<Item = ServiceKey>,
    is_refused: impl Fn(&str) -> bool,
) -> bool {
    match announced {
        Some(service) => is_refused(service.namespace()),
        None => sources.any(|service| is_refused(service.namespace())),
    }
}

fn is_condition_true(status: &StableNameStatus, kind: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns the target of an override, and the uid of the Service that has it; `None` if no target is announced.
fn target_of(by: &LinkOverride) -> Option<(Target, Uid)> {
    match &by.announced {
        Announcement::Target(target) => Some((target.clone(), by.service_uid.clone())),
        Announcement::NotYet | Announcement::Withdrawn => None,
    }
}

/// Returns whether the external target counts as written: it exists, and points at the target of the link if a target
/// is announced. Within [`WRITE_LAG`] after an announcement it may point at another target; then the end of that time
/// is returned, too.
fn write_progress(
    object: &ObservedStableName,
    link: Option<&Link>,
    external_target: Option<&ExternalTargetState>,
    now: Timestamp,
) -> (bool, Option<Timestamp>) {
    let Some(ExternalTargetState::At(target)) = external_target else { return (false, None) };
    // The target policy of this replica may allow only some of the announced addresses.
    if link.is_some_and(|link| link.target.as_ref() == Some(target)) {
        return (true, None);
    }
    let Some(announced) = from_stored(&object.status).target else { return (true, None) };
    let end = end_of_wait(announced.since, WRITE_LAG);
    (end > now, Some(end).filter(|end| *end > now))
}

fn reason_of(reason: EventReason) -> Reason {
    match reason {
        EventReason::TargetChanged => Reason::TargetChanged,
        EventReason::FailedOver => Reason::FailedOver,
        EventReason::FailedBack => Reason::FailedBack,
        EventReason::CutoverTimedOut => Reason::CutoverTimedOut,
        EventReason::NoHealthySource => Reason::NoHealthySource,
    }
}

/// Returns the Event's reason for a reason of the condition Accepted; `None` for other texts.
fn reason_of_refusal(reason: &str) -> Option<Reason> {
    Some(match RefusalReason::ALL.into_iter().find(|known| known.as_str() == reason)? {
        RefusalReason::RefNotPermitted => Reason::RefNotPermitted,
        RefusalReason::TargetRefused => Reason::TargetRefused,
        RefusalReason::CheckRefused => Reason::CheckRefused,
        RefusalReason::HostnameRefused => Reason::HostnameRefused,
        RefusalReason::Conflict => Reason::Conflict,
        RefusalReason::InvalidSpec => Reason::InvalidSpec,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::stable_name::StableName;

    fn object(status: &StableNameStatus) -> ObservedStableName {
        let spec = json!({"sources": [{"name": "a", "hostname": "a.example"}]});
        let mut object = StableName::new("web", serde_json::from_value(spec).unwrap());
        object.metadata.namespace = Some("shop".to_owned());
        object.status = Some(status.clone());
        ObservedStableName::new(object)
    }

    fn decided(state: &mut DecisionState, message: &str, moved: MoveReason) {
        let event = FailoverEvent::new(EventReason::TargetChanged, message.to_owned());
        state.changes.extend(UnreportedEvents {
            events: vec![event],
            moved: Some(moved),
            ..Default::default()
        });
    }

    fn messages<'a>(changes: impl IntoIterator<Item = &'a UnreportedEvents>) -> String {
        let events = changes.into_iter().flat_map(|changes| &changes.events);
        events.map(FailoverEvent::message).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn refused_list_of_another_namespace_delays_no_decision() {
        let (at, [a, b]) =
            (ListEpoch::default(), ["a", "b"].map(|namespace| ServiceKey::new(namespace, "web")));
        let mut listed = CompletedLists::new(&["a", "b"].map(ToOwned::to_owned).into(), None);
        listed.note(Some("a"), at, true);
        listed.note(Some("b"), at, false);
        let may = |listed: &CompletedLists, object, service| may_use(listed, at, object, service);
        assert!(may(&listed, &a, &a) && !may(&listed, &a, &b), "a single failure may be over soon");
        listed.set_refused(Some("b"), true);
        assert!(may(&listed, &a, &b) && !may(&listed, &b, &b));
        let is_refused = |namespace: &str| listed.is_refused(namespace, at);
        let sources = || [a.clone(), b.clone()].into_iter();
        assert!(may_exist(Some(&b), sources(), is_refused) && !may_exist(Some(&a), sources(), is_refused));
        assert!(may_exist(None, sources(), is_refused) && !may_exist(None, sources().take(1), is_refused));
    }

    #[test]
    fn changes_are_reported_with_the_write_that_contains_them() {
        let mut state = DecisionState::new(&object(&StableNameStatus::default()));
        decided(&mut state, "first", MoveReason::FailedOver);
        state.begin_write(&StableNameStatus::default());
        decided(&mut state, "second", MoveReason::FailedBack);
        assert_eq!(
            (messages(&state.in_flight), messages([&state.changes])),
            ("first".to_owned(), "second".to_owned())
        );
        assert_eq!(state.in_flight[0].moved, Some(MoveReason::FailedOver));
        state.write_failed(false);
        assert_eq!(
            (messages(&state.in_flight), messages([&state.changes])),
            (String::new(), "first, second".to_owned())
        );
        assert_eq!(state.changes.moved, Some(MoveReason::FailedOver));
        for number in 0..20 {
            decided(&mut state, &number.to_string(), MoveReason::FailedBack);
        }
        assert_eq!(state.changes.events.len(), MAX_EVENTS);
    }

    fn a_move(reason: EventReason, from: &str, to: &str) -> UnreportedEvents {
        let moved = match reason {
            EventReason::FailedOver => MoveReason::FailedOver,
            _ => MoveReason::TargetChanged,
        };
        let events = vec![FailoverEvent::of_move(reason, from, to)];
        UnreportedEvents { events, moved: Some(moved), ..Default::default() }
    }

    #[test]
    fn failover_is_seen_though_another_move_precedes_its_write() {
        for reasons in [
            [EventReason::FailedOver, EventReason::TargetChanged],
            [EventReason::TargetChanged, EventReason::FailedOver],
        ] {
            let mut changes = a_move(reasons[0], "a", "b");
            changes.extend(a_move(reasons[1], "b", "c"));
            assert_eq!(messages([&changes]), "a → c");
            assert_eq!(changes.events[0].reason, EventReason::FailedOver, "{reasons:?}");
            assert_eq!(changes.moved, Some(MoveReason::FailedOver), "{reasons:?}");
        }
    }

    #[test]
    fn move_of_an_unanswered_write_is_reported_with_its_reversal() {
        for (may_be_made, reported) in [(false, ""), (true, "a → b, b → a")] {
            let mut state = DecisionState::new(&object(&StableNameStatus::default()));
            state.changes.extend(a_move(EventReason::FailedOver, "a", "b"));
            state.begin_write(&StableNameStatus::default());
            state.write_failed(may_be_made);
            state.changes.extend(a_move(EventReason::TargetChanged, "b", "a"));
            state.begin_write(&StableNameStatus::default());
            assert_eq!(messages(&state.in_flight), reported);
            // The first write was made, so the second one has a conflict.
            state.write_failed(false);
            state.begin_write(&StableNameStatus::default());
            assert_eq!(messages(&state.in_flight), reported);
        }
        let mut state = DecisionState::new(&object(&StableNameStatus::default()));
        for number in 0..50 {
            state.changes.extend(a_move(EventReason::TargetChanged, "a", &number.to_string()));
            state.begin_write(&StableNameStatus::default());
            state.write_failed(true);
        }
        assert_eq!(state.in_flight.len(), MAX_EVENTS);
    }

    #[test]
    fn moves_between_two_writes_are_reported_as_one() {
        let moves = |path: &[&str]| {
            let mut changes = UnreportedEvents::default();
            for step in path.windows(2) {
                changes.extend(a_move(EventReason::TargetChanged, step[0], step[1]));
            }
            messages([&changes])
        };
        assert_eq!(moves(&["a", "b"]), "a → b");
        assert_eq!(moves(&["a", "b", "c", "d"]), "a → d");
        assert_eq!(moves(&["a", "b", "a"]), "");
    }

    #[test]
    fn change_by_another_client_voids_unwritten_changes() {
        let (mut leader, first) =
            (LeaderTerm::new(None, Leadership::unconditional()), object(&StableNameStatus::default()));
        let key = first.key.clone();
        leader.states.insert(key.clone(), DecisionState::new(&first));
        let state = leader.states.get_mut(&key).unwrap();
        decided(state, "first", MoveReason::FailedOver);
        state.begin_write(&StableNameStatus::default());
        decided(state, "second", MoveReason::FailedBack);
        let of =
            |generation| StableNameStatus { observed_generation: Some(generation), ..Default::default() };
        leader.observed(&object(&of(7)), Some(&first));
        let state = leader.states.get_mut(&key).unwrap();
        assert_eq!(messages(&state.in_flight), "first", "the write may have been made before");
        state.write_failed(false);
        assert_eq!((messages(&state.in_flight), messages([&state.changes])), (String::new(), String::new()));

        // The status of a write without an answer isn't another client's, even after a further write.
        let state = leader.states.get_mut(&key).unwrap();
        for (generation, message) in [(8, "third"), (9, "fourth")] {
            decided(state, message, MoveReason::FailedOver);
            state.begin_write(&of(generation));
            state.sent = Some(of(generation));
            state.write_failed(true);
        }
        leader.observed(&object(&of(8)), Some(&object(&of(7))));
        let state = leader.states.get_mut(&key).unwrap();
        assert_eq!(messages(state.in_flight.iter().filter(|changes| !changes.is_void)), "third, fourth");
    }
}
