//! ExternalName Services that follow a link because their annotation `linker.hsj.com/source` says
//! so, whatever they are called and wherever they are.
//!
//! Only their `spec.externalName` is ever written, and they are never deleted.

mod follower;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::api::Patch;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::desired::{Precondition, SOURCE};
use super::election::Leadership;
use super::events::{Reason, Regarding};
use super::object::Object;
use super::pace::Pace;
use super::plan::{Policy, SyncMode};
use super::selection::Selection;
use super::service::{EXTERNAL_NAME, Service};
use super::trouble::{Complaints, Outage, Trouble, WatchTrouble};
use super::watch::{guarded, key_of, readable};
use super::writer::{WriteError, patch_elsewhere};
use super::{News, SyncError};
use crate::store::{ServiceKey, Store};
use follower::{Follower, Wish};

/// Writes under way at once.
const MAX_WRITES: usize = 8;
/// What grants the right to write.
const RIGHT: &str = "the annotation linker.hsj.com/source needs the ClusterRole of deploy/source/";

/// What following needs.
#[derive(Clone)]
pub struct Settings {
    /// Where the links are.
    pub store: Arc<Store>,
    /// The client.
    pub client: Client,
    /// Where it is said that the API server is away.
    pub outage: Outage,
    /// The namespaces that are looked at, and the one with the external targets.
    pub selection: Arc<Selection>,
    /// What the user has decided.
    pub policy: Policy,
    /// Where what happens is told.
    pub news: News,
    /// Whether it may write.
    pub leadership: Leadership,
    /// The last term in which all load balancers have been listed.
    pub links_listed: watch::Receiver<u64>,
}

/// Runs until `stop`. Only who leads has anything to do here.
///
/// # Errors
/// If the Services can't be followed any more.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), SyncError> {
    let mut leadership = settings.leadership.clone();
    let mut links_listed = settings.links_listed.clone();
    loop {
        let term = leadership.current_term();
        if term == Some(*links_listed.borrow_and_update()) && settings.store.is_synced() {
            lead(&settings, term.unwrap_or_default(), &stop).await?;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = leadership.changed() => {}
            Ok(()) = links_listed.changed() => {}
        }
    }
}

/// Keeps the followers in step for as long as a term lasts.
async fn lead(settings: &Settings, term: u64, stop: &CancellationToken) -> Result<(), SyncError> {
    let mut feed = settings.store.subscribe();
    let mut leadership = settings.leadership.clone();
    let mut following = Following::new(settings.clone(), term);
    let mut events = following.watch();
    while leadership.current_term() == Some(term) && !stop.is_cancelled() {
        following.work();
        tokio::select! {
            () = stop.cancelled() => {}
            () = leadership.changed() => {}
            change = feed.recv() => match change {
                Ok(change) => following.link_changed(&change.key),
                Err(RecvError::Lagged(_)) => following.queue_all(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            event = events.next() => {
                let (number, event) = event.ok_or(SyncError::WatchEnded)?;
                following.heed(number, event);
            }
            key = following.pace.due() => following.queue(&key),
            Some(written) = following.writes.join_next() => following.written(written?),
        }
    }
    // A write that is under way ends with the lease, or in time.
    while let Some(written) = following.writes.join_next().await {
        following.written(written?);
    }
    Ok(())
}

/// A write that has ended.
#[derive(Debug)]
struct Written {
    before: Follower,
    name: String,
    code: u16,
    result: Result<Option<Object>, WriteError>,
}

/// A namespace that is looked at, or all.
struct Scope {
    namespace: Option<String>,
    trouble: WatchTrouble,
    /// The list as it comes in.
    list: Vec<Service>,
}

struct Following {
    settings: Settings,
    term: u64,
    scopes: Vec<Scope>,
    followers: HashMap<ServiceKey, Follower>,
    by_source: HashMap<ServiceKey, BTreeSet<ServiceKey>>,
    queue: BTreeSet<ServiceKey>,
    in_flight: HashSet<ServiceKey>,
    writes: JoinSet<Written>,
    pace: Pace,
    /// Followers as they were seen last of which the API server says that they have changed.
    outdated: HashMap<ServiceKey, Precondition>,
    planned: HashMap<ServiceKey, String>,
    complaints: Complaints,
    trouble: Trouble,
}

type Events = futures::stream::BoxStream<
    'static,
    (usize, kube::runtime::watcher::Result<Event<DeserializeGuard<Service>>>),
>;

impl Following {
    fn new(settings: Settings, term: u64) -> Self {
        let namespaces = &settings.selection.namespaces;
        let all: Vec<Option<String>> =
            if namespaces.is_empty() { vec![None] } else { namespaces.iter().cloned().map(Some).collect() };
        let scope = |namespace: Option<String>| {
            let place =
                namespace.as_ref().map_or("all namespaces".to_owned(), |one| format!("namespace {one}"));
            let what = format!("ExternalName Services in {place}");
            let hint = "lb-linker needs the ClusterRole of deploy/";
            let trouble = WatchTrouble::new(settings.outage.clone(), what, hint);
            Scope { namespace, trouble, list: Vec::new() }
        };
        Self {
            scopes: all.into_iter().map(scope).collect(),
            settings,
            term,
            followers: HashMap::new(),
            by_source: HashMap::new(),
            queue: BTreeSet::new(),
            in_flight: HashSet::new(),
            writes: JoinSet::new(),
            pace: Pace::default(),
            outdated: HashMap::new(),
            planned: HashMap::new(),
            complaints: Complaints::default(),
            trouble: Trouble::default(),
        }
    }

    fn watch(&self) -> Events {
        let watches = self.scopes.iter().enumerate().map(|(number, scope)| {
            let client = self.settings.client.clone();
            let api = match &scope.namespace {
                Some(namespace) => Api::namespaced(client, namespace),
                None => Api::all(client),
            };
            let events = guarded::<Service>(api, &format!("spec.type={EXTERNAL_NAME}"), "");
            events.map(move |event| (number, event)).boxed()
        });
        futures::stream::select_all(watches).boxed()
    }

    // === what is heard ===

    fn heed(
        &mut self,
        number: usize,
        event: kube::runtime::watcher::Result<Event<DeserializeGuard<Service>>>,
    ) {
        let scope = &mut self.scopes[number];
        match scope.trouble.unless_failed(event) {
            None => {}
            Some(Event::Init) => scope.list.clear(),
            Some(Event::InitApply(object)) => {
                // Nearly none of them follows anything.
                let service = readable(object, &mut self.complaints);
                scope.list.extend(service.filter(|service| service.annotation(SOURCE).is_some()));
            }
            Some(Event::InitDone) => {
                let (namespace, list) = (scope.namespace.clone(), std::mem::take(&mut scope.list));
                let known = self
                    .followers
                    .keys()
                    .filter(|key| namespace.as_ref().is_none_or(|namespace| *key.namespace == **namespace));
                for key in known.cloned().collect::<Vec<_>>() {
                    if !list.iter().any(|service| service.key() == key) {
                        self.drop(&key);
                    }
                }
                for service in list {
                    self.seen(&service);
                }
            }
            Some(Event::Apply(object)) => {
                if let Some(service) = readable(object, &mut self.complaints) {
                    self.seen(&service);
                }
            }
            Some(Event::Delete(object)) => self.drop(&key_of(&object)),
        }
    }

    fn seen(&mut self, service: &Service) {
        let key = service.key();
        let target_namespace = self.settings.selection.target_namespace.as_deref();
        match Follower::of(service, target_namespace) {
            Some(Ok(follower)) => {
                if self.followers.get(&key).is_some_and(|known| known.source != follower.source) {
                    self.drop(&key);
                }
                self.by_source.entry(follower.source.clone()).or_default().insert(key.clone());
                self.followers.insert(key.clone(), follower);
                self.queue(&key);
            }
            Some(Err(why)) => {
                self.drop(&key);
                self.complaints.set(&key, Some(why));
            }
            None => self.drop(&key),
        }
    }

    fn drop(&mut self, key: &ServiceKey) {
        self.complaints.set(key, None);
        self.planned.remove(key);
        self.outdated.remove(key);
        self.pace.forget(key);
        if let Some(follower) = self.followers.remove(key)
            && let Some(keys) = self.by_source.get_mut(&follower.source)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_source.remove(&follower.source);
            }
        }
    }

    fn link_changed(&mut self, link: &ServiceKey) {
        for key in self.by_source.get(link).cloned().unwrap_or_default() {
            self.queue(&key);
        }
    }

    fn queue_all(&mut self) {
        self.queue = self.followers.keys().cloned().collect();
    }

    fn queue(&mut self, key: &ServiceKey) {
        self.queue.insert(key.clone());
    }

    // === what is done ===

    fn work(&mut self) {
        while self.writes.len() < MAX_WRITES {
            let Some(key) = self.queue.pop_first() else { break };
            // When a write ends, its follower is looked at again anyway.
            if !self.in_flight.contains(&key) && !self.pace.rests(&key) {
                self.look_at(&key);
            }
        }
    }

    fn look_at(&mut self, key: &ServiceKey) {
        let Some(follower) = self.followers.get(key).cloned() else { return };
        let link = self.settings.store.get(&follower.source);
        let name = match follower.wish(link.as_deref(), &self.settings.policy) {
            Wish::Leave => {
                self.complaints.set(key, None);
                return;
            }
            Wish::Refuse(why) => return self.refuse(&follower, why),
            Wish::Write(name) => name,
        };
        self.complaints.set(key, None);
        if self.settings.policy.sync == SyncMode::Plan {
            if self.planned.get(key) != Some(&name) {
                info!("plan for Service {key}, which follows {}: patch → {name}", follower.source);
                self.planned.insert(key.clone(), name);
            }
            return;
        }
        if self.outdated.get(key) == Some(&follower.version) {
            return;
        }
        self.in_flight.insert(key.clone());
        let (client, outage) = (self.settings.client.clone(), self.settings.outage.clone());
        let (leadership, term) = (self.settings.leadership.clone(), self.term);
        self.writes.spawn(async move {
            let Precondition { uid, resource_version } = &follower.version;
            let patch = json!({
                "metadata": {"uid": uid, "resourceVersion": resource_version},
                "spec": {"externalName": name},
            });
            let patch = Patch::Merge(patch);
            let request = patch_elsewhere(client, &outage, &follower.key, &patch, RIGHT);
            let (code, result) =
                leadership.write(term, request).await.unwrap_or_else(|error| (0, Err(error.into())));
            Written { before: follower, name, code, result }
        });
    }

    fn refuse(&mut self, follower: &Follower, why: String) {
        let key = &follower.key;
        if self.complaints.set(key, Some(why.clone())) {
            let (namespace, name) = (key.namespace.clone(), key.name.clone());
            let uid = follower.version.uid.clone().unwrap_or_default().into();
            self.settings.news.recorder.record(
                Regarding { namespace, name, uid },
                Reason::TargetRefused,
                &why,
            );
        }
    }

    fn written(&mut self, Written { before, name, code, result }: Written) {
        let key = before.key;
        self.in_flight.remove(&key);
        self.settings
            .news
            .metrics
            .api_writes
            .with_label_values(&["patch", "Service", &code.to_string()])
            .inc();
        match result {
            Ok(after) => {
                info!("Service {key}, which follows {}: {} → {name}", before.source, before.name);
                self.trouble.over("Services that follow a load balancer can be written again");
                self.pace.succeeded(&key);
                if let (Some(Object::Service(service)), Some(known)) = (after, self.followers.get_mut(&key))
                    && known.version == before.version
                {
                    known.version = Precondition::of(&service.metadata);
                    known.name = service.spec.external_name.clone().unwrap_or_default();
                }
                self.queue(&key);
            }
            // Somebody was faster: the watch says how it is now.
            Err(WriteError::Conflict | WriteError::Gone) => {
                self.outdated.insert(key.clone(), before.version);
                self.queue(&key);
            }
            // The end of the term is the end of this.
            Err(WriteError::NotLeading(_)) => {}
            Err(WriteError::Unanswered) => drop(self.pace.failed(&key, None)),
            Err(WriteError::Everywhere { code, message, retry_after }) => {
                self.trouble.report(code, &message);
                self.pace.failed(&key, retry_after);
            }
            Err(WriteError::Other { message, retry_after }) => {
                let pause = self.pace.failed(&key, retry_after);
                warn!("Service {key}, which follows {}: {message}; next try in {pause:.1?}", before.source);
            }
        }
    }
}
