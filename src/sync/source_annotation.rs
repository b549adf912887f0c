//! Keeps ExternalName Services with the annotation `linker.hsj.com/source` pointed at the target of the link that the
//! annotation names.
//!
//! Only `spec.externalName` of these Services is ever written, and they are never deleted.

mod decision;
mod deleted_links;
pub mod followers;
mod index;
mod write;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{AbortHandle, SelectAll, abortable};
use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::controller::limits::Limits;
use super::controller::runtime::{Runtime, panics, report_panic};
use super::election::Leadership;
use super::events::link_log::LinkReporter;
use super::events::{Reason, Regarding};
use super::external_target::decision::{SyncMode, SyncPolicy};
use super::k8s::errors::{ApiAvailability, ObjectErrors, ThrottledLog};
use super::k8s::labels::SOURCE;
use super::k8s::listed::{CompletedLists, ListEpoch};
use super::k8s::refusals::FailedWriteLog;
use super::k8s::rewinds::RestoreCounter;
use super::k8s::service::Service;
use super::k8s::watch::{WatchItem, list_watch, watch_name};
use super::source::persisted_targets::PersistedTargets;
use super::source::selection::Selection;
use super::task::supervisor::SyncError;
use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange};
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::source::service_links::is_present;
use decision::{AnnotatedService, Decision, MalformedAnnotation};
use deleted_links::DeletedLinks;
use followers::{Follower, FollowerState, Followers};
use index::{AnnotatedServices, FORBIDDEN_RETRY, IndexEvent};
use write::{FollowerWrite, WriteAnswer};

/// Maximum number of concurrent writes.
const MAX_WRITES: usize = 8;
/// How much later than an annotated Service its load balancer may arrive, as when both are applied together.
const WATCH_LAG: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct SourceAnnotationContext {
    pub store: Arc<Store>,
    pub persisted: Arc<PersistedTargets>,
    pub client: Client,
    /// Reports an unreachable API server.
    pub availability: ApiAvailability,
    /// The watched namespaces, and the target namespace.
    pub selection: Arc<Selection>,
    pub policy: SyncPolicy,
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    pub link_reporter: LinkReporter,
    pub api: Arc<ApiMetrics>,
    /// Tracks the age of the watches' data.
    pub staleness: Arc<Staleness>,
    /// The permission to write.
    pub leadership: Leadership,
    /// Tracks the complete lists of load balancers.
    pub links_listed: watch::Receiver<CompletedLists>,
    /// Tracks the complete lists of StableNames.
    pub overrides_listed: watch::Receiver<CompletedLists>,
    /// Counts restores of etcd.
    pub rewinds: RestoreCounter,
    /// What users see of the annotated Services.
    pub followers: Arc<Followers>,
}

/// Runs until `stop` is cancelled. Only the leader writes.
///
/// # Errors
/// If the Services can't be watched any more.
pub async fn run(mut context: SourceAnnotationContext, stop: CancellationToken) -> Result<(), SyncError> {
    let mut feed = context.store.subscribe();
    let mut memory = CrossTermState {
        object_errors: ObjectErrors::of_kind("Service", context.link_reporter.log.clone()),
        deleted_links: DeletedLinks::default(),
    };
    memory.deleted_links.rescan(&context.store, &context.persisted);
    let mut leadership = context.leadership.clone();
    let mut links_listed = context.links_listed.clone();
    let mut overrides_listed = context.overrides_listed.clone();
    let mut hostname_policy = context.hostname_policy.clone();
    loop {
        context.policy.tombstone = hostname_policy.borrow_and_update().tombstone();
        let lists = |term| ListEpoch { term, rewinds: context.rewinds.count() };
        let lists = leadership.current_term().map(lists);
        let is_settled = |lists: &ListEpoch| {
            let are_links_settled = links_listed.borrow_and_update().is_settled(*lists);
            overrides_listed.borrow_and_update().is_settled(*lists) && are_links_settled
        };
        if let Some(lists) = lists.filter(is_settled)
            && context.store.is_known(Input::Services)
        {
            context.followers.clear();
            let ended = run_term(&context, &mut feed, memory, lists, &stop).await;
            context.followers.clear();
            memory = ended?;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = leadership.changed() => {}
            Ok(()) = links_listed.changed() => {}
            Ok(()) = overrides_listed.changed() => {}
            () = context.store.known(Input::Services), if !context.store.is_known(Input::Services) => {}
            Ok(()) = hostname_policy.changed() => {}
            changes = feed.recv() => match changes {
                Ok(changes) => {
                    changes.iter().for_each(|it| memory.deleted_links.on_link_change(it, &context.persisted));
                }
                Err(RecvError::Lagged(_)) => memory.deleted_links.rescan(&context.store, &context.persisted),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
        }
    }
}

/// Updates the annotated Services until the term ends, etcd is restored or the policy changes: then everything is
/// listed again.
async fn run_term(
    context: &SourceAnnotationContext,
    feed: &mut broadcast::Receiver<Arc<[LinkChange]>>,
    memory: CrossTermState,
    lists: ListEpoch,
    stop: &CancellationToken,
) -> Result<CrossTermState, SyncError> {
    let mut leadership = context.leadership.clone();
    let mut links_listed = context.links_listed.clone();
    let mut overrides_listed = context.overrides_listed.clone();
    let rewinds = context.rewinds.clone();
    let mut hostname_policy = context.hostname_policy.clone();
    hostname_policy.mark_unchanged();
    let mut controller = SourceAnnotationController::new(context.clone(), memory, lists);
    let mut events: SelectAll<ScopedEvents> = (0..controller.annotated.number_of_scopes())
        .map(|number| controller.watch(number, Duration::ZERO))
        .collect();
    while controller.is_current() && !stop.is_cancelled() {
        controller.drain_queue();
        context.followers.set_unread(controller.annotated.unread());
        tokio::select! {
            () = stop.cancelled() => {}
            () = leadership.changed() => {}
            () = rewinds.wait_for_change(lists.rewinds) => {}
            Ok(()) = hostname_policy.changed() => break,
            Ok(()) = links_listed.changed() => controller.queue_all(),
            Ok(()) = overrides_listed.changed() => controller.queue_all(),
            changes = feed.recv() => match changes {
                Ok(changes) => changes.iter().for_each(|change| controller.link_changed(change)),
                Err(RecvError::Lagged(_)) => controller.rescan(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            event = events.next() => {
                let (number, event) = event.ok_or(SyncError::WatchEnded)?;
                if let Some(pause) = controller.on_watch_item(number, event) {
                    events.push(controller.watch(number, pause));
                }
            }
            ended = controller.runtime.event() => ended?.into_iter().for_each(|ended| controller.written(ended)),
        }
    }
    // A write without an answer delays the shutdown or the next term.
    while let Some(ended) = controller.runtime.drained().await? {
        controller.written(ended);
    }
    Ok(controller.memory)
}

/// State that survives the end of a term.
#[derive(Debug, Default)]
struct CrossTermState {
    /// The logged errors of annotated Services.
    object_errors: ObjectErrors,
    deleted_links: DeletedLinks,
}

struct SourceAnnotationController {
    context: SourceAnnotationContext,
    memory: CrossTermState,
    /// The term, and the number of noticed restores of etcd, at the beginning of the lists that writes are based on.
    lists: ListEpoch,
    annotated: AnnotatedServices,
    /// Ends the watch of each scope.
    watches: HashMap<usize, AbortHandle>,
    /// The desired state of an annotated Service is `spec.externalName`. Writes that are refused for a whole namespace
    /// share a breaker.
    runtime: Runtime<String, Arc<str>, FollowerWrite, WriteAnswer>,
    /// Log of the refusals of each namespace.
    error_logs: HashMap<Arc<str>, ThrottledLog>,
    refusals: FailedWriteLog,
    /// The names before and in writes that have failed, but may have been made: they are logged when the watch shows it.
    lost_answers: HashMap<ServiceKey, (String, String)>,
    planned: HashMap<ServiceKey, String>,
    /// Annotated Services of the first lists that haven't been reconciled in this term: their first errors cause no
    /// Events.
    initial_pass: HashSet<ServiceKey>,
    /// Annotated Services whose load balancer exists, or is known to have existed.
    resolved: HashSet<ServiceKey>,
    /// Annotated Services whose load balancer isn't known to exist or to have existed, and since when.
    unknown: HashMap<ServiceKey, Instant>,
}

type ScopedEvents = futures::stream::BoxStream<'static, (usize, WatchItem<Service>)>;

impl SourceAnnotationController {
    fn new(context: SourceAnnotationContext, memory: CrossTermState, lists: ListEpoch) -> Self {
        Self {
            annotated: AnnotatedServices::new(&context.selection, &context.availability),
            watches: HashMap::new(),
            runtime: Runtime::new(Limits::at_once(MAX_WRITES), Duration::ZERO, context.leadership.clone()),
            context,
            memory,
            lists,
            error_logs: HashMap::new(),
            refusals: FailedWriteLog::default(),
            lost_answers: HashMap::new(),
            planned: HashMap::new(),
            initial_pass: HashSet::new(),
            resolved: HashSet::new(),
            unknown: HashMap::new(),
        }
    }

    /// Returns whether the term lasts, and etcd hasn't been restored since the lists began.
    fn is_current(&self) -> bool {
        let ListEpoch { term, rewinds } = self.lists;
        self.context.leadership.current_term() == Some(term) && self.context.rewinds.count() == rewinds
    }

    /// Starts to list and watch a scope after a pause, and ends its previous watch.
    fn watch(&mut self, number: usize, pause: Duration) -> ScopedEvents {
        let query = self.annotated.query(number);
        let (client, staleness) = (self.context.client.clone(), Arc::clone(&self.context.staleness));
        let availability = self.context.availability.clone();
        let events = async move {
            tokio::time::sleep(pause).await;
            // Track the age of the data only after the pause: before, there is no watch.
            let activity = staleness.watch(&watch_name("sources", query.namespace.as_deref()));
            list_watch::<Service>(client, query, activity, availability)
        };
        let (events, end) = abortable(events.flatten_stream().map(move |event| (number, event)));
        if let Some(before) = self.watches.insert(number, end) {
            before.abort();
        }
        events.boxed()
    }

    /// Processes an item of a watch. If the watch has to start again, returns the pause before it.
    fn on_watch_item(&mut self, number: usize, event: WatchItem<Service>) -> Option<Duration> {
        let was_listed = self.annotated.is_listed(number);
        let mut anew = None;
        for index_event in self.annotated.on_watch_item(number, event, &mut self.memory.object_errors) {
            match index_event {
                IndexEvent::Answered => self.runtime.answered(),
                IndexEvent::Rewound(what) if self.is_current() => self.context.rewinds.record_restore(&what),
                // Another watch has noticed the restore, or this replica doesn't lead any more.
                IndexEvent::Rewound(_) => {}
                IndexEvent::AnnotationFound => anew = Some(Duration::ZERO),
                IndexEvent::Forbidden => anew = Some(FORBIDDEN_RETRY),
                IndexEvent::Follower(key) => self.runtime.queue.add(&key),
                IndexEvent::NoFollower(key) => {
                    self.forget(&key);
                    self.memory.object_errors.set(&key, None);
                }
                IndexEvent::Malformed { key, uid, annotation } => {
                    self.forget(&key);
                    let MalformedAnnotation { refusal, ignored, name } = annotation;
                    self.report(&key, &uid, ignored.as_deref(), refusal.as_deref(), was_listed);
                    // Without `source` the ignored ones are why it follows nothing.
                    let (why, ignored) = match refusal {
                        Some(why) => (why, ignored),
                        None => (ignored.unwrap_or_default(), None),
                    };
                    let state = FollowerState::Refused(why);
                    let follower = Follower { source: None, name, is_written: false, state, ignored };
                    self.context.followers.set(&key, Some(follower));
                }
            }
        }
        if !was_listed && self.annotated.is_listed(number) {
            self.initial_pass.extend(self.annotated.within(number).cloned());
        }
        anew
    }

    fn link_changed(&mut self, change: &LinkChange) {
        self.memory.deleted_links.on_link_change(change, &self.context.persisted);
        let Some(service) = change.service() else { return };
        let keys: Vec<ServiceKey> = self.annotated.of(service).cloned().collect();
        for key in keys {
            if change.target_change().is_some() {
                // Earlier failures concern the old target.
                self.runtime.queue.changed(&key);
            }
            self.runtime.queue.add(&key);
        }
    }

    /// Reconciles all links and annotated Services, because changes have been missed.
    fn rescan(&mut self) {
        self.memory.deleted_links.rescan(&self.context.store, &self.context.persisted);
        self.runtime.queue.end_pauses();
        self.queue_all();
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.planned.remove(key);
        self.lost_answers.remove(key);
        self.initial_pass.remove(key);
        self.resolved.remove(key);
        self.unknown.remove(key);
        self.context.followers.set(key, None);
        self.runtime.forget(key);
    }

    fn queue_all(&mut self) {
        for key in self.annotated.keys() {
            self.runtime.queue.add(key);
        }
    }

    /// Reconciles queued Services and starts their writes, up to the limit.
    fn drain_queue(&mut self) {
        while self.is_current()
            && let Some(key) = self.runtime.queue.next()
        {
            self.reconcile_isolated(&key);
        }
    }

    /// Reconciles an annotated Service. A panic affects only this Service.
    fn reconcile_isolated(&mut self, key: &ServiceKey) {
        let panicked = panics(|| {
            if let Some(follower) = self.annotated.get(key).cloned() {
                #[cfg(test)]
                super::controller::runtime::defect::panic_if_injected(key);
                self.follow(follower);
            }
        });
        if panicked {
            report_panic(&mut self.runtime.queue, &self.context.link_reporter.log, "Service", key);
        }
    }

    fn follow(&mut self, follower: AnnotatedService) {
        let (key, source) = (&follower.key, &follower.source);
        self.runtime.queue.stop_timer(key);
        if self.lost_answers.get(key).is_some_and(|(_, written)| *written == follower.name)
            && let Some((before, written)) = self.lost_answers.remove(key)
        {
            self.log_written(key, source, &before, &written);
        }
        // All annotated Services are queued again when the load balancers of that namespace have been listed.
        if !self.context.links_listed.borrow().covers(source.namespace(), self.lists) {
            let is_refused = self.context.links_listed.borrow().is_refused(source.namespace(), self.lists);
            let state = if is_refused { "may not be listed" } else { "aren't listed yet" };
            let why = format!("the load balancers of namespace {} {state}", source.namespace());
            return self.show(&follower, FollowerState::Kept(why));
        }
        let store = &self.context.store;
        let (link, gone) = (store.get(source), self.memory.deleted_links.get(source));
        // A former leader may have chosen another source of the StableName meanwhile.
        let is_override_unknown = link.as_deref().is_some_and(|link| {
            let is_listed = self.context.overrides_listed.borrow().covers(source.namespace(), self.lists);
            link.active_override().is_some_and(|by| by.is_provisional)
                || link.overridden.is_some() && !is_listed
        });
        if is_override_unknown {
            let why = format!("the StableName {source} isn't read yet");
            return self.show(&follower, FollowerState::Kept(why));
        }
        if gone.is_some() || is_present(store, source) {
            self.resolved.insert(key.clone());
            self.unknown.remove(key);
        } else if !self.resolved.contains(key) {
            return self.report_unknown_source(&follower);
        }
        let is_news = !self.initial_pass.remove(key);
        let decision = follower.decide(link.as_deref(), gone, &self.context.policy);
        self.show(&follower, shown_state(&follower, &decision, link.as_deref(), &self.context.policy));
        let refusal = match &decision {
            Decision::Refuse(why) => Some(&**why),
            Decision::Leave | Decision::Write(_) => None,
        };
        self.report_follower(&follower, refusal, is_news);
        if !matches!(decision, Decision::Write(_)) {
            self.runtime.queue.succeeded(key);
            self.planned.remove(key);
        }
        match (decision, self.context.policy.sync) {
            (Decision::Leave | Decision::Refuse(_), _) | (Decision::Write(_), SyncMode::Off) => {}
            (Decision::Write(name), SyncMode::Plan) => {
                if self.planned.get(key) != Some(&name) {
                    // The Services of the first lists are logged in full: they are what `--sync plan` is for.
                    let line = format_args!("plan for Service {key}, which follows {source}: patch → {name}");
                    let log = &self.context.link_reporter.log;
                    if is_news {
                        log.info(key, line)
                    } else {
                        log.write(key, Level::INFO, &line)
                    }
                    self.planned.insert(key.clone(), name);
                }
            }
            (Decision::Write(name), _) => self.start(follower, name),
        }
    }

    fn show(&self, service: &AnnotatedService, state: FollowerState) {
        let AnnotatedService { key, source, name, is_written, ignored, .. } = service;
        let (source, name, is_written) = (Some(source.clone()), name.clone(), *is_written);
        let follower = Follower { source, name, is_written, state, ignored: ignored.clone() };
        self.context.followers.set(key, Some(follower));
    }

    /// Reports that the load balancer of an annotated Service doesn't exist, and hasn't existed.
    fn report_unknown_source(&mut self, follower: &AnnotatedService) {
        let key = &follower.key;
        let since = self.unknown.entry(key.clone()).or_insert_with(Instant::now).elapsed();
        let is_news = !self.initial_pass.contains(key);
        if is_news && since < WATCH_LAG {
            let why = format!("{} isn't known yet", follower.source);
            self.show(follower, FollowerState::Kept(why));
            return self.runtime.queue.add_after(key.clone(), WATCH_LAG.saturating_sub(since));
        }
        let why = format!(
            "annotation {SOURCE} names {}, which is no load balancer that lb-linker follows",
            follower.source
        );
        self.initial_pass.remove(key);
        self.show(follower, FollowerState::Refused(why.clone()));
        self.report_follower(follower, Some(&why), is_news);
    }

    fn report_follower(&mut self, follower: &AnnotatedService, refusal: Option<&str>, is_news: bool) {
        let uid = follower.version.uid.as_deref().unwrap_or_default();
        self.report(&follower.key, uid, follower.ignored.as_deref(), refusal, is_news);
    }

    /// Reports which annotations of a Service have no effect, and why it doesn't follow. Each part that is new has a log
    /// line, and an Event if it is news.
    fn report(
        &mut self,
        key: &ServiceKey,
        uid: &str,
        ignored: Option<&str>,
        refusal: Option<&str>,
        is_news: bool,
    ) {
        let parts = [(Reason::TargetRefused, refusal), (Reason::AnnotationIgnored, ignored)];
        let known: Vec<(Reason, &str)> =
            parts.into_iter().filter_map(|(reason, text)| Some((reason, text?))).collect();
        let texts: Vec<&str> = known.iter().map(|(_, text)| *text).collect();
        let new = self.memory.object_errors.set_parts(key, &texts);
        for (reason, text) in known.iter().filter(|(_, text)| is_news && new.contains(&text)) {
            self.context.link_reporter.recorder.record(Regarding::new(key, uid), *reason, text);
        }
    }
}

/// Returns what users see of a decision about an annotated Service.
fn shown_state(
    AnnotatedService { source, name, .. }: &AnnotatedService,
    decision: &Decision,
    link: Option<&Link>,
    SyncPolicy { tombstone, .. }: &SyncPolicy,
) -> FollowerState {
    let kept = |why: String| FollowerState::Kept(format!("{source} {why}: the Service stays as it is"));
    match (decision, link.filter(|link| !link.is_gone())) {
        (Decision::Refuse(why), _) => FollowerState::Refused(why.clone()),
        (Decision::Write(name), _) => FollowerState::Outdated { name: name.clone(), failure: None },
        (Decision::Leave, None) if name.trim_end_matches('.') == *tombstone => {
            FollowerState::Kept(format!("{source} is gone: the Service leads to {tombstone}"))
        }
        (Decision::Leave, None) => kept("is gone".to_owned()),
        (Decision::Leave, Some(link)) if link.is_left_out() => kept("isn't followed".to_owned()),
        (Decision::Leave, Some(link)) if link.target.is_none() => kept("has no target".to_owned()),
        (Decision::Leave, Some(_)) => FollowerState::Follows,
    }
}

#[cfg(test)]
mod run_tests;
