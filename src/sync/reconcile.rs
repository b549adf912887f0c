//! The reconciler: makes the external targets match the links.
//!
//! Level-triggered: whatever happened, a link is looked at again and the one write that brings
//! its object closer is made. At most one write per link is under way, and one link's trouble
//! holds up no other.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::time::{DelayQueue, delay_queue};
use tracing::{info, warn};

use super::desired::{Step, Write, labelled_for, next_step, points_at, written_by_us};
use super::objects::Objects;
use super::selection::Selection;
use super::service::Service;
use super::trouble::Trouble;
use super::writer::{Keeper, ObjectEvent, WriteError};
use super::{SyncError, log_change};
use crate::metrics::Metrics;
use crate::store::{ServiceKey, Store};

/// Writes under way at once: each is a connection, and the API server has other clients too.
const MAX_WRITES: usize = 16;
/// The first and the longest pause after a failed write of a link.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long writes under way may take to end when lb-linker is told to stop.
const FAREWELL: Duration = Duration::from_secs(5);
/// The farthest moment a timer is set for: the timer wheel ends at some two years.
const FARTHEST: Duration = Duration::from_secs(24 * 3600);

/// What the reconciler needs.
#[derive(Clone)]
pub struct Settings {
    /// Where the links are.
    pub store: Arc<Store>,
    /// Where the external targets are.
    pub keeper: Keeper,
    /// Which Services become links: the external targets of others aren't ours to touch.
    pub selection: Arc<Selection>,
    /// How long an external target outlives its Service.
    pub delete_delay: Duration,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Runs until `stop`; then lets the writes under way end.
///
/// # Errors
/// If the objects can't be followed any more.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), SyncError> {
    let mut feed = settings.store.subscribe();
    let mut events = settings.keeper.events();
    let mut reconciler = Reconciler::new(settings);
    reconciler.count_conflicts();
    // Nothing is written before both lists are complete.
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = reconciler.settings.store.synced(), if reconciler.listed => break,
            event = events.next() => reconciler.observe(event.ok_or(SyncError::WatchEnded)?),
        }
    }
    reconciler.adopt_departed();
    reconciler.queue_all();
    loop {
        reconciler.work();
        tokio::select! {
            () = stop.cancelled() => break,
            change = feed.recv() => match change {
                Ok(change) => reconciler.queue(&change.key),
                Err(RecvError::Lagged(_)) => reconciler.queue_all(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            event = events.next() => reconciler.observe(event.ok_or(SyncError::WatchEnded)?),
            Some(due) = reconciler.timers.next() => reconciler.due(due.into_inner()),
            Some(written) = reconciler.writes.join_next() => reconciler.written(written?),
        }
    }
    let farewell = async { while reconciler.writes.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        warn!("stopping although some writes to the API server haven't been answered");
    }
    Ok(())
}

/// A write that has ended.
#[derive(Debug)]
struct Written {
    key: ServiceKey,
    write: Write,
    code: u16,
    result: Result<Option<Service>, WriteError>,
}

struct Reconciler {
    settings: Settings,
    objects: Objects,
    listed: bool,
    queue: VecDeque<ServiceKey>,
    queued: HashSet<ServiceKey>,
    /// Links with a write under way, and whether they changed meanwhile.
    in_flight: HashMap<ServiceKey, bool>,
    writes: JoinSet<Written>,
    timers: DelayQueue<ServiceKey>,
    timer_of: HashMap<ServiceKey, delay_queue::Key>,
    backoff: HashMap<ServiceKey, ExponentialBackoff>,
    /// Which link wants the object of a name.
    wanted: HashMap<String, ServiceKey>,
    /// Objects, with the version last seen, of which the API server says that it isn't the newest:
    /// they aren't written before the watch has delivered another.
    outdated: HashMap<String, Option<String>>,
    conflicts: BTreeMap<ServiceKey, String>,
    trouble: Trouble,
}

impl Reconciler {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            objects: Objects::default(),
            listed: false,
            queue: VecDeque::new(),
            queued: HashSet::new(),
            in_flight: HashMap::new(),
            writes: JoinSet::new(),
            timers: DelayQueue::new(),
            timer_of: HashMap::new(),
            backoff: HashMap::new(),
            wanted: HashMap::new(),
            outdated: HashMap::new(),
            conflicts: BTreeMap::new(),
            trouble: Trouble::default(),
        }
    }

    // === what is heard ===

    fn observe(&mut self, event: ObjectEvent) {
        match event {
            ObjectEvent::Listed(list) => self.take_list(list),
            ObjectEvent::Unseen => self.settings.store.set_holders_known(),
            ObjectEvent::Applied(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                self.change_object(&name, |objects| objects.apply(*object));
            }
            ObjectEvent::Deleted { name, uid } => {
                self.change_object(&name, |objects| objects.remove(&name, &uid));
            }
        }
    }

    fn take_list(&mut self, list: Vec<Service>) {
        let store = Arc::clone(&self.settings.store);
        let before: Vec<String> = self.objects.names().cloned().collect();
        self.objects.replace(list);
        self.outdated.clear();
        for name in before.iter().filter(|name| self.objects.get(name).is_none()) {
            store.set_holder(name, None);
        }
        for name in self.objects.names() {
            let object = self.objects.get(name);
            let holder = object.and_then(|object| labelled_for(object));
            if let (Some(holder), Some(target)) = (&holder, object.and_then(|object| points_at(object))) {
                store.set_last_target(holder, target);
            }
            store.set_holder(name, holder.as_ref());
        }
        store.set_holders_known();
        if self.listed {
            self.adopt_departed();
            self.queue_all();
        }
        self.listed = true;
    }

    /// Changes what is known of the object of this name, and queues the links that it mattered to
    /// before and matters to now.
    fn change_object(&mut self, name: &str, change: impl FnOnce(&mut Objects)) {
        self.queue_concerned(name);
        change(&mut self.objects);
        let holder = self.objects.get(name).and_then(|object| labelled_for(object));
        self.settings.store.set_holder(name, holder.as_ref());
        self.queue_concerned(name);
    }

    /// Queues the links that the object of this name matters to, as it is now known.
    fn queue_concerned(&mut self, name: &str) {
        if !self.listed {
            return;
        }
        let labelled = self.objects.get(name).and_then(|object| labelled_for(object));
        let wanted = self.wanted.get(name).cloned();
        for key in [labelled, wanted].into_iter().flatten() {
            self.queue(&key);
        }
    }

    /// An object of ours whose Service is gone since a time when nobody watched.
    fn adopt_departed(&mut self) {
        let store = &self.settings.store;
        for key in self.objects.links().filter(|key| self.settings.selection.watches(&key.namespace)) {
            if let Some(change) = store.insert_gone(key) {
                info!("link {}: its Service is gone, its external target is still there", change.key);
            }
        }
    }

    fn queue_all(&mut self) {
        for link in self.settings.store.links() {
            self.queue(&link.key);
        }
    }

    fn queue(&mut self, key: &ServiceKey) {
        if let Some(changed) = self.in_flight.get_mut(key) {
            *changed = true;
        } else if self.queued.insert(key.clone()) {
            self.queue.push_back(key.clone());
        }
    }

    fn due(&mut self, key: ServiceKey) {
        self.timer_of.remove(&key);
        self.queue(&key);
    }

    // === what is done ===

    /// Looks at queued links and starts writes, as many as may be under way.
    fn work(&mut self) {
        while self.writes.len() < MAX_WRITES {
            let Some(key) = self.queue.pop_front() else { break };
            self.queued.remove(&key);
            // A link that waits after a failed write is looked at when its time comes.
            if self.backoff.contains_key(&key) && self.timer_of.contains_key(&key) {
                continue;
            }
            self.look_at(key);
        }
    }

    fn look_at(&mut self, key: ServiceKey) {
        self.stop_timer(&key);
        let Some(link) = self.settings.store.get(&key) else {
            self.clear_conflict(&key);
            return;
        };
        self.wanted.insert(link.external_target.to_string(), key.clone());
        let named = self.objects.get(&link.external_target).cloned();
        let others: Vec<Arc<Service>> = self
            .objects
            .of_link(&key)
            .filter(|object| object.metadata.name.as_deref() != Some(&*link.external_target))
            .filter(|object| written_by_us(object))
            .cloned()
            .collect();
        let others: Vec<&Service> = others.iter().map(|object| &**object).collect();
        let now = Instant::now();
        let step = next_step(&link, named.as_deref(), &others, self.settings.delete_delay, now);
        if !matches!(step, Step::Conflict { .. }) {
            self.clear_conflict(&key);
        }
        if !matches!(step, Step::Write(_)) {
            self.backoff.remove(&key);
        }
        match step {
            Step::Done => {}
            Step::Forget => {
                self.wanted.remove(&*link.external_target);
                if let Some(change) = self.settings.store.forget(&key) {
                    log_change(&self.settings.metrics, &change);
                }
            }
            Step::Wait(due) => self.start_timer(key, due.saturating_duration_since(now)),
            Step::Conflict { object, why } => self.set_conflict(&key, &object, &why),
            Step::Write(write) => self.start(key, write),
        }
    }

    fn start(&mut self, key: ServiceKey, write: Write) {
        let seen = self.version_of(write.object());
        match self.outdated.get(write.object()) {
            Some(outdated) if *outdated == seen => return,
            Some(_) => drop(self.outdated.remove(write.object())),
            None => {}
        }
        self.in_flight.insert(key.clone(), false);
        let keeper = self.settings.keeper.clone();
        self.writes.spawn(async move {
            let (code, result) = keeper.write(write.clone()).await;
            Written { key, write, code, result }
        });
    }

    fn version_of(&self, object: &str) -> Option<String> {
        self.objects.get(object)?.metadata.resource_version.clone()
    }

    fn written(&mut self, written: Written) {
        let Written { key, write, code, result } = written;
        let changed = self.in_flight.remove(&key).unwrap_or(false);
        if matches!(self.settings.keeper, Keeper::Namespace { .. }) {
            let labels = [write.verb(), "Service", &code.to_string()];
            self.settings.metrics.api_writes.with_label_values(&labels).inc();
        }
        let object = self.settings.keeper.describe(write.object());
        match result {
            Ok(after) => {
                self.backoff.remove(&key);
                self.trouble.over("external targets can be written again");
                self.log_write(&object, &write, after.as_ref());
                self.change_object(write.object(), |objects| match after {
                    Some(after) => objects.apply(after),
                    None => objects.removed_by_us(write.object()),
                });
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Delete { .. }) => {
                self.backoff.remove(&key);
                self.change_object(write.object(), |objects| objects.removed_by_us(write.object()));
                self.queue(&key);
            }
            Err(WriteError::Conflict | WriteError::Gone) => {
                // Somebody was faster. The watch says how the object is now, and unless it has
                // done so already nothing is tried before.
                let sent = write.resource_version().map(ToOwned::to_owned);
                if self.version_of(write.object()) == sent {
                    self.outdated.insert(write.object().to_owned(), sent);
                }
                if changed {
                    self.queue(&key);
                }
            }
            Err(WriteError::Everywhere { code, message }) => {
                self.trouble.report(code, message);
                self.retry(key, None);
            }
            Err(WriteError::Other { message, retry_after }) => {
                let pause = self.retry(key.clone(), retry_after);
                warn!("external target {object} of link {key}: {message}; next try in {pause:.1?}");
            }
        }
    }

    fn log_write(&self, object: &str, write: &Write, after: Option<&Service>) {
        let host = after.and_then(|after| after.spec.external_name.as_deref()).unwrap_or("nothing");
        match write {
            Write::Create(_) => info!("external target {object}: created → {host}"),
            Write::Change { .. } => info!("external target {object}: changed → {host}"),
            Write::Delete { .. } => info!("external target {object}: removed"),
        }
    }

    fn retry(&mut self, key: ServiceKey, at_least: Option<Duration>) -> Duration {
        let backoff = self.backoff.entry(key.clone()).or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(RETRY.0)
                .with_max_delay(RETRY.1)
                .with_jitter()
                .without_max_times()
                .build()
        });
        let pause = backoff.next().unwrap_or(RETRY.1).max(at_least.unwrap_or_default());
        self.start_timer(key, pause);
        pause
    }

    fn start_timer(&mut self, key: ServiceKey, pause: Duration) {
        self.stop_timer(&key);
        let timer = self.timers.insert(key.clone(), pause.min(FARTHEST));
        self.timer_of.insert(key, timer);
    }

    fn stop_timer(&mut self, key: &ServiceKey) {
        if let Some(timer) = self.timer_of.remove(key) {
            self.timers.remove(&timer);
        }
    }

    fn set_conflict(&mut self, key: &ServiceKey, object: &str, why: &str) {
        let sentence = format!(
            "external target {} of link {key} is left alone: {why}; rename or delete it, or label it",
            self.settings.keeper.describe(object)
        );
        if self.conflicts.get(key) != Some(&sentence) {
            warn!("{sentence}");
            self.conflicts.insert(key.clone(), sentence);
        }
        self.count_conflicts();
    }

    fn clear_conflict(&mut self, key: &ServiceKey) {
        if self.conflicts.remove(key).is_some() {
            info!("link {key}: the name of its external target is free now, or not needed");
            self.count_conflicts();
        }
    }

    fn count_conflicts(&self) {
        self.settings.metrics.conflicts.set(i64::try_from(self.conflicts.len()).unwrap_or(i64::MAX));
    }
}
