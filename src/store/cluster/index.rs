//! The packed objects, by the names and addresses that DNS looks up.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::endpoints::Endpoint;
use super::objects::{Addressing, External, Kind, Service, Slice};
use crate::model::outdated::OutdatedFlag;
use crate::model::service_key::ServiceKey;
use crate::store::name_slots::NameSlots;

/// `<service>.<namespace>`, which is unique: neither part has a dot.
type EntryKey = Arc<str>;
/// `<namespace>/<name>`.
type ObjectKey = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct Index {
    namespaces: HashMap<Box<str>, LazyFlag>,
    /// A copy of the index shares what hasn't changed since.
    entries: HashMap<EntryKey, Arc<Entry>>,
    /// The Service of each slice.
    slices: HashMap<Box<str>, EntryKey>,
    /// The Services with an address, as cluster IP or of an endpoint.
    addresses: KeysByAddress,
    /// What Services have outside of the cluster; those without aren't here.
    externals: HashMap<EntryKey, Externals>,
    external_addresses: KeysByAddress,
    pods: HashMap<ObjectKey, SmallVec<[IpAddr; 1]>>,
    pod_addresses: KeysByAddress,
    /// The ServiceImports and their slices, in the place of Services.
    imports: Option<Box<Self>>,
    /// Whether this is such an index; ServiceImports have no PTR records.
    is_of_imports: bool,
}

#[derive(Debug)]
struct Externals {
    all: Box<[External]>,
    flag: LazyFlag,
}

/// The keys of what has an address; an IPv4 address stands as an IPv4-mapped one.
#[derive(Clone, Debug, Default)]
struct KeysByAddress(HashMap<Ipv6Addr, Keys>);

/// One or more keys. Nearly all addresses have one.
#[derive(Clone, Debug)]
enum Keys {
    One(Arc<str>),
    /// In order: many Services may have the same external addresses.
    More(Box<SmallVec<[Arc<str>; 2]>>),
}

impl KeysByAddress {
    fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.0.keys().map(|ip| IpAddr::V6(*ip).to_canonical())
    }

    fn get(&self, ip: IpAddr) -> &[Arc<str>] {
        match self.0.get(&mapped(ip)) {
            None => &[],
            Some(Keys::One(key)) => std::slice::from_ref(key),
            Some(Keys::More(keys)) => keys,
        }
    }

    fn add(&mut self, ip: IpAddr, key: &Arc<str>) {
        let Err(place) = self.get(ip).binary_search(key) else { return };
        match self.0.get_mut(&mapped(ip)) {
            None => drop(self.0.insert(mapped(ip), Keys::One(Arc::clone(key)))),
            Some(Keys::More(keys)) => keys.insert(place, Arc::clone(key)),
            Some(one) => {
                let known = std::mem::replace(one, Keys::More(Box::default()));
                if let (Keys::More(keys), Keys::One(known)) = (one, known) {
                    keys.push(known);
                    keys.insert(place, Arc::clone(key));
                }
            }
        }
    }

    fn remove(&mut self, ip: IpAddr, key: &Arc<str>) {
        let Some(keys) = self.0.get_mut(&mapped(ip)) else { return };
        match keys {
            Keys::More(more) => {
                if let Ok(place) = more.binary_search(key) {
                    more.remove(place);
                }
                if let [one] = &more[..] {
                    *keys = Keys::One(Arc::clone(one));
                }
            }
            Keys::One(one) if *one == *key => drop(self.0.remove(&mapped(ip))),
            Keys::One(_) => {}
        }
    }
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// A Service with its slices. Slices may come without their Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) service: Option<Service>,
    /// By their names.
    pub(super) slices: SmallVec<[Slice; 1]>,
    flag: LazyFlag,
}

/// A flag that exists from the first answer on that rests on it, and is set when its object changes or goes. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub(super) struct LazyFlag(OnceLock<OutdatedFlag>);

impl LazyFlag {
    pub(super) fn get(&self) -> OutdatedFlag {
        self.0.get_or_init(OutdatedFlag::default).clone()
    }

    fn set(&mut self) {
        if let Some(flag) = self.0.take() {
            flag.set();
        }
    }
}

impl Drop for LazyFlag {
    fn drop(&mut self) {
        self.set();
    }
}

/// What may begin or cease to exist; each has slots of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tree {
    Service,
    Namespace,
    /// The Services with an address, and the names of their endpoints there.
    Address,
    /// The Pods with an address.
    Pod,
    /// The Services with something outside of the cluster.
    External,
    /// The Services with an address outside of the cluster.
    ExternalAddress,
    Import,
}

/// The slots of what a change affects.
pub(super) struct Touched<'a> {
    names: &'a NameSlots,
    slots: Vec<u16>,
}

impl<'a> Touched<'a> {
    pub(super) fn new(names: &'a NameSlots) -> Self {
        Self { names, slots: Vec::new() }
    }

    pub(super) fn add(&mut self, tree: Tree, name: &[u8]) {
        self.slots.push(self.names.slot_of(tree as u8, name));
    }

    pub(super) fn add_address(&mut self, tree: Tree, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.add(tree, &ip.octets()),
            IpAddr::V6(ip) => self.add(tree, &ip.octets()),
        }
    }

    /// Returns the slots, each once.
    pub(super) fn into_slots(mut self) -> Vec<u16> {
        self.slots.sort_unstable();
        self.slots.dedup();
        self.slots
    }
}

impl Entry {
    pub(super) fn flag(&self) -> OutdatedFlag {
        self.flag.get()
    }

    pub(super) fn cluster_ips(&self) -> &[IpAddr] {
        self.service.as_ref().map(cluster_ips).unwrap_or_default()
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let of_slices = self.slices.iter().flat_map(|slice| &slice.addresses);
        self.cluster_ips().iter().chain(of_slices).copied()
    }

    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }
}

fn cluster_ips(service: &Service) -> &[IpAddr] {
    match &service.addressing {
        Addressing::ClusterIps(ips) => ips,
        Addressing::Headless | Addressing::Alias(_) | Addressing::Unusable => &[],
    }
}

/// Returns the addresses of what only one of two versions has, in order.
fn difference(before: Vec<Endpoint<'_>>, after: Vec<Endpoint<'_>>) -> Vec<IpAddr> {
    let (before, after): (HashSet<_>, HashSet<_>) =
        (before.into_iter().collect(), after.into_iter().collect());
    let mut changed: Vec<IpAddr> = before.symmetric_difference(&after).map(|endpoint| endpoint.ip).collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

fn endpoints(slice: Option<&Slice>) -> Vec<Endpoint<'_>> {
    slice.into_iter().flat_map(Slice::endpoints).collect()
}

impl Index {
    // === changes ===

    pub(super) fn set_service(
        &mut self,
        key: &str,
        service: Option<Service>,
        touched: &mut Touched<'_>,
    ) -> bool {
        let before = self.entries.get(key).and_then(|entry| entry.service.as_ref());
        if before == service.as_ref() {
            return false;
        }
        let ips = |service: Option<&Service>| {
            let ips = service.map(cluster_ips).unwrap_or_default();
            ips.iter().map(|ip| Endpoint { ip: *ip, name: None }).collect()
        };
        let changed = difference(ips(before), ips(service.as_ref()));
        self.change_entry(key, &changed, touched, |entry| entry.service = service);
        true
    }

    /// `slice` is the new slice, and the key of its Service.
    pub(super) fn set_slice(
        &mut self,
        id: &str,
        slice: Option<(String, Slice)>,
        touched: &mut Touched<'_>,
    ) -> bool {
        let name = id.split_once('/').map_or(id, |(_, name)| name);
        let former = self.slices.get(id).cloned();
        let former = former.filter(|former| slice.as_ref().is_none_or(|(key, _)| **former != **key));
        if let Some(former) = &former {
            self.slices.remove(id);
            self.replace_slice(former, name, None, touched);
        }
        let Some((key, slice)) = slice else { return former.is_some() };
        let is_changed = self.replace_slice(&key, name, Some(slice), touched);
        if !self.slices.contains_key(id)
            && let Some((key, _)) = self.entries.get_key_value(&*key)
        {
            self.slices.insert(id.into(), Arc::clone(key));
        }
        is_changed || former.is_some()
    }

    /// Returns the index of the ServiceImports, in which they are as if they were Services.
    pub(super) fn imports_mut(&mut self) -> &mut Self {
        self.imports.get_or_insert_with(|| Box::new(Self { is_of_imports: true, ..Self::default() }))
    }

    fn replace_slice(
        &mut self,
        key: &str,
        name: &str,
        slice: Option<Slice>,
        touched: &mut Touched<'_>,
    ) -> bool {
        let known = self.entries.get(key).map(|entry| &*entry.slices).unwrap_or_default();
        let place = known.binary_search_by(|slice| (*slice.name).cmp(name));
        let before = place.ok().map(|at| &known[at]);
        if before == slice.as_ref() {
            return false;
        }
        let changed = difference(endpoints(before), endpoints(slice.as_ref()));
        self.change_entry(key, &changed, touched, |entry| match (place, slice) {
            (Ok(at), Some(slice)) => entry.slices[at] = slice,
            (Ok(at), None) => drop(entry.slices.remove(at)),
            (Err(at), Some(slice)) => entry.slices.insert(at, slice),
            (Err(_), None) => {}
        });
        true
    }

    /// Changes an entry, which begins to exist if needed, and ends without a Service and slices. `addresses` are those
    /// that come, go, or get another name, in order.
    fn change_entry(
        &mut self,
        key: &str,
        addresses: &[IpAddr],
        touched: &mut Touched<'_>,
        change: impl FnOnce(&mut Entry),
    ) {
        let (tree, addresses) =
            if self.is_of_imports { (Tree::Import, &[][..]) } else { (Tree::Service, addresses) };
        let (key, mut entry) = self.entries.remove_entry(key).unwrap_or_else(|| {
            touched.add(tree, key.as_bytes());
            (key.into(), Arc::default())
        });
        let changed = Arc::make_mut(&mut entry);
        change(changed);
        changed.flag.set();
        // Not a set of all addresses: a Service may have far more than change.
        let has = |ip: &IpAddr| addresses.binary_search(ip).is_ok();
        let present: HashSet<IpAddr> = entry.addresses().filter(has).collect();
        for ip in addresses {
            touched.add_address(Tree::Address, *ip);
            if present.contains(ip) {
                self.addresses.add(*ip, &key);
            } else {
                self.addresses.remove(*ip, &key);
            }
        }
        if !entry.is_empty() {
            self.entries.insert(key, entry);
        }
    }

    pub(super) fn set_namespace(&mut self, name: &str, exists: bool, touched: &mut Touched<'_>) -> bool {
        if !exists {
            return self.namespaces.remove(name).is_some();
        }
        if self.namespaces.contains_key(name) {
            return false;
        }
        self.namespaces.insert(name.into(), LazyFlag::default());
        touched.add(Tree::Namespace, name.as_bytes());
        true
    }

    /// Sets what a Service has outside of the cluster.
    pub(super) fn set_externals(&mut self, key: &str, all: &[External], touched: &mut Touched<'_>) -> bool {
        let known = self.externals.get(key).map(|known| &*known.all).unwrap_or_default();
        if *known == *all {
            return false;
        }
        let (key, before) = self.externals.remove_entry(key).map_or_else(
            || {
                touched.add(Tree::External, key.as_bytes());
                (key.into(), None)
            },
            |(key, before)| (key, Some(before)),
        );
        for external in before.iter().flat_map(|before| &before.all) {
            if let External::Address(ip) = external {
                touched.add_address(Tree::ExternalAddress, *ip);
                self.external_addresses.remove(*ip, &key);
            }
        }
        for external in all {
            if let External::Address(ip) = external {
                touched.add_address(Tree::ExternalAddress, *ip);
                self.external_addresses.add(*ip, &key);
            }
        }
        if !all.is_empty() {
            self.externals.insert(key, Externals { all: all.into(), flag: LazyFlag::default() });
        }
        true
    }

    pub(super) fn set_pod(&mut self, id: &str, addresses: &[IpAddr], touched: &mut Touched<'_>) -> bool {
        let known = self.pods.remove_entry(id);
        let (id, before) = known.unwrap_or_else(|| (id.into(), SmallVec::new()));
        for ip in before.iter().filter(|ip| !addresses.contains(ip)) {
            touched.add_address(Tree::Pod, *ip);
            self.pod_addresses.remove(*ip, &id);
        }
        for ip in addresses.iter().filter(|ip| !before.contains(ip)) {
            touched.add_address(Tree::Pod, *ip);
            self.pod_addresses.add(*ip, &id);
        }
        let is_changed = *before != *addresses;
        if !addresses.is_empty() {
            self.pods.insert(id, addresses.into());
        }
        is_changed
    }

    // === copies ===

    /// Returns a copy without Pods.
    pub(super) fn copy(&self) -> Self {
        // Flags aren't shared where a copy would set them at its end.
        let externals = |(key, known): (&EntryKey, &Externals)| {
            (Arc::clone(key), Externals { all: known.all.clone(), flag: LazyFlag::default() })
        };
        Self {
            namespaces: self.namespaces.keys().map(|name| (name.clone(), LazyFlag::default())).collect(),
            entries: self.entries.clone(),
            addresses: self.addresses.clone(),
            externals: self.externals.iter().map(externals).collect(),
            external_addresses: self.external_addresses.clone(),
            imports: self.imports.as_ref().map(|imports| Box::new(imports.copy())),
            is_of_imports: self.is_of_imports,
            ..Self::default()
        }
    }

    /// Returns all Services with their keys, in no order.
    pub(super) fn services(&self) -> impl Iterator<Item = (&EntryKey, &Entry)> {
        self.entries.iter().map(|(key, entry)| (key, &**entry))
    }

    /// Returns all ServiceImports with their keys, in no order.
    pub(super) fn imports(&self) -> impl Iterator<Item = (&EntryKey, &Entry)> {
        self.imports.iter().flat_map(|imports| imports.services())
    }

    /// Returns the addresses of Services, as cluster IP or of an endpoint.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.all()
    }

    /// Returns the addresses of Services outside of the cluster.
    pub(super) fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.external_addresses.all()
    }

    // === look-ups ===

    pub(super) fn namespace(&self, name: &str) -> Option<&LazyFlag> {
        self.namespaces.get(name)
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key).map(|entry| &**entry)
    }

    /// Returns a ServiceImport with its slices.
    pub(super) fn import(&self, key: &str) -> Option<&Entry> {
        self.imports.as_ref()?.entry(key)
    }

    /// Returns the Services with an address, as cluster IP or of an endpoint, with their keys.
    pub(super) fn at(&self, ip: IpAddr) -> impl Iterator<Item = (&EntryKey, &Entry)> {
        self.addresses.get(ip).iter().filter_map(|key| Some((key, self.entry(key)?)))
    }

    /// Returns what a Service has outside of the cluster, and the flag of that if there is anything.
    pub(super) fn externals(&self, key: &str) -> (&[External], Option<OutdatedFlag>) {
        let known = self.externals.get(key);
        (known.map(|known| &*known.all).unwrap_or_default(), known.map(|known| known.flag.get()))
    }

    /// Returns the keys of the Services with an address outside of the cluster.
    pub(super) fn externals_at(&self, ip: IpAddr) -> &[EntryKey] {
        self.external_addresses.get(ip)
    }

    /// Returns the first Pod with an address.
    pub(super) fn pod_at(&self, ip: IpAddr) -> Option<ServiceKey> {
        let (namespace, name) = self.pod_addresses.get(ip).first()?.split_once('/')?;
        Some(ServiceKey::new(namespace, name))
    }

    /// Returns how many Pods of a namespace have an address.
    pub(super) fn pods_at(&self, ip: IpAddr, namespace: &str) -> usize {
        self.pod_addresses
            .get(ip)
            .iter()
            .filter(|pod| pod.split_once('/').is_some_and(|(of, _)| of == namespace))
            .count()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            namespaces,
            entries,
            slices,
            addresses,
            externals,
            external_addresses,
            pods,
            pod_addresses,
            imports,
            is_of_imports: _,
        } = self;
        let by_address = [addresses, external_addresses, pod_addresses].map(|keys| keys.0.len());
        let others = [namespaces.len(), entries.len(), slices.len(), externals.len(), pods.len()];
        by_address.iter().chain(&others).all(|number| *number == 0)
            && imports.as_ref().is_none_or(|imports| imports.is_empty())
    }

    pub(super) fn number(&self, kind: Kind) -> usize {
        match kind {
            Kind::Services => self.entries.values().filter(|entry| entry.service.is_some()).count(),
            Kind::Imports => self.imports.as_ref().map_or(0, |imports| imports.number(Kind::Services)),
            // Nearly all slices are either of a Service or of a ServiceImport.
            Kind::Slices => {
                let imported = self.imports.iter().flat_map(|imports| imports.slices.keys());
                self.slices.len() + imported.filter(|id| !self.slices.contains_key(*id)).count()
            }
            Kind::Namespaces => self.namespaces.len(),
            Kind::Pods => self.pods.len(),
        }
    }

    pub(super) fn keys(&self, kind: Kind) -> HashSet<ServiceKey> {
        let of_id = |id: &str| id.split_once('/').map(|(namespace, name)| ServiceKey::new(namespace, name));
        let of_entry =
            |key: &str| key.split_once('.').map(|(name, namespace)| ServiceKey::new(namespace, name));
        match kind {
            Kind::Services => {
                let services = self.entries.iter().filter(|(_, entry)| entry.service.is_some());
                services.filter_map(|(key, _)| of_entry(key)).collect()
            }
            Kind::Slices => {
                let imported = self.imports.iter().flat_map(|imports| imports.slices.keys());
                self.slices.keys().chain(imported).filter_map(|id| of_id(id)).collect()
            }
            Kind::Imports => {
                self.imports.as_ref().map(|imports| imports.keys(Kind::Services)).unwrap_or_default()
            }
            Kind::Namespaces => self.namespaces.keys().map(|name| ServiceKey::new("", name)).collect(),
            Kind::Pods => self.pods.keys().filter_map(|id| of_id(id)).collect(),
        }
    }
}
