//! Watches the LoadBalancer Services of a cluster.

mod leaving;
mod watch_state;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll, abortable};
use kube::{Client, Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Instant;
use tracing::warn;

use super::own_targets::InZoneTargets;
use super::selection::Selection;
use crate::metrics::staleness::Staleness;
use crate::model::excerpt::examples;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange, ObservedService};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::readiness::ForbiddenLists;
use crate::store::{Input, Store};
use crate::sync::election::Leadership;
use crate::sync::events::link_log::{LinkReporter, log_changes, log_first_list};
use crate::sync::events::{Reason, Regarding};
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, watch_scopes};
use crate::sync::k8s::forbidden::REFUSED_AFTER;
use crate::sync::k8s::listed::{CompletedLists, ListEpoch};
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::k8s::service::{LOAD_BALANCER, Service};
use crate::sync::k8s::watch::{
    Event, LOAD_BALANCERS, RequestQuery, WatchItem, key_of, list_watch, readable, sleep_until_opt,
    version_of, watch_name,
};
use crate::sync::removal::facts::{Facts, Found, Lists, Membership, ServiceState, StartCheck, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Question, Verdict, may_remove};
use crate::sync::source::first_list::FirstList;
use crate::sync::source::internal_names::LostInternalNames;
use crate::sync::source::metrics::WatchMetrics;
use crate::sync::source::persisted_targets::PersistedTargets;
use crate::sync::source::relist_guard::{CONFIRM_AFTER, RelistGuard};
use crate::sync::source::service_links::{insert_terminating, missing_from, service_link};
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::task::supervisor::SyncError;
use leaving::{DepartedService, RemovalChecks};
use watch_state::{PartialList, WatchState};

/// Maximum time that the first links wait until the owners of names are known.
pub(super) const EXTERNAL_TARGETS_LIST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct ServiceWatcher {
    pub client: Client,
    /// Reports an unreachable API server.
    pub availability: ApiAvailability,
    /// How a missing permission to list Services is granted.
    pub list_hint: &'static str,
    /// Selects the Services that become links.
    pub selection: Arc<Selection>,
    /// Decides which requested hostnames and targets are allowed.
    pub hostname_policy: Arc<HostnamePolicy>,
    /// Whether Services have our finalizer, and wait for lb-linker when they are deleted.
    pub sets_finalizer: bool,
    /// Whether the targets of Services that the first list lacks are kept, until it is certain that these Services are
    /// gone.
    pub keeps_unlisted: bool,
    /// Time for which the link of a Service is kept after the Service has left the selection (`--delete-delay`).
    pub delete_delay: Duration,
    pub store: Arc<Store>,
    pub persisted: Arc<PersistedTargets>,
    pub link_reporter: LinkReporter,
    pub metrics: Arc<WatchMetrics>,
    /// Tracks the age of the watches' data.
    pub staleness: Arc<Staleness>,
    /// Each term begins with new lists: a leader writes nothing based on earlier observations.
    pub leadership: Leadership,
    /// Counts restores of etcd.
    pub rewinds: RestoreCounter,
    /// Tracks the complete lists.
    pub listed: tokio::sync::watch::Sender<CompletedLists>,
    /// What is known about the first list, until it is complete.
    pub first_list: tokio::sync::watch::Sender<FirstList>,
    /// The Services with a target that depends on another Service.
    pub own_targets: Arc<Mutex<InZoneTargets>>,
    /// The Services that aren't selected.
    pub unselected: Arc<UnselectedServices>,
}

/// An item of one of several watches, with the number of the watch.
type Tagged = BoxStream<'static, (usize, WatchItem<Service>)>;

impl ServiceWatcher {
    /// Keeps the store in sync with the cluster.
    ///
    /// # Errors
    /// If a watch ends, which should never happen.
    pub async fn run(self) -> Result<(), SyncError> {
        let feed = self.store.subscribe();
        self.leadership.settled().await;
        let mut watches = Watches::new(&self, feed);
        self.report_forbidden(&watches.scopes);
        for (number, scope) in watches.scopes.iter_mut().enumerate() {
            watches.events.push(self.follow(number, scope));
        }
        loop {
            log_changes(&self.link_reporter, self.reconsider(&mut watches));
            let confirm_at = watches.scopes.iter().filter_map(|scope| scope.confirm_at).min();
            let expiry = watches.leaving.kept.due().map(Instant::from_std);
            tokio::select! {
                biased;
                () = self.wait_for_new_epoch(watches.lists) => self.begin_epoch(&mut watches),
                event = watches.events.next() => {
                    let (number, item) = event.ok_or(SyncError::WatchEnded)?;
                    self.on_watch_item(&mut watches, number, item).await;
                }
                (deleted, found) = watches.leaving.answer() => {
                    self.depart(deleted, ServiceState::Unlisted, Some(found), &mut watches.leaving);
                }
                () = sleep_until_opt(expiry) => {
                    for (key, uid, since) in watches.leaving.kept.take_expired(std::time::Instant::now()) {
                        log_changes(&self.link_reporter, self.store.gone(&key, &uid, None, since));
                    }
                }
                () = sleep_until_opt(confirm_at) => {
                    for (number, scope) in watches.scopes.iter_mut().enumerate() {
                        if scope.confirm_at.take_if(|at| *at <= Instant::now()).is_some() {
                            watches.events.push(self.follow(number, scope));
                        }
                    }
                }
                // Other tasks, such as the controller of StableNames, change links, too.
                changes = watches.feed.recv() => match changes {
                    Ok(changes) => self.on_changes(&changes, &mut watches.lost_internal),
                    Err(RecvError::Lagged(_)) => self.check_all(&mut watches.lost_internal),
                    Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
                },
            }
        }
    }

    /// Lists everything again, in a new term or after a restore of etcd.
    fn begin_epoch(&self, watches: &mut Watches) {
        let before = std::mem::replace(&mut watches.lists, self.lists());
        let is_rewound = watches.lists.rewinds != before.rewinds;
        let why = if is_rewound {
            "etcd was restored, or the API server's address changed"
        } else {
            "this replica began to lead"
        };
        for (number, scope) in watches.scopes.iter_mut().enumerate() {
            scope.require_relist(why);
            scope.rewound |= is_rewound;
            watches.events.push(self.follow(number, scope));
        }
    }

    async fn on_watch_item(&self, watches: &mut Watches, number: usize, item: WatchItem<Service>) {
        let scope = &mut watches.scopes[number];
        self.note_first_list(scope, &item);
        if scope.note_refusal(&item) {
            let (namespace, is_refused) = (scope.namespace.as_deref(), scope.is_refused());
            self.listed.send_if_modified(|all| all.set_refused(namespace, is_refused));
            self.report_forbidden(&watches.scopes);
        }
        let scope = &mut watches.scopes[number];
        let Some(event) = scope.watch_log.log_failure(item) else {
            // A failed list starts again from its beginning.
            (scope.listing, scope.failed) = (false, true);
            if !scope.listed {
                self.note_list(scope, watches.lists, false);
            }
            return self.listed(Vec::new(), &watches.scopes);
        };
        if !matches!(event, Event::ListBegins | Event::Resumed) {
            // These aren't events of the API server.
            self.metrics.event();
        }
        match event {
            Event::ListBegins => (scope.list, scope.listing) = (PartialList::default(), true),
            Event::Resumed => {}
            Event::Listed(object) => scope.list.add(self, object, &mut watches.object_errors),
            Event::ListEnds { version, rewound } => {
                wait_for_owners(&self.store, &mut watches.owners_deadline).await;
                self.on_list_end(watches, number, version, rewound);
            }
            Event::Applied(object) => {
                scope.newest = scope.newest.max(version_of(&object));
                self.applied(object, watches);
            }
            Event::Deleted(object) => {
                scope.newest = scope.newest.max(version_of(&object));
                self.deleted(&object, watches);
            }
        }
    }

    fn on_list_end(&self, watches: &mut Watches, number: usize, version: Option<u64>, rewound: bool) {
        let scope = &mut watches.scopes[number];
        (scope.listed, scope.listing, scope.failed) = (true, false, false);
        scope.watch_log.set_waiting(None);
        // Another watch may have noticed the restore first.
        let was_noticed = std::mem::take(&mut scope.rewound);
        let rewound = rewound || was_noticed || version < scope.newest && version.is_some();
        if rewound && !was_noticed && self.rewinds.count() == watches.lists.rewinds {
            // Note the restore before the links change, so that no write is based on this list and an older list of
            // external targets.
            self.rewinds.record_restore(scope.watch_log.what());
        }
        if rewound {
            version.into_iter().for_each(|version| self.store.continue_at(version));
        }
        scope.newest = version.or(scope.newest);
        let mut changes = self.take_list(watches, number, version, rewound);
        changes.extend(self.reconsider(watches));
        watches.object_errors.retain(|key| self.store.get(key).is_some());
        self.note_list(&watches.scopes[number], watches.lists, true);
        self.listed(changes, &watches.scopes);
    }

    /// Returns the term and the rewind count for lists that begin now.
    fn lists(&self) -> ListEpoch {
        ListEpoch { term: self.leadership.term(), rewinds: self.rewinds.count() }
    }

    /// Publishes what an item of a watch tells about the first list, unless the store is synced.
    fn note_first_list(&self, scope: &WatchState, item: &WatchItem<Service>) {
        let state = match item {
            Err(error) => FirstList::Failed { code: error.code(), what: scope.watch_log.what().into() },
            Ok(Event::Listed(_) | Event::ListEnds { .. }) => FirstList::Arriving,
            Ok(_) => return,
        };
        if !self.store.is_known(Input::Services) {
            let is_news =
                self.first_list.send_if_modified(|known| std::mem::replace(known, state.clone()) != state);
            if is_news {
                self.link_reporter.findings.readiness.list.store(Some(Arc::new(state.reason())));
            }
        }
    }

    /// Reports which lists and watches are forbidden after the first list: the first one in full, of those without a
    /// complete list if there are any.
    fn report_forbidden(&self, scopes: &[WatchState]) {
        let mut scopes: Vec<_> = scopes.iter().filter(|_| self.store.is_known(Input::Services)).collect();
        scopes.sort_by_key(|scope| scope.listed);
        let lists = scopes.iter().filter_map(|scope| {
            let effect = if scope.listed {
                "DNS answers with the last targets of these Services"
            } else {
                "DNS answers with the last targets of these Services, and nothing is written for them before they can be listed"
            };
            Some((scope.namespace.as_deref(), scope.forbidden.as_deref()?, effect))
        });
        let forbidden = ForbiddenLists::of(lists).map(Arc::new);
        self.link_reporter.findings.readiness.load_balancers.store(forbidden);
    }

    /// Publishes that a list is complete, or has failed.
    fn note_list(&self, scope: &WatchState, lists: ListEpoch, is_complete: bool) {
        let namespace = scope.namespace.as_deref();
        if let Some(namespace) = namespace.filter(|_| is_complete) {
            self.store.update_unknown_namespaces(|namespaces| _ = namespaces.remove(namespace));
        }
        self.listed.send_if_modified(|all| all.note(namespace, lists, is_complete));
    }

    /// Waits until new lists are due.
    async fn wait_for_new_epoch(&self, ListEpoch { term, rewinds }: ListEpoch) {
        tokio::select! {
            () = self.leadership.wait_for_other_term(term) => {}
            () = self.rewinds.wait_for_change(rewinds) => {}
        }
    }

    /// Starts to list and watch from the beginning, and ends the previous watch of this scope.
    fn follow(&self, number: usize, scope: &mut WatchState) -> Tagged {
        let query = RequestQuery {
            namespace: scope.namespace.clone(),
            fields: format!("spec.type={LOAD_BALANCER}"),
            labels: self.selection.labels.to_string(),
            ..RequestQuery::default()
        };
        let activity = self.staleness.watch(&watch_name(LOAD_BALANCERS, scope.namespace.as_deref()));
        scope.activity = Some(Arc::clone(&activity));
        let events = list_watch::<Service>(self.client.clone(), query, activity, self.availability.clone());
        let (events, end) = abortable(events.map(move |event| (number, event)));
        if let Some(before) = scope.end.replace(end) {
            before.abort();
        }
        scope.listing = false;
        events.boxed()
    }

    /// Applies a complete list. If it lacks too many load balancers, their links are kept until another list lacks
    /// them, too.
    fn take_list(
        &self,
        watches: &mut Watches,
        number: usize,
        version: Option<u64>,
        rewound: bool,
    ) -> Vec<LinkChange> {
        let Watches { scopes, relist_guards, leaving, .. } = watches;
        let scope = &mut scopes[number];
        let PartialList { keys, mut seen, unreadable, terminating, left_selection, unselected } =
            std::mem::take(&mut scope.list);
        let mut changes = Vec::new();
        for observed in &seen {
            if leaving.forget(&observed.key) {
                changes.extend(self.end_if_without_target(observed));
            }
        }
        for (deleted, membership) in left_selection {
            self.depart(deleted, ServiceState::Unlisted, Some(Found::same(membership)), leaving);
        }
        let staying: HashSet<ServiceKey> = leaving.keys().cloned().collect();
        let namespace = scope.namespace.clone();
        let namespace = namespace.as_deref();
        let listed = seen.iter().map(|observed| &observed.key).chain(&unreadable).chain(&staying);
        let (known, missing) = missing_from(&self.store, listed, namespace);
        let others = self.unselected.missing_from(&keys, namespace);
        let (mut retained, retained_others) = self.doubted(scope, relist_guards, (known, &missing), &others);
        let kept = retained_others.iter().chain(&unreadable).cloned().collect();
        self.unselected.replace(namespace, unselected, &kept);
        // The list lacks deleted Services as well as Services that have left the selection: a LIST by name tells them
        // apart. After a restore of etcd no such LIST is sent: a missing Service counts as deleted.
        let is_asked = self.store.is_known(Input::Services) && !rewound;
        let service = if is_asked { ServiceState::Unlisted } else { ServiceState::Gone };
        for key in missing {
            let lists = Some(if retained.contains(&key) { Lists::Suspicious } else { Lists::Complete });
            let facts = Facts { lists, ..Facts::of(Subject::Link, service) };
            if may_remove(&facts, std::time::Instant::now()) == Verdict::Ask(Question::Service)
                && let Some(link) = service_link(&self.store, &key)
            {
                retained.insert(key.clone());
                leaving.start_check(DepartedService { key, uid: link.uid.to_string(), version });
            }
        }
        retained.extend(staying);
        seen.iter_mut().for_each(|observed| self.persisted.attach(&self.store, observed));
        let seen = seen.into_iter().map(|observed| *observed);
        changes.extend(self.store.replace(namespace, seen, unreadable, &retained));
        let insert = |(key, uid): (ServiceKey, Box<str>)| insert_terminating(&self.store, &key, &uid, true);
        changes.extend(terminating.into_iter().filter_map(insert));
        changes.extend(self.end_unfounded(scope));
        changes
    }

    /// Returns the links and the unselected Services whose absence from a list is ignored until a second list confirms
    /// it.
    fn doubted(
        &self,
        scope: &mut WatchState,
        guards: &mut RelistGuards,
        (known, missing): (usize, &HashSet<ServiceKey>),
        (known_others, missing_others): &(usize, HashSet<ServiceKey>),
    ) -> (HashSet<ServiceKey>, HashSet<ServiceKey>) {
        scope.confirm_at = None;
        // The first list has nothing to be compared with.
        if !self.store.is_known(Input::Services) {
            return (HashSet::new(), HashSet::new());
        }
        let (within, now) = (|key: &ServiceKey| scope.contains(key), std::time::Instant::now());
        let retained = guards.links.keeps(known, missing, within, now);
        let retained_others = guards.unselected.keeps(*known_others, missing_others, within, now);
        let number = retained.len() + retained_others.len();
        if number > 0 {
            scope.confirm_at = Some(Instant::now() + CONFIRM_AFTER);
            warn!(
                "{number} of {} load balancers are missing from a new list of the API server: their absence is \
                 ignored until a second list, {CONFIRM_AFTER:?} later, confirms it ({})",
                known + known_others,
                RemovalReason::SuspiciousList
            );
        }
        (retained, retained_others)
    }

    /// Forgets the links of a snapshot in a namespace that was refused before, and that is listed now without them.
    fn end_unfounded(&self, scope: &WatchState) -> Vec<LinkChange> {
        let is_unfounded = |link: &&Arc<Link>| {
            link.is_left_out()
                && scope.contains(&link.key)
                && !self.store.has_external_target(&link.key)
                && !self.store.is_unreadable(&link.key)
        };
        let links = self.store.links();
        links.iter().filter(is_unfounded).filter_map(|link| self.store.forget(&link.key)).collect()
    }

    /// Processes the changes of a list. If this completes the first list, DNS answers from the links from here on.
    fn listed(&self, changes: Vec<LinkChange>, scopes: &[WatchState]) {
        if self.store.is_known(Input::Services) {
            log_changes(&self.link_reporter, changes);
            return;
        }
        let (listed, missing): (Vec<_>, Vec<_>) = scopes.iter().partition(|scope| scope.listed);
        // The links of a refused namespace come from its external targets, which have to be known, and from a snapshot.
        let starts_without = !listed.is_empty()
            && missing.iter().all(|scope| scope.is_refused())
            && self.store.is_known(Input::ExternalTargets);
        if !missing.is_empty() && !starts_without {
            return;
        }
        let refused: BTreeSet<&str> = missing.iter().filter_map(|scope| scope.namespace.as_deref()).collect();
        if !refused.is_empty() {
            warn!(
                "the API server has refused to list the load balancers of these namespaces for \
                 {REFUSED_AFTER:?}: {}; lb-linker starts without them: DNS answers with their last targets, as far as \
                 recorded, and their external targets stay as they are",
                examples(&refused)
            );
        }
        self.persisted.on_first_list(&self.store, self.keeps_unlisted, &refused);
        self.store.update_unknown_namespaces(|namespaces| {
            *namespaces = refused.iter().map(|it| (*it).into()).collect()
        });
        self.store.set_known(Input::Services);
        log_first_list(&self.store, &self.link_reporter, &changes);
    }

    /// Returns the observation for the store. Records Events for its denied parts if the rejections are new, except
    /// during the first list.
    fn observe(&self, service: &Service, object_errors: &mut ObjectErrors) -> ObservedService {
        self.own_targets().track(service, &self.hostname_policy, Some(&self.store));
        let (observed, rejections) = service.observe(&self.hostname_policy, &self.store);
        let new = object_errors.set_parts(&observed.key, &rejections);
        if new.is_empty() || !self.store.is_known(Input::Services) {
            return observed;
        }
        for (subject, reason) in [
            (RejectedField::Target, Reason::TargetRefused),
            (RejectedField::Hostname, Reason::HostnameRefused),
            (RejectedField::Annotation, Reason::AnnotationIgnored),
        ] {
            let note = joined(new.iter().filter(|rejection| rejection.kind == subject));
            if !note.is_empty() {
                let regarding = Regarding::new(&observed.key, &observed.uid.to_string());
                self.link_reporter.recorder.record(regarding, reason, &note);
            }
        }
        observed
    }

    /// Like [`ServiceWatcher::observe`], for a Service of an incomplete list. Errors about a target that depends on
    /// another Service are reported later, by [`ServiceWatcher::reconsider`].
    fn observe_listed(&self, service: &Service, object_errors: &mut ObjectErrors) -> ObservedService {
        if self.own_targets().track(service, &self.hostname_policy, None) {
            return service.observe(&self.hostname_policy, &self.store).0;
        }
        self.observe(service, object_errors)
    }

    /// Observes again the Services with targets that have become allowed or denied because another Service changed.
    fn reconsider(&self, watches: &mut Watches) -> Vec<LinkChange> {
        // While a list is being received, the Service that a target depends on may still be missing.
        let is_due = self.drain_feed(watches) && watches.scopes.iter().all(WatchState::is_settled);
        if !is_due {
            return Vec::new();
        }
        let services = self.own_targets().changed(&self.hostname_policy, &self.store);
        let apply = |service: &Service| self.store.apply(self.observe(service, &mut watches.object_errors));
        services.iter().filter_map(apply).collect()
    }

    /// Processes the changes of links. Returns whether the targets of dependent Services have to be checked again.
    fn drain_feed(&self, Watches { feed, lost_internal, .. }: &mut Watches) -> bool {
        lost_internal.start(&self.store, &self.link_reporter);
        loop {
            match feed.try_recv() {
                Ok(changes) => self.on_changes(&changes, lost_internal),
                Err(TryRecvError::Lagged(_)) => self.check_all(lost_internal),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return self.own_targets().is_due(),
            }
        }
    }

    fn on_changes(&self, changes: &[LinkChange], lost_internal: &mut LostInternalNames) {
        self.own_targets().on_changes(changes, &self.hostname_policy);
        changes.iter().for_each(|change| lost_internal.on_change(change, &self.store, &self.link_reporter));
    }

    /// Makes up for changes of the store that were missed.
    fn check_all(&self, lost_internal: &mut LostInternalNames) {
        self.own_targets().recheck_all();
        lost_internal.check_all(&self.store, &self.link_reporter);
    }

    fn own_targets(&self) -> MutexGuard<'_, InZoneTargets> {
        self.own_targets.lock()
    }

    fn applied(&self, object: RawDeserializeGuard<Service>, watches: &mut Watches) {
        let key = key_of(&object);
        let Some(service) = readable(object, &mut watches.object_errors) else {
            return self.store.set_unreadable(&key);
        };
        let membership = self.selection.membership(&service);
        match membership {
            Membership::Selected | Membership::Gone => self.unselected.remove(&key),
            Membership::NotSelected | Membership::OptedOut => {
                self.unselected.insert(service.observe(&self.hostname_policy, &self.store).0);
            }
        }
        if membership == Membership::Selected {
            let was_deleted = watches.leaving.forget(&key);
            let mut observed = self.observe(&service, &mut watches.object_errors);
            let ended = was_deleted.then(|| self.end_if_without_target(&observed)).flatten();
            self.persisted.attach(&self.store, &mut observed);
            let applied = self.store.apply(observed);
            return log_changes(&self.link_reporter, ended.into_iter().chain(applied));
        }
        watches.object_errors.set(&key, None);
        let deleted = DepartedService { key, uid: service.uid().to_owned(), version: service.version() };
        if membership == Membership::NotSelected && self.is_left_out(&deleted.key) {
            // The Service was left out before, too.
            return;
        }
        if let Some(predecessor) = self.other_live_service(&deleted) {
            watches.leaving.start_check(predecessor);
        }
        let found = Some(Found::same(membership));
        self.depart(deleted, ServiceState::Unlisted, found, &mut watches.leaving);
        if self.sets_finalizer && service.has_finalizer() {
            // The finalizer delays the deletion, even if this process has never observed the Service as a load
            // balancer.
            log_changes(
                &self.link_reporter,
                insert_terminating(&self.store, &service.key(), service.uid(), true),
            );
        }
    }

    /// Ends the link of a Service that was reported as deleted and is back without a target: it was of another type in
    /// between, which makes the API server clear its status.
    fn end_if_without_target(&self, observed: &ObservedService) -> Option<LinkChange> {
        let ObservedService { key, uid, ingress, .. } = observed;
        let has_no_target = ingress.hostnames.is_empty() && ingress.addresses.is_empty();
        let now = std::time::Instant::now();
        has_no_target.then(|| self.store.gone(key, &uid.to_string(), None, now)).flatten()
    }

    /// Records that a Service was deleted or left the selection. The event contains the last version of the object, of
    /// which only key, uid, resourceVersion and deletionTimestamp are used.
    fn deleted(&self, object: &RawDeserializeGuard<Service>, watches: &mut Watches) {
        let (uid, version) = (object.uid().unwrap_or_default(), version_of(object));
        let deleted = DepartedService { key: key_of(object), uid, version };
        if self.store.is_unreadable(&deleted.key) {
            // The Service that can't be decoded is gone; its predecessor, whose link stayed until now, is gone, too.
            self.unselected.remove(&deleted.key);
            if let Some(predecessor) = self.other_live_service(&deleted) {
                watches.leaving.start_check(predecessor);
            }
        } else {
            self.unselected.deleted(&deleted.key, &deleted.uid);
        }
        watches.object_errors.set(&deleted.key, None);
        let is_gone = object.meta().deletion_timestamp.is_some() || !self.is_followed(&deleted);
        let service = if is_gone { ServiceState::Gone } else { ServiceState::Unlisted };
        self.depart(deleted, service, None, &mut watches.leaving);
    }

    /// Returns whether the link of a Service is from an external target or a snapshot, and this process has never
    /// observed the Service as selected.
    fn is_left_out(&self, key: &ServiceKey) -> bool {
        service_link(&self.store, key).is_some_and(|link| link.is_left_out())
    }

    /// Returns whether a Service has a link that isn't gone.
    fn is_followed(&self, DepartedService { key, uid, .. }: &DepartedService) -> bool {
        service_link(&self.store, key).is_some_and(|link| link.uid == *uid.as_str() && !link.is_gone())
    }

    /// Returns the Service whose link isn't gone, if it is another Service of the same name.
    fn other_live_service(
        &self,
        DepartedService { key, uid, .. }: &DepartedService,
    ) -> Option<DepartedService> {
        let link = service_link(&self.store, key)?;
        // The uid of a left-out link may be unknown.
        let is_other = link.uid != *uid.as_str() && !link.is_gone() && !link.is_left_out();
        is_other.then(|| DepartedService { key: key.clone(), uid: link.uid.to_string(), version: None })
    }

    /// Processes that a Service has left the watch or isn't selected, and what a look-up has found, if there was one.
    fn depart(
        &self,
        deleted: DepartedService,
        service: ServiceState,
        found: Option<Found>,
        leaving: &mut RemovalChecks,
    ) {
        let DepartedService { key, uid, version } = &deleted;
        let check = if self.is_left_out(key) { StartCheck::LeftOut } else { StartCheck::Passed };
        let is_followed = self.is_followed(&deleted);
        let facts = Facts { service, check, found, ..leaving.kept.facts(key, uid, Found::Failed) };
        let since = match may_remove(&facts, std::time::Instant::now()) {
            Verdict::Ask(_) => return leaving.start_check(deleted),
            Verdict::Wait(RemovalReason::NotSelected, _)
            | Verdict::Keep(RemovalReason::NotSelected)
            | Verdict::Remove(RemovalReason::NotSelected)
                if is_followed =>
            {
                if leaving.keep(key, uid) {
                    self.link_reporter.log.info(key, leaving.kept.notice(key));
                }
                return;
            }
            // The watch reports the Service again.
            Verdict::Keep(_) => return,
            Verdict::Remove(RemovalReason::OptedOut) => leaving.kept.long_ago(),
            Verdict::Wait(..) | Verdict::Remove(_) => std::time::Instant::now(),
        };
        // Another Service of this name may be kept, or looked up.
        if self.other_live_service(&deleted).is_none() {
            leaving.forget(key);
        }
        log_changes(&self.link_reporter, self.store.gone(key, uid, *version, since));
    }
}

/// The guards against incomplete lists. Unselected Services have a guard of their own: tenants may have any number of
/// them, so their number says nothing about links.
#[derive(Debug, Default)]
struct RelistGuards {
    links: RelistGuard,
    unselected: RelistGuard,
}

/// The watches, and what isn't in the store about Services.
struct Watches {
    scopes: Vec<WatchState>,
    events: SelectAll<Tagged>,
    feed: broadcast::Receiver<Arc<[LinkChange]>>,
    /// The term and the rewind count of the present lists.
    lists: ListEpoch,
    relist_guards: RelistGuards,
    owners_deadline: Option<Instant>,
    object_errors: ObjectErrors,
    leaving: RemovalChecks,
    lost_internal: LostInternalNames,
}

impl Watches {
    fn new(source: &ServiceWatcher, feed: broadcast::Receiver<Arc<[LinkChange]>>) -> Self {
        let (availability, log) = (&source.availability, &source.link_reporter.log);
        let scope = |namespace: Option<&str>| {
            WatchState::new(namespace.map(ToOwned::to_owned), availability.clone(), source.list_hint)
        };
        Self {
            scopes: watch_scopes(&source.selection.namespaces).map(scope).collect(),
            events: SelectAll::new(),
            feed,
            lists: source.lists(),
            relist_guards: RelistGuards::default(),
            owners_deadline: None,
            lost_internal: LostInternalNames::default(),
            object_errors: ObjectErrors::shown_in(
                &source.link_reporter.findings.services,
                "Service",
                log.clone(),
            ),
            leaving: RemovalChecks::new(
                source.client.clone(),
                availability.clone(),
                Arc::clone(&source.selection),
                source.delete_delay,
                log.clone(),
                source.list_hint,
            ),
        }
    }
}

/// Waits until the owners of names and the StableNames are known: a name mustn't go to another link, nor a link to
/// another target, because Services were listed first. The wait ends [`EXTERNAL_TARGETS_LIST_TIMEOUT`] after the first
/// call with this `deadline`.
async fn wait_for_owners(store: &Store, deadline: &mut Option<Instant>) {
    let known = async {
        store.known(Input::ExternalTargets).await;
        store.known(Input::StableNames).await;
    };
    let deadline = *deadline.get_or_insert_with(|| Instant::now() + EXTERNAL_TARGETS_LIST_TIMEOUT);
    // After the timeout DNS starts without the owners and StableNames: the API server may answer one list, and fail
    // at another one.
    let _ = tokio::time::timeout_at(deadline, known).await;
}

fn joined<'a>(rejections: impl IntoIterator<Item = &'a &'a Rejection>) -> String {
    rejections.into_iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod run_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undecodable_object_is_reported_by_name() {
        let list: Vec<RawDeserializeGuard<Service>> = serde_json::from_str(
            r#"[{"metadata": {"namespace": "default", "name": "broken"}, "spec": {"type": 5}},
                {"metadata": {"namespace": "default", "name": "whole"}, "spec": {"type": "LoadBalancer"}}]"#,
        )
        .unwrap();
        let mut object_errors = ObjectErrors::default();
        let keys: Vec<String> = list.iter().map(|object| key_of(object).to_string()).collect();
        assert_eq!(keys, ["default/broken", "default/whole"]);
        let readable: Vec<Service> =
            list.into_iter().filter_map(|object| readable(object, &mut object_errors)).collect();
        assert_eq!(readable.len(), 1);
        assert!(readable[0].is_living_load_balancer());
        assert!(
            object_errors.of(&ServiceKey::new("default", "broken")).unwrap().starts_with("it can't be read")
        );
    }
}
