//! ExternalName Services that follow a link because their annotation `linker.hsj.com/source` says
//! so, whatever they are called and wherever they are.
//!
//! Only their `spec.externalName` is ever written, and they are never deleted.

mod decision;
mod deleted_links;
mod index;
mod places;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{AbortHandle, SelectAll, abortable};
use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::controller::supervisor::SyncError;
use super::controller::work_queue::Pace;
use super::election::Leadership;
use super::events::link_log::News;
use super::events::{Reason, Regarding};
use super::external_target::decision::{Policy, SyncMode};
use super::external_target::desired::Precondition;
use super::external_target::reconciler::FAREWELL;
use super::k8s::errors::{Complaints, Outage};
use super::k8s::labels::SOURCE;
use super::k8s::listed::{LinkLists, Listed};
use super::k8s::refusals::Refusals;
use super::k8s::rewinds::Rewinds;
use super::k8s::service::Service;
use super::k8s::watch::{Item, in_namespace, list_watch};
use super::source::selection::Selection;
use crate::metrics::staleness::Staleness;
use crate::model::link::LinkChange;
use crate::model::service_key::ServiceKey;
use crate::store::Store;
use crate::sync::k8s::metrics::ApiMetrics;
use decision::{Follower, Wish};
use deleted_links::Departed;
use index::{FORBIDDEN, Followers, Heard};
use places::{Place, Places};
use write::Written;

/// Writes under way at once.
const MAX_WRITES: usize = 8;
/// How long a load balancer may come later than what follows it, as when both are applied together.
const LATENESS: Duration = Duration::from_secs(5);

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
    /// What is counted of its writes.
    pub api: Arc<ApiMetrics>,
    /// How old what its watches have heard is.
    pub staleness: Arc<Staleness>,
    /// Whether it may write.
    pub leadership: Leadership,
    /// Which lists of load balancers are complete.
    pub links_listed: watch::Receiver<LinkLists>,
    /// How often etcd was restored.
    pub rewinds: Rewinds,
}

/// Runs until `stop`. Only the leader has anything to do here.
///
/// # Errors
/// If the Services can't be followed any more.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), SyncError> {
    let mut feed = settings.store.subscribe();
    let mut memory = Memory::default();
    memory.departed.look_again(&settings.store);
    let mut leadership = settings.leadership.clone();
    let mut links_listed = settings.links_listed.clone();
    loop {
        let lists = |term| Listed { term, rewinds: settings.rewinds.count() };
        let lists = leadership.current_term().map(lists);
        let is_settled = |lists: &Listed| links_listed.borrow_and_update().is_settled(*lists);
        if let Some(lists) = lists.filter(is_settled)
            && settings.store.is_synced()
        {
            memory = lead(&settings, &mut feed, memory, lists, &stop).await?;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = leadership.changed() => {}
            Ok(()) = links_listed.changed() => {}
            change = feed.recv() => match change {
                Ok(change) => memory.departed.heed(&change, &settings.store),
                Err(RecvError::Lagged(_)) => memory.departed.look_again(&settings.store),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
        }
    }
}

/// Keeps the followers in step for as long as a term lasts and etcd isn't restored: then everything is listed anew.
async fn lead(
    settings: &Settings,
    feed: &mut broadcast::Receiver<LinkChange>,
    memory: Memory,
    lists: Listed,
    stop: &CancellationToken,
) -> Result<Memory, SyncError> {
    let mut leadership = settings.leadership.clone();
    let mut links_listed = settings.links_listed.clone();
    let rewinds = settings.rewinds.clone();
    let mut following = Following::new(settings.clone(), memory, lists);
    let mut events: SelectAll<Events> = (0..following.followers.number_of_scopes())
        .map(|number| following.watch(number, Duration::ZERO))
        .collect();
    while following.is_current() && !stop.is_cancelled() {
        following.work();
        tokio::select! {
            () = stop.cancelled() => {}
            () = leadership.changed() => {}
            () = rewinds.beyond(lists.rewinds) => {}
            Ok(()) = links_listed.changed() => following.queue_all(),
            change = feed.recv() => match change {
                Ok(change) => following.link_changed(&change),
                Err(RecvError::Lagged(_)) => following.look_again(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            event = events.next() => {
                let (number, event) = event.ok_or(SyncError::WatchEnded)?;
                if let Some(pause) = following.heed(number, event) {
                    events.push(following.watch(number, pause));
                }
            }
            key = following.pace.due() => following.queue(&key),
            () = following.places.due(), if following.writes.len() < MAX_WRITES => {}
            Some(written) = following.writes.join_next() => following.written(written?),
        }
    }
    let farewell = async {
        while let Some(written) = following.writes.join_next().await {
            following.written(written?);
        }
        Ok::<_, SyncError>(())
    };
    // A write without an answer delays neither the stop nor another term.
    tokio::time::timeout(FAREWELL, farewell).await.unwrap_or(Ok(()))?;
    Ok(following.memory)
}

/// What outlives a term.
#[derive(Debug, Default)]
struct Memory {
    /// What is wrong with single followers, as it was said.
    complaints: Complaints,
    departed: Departed,
}

struct Following {
    settings: Settings,
    memory: Memory,
    /// What the lists are good for that writes rest on.
    lists: Listed,
    followers: Followers,
    /// What ends the watch of each scope.
    watches: HashMap<usize, AbortHandle>,
    queue: BTreeSet<ServiceKey>,
    /// Followers with a write under way, and whether what it is about has changed meanwhile.
    in_flight: HashMap<ServiceKey, bool>,
    writes: JoinSet<Written>,
    /// A write is about the name that is wanted.
    pace: Pace<String>,
    places: Places,
    refusals: Refusals,
    /// Followers as they were seen last of which the API server says that they have changed.
    outdated: HashMap<ServiceKey, (Precondition, Instant)>,
    planned: HashMap<ServiceKey, String>,
    /// Followers that haven't been looked at since the term began: how they stand is no news.
    old_news: HashSet<ServiceKey>,
    /// Followers whose load balancer has been there.
    resolved: HashSet<ServiceKey>,
    /// Followers whose load balancer hasn't, and since when that is known.
    unknown: HashMap<ServiceKey, Instant>,
}

type Events = futures::stream::BoxStream<'static, (usize, Item<Service>)>;

impl Following {
    fn new(settings: Settings, memory: Memory, lists: Listed) -> Self {
        Self {
            followers: Followers::new(&settings.selection, &settings.outage),
            watches: HashMap::new(),
            settings,
            memory,
            lists,
            queue: BTreeSet::new(),
            in_flight: HashMap::new(),
            writes: JoinSet::new(),
            pace: Pace::default(),
            places: Places::default(),
            refusals: Refusals::default(),
            outdated: HashMap::new(),
            planned: HashMap::new(),
            old_news: HashSet::new(),
            resolved: HashSet::new(),
            unknown: HashMap::new(),
        }
    }

    /// Returns whether the term lasts, and etcd hasn't been restored since it was listed what is known.
    fn is_current(&self) -> bool {
        let Listed { term, rewinds } = self.lists;
        self.settings.leadership.current_term() == Some(term) && self.settings.rewinds.count() == rewinds
    }

    /// Begins to list and watch a scope after a pause; what was followed there before isn't any more.
    fn watch(&mut self, number: usize, pause: Duration) -> Events {
        let query = self.followers.query(number);
        let (client, staleness) = (self.settings.client.clone(), Arc::clone(&self.settings.staleness));
        let events = async move {
            tokio::time::sleep(pause).await;
            // Meanwhile there is no watch that could be too old.
            let sign = staleness.watch(&in_namespace("sources", query.namespace.as_deref()));
            list_watch::<Service>(client, query, sign)
        };
        let (events, end) = abortable(events.flatten_stream().map(move |event| (number, event)));
        if let Some(before) = self.watches.insert(number, end) {
            before.abort();
        }
        events.boxed()
    }

    // === what is heard ===

    /// Takes over what a watch says. Returns whether it has to begin anew, and after how long.
    fn heed(&mut self, number: usize, event: Item<Service>) -> Option<Duration> {
        let was_listed = self.followers.is_listed(number);
        let mut anew = None;
        for heard in self.followers.heed(number, event, &mut self.memory.complaints) {
            match heard {
                Heard::Answer => self.open(&Place::Everywhere),
                Heard::Rewound(what) if self.is_current() => self.settings.rewinds.note(&what),
                // Another watch has noticed it, or this replica leads no more.
                Heard::Rewound(_) => {}
                Heard::Used => anew = Some(Duration::ZERO),
                Heard::Forbidden => anew = Some(FORBIDDEN),
                Heard::Follower(key) => self.queue(&key),
                Heard::NoFollower(key) => {
                    self.forget(&key);
                    self.memory.complaints.set(&key, None);
                }
                Heard::Malformed { key, uid, why } => {
                    self.forget(&key);
                    self.complain(&key, &uid, &why, was_listed);
                }
            }
        }
        if !was_listed && self.followers.is_listed(number) {
            self.old_news.extend(self.followers.within(number).cloned());
        }
        anew
    }

    fn link_changed(&mut self, change: &LinkChange) {
        self.memory.departed.heed(change, &self.settings.store);
        let keys: Vec<ServiceKey> = self.followers.of(&change.key).cloned().collect();
        for key in keys {
            if change.target_change().is_some() {
                // What failed was about the old target.
                self.pace.stop_waiting(&key);
                self.pace.succeeded(&key);
                if let Some(changed) = self.in_flight.get_mut(&key) {
                    *changed = true;
                }
            }
            self.queue(&key);
        }
    }

    /// Looks at all links and followers, because changes have been missed.
    fn look_again(&mut self) {
        self.memory.departed.look_again(&self.settings.store);
        self.pace.resume_all();
        self.queue_all();
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.planned.remove(key);
        self.outdated.remove(key);
        self.old_news.remove(key);
        self.resolved.remove(key);
        self.unknown.remove(key);
        self.pace.forget(key);
        self.places.forget(key);
        if let Some(changed) = self.in_flight.get_mut(key) {
            *changed = true;
        }
    }

    fn queue_all(&mut self) {
        self.queue = self.followers.keys().cloned().collect();
    }

    fn queue(&mut self, key: &ServiceKey) {
        self.queue.insert(key.clone());
    }

    // === what is done ===

    /// Looks at queued followers and starts writes, as many as may be under way.
    fn work(&mut self) {
        while self.is_current() && self.writes.len() < MAX_WRITES {
            let Some(key) = self.queue.pop_first().or_else(|| self.places.next_probe()) else { break };
            // When a write ends, its follower is looked at again anyway.
            if !self.in_flight.contains_key(&key) && !self.pace.rests(&key) {
                self.look_at(&key);
            }
        }
    }

    /// Looks at a follower. A defect that only one follower brings to light costs only that one.
    fn look_at(&mut self, key: &ServiceKey) {
        let looked = catch_unwind(AssertUnwindSafe(|| {
            if let Some(follower) = self.followers.get(key).cloned() {
                #[cfg(test)]
                super::external_target::reconciler::defect::strike(key);
                self.follow(follower);
            }
        }));
        if looked.is_err() {
            let pause = self.pace.failed(key, None);
            error!(
                "Service {key}: its following has panicked, a defect of lb-linker; next try in {pause:.1?}"
            );
        }
    }

    fn follow(&mut self, follower: Follower) {
        let (key, source) = (&follower.key, &follower.source);
        self.pace.stop_waiting(key);
        // All are looked at again when the load balancers of that namespace have been listed.
        if !self.settings.links_listed.borrow().covers(source.namespace(), self.lists) {
            return;
        }
        let store = &self.settings.store;
        let (link, gone) = (store.get(source), self.memory.departed.get(source));
        if gone.is_some() || store.contains(source) {
            self.resolved.insert(key.clone());
            self.unknown.remove(key);
        } else if !self.resolved.contains(key) {
            return self.unknown(&follower);
        }
        let is_news = !self.old_news.remove(key);
        let wish = follower.wish(link.as_deref(), gone, &self.settings.policy);
        if !matches!(wish, Wish::Refuse(_)) {
            self.memory.complaints.set(key, None);
        }
        if !matches!(wish, Wish::Write(_)) {
            self.pace.succeeded(key);
            self.planned.remove(key);
        }
        match (wish, self.settings.policy.sync) {
            (Wish::Leave, _) => {}
            (Wish::Refuse(why), _) => {
                let uid = follower.version.uid.as_deref().unwrap_or_default();
                self.complain(key, uid, &why, is_news);
            }
            (Wish::Write(name), SyncMode::Plan) => {
                if self.planned.get(key) != Some(&name) {
                    info!("plan for Service {key}, which follows {source}: patch → {name}");
                    self.planned.insert(key.clone(), name);
                }
            }
            (Wish::Write(name), _) => self.start(follower, name),
        }
    }

    /// Says of a follower that there is no such load balancer, and hasn't been.
    fn unknown(&mut self, follower: &Follower) {
        let key = &follower.key;
        let since = self.unknown.entry(key.clone()).or_insert_with(Instant::now).elapsed();
        let is_news = !self.old_news.contains(key);
        if is_news && since < LATENESS {
            return self.pace.wait(key.clone(), LATENESS.saturating_sub(since));
        }
        let why = format!(
            "annotation {SOURCE} names {}, which is no load balancer that lb-linker follows",
            follower.source
        );
        self.old_news.remove(key);
        self.complain(key, follower.version.uid.as_deref().unwrap_or_default(), &why, is_news);
    }

    fn complain(&mut self, key: &ServiceKey, uid: &str, why: &str, is_news: bool) {
        if self.memory.complaints.set(key, Some(why.to_owned())) && is_news {
            self.settings.news.recorder.record(Regarding::new(key, uid), Reason::TargetRefused, why);
        }
    }
}

#[cfg(test)]
mod run_tests;
