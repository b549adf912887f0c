//! A copy of the store, for what has to see one state of it for long, and the names and addresses in a zone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use dashmap::DashSet;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::change_time::ChangeSerial;
use super::names::Names;
use super::{Input, Known, Store};

impl Store {
    /// Returns a copy of what DNS answers from, which stays as it is now. It takes some milliseconds for 10,000 links, in
    /// which writers wait, but no look-up does. Nothing may write to the copy.
    #[must_use]
    pub fn copy(&self) -> Self {
        let _no_writer = self.names.lock();
        let known = |is_known: &watch::Sender<bool>| watch::Sender::new(*is_known.borrow());
        Self {
            owners: Arc::new(self.owners.copy()),
            index: self.index.copy(),
            names: Mutex::new(Names::default()),
            feed: broadcast::Sender::new(1),
            known: Known {
                services: known(&self.known.services),
                stable_names: known(&self.known.stable_names),
                external_targets: known(&self.known.external_targets),
            },
            unreadable: DashSet::new(),
            unknown_namespaces: ArcSwapOption::new(self.unknown_namespaces.load_full()),
            serial: Arc::new(AtomicU64::new(self.serial())),
            last_change: Arc::new(AtomicU64::new(self.last_change.load(Ordering::Relaxed))),
            change_clock: Arc::clone(&self.change_clock),
            has_versions: AtomicBool::new(self.has_versions.load(Ordering::Relaxed)),
            on_gone: self.on_gone,
            zones: watch::Sender::new(self.zones()),
            listed: watch::Sender::new(self.listed.borrow().clone()),
            fallback: ArcSwapOption::new(self.fallback.load_full()),
        }
    }

    /// Returns the names below an origin, or at it, that lead somewhere, as the parts below the origin in wire form.
    #[must_use]
    pub fn names_below(&self, origin: &[u8], has_default_names: bool) -> BTreeSet<Vec<u8>> {
        let mut names = self.index.custom_hostnames.names_below(origin);
        if has_default_names {
            names.extend(self.index.default_names.names_below(&[]));
        }
        names
    }

    /// Returns the addresses in a network that are targets of links.
    #[must_use]
    pub fn addresses_in(&self, net: IpNet) -> BTreeSet<IpAddr> {
        self.index.addresses.addresses_in(net)
    }

    /// Returns whether there are namespaces whose Services aren't known although the load balancers are.
    #[must_use]
    pub fn has_unknown_namespaces(&self) -> bool {
        self.unknown_namespaces.load().is_some()
    }

    /// Notes that answers from now on may differ from those before although no name has changed, as after a change of the
    /// configuration; before the load balancers are known, that is noted when they are.
    pub fn note_other_answers(&self) {
        let _no_writer = self.names.lock();
        if self.is_known(Input::Services) {
            self.note_change();
        }
    }

    pub(super) fn note_change(&self) {
        self.last_change.fetch_max(self.change_clock.now(), Ordering::Relaxed);
    }

    /// Returns the Unix time of the last change of what names lead to, or of the time when the load balancers were known,
    /// if that was later.
    pub(crate) fn last_change(&self) -> &Arc<AtomicU64> {
        &self.last_change
    }

    /// Returns the serial of zones that are transferred.
    pub(crate) fn change_serial(&self) -> ChangeSerial {
        ChangeSerial::new(&self.last_change).by_clock(&self.change_clock)
    }
}
