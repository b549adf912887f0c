//! The checks that wait for their turn, and the checks under way. Equal checks of several StableNames are made
//! once. Namespaces take turns, so that a namespace with many checks delays no other namespace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::link::Target;
use crate::model::service_key::ServiceKey;

/// The maximum number of checks under way.
const MAX_UNDER_WAY: usize = 64;
/// The maximum number of checks that start within [`WINDOW`].
const MAX_STARTS: usize = 200;
const WINDOW: Duration = Duration::from_secs(1);
/// A namespace has a quarter of both limits; more only while no namespace with less than its quarter has a queued
/// check.
const SHARES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckKey {
    pub target: Target,
    /// The namespace of the links that lead to a hostname: which names of its chain are allowed depends on the
    /// namespace. `None` for addresses.
    pub namespace: Option<Arc<str>>,
    /// The port that one of the target's addresses must accept a connection at; `None` if only DNS is checked.
    pub tcp_port: Option<u16>,
    pub timeout: Duration,
}

impl Hash for CheckKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.target {
            Target::Hostname(host) => host.hash(state),
            Target::Addresses(addresses) => {
                let mut addresses = addresses.clone();
                addresses.sort_unstable();
                addresses.hash(state);
            }
        }
        (&self.namespace, self.tcp_port, self.timeout).hash(state);
    }
}

/// The queue of checks. A StableName that waits for the result of a check is its waiter.
#[derive(Debug, Default)]
pub struct CheckQueue {
    /// The checks that are queued or under way.
    checks: HashMap<Arc<CheckKey>, Check>,
    waiters: HashMap<ServiceKey, HashSet<Arc<CheckKey>>>,
    namespaces: Namespaces,
    /// When checks have started within the last [`WINDOW`], and for which namespace.
    starts: VecDeque<(Instant, Arc<str>)>,
    under_way: usize,
    checks_added: u64,
}

#[derive(Debug)]
struct Check {
    /// The position in the order of all checks.
    number: u64,
    waiters: BTreeSet<ServiceKey>,
    /// The namespace for which the check is under way; `None` while it is queued.
    started_for: Option<Arc<str>>,
}

/// The queued checks by namespace.
#[derive(Debug, Default)]
struct Namespaces {
    by_name: HashMap<Arc<str>, Namespace>,
    /// The namespaces with queued checks, the next one first.
    turns: BTreeMap<u64, Arc<str>>,
    turns_given: u64,
}

#[derive(Debug, Default)]
struct Namespace {
    /// The checks with a waiter of this namespace, the oldest one first.
    queued: BTreeMap<u64, Arc<CheckKey>>,
    /// The position in the order of the namespaces, if a check is queued.
    turn: u64,
    under_way: usize,
    /// The number of its checks that have started within the last [`WINDOW`].
    starts: usize,
}

// === impl CheckQueue ===

impl CheckQueue {
    /// Adds a waiter to a check, and queues the check unless it is queued or under way.
    pub fn add(&mut self, key: CheckKey, waiter: ServiceKey) {
        let key = self.checks.get_key_value(&key).map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        let check = self.checks.entry(Arc::clone(&key)).or_insert_with(|| {
            self.checks_added += 1;
            Check { number: self.checks_added, waiters: BTreeSet::new(), started_for: None }
        });
        if check.started_for.is_none() {
            // Also if another namespace has queued the check: the turn of the waiter's namespace may come first.
            self.namespaces.add(waiter.namespace(), check.number, &key);
        }
        check.waiters.insert(waiter.clone());
        self.waiters.entry(waiter).or_default().insert(key);
    }

    /// Starts the next check and returns it; `None` if the limits allow none, or none is queued.
    pub fn next(&mut self, now: Instant) -> Option<CheckKey> {
        while let Some((_, namespace)) = self.starts.pop_front_if(|(at, _)| *at + WINDOW <= now) {
            self.namespaces.update(&namespace, |namespace| namespace.starts -= 1);
        }
        if self.under_way >= MAX_UNDER_WAY || self.starts.len() >= MAX_STARTS {
            return None;
        }
        let (namespace, key) = self.namespaces.next()?;
        let check = self.checks.get_mut(&key)?;
        check.started_for = Some(Arc::clone(&namespace));
        self.under_way += 1;
        self.namespaces.update(&namespace, |namespace| {
            namespace.under_way += 1;
            namespace.starts += 1;
        });
        for waiter in &check.waiters {
            self.namespaces.remove(waiter.namespace(), check.number);
        }
        self.starts.push_back((now, namespace));
        Some(CheckKey::clone(&key))
    }

    /// Returns when [`Self::next`] has a check; `None` if nothing is queued, or if a check under way must end
    /// first.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if self.namespaces.turns.is_empty() || self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        let first = self.starts.front().filter(|_| self.starts.len() >= MAX_STARTS);
        Some(first.map_or(now, |(at, _)| now.max(*at + WINDOW)))
    }

    /// Ends a check, and returns its waiters; none if the check isn't under way.
    pub fn done(&mut self, key: &CheckKey) -> Vec<ServiceKey> {
        let is_under_way = self.checks.get(key).is_some_and(|check| check.started_for.is_some());
        let Some(check) = is_under_way.then(|| self.checks.remove(key)).flatten() else { return Vec::new() };
        self.under_way -= 1;
        if let Some(namespace) = &check.started_for {
            self.namespaces.update(namespace, |namespace| namespace.under_way -= 1);
        }
        for waiter in &check.waiters {
            self.no_longer_waits(waiter, key);
        }
        check.waiters.into_iter().collect()
    }

    /// Removes a waiter, and the queued checks that have no other waiter.
    pub fn forget(&mut self, waiter: &ServiceKey) {
        for key in self.waiters.remove(waiter).into_iter().flatten() {
            self.leave(&key, waiter);
        }
    }

    /// Removes a waiter from a check, and the check if it is queued without another waiter.
    fn leave(&mut self, key: &CheckKey, waiter: &ServiceKey) {
        let Some(check) = self.checks.get_mut(key) else { return };
        check.waiters.remove(waiter);
        let namespace = waiter.namespace();
        let mut further = check.waiters.range(ServiceKey::new(namespace, "")..);
        if further.next().is_none_or(|further| further.namespace() != namespace) {
            self.namespaces.remove(namespace, check.number);
        }
        if check.waiters.is_empty() && check.started_for.is_none() {
            self.checks.remove(key);
        }
    }

    /// Removes a waiter from the queued checks that aren't `wanted`.
    pub fn retain(&mut self, waiter: &ServiceKey, wanted: &[CheckKey]) {
        let Some(waiting) = self.waiters.get(waiter) else { return };
        let is_queued =
            |key: &CheckKey| self.checks.get(key).is_some_and(|check| check.started_for.is_none());
        let unwanted = waiting.iter().filter(|key| is_queued(key) && !wanted.contains(key));
        for key in unwanted.cloned().collect::<Vec<_>>() {
            self.leave(&key, waiter);
            self.no_longer_waits(waiter, &key);
        }
    }

    /// Returns whether a StableName waits for the result of a check.
    #[must_use]
    pub fn is_waiting(&self, key: &CheckKey, waiter: &ServiceKey) -> bool {
        self.checks.get(key).is_some_and(|check| check.waiters.contains(waiter))
    }

    fn no_longer_waits(&mut self, waiter: &ServiceKey, key: &CheckKey) {
        if let Some(keys) = self.waiters.get_mut(waiter) {
            keys.remove(key);
            if keys.is_empty() {
                self.waiters.remove(waiter);
            }
        }
    }
}

// === impl Namespaces ===

impl Namespaces {
    fn add(&mut self, name: &str, number: u64, key: &Arc<CheckKey>) {
        let known = self.by_name.get_key_value(name).map(|(name, _)| Arc::clone(name));
        let name = known.unwrap_or_else(|| name.into());
        let namespace = self.by_name.entry(Arc::clone(&name)).or_default();
        if namespace.queued.is_empty() {
            self.turns_given += 1;
            namespace.turn = self.turns_given;
            self.turns.insert(namespace.turn, name);
        }
        namespace.queued.insert(number, Arc::clone(key));
    }

    fn remove(&mut self, name: &str, number: u64) {
        let Some(namespace) = self.by_name.get_mut(name) else { return };
        if namespace.queued.remove(&number).is_some() && namespace.queued.is_empty() {
            self.turns.remove(&namespace.turn);
        }
        self.update(name, |_| ());
    }

    /// Returns the next namespace and its oldest check. The search is short: at most six namespaces can have used their
    /// quarter (three per limit) before a limit is reached.
    fn next(&mut self) -> Option<(Arc<str>, Arc<CheckKey>)> {
        let has_free_share =
            |(_, name): &(&u64, &Arc<str>)| self.by_name.get(*name).is_some_and(Namespace::has_free_share);
        let turn = *self.turns.iter().find(has_free_share).or_else(|| self.turns.first_key_value())?.0;
        let name = self.turns.remove(&turn)?;
        let namespace = self.by_name.get_mut(&name)?;
        self.turns_given += 1;
        namespace.turn = self.turns_given;
        self.turns.insert(namespace.turn, Arc::clone(&name));
        let (_, key) = namespace.queued.first_key_value()?;
        Some((name, Arc::clone(key)))
    }

    /// Changes the counts of a namespace, and forgets the namespace if nothing is left to count.
    fn update(&mut self, name: &str, change: impl FnOnce(&mut Namespace)) {
        if let Some(namespace) = self.by_name.get_mut(name) {
            change(namespace);
            if namespace.queued.is_empty() && namespace.under_way == 0 && namespace.starts == 0 {
                self.by_name.remove(name);
            }
        }
    }
}

impl Namespace {
    fn has_free_share(&self) -> bool {
        self.under_way < MAX_UNDER_WAY / SHARES && self.starts < MAX_STARTS / SHARES
    }
}
