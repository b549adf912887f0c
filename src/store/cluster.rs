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
pub mod objects;
mod question;
mod records;
pub mod registry;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::model::service_key::ServiceKey;
use answer::{Answer, LookUp, Rules};
use external::ExternalRules;
use index::{Index, Touched, Tree};
use objects::{Addressing, External, Kind, Service, Slice};
use registry::ClusterSpec;

use super::name_slots::{NameDependency, NameSlots};

/// The objects of a cluster that one connection and one selection of objects show.
#[derive(Debug)]
pub struct Cluster {
    spec: ClusterSpec,
    index: RwLock<Index>,
    slots: Arc<NameSlots>,
    /// The Unix time of the last change.
    serial: Arc<AtomicU64>,
    /// That of the last change of external names, too.
    external_serial: Arc<AtomicU64>,
    /// That of the last change of ServiceImports, their slices, namespaces and Pods.
    import_serial: Arc<AtomicU64>,
    /// Whether each kind has had a complete list, in the order of [`Kind::ALL`].
    listed: Mutex<[bool; Kind::ALL.len()]>,
    is_listed: AtomicBool,
    all_listed: watch::Sender<bool>,
    /// Why each kind can't be listed at present.
    failures: Mutex<[Option<Box<str>>; Kind::ALL.len()]>,
}

impl Cluster {
    #[must_use]
    pub fn new(spec: ClusterSpec) -> Self {
        Self {
            spec,
            index: RwLock::default(),
            slots: Arc::default(),
            serial: Arc::default(),
            external_serial: Arc::default(),
            import_serial: Arc::default(),
            listed: Mutex::default(),
            is_listed: AtomicBool::new(false),
            all_listed: watch::Sender::new(false),
            failures: Mutex::default(),
        }
    }

    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    // === changes ===

    /// Adds or replaces a Service; `None` removes it.
    pub fn set_service(&self, key: &ServiceKey, service: Option<Service>) {
        if service.is_none() {
            self.set_externals(key, Vec::new());
        }
        self.change(|index, touched| index.set_service(&dotted(key), service, touched));
    }

    /// Sets the addresses and hostnames of a Service outside of the cluster.
    pub fn set_externals(&self, key: &ServiceKey, all: Vec<External>) {
        let serials = [&self.external_serial];
        self.change_with(&serials, |index, touched| index.set_externals(&dotted(key), all, touched));
    }

    /// Adds or replaces an EndpointSlice of a Service; `None` removes it.
    pub fn set_slice(&self, key: &ServiceKey, slice: Option<(&str, Slice)>) {
        let slice = slice.map(|(service, slice)| (format!("{service}.{}", key.namespace()), slice));
        self.change(|index, touched| index.set_slice(&key.to_string(), slice, touched));
    }

    /// Adds or replaces a ServiceImport; `None` removes it.
    pub fn set_import(&self, key: &ServiceKey, import: Option<Service>) {
        self.change_with(&[&self.import_serial], |index, touched| {
            index.change_imports(touched, |imports, touched| {
                imports.set_service(&dotted(key), import, touched)
            })
        });
    }

    /// Adds or replaces an EndpointSlice of a ServiceImport; `None` removes it.
    pub fn set_import_slice(&self, key: &ServiceKey, slice: Option<(&str, Slice)>) {
        let slice = slice.map(|(import, slice)| (format!("{import}.{}", key.namespace()), slice));
        self.change_with(&[&self.import_serial], |index, touched| {
            index.change_imports(touched, |imports, touched| {
                imports.set_slice(&key.to_string(), slice, touched)
            })
        });
    }

    /// Adds or removes a namespace.
    pub fn set_namespace(&self, name: &str, exists: bool) {
        let serials = [&self.serial, &self.external_serial, &self.import_serial];
        self.change_with(&serials, |index, touched| index.set_namespace(name, exists, touched));
    }

    /// Sets the addresses of a Pod; none removes it.
    pub fn set_pod(&self, key: &ServiceKey, addresses: &[IpAddr]) {
        let serials = [&self.serial, &self.import_serial];
        self.change_with(&serials, |index, touched| index.set_pod(&key.to_string(), addresses, touched));
    }

    /// Removes an object. The key of a namespace has no namespace.
    pub fn remove(&self, kind: Kind, key: &ServiceKey) {
        match kind {
            Kind::Services => self.set_service(key, None),
            Kind::Slices => {
                self.set_slice(key, None);
                self.set_import_slice(key, None);
            }
            Kind::Imports => self.set_import(key, None),
            Kind::Namespaces => self.set_namespace(key.name(), false),
            Kind::Pods => self.set_pod(key, &[]),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Index, &mut Touched<'_>) -> bool) {
        self.change_with(&[&self.serial, &self.external_serial], change);
    }

    /// Makes a change, which returns whether there is one for DNS, and raises these serials.
    fn change_with(
        &self,
        serials: &[&Arc<AtomicU64>],
        change: impl FnOnce(&mut Index, &mut Touched<'_>) -> bool,
    ) {
        let mut index = self.index.write();
        let mut touched = Touched::new(&self.slots);
        if !change(&mut index, &mut touched) {
            return;
        }
        // No look-up is under way: it would hold the lock.
        drop(self.slots.begin(touched.into_slots()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        for serial in serials {
            serial.fetch_max(now, Ordering::Relaxed);
        }
    }

    // === state ===

    /// Records that the list of a kind is complete.
    pub fn set_listed(&self, kind: Kind) {
        self.set_failure(kind, None);
        let mut listed = self.listed.lock();
        listed[kind as usize] = true;
        if Kind::ALL.iter().all(|kind| listed[*kind as usize] || !self.spec.has(*kind)) {
            self.is_listed.store(true, Ordering::Release);
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

    /// Returns the serial of the zones, of which DNS has the low 32 bits: the Unix time of the last change.
    #[must_use]
    pub fn serial(&self) -> &Arc<AtomicU64> {
        &self.serial
    }

    /// As [`Self::serial`], for external names.
    #[must_use]
    pub fn external_serial(&self) -> &Arc<AtomicU64> {
        &self.external_serial
    }

    /// As [`Self::serial`], for names of ServiceImports.
    #[must_use]
    pub fn import_serial(&self) -> &Arc<AtomicU64> {
        &self.import_serial
    }

    /// Answers a question for a name in a zone, both in wire form with the root octet, in lower case. The zone is one of
    /// `rules`.
    #[must_use]
    pub fn answer(&self, rules: &Rules, zone: &[u8], name: &[u8], qtype: u16) -> Answer {
        let index = self.index.read();
        LookUp::new(&index, &self.slots, rules, zone).answer(name, qtype)
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
        LookUp::new(&index, &self.slots, rules, zone).external(external, name, qtype)
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

/// Returns `<service>.<namespace>`.
fn dotted(key: &ServiceKey) -> String {
    let (namespace, name) = key.parts();
    format!("{name}.{namespace}")
}
