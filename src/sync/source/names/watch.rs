//! Reads the objects of a source from the API server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use super::object::NamedObject;
use super::state::NameState;
use crate::metrics::staleness::{LastActivity, Staleness};
use crate::model::excerpt::examples;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};
use crate::sync::events::link_log::LinkReporter;
use crate::sync::k8s::errors::{ApiAvailability, WatchLog, explain_watch, in_place, watch_scopes};
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::k8s::watch::item::WatchError;
use crate::sync::k8s::watch::{
    Event, RequestQuery, WatchItem, key_of, list_watch, readable, sleep_until_opt, watch_name,
};
use crate::sync::source::relist_guard::{CONFIRM_AFTER, RelistGuard};
use crate::sync::source::selection::Selection;
use crate::sync::task::supervisor::SyncError;

/// The longest pause before the first list is requested again: names that aren't known get SERVFAIL until then.
const FIRST_LIST_PAUSE: Duration = Duration::from_secs(2);

/// Keeps the names of a source up to date.
#[derive(Clone)]
pub struct NameWatcher {
    pub client: Client,
    pub availability: ApiAvailability,
    pub selection: Arc<Selection>,
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    pub store: Arc<Store>,
    pub link_reporter: LinkReporter,
    pub staleness: Arc<Staleness>,
    pub rewinds: RestoreCounter,
}

/// The watch of a namespace, or of all.
struct Scope {
    namespace: Option<String>,
    log: WatchLog,
    activity: Option<Arc<LastActivity>>,
    /// The objects of the list that has begun.
    seen: HashSet<ServiceKey>,
    /// Whether a list is complete since the rules have changed.
    is_listed: bool,
    /// Whether a complete list waits for the load balancers: their names go before, and targets may depend on them.
    is_waiting: bool,
    /// When a suspicious list has to be confirmed by another one.
    confirm_at: Option<Instant>,
    /// Ends the watch before.
    end: Option<AbortHandle>,
}

/// The watches of a source, and its objects.
struct Watches<K> {
    scopes: Vec<Scope>,
    state: NameState<K>,
    guard: RelistGuard,
}

type Tagged<K> = BoxStream<'static, (usize, WatchItem<K>)>;

impl NameWatcher {
    /// Follows the objects of a kind.
    ///
    /// # Errors
    /// If a watch ends, which should never happen.
    pub async fn follow<K: NamedObject>(&self) -> Result<(), SyncError> {
        let mut feed = self.store.subscribe();
        let (mut zones, mut policies) = (self.store.watch_zones(), self.hostname_policy.clone());
        let mut watches = self.watches::<K>();
        loop {
            let (zones_now, policy) =
                (Arc::clone(&zones.borrow_and_update()), Arc::clone(&policies.borrow_and_update()));
            watches.state.set_rules(zones_now, policy);
            let (rewinds, mut events) = (self.rewinds.count(), SelectAll::new());
            for (number, scope) in watches.scopes.iter_mut().enumerate() {
                scope.is_listed = false;
                events.push(self.begin(number, scope));
            }
            loop {
                let confirm_at = watches.scopes.iter().filter_map(|scope| scope.confirm_at).min();
                let is_waiting = watches.scopes.iter().any(|scope| scope.is_waiting);
                tokio::select! {
                    Ok(()) = zones.changed() => {
                        if !watches.state.has_zones(&zones.borrow()) {
                            break;
                        }
                    }
                    Ok(()) = policies.changed() => break,
                    () = self.rewinds.wait_for_change(rewinds) => break,
                    item = events.next() => {
                        let (number, item) = item.ok_or(SyncError::WatchEnded)?;
                        self.on_item(&mut watches, number, item);
                    }
                    () = self.store.known(Input::Services), if is_waiting => {
                        for number in 0..watches.scopes.len() {
                            if std::mem::take(&mut watches.scopes[number].is_waiting) {
                                watches.end_list(number);
                            }
                        }
                    }
                    () = sleep_until_opt(confirm_at) => {
                        for (number, scope) in watches.scopes.iter_mut().enumerate() {
                            if scope.confirm_at.take_if(|at| *at <= Instant::now()).is_some() {
                                events.push(self.begin(number, scope));
                            }
                        }
                    }
                    () = sleep_until_opt(watches.state.recheck_at) => watches.state.recheck(),
                    change = feed.recv() => match change {
                        Ok(change) => watches.state.on_change(&change),
                        Err(RecvError::Lagged(_)) => watches.state.check_all(),
                        Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
                    },
                }
            }
        }
    }

    fn watches<K: NamedObject>(&self) -> Watches<K> {
        let scope = |namespace: Option<&str>| Scope {
            namespace: namespace.map(ToOwned::to_owned),
            log: WatchLog::new(self.availability.clone(), in_place(K::MANY, namespace), K::HINT),
            activity: None,
            seen: HashSet::new(),
            is_listed: false,
            is_waiting: false,
            confirm_at: None,
            end: None,
        };
        let (store, selection) = (Arc::clone(&self.store), Arc::clone(&self.selection));
        Watches {
            scopes: watch_scopes(&self.selection.namespaces).map(scope).collect(),
            state: NameState::new(store, selection, self.link_reporter.clone()),
            guard: RelistGuard::default(),
        }
    }

    /// Starts to list and watch from the beginning, and ends the previous watch of this scope.
    fn begin<K: NamedObject>(&self, number: usize, scope: &mut Scope) -> Tagged<K> {
        let activity = self.staleness.watch(&watch_name(K::WATCH, scope.namespace.as_deref()));
        scope.activity = Some(Arc::clone(&activity));
        scope.is_waiting = false;
        let query = RequestQuery {
            namespace: scope.namespace.clone(),
            first_list_pause: Some(FIRST_LIST_PAUSE),
            ..RequestQuery::default()
        };
        let events = list_watch::<K>(self.client.clone(), query, activity, self.availability.clone());
        let (events, end) = abortable(events.map(move |event| (number, event)));
        if let Some(before) = scope.end.replace(end) {
            before.abort();
        }
        events.boxed()
    }

    fn on_item<K: NamedObject>(&self, watches: &mut Watches<K>, number: usize, item: WatchItem<K>) {
        let Watches { scopes, state, .. } = watches;
        let scope = &mut scopes[number];
        self.note::<K>(scope, &item, state.is_listed());
        let Some(event) = scope.log.log_failure(item) else { return };
        match event {
            Event::ListBegins => {
                scope.seen.clear();
                scope.is_waiting = false;
                state.begin_list(scope.namespace.as_deref());
            }
            Event::Resumed => {}
            Event::Listed(object) => {
                let key = key_of(&object);
                match readable(object, state.errors()) {
                    Some(object) => state.apply(object),
                    None => state.set_unreadable(&key),
                }
                scope.seen.insert(key);
            }
            Event::ListEnds { .. } => scope.is_waiting = true,
            Event::Applied(object) => {
                if scope.is_waiting {
                    scope.seen.insert(key_of(&object));
                }
                if let Some(object) = readable(object, state.errors()) {
                    state.apply(object);
                    state.publish();
                }
            }
            Event::Deleted(object) => {
                state.remove(&key_of(&object));
                state.publish();
            }
        }
    }

    /// Notes for `/ready` why the objects can't be read.
    fn note<K: NamedObject>(&self, scope: &Scope, item: &WatchItem<K>, is_listed: bool) {
        let mut sources = self.link_reporter.findings.readiness.sources.lock();
        let key = (K::KIND.api().1, scope.namespace.clone());
        let error = match item {
            Ok(Event::ListBegins) => return,
            Ok(_) => return drop(sources.remove(&key)),
            Err(error) => error,
        };
        if let Some(activity) = &scope.activity {
            activity.set_refused(error.code() == 403);
        }
        if let Some(note) = failure_note::<K>(scope.namespace.as_deref(), error, is_listed) {
            sources.insert(key, note);
        }
    }
}

/// Returns a sentence about a failure that keeps the objects from being read.
fn failure_note<K: NamedObject>(
    namespace: Option<&str>,
    error: &WatchError,
    is_listed: bool,
) -> Option<String> {
    let what = in_place(K::MANY, namespace);
    match error.code() {
        410 => None,
        0 if is_listed => None,
        0 => Some(format!("the {what} haven't been read yet: the API server doesn't answer")),
        _ => {
            let effect = match is_listed {
                true => "DNS answers with the names that were read last",
                false => "names that aren't known get SERVFAIL",
            };
            Some(format!("{}; {effect}", explain_watch(error, &what, K::HINT)))
        }
    }
}

impl<K: NamedObject> Watches<K> {
    /// Removes what a complete list lacks, unless that is suspiciously much.
    fn end_list(&mut self, number: usize) {
        let scope = &mut self.scopes[number];
        let (known, seen) = (self.state.keys(), std::mem::take(&mut scope.seen));
        let namespace = scope.namespace.clone();
        let within = |key: &ServiceKey| namespace.as_deref().is_none_or(|it| *it == *key.namespace());
        let missing: HashSet<ServiceKey> =
            known.difference(&seen).filter(|key| within(key)).cloned().collect();
        let kept = self.guard.keeps(known.len(), &missing, within, Instant::now().into_std());
        missing.difference(&kept).for_each(|key| self.state.remove(key));
        scope.confirm_at = (!kept.is_empty()).then(|| Instant::now() + CONFIRM_AFTER);
        if !kept.is_empty() {
            warn!(
                "the list of {} lacks suspiciously many that were there: {}; DNS answers as before until a second \
                 list, {CONFIRM_AFTER:?} later, confirms it",
                scope.log.what(),
                examples(kept.iter())
            );
        }
        scope.is_listed = true;
        if kept.is_empty() {
            // Objects that can't be decoded have errors, too.
            self.state.errors().retain(|key| !within(key) || seen.contains(key));
        }
        self.state.publish();
        if self.scopes.iter().all(|scope| scope.is_listed) {
            self.state.end_lists();
        }
    }
}
