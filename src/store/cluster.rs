//! The objects that a cluster's own DNS is about, packed, and what DNS answers from them.
//!
//! `sync` writes them, as its watches tell; the plugin *kubernetes* reads them. A look-up holds the read lock while it
//! runs. An answer rests on flags of the objects that it is made of, and on slots of objects that would have to appear: a
//! change outdates these answers alone, and costs nothing where no answer is kept.

pub mod answer;
mod endpoints;
pub mod external;
pub mod first_lists;
mod index;
pub mod metrics;
pub mod names;
pub mod objects;
mod question;
pub mod records;
pub mod registry;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::model::service_key::ServiceKey;
use answer::{Answer, LookUp, Rules};
use external::ExternalRules;
use index::{Index, Touched, Tree};
use objects::{Addressing, External, Kind, Service, Slice};
use registry::ClusterSpec;

use super::change_time::unix_time;
use super::name_slots::{NameDependency, NameSlots};

/// The objects of a cluster that one connection and one selection of objects show.
#[derive(Debug)]
pub struct Cluster {
    spec: ClusterSpec,
    index: RwLock<Index>,
    /// Each writer holds it, and a copy: a writer that waited for the lock of `index` would keep look-ups waiting.
    writers: Mutex<()>,
    slots: Arc<NameSlots>,
    /// The Unix times of the last changes that zones show, in the order of [`View`].
    serials: [Arc<AtomicU64>; 4],
    /// Whether each kind has had a complete list, in the order of [`Kind::ALL`].
    listed: Mutex<[bool; Kind::ALL.len()]>,
    is_listed: AtomicBool,
    all_listed: watch::Sender<bool>,
    /// Why each kind can't be listed at present.
    failures: Mutex<[Option<Box<str>>; Kind::ALL.len()]>,
    /// Each block that answers from the objects, or is about to, has a clone.
    blocks: Arc<()>,
}

/// What a zone shows of the objects.
#[derive(Clone, Copy, Debug)]
pub enum View {
    /// The names of Services and Pods inside of the cluster.
    Inside,
    /// The external addresses of Services.
    External,
    /// As `External`, and headless Services and endpoints.
    ExternalHeadless,
    /// ServiceImports, and Pods.
    Imports,
}

impl View {
    pub const ALL: [Self; 4] = [Self::Inside, Self::External, Self::ExternalHeadless, Self::Imports];
}

impl Cluster {
    #[must_use]
    pub fn new(spec: ClusterSpec) -> Self {
        Self {
            spec,
            index: RwLock::default(),
            writers: Mutex::default(),
            slots: Arc::default(),
            serials: Default::default(),
            listed: Mutex::default(),
            is_listed: AtomicBool::new(false),
            all_listed: watch::Sender::new(false),
            failures: Mutex::default(),
            blocks: Arc::default(),
        }
    }

    /// Returns whether a block answers from the objects, or is about to.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        Arc::strong_count(&self.blocks) > 1
    }

    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    // === changes ===

    /// Adds or replaces a Service, and its addresses and hostnames outside of the cluster; `None` without them removes it.
    pub fn set_service(&self, key: &ServiceKey, service: Option<Service>, externals: &[External]) {
        let key = dotted(key);
        self.change(|index, touched| {
            let is_changed = index.set_service(&key, service, touched);
            let has_other_externals = index.set_externals(&key, externals, touched);
            match (is_changed, has_other_externals || is_changed && !externals.is_empty()) {
                (true, true) => &[View::Inside, View::External, View::ExternalHeadless],
                (true, false) => &[View::Inside, View::ExternalHeadless],
                (false, true) => &[View::External, View::ExternalHeadless],
                (false, false) => &[],
            }
        });
    }

    /// Adds or replaces an EndpointSlice of a Service; `None` removes it.
    pub fn set_slice(&self, key: &ServiceKey, slice: Option<(&str, Slice)>) {
        let slice = slice.map(|(service, slice)| (format!("{service}.{}", key.namespace()), slice));
        self.change(|index, touched| {
            shown_in(
                &[View::Inside, View::ExternalHeadless],
                index.set_slice(&key.to_string(), slice, touched),
            )
        });
    }

    /// Adds or replaces a ServiceImport; `None` removes it.
    pub fn set_import(&self, key: &ServiceKey, import: Option<Service>) {
        self.change(|index, touched| {
            shown_in(&[View::Imports], index.imports_mut().set_service(&dotted(key), import, touched))
        });
    }

    /// Adds or replaces an EndpointSlice of a ServiceImport; `None` removes it.
    pub fn set_import_slice(&self, key: &ServiceKey, slice: Option<(&str, Slice)>) {
        let slice = slice.map(|(import, slice)| (format!("{import}.{}", key.namespace()), slice));
        self.change(|index, touched| {
            shown_in(&[View::Imports], index.imports_mut().set_slice(&key.to_string(), slice, touched))
        });
    }

    /// Adds or removes a namespace.
    pub fn set_namespace(&self, name: &str, exists: bool) {
        self.change(|index, touched| shown_in(&View::ALL, index.set_namespace(name, exists, touched)));
    }

    /// Sets the addresses of a Pod; none removes it.
    pub fn set_pod(&self, key: &ServiceKey, addresses: &[IpAddr]) {
        self.change(|index, touched| {
            shown_in(&[View::Inside, View::Imports], index.set_pod(&key.to_string(), addresses, touched))
        });
    }

    /// Removes an object. The key of a namespace has no namespace.
    pub fn remove(&self, kind: Kind, key: &ServiceKey) {
        match kind {
            Kind::Services => self.set_service(key, None, &[]),
            Kind::Slices => {
                self.set_slice(key, None);
                if self.spec.has_imports {
                    self.set_import_slice(key, None);
                }
            }
            Kind::Imports => self.set_import(key, None),
            Kind::Namespaces => self.set_namespace(key.name(), false),
            Kind::Pods => self.set_pod(key, &[]),
        }
    }

    /// Makes a change, which returns the zones that show one, and raises their serials.
    fn change(&self, change: impl FnOnce(&mut Index, &mut Touched<'_>) -> &'static [View]) {
        let _writer = self.writers.lock();
        let mut index = self.index.write();
        let mut touched = Touched::new(&self.slots);
        let views = change(&mut index, &mut touched);
        if views.is_empty() {
            return;
        }
        // No look-up is under way: it would hold the lock.
        drop(self.slots.begin(touched.into_slots()));
        self.raise_serials(views);
    }

    fn raise_serials(&self, views: &[View]) {
        let now = unix_time();
        for view in views {
            self.serial(*view).fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Notes that answers from now on may differ from those before although no object has changed, as after a change of the
    /// configuration; before all is listed, that is noted when it is.
    pub fn note_other_answers(&self) {
        let _writer = self.writers.lock();
        let _no_reader = self.index.write();
        if self.is_listed() {
            self.raise_serials(&View::ALL);
        }
    }

    /// Returns a copy of the objects, but for Pods, which stays as they are now. It takes some milliseconds for 10,000
    /// Services, in which writers wait, but no look-up does.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::new(self.spec.clone());
        copy.is_listed.store(self.is_listed(), Ordering::Relaxed);
        let _no_writer = self.writers.lock();
        let index = self.index.read().copy();
        Self { index: RwLock::new(index), ..copy }
    }

    // === state ===

    /// Records that the list of a kind is complete.
    pub fn set_listed(&self, kind: Kind) {
        self.set_failure(kind, None);
        let mut listed = self.listed.lock();
        listed[kind as usize] = true;
        if Kind::ALL.iter().all(|kind| listed[*kind as usize] || !self.spec.has(*kind)) {
            if !self.is_listed.swap(true, Ordering::AcqRel) {
                // What an earlier process has served may differ.
                self.note_other_answers();
            }
            self.all_listed.send_replace(true);
        }
    }

    /// Returns whether each kind has had a complete list: from here on, what isn't there doesn't exist.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    /// Waits until each kind has had a complete list.
    pub async fn listed(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.all_listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Sets or clears why a kind can't be listed, as a sentence.
    pub fn set_failure(&self, kind: Kind, why: Option<&str>) {
        self.failures.lock()[kind as usize] = why.map(Into::into);
    }

    /// Returns why objects can't be listed at present; `None` if nothing is known to keep them from it.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failures = self.failures.lock();
        failures.iter().flatten().next().map(ToString::to_string)
    }

    /// Returns the keys of all objects of a kind.
    #[must_use]
    pub fn keys(&self, kind: Kind) -> HashSet<ServiceKey> {
        self.index.read().keys(kind)
    }

    /// Returns whether a Service is headless; `None` if it doesn't exist.
    #[must_use]
    pub fn is_headless(&self, key: &ServiceKey) -> Option<bool> {
        let index = self.index.read();
        let service = index.entry(&dotted(key))?.service.as_ref()?;
        Some(service.addressing == Addressing::Headless)
    }

    /// Returns the number of objects of a kind.
    #[must_use]
    pub fn number(&self, kind: Kind) -> usize {
        self.index.read().number(kind)
    }

    /// Returns the serial of a zone, of which DNS has the low 32 bits: the Unix time of the last change that it shows.
    #[must_use]
    pub fn serial(&self, view: View) -> &Arc<AtomicU64> {
        &self.serials[view as usize]
    }

    /// Answers a question for a name in a zone, both in wire form with the root octet, in lower case. The zone is one of
    /// `rules`.
    #[must_use]
    pub fn answer(&self, rules: &Rules, zone: &[u8], name: &[u8], qtype: u16) -> Answer {
        let index = self.index.read();
        LookUp::new(&index, &self.slots, rules, zone, self.is_listed()).answer(name, qtype)
    }

    /// As [`Self::answer`], for a name in a zone of `external`.
    #[must_use]
    pub fn external_answer(
        &self,
        rules: &Rules,
        external: &ExternalRules,
        zone: &[u8],
        name: &[u8],
        qtype: u16,
    ) -> Answer {
        let index = self.index.read();
        LookUp::new(&index, &self.slots, rules, zone, self.is_listed()).external(external, name, qtype)
    }

    /// Returns the Pod with an address, and what that rests on.
    #[must_use]
    pub fn pod_at(&self, ip: IpAddr) -> (Option<ServiceKey>, NameDependency) {
        let index = self.index.read();
        let mut touched = Touched::new(&self.slots);
        touched.add_address(Tree::Pod, ip);
        let (all, changes) = NameDependency::on_all(&self.slots);
        (index.pod_at(ip), all.with_slots(touched.into_slots(), changes))
    }
}

/// Returns the zones that show a change, if there is one.
fn shown_in(views: &'static [View], is_changed: bool) -> &'static [View] {
    if is_changed { views } else { &[] }
}

/// Returns `<service>.<namespace>`.
fn dotted(key: &ServiceKey) -> String {
    let (namespace, name) = key.parts();
    format!("{name}.{namespace}")
}
