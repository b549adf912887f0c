//! What is known of a source's objects, and what the store knows of their names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::RwLock;
use tokio::time::Instant;
use tracing::info;

use super::bound::MAX_BYTES;
use super::object::Rules;
use super::shared::{Behind, Change, Claim, MAX_SHARED, ObjectId, Observation, SharedNames};
use crate::model::excerpt::examples;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange, LinkState};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::Store;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::events::{Reason, Regarding, RegardingKind};
use crate::sync::k8s::errors::ObjectErrors;
use crate::sync::source::selection::Selection;

/// How long changes of other objects are collected before these objects are checked again.
const RECHECK_AFTER: Duration = Duration::from_millis(500);
/// The same while sources are listed: names count as complete soon, and so have to be these.
const RECHECK_AT_START: Duration = Duration::from_millis(20);
/// How long objects that have room again wait until they are listed.
const LIST_AFTER: Duration = Duration::from_secs(300);
/// The number of names that are published at once.
const CHUNK: usize = 256;

/// The names of a source.
pub struct NameState {
    source: Source,
    /// The objects that ask for names, in sentences.
    many: &'static str,
    pub(in crate::sync::source) rules: Rules,
    selection: Arc<Selection>,
    link_reporter: LinkReporter,
    names: Arc<RwLock<SharedNames>>,
    /// What is behind the names, by the object that decides about it.
    targets: HashMap<ObjectId, Arc<Link>>,
    errors: BTreeMap<RegardingKind, ObjectErrors>,
    /// The names that changed objects ask for, and the newest resourceVersion of these objects.
    changed: BTreeSet<ServiceKey>,
    version: Option<u64>,
    /// The names that wait until everything is listed.
    held: BTreeSet<ServiceKey>,
    /// The names that wait for their turn to be published.
    unpublished: BTreeSet<ServiceKey>,
    /// The names whose target is denied, until all names are known: it may be one of them. DNS would answer that they
    /// have no addresses.
    refused: Option<BTreeSet<ServiceKey>>,
    /// When objects whose targets depend on other objects are to be checked again.
    pub recheck_at: Option<Instant>,
    /// When all objects are to be listed again, because there is room for some that didn't count.
    pub list_at: Option<Instant>,
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
    unreadable: HashSet<(RegardingKind, Box<str>)>,
}

impl NameState {
    #[must_use]
    pub fn new(
        (source, many): (Source, &'static str),
        store: Arc<Store>,
        selection: Arc<Selection>,
        link_reporter: LinkReporter,
    ) -> Self {
        let names: Arc<RwLock<SharedNames>> = Arc::default();
        let asked = Arc::clone(&names);
        link_reporter.findings.asking.set(source.clone(), move |name| {
            asked.read().asking(name).take(MAX_SHARED).map(|id| (id.kind, id.key.clone())).collect()
        });
        Self {
            source,
            many,
            rules: Rules { zones: store.zones(), policy: Arc::default(), store },
            selection,
            link_reporter,
            names,
            targets: HashMap::new(),
            errors: BTreeMap::new(),
            changed: BTreeSet::new(),
            version: None,
            held: BTreeSet::new(),
            unpublished: BTreeSet::new(),
            refused: Some(BTreeSet::new()),
            recheck_at: None,
            list_at: None,
            lost: HashMap::new(),
            cut: HashSet::new(),
            is_listed: false,
            is_complete: false,
            ended: HashSet::new(),
            unreadable: HashSet::new(),
        }
    }

    /// Changes the rules. All objects have to be applied again.
    pub(super) fn set_rules(&mut self, zones: Arc<[Zone]>, policy: Arc<HostnamePolicy>) {
        self.names.write().set_zones(&zones);
        self.rules = Rules { zones, policy, ..self.rules.clone() };
        self.is_complete = false;
    }

    /// Returns the source, with its cluster.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    #[must_use]
    pub fn zones(&self) -> &[Zone] {
        &self.rules.zones
    }

    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns whether all objects are known under the present rules.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Takes the begin of a list of a kind, in a namespace (`None`: in all).
    pub fn begin_list(&mut self, kind: RegardingKind, namespace: Option<&str>) {
        let within = |known: &str| namespace.is_none_or(|namespace| *known == *namespace);
        self.unreadable.retain(|(of_kind, known)| *of_kind != kind || !within(known));
    }

    /// Takes an object that can't be decoded. What is known of it stays.
    pub fn set_unreadable(&mut self, id: &ObjectId, why: &str) {
        let why = format!("it can't be read and counts as it was: {why}");
        self.errors(id.kind).set(&id.key, Some(why));
        self.unreadable.insert((id.kind, id.key.namespace().into()));
    }

    /// Returns the errors of single objects of a kind.
    pub fn errors(&mut self, kind: RegardingKind) -> &mut ObjectErrors {
        let LinkReporter { log, findings, .. } = &self.link_reporter;
        let texts = || findings.asking.texts(self.source.cluster.as_deref(), kind);
        let shown = || ObjectErrors::shown_in(&texts(), kind.api().1, log.clone());
        self.errors.entry(kind).or_insert_with(shown)
    }

    /// Returns the objects that decide about targets.
    pub fn targets(&self) -> impl Iterator<Item = &ObjectId> {
        self.targets.keys()
    }

    /// Returns what is behind the names for which an object decides.
    #[must_use]
    pub fn target(&self, id: &ObjectId) -> Option<&Arc<Link>> {
        self.targets.get(id)
    }

    /// Returns the uid of an object that decides about a target, or asks for names.
    #[must_use]
    pub fn uid(&self, id: &ObjectId) -> Option<Uid> {
        let of_target = self.targets.get(id).map(|target| target.uid.clone());
        of_target.or_else(|| self.names.read().get(id).map(|object| object.uid.clone()))
    }

    /// Returns the objects that ask for names.
    #[must_use]
    pub fn objects(&self) -> HashSet<ServiceKey> {
        self.names.read().objects().map(|id| id.key.clone()).collect()
    }

    /// Returns what an object asks for, sorted by name.
    #[must_use]
    pub fn claims(&self, id: &ObjectId) -> Vec<Claim> {
        self.names.read().get(id).map(|object| object.claims().to_vec()).unwrap_or_default()
    }

    /// Logs a change of an object that decides about each of its names, once everything is listed.
    pub fn log_names(&self, id: &ObjectId, note: &str) {
        let (kind, key) = (id.kind.api().1, &id.key);
        if self.is_listed {
            self.link_reporter.log.about(kind).info(key, format_args!("{kind} {key}: {note}"));
        }
    }

    /// Replaces what is behind the names for which an object decides. Names that are known lead there at once; the names of
    /// this and other objects follow by [`Self::set_names`].
    pub fn set_target(&mut self, id: &ObjectId, now: Arc<Link>) {
        let before = self.targets.insert(id.clone(), Arc::clone(&now));
        // Of several objects with a name another one may have a target.
        if let Some(before) = before.as_ref().filter(|before| before.key == now.key && now.target.is_some()) {
            self.rules.store.supersede(before, &now);
        }
        self.log(id, before.as_deref(), &now);
    }

    /// Replaces the names that an object asks for. They are published in parts, by the work of the source.
    pub fn set_names(&mut self, id: &ObjectId, now: Observation) {
        self.set(id, Some(now));
    }

    /// Replaces what an object asks for. Returns the names that are concerned.
    fn set(&mut self, id: &ObjectId, now: Option<Observation>) -> Vec<ServiceKey> {
        let mut names = self.names.write();
        let Change { names: concerned, excess } = names.set(id, now);
        if names.take_room() && self.list_at.is_none() {
            self.list_at = Some(Instant::now() + LIST_AFTER);
        }
        drop(names);
        for (id, uid) in excess {
            let note = format!(
                "it gets no DNS names: of the {} of its namespace the oldest count, up to {} MiB of names and records",
                self.many,
                MAX_BYTES >> 20
            );
            let (kind, key) = (id.kind.api().1, &id.key);
            self.link_reporter.log.about(kind).warn(key, format_args!("{kind} {key}: {note}"));
            if self.is_listed {
                let regarding = regarding(&id, &uid.to_string());
                self.link_reporter.recorder.record(regarding, Reason::HostnameRefused, &note);
            }
        }
        self.changed.extend(concerned.iter().cloned());
        concerned
    }

    /// Gives the names of an object the present version of a target that they have already.
    pub fn update_target(&mut self, id: &ObjectId, now: &Arc<Link>) {
        self.changed.extend(self.names.write().set_target(id, now));
    }

    /// Takes the version of an object that has changed.
    pub fn note_version(&mut self, metadata: &ObjectMeta) {
        let version = metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        self.version = self.version.max(version);
    }

    /// Takes that an object doesn't decide about a target any more.
    pub fn remove_target(&mut self, id: &ObjectId) {
        if self.targets.contains_key(id) {
            self.errors(id.kind).set(&id.key, None);
            self.end_target(id, "none");
        }
    }

    fn end_target(&mut self, id: &ObjectId, now: &str) {
        if let Some(before) = self.targets.remove(id) {
            let (kind, key) = (id.kind.api().1, &id.key);
            let log = self.link_reporter.log.about(kind);
            log.info(key, format_args!("{kind} {key}: {} → {now}", shown(Some(&before))));
        }
    }

    /// Takes the end of an object.
    pub fn remove(&mut self, id: &ObjectId) {
        self.errors(id.kind).set(&id.key, None);
        self.end_target(id, "gone");
        let ended = self.set(id, None);
        self.ended.extend(ended);
    }

    /// Returns whether names wait to be published.
    #[must_use]
    pub fn has_unpublished(&self) -> bool {
        let waits = self.is_complete && !self.held.is_empty();
        waits || !self.changed.is_empty() || !self.unpublished.is_empty()
    }

    /// Publishes all names of changed objects at once.
    #[cfg(test)]
    pub fn publish(&mut self) {
        while self.has_unpublished() {
            self.publish_part();
        }
    }

    /// Gives names of changed objects to the store, [`CHUNK`] at most: the lock isn't held for long, and subscribers of the
    /// store's feed get their turn between two parts. Before everything is listed these are only names that the store has:
    /// another one may belong to an object that isn't known yet.
    pub(super) fn publish_part(&mut self) {
        let (mut changed, ended) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.ended));
        if self.is_complete {
            changed.append(&mut self.held);
        }
        let (now, later): (BTreeSet<ServiceKey>, _) = changed.into_iter().partition(|name| {
            let lives = || ended.contains(name) || self.names.read().asking(name).next().is_some();
            self.is_complete || self.rules.store.has(&self.owner_of(name)) && lives()
        });
        self.held.extend(later);
        self.unpublished.extend(now);
        let rest = self.unpublished.iter().nth(CHUNK).cloned();
        let rest = rest.map(|first| self.unpublished.split_off(&first)).unwrap_or_default();
        let now = std::mem::replace(&mut self.unpublished, rest);
        let is_last = self.held.is_empty() && self.unpublished.is_empty();
        let version = if is_last { self.version.take() } else { None };
        let mut all = Vec::with_capacity(now.len());
        for name in &now {
            let behind = self.names.write().behind(name);
            self.report_cut(name, behind.as_ref().and_then(|behind| behind.cut.clone()));
            if let Some(refused) = &mut self.refused
                && behind.as_ref().is_some_and(|Behind { link, .. }| link.refused && !link.has_data())
            {
                refused.insert(name.clone());
                continue;
            }
            let observed = behind.map(|Behind { created, link, kind, .. }| {
                let of_kind =
                    |kind: RegardingKind| Source { kind: kind.api().1.into(), ..self.source.clone() };
                let listed = kind.map(of_kind).map(Box::new);
                (Claims { created, names: [name.name().into()].into(), listed }, link)
            });
            all.push((name.clone(), observed));
        }
        self.rules.store.observe_all(&self.source, all, version);
        // Which objects share a name is no change of the store.
        self.link_reporter.findings.asking.note_change();
        self.check_lost(now);
    }

    /// Returns the number of names that an object asks for.
    #[must_use]
    pub fn number_of_names(&self, id: &ObjectId) -> usize {
        self.names.read().number_of(id)
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
            self.many
        );
        let (kind, key) = (id.kind.api().1, &id.key);
        self.link_reporter.log.about(kind).warn(key, format_args!("{kind} {key}: {note}"));
        self.tell(&id, Reason::HostnameRefused, &note);
    }

    /// Records that all objects are known under the present rules. All names are published again: the store may have
    /// forgotten them, with the source.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
        self.changed.extend(self.names.read().names().cloned());
    }

    /// Lets names be published whose target is denied: all names are known.
    pub(super) fn publish_refused(&mut self) {
        self.changed.extend(self.refused.take().into_iter().flatten());
    }

    /// Removes all names of the source but those of its objects, which are known now and published.
    pub(super) fn forget_unknown(&mut self) {
        // An earlier run of the source may have left names.
        let names = self.names.read();
        let known: HashSet<&ServiceKey> = names.names().collect();
        let has_unreadable = |namespace: &str| self.unreadable.iter().any(|(_, known)| **known == *namespace);
        let is_left = |key: &ServiceKey| !known.contains(key) && !has_unreadable(key.namespace());
        for key in self.rules.store.owners_of(&self.source).into_iter().filter(is_left) {
            self.rules.store.forget(self.owner_of(&key));
        }
        if !self.is_listed {
            let (objects, names) = (names.objects().count(), known.len());
            let place = self.source.place();
            info!("ready: {}{place} with DNS names: {objects}; DNS names: {names}", self.many);
        }
    }

    /// Records in the store that the names of the source are known.
    pub(super) fn set_listed(&mut self) {
        self.is_listed = true;
        let origins = &self.rules.policy.targets.zones;
        // The domain of a remote cluster lies in its zone.
        let is_checked =
            |zone: &&Zone| origins.iter().any(|origin| Zone::from(origin).below(&zone.origin).is_some());
        let zones: Vec<Zone> = self.rules.zones.iter().filter(is_checked).cloned().collect();
        self.rules.store.set_listed(&self.source, &zones);
    }

    /// Takes a change of the store.
    pub fn on_change(&mut self, change: &LinkChange, has_dependent: bool) {
        let LinkChange { owner, before, after } = change;
        if has_dependent && self.recheck_at.is_none() {
            let is_start = !self.rules.store.has_listed(&self.rules.zones);
            let pause = if is_start { RECHECK_AT_START } else { RECHECK_AFTER };
            self.recheck_at = Some(Instant::now() + pause);
        }
        // Without a change of its own, an owner has gained or lost names.
        let is_same = matches!((before, after), (Some(before), Some(after)) if Arc::ptr_eq(before, after));
        if owner.source == self.source && is_same {
            self.check_lost([owner.key.clone()]);
        }
    }

    /// Makes up for changes of the store that were missed.
    pub(super) fn check_all(&mut self) {
        let names: Vec<ServiceKey> = self.names.read().names().cloned().collect();
        self.check_lost(names);
    }

    /// Forgets the newest version, for names of objects that haven't changed themselves: an old version says nothing about
    /// the age of the names.
    pub(super) fn forget_version(&mut self) {
        self.version = None;
    }

    /// Reports what of an object is invalid or denied, if it is new.
    pub fn report(&mut self, id: &ObjectId, uid: &str, rejections: &[Rejection]) {
        let is_listed = self.is_listed;
        let new = self.errors(id.kind).set_parts(&id.key, rejections);
        if !is_listed {
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
        let (kind, key) = (id.kind.api().1, &id.key);
        let log = self.link_reporter.log.about(kind);
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
            let is_lost = self.rules.store.has_lost_names(&self.owner_of(&name));
            let names = self.names.read();
            let asking: BTreeSet<ObjectId> = match is_lost {
                true => names.asking(&name).take(MAX_SHARED).cloned().collect(),
                false => names.overruled(&name),
            };
            drop(names);
            if asking.is_empty() {
                self.lost.remove(&name);
                continue;
            }
            let told = self.lost.insert(name.clone(), asking.clone()).unwrap_or_default();
            for id in asking.into_iter().filter(|id| !told.contains(id)) {
                news.entry(id).or_default().push(name.clone());
            }
        }
        for (id, names) in news {
            let hosts = examples(names.iter().map(ServiceKey::name));
            let has = |name: &ServiceKey| !self.rules.store.has_lost_names(&self.owner_of(name));
            let elsewhere = |name: &ServiceKey| -> Vec<ServiceKey> {
                self.names.read().elsewhere(&id, name).cloned().collect()
            };
            let note = match names.iter().all(|name| elsewhere(name).iter().any(has)) {
                true => format!(
                    "of its parents in several namespaces, those of one are behind DNS names: {hosts}"
                ),
                false => format!("it doesn't get DNS names that another object has: {hosts}"),
            };
            let (kind, key) = (id.kind.api().1, &id.key);
            self.link_reporter.log.about(kind).warn(key, format_args!("{kind} {key}: {note}"));
            self.tell(&id, Reason::Conflict, &note);
        }
    }

    /// Records an Event about an object that asks for names, once everything is listed.
    fn tell(&self, id: &ObjectId, reason: Reason, note: &str) {
        let uid = self.names.read().get(id).map(|object| object.uid.to_string());
        if let Some(uid) = uid.filter(|_| self.is_listed) {
            self.link_reporter.recorder.record(regarding(id, &uid), reason, note);
        }
    }

    fn owner_of(&self, name: &ServiceKey) -> Owner {
        Owner { source: self.source.clone(), key: name.clone() }
    }
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
