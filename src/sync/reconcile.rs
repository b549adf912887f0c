//! The reconciler: makes the external targets match the links.
//!
//! Level-triggered: whatever happened, a link is looked at again and the one write that brings
//! its object closer is made. At most one write per link is under way, and one link's trouble
//! holds up no other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::admission::{Admission, HOSTNAME, noted_hostnames};
use super::brakes::Removals;
use super::desired::{IPV4, IPV6, labelled_for, points_at, slice_name, written_by_us};
use super::election::Leadership;
use super::object::{EndpointSlice, Kind, Object, ObjectId};
use super::objects::Objects;
use super::orphans::{Orphans, orphan_of};
use super::pace::Pace;
use super::plan::{Actual, Policy, Step, SyncMode, Write, all_writes, next_step};
use super::report::Report;
use super::selection::Selection;
use super::service::Service;
use super::writer::{Keeper, ObjectEvent, WriteError};
use super::{News, SyncError, log_change};
use crate::metrics::Reconciled;
use crate::store::{Change, Link, ServiceKey, Store, Target};

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
    /// What of their wishes is granted.
    pub admission: Arc<Admission>,
    /// What the user has decided.
    pub policy: Policy,
    /// Where what happens is told.
    pub news: News,
    /// Whether it may write.
    pub leadership: Leadership,
    /// The last term in which all load balancers have been listed.
    pub links_listed: watch::Receiver<u64>,
}

/// Runs until `stop`; then lets the writes under way end.
///
/// # Errors
/// If the objects can't be followed any more.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), SyncError> {
    let mut feed = settings.store.subscribe();
    let mut events = settings.keeper.events();
    let leadership = settings.leadership.clone();
    let mut links_listed = settings.links_listed.clone();
    let mut reconciler = Reconciler::new(settings);
    // Nothing is written before both lists are complete.
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = reconciler.settings.store.synced(), if reconciler.is_listed() => break,
            () = leadership.beyond(reconciler.term) => events = reconciler.begin_term(),
            event = events.next() => reconciler.observe(event.ok_or(SyncError::WatchEnded)?),
        }
    }
    reconciler.adopt_departed();
    reconciler.queue_all();
    reconciler.old_news = reconciler.queued.clone();
    loop {
        reconciler.work();
        tokio::select! {
            () = stop.cancelled() => break,
            change = feed.recv() => match change {
                Ok(change) => reconciler.heed(&change),
                Err(RecvError::Lagged(_)) => reconciler.queue_all(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            () = leadership.beyond(reconciler.term) => events = reconciler.begin_term(),
            Ok(()) = links_listed.changed() => reconciler.take_up_writing(),
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
    looked_at: Instant,
    write: Write,
    /// Whether the object was somebody else's before.
    adopted: bool,
    removal: bool,
    code: u16,
    result: Result<Option<Object>, WriteError>,
}

struct Reconciler {
    settings: Settings,
    objects: Objects,
    /// The kinds of objects of which a complete list has come.
    listed: HashSet<Kind>,
    /// The term that writes belong to, and the kinds of objects that have been listed in it: what was
    /// heard before may have been changed by another leader since.
    term: u64,
    listed_in_term: HashSet<Kind>,
    queue: VecDeque<ServiceKey>,
    queued: HashSet<ServiceKey>,
    /// Links that haven't been looked at since the start: how they stand is no news.
    old_news: HashSet<ServiceKey>,
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
    removals: Removals,
    orphans: Orphans,
    /// Whether the last write had no answer.
    unanswered: bool,
}

impl Reconciler {
    fn new(settings: Settings) -> Self {
        let report = Report::new(settings.keeper.clone(), settings.news.clone());
        let orphans = Orphans::new(Arc::clone(&settings.news.metrics));
        Self {
            objects: Objects::default(),
            listed: HashSet::new(),
            term: settings.leadership.term(),
            listed_in_term: HashSet::new(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            old_news: HashSet::new(),
            in_flight: HashMap::new(),
            writes: JoinSet::new(),
            pace: Pace::default(),
            wanted: HashMap::new(),
            outdated: HashMap::new(),
            report,
            removals: Removals::default(),
            orphans,
            unanswered: false,
            settings,
        }
    }

    // === who may write ===

    /// Begins a term as the leader: with lists of its own.
    fn begin_term(&mut self) -> BoxStream<'static, ObjectEvent> {
        self.term = self.settings.leadership.term();
        self.listed_in_term.clear();
        self.settings.keeper.events()
    }

    /// Returns whether writes may be made: by the leader, once everything has been listed in its term.
    fn may_write(&self) -> bool {
        self.settings.leadership.current_term() == Some(self.term)
            && self.listed_in_term.len() == self.listed.len()
            && *self.settings.links_listed.borrow() == self.term
    }

    /// Makes the writes that were due when somebody else led, or nobody.
    fn take_up_writing(&mut self) {
        if self.may_write() {
            self.resume();
            self.queue_all();
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
        self.listed_in_term.insert(kind);
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
        self.report.heed(change);
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
            let object = self.objects.get(id).map(|object| object.meta());
            let holder = object.and_then(labelled_for);
            let noted = object.and_then(|object| object.annotations.as_ref()?.get(HOSTNAME));
            let noted = noted_hostnames(noted.map(String::as_str));
            self.settings.store.set_holder(&id.name, holder.as_ref(), &noted);
        }
    }

    /// Tells the store what an external target points at that an earlier process has left.
    fn tell_last_target(&self, id: &ObjectId) {
        let Some(object) = self.objects.get(id) else { return };
        if let (Some(service), Some(holder)) = (object.as_service(), labelled_for(object.meta())) {
            let slices = self.objects.of_link(&holder).filter_map(|object| object.as_slice());
            let target = points_at(service, slices);
            // Where a tombstone leads is nobody's target, and what isn't followed any more isn't either.
            let followed = |target: &Target| {
                target.to_string() != self.settings.policy.tombstone
                    && self.settings.admission.targets.allows(&holder.namespace, target)
            };
            if let Some(target) = target.filter(followed) {
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

    /// Objects of ours whose Service is gone since a time when nobody watched; and orphans, which are
    /// nobody's.
    fn adopt_departed(&mut self) {
        for key in self.objects.links().filter(|key| self.left_something(key)) {
            if let Some(change) = self.settings.store.insert_gone(key) {
                info!("link {}: its Service is gone, its external target is still there", change.key);
            }
        }
        let keys: Vec<ServiceKey> = self.objects.links().cloned().chain(self.orphans.keys()).collect();
        for key in &keys {
            self.note_orphans(key);
        }
    }

    /// Whether an object of ours, in a namespace that is watched, is labelled for a link.
    fn left_something(&self, key: &ServiceKey) -> bool {
        self.settings.selection.watches(&key.namespace)
            && self.objects.of_link(key).any(|object| self.is_ours(object.meta()))
    }

    /// Whether an object whose Service is gone is ours to remove. What somebody else has written is
    /// only where the user says so.
    fn is_ours(&self, metadata: &ObjectMeta) -> bool {
        self.settings.policy.prune || written_by_us(metadata)
    }

    fn note_orphans(&mut self, key: &ServiceKey) {
        let Settings { store, selection, policy, .. } = &self.settings;
        let mut orphans = Vec::new();
        if policy.sync != SyncMode::Off && !store.knows(key) {
            let services = self.objects.of_link(key).filter_map(|object| object.as_service());
            let services = services.filter(|service| orphan_of(&service.metadata, selection).is_some());
            orphans.extend(services.filter_map(|service| service.metadata.name.clone()));
        }
        self.orphans.set(key, orphans);
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
        self.orphans.report(&self.settings.keeper);
    }

    /// Looks at a link. A defect that only one link brings to light costs only that link.
    fn look_at(&mut self, key: ServiceKey) {
        let looked = catch_unwind(AssertUnwindSafe(|| {
            poison(&key);
            self.reconcile(key.clone());
        }));
        if looked.is_err() {
            let pause = self.pace.failed(&key, None);
            error!(
                "link {key}: its reconciling has panicked, a defect of lb-linker; next try in {pause:.1?}"
            );
        }
    }

    fn reconcile(&mut self, key: ServiceKey) {
        self.pace.stop_waiting(&key);
        let (now, is_news) = (Instant::now(), !self.old_news.remove(&key));
        let Some(link) = self.settings.store.get(&key) else {
            self.report.forget(&key);
            self.pace.forget(&key);
            // Who has left an object behind is looked at once more, as somebody who is gone.
            if self.left_something(&key) {
                self.settings.store.insert_gone(&key);
            }
            return self.note_orphans(&key);
        };
        self.orphans.set(&key, Vec::new());
        let ids = object_ids(&link.external_target);
        let named: Vec<Arc<Object>> = ids.iter().filter_map(|id| self.objects.get(id).cloned()).collect();
        self.wanted.extend(ids.map(|id| (id, key.clone())));
        // What a Service has left that this process never saw counts only where it is ours.
        let counts = |object: &Object| !link.was_never_seen() || self.is_ours(object.meta());
        let objects = self.objects.of_link(&key).filter(|object| counts(object));
        let objects: Vec<Arc<Object>> = objects.cloned().collect();
        let slices: Vec<&EndpointSlice> = objects.iter().filter_map(|object| object.as_slice()).collect();
        let others: Vec<&Service> = objects
            .iter()
            .filter_map(|object| object.as_service())
            .filter(|service| service.metadata.name.as_deref() != Some(&*link.external_target))
            .filter(|service| {
                written_by_us(&service.metadata) || link.is_gone() && self.is_ours(&service.metadata)
            })
            .collect();
        let strangers: Vec<&EndpointSlice> = named
            .iter()
            .filter_map(|object| object.as_slice())
            .filter(|slice| labelled_for(&slice.metadata).as_ref() != Some(&key))
            .collect();
        let actual = Actual {
            named: named.iter().filter(|object| counts(object)).find_map(|object| object.as_service()),
            strange_slices: &strangers,
            other_services: &others,
            slices: &slices,
        };
        let step = next_step(&link, actual, &self.settings.policy, now);
        if !matches!(step, Step::Conflict { .. }) {
            self.report.no_conflict(&key);
        }
        if !matches!(step, Step::Write(_)) {
            self.report.not_held(&key);
        }
        if !matches!(step, Step::Write(_)) {
            self.pace.succeeded(&key);
        }
        self.report.whose_name(&link, |name| self.objects.get(&ObjectId::service(name)).cloned(), is_news);
        if let Step::Write(_) = step {
            let ours = actual.named.filter(|object| labelled_for(&object.metadata).as_ref() == Some(&key));
            let target = || points_at(ours?, slices.iter().copied());
            self.report.retargets(&key, target);
        }
        let step = match (step, self.settings.policy.sync) {
            (Step::Write(_), SyncMode::Off) => Step::Done,
            // Whoever leads does it. All links are looked at again when this one does.
            (Step::Write(_), SyncMode::On) if !self.may_write() => Step::Done,
            (Step::Write(_), SyncMode::Plan) => {
                self.report.plan(&key, all_writes(&link, actual, &self.settings.policy, now));
                Step::Done
            }
            (step, _) => step,
        };
        let result = match step {
            Step::Done => {
                self.report.settled(&link);
                Reconciled::Unchanged
            }
            Step::Forget => {
                self.no_longer_wants(&key, &link.external_target);
                if let Some(change) = self.settings.store.forget(&key) {
                    log_change(&self.settings.news, &change);
                }
                Reconciled::Unchanged
            }
            Step::Wait(due) => {
                self.pace.wait(key, due.saturating_duration_since(now));
                Reconciled::Waiting
            }
            Step::Conflict { object, why } => {
                self.report.conflict(&link, &object.name, &why, is_news);
                Reconciled::Conflict
            }
            Step::Write(write) => {
                if self.start(&link, write, now) {
                    return;
                }
                Reconciled::Waiting
            }
        };
        self.settings.news.metrics.reconciled(result, now);
    }

    /// Whether a write removes an external target for good, and not one that has another name now.
    fn is_removal(link: &Link, write: &Write) -> bool {
        let leftover = !link.is_gone() && write.id().name != *link.external_target;
        matches!(write, Write::Delete { id, .. } if id.kind == Kind::Service) && !leftover
    }

    /// Returns whether a removal may be made now; else the link waits for its turn.
    fn may_remove(&mut self, link: &Link) -> bool {
        let (max, now) = (self.settings.policy.max_deletes, Instant::now());
        match self.removals.ask(max, self.objects.number_of_links(), now) {
            Ok(()) => true,
            Err(pause) => {
                self.report.held(link, max, pause);
                if let Some(pause) = pause {
                    self.pace.wait(link.key.clone(), pause);
                }
                false
            }
        }
    }

    /// Starts a write, unless its time hasn't come yet; returns whether it did.
    fn start(&mut self, link: &Arc<Link>, write: Write, looked_at: Instant) -> bool {
        let (key, id) = (link.key.clone(), write.id());
        if let Some(outdated) = self.outdated.get(&id) {
            if *outdated == self.version_of(&id) {
                return false;
            }
            self.outdated.remove(&id);
        }
        if let Some(pause) = self.pace.not_before(link) {
            self.pace.wait(key, pause);
            return false;
        }
        let removal = Self::is_removal(link, &write);
        if removal && !self.may_remove(link) {
            return false;
        }
        self.report.not_held(&key);
        let adopted = self.objects.get(&id).is_some_and(|before| labelled_for(before.meta()).is_none());
        self.in_flight.insert(key.clone(), false);
        self.objects.write_begins(&id);
        let keeper = self.settings.keeper.clone();
        let (leadership, term) = (self.settings.leadership.clone(), self.term);
        self.writes.spawn(async move {
            let request = AssertUnwindSafe(keeper.write(write.clone())).catch_unwind();
            let (code, result) = match leadership.write(term, request).await {
                Ok(Ok(answered)) => answered,
                Ok(Err(_)) => (0, Err(WriteError::panicked())),
                Err(not_leading) => (0, Err(not_leading.into())),
            };
            Written { key, looked_at, write, adopted, removal, code, result }
        });
        true
    }

    fn version_of(&self, id: &ObjectId) -> Option<String> {
        self.objects.get(id)?.meta().resource_version.clone()
    }

    fn written(&mut self, written: Written) {
        let Written { key, looked_at, write, adopted, removal, code, result } = written;
        if removal && result.is_err() {
            self.removals.take_back();
        }
        let id = write.id();
        let changed = self.in_flight.remove(&key).unwrap_or(false);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.report.count(&write, code, &result, looked_at);
        }
        match result {
            Ok(after) => {
                self.pace.succeeded(&key);
                let link = self.settings.store.get(&key);
                if let Some(link) = &link
                    && let Some(pause) = self.pace.made(link)
                {
                    self.report.undone(&key, &write, pause);
                }
                let unanswered = std::mem::take(&mut self.unanswered);
                if self.report.written(link.as_deref(), &write, adopted, after.as_ref()) || unanswered {
                    self.resume();
                }
                match (&write, after) {
                    (Write::Finalizer { uid, add, .. }, _) => {
                        drop(self.settings.store.set_guarded(&key, uid, *add));
                    }
                    (_, Some(after)) => self.change_object(&id, |objects| objects.answered(after)),
                    (_, None) => self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid())),
                }
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Delete { .. }) => {
                self.pace.succeeded(&key);
                self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid()));
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Finalizer { .. }) => {
                // With the Service its finalizers have gone.
                self.settings.store.set_guarded(&key, write.uid(), false);
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
            // By the clock: the election may say so a moment later.
            Err(WriteError::NotLeading(_)) => drop(self.pace.failed(&key, None)),
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

/// Makes the reconciling of one link panic, for the test that shows that this stops no other.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "the purpose")]
fn poison(key: &ServiceKey) {
    if std::env::var("LB_LINKER_TEST_PANIC").is_ok_and(|poisoned| poisoned == key.to_string()) {
        panic!("{key} is poisoned");
    }
}

#[cfg(not(debug_assertions))]
fn poison(_key: &ServiceKey) {}

/// The objects that an external target of this name may consist of.
fn object_ids(external_target: &str) -> [ObjectId; 3] {
    let slice = |end| ObjectId { kind: Kind::EndpointSlice, name: slice_name(external_target, end) };
    [ObjectId::service(external_target), slice(IPV4), slice(IPV6)]
}
