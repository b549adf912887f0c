//! Follows StableNames, on every replica, and decides about them, on the leader.
//!
//! The status of a StableName is the decision: the links of every replica, the leader's included, have the target
//! that the API server has in `status.target`. Without the CRD, only discovery requests are sent.

mod absence;
mod alerts;
pub mod check_queue;
pub mod checks;
mod leader;
pub mod manifests;
pub mod metrics;
mod metrics_limit;
mod object;
mod overrides;
mod pending_deletions;
mod sources;
pub mod status_format;
mod watched;
mod write;

pub(crate) use write::PERMISSION_HINT;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::LinkChange;
use crate::model::owner::Source;
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};
use crate::sync::alerts::requests::RuleRequests;
use crate::sync::election::Leadership;
use crate::sync::events::findings::Findings;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::external_target::decision::SyncPolicy;
use crate::sync::external_target::states::ExternalTargetStates;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, ThrottledLog};
use crate::sync::k8s::listed::{CompletedLists, ListEpoch};
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::remotes::{Remote, Remotes};
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::source::relist_guard::RelistGuard;
use crate::sync::source::selection::Selection;
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::task::supervisor::SyncError;
use checks::CheckDns;
use leader::LeaderTerm;
use metrics::FailoverMetrics;
use object::TrackedStableName;
use pending_deletions::PendingDeletions;
use sources::Sources;
use watched::{Scope, ScopedEvents};

/// The time between two discovery requests: a newly installed CRD is noticed within this time.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of changes that are processed at once.
const MAX_BATCH: usize = 1024;
/// Maximum time that the first discovery request waits until the external targets are listed.
const EXTERNAL_TARGETS_LIST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct FailoverContext {
    pub client: Client,
    /// Reports an unreachable API server.
    pub availability: ApiAvailability,
    pub remotes: Remotes,
    /// How a missing permission to list StableNames is granted.
    pub list_hint: &'static str,
    pub store: Arc<Store>,
    /// Selects the namespaces and the labels of sources.
    pub selection: Arc<Selection>,
    /// The load balancers without a link.
    pub unselected: Arc<UnselectedServices>,
    /// The states of the external targets.
    pub external_target_states: Arc<ExternalTargetStates>,
    /// The requests for PrometheusRules, and the states of the PrometheusRules.
    pub rules: Arc<RuleRequests>,
    /// Decides which targets and DNS names are allowed.
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    /// The settings from the flags.
    pub policy: SyncPolicy,
    pub target_namespace: String,
    /// The namespaces in which fixed targets may be checked by TCP; `*` for all.
    pub tcp_check_namespaces: BTreeSet<String>,
    pub check_dns: CheckDns,
    pub link_reporter: LinkReporter,
    pub metrics: Arc<FailoverMetrics>,
    /// Metrics of requests to the API server.
    pub api: Arc<ApiMetrics>,
    /// The age of the data that the watches have delivered.
    pub staleness: Arc<Staleness>,
    /// Whether this replica may write, and in which term.
    pub leadership: Leadership,
    /// Counts restores of etcd to an earlier revision.
    pub rewinds: RestoreCounter,
    /// The namespaces with a complete list of load balancers.
    pub links_listed: watch::Receiver<CompletedLists>,
    /// Tracks the complete lists of StableNames.
    pub overrides_listed: watch::Sender<CompletedLists>,
}

struct FailoverController {
    context: FailoverContext,
    started: Instant,
    /// The remote clusters whose Services this process has listed.
    listed_remotes: BTreeSet<Arc<str>>,
    /// The names of the remote clusters, each as soon as its Services are listed.
    first_lists: FuturesUnordered<BoxFuture<'static, Arc<str>>>,
    objects: HashMap<ServiceKey, TrackedStableName>,
    /// For each Service the StableNames that have it as a source or announce its target.
    by_service: HashMap<ServiceKey, HashSet<ServiceKey>>,
    scopes: Vec<Scope>,
    /// The term and the rewind count of the present lists.
    lists: ListEpoch,
    events: SelectAll<ScopedEvents>,
    object_errors: ObjectErrors,
    relist_guard: RelistGuard,
    pending_deletions: PendingDeletions,
    /// Log of failed discovery requests.
    error_log: ThrottledLog,
    leader: LeaderTerm,
}

/// Follows StableNames until `stop` is cancelled. Only the leader checks targets, and writes.
///
/// # Errors
/// If a feed ends, which should never happen, or if a task panics.
pub async fn run(context: FailoverContext, stop: CancellationToken) -> Result<(), SyncError> {
    let mut feed = context.store.subscribe();
    let mut services = context.unselected.subscribe();
    let mut external_targets = context.external_target_states.subscribe();
    let mut rules = context.rules.subscribe();
    let (mut leadership, mut links_listed) = (context.leadership.clone(), context.links_listed.clone());
    let mut hostname_policy = context.hostname_policy.clone();
    hostname_policy.mark_unchanged();
    let mut tick = interval(DISCOVERY_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Read the external targets first: until a StableName is read, DNS answers with the target of its external
    // target.
    let owners = timeout(EXTERNAL_TARGETS_LIST_TIMEOUT, context.store.known(Input::ExternalTargets));
    let begin = async { tokio::join!(context.leadership.settled(), owners) };
    if stop.run_until_cancelled(begin).await.is_none() {
        return Ok(());
    }
    let (term, rewinds) = (context.leadership.clone(), context.rewinds.clone());
    let mut controller = FailoverController::new(context);
    loop {
        let is_busy = controller.drain();
        let recheck = controller.pending_deletions.discovery_due();
        let unserved = controller.pending_deletions.unserved_until();
        let confirm = controller.scopes.iter().filter_map(|scope| scope.confirm_at).min();
        let checks_due = controller.leader.checks_due();
        tokio::select! {
            () = stop.cancelled() => break,
            _ = tick.tick() => controller.pending_deletions.discover(&controller.context.client),
            served = controller.pending_deletions.discovered() => controller.on_discovery(served),
            () = sleep_until_opt(recheck) => controller.pending_deletions.discover(&controller.context.client),
            () = sleep_until_opt(unserved) => controller.end_crd_wait(),
            () = sleep_until_opt(confirm) => controller.confirm_lists(),
            Some((number, item)) = controller.events.next(), if !controller.events.is_empty() => {
                controller.on_watch_item(number, item);
            }
            changes = feed.recv() => controller.on_services(batch(changes, &mut feed, services_of)?),
            key = services.recv() => controller.on_services(batch(key, &mut services, one)?),
            key = external_targets.recv() => {
                controller.queue_batch(batch(key, &mut external_targets, one)?);
            }
            key = rules.recv() => controller.queue_batch(batch(key, &mut rules, one)?),
            () = leadership.changed() => controller.refresh_term(),
            () = term.wait_for_other_term(controller.lists.term) => controller.relist(),
            () = rewinds.wait_for_change(controller.lists.rewinds) => controller.relist(),
            Ok(()) = links_listed.changed() => controller.refresh_term(),
            Ok(()) = hostname_policy.changed() => controller.refresh_all(),
            Some(cluster) = controller.first_lists.next() => controller.on_first_list(cluster),
            () = controller.leader.to_decide.due() => {}
            ended = controller.leader.runtime.event() => ended?.into_iter().for_each(|ended| controller.written(ended)),
            () = sleep_until_opt(checks_due) => {}
            () = yield_now(), if is_busy => {}
            Some(ended) = controller.leader.absences.ended() => controller.looked_up(ended?),
            Some(ended) = controller.leader.checks.join_next() => {
                controller.checked(ended?);
                while let Some(ended) = controller.leader.checks.try_join_next() {
                    controller.checked(ended?);
                }
            }
        }
    }
    controller.finish().await
}

impl FailoverController {
    fn new(context: FailoverContext) -> Self {
        context.metrics.reset_targets();
        // The task may have panicked while it led.
        context.metrics.reset();
        let Findings { stable_names, readiness, .. } = &context.link_reporter.findings;
        stable_names.retain(|_| false);
        readiness.unwritten.retain(|_| false);
        readiness.stable_names.store(None);
        readiness.crd.store(None);
        Self {
            scopes: Scope::of(&context.selection, &context.availability, context.list_hint),
            object_errors: ObjectErrors::of_kind("StableName", context.link_reporter.log.clone()),
            lists: ListEpoch { term: context.leadership.term(), rewinds: context.rewinds.count() },
            objects: HashMap::new(),
            by_service: HashMap::new(),
            events: SelectAll::new(),
            relist_guard: RelistGuard::default(),
            pending_deletions: PendingDeletions::default(),
            error_log: ThrottledLog::default(),
            leader: LeaderTerm::new(None, context.leadership.clone()),
            started: Instant::now(),
            listed_remotes: BTreeSet::new(),
            first_lists: first_lists(&context),
            context,
        }
    }

    /// Waits for the writes under way, and reports what they have changed.
    async fn finish(mut self) -> Result<(), SyncError> {
        while let Some(ended) = self.leader.runtime.drained().await? {
            self.written(ended);
        }
        Ok(())
    }

    /// Processes changes of Services, or of the links of their keys; `None` if changes were missed.
    fn on_services(&mut self, keys: Option<HashSet<ServiceKey>>) {
        match keys {
            Some(keys) => keys.iter().for_each(|key| self.on_service(key)),
            None => self.refresh_all(),
        }
    }

    fn on_service(&mut self, key: &ServiceKey) {
        let concerned: Vec<ServiceKey> = self.by_service.get(key).into_iter().flatten().cloned().collect();
        for object in &concerned {
            self.set_override(object);
            self.queue(object);
        }
        self.queue(key);
    }

    /// Sets all overrides again and queues all decisions: changes were missed, or the hostname policy has changed.
    fn refresh_all(&mut self) {
        for key in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.set_override(&key);
        }
        self.queue_all();
    }

    fn on_first_list(&mut self, cluster: Arc<str>) {
        self.listed_remotes.insert(cluster);
        self.refresh_all();
    }

    fn queue(&mut self, key: &ServiceKey) {
        if self.leader.term.is_some() && self.objects.contains_key(key) {
            self.leader.queue(key, self.objects.len());
        }
    }

    fn queue_batch(&mut self, keys: Option<HashSet<ServiceKey>>) {
        match keys {
            Some(keys) => keys.iter().for_each(|key| self.queue(key)),
            None => self.queue_all(),
        }
    }

    fn queue_all(&mut self) {
        if self.leader.term.is_some() {
            self.objects.keys().for_each(|key| self.leader.to_decide.add(key));
        }
    }
}

/// Returns the names of the remote clusters, each as soon as this process has listed its Services.
fn first_lists(context: &FailoverContext) -> FuturesUnordered<BoxFuture<'static, Arc<str>>> {
    let first_list = |remote: &Remote| {
        let (store, cluster) = (Arc::clone(&context.store), Arc::clone(&remote.name));
        let source = Source { cluster: Some(Arc::clone(&cluster)), ..Source::SERVICES };
        async move { store.source_listed(&source).await }.map(|()| cluster).boxed()
    };
    context.remotes.all().iter().map(first_list).collect()
}

fn one(key: &ServiceKey) -> Vec<ServiceKey> {
    vec![key.clone()]
}

/// Returns the Services that changes of the store are about.
fn services_of(changes: &Arc<[LinkChange]>) -> Vec<ServiceKey> {
    changes.iter().filter_map(LinkChange::service).cloned().collect()
}

/// Returns the keys of a received change and of the changes that wait behind it, each once; `None` if changes were
/// missed.
///
/// # Errors
/// If the feed has ended.
fn batch<T: Clone>(
    first: Result<T, RecvError>,
    feed: &mut Receiver<T>,
    keys: impl Fn(&T) -> Vec<ServiceKey>,
) -> Result<Option<HashSet<ServiceKey>>, SyncError> {
    let mut all = match first {
        Ok(first) => HashSet::from_iter(keys(&first)),
        Err(RecvError::Lagged(_)) => return Ok(None),
        Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
    };
    for _ in 1..MAX_BATCH {
        match feed.try_recv() {
            Ok(next) => all.extend(keys(&next)),
            Err(TryRecvError::Lagged(_)) => return Ok(None),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        };
    }
    Ok(Some(all))
}

/// Returns where sources are looked up. `policy` is the current hostname policy.
fn sources_of<'a>(context: &'a FailoverContext, policy: &'a HostnamePolicy) -> Sources<'a> {
    Sources {
        store: &context.store,
        unselected: &context.unselected,
        selection: &context.selection,
        policy,
        tcp_check_namespaces: &context.tcp_check_namespaces,
    }
}

#[cfg(test)]
mod tests;
