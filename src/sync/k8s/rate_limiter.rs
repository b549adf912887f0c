//! An exact rate limit per key: a number of uses within a time span.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// The maximum number of keys. The least recently used key is forgotten first.
const MAX_KEYS: usize = 10_000;

/// Allows `most` uses of each key within `span`.
#[derive(Debug)]
pub(crate) struct KeyedRateLimiter<K> {
    most: usize,
    span: Duration,
    used: HashMap<K, VecDeque<Instant>>,
}

/// The result of an attempt to use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Yes,
    /// Allowed, and the last allowed use for a while.
    Last,
    No,
}

impl<K: Hash + Eq + Clone> KeyedRateLimiter<K> {
    pub(crate) fn new(most: usize, span: Duration) -> Self {
        Self { most, span, used: HashMap::new() }
    }

    pub(crate) fn take(&mut self, key: &K, now: Instant) -> Allowed {
        let span = self.span;
        let is_recent = |used: &Instant| now.duration_since(*used) < span;
        if !self.used.contains_key(key) && self.used.len() >= MAX_KEYS {
            self.used.retain(|_, used| used.back().is_some_and(is_recent));
            self.forget_oldest();
        }
        let used = self.used.entry(key.clone()).or_default();
        while used.front().is_some_and(|first| !is_recent(first)) {
            used.pop_front();
        }
        if used.len() >= self.most {
            return Allowed::No;
        }
        used.push_back(now);
        if used.len() == self.most { Allowed::Last } else { Allowed::Yes }
    }

    pub(crate) fn allows(&self, key: &K, now: Instant) -> bool {
        let is_recent = |used: &&Instant| now.duration_since(**used) < self.span;
        self.used.get(key).is_none_or(|used| used.iter().filter(is_recent).count() < self.most)
    }

    fn forget_oldest(&mut self) {
        if self.used.len() >= MAX_KEYS {
            let oldest = self.used.iter().min_by_key(|(_, used)| used.back());
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.used.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);

    #[test]
    fn no_span_of_time_has_more_uses_than_allowed() {
        let (mut limiter, start) = (KeyedRateLimiter::new(10, WINDOW), Instant::now());
        let mut taken: Vec<u64> = Vec::new();
        for second in (0..3600).step_by(7) {
            if limiter.take(&"web", start + Duration::from_secs(second)) != Allowed::No {
                taken.push(second);
            }
        }
        assert!(taken.windows(11).all(|uses| uses[10] - uses[0] >= 600), "{taken:?}");
        assert_eq!(taken.len(), 60, "all that is allowed");
    }

    #[test]
    fn last_allowed_use_is_reported_for_each_key() {
        let (mut limiter, now) = (KeyedRateLimiter::new(2, WINDOW), Instant::now());
        let uses = ["a", "a", "a", "b"].map(|key| limiter.take(&key, now));
        assert_eq!(uses, [Allowed::Yes, Allowed::Last, Allowed::No, Allowed::Yes]);
        assert!(!limiter.allows(&"a", now) && limiter.allows(&"b", now) && limiter.allows(&"c", now));
        assert!(limiter.allows(&"a", now + WINDOW));
    }

    #[test]
    fn remembered_keys_are_bounded() {
        let (mut limiter, now) = (KeyedRateLimiter::new(1, WINDOW), Instant::now());
        for i in 0..MAX_KEYS + 100 {
            limiter.take(&i, now + Duration::from_micros(i as u64));
        }
        assert_eq!(limiter.used.len(), MAX_KEYS);
        assert_eq!(limiter.take(&(MAX_KEYS + 99), now + Duration::from_secs(1)), Allowed::No);
    }
}
