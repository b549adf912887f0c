//! Services that exist and have left the selection: their links are kept for `--delete-delay`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::model::service_key::ServiceKey;
use crate::sync::removal::facts::{Facts, Found, Membership, ServiceState, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};

#[derive(Debug, Default)]
pub(crate) struct KeptServices {
    /// Time for which a link is kept after its Service has left the selection.
    delay: Duration,
    /// The uid of each Service, and since when it hasn't been selected.
    kept: HashMap<ServiceKey, (String, Instant)>,
}

impl KeptServices {
    pub(crate) fn new(delay: Duration) -> Self {
        Self { delay, kept: HashMap::new() }
    }

    /// Keeps the link of a Service that has left the selection. Returns whether it wasn't kept before.
    pub(crate) fn keep(&mut self, key: &ServiceKey, uid: &str) -> bool {
        if self.kept.get(key).is_some_and(|(known, _)| known == uid) {
            return false;
        }
        self.kept.insert(key.clone(), (uid.to_owned(), Instant::now()));
        true
    }

    /// Forgets a Service that is selected again, or gone.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.kept.remove(key);
    }

    /// Forgets the Services for which `is_listed` returns false.
    pub(crate) fn retain(&mut self, is_listed: impl Fn(&ServiceKey) -> bool) {
        self.kept.retain(|key, _| is_listed(key));
    }

    pub(crate) fn contains(&self, key: &ServiceKey) -> bool {
        self.kept.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.kept.keys()
    }

    /// Returns the facts about the link of a Service that the watch lacks or that isn't selected.
    pub(crate) fn facts(&self, key: &ServiceKey, uid: &str, found: Found) -> Facts {
        let kept = self.kept.get(key).filter(|(known, _)| known == uid);
        self.facts_since(kept.map_or_else(Instant::now, |(_, since)| *since), found)
    }

    fn facts_since(&self, since: Instant, found: Found) -> Facts {
        let (since, delay, found) = (Some(since), Some(self.delay), Some(found));
        Facts { since, delay, found, ..Facts::of(Subject::Link, ServiceState::Unlisted) }
    }

    fn verdict(&self, since: Instant, now: Instant) -> Verdict {
        may_remove(&self.facts_since(since, Found::same(Membership::NotSelected)), now)
    }

    /// Returns the end of the earliest delay.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = |(_, since): &(_, Instant)| match self.verdict(*since, *since) {
            Verdict::Wait(_, until) => Some(until),
            Verdict::Remove(_) => Some(*since),
            Verdict::Keep(_) | Verdict::Ask(_) => None,
        };
        self.kept.values().filter_map(due).min()
    }

    /// Removes the Services with an expired delay. Returns their keys, their uids, and since when they have been kept.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<(ServiceKey, String, Instant)> {
        let is_over = |since| matches!(self.verdict(since, now), Verdict::Remove(_));
        let over = self.kept.iter().filter(|(_, (_, since))| is_over(*since));
        let over: Vec<_> = over.map(|(key, (uid, since))| (key.clone(), uid.clone(), *since)).collect();
        over.iter().for_each(|(key, ..)| self.forget(key));
        over
    }

    /// Returns the line for the log about a link that is kept from now on.
    pub(crate) fn notice(&self, key: &ServiceKey) -> String {
        let (delay, why) = (self.delay, RemovalReason::NotSelected);
        format!("link {key}: its Service isn't selected any more; it is kept for {delay:?} ({why})")
    }

    /// Returns a time far enough in the past for an external target to be removed at once.
    pub(crate) fn long_ago(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.delay).unwrap_or(now)
    }
}
