//! What the reconciler says to people, in the log and in metrics: each thing once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::backend::{Backend, WriteError};
use super::decision::Write;
use super::deletion_budget::MaxDeletes;
use crate::model::excerpt::examples;
use crate::model::link::{Link, LinkChange, Target};
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::TERM;
use crate::sync::events::Reason;
use crate::sync::events::link_log::Telemetry;
use crate::sync::external_target::metrics::{ReconcileResult, ReconcilerMetrics};
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::k8s::instance::OtherOwner;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::refusals::RefusalLog;
use crate::sync::k8s::service::{FINALIZER, Service};

/// What has been said, so that it isn't said again.
pub(crate) struct StatusLog {
    backend: Backend,
    news: Telemetry,
    metrics: Arc<ReconcilerMetrics>,
    api: Arc<ApiMetrics>,
    conflicts: BTreeMap<ServiceKey, String>,
    /// Links whose external target would be removed if there hadn't been so many before.
    held: HashSet<ServiceKey>,
    holding: ThrottledLog,
    /// How long the next of them waits; without one for ever.
    next_removal: Option<Duration>,
    /// Links that have lost the name of their external target, and the links that have it.
    names_lost: HashMap<ServiceKey, Option<ServiceKey>>,
    /// Links that have another target than the one they had, or their external target has still.
    former: HashMap<ServiceKey, Option<Target>>,
    planned: HashMap<ServiceKey, Vec<Write>>,
    /// Links with an object that has a higher term than this leader's, and that term.
    higher_terms: HashMap<ServiceKey, u64>,
    /// Whether it was said that another instance owns most objects.
    other_owner: bool,
    /// What keeps objects of a kind from being written by a verb.
    troubles: HashMap<(&'static str, ObjectKind), ThrottledLog>,
    /// What keeps single objects from being written.
    refusals: RefusalLog,
    /// What keeps Services from being looked up that count as gone.
    looks: ThrottledLog,
    /// Services that count as gone because they may not be looked up.
    refused_looks: ThrottledLog,
}

impl StatusLog {
    /// Returns a report in which nothing has been said.
    pub(crate) fn new(
        backend: Backend,
        news: Telemetry,
        metrics: Arc<ReconcilerMetrics>,
        api: Arc<ApiMetrics>,
    ) -> Self {
        metrics.conflicts.set(0);
        metrics.deletes_held.set(0);
        Self {
            backend,
            news,
            metrics,
            api,
            conflicts: BTreeMap::new(),
            held: HashSet::new(),
            holding: ThrottledLog::default(),
            next_removal: None,
            names_lost: HashMap::new(),
            former: HashMap::new(),
            planned: HashMap::new(),
            higher_terms: HashMap::new(),
            other_owner: false,
            troubles: HashMap::new(),
            refusals: RefusalLog::default(),
            looks: ThrottledLog::default(),
            refused_looks: ThrottledLog::default(),
        }
    }

    /// Returns how an object is called in the log.
    fn place(&self, id: &ObjectId) -> String {
        match id.kind {
            ObjectKind::LoadBalancer => id.name.clone(),
            ObjectKind::Service | ObjectKind::EndpointSlice => self.backend.describe(&id.name),
        }
    }

    /// Counts a write that has ended with this HTTP code, and the look at a link that led to it.
    pub(crate) fn count(
        &self,
        write: &Write,
        code: u16,
        result: &Result<Option<Object>, WriteError>,
        looked_at: Instant,
    ) {
        let outcome = match result {
            Ok(_) => ReconcileResult::Written,
            Err(WriteError::Conflict | WriteError::Gone) => ReconcileResult::Waiting,
            Err(_) => ReconcileResult::Failed,
        };
        self.metrics.reconciled(outcome, looked_at);
        if matches!(self.backend, Backend::Namespace { .. }) {
            self.api.wrote(write.verb(), &write.id().kind.to_string(), code);
        }
    }

    /// Says that a write was made: one line for an external target, of which its EndpointSlices are
    /// part. Returns whether that ends trouble with writes of its sort.
    pub(crate) fn written(
        &mut self,
        link: Option<&Link>,
        write: &Write,
        adopted: bool,
        after: Option<&Object>,
    ) -> bool {
        let id = write.id();
        let object = self.place(&id);
        let record = |reason, note: &str| {
            if let Some(link) = link {
                self.news.recorder.about(link, reason, note);
            }
        };
        match (write, after.and_then(|after| after.as_service())) {
            (Write::Finalizer { add, .. }, _) => {
                info!(
                    "Service {object}: finalizer {FINALIZER} {}",
                    if *add { "put on" } else { "taken off" }
                );
            }
            (Write::Create(_), Some(service)) => {
                info!("external target {object}: created → {}", aim(service));
                record(Reason::ExternalTargetCreated, &format!("{object} → {}", aim(service)));
            }
            (Write::Change { .. }, Some(service)) if adopted => {
                info!("external target {object}: adopted → {}", aim(service));
                record(Reason::Adopted, &format!("{object} → {}", aim(service)));
            }
            (Write::Change { .. }, Some(service)) => {
                info!("external target {object}: changed → {}", aim(service));
            }
            (Write::Delete { .. }, Some(left)) => {
                let finalizers = left.metadata.finalizers.clone().unwrap_or_default();
                info!("external target {object}: deleted, and held by {}", examples(finalizers));
            }
            (Write::Delete { .. }, None) if id.kind == ObjectKind::Service => {
                info!("external target {object}: removed");
                record(Reason::Removed, &object);
            }
            (Write::Annotate { .. }, _) => debug!("{} {object}: annotations written", id.kind),
            _ => debug!("EndpointSlice {object}: {}", write.verb()),
        }
        let Some(trouble) = self.troubles.get_mut(&(write.verb(), id.kind)) else { return false };
        trouble.over(&format!("{}s can be written again ({})", id.kind, write.verb()))
    }

    /// Says that a write failed for a reason that all of its sort have.
    pub(crate) fn trouble(&mut self, write: &Write, code: u16, sentence: &str) {
        self.troubles.entry((write.verb(), write.id().kind)).or_default().report(code, sentence);
    }

    /// Says that it can't be found out whether a Service is gone whose external target would be removed.
    pub(crate) fn unconfirmed(&mut self, code: u16, sentence: &str) {
        self.looks.report(code, &format!("{sentence}; the external target stays until that is known"));
    }

    /// Says that it can be found out again.
    pub(crate) fn confirmed(&mut self) {
        self.looks.over("Services that count as gone can be looked up again");
    }

    /// Says that what a Service has left is removed although it can't be looked up.
    pub(crate) fn counts_as_gone(&mut self, key: &ServiceKey) {
        self.refused_looks.remind(&format!(
            "Service {key} counts as gone: the watch has told of its end, and for ten minutes the API server has \
             refused every look at it, as after its namespace was deleted; what it has left is removed"
        ));
    }

    /// Says that a write failed for a reason of its own; `is_new` says whether it is another one than before.
    pub(crate) fn failed(
        &mut self,
        key: &ServiceKey,
        write: &Write,
        reason: &str,
        pause: Duration,
        is_new: bool,
    ) {
        let what = format!("external target {} of link {key}", self.place(&write.id()));
        self.refusals.report(what, reason, pause, is_new);
    }

    /// Logs that another client seems to undo the writes for a link.
    pub(crate) fn undone(&self, key: &ServiceKey, write: &Write, pause: Duration) {
        let object = self.place(&write.id());
        warn!(
            "external target {object} of link {key}: another client, or an admission policy, changes what is \
             written; it is written again, and then not before {pause:.0?} have passed"
        );
    }

    /// Says which writes would be made.
    pub(crate) fn plan(&mut self, key: &ServiceKey, writes: Vec<Write>) {
        if self.planned.get(key) == Some(&writes) {
            return;
        }
        for write in &writes {
            let id = write.id();
            let (object, verb, kind) = (self.place(&id), write.verb(), id.kind);
            match write {
                Write::Create(Object::Service(service))
                | Write::Change { desired: Object::Service(service), .. } => {
                    info!("plan for link {key}: {verb} {kind} {object} → {}", aim(service));
                }
                _ => info!("plan for link {key}: {verb} {kind} {object}"),
            }
        }
        self.planned.insert(key.clone(), writes);
    }

    /// Says that the object of a link's name isn't ours. How things stood at the start isn't recorded.
    pub(crate) fn conflict(&mut self, link: &Link, object: &str, why: &str, is_news: bool) {
        let key = &link.key;
        let object = self.backend.describe(object);
        let sentence = format!(
            "external target {object} of link {key} is left alone: {why}; rename or delete it, or label it"
        );
        if self.conflicts.get(key) != Some(&sentence) {
            warn!("{sentence}");
            if is_news {
                let note = format!("{object} is left alone: {why}; rename or delete it, or label it");
                self.news.recorder.about(link, Reason::Conflict, &note);
            }
            self.conflicts.insert(key.clone(), sentence);
        }
        self.count_conflicts();
    }

    /// Says once that an object of a link has a higher term than this leader's, and isn't written.
    pub(crate) fn higher_term(&mut self, key: &ServiceKey, id: &ObjectId, term: u64, own: u64) {
        if self.higher_terms.insert(key.clone(), term) != Some(term) {
            warn!(
                "{} {} of link {key} isn't written: its annotation {TERM} says {term}, which is higher than the term \
                 of this process, {own}; another lb-linker without a leader election writes here, too, or the \
                 annotation was written by hand: remove it then, or start lb-linker again",
                id.kind,
                self.place(id)
            );
        }
    }

    /// Says that there is no such conflict any more, if there was one.
    pub(crate) fn no_conflict(&mut self, key: &ServiceKey) {
        if self.conflicts.remove(key).is_some() {
            info!("link {key}: the name of its external target is free now, or not needed");
            self.count_conflicts();
        }
    }

    /// Says once that another instance owns most objects of the target namespace, if it is so, and how many
    /// objects other instances own.
    pub(crate) fn other_owner(&mut self, number: usize, find: impl FnOnce(&str) -> Option<OtherOwner>) {
        self.metrics.set_objects_of_others(number);
        let Backend::Namespace { namespace, .. } = &self.backend else { return };
        let found = find(namespace);
        if let Some(owner) = found.as_ref().filter(|_| !self.other_owner) {
            warn!("{owner}");
        }
        self.other_owner = found.is_some();
    }

    /// Says that an external target isn't removed yet, because so many have been.
    pub(crate) fn held(&mut self, link: &Link, max: MaxDeletes, pause: Option<Duration>) {
        let key = &link.key;
        if self.held.insert(key.clone()) {
            let note = format!(
                "--max-deletes allows the removal of {max} in ten minutes: the external target stays"
            );
            self.news.recorder.about(link, Reason::RemovalHeld, &note);
        }
        self.next_removal = pause;
        self.count_held();
    }

    /// Says how many external targets are held back, if there are any.
    pub(crate) fn remind(&mut self, max: MaxDeletes) {
        if self.held.is_empty() {
            return;
        }
        let when = match self.next_removal {
            Some(pause) => format!("the next one follows in {pause:.0?}"),
            None => "no other one follows".to_owned(),
        };
        self.holding.remind(&format!(
            "no more external targets are removed for now: --max-deletes allows {max} in ten minutes; {when}; \
             external targets held back: {}",
            self.held.len()
        ));
    }

    /// Takes in that this process leads no more: what it held back is another's business.
    pub(crate) fn cease(&mut self) {
        self.held.clear();
        self.count_held();
        self.former.clear();
    }

    /// Says that nothing of a link is held back any more.
    pub(crate) fn not_held(&mut self, key: &ServiceKey) {
        if self.held.remove(key) {
            self.count_held();
            if self.held.is_empty() {
                self.holding.over("no removals of external targets are held back any more");
            }
        }
    }

    fn count_held(&self) {
        self.metrics.deletes_held.set(i64::try_from(self.held.len()).unwrap_or(i64::MAX));
    }

    /// Says that another link has the name that a link's external target would have, if it is so.
    pub(crate) fn whose_name(
        &mut self,
        link: &Link,
        holder: impl Fn(&str) -> Option<ServiceKey>,
        is_news: bool,
    ) {
        if link.is_gone() || !link.lacks_its_external_target() {
            self.names_lost.remove(&link.key);
            return;
        }
        let (namespace, name) = link.key.parts();
        let first = names::external_target(namespace, name);
        let holder = holder(&first);
        if let Some(said) = self.names_lost.get_mut(&link.key) {
            // The same holder may only become known, or its object be made again.
            let (was, is) = (said.clone(), holder.clone().or(said.take()));
            *said = is.clone();
            if was.is_none() || was == is {
                return;
            }
        }
        if is_news {
            let whose = match &holder {
                Some(holder) => format!("link {holder} has it"),
                None => "another load balancer has it".to_owned(),
            };
            let (first, own) =
                (self.backend.describe(&first), self.backend.describe(&link.external_target()));
            warn!("link {}: its external target is {own}, not {first}: {whose}", link.key);
            let note = format!("the external target is {own}, not {first}: {whose}");
            self.news.recorder.about(link, Reason::Conflict, &note);
        }
        self.names_lost.insert(link.key.clone(), holder);
    }

    /// Takes in that a link has another target: it is told when that is written.
    pub(crate) fn heed(&mut self, change: &LinkChange) {
        match change.target_change() {
            Some((from, Some(_))) => {
                self.former.entry(change.key.clone()).or_insert_with(|| from.cloned());
            }
            Some((_, None)) => drop(self.former.remove(&change.key)),
            None => {}
        }
    }

    /// Takes in what the external target of a link points at before it is written. At the first look
    /// that is the target from before this process led; later, a change made by hand.
    pub(crate) fn retargets(
        &mut self,
        key: &ServiceKey,
        is_first: bool,
        target: impl FnOnce() -> Option<Target>,
    ) {
        match self.former.get_mut(key) {
            Some(former @ None) => *former = target(),
            Some(_) => {}
            None if is_first => drop(self.former.insert(key.clone(), target())),
            None => {}
        }
    }

    /// Takes in that nothing is left to be written for a link.
    pub(crate) fn settled(&mut self, link: &Link) {
        self.planned.remove(&link.key);
        if let Some(Some(from)) = self.former.remove(&link.key)
            && let Some(to) = link.target.as_ref().filter(|to| **to != from)
        {
            self.news.recorder.about(link, Reason::TargetChanged, &format!("{from} → {to}"));
        }
    }

    /// Lets go of room that isn't needed any more.
    pub(crate) fn tidy(&mut self) {
        self.held.shrink_to_fit();
        self.former.shrink_to_fit();
    }

    /// Returns the links of which something has been said.
    pub(crate) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        let Self { conflicts, held, names_lost, former, planned, .. } = self;
        let said = conflicts.keys().chain(held).chain(names_lost.keys());
        said.chain(former.keys()).chain(planned.keys())
    }

    /// Forgets what was said of a link that is gone.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.no_conflict(key);
        self.not_held(key);
        self.names_lost.remove(key);
        self.former.remove(key);
        self.planned.remove(key);
        self.higher_terms.remove(key);
    }

    fn count_conflicts(&self) {
        self.metrics.conflicts.set(i64::try_from(self.conflicts.len()).unwrap_or(i64::MAX));
    }
}

/// What an external target leads to.
fn aim(service: &Service) -> &str {
    service.spec.external_name.as_deref().unwrap_or("its addresses")
}
