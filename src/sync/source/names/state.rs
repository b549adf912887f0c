//! The objects of a source, and what the store knows of their names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::object::{NamedObject, Rules, has_own_target, id_of, observe};
use super::shared::{Behind, MAX_SHARED, ObjectId, SharedNames};
use crate::model::excerpt::examples;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange, LinkState};
use crate::model::owner::{Claims, Owner, Zone};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::store::Store;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::events::{Reason, Regarding};
use crate::sync::k8s::errors::ObjectErrors;
use crate::sync::source::selection::Selection;

/// Maximum number of objects that are checked again when other objects change: their targets are in zones of links.
/// Other ones are checked when they change themselves; DNS checks `allow-from` for each answer anyway.
const MAX_DEPENDENT: usize = 1000;
/// How long changes of other objects are collected before these objects are checked again.
const RECHECK_AFTER: Duration = Duration::from_millis(500);
/// The number of names that are published at once.
const CHUNK: usize = 256;

/// The objects of a kind with names.
pub struct NameState<K> {
    rules: Rules,
    selection: Arc<Selection>,
    link_reporter: LinkReporter,
    names: SharedNames,
    errors: ObjectErrors,
    /// The names that changed objects ask for, and the newest resourceVersion of these objects.
    changed: BTreeSet<ServiceKey>,
    version: Option<u64>,
    /// The names that wait until everything is listed.
    held: BTreeSet<ServiceKey>,
    /// The objects whose targets depend on other objects.
    dependent: BTreeMap<ServiceKey, K>,
    /// When these objects are to be checked again.
    pub recheck_at: Option<Instant>,
    /// By name that another owner has: the objects that were told.
    lost: HashMap<ServiceKey, BTreeSet<ObjectId>>,
    /// The names for which not all objects count.
    cut: HashSet<ServiceKey>,
    /// Whether everything was listed: from here on Events tell what is wrong with objects.
    is_listed: bool,
    /// Whether everything was listed under these rules. Before, a name may belong to an object that isn't known yet.
    is_complete: bool,
    /// The names of objects that have ended since the last publication.
    ended: HashSet<ServiceKey>,
    /// The namespaces of objects that can't be decoded, and that may have names from before.
    unreadable: HashSet<Box<str>>,
}

impl<K: NamedObject> NameState<K> {
    #[must_use]
    pub fn new(store: Arc<Store>, selection: Arc<Selection>, link_reporter: LinkReporter) -> Self {
        let errors = ObjectErrors::of_kind(K::KIND.api().1, link_reporter.log.clone());
        Self {
            rules: Rules { zones: store.zones(), policy: Arc::default(), store },
            selection,
            link_reporter,
            names: SharedNames::default(),
            errors,
            changed: BTreeSet::new(),
            version: None,
            held: BTreeSet::new(),
            dependent: BTreeMap::new(),
            recheck_at: None,
            lost: HashMap::new(),
            cut: HashSet::new(),
            is_listed: false,
            is_complete: false,
            ended: HashSet::new(),
            unreadable: HashSet::new(),
        }
    }

    /// Changes the rules. All objects have to be applied again.
    pub fn set_rules(&mut self, zones: Arc<[Zone]>, policy: Arc<HostnamePolicy>) {
        self.rules = Rules { zones, policy, ..self.rules.clone() };
        self.is_complete = false;
    }

    /// Returns whether these zones have the same names of the source as the present ones.
    #[must_use]
    pub fn has_zones(&self, zones: &[Zone]) -> bool {
        let of_source = |zones: &[Zone]| -> Vec<Zone> {
            zones.iter().filter(|zone| zone.has(&K::SOURCE)).cloned().collect()
        };
        of_source(&self.rules.zones) == of_source(zones)
    }

    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Takes the begin of a list of a namespace (`None`: of all).
    pub fn begin_list(&mut self, namespace: Option<&str>) {
        self.unreadable.retain(|known| namespace.is_some_and(|namespace| **known != *namespace));
    }

    /// Takes an object that can't be decoded. What is known of it stays.
    pub fn set_unreadable(&mut self, key: &ServiceKey) {
        self.unreadable.insert(key.namespace().into());
    }

    /// Returns the errors of single objects.
    pub fn errors(&mut self) -> &mut ObjectErrors {
        &mut self.errors
    }

    /// Returns the keys of all objects.
    #[must_use]
    pub fn keys(&self) -> HashSet<ServiceKey> {
        self.names.objects().map(|id| id.key.clone()).collect()
    }

    /// Takes a version of an object. Its names are published by [`Self::publish`].
    pub fn apply(&mut self, object: K) {
        self.take(object, false);
    }

    fn take(&mut self, object: K, is_checked_again: bool) {
        let (metadata, id) = (object.meta(), id_of::<K>(object.meta()));
        let version = metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        // With a deletionTimestamp an object counts as gone, as load balancers do.
        if metadata.deletion_timestamp.is_some() || !self.selection.takes(metadata) {
            return self.remove(&id.key);
        }
        let before = self.names.get(&id).map(|before| Arc::clone(&before.link));
        let (now, rejections) = observe(&object, &self.rules, before.as_ref());
        let is_dependent = has_own_target(&object, &self.rules.policy);
        // The objects that its target depends on may not be listed yet.
        if !is_dependent || self.is_listed || is_checked_again {
            self.report(&id, metadata.uid.as_deref().unwrap_or_default(), &rejections);
        }
        self.log(&id, before.as_deref(), &now.link);
        self.version = self.version.max(version);
        self.changed.extend(self.names.set(&id, Some(now)));
        if !is_dependent {
            self.dependent.remove(&id.key);
        } else if self.dependent.len() < MAX_DEPENDENT || self.dependent.contains_key(&id.key) {
            self.dependent.insert(id.key, object);
        }
    }

    /// Takes the end of an object.
    pub fn remove(&mut self, key: &ServiceKey) {
        let id = ObjectId { key: key.clone(), kind: K::KIND };
        self.errors.set(key, None);
        self.dependent.remove(key);
        if let Some(before) = self.names.get(&id) {
            self.link_reporter
                .log
                .about(K::KIND.api().1)
                .info(key, format_args!("{} {key}: {} → gone", K::KIND.api().1, shown(Some(&before.link))));
            let ended = self.names.set(&id, None);
            self.ended.extend(ended.iter().cloned());
            self.changed.extend(ended);
        }
    }

    /// Gives the names of changed objects to the store. Before everything is listed these are only names that the
    /// store has: another one may belong to an object that isn't known yet.
    pub fn publish(&mut self) {
        let (mut changed, ended) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.ended));
        if self.is_complete {
            changed.append(&mut self.held);
        }
        let (now, later): (BTreeSet<ServiceKey>, _) = changed.into_iter().partition(|name| {
            let lives = || ended.contains(name) || self.names.asking(name).next().is_some();
            self.is_complete || self.rules.store.has(&owner_of::<K>(name)) && lives()
        });
        self.held.extend(later);
        let version = if self.held.is_empty() { self.version.take() } else { None };
        let now: Vec<ServiceKey> = now.into_iter().collect();
        // The lock isn't held for long: Services change, too.
        let mut chunks = now.chunks(CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            let mut all = Vec::with_capacity(chunk.len());
            for name in chunk {
                let behind = self.names.behind(name);
                self.report_cut(name, behind.as_ref().and_then(|behind| behind.cut.clone()));
                let observed = behind.map(|Behind { created, link, .. }| {
                    (Claims { created, names: [name.name().into()].into() }, link)
                });
                all.push((owner_of::<K>(name), observed));
            }
            self.rules.store.observe_all(all, version.filter(|_| chunks.peek().is_none()));
        }
        self.check_lost(now);
    }

    /// Reports that not all objects count for a name, if that is new.
    fn report_cut(&mut self, name: &ServiceKey, cut: Option<ObjectId>) {
        let Some(id) = cut else {
            self.cut.remove(name);
            return;
        };
        if !self.cut.insert(name.clone()) {
            return;
        }
        let note = format!(
            "for the DNS name {} the {MAX_SHARED} oldest {} of the namespace, and {MAX_SHARED} addresses, count: this \
             and newer ones don't, or not wholly",
            name.name(),
            K::MANY
        );
        let (kind, key) = (K::KIND.api().1, &id.key);
        self.link_reporter.log.about(kind).warn(key, format_args!("{kind} {key}: {note}"));
        if let Some(object) = self.names.get(&id).filter(|_| self.is_listed) {
            let regarding = regarding(&id, &object.link.uid.to_string());
            self.link_reporter.recorder.record(regarding, Reason::HostnameRefused, &note);
        }
    }

    /// Takes the end of the lists of all objects, and publishes their names.
    pub fn end_lists(&mut self) {
        self.is_complete = true;
        self.publish();
        // An earlier run of the source may have left names.
        let known: HashSet<&ServiceKey> = self.names.names().collect();
        let is_left = |key: &ServiceKey| !known.contains(key) && !self.unreadable.contains(key.namespace());
        for key in self.rules.store.owners_of(&K::SOURCE).into_iter().filter(is_left) {
            self.rules.store.forget(Owner { source: K::SOURCE, key });
        }
        if !self.is_listed {
            info!("ready: {}: {}; DNS names: {}", K::MANY, self.names.objects().count(), known.len());
        }
        self.recheck();
        self.is_listed = true;
        let origins = &self.rules.policy.targets.zones;
        let is_checked = |zone: &&Zone| origins.iter().any(|origin| Zone::from(origin).origin == zone.origin);
        let zones: Vec<Zone> = self.rules.zones.iter().filter(is_checked).cloned().collect();
        self.rules.store.set_listed(&K::SOURCE, &zones);
    }

    /// Takes a change of the store.
    pub fn on_change(&mut self, change: &LinkChange) {
        let LinkChange { owner, before, after } = change;
        if !self.dependent.is_empty() && self.recheck_at.is_none() {
            self.recheck_at = Some(Instant::now() + RECHECK_AFTER);
        }
        // Without a change of its own, an owner has gained or lost names.
        let is_same = matches!((before, after), (Some(before), Some(after)) if Arc::ptr_eq(before, after));
        if owner.source == K::SOURCE && is_same {
            self.check_lost([owner.key.clone()]);
        }
    }

    /// Makes up for changes of the store that were missed.
    pub fn check_all(&mut self) {
        let names: Vec<ServiceKey> = self.names.names().cloned().collect();
        self.check_lost(names);
        self.recheck();
    }

    /// Checks the objects again whose targets depend on other objects.
    pub fn recheck(&mut self) {
        self.recheck_at = None;
        let dependent: Vec<K> = self.dependent.values().cloned().collect();
        dependent.into_iter().for_each(|object| self.take(object, true));
        // An old version says nothing about the age of the names.
        self.version = None;
        self.publish();
    }

    /// Reports what of an object is invalid or denied, if it is new.
    fn report(&mut self, id: &ObjectId, uid: &str, rejections: &[Rejection]) {
        let new = self.errors.set_parts(&id.key, rejections);
        if !self.is_listed {
            return;
        }
        for (field, reason) in [
            (RejectedField::Target, Reason::TargetRefused),
            (RejectedField::Hostname, Reason::HostnameRefused),
            (RejectedField::Annotation, Reason::AnnotationIgnored),
        ] {
            let of_field = new.iter().filter(|rejection| rejection.kind == field);
            let note = of_field.map(ToString::to_string).collect::<Vec<_>>().join("; ");
            if !note.is_empty() {
                self.link_reporter.recorder.record(regarding(id, uid), reason, &note);
            }
        }
    }

    fn log(&self, id: &ObjectId, before: Option<&Link>, now: &Link) {
        let is_same = before.is_some_and(|before| before.target == now.target && before.state == now.state);
        if !self.is_listed || is_same {
            return;
        }
        let (log, kind, key) = (self.link_reporter.log.about(K::KIND.api().1), K::KIND.api().1, &id.key);
        match (&now.target, now.state) {
            (Some(target), LinkState::Stale) => {
                let why = if now.refused { "the new target isn't allowed" } else { "the status is blank" };
                let note = format!("{why}; {target} stays the target");
                log.warn(key, format_args!("{kind} {key}: {note}"));
                let regarding = regarding(id, &now.uid.to_string());
                self.link_reporter.recorder.record(regarding, Reason::TargetStale, &note);
            }
            _ => log.info(key, format_args!("{kind} {key}: {} → {}", shown(before), shown(Some(now)))),
        }
    }

    /// Tells objects which of these names other owners have.
    fn check_lost(&mut self, names: impl IntoIterator<Item = ServiceKey>) {
        let mut news: BTreeMap<ObjectId, Vec<ServiceKey>> = BTreeMap::new();
        for name in names {
            if self.rules.store.lost_names(&owner_of::<K>(&name)).is_empty() {
                self.lost.remove(&name);
                continue;
            }
            let asking: BTreeSet<ObjectId> = self.names.asking(&name).take(MAX_SHARED).cloned().collect();
            let told = self.lost.insert(name.clone(), asking.clone()).unwrap_or_default();
            for id in asking.into_iter().filter(|id| !told.contains(id)) {
                news.entry(id).or_default().push(name.clone());
            }
        }
        for (id, names) in news {
            let hosts = examples(names.iter().map(ServiceKey::name));
            let note = format!("it doesn't get DNS names that another object has: {hosts}");
            let (kind, key) = (K::KIND.api().1, &id.key);
            self.link_reporter.log.about(kind).warn(key, format_args!("{kind} {key}: {note}"));
            if let Some(object) = self.names.get(&id).filter(|_| self.is_listed) {
                let regarding = regarding(&id, &object.link.uid.to_string());
                self.link_reporter.recorder.record(regarding, Reason::Conflict, &note);
            }
        }
    }
}

fn owner_of<K: NamedObject>(name: &ServiceKey) -> Owner {
    Owner { source: K::SOURCE, key: name.clone() }
}

fn regarding(id: &ObjectId, uid: &str) -> Regarding {
    Regarding { kind: id.kind, ..Regarding::new(&id.key, uid) }
}

fn shown(link: Option<&Link>) -> String {
    match link.map(|link| &link.target) {
        None => "none".to_owned(),
        Some(None) => "pending".to_owned(),
        Some(Some(target)) => target.to_string(),
    }
}

#[cfg(test)]
mod tests;
