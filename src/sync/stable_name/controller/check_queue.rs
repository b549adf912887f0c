//! The checks that wait for their turn, and the checks under way. Equal checks of several StableNames are made
//! once. Namespaces take turns, so that a namespace with many checks delays no other namespace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::link::Target;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::limits::{Limits, Usage};
use crate::sync::controller::turns::Turns;

/// At most 64 checks under way at once, and at most 200 that start within a second.
const LIMITS: Limits = Limits { at_once: 64, starts: Some((200, Duration::from_secs(1))) };

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
#[derive(Debug)]
pub struct CheckQueue {
    /// The checks that are queued or under way.
    checks: HashMap<Arc<CheckKey>, Check>,
    waiters: HashMap<ServiceKey, HashSet<Arc<CheckKey>>>,
    /// The queued checks: a check waits in the namespace of each of its waiters.
    turns: Turns<Arc<CheckKey>>,
    usage: Usage,
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

impl Default for CheckQueue {
    fn default() -> Self {
        Self {
            checks: HashMap::new(),
            waiters: HashMap::new(),
            turns: Turns::default(),
            usage: Usage::new(LIMITS),
            checks_added: 0,
        }
    }
}

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
            self.turns.add(waiter.namespace(), check.number, Arc::clone(&key));
        }
        check.waiters.insert(waiter.clone());
        self.waiters.entry(waiter).or_default().insert(key);
    }

    /// Starts the next check and returns it; `None` if the limits allow none, or none is queued.
    pub fn next(&mut self, now: Instant) -> Option<CheckKey> {
        let (namespace, key) = self.turns.take_within(&mut self.usage, now)?;
        let check = self.checks.get_mut(&key)?;
        self.usage.begin(&namespace, false, now);
        check.started_for = Some(namespace);
        for waiter in &check.waiters {
            self.turns.remove(waiter.namespace(), check.number);
        }
        Some(CheckKey::clone(&key))
    }

    /// Returns when [`Self::next`] has a check; `None` if nothing is queued, or if a check under way must end
    /// first.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.turns.due(&self.usage, now)
    }

    /// Ends a check, and returns its waiters; none if the check isn't under way.
    pub fn done(&mut self, key: &CheckKey) -> Vec<ServiceKey> {
        let is_under_way = self.checks.get(key).is_some_and(|check| check.started_for.is_some());
        let Some(check) = is_under_way.then(|| self.checks.remove(key)).flatten() else { return Vec::new() };
        if let Some(namespace) = &check.started_for {
            self.usage.end(namespace);
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
            self.turns.remove(namespace, check.number);
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
