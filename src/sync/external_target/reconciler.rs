//! The reconciler: makes the external targets match the links.
//!
//! Level-triggered: after any event the link is reconciled again, and the one write that brings its objects closer to
//! the desired state is made. At most one write per link is in flight. A link with failed writes delays no link without
//! failed writes.

mod adoption;
pub mod context;
pub(crate) mod departure;
mod former;
mod removal_notes;
mod start;
mod start_check;
mod terms;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use indexmap::IndexSet;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::backend::ObjectEvent;
use super::decision::{Actual, Decision, NextStep, SyncMode, Write, WriteClass, all_writes, decide};
use super::deletion_budget::DeletionBudget;
use super::desired::{current_target, link_labels};
use super::lost_answers::LostAnswers;
use super::missing_namespace::MissingNamespace;
use super::object_cache::{ObjectCache, object_ids};
use super::observed_object::ObservedObject;
use super::orphans::Orphans;
use super::removal_facts::is_orphan;
use super::status_log::StatusLog;
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::store::Input;
use crate::sync::controller::limits::Limits;
use crate::sync::controller::runtime::{Runtime, panics, report_panic};
use crate::sync::events::link_log::log_change;
use crate::sync::external_target::metrics::ReconcileResult;
use crate::sync::external_target::write_result::{SentWrite, WriteOutcome};
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::forbidden::LastingRefusal;
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::listed::ListEpoch;
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::removal::facts::{Facts, ServiceState, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::source::service_links::insert_gone;
use crate::sync::task::supervisor::{SHUTDOWN_TIMEOUT, SyncError};
use adoption::AdoptionQueue;
use context::ReconcilerContext;
use departure::UnreportedServices;
use former::UnwantedObjects;
use start_check::CheckedTargets;

/// Maximum number of concurrent writes: each takes a connection, and the API server has other clients, too.
const MAX_WRITES: usize = 16;
/// Runs until `stop` is cancelled, and then waits for the writes under way, for at most `SHUTDOWN_TIMEOUT`.
///
/// # Errors
/// If a watch or the change feed ends, or a task panics.
pub async fn run(context: ReconcilerContext, stop: CancellationToken) -> Result<(), SyncError> {
    if stop.run_until_cancelled(context.leadership.settled()).await.is_none() {
        return Ok(());
    }
    let mut events = context.backend.events(&context.staleness);
    let (leadership, mut leader_status) = (context.leadership.clone(), context.leadership.clone());
    let (mut links_listed, mut overrides_listed) =
        (context.links_listed.clone(), context.overrides_listed.clone());
    let (rewinds, mut hostname_policy) = (context.rewinds.clone(), context.hostname_policy.clone());
    hostname_policy.mark_unchanged();
    let mut reconciler = Reconciler::new(context);
    // Nothing is written before Services, EndpointSlices and load balancers have been listed.
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = reconciler.context.store.known(Input::Services), if reconciler.is_listed() => break,
            () = leadership.wait_for_other_term(reconciler.term) => events = reconciler.begin_term(),
            () = rewinds.wait_for_change(reconciler.rewinds) => events = reconciler.begin_term(),
            Ok(()) = hostname_policy.changed() => events = reconciler.on_policy_change(),
            event = events.next() => reconciler.on_object_event(event.ok_or(SyncError::WatchEnded)?),
        }
        reconciler.note_missing_namespace();
    }
    // While the first lists are applied, links change names under which nothing was written.
    let mut feed = reconciler.context.store.subscribe();
    reconciler.begin();
    let mut are_overrides_known = false;
    loop {
        reconciler.drain_queue();
        reconciler.publish_states(are_overrides_known);
        if std::mem::take(&mut reconciler.lists_again) {
            events = reconciler.context.backend.events(&reconciler.context.staleness);
        }
        tokio::select! {
            () = stop.cancelled() => break,
            changes = feed.recv() => match changes {
                Ok(changes) => changes.iter().for_each(|change| reconciler.on_link_change(change)),
                Err(RecvError::Lagged(_)) => reconciler.catch_up(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            () = leadership.wait_for_other_term(reconciler.term) => events = reconciler.begin_term(),
            () = rewinds.wait_for_change(reconciler.rewinds) => events = reconciler.begin_term(),
            Ok(()) = hostname_policy.changed() => events = reconciler.on_policy_change(),
            () = leader_status.changed() => reconciler.on_leader_status(),
            Ok(()) = links_listed.changed() => reconciler.on_links_listed(),
            Ok(()) = overrides_listed.changed() => reconciler.resume_writing(),
            () = reconciler.context.store.known(Input::StableNames), if !are_overrides_known => {
                are_overrides_known = true;
                reconciler.queue_overridden();
            }
            event = events.next() => reconciler.on_object_event(event.ok_or(SyncError::WatchEnded)?),
            ended = reconciler.runtime.event() => ended?.into_iter().for_each(|ended| reconciler.on_write_end(ended)),
            () = sleep_until_opt(reconciler.adoption.due()) => reconciler.queue_adoption(),
            () = sleep_until_opt(reconciler.start_check.awaited_until), if reconciler.waits_for_look_up() => {}
            Some(existing) = reconciler.start_check.look_ups.join_next() => reconciler.on_look_up_end(&existing?),
            () = sleep_until_opt(reconciler.report.reminder_due().map(Into::into)) => {}
            () = sleep_until_opt(reconciler.start_check.kept.due().map(Into::into)) => reconciler.end_kept(),
        }
    }
    reconciler.finish().await
}

pub(crate) struct Reconciler {
    pub(crate) context: ReconcilerContext,
    pub(crate) objects: ObjectCache,
    /// The kinds of objects with a complete list.
    pub(crate) listed: HashSet<ObjectKind>,
    /// The kinds that have been listed, without the kinds that `--sync off` doesn't wait for.
    pub(crate) read: HashSet<ObjectKind>,
    /// The term of the writes.
    pub(crate) term: u64,
    /// The number of restores of etcd before the lists of `listed_in_term` began.
    pub(crate) rewinds: u64,
    /// The kinds of objects listed in `term`: another leader may have changed objects since earlier lists.
    pub(crate) listed_in_term: HashSet<ObjectKind>,
    /// Links that haven't been reconciled since the start, or since writes were resumed. Conflicts found in that first
    /// pass cause no Event.
    initial_pass: HashSet<ServiceKey>,
    pub(crate) runtime: Runtime<Arc<Link>, WriteClass, SentWrite, WriteOutcome>,
    /// Links whose next write is left to a process with a higher term, and since when.
    outdated: HashMap<ServiceKey, Instant>,
    pub(crate) report: StatusLog,
    /// Counts each removal just before it is sent; with `--sync plan`, when it is planned.
    pub(crate) deletion_budget: Arc<Mutex<DeletionBudget>>,
    pub(crate) orphans: Orphans,
    adoption: AdoptionQueue,
    pub(crate) unwanted: UnwantedObjects,
    pub(crate) unreported_services: UnreportedServices,
    /// Services that count as gone without a confirmation by the API server, and since when an authorizer has refused
    /// all their look-ups.
    pub(crate) refused_look_ups: HashMap<ServiceKey, LastingRefusal>,
    start_check: CheckedTargets,
    pub(crate) lost_answers: LostAnswers,
    /// Why the target namespace accepts no new objects, if that is known.
    pub(crate) missing: Option<MissingNamespace>,
    /// The writes in the target namespace that an authorizer refuses.
    pub(crate) refused: IndexSet<WriteClass>,
    /// Whether a list in the target namespace was refused in this term.
    pub(crate) is_list_refused: bool,
    /// Whether the objects have to be listed again, because the target namespace may be a new one.
    pub(crate) lists_again: bool,
    /// Whether no more writes are started.
    pub(crate) is_stopping: bool,
}

impl Reconciler {
    fn new(mut context: ReconcilerContext) -> Self {
        context.policy.tombstone = context.hostname_policy.borrow().tombstone();
        let report = StatusLog::new(
            context.backend.clone(),
            context.link_reporter.clone(),
            Arc::clone(&context.metrics),
            Arc::clone(&context.api),
        );
        let orphans = Orphans::new(Arc::clone(&context.metrics));
        Self {
            objects: ObjectCache::new(context.policy.instance.clone()),
            listed: HashSet::new(),
            read: HashSet::new(),
            term: context.leadership.term(),
            rewinds: context.rewinds.count(),
            listed_in_term: HashSet::new(),
            initial_pass: HashSet::new(),
            runtime: Runtime::new(Limits::at_once(MAX_WRITES), Duration::ZERO, context.leadership.clone()),
            outdated: HashMap::new(),
            report,
            deletion_budget: Arc::default(),
            orphans,
            adoption: AdoptionQueue::default(),
            unwanted: UnwantedObjects::default(),
            unreported_services: UnreportedServices::default(),
            refused_look_ups: HashMap::new(),
            start_check: CheckedTargets::new(context.policy.delete_delay),
            lost_answers: LostAnswers::default(),
            missing: None,
            refused: IndexSet::new(),
            is_list_refused: false,
            lists_again: false,
            is_stopping: false,
            context,
        }
    }

    /// Waits for the writes under way, for at most [`SHUTDOWN_TIMEOUT`], and reports what they have changed.
    async fn finish(mut self) -> Result<(), SyncError> {
        while let Some(ended) = self.runtime.drained().await? {
            self.on_write_end(ended);
        }
        if self.runtime.is_writing() {
            warn!(
                "stopping without an answer to writes that the API server has got, after {SHUTDOWN_TIMEOUT:?}; the next \
                 leader compares these objects again"
            );
        }
        self.is_stopping = true;
        // The next leader doesn't report a target that is already written.
        for key in self.report.changing_links() {
            self.reconcile_isolated(key);
        }
        Ok(())
    }

    /// Begins a term of this leader, or continues after a restore of etcd, with new lists.
    fn begin_term(&mut self) -> BoxStream<'static, ObjectEvent> {
        self.term = self.context.leadership.term();
        self.rewinds = self.context.rewinds.count();
        self.listed_in_term.clear();
        self.is_list_refused = false;
        self.unwanted.clear();
        self.refused_look_ups.clear();
        self.context.backend.events(&self.context.staleness)
    }

    /// Applies a changed hostname policy, and lists the objects again: the policy decides which recorded hostnames and
    /// targets count.
    fn on_policy_change(&mut self) -> BoxStream<'static, ObjectEvent> {
        self.context.policy.tombstone = self.context.hostname_policy.borrow().tombstone();
        self.begin_term()
    }

    /// Returns whether writes may be made: by the leader, after everything has been listed in its term and since the
    /// last restore of etcd. A failed list of load balancers delays only the links of its namespace, a failed list of
    /// StableNames only the links that StableNames override.
    pub(crate) fn may_write(&self) -> bool {
        self.context.leadership.current_term() == Some(self.term)
            && self.listed_in_term.len() == self.listed.len()
            && self.rewinds == self.context.rewinds.count()
            && self.context.links_listed.borrow().is_settled(self.lists())
            && self.context.overrides_listed.borrow().is_settled(self.lists())
    }

    /// Returns the term and the rewind count of the lists that writes are based on.
    fn lists(&self) -> ListEpoch {
        ListEpoch { term: self.term, rewinds: self.rewinds }
    }

    /// Returns whether the load balancers of a namespace have been listed in this term and since the last restore of
    /// etcd, or the namespace isn't watched.
    pub(crate) fn are_links_listed(&self, namespace: &str) -> bool {
        self.context.links_listed.borrow().covers(namespace, self.lists())
    }

    /// Returns whether the load balancers of a watched namespace have never been listed, or their list in this term, or
    /// since the last restore of etcd, has failed.
    pub(crate) fn are_links_unlisted(&self, namespace: &str) -> bool {
        self.context.links_listed.borrow().lacks(namespace, self.lists())
    }

    fn may_write_for(&self, link: &Link) -> bool {
        self.lists_of(link).suffice(ServiceState::of(link))
    }

    /// Processes a change of the lists of load balancers.
    fn on_links_listed(&mut self) {
        if self.may_write() {
            self.resume_writing();
        } else if self.context.looks_up {
            self.check_external_targets(true);
            self.queue_all();
        }
    }

    /// Queues all links when writes may be made again, as at the beginning of a term.
    pub(crate) fn resume_writing(&mut self) {
        if self.may_write() {
            self.check_external_targets(true);
            self.record_left_out_events();
            self.runtime.queue.resume();
            self.begin_pass();
        }
    }

    /// Begins to reconcile, after everything was listed.
    fn begin(&mut self) {
        self.begin_term_without_election();
        self.restore_deleted(true);
        self.initialize_budget();
        self.begin_pass();
    }

    /// Lets the states of external targets count once each link was compared.
    fn publish_states(&self, are_overrides_known: bool) {
        if are_overrides_known && self.initial_pass.is_empty() && !self.waits_for_look_up() {
            self.context.external_target_states.set_known();
        }
    }

    /// Returns whether a process that only reads doesn't know yet which unlisted Services exist, and still waits for it.
    fn waits_for_look_up(&self) -> bool {
        self.context.policy.sync == SyncMode::Off && self.start_check.is_awaited()
    }

    fn begin_pass(&mut self) {
        self.queue_all();
        self.initial_pass = self.runtime.queue.queued();
    }

    /// Processes the beginning or the end of leadership.
    fn on_leader_status(&mut self) {
        if self.context.leadership.current_term().is_none() {
            self.report.leadership_lost();
            self.adoption.clear();
            self.lost_answers.clear();
            self.missing = None;
            self.refused.clear();
        }
    }

    /// Queues all links, including links that were forgotten while the feed lagged.
    fn catch_up(&mut self) {
        self.queue_all();
        let known = self.report.links().chain(self.runtime.queue.known()).chain(self.orphans.links());
        let known = known.chain(self.start_check.links()).cloned();
        let forgotten = known.chain(self.objects.links()).filter(|key| self.context.store.get(key).is_none());
        for key in forgotten.collect::<Vec<_>>() {
            self.runtime.queue.add(&key);
        }
    }

    pub(crate) fn queue_all(&mut self) {
        for link in self.context.store.links() {
            self.runtime.queue.add(&link.key);
        }
    }

    /// Queues the links of the first lists of StableNames, which may come after those of load balancers.
    fn queue_overridden(&mut self) {
        for link in self.context.store.links().iter().filter(|link| link.overridden.is_some()) {
            self.runtime.queue.add(&link.key);
            self.initial_pass.insert(link.key.clone());
        }
    }

    // === reconciliation ===

    /// Reconciles queued links while their writes may begin.
    fn drain_queue(&mut self) {
        while let Some(key) = self.runtime.queue.next() {
            self.reconcile_isolated(key);
        }
        if self.runtime.queue.shrink() {
            self.initial_pass.shrink_to_fit();
            self.report.tidy();
        }
        self.orphans.report(&self.context.backend);
        self.report.remind(self.context.policy.max_deletes);
        self.note_missing_namespace();
    }

    fn queue_adoption(&mut self) {
        let next = self.adoption.next(tokio::time::Instant::now());
        next.iter().for_each(|key| self.runtime.queue.add(key));
    }

    /// Reconciles a link. A panic is caught, so that it affects only this link.
    fn reconcile_isolated(&mut self, key: ServiceKey) {
        let now = Instant::now();
        let panicked = panics(|| {
            #[cfg(test)]
            crate::sync::controller::runtime::defect::panic_if_injected(&key);
            self.reconcile(&key);
        });
        if panicked {
            self.context.metrics.reconciled(ReconcileResult::Failed, now);
            report_panic(&mut self.runtime.queue, &self.context.link_reporter.log, "link", &key);
        }
    }

    fn reconcile(&mut self, key: &ServiceKey) {
        self.runtime.queue.stop_timer(key);
        let (now, is_news) = (Instant::now(), !self.initial_pass.remove(key));
        let found = self.context.store.get(key);
        self.start_check.settle(key, found.as_ref(), &self.context.metrics);
        if self.start_check.left_out.get(key).is_none_or(Option::is_none) {
            self.context.link_reporter.findings.left_out.set(key, None);
        }
        if found.as_ref().is_none_or(|link| link.service_gone_since().is_none()) {
            self.unreported_services.remove(key);
            self.refused_look_ups.remove(key);
        }
        let Some(link) = found else { return self.on_no_link(key) };
        self.update_orphans(key);
        if link.is_left_out() {
            self.follow_recorded(&link);
            return self.context.metrics.reconciled(ReconcileResult::Waiting, now);
        }
        let external_target = link.external_target();
        let ids = object_ids(&external_target);
        let labelled: Vec<Object> =
            self.objects.of_link(key).into_iter().map(ObservedObject::to_object).collect();
        let foreign_objects: Vec<Object> = ids
            .iter()
            .filter(|id| !labelled.iter().any(|object| object.id() == **id))
            .filter_map(|id| self.objects.get(id).map(ObservedObject::to_object))
            .collect();
        let named: Vec<&Object> =
            labelled.iter().filter(|object| ids.contains(&object.id())).chain(&foreign_objects).collect();
        let policy = &self.context.policy;
        let counts = |object: &Object| !is_orphan(Subject::ExternalTarget, &link, object.meta(), policy);
        let objects: Vec<&Object> = labelled.iter().filter(|object| counts(object)).collect();
        let slices: Vec<&EndpointSlice> = objects.iter().filter_map(|object| object.as_slice()).collect();
        let others: Vec<&Service> = objects
            .iter()
            .filter_map(|object| object.as_service())
            .filter(|service| service.metadata.name.as_deref() != Some(&external_target))
            .filter(|service| !is_orphan(Subject::FormerName, &link, &service.metadata, policy))
            .collect();
        let foreign_slices: Vec<&EndpointSlice> =
            foreign_objects.iter().filter_map(Object::as_slice).collect();
        let actual = Actual {
            named: named.iter().find_map(|object| object.as_service()),
            is_named_foreign: named
                .iter()
                .any(|object| object.kind() == ObjectKind::Service && !counts(object)),
            foreign_slices: &foreign_slices,
            other_services: &others,
            slices: &slices,
            is_of_former_leader: link.was_never_observed()
                && self.unwanted.contains_all(objects.iter().map(|object| object.uid())),
        };
        let next = self.next_step(&link, actual, (now, is_news));
        // The end of a write is counted instead of its beginning.
        if let Some(result) = self.take_step(&link, actual, next, (now, is_news)) {
            self.context.metrics.reconciled(result, now);
        }
    }

    fn on_no_link(&mut self, key: &ServiceKey) {
        self.report.forget(key);
        self.runtime.forget(key);
        self.adoption.forget(key);
        self.outdated.remove(key);
        self.lost_answers.forget(key);
        self.context.external_target_states.set(key, None, None, false);
        self.context.link_reporter.findings.removals.set(key, None);
        // The store has no link for an object that exists: add the link again, as the link of a gone Service.
        if self.has_removable_object(key) {
            insert_gone(&self.context.store, key, self.recorded_hostnames(key));
        }
        self.update_orphans(key);
    }

    /// Decides about a link. Also returns the facts about a removal, and whether what would be removed stays.
    fn next_step(
        &mut self,
        link: &Link,
        actual: Actual<'_>,
        (now, is_news): (Instant, bool),
    ) -> (NextStep, Option<Facts>, bool) {
        let Decision { mut step, mut removal } = decide(link, actual, &self.context.policy, now);
        if let Some(facts) = &mut removal {
            facts.check = self.start_check.of(&link.key);
        }
        let verdict = removal.map(|facts| may_remove(&facts, now));
        if let Some(Verdict::Keep(reason) | Verdict::Wait(reason, _)) = verdict {
            debug!("link {}: its external target stays: {reason}", link.key);
        }
        if let Some(Verdict::Wait(_, until)) = verdict {
            step = NextStep::Wait(until);
        }
        self.show_removal(link, verdict, now);
        step = self.yield_to_higher_term(link, step, now);
        match verdict {
            Some(Verdict::Keep(RemovalReason::MostGone) | Verdict::Wait(RemovalReason::MostGone, _))
                if self.may_write() || self.context.policy.sync == SyncMode::Plan =>
            {
                self.report.report_postponed(&link.key);
            }
            Some(_) if matches!(step, NextStep::Write(_)) => self.report.end_postponement(&link.key),
            _ => self.report.clear_held_back(&link.key),
        }
        self.context.external_target_states.update(link, &step, actual);
        if !matches!(step, NextStep::Conflict { .. }) {
            self.report.no_conflict(&link.key);
        }
        let holder = |name: &str| self.context.store.claimants(name).into_iter().next();
        self.report.name_lost(link, holder, is_news && actual.named.is_some());
        (step, removal, matches!(verdict, Some(Verdict::Keep(_))))
    }

    /// Makes the write that a link needs, plans it, or leaves it. Returns the result unless the write has begun.
    fn make_write(
        &mut self,
        link: &Arc<Link>,
        actual: Actual<'_>,
        (write, mut removal, is_kept): (Write, Option<Facts>, bool),
        (now, is_news): (Instant, bool),
    ) -> Option<ReconcileResult> {
        match self.context.policy.sync {
            SyncMode::Off => return Some(ReconcileResult::Unchanged),
            _ if is_kept => return Some(ReconcileResult::Waiting),
            SyncMode::Plan => {
                if removal.as_mut().is_none_or(|facts| self.has_budget(link, &write, facts)) {
                    let writes = all_writes(link, actual, &self.context.policy, now);
                    self.report.plan(&link.key, actual.named, writes, is_news);
                }
                return Some(ReconcileResult::Waiting);
            }
            // The leader makes the write. All links are queued again when this replica leads and has listed them.
            SyncMode::On if !self.may_write_for(link) => return Some(ReconcileResult::Waiting),
            SyncMode::On => {}
        }
        let present = self.objects.get(&ObjectId::service(&link.external_target()));
        let holder = present.and_then(|object| self.objects.owner_of(object));
        let ours = actual.named.filter(|_| holder.as_ref() == Some(&link.key));
        let target = || current_target(ours?, actual.slices.iter().copied());
        self.report.record_previous_target(&link.key, !is_news, target);
        (!self.start(link, write, removal, now)).then_some(ReconcileResult::Waiting)
    }

    /// Takes a step. Returns the result unless a write has begun.
    fn take_step(
        &mut self,
        link: &Arc<Link>,
        actual: Actual<'_>,
        (step, removal, is_kept): (NextStep, Option<Facts>, bool),
        (now, is_news): (Instant, bool),
    ) -> Option<ReconcileResult> {
        let key = &link.key;
        let (repair, adoption) = self.wanted_annotations(link, actual, &step);
        if !matches!(step, NextStep::Write(_)) {
            self.lost_answers.forget(key);
            // The last write of an annotation may have failed although the link needs no other write.
            if repair.is_none() && adoption.is_none() {
                self.runtime.queue.succeeded(key);
            }
        }
        match step {
            NextStep::Write(write) => {
                return self.make_write(link, actual, (write, removal, is_kept), (now, is_news));
            }
            NextStep::Done => {
                self.report.settled(link);
                if adoption.is_none() {
                    self.adoption.forget(key);
                }
                let is_turn = |_: &Write| self.adoption.may_write(key, tokio::time::Instant::now());
                let annotate = repair.or_else(|| adoption.filter(is_turn));
                if annotate.is_some_and(|write| self.start(link, write, None, now)) {
                    return None;
                }
            }
            NextStep::Forget => {
                if let Some(change) = self.context.store.forget(key) {
                    log_change(&self.context.link_reporter, &change);
                }
            }
            NextStep::Wait(due) => {
                self.runtime.queue.add_after(key.clone(), due.saturating_duration_since(now));
                return Some(ReconcileResult::Waiting);
            }
            NextStep::Conflict { object, why } => {
                self.report.settled(link);
                let remedy = self.conflict_remedy(key, &object);
                self.report.conflict(link, &object.name, &why, &remedy, is_news);
                return Some(ReconcileResult::Conflict);
            }
        }
        Some(ReconcileResult::Unchanged)
    }
}

impl Reconciler {
    /// Returns what users can do about an object that is in the way of a link.
    fn conflict_remedy(&self, key: &ServiceKey, object: &ObjectId) -> String {
        let own = self.context.policy.instance.as_deref();
        let instance = self.objects.get(object).and_then(|there| there.annotation(INSTANCE));
        let is_of_another = instance.is_some_and(|instance| !instance.is_empty() && own != Some(instance));
        match own {
            Some(instance) if self.outdated.contains_key(key) => format!(
                "give both --leader-election lease --instance {instance}, or stop one; this process writes it soon if the \
                 other one doesn't"
            ),
            _ if is_of_another => "give one of the two installations another --target-namespace, or each its own load \
                                   balancers (--watch-namespaces, --service-selector); if that instance isn't there any \
                                   more, remove the annotation"
                .to_owned(),
            _ => {
                let labels: Vec<String> =
                    link_labels(key).iter().map(|(label, value)| format!("{label}={value}")).collect();
                format!("delete it, or label it {}", labels.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests;
