//! What the reconciler says to people, in the log and in metrics: each thing once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::brakes::MaxDeletes;
use super::object::{Kind, Object, ObjectId};
use super::plan::Write;
use super::service::{FINALIZER, Service};
use super::trouble::Trouble;
use super::writer::Keeper;
use crate::metrics::Metrics;
use crate::store::ServiceKey;

/// What has been said, so that it isn't said again.
pub(super) struct Report {
    keeper: Keeper,
    metrics: Arc<Metrics>,
    conflicts: BTreeMap<ServiceKey, String>,
    /// Links whose external target would be removed if there hadn't been so many before.
    held: HashSet<ServiceKey>,
    holding: Trouble,
    planned: HashMap<ServiceKey, Vec<Write>>,
    /// What keeps objects of a kind from being written by a verb.
    troubles: HashMap<(&'static str, Kind), Trouble>,
}

impl Report {
    /// Returns a report in which nothing has been said.
    pub(super) fn new(keeper: Keeper, metrics: Arc<Metrics>) -> Self {
        metrics.conflicts.set(0);
        metrics.deletes_held.set(0);
        Self {
            keeper,
            metrics,
            conflicts: BTreeMap::new(),
            held: HashSet::new(),
            holding: Trouble::default(),
            planned: HashMap::new(),
            troubles: HashMap::new(),
        }
    }

    /// Returns how an object is called in the log.
    fn place(&self, id: &ObjectId) -> String {
        match id.kind {
            Kind::LoadBalancer => id.name.clone(),
            Kind::Service | Kind::EndpointSlice => self.keeper.describe(&id.name),
        }
    }

    /// Counts a write that has ended with this HTTP code.
    pub(super) fn count(&self, write: &Write, code: u16) {
        if matches!(self.keeper, Keeper::Namespace { .. }) {
            let labels = [write.verb(), &write.id().kind.to_string(), &code.to_string()];
            self.metrics.api_writes.with_label_values(&labels).inc();
        }
    }

    /// Says that a write was made: one line for an external target, of which its EndpointSlices are
    /// part. Returns whether that ends trouble with writes of its sort.
    pub(super) fn written(&mut self, write: &Write, adopted: bool, after: Option<&Object>) -> bool {
        let id = write.id();
        let object = self.place(&id);
        match (write, after.and_then(|after| after.as_service())) {
            (Write::Finalizer { add, .. }, _) => {
                info!(
                    "Service {object}: finalizer {FINALIZER} {}",
                    if *add { "put on" } else { "taken off" }
                );
            }
            (Write::Create(_), Some(service)) => {
                info!("external target {object}: created → {}", aim(service));
            }
            (Write::Change { .. }, Some(service)) if adopted => {
                info!("external target {object}: adopted → {}", aim(service));
            }
            (Write::Change { .. }, Some(service)) => {
                info!("external target {object}: changed → {}", aim(service));
            }
            (Write::Delete { .. }, _) if id.kind == Kind::Service => {
                info!("external target {object}: removed");
            }
            _ => debug!("EndpointSlice {object}: {}", write.verb()),
        }
        let Some(mut trouble) = self.troubles.remove(&(write.verb(), id.kind)) else { return false };
        trouble.over(&format!("{}s can be written again ({})", id.kind, write.verb()));
        true
    }

    /// Says that a write failed for a reason that all of its sort have.
    pub(super) fn trouble(&mut self, write: &Write, code: u16, sentence: String) {
        self.troubles.entry((write.verb(), write.id().kind)).or_default().report(code, &sentence);
    }

    /// Says that a write failed for a reason of its own.
    pub(super) fn failed(&self, key: &ServiceKey, write: &Write, reason: &str, pause: Duration) {
        let object = self.place(&write.id());
        warn!("external target {object} of link {key}: {reason}; next try in {pause:.1?}");
    }

    /// Says that somebody else seems to undo the writes for a link.
    pub(super) fn undone(&self, key: &ServiceKey, write: &Write, pause: Duration) {
        let object = self.place(&write.id());
        warn!(
            "external target {object} of link {key}: somebody else, or an admission policy, changes what is \
             written; it is written again, and then not before {pause:.0?} have passed"
        );
    }

    /// Says which writes would be made.
    pub(super) fn plan(&mut self, key: &ServiceKey, writes: Vec<Write>) {
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

    /// Says that the object of a link's name isn't ours.
    pub(super) fn conflict(&mut self, key: &ServiceKey, object: &str, why: &str) {
        let object = self.keeper.describe(object);
        let sentence = format!(
            "external target {object} of link {key} is left alone: {why}; rename or delete it, or label it"
        );
        if self.conflicts.get(key) != Some(&sentence) {
            warn!("{sentence}");
            self.conflicts.insert(key.clone(), sentence);
        }
        self.count_conflicts();
    }

    /// Says that there is no such conflict any more, if there was one.
    pub(super) fn no_conflict(&mut self, key: &ServiceKey) {
        if self.conflicts.remove(key).is_some() {
            info!("link {key}: the name of its external target is free now, or not needed");
            self.count_conflicts();
        }
    }

    /// Says that an external target isn't removed yet, because so many have been.
    pub(super) fn held(&mut self, key: &ServiceKey, max: MaxDeletes, pause: Option<Duration>) {
        self.held.insert(key.clone());
        let when = match pause {
            Some(pause) => format!("the next one follows in {:.0?}", pause),
            None => "no other one follows".to_owned(),
        };
        self.holding.remind(&format!(
            "no more external targets are removed for now: --max-deletes allows {max} in ten minutes; {when}; \
             external targets held back: {}, the latest that of {key}",
            self.held.len()
        ));
        self.count_held();
    }

    /// Says that nothing of a link is held back any more.
    pub(super) fn not_held(&mut self, key: &ServiceKey) {
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

    /// Forgets what was said of a link that is gone.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.no_conflict(key);
        self.not_held(key);
        self.planned.remove(key);
    }

    fn count_conflicts(&self) {
        self.metrics.conflicts.set(i64::try_from(self.conflicts.len()).unwrap_or(i64::MAX));
    }
}

/// What an external target leads to.
fn aim(service: &Service) -> &str {
    service.spec.external_name.as_deref().unwrap_or("its addresses")
}
