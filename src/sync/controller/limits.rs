//! The limits of writes and checks: how many are under way at once, and how many begin within a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The limits of what a controller begins. Of each limit, a namespace has a share of less than a half, so that two
/// namespaces whose requests hang leave room for a third one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum number under way at once.
    pub(crate) at_once: usize,
    /// The maximum number that begin within a time. A namespace may exceed its share of it while no other one waits.
    pub(crate) starts: Option<(usize, Duration)>,
}

/// What is under way, and what has begun lately.
#[derive(Debug)]
pub(crate) struct Usage {
    limits: Limits,
    under_way: usize,
    by_namespace: HashMap<Arc<str>, NamespaceUsage>,
    /// What has begun within the time of `limits.starts`, the oldest first.
    starts: VecDeque<(Instant, Arc<str>)>,
}

#[derive(Debug, Default)]
struct NamespaceUsage {
    under_way: usize,
    starts: usize,
}

impl Limits {
    /// Returns a limit of what is under way at once.
    pub(crate) const fn at_once(at_once: usize) -> Self {
        Self { at_once, starts: None }
    }
}

/// Returns a namespace's share of a limit: less than a half, but at least one.
const fn share(max: usize) -> usize {
    let share = max.saturating_sub(1) / 2;
    if share == 0 { 1 } else { share }
}

impl Usage {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, under_way: 0, by_namespace: HashMap::new(), starts: VecDeque::new() }
    }

    /// Returns whether something under way must end before anything begins.
    pub(crate) fn is_full(&self) -> bool {
        self.under_way >= self.limits.at_once
    }

    /// Returns whether something of a namespace may begin beside what is under way.
    pub(crate) fn has_room(&self, namespace: &str) -> bool {
        let of_namespace = self.by_namespace.get(namespace).map_or(0, |usage| usage.under_way);
        !self.is_full() && of_namespace < share(self.limits.at_once)
    }

    /// Returns whether a namespace has begun less than its share lately.
    pub(crate) fn is_below_share(&self, namespace: &str) -> bool {
        let of_namespace = self.by_namespace.get(namespace).map_or(0, |usage| usage.starts);
        self.limits.starts.is_none_or(|(max, _)| of_namespace < share(max))
    }

    /// Returns when something may begin: `now`, or when the limit of starts allows it.
    pub(crate) fn next_start(&self, now: Instant) -> Instant {
        let Some((max, within)) = self.limits.starts else { return now };
        let first = self.starts.front().filter(|_| self.starts.len() >= max);
        first.map_or(now, |(at, _)| now.max(*at + within))
    }

    /// Counts something that begins now. What is `urgent` doesn't count for the limit of starts.
    pub(crate) fn begin(&mut self, namespace: &str, is_urgent: bool, now: Instant) {
        let name = self.by_namespace.get_key_value(namespace).map(|(name, _)| Arc::clone(name));
        let name = name.unwrap_or_else(|| namespace.into());
        let usage = self.by_namespace.entry(Arc::clone(&name)).or_default();
        usage.under_way += 1;
        self.under_way += 1;
        if self.limits.starts.is_some() && !is_urgent {
            usage.starts += 1;
            self.starts.push_back((now, name));
        }
    }

    /// Counts something that has ended.
    pub(crate) fn end(&mut self, namespace: &str) {
        self.under_way -= 1;
        self.update(namespace, |usage| usage.under_way -= 1);
    }

    /// Forgets what began too long ago to count.
    pub(crate) fn forget_starts(&mut self, now: Instant) {
        let Some((_, within)) = self.limits.starts else { return };
        while let Some((_, namespace)) = self.starts.pop_front_if(|(at, _)| *at + within <= now) {
            self.update(&namespace, |usage| usage.starts -= 1);
        }
    }

    /// Changes the counts of a namespace, and forgets the namespace if nothing is left to count.
    fn update(&mut self, namespace: &str, change: impl FnOnce(&mut NamespaceUsage)) {
        if let Some(usage) = self.by_namespace.get_mut(namespace) {
            change(usage);
            if usage.under_way == 0 && usage.starts == 0 {
                self.by_namespace.remove(namespace);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.under_way == 0 && self.by_namespace.is_empty() && self.starts.is_empty()
    }
}
