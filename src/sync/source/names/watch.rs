//! Reads the objects of a source from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

use super::shared::ObjectId;
use super::source::{NameSource, Names, Seen, WatchRequest, WatchedKind};
use crate::metrics::staleness::{LastActivity, Staleness};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::Source;
use crate::model::service_key::ServiceKey;
use crate::readiness::SourceList;
use crate::store::{Input, Store};
use crate::sync::events::RegardingKind;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::k8s::errors::{ApiAvailability, WatchLog, explain_watch, in_place, watch_scopes};
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::k8s::watch::item::WatchError;
use crate::sync::k8s::watch::{Event, RequestQuery, sleep_until_opt, watch_name};
use crate::sync::source::relist_guard::{CONFIRM_AFTER, GuardedList, ListEnd, RelistGuard};
use crate::sync::source::selection::Selection;
use crate::sync::task::supervisor::SyncError;

/// The longest pause before the first list is requested again: names that aren't known get SERVFAIL until then.
const FIRST_LIST_PAUSE: Duration = Duration::from_secs(2);
/// The step in seconds of the time at which objects of a remote cluster were read last.
const READ_STEP: i64 = 10;
const HINT_OF_REMOTE: &str = "deploy/remote/ grants the permission, in that cluster";

/// Keeps the names of a source up to date.
#[derive(Clone)]
pub struct NameWatcher {
    /// The remote cluster whose objects are read; `None` for the home cluster.
    pub cluster: Option<Arc<str>>,
    pub client: Client,
    pub availability: ApiAvailability,
    pub selection: Arc<Selection>,
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    pub store: Arc<Store>,
    pub link_reporter: LinkReporter,
    pub staleness: Arc<Staleness>,
    pub rewinds: RestoreCounter,
}

/// The watch of a kind in a namespace, or in all.
struct Scope {
    kind: &'static WatchedKind,
    namespace: Option<String>,
    log: WatchLog,
    activity: Option<Arc<LastActivity>>,
    /// The list that has begun. It is confirmed, or a missing resource is asked for again, at its `confirm_at`.
    list: GuardedList,
    version: Version,
    /// Whether the objects matter for names in the present zones.
    is_read: bool,
    /// Whether a list is complete since the rules have changed.
    is_listed: bool,
    /// Whether etcd has been restored to an earlier revision since the last complete list.
    is_rewound: bool,
    /// Whether a complete list waits for the load balancers: their names go before, and targets may depend on them.
    is_waiting: bool,
    /// Ends the watch before.
    end: Option<AbortHandle>,
}

/// Which version of a resource is read.
#[derive(Debug, Default)]
struct Version {
    index: usize,
    /// The number of versions that weren't served, in a row.
    missing: usize,
    /// Whether no version is served.
    is_missing: bool,
}

/// The watches of a source, and its names.
struct Watches<S> {
    scopes: Vec<Scope>,
    names: Names<S>,
    guards: BTreeMap<RegardingKind, RelistGuard>,
}

type Tagged<O> = BoxStream<'static, (usize, Result<Event<Seen<O>>, WatchError>)>;

impl NameWatcher {
    /// Follows the objects of a source.
    ///
    /// # Errors
    /// If a watch ends, which should never happen.
    pub async fn follow<S: NameSource>(&self, source: S) -> Result<(), SyncError> {
        let mut feed = self.store.subscribe();
        let (mut zones, mut policies) = (self.store.watch_zones(), self.hostname_policy.clone());
        let mut watches = self.watches(source);
        loop {
            let (zones_now, policy) =
                (Arc::clone(&zones.borrow_and_update()), Arc::clone(&policies.borrow_and_update()));
            watches.names.set_rules(zones_now, policy);
            let (rewinds, mut events) = (self.rewinds.count(), SelectAll::new());
            // While no resource is served there is no other stream.
            events.push(futures::stream::pending().boxed());
            for number in watches.begin_all() {
                events.push(self.begin::<S>(number, &mut watches.scopes[number]));
            }
            watches
                .scopes
                .iter()
                .filter(|scope| !scope.is_read)
                .for_each(|scope| self.forget_note::<S>(scope));
            loop {
                let is_waiting = watches.scopes.iter().any(|scope| scope.is_waiting);
                tokio::select! {
                    Ok(()) = zones.changed() => {
                        if !watches.names.has_zones(&zones.borrow()) {
                            break;
                        }
                    }
                    Ok(()) = policies.changed() => break,
                    () = self.rewinds.wait_for_change(rewinds) => {
                        watches.scopes.iter_mut().for_each(|scope| scope.is_rewound = true);
                        break;
                    }
                    item = events.next() => {
                        let (number, item) = item.ok_or(SyncError::WatchEnded)?;
                        if self.on_item(&mut watches, number, item) == Next::Begin {
                            events.push(self.begin::<S>(number, &mut watches.scopes[number]));
                        }
                    }
                    () = self.may_end_lists(), if is_waiting => watches.end_waiting(),
                    () = sleep_until_opt(watches.list_at()) => {
                        for number in watches.take_due() {
                            events.push(self.begin::<S>(number, &mut watches.scopes[number]));
                        }
                    }
                    () = sleep_until_opt(watches.names.state.recheck_at) => watches.names.recheck(),
                    () = std::future::ready(()), if watches.names.has_work() => {
                        watches.names.work();
                        // Subscribers of the store's feed get their turn.
                        tokio::task::yield_now().await;
                    }
                    changes = feed.recv() => match changes {
                        Ok(changes) => watches.names.on_changes(&changes),
                        Err(RecvError::Lagged(_)) => watches.names.check_all(),
                        Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
                    },
                }
            }
        }
    }

    /// Waits until names may be published. Those of the home cluster's load balancers go before; a remote cluster doesn't
    /// wait for another one.
    async fn may_end_lists(&self) {
        if self.cluster.is_none() {
            self.store.known(Input::Services).await;
        }
    }

    /// Returns the part of the flag `--watch-namespaces`, which is about the home cluster.
    fn namespaces(&self) -> BTreeSet<String> {
        if self.cluster.is_some() { BTreeSet::new() } else { self.selection.namespaces.clone() }
    }

    fn watches<S: NameSource>(&self, source: S) -> Watches<S> {
        let (place, hint) = match &self.cluster {
            Some(cluster) => (format!(" of cluster {cluster}"), Some(HINT_OF_REMOTE)),
            None => (String::new(), None),
        };
        let scope = |kind: &'static WatchedKind, namespace: Option<&str>| Scope {
            kind,
            namespace: namespace.map(ToOwned::to_owned),
            log: WatchLog::new(
                self.availability.clone(),
                match namespace {
                    None if !place.is_empty() => format!("{}{place}", kind.many),
                    namespace => in_place(kind.many, namespace),
                },
                hint.unwrap_or(kind.hint),
            ),
            activity: None,
            list: GuardedList::default(),
            version: Version::default(),
            is_read: true,
            is_listed: false,
            is_rewound: false,
            is_waiting: false,
            end: None,
        };
        let namespaces = self.namespaces();
        let of_kind = |kind: &'static WatchedKind| {
            watch_scopes(&namespaces).map(|namespace| scope(kind, namespace)).collect::<Vec<_>>()
        };
        let (store, selection) = (Arc::clone(&self.store), Arc::clone(&self.selection));
        Watches {
            scopes: S::KINDS.iter().flat_map(of_kind).collect(),
            names: Names::new(source, self.cluster.clone(), store, selection, self.link_reporter.clone()),
            guards: BTreeMap::new(),
        }
    }

    /// Starts to list and watch from the beginning, and ends the previous watch of this scope.
    fn begin<S: NameSource>(&self, number: usize, scope: &mut Scope) -> Tagged<S::Object> {
        let name = watch_name(scope.kind.watch, scope.namespace.as_deref());
        let name = self.cluster.as_ref().map_or(name.clone(), |cluster| format!("{cluster}:{name}"));
        let activity = self.staleness.watch(&name);
        scope.activity = Some(Arc::clone(&activity));
        scope.is_waiting = false;
        let query = RequestQuery {
            namespace: scope.namespace.clone(),
            version: scope.kind.versions.get(scope.version.index).copied(),
            first_list_pause: Some(FIRST_LIST_PAUSE),
            ..RequestQuery::default()
        };
        let (client, availability) = (self.client.clone(), self.availability.clone());
        let cluster = self.cluster.clone();
        let events =
            S::watch(scope.kind.kind, WatchRequest { cluster, client, query, activity, availability });
        let (events, end) = abortable(events.map(move |event| (number, event)));
        if let Some(before) = scope.end.replace(end) {
            before.abort();
        }
        events.boxed()
    }

    fn on_item<S: NameSource>(
        &self,
        watches: &mut Watches<S>,
        number: usize,
        item: Result<Event<Seen<S::Object>>, WatchError>,
    ) -> Next {
        let Watches { scopes, names, .. } = watches;
        let scope = &mut scopes[number];
        let kind = scope.kind.kind;
        // A proxy before a remote cluster may answer 404, too. With a CRD its objects end, one by one.
        let may_be_missing =
            |names: &Names<S>| self.cluster.is_none() || names.source.keys(kind, &names.state).is_empty();
        match &item {
            Err(error) if error.code() == 404 && !scope.kind.versions.is_empty() && may_be_missing(names) => {
                return scope.on_missing();
            }
            Ok(Event::ListBegins) | Err(_) => {}
            Ok(_) => scope.version = Version { index: scope.version.index, ..Version::default() },
        }
        let note = self.note_of(scope, &item, names.state.is_listed());
        let event = scope.log.log_failure(item);
        // After the log: a command that waits for a note may end the process.
        if let Some(note) = note {
            self.set_note::<S>(scope, note);
        }
        let Some(event) = event else { return Next::Continue };
        match event {
            Event::ListBegins => {
                scope.list.begin();
                scope.is_waiting = false;
                names.state.begin_list(kind, scope.namespace.as_deref());
            }
            Event::Resumed => {}
            Event::Listed(Seen { key, object, .. }) => {
                let id = ObjectId { key, kind };
                names.take_seen(&id, object);
                scope.list.see(id.key);
            }
            Event::ListEnds { rewound, .. } => {
                scope.is_waiting = true;
                scope.is_rewound |= rewound;
            }
            Event::Applied(Seen { key, object, .. }) => {
                if scope.is_waiting {
                    scope.list.see(key.clone());
                }
                names.take_seen(&ObjectId { key, kind }, object);
            }
            Event::Deleted(Seen { key, uid, .. }) => names.remove_seen(&ObjectId { key, kind }, &uid),
        }
        Next::Continue
    }

    fn forget_note<S: NameSource>(&self, scope: &Scope) {
        self.link_reporter.findings.readiness.sources.lock().remove(&self.key_of_note::<S>(scope));
    }

    fn key_of_note<S: NameSource>(&self, scope: &Scope) -> SourceList {
        let source = Source { cluster: self.cluster.clone(), ..S::SOURCE };
        (source, scope.kind.kind.api().1, scope.namespace.clone())
    }

    /// Returns the note for `/ready` why the objects can't be read, or that they can (`Some(None)`); `None` if the item
    /// doesn't tell.
    fn note_of<T>(
        &self,
        scope: &Scope,
        item: &Result<Event<T>, WatchError>,
        is_listed: bool,
    ) -> Option<Option<String>> {
        let error = match item {
            Ok(Event::ListBegins) => return None,
            Ok(_) => return Some(None),
            Err(error) => error,
        };
        if let Some(activity) = &scope.activity {
            activity.set_refused(error.code() == 403);
        }
        failure_note(scope, error, is_listed, self.cluster.as_deref()).map(Some)
    }

    fn set_note<S: NameSource>(&self, scope: &Scope, note: Option<String>) {
        let mut sources = self.link_reporter.findings.readiness.sources.lock();
        let key = self.key_of_note::<S>(scope);
        match note {
            Some(note) => sources.insert(key, note),
            None => sources.remove(&key),
        };
    }
}

/// What follows from an item of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    /// The watch begins again, with another version.
    Begin,
}

impl Scope {
    /// Takes the answer that the version of the resource isn't served. If no version is, that counts as an empty list.
    fn on_missing(&mut self) -> Next {
        let number = self.kind.versions.len();
        self.version.missing += 1;
        if self.version.missing < number {
            self.version.index = (self.version.index + 1) % number;
            return Next::Begin;
        }
        if let Some(activity) = &self.activity {
            activity.note();
        }
        if !std::mem::replace(&mut self.version.is_missing, true) {
            info!(
                "{} aren't served by the API server (no CRD); asked for again every {} s",
                self.kind.many,
                CONFIRM_AFTER.as_secs()
            );
        }
        self.version = Version { is_missing: true, ..Version::default() };
        self.list.begin();
        self.is_waiting = true;
        if let Some(end) = self.end.take() {
            end.abort();
        }
        Next::Continue
    }

    fn contains(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| *namespace == *key.namespace())
    }
}

/// Returns a sentence about a failure that keeps the objects from being read.
fn failure_note(scope: &Scope, error: &WatchError, is_listed: bool, cluster: Option<&str>) -> Option<String> {
    let what = scope.log.what();
    match error.code() {
        410 => None,
        code if scope.log.is_new_refusal(code) => None,
        0 if is_listed && cluster.is_some() => {
            let at = scope.activity.as_ref().map(|activity| format!(", after {}", read_at(activity)));
            let at = at.unwrap_or_default();
            Some(format!("the {what} are as they were read last{at}: the API server doesn't answer"))
        }
        // The age of what was read tells it.
        0 if is_listed => None,
        0 => Some(format!("the {what} haven't been read yet: the API server doesn't answer")),
        code => {
            let effect = match is_listed {
                true => "DNS answers with the names that were read last",
                false if scope.log.asks_once() => "their names are missing here",
                false => "names that aren't known get SERVFAIL",
            };
            let remedy = match cluster.filter(|_| code == 401) {
                Some(cluster) => format!("; renew those in the kubeconfig of --remote {cluster}"),
                None => String::new(),
            };
            Some(format!("{}{remedy}; {effect}", explain_watch(error, what, scope.log.hint())))
        }
    }
}

/// Returns when a watch was last known to bring each change, in steps of [`READ_STEP`] seconds: the note stays the same
/// over several failures.
fn read_at(activity: &LastActivity) -> Timestamp {
    let second = Timestamp::now().as_second().saturating_sub_unsigned(activity.age().as_secs());
    Timestamp::from_second(second - second.rem_euclid(READ_STEP)).unwrap_or_default()
}

impl<S: NameSource> Watches<S> {
    /// Lets all objects that matter be listed from the beginning, and forgets other ones. Returns the scopes to begin.
    fn begin_all(&mut self) -> Vec<usize> {
        let Self { scopes, names, .. } = self;
        let zones = Arc::clone(&names.state.rules.zones);
        let mut begun = Vec::new();
        for (number, scope) in scopes.iter_mut().enumerate() {
            let kind = scope.kind.kind;
            scope.is_read = S::reads(kind, &zones);
            scope.is_listed = !scope.is_read;
            scope.version.index = 0;
            if scope.is_read {
                begun.push(number);
                continue;
            }
            (scope.list, scope.is_waiting, scope.activity) = (GuardedList::default(), false, None);
            if let Some(end) = scope.end.take() {
                end.abort();
            }
            let mut known = names.source.keys(kind, &names.state);
            known.retain(|key| scope.contains(key));
            known.into_iter().for_each(|key| names.remove(&ObjectId { key, kind }));
        }
        begun
    }

    /// Returns when objects are to be listed again.
    fn list_at(&self) -> Option<Instant> {
        let confirm_at = self.scopes.iter().filter_map(|scope| scope.list.confirm_at);
        confirm_at.chain(self.names.state.list_at).min()
    }

    /// Takes the scopes whose objects are to be listed again now.
    fn take_due(&mut self) -> Vec<usize> {
        let is_due = |at: &mut Instant| *at <= Instant::now();
        let all = self.names.state.list_at.take_if(is_due).is_some();
        let mut due = Vec::new();
        for (number, scope) in self.scopes.iter_mut().enumerate() {
            if scope.list.confirm_at.take_if(is_due).is_some() || all && scope.is_read {
                scope.version.index = 0;
                due.push(number);
            }
        }
        due
    }

    /// Ends the lists that have waited.
    fn end_waiting(&mut self) {
        for number in 0..self.scopes.len() {
            if std::mem::take(&mut self.scopes[number].is_waiting) {
                self.end_list(number);
            }
        }
    }

    /// Removes what a complete list lacks, unless that is suspiciously much.
    fn end_list(&mut self, number: usize) {
        let Self { scopes, names, guards } = self;
        let scope = &mut scopes[number];
        let kind = scope.kind.kind;
        let known = names.source.keys(kind, &names.state);
        if scope.version.is_missing && scope.is_listed && known.is_empty() {
            // The resource is missing as before.
            scope.list.confirm_at = Some(Instant::now() + CONFIRM_AFTER);
            return;
        }
        let mut list = std::mem::take(&mut scope.list);
        let is_rewound = std::mem::take(&mut scope.is_rewound);
        let guard = Some(guards.entry(kind).or_default());
        let weight =
            |key: &ServiceKey| names.source.weight(&ObjectId { key: key.clone(), kind }, &names.state);
        let ListEnd { seen, gone, is_confirmed } = list.end(
            scope.log.what(),
            &known,
            |key| scope.contains(key),
            is_rewound,
            guard.map(|guard| (guard, weight)),
        );
        for key in gone {
            names.remove(&ObjectId { key, kind });
        }
        if is_confirmed {
            // Objects that can't be decoded have errors, too.
            names.state.errors(kind).retain(|key| !scope.contains(key) || seen.contains(key));
        }
        if scope.version.is_missing {
            list.confirm_at = Some(Instant::now() + CONFIRM_AFTER);
        }
        scope.list = list;
        scope.is_listed = true;
        if self.scopes.iter().all(|scope| scope.is_listed) {
            self.names.complete();
        }
    }
}

#[cfg(test)]
mod tests;
