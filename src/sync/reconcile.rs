//! The reconciler: makes the external targets match the links.
//!
//! Level-triggered: whatever happened, a link is looked at again and the one write that brings
//! its object closer is made. At most one write per link is under way, and one link's trouble
//! holds up no other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::desired::{IPV4, IPV6, labelled_for, points_at, slice_name, written_by_us};
use super::object::{EndpointSlice, Kind, Object, ObjectId};
use super::objects::Objects;
use super::pace::Pace;
use super::plan::{Actual, Policy, Step, SyncMode, Write, all_writes, next_step};
use super::report::Report;
use super::selection::Selection;
use super::service::Service;
use super::writer::{Keeper, ObjectEvent, WriteError};
use super::{SyncError, log_change};
use crate::metrics::Metrics;
use crate::store::{Change, Link, ServiceKey, Store};

/// Writes under way at once: each is a connection, and the API server has other clients too.
const MAX_WRITES: usize = 16;
/// How long writes under way may take to end when lb-linker is told to stop.
const FAREWELL: Duration = Duration::from_secs(5);

/// What the reconciler needs.
#[derive(Clone)]
pub struct Settings {
    /// Where the links are.
    pub store: Arc<Store>,
    /// Where the external targets are.
    pub keeper: Keeper,
    /// Which Services become links: the external targets of others aren't ours to touch.
    pub selection: Arc<Selection>,
    /// What the user has decided.
    pub policy: Policy,
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
    // Nothing is written before both lists are complete.
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = reconciler.settings.store.synced(), if reconciler.is_listed() => break,
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
                Ok(change) => reconciler.heed(&change),
                Err(RecvError::Lagged(_)) => reconciler.queue_all(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            event = events.next() => reconciler.observe(event.ok_or(SyncError::WatchEnded)?),
            key = reconciler.pace.due() => reconciler.queue(&key),
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
    result: Result<Option<Object>, WriteError>,
}

struct Reconciler {
    settings: Settings,
    objects: Objects,
    /// The kinds of objects of which a complete list has come.
    listed: HashSet<Kind>,
    queue: VecDeque<ServiceKey>,
    queued: HashSet<ServiceKey>,
    /// Links with a write under way, and whether they changed meanwhile.
    in_flight: HashMap<ServiceKey, bool>,
    writes: JoinSet<Written>,
    pace: Pace,
    /// Which link wants an object of a name.
    wanted: HashMap<ObjectId, ServiceKey>,
    /// Objects, with the version last seen, of which the API server says that it isn't the newest:
    /// they aren't written before the watch has delivered another.
    outdated: HashMap<ObjectId, Option<String>>,
    report: Report,
    /// Whether the last write had no answer.
    unanswered: bool,
}

impl Reconciler {
    fn new(settings: Settings) -> Self {
        let report = Report::new(settings.keeper.clone(), Arc::clone(&settings.metrics));
        Self {
            settings,
            objects: Objects::default(),
            listed: HashSet::new(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            in_flight: HashMap::new(),
            writes: JoinSet::new(),
            pace: Pace::default(),
            wanted: HashMap::new(),
            outdated: HashMap::new(),
            report,
            unanswered: false,
        }
    }

    // === what is heard ===

    fn is_listed(&self) -> bool {
        self.listed.contains(&Kind::Service) && self.listed.contains(&Kind::EndpointSlice)
    }

    fn observe(&mut self, event: ObjectEvent) {
        match event {
            ObjectEvent::Listed(kind, list) => self.take_list(kind, list),
            ObjectEvent::Unseen => {
                self.settings.store.set_holders_known();
                if self.settings.policy.sync == SyncMode::Off {
                    // Without the right to look, what isn't kept needn't be waited for.
                    self.listed.extend([Kind::Service, Kind::EndpointSlice]);
                }
            }
            ObjectEvent::Applied(object) => {
                let id = object.id();
                self.outdated.remove(&id);
                self.change_object(&id, |objects| objects.apply(object));
            }
            ObjectEvent::Deleted { id, uid } => {
                self.outdated.remove(&id);
                self.change_object(&id, |objects| objects.remove(&id, &uid));
            }
        }
    }

    fn take_list(&mut self, kind: Kind, list: Vec<Object>) {
        let was_listed = self.is_listed();
        let before: Vec<ObjectId> = self.objects.ids().filter(|id| id.kind == kind).cloned().collect();
        self.objects.replace(kind, list);
        self.outdated.retain(|id, _| id.kind != kind);
        self.listed.insert(kind);
        for id in before.iter().filter(|id| self.objects.get(id).is_none()) {
            self.tell_holder(id);
        }
        if !self.is_listed() {
            return;
        }
        for id in self.objects.ids() {
            self.tell_last_target(id);
            self.tell_holder(id);
        }
        self.settings.store.set_holders_known();
        if was_listed {
            self.adopt_departed();
            self.resume();
            self.queue_all();
        }
    }

    /// Takes over what the store says of a link.
    fn heed(&mut self, change: &Change) {
        if let (Some(before), Some(after)) = (&change.before, &change.after)
            && before.external_target != after.external_target
        {
            let (before, after) = (&before.external_target, &after.external_target);
            info!("link {}: its external target is {after} from now on, not {before}", change.key);
            self.no_longer_wants(&change.key, before);
        }
        if change.retargeted().is_some() {
            // What failed was about the old target.
            self.pace.stop_waiting(&change.key);
            self.pace.succeeded(&change.key);
        }
        self.queue(&change.key);
    }

    /// Ends all pauses: what caused them is over.
    fn resume(&mut self) {
        for key in self.pace.resume() {
            self.queue(&key);
        }
    }

    /// Tells the store whom the Service of a name is labelled for.
    fn tell_holder(&self, id: &ObjectId) {
        if id.kind == Kind::Service {
            let holder = self.objects.get(id).and_then(|object| labelled_for(object.meta()));
            self.settings.store.set_holder(&id.name, holder.as_ref());
        }
    }

    /// Tells the store what an external target points at that an earlier process has left.
    fn tell_last_target(&self, id: &ObjectId) {
        let Some(object) = self.objects.get(id) else { return };
        if let (Some(service), Some(holder)) = (object.as_service(), labelled_for(object.meta())) {
            let slices = self.objects.of_link(&holder).filter_map(|object| object.as_slice());
            let target = points_at(service, slices);
            // Where a tombstone leads is nobody's target.
            if let Some(target) = target.filter(|target| target.to_string() != self.settings.policy.tombstone)
            {
                self.settings.store.set_last_target(&holder, target);
            }
        }
    }

    /// Changes what is known of an object, and queues the links that it mattered to before and
    /// matters to now.
    fn change_object(&mut self, id: &ObjectId, change: impl FnOnce(&mut Objects)) {
        self.queue_concerned(id);
        change(&mut self.objects);
        self.tell_holder(id);
        self.queue_concerned(id);
    }

    fn queue_concerned(&mut self, id: &ObjectId) {
        if !self.is_listed() {
            return;
        }
        let labelled = self.objects.get(id).and_then(|object| labelled_for(object.meta()));
        let wanted = self.wanted.get(id).cloned();
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

    fn no_longer_wants(&mut self, key: &ServiceKey, external_target: &str) {
        for id in object_ids(external_target) {
            if self.wanted.get(&id) == Some(key) {
                self.wanted.remove(&id);
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

    // === what is done ===

    /// Looks at queued links and starts writes, as many as may be under way.
    fn work(&mut self) {
        while self.writes.len() < MAX_WRITES {
            let Some(key) = self.queue.pop_front() else { break };
            self.queued.remove(&key);
            // A link that waits after a failed write is looked at when its time comes.
            if self.pace.rests(&key) {
                continue;
            }
            self.look_at(key);
        }
    }

    fn look_at(&mut self, key: ServiceKey) {
        self.pace.stop_waiting(&key);
        let Some(link) = self.settings.store.get(&key) else {
            self.report.forget(&key);
            self.pace.forget(&key);
            // Who has left an object behind is looked at once more, as somebody who is gone.
            if self.objects.of_link(&key).any(|object| written_by_us(object.meta()))
                && self.settings.selection.watches(&key.namespace)
            {
                self.settings.store.insert_gone(&key);
            }
            return;
        };
        let ids = object_ids(&link.external_target);
        let named: Vec<Arc<Object>> = ids.iter().filter_map(|id| self.objects.get(id).cloned()).collect();
        self.wanted.extend(ids.map(|id| (id, key.clone())));
        let objects: Vec<Arc<Object>> = self.objects.of_link(&key).cloned().collect();
        let slices: Vec<&EndpointSlice> = objects.iter().filter_map(|object| object.as_slice()).collect();
        let others: Vec<&Service> = objects
            .iter()
            .filter_map(|object| object.as_service())
            .filter(|service| service.metadata.name.as_deref() != Some(&*link.external_target))
            .filter(|service| written_by_us(&service.metadata))
            .collect();
        let strangers: Vec<&EndpointSlice> = named
            .iter()
            .filter_map(|object| object.as_slice())
            .filter(|slice| labelled_for(&slice.metadata).as_ref() != Some(&key))
            .collect();
        let actual = Actual {
            named: named.iter().find_map(|object| object.as_service()),
            strange_slices: &strangers,
            other_services: &others,
            slices: &slices,
        };
        let now = Instant::now();
        let step = next_step(&link, actual, &self.settings.policy, now);
        if !matches!(step, Step::Conflict { .. }) {
            self.report.no_conflict(&key);
        }
        if !matches!(step, Step::Write(_)) {
            self.pace.succeeded(&key);
        }
        let step = match (step, self.settings.policy.sync) {
            (Step::Write(_), SyncMode::Off) => Step::Done,
            (Step::Write(_), SyncMode::Plan) => {
                self.report.plan(&key, all_writes(&link, actual, &self.settings.policy, now));
                Step::Done
            }
            (step, _) => step,
        };
        match step {
            Step::Done => {}
            Step::Forget => {
                self.no_longer_wants(&key, &link.external_target);
                if let Some(change) = self.settings.store.forget(&key) {
                    log_change(&self.settings.metrics, &change);
                }
            }
            Step::Wait(due) => self.pace.wait(key, due.saturating_duration_since(now)),
            Step::Conflict { object, why } => self.report.conflict(&key, &object.name, &why),
            Step::Write(write) => self.start(&link, write),
        }
    }

    fn start(&mut self, link: &Arc<Link>, write: Write) {
        let (key, id) = (link.key.clone(), write.id());
        if let Some(outdated) = self.outdated.get(&id) {
            if *outdated == self.version_of(&id) {
                return;
            }
            self.outdated.remove(&id);
        }
        if let Some(pause) = self.pace.not_before(link) {
            return self.pace.wait(key, pause);
        }
        self.in_flight.insert(key.clone(), false);
        self.objects.write_begins(&id);
        let keeper = self.settings.keeper.clone();
        self.writes.spawn(async move {
            let (code, result) = keeper.write(write.clone()).await;
            Written { key, write, code, result }
        });
    }

    fn version_of(&self, id: &ObjectId) -> Option<String> {
        self.objects.get(id)?.meta().resource_version.clone()
    }

    fn written(&mut self, written: Written) {
        let Written { key, write, code, result } = written;
        let id = write.id();
        let changed = self.in_flight.remove(&key).unwrap_or(false);
        self.report.count(&write, code);
        match result {
            Ok(after) => {
                self.pace.succeeded(&key);
                if let Some(link) = self.settings.store.get(&key)
                    && let Some(pause) = self.pace.made(&link)
                {
                    self.report.undone(&key, &write, pause);
                }
                let unanswered = std::mem::take(&mut self.unanswered);
                if self.report.written(&write, after.as_ref()) || unanswered {
                    self.resume();
                }
                self.change_object(&id, |objects| match after {
                    Some(after) => objects.answered(after),
                    None => objects.removed_by_us(&id, write.uid()),
                });
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Delete { .. }) => {
                self.pace.succeeded(&key);
                self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid()));
                self.queue(&key);
            }
            Err(WriteError::Conflict | WriteError::Gone) => {
                // Somebody was faster. The watch says how the object is now, and unless it has
                // done so already nothing is tried before.
                let sent = write.resource_version().map(ToOwned::to_owned);
                if changed {
                    self.queue(&key);
                } else if self.version_of(&id) == sent {
                    self.outdated.insert(id, sent);
                }
            }
            Err(WriteError::Unanswered) => {
                self.unanswered = true;
                self.pace.failed(&key, None);
            }
            Err(WriteError::Everywhere { code, message, retry_after }) => {
                self.report.trouble(&write, code, message);
                self.pace.failed(&key, retry_after);
            }
            Err(WriteError::Other { message, retry_after }) => {
                let pause = self.pace.failed(&key, retry_after);
                self.report.failed(&key, &write, &message, pause);
            }
        }
        self.objects.write_ended(&write.id());
    }
}

/// The objects that an external target of this name may consist of.
fn object_ids(external_target: &str) -> [ObjectId; 3] {
    let slice = |end| ObjectId { kind: Kind::EndpointSlice, name: slice_name(external_target, end) };
    [ObjectId::service(external_target), slice(IPV4), slice(IPV6)]
}
