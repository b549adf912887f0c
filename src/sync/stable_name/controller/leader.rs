//! The leader's part: checks targets, decides, and writes statuses.

mod decide;
mod publish;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::FailoverController;
use super::absence::{LookUpEnd, MissingServices};
use super::check_queue::CheckQueue;
use super::checks::{FinishedCheck, TargetCheckResult, check};
use super::metrics_limit::{MAX_METRICS, MetricsLimit};
use super::object::ObservedStableName;
use super::write::{StatusAnswer, StatusWrite};
use crate::api::status::StableNameStatus;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::controller::limits::Limits;
use crate::sync::controller::runtime::{Runtime, panics, report_panic};
use crate::sync::controller::work_queue::WorkQueue;
use crate::sync::election::Leadership;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::k8s::refusals::FailedWriteLog;
use crate::sync::stable_name::decision::checks::CheckResult;
use crate::sync::stable_name::decision::mass_failure::MassFailureGuard;
use crate::sync::stable_name::decision::upstream_answers::UpstreamAnswers;
use state::DecisionState;

/// At most 16 writes of statuses at once; of the writes that aren't urgent 20 a second, and one in 10 s of a StableName.
const LIMITS: Limits = Limits { at_once: 16, starts: Some((20, Duration::from_secs(1))) };
const OBJECT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of new decisions before other tasks have a turn, and of decisions for writes that failed or waited.
const MAX_DECISIONS: usize = 64;
/// Multiplied by the number of StableNames: the shortest time between two decisions about the same StableName
/// after changes of objects and check results. So these cause at most 2,000 decisions a second.
const DECISION_INTERVAL: Duration = Duration::from_micros(500);
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

impl LeaderTerm {
    /// Processes a new version of a StableName.
    pub(super) fn observed(&mut self, object: &ObservedStableName, before: Option<&ObservedStableName>) {
        if let Some(state) = self.states.get_mut(&object.key) {
            state.observed(object, before);
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
        self.runtime.forget(key);
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
            self.context.link_reporter.findings.readiness.unwritten.retain(|_| false);
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
    /// whether decisions may remain, apart from writes that fail or wait.
    pub(super) fn drain(&mut self) -> bool {
        self.limit_metrics();
        let mut decided = HashSet::new();
        for _ in 0..MAX_DECISIONS {
            let Some(key) = self.leader.to_decide.next() else { break };
            if self.decides(&key) {
                self.leader.runtime.queue.add(&key);
                decided.insert(key);
            }
        }
        let mut rest = MAX_DECISIONS;
        while rest > 0
            && let Some(key) = self.leader.runtime.queue.next()
        {
            // The write has failed or waited: facts may have changed since the decision.
            let is_decided = decided.remove(&key) || {
                rest -= 1;
                self.decides(&key)
            };
            if is_decided {
                self.publish(&key);
            }
        }
        let context = &self.context;
        self.leader.absences.start(context);
        while let Some(key) = self.leader.check_queue.next(Instant::now()) {
            let check = check(key.clone(), Arc::clone(&self.context.check_dns));
            self.leader.checks.spawn(async move {
                let ended = AssertUnwindSafe(check).catch_unwind().await;
                ended.unwrap_or_else(|_| FinishedCheck { key, result: TargetCheckResult::without_answer() })
            });
        }
        rest == 0 || self.leader.to_decide.has_ready()
    }

    /// Decides about a StableName. Returns `false` if the decision has panicked: it is made again later.
    fn decides(&mut self, key: &ServiceKey) -> bool {
        let has_panicked = panics(|| self.decide(key));
        if has_panicked {
            let log = self.log();
            report_panic(&mut self.leader.to_decide, &log, "StableName", key);
        } else {
            self.leader.to_decide.succeeded(key);
        }
        !has_panicked
    }

    /// Returns the log about StableNames.
    fn log(&self) -> ObjectLog {
        self.context.link_reporter.log.about("StableName")
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
        let (mut settled, mut settled_before) = (None, None);
        for waiter in leader.check_queue.done(&key) {
            if let Some(state) = leader.states.get_mut(&waiter) {
                let result = CheckResult { at: result.at, outcomes: result.outcomes_for(&waiter) };
                settled = settled.or(result.settled_label(&key.target, &leader.upstreams));
                let before = state.records.record(&key.target, key.tcp_port, result, &leader.upstreams);
                settled_before = settled_before.or(before);
            }
            leader.queue(&waiter, self.objects.len());
        }
        for label in [settled_before, settled].into_iter().flatten() {
            self.context.metrics.checks.with_label_values(&[kind, label]).inc();
        }
    }

    /// Processes the end of a look-up of a Service that seems to be gone.
    pub(super) fn looked_up(&mut self, ended: LookUpEnd) {
        for key in self.leader.absences.record(ended) {
            self.leader.to_decide.add(&key);
        }
    }
}
