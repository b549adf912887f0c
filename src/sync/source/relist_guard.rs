//! Guards against lists that lack suspiciously many load balancers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::model::excerpt::examples;
use crate::model::service_key::ServiceKey;

/// Number of load balancers that may always disappear at once, so that a small cluster can become empty.
pub(crate) const ALWAYS_SAFE_LOSS: usize = 10;

/// In a larger cluster, the number of load balancers divided by this (20 %) may disappear at once.
const SAFE_LOSS_DIVISOR: usize = 5;

/// Time after which a second list has to confirm a suspicious one.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(30);

/// Returns how many of `number` load balancers may disappear at once without suspicion.
#[must_use]
pub fn max_safe_loss(number: usize) -> usize {
    ALWAYS_SAFE_LOSS.max(number / SAFE_LOSS_DIVISOR)
}

/// Tracks the load balancers that are missing from suspicious lists.
#[derive(Debug, Default)]
pub struct RelistGuard {
    /// The time since which each load balancer has been missing.
    missing: HashMap<ServiceKey, Instant>,
    /// The numbers of recent disappearances that were accepted at once, and their times.
    accepted: VecDeque<(Instant, usize)>,
}

impl RelistGuard {
    /// Returns which of the load balancers that are `missing` from a complete list are kept for now. If too many of the
    /// `known` load balancers of all namespaces are missing, all missing ones are kept, except load balancers that an
    /// earlier list, at least [`CONFIRM_AFTER`] ago, lacked, too. `listed` tells which namespaces the list covers.
    pub fn keeps(
        &mut self,
        known: usize,
        missing: &HashSet<ServiceKey>,
        listed: impl Fn(&ServiceKey) -> bool,
        now: Instant,
    ) -> HashSet<ServiceKey> {
        self.keeps_weighed(known, (missing, missing.len()), listed, now)
    }

    /// As [`Self::keeps`], for objects that weigh differently: `known` is the weight of all, and `weight` that of the
    /// missing ones.
    fn keeps_weighed(
        &mut self,
        known: usize,
        (missing, weight): (&HashSet<ServiceKey>, usize),
        listed: impl Fn(&ServiceKey) -> bool,
        now: Instant,
    ) -> HashSet<ServiceKey> {
        self.missing.retain(|key, _| !listed(key) || missing.contains(key));
        self.accepted.retain(|(at, _)| now.duration_since(*at) < CONFIRM_AFTER);
        let recently: usize = self.accepted.iter().map(|(_, number)| number).sum();
        if weight + recently <= max_safe_loss(known + recently) {
            self.missing.retain(|key, _| !missing.contains(key));
            self.accepted.push_back((now, weight));
            return HashSet::new();
        }
        let mut since = |key: &ServiceKey| *self.missing.entry(key.clone()).or_insert(now);
        let kept: HashSet<ServiceKey> =
            missing.iter().filter(|key| now.duration_since(since(key)) < CONFIRM_AFTER).cloned().collect();
        self.missing.retain(|key, _| !missing.contains(key) || kept.contains(key));
        kept
    }
}

/// The list of a watch that is being received, and when it has to be confirmed by another one.
#[derive(Debug, Default)]
pub struct GuardedList {
    seen: HashSet<ServiceKey>,
    /// When a suspicious list has to be confirmed.
    pub confirm_at: Option<tokio::time::Instant>,
}

impl GuardedList {
    /// Begins a list.
    pub fn begin(&mut self) {
        self.seen.clear();
    }

    pub fn see(&mut self, key: ServiceKey) {
        self.seen.insert(key);
    }

    /// Ends the list of `what`. Returns which of the `known` objects are gone: objects that the list lacks, unless that is
    /// suspiciously much, and whether the list counts wholly. After a restore of etcd to an earlier revision (`is_rewound`)
    /// anything that the list lacks is suspicious. `within` tells which namespaces the list covers. Without a guard each
    /// list counts; with it comes what an object weighs.
    pub fn end(
        &mut self,
        what: &str,
        known: &HashSet<ServiceKey>,
        within: impl Fn(&ServiceKey) -> bool,
        is_rewound: bool,
        guard: Option<(&mut RelistGuard, impl Fn(&ServiceKey) -> usize)>,
    ) -> ListEnd {
        let seen = std::mem::take(&mut self.seen);
        let mut gone: HashSet<ServiceKey> =
            known.difference(&seen).filter(|key| within(key)).cloned().collect();
        let now = tokio::time::Instant::now();
        let kept = guard.map(|(guard, weight)| {
            let [all, missing] = [known, &gone].map(|keys| keys.iter().map(&weight).sum());
            let missing = if is_rewound && missing > 0 { usize::MAX / 2 } else { missing };
            guard.keeps_weighed(all, (&gone, missing), within, now.into_std())
        });
        let kept = kept.unwrap_or_default();
        gone.retain(|key| !kept.contains(key));
        self.confirm_at = (!kept.is_empty()).then(|| now + CONFIRM_AFTER);
        if !kept.is_empty() {
            warn!(
                "the list of {what} lacks suspiciously many that were there: {}; DNS answers as before until a second \
                 list, {} s later, confirms it",
                examples(kept.iter()),
                CONFIRM_AFTER.as_secs()
            );
        }
        ListEnd { seen, gone, is_confirmed: kept.is_empty() }
    }
}

/// What a complete list says.
#[derive(Debug)]
pub struct ListEnd {
    pub seen: HashSet<ServiceKey>,
    pub gone: HashSet<ServiceKey>,
    /// Whether nothing is kept that the list lacks.
    pub is_confirmed: bool,
}

/// Returns whether suspiciously many external targets would be removed: more than half of all, and more than one.
#[must_use]
pub fn is_suspicious_removal(going: usize, present: usize) -> bool {
    going > 1 && going > present / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_objects_with_many_names_are_kept() {
        let keys = |names: &[&str]| -> HashSet<ServiceKey> {
            names.iter().map(|name| ServiceKey::new("infra", name)).collect()
        };
        let known = keys(&["a", "b", "c"]);
        let end = |routes: usize, is_rewound| {
            let (mut list, mut guard) = (GuardedList::default(), RelistGuard::default());
            list.see(ServiceKey::new("infra", "a"));
            let weight = |key: &ServiceKey| if key.name() == "b" { routes } else { 1 };
            list.end("Gateways", &known, |_| true, is_rewound, Some((&mut guard, weight)))
        };
        assert_eq!(end(9, false).gone, keys(&["b", "c"]));
        for suspicious in [end(5000, false), end(1, true)] {
            assert!(suspicious.gone.is_empty() && !suspicious.is_confirmed);
        }
    }

    #[test]
    fn most_means_over_half_and_at_least_two() {
        for (present, first_most) in
            [(1, None), (2, Some(2)), (3, Some(2)), (4, Some(3)), (5, Some(3)), (30, Some(16))]
        {
            let found = (0..=present).find(|going| is_suspicious_removal(*going, present));
            assert_eq!(found, first_most, "of {present}");
            assert!(
                found
                    .is_none_or(|first| (first..=present).all(|going| is_suspicious_removal(going, present)))
            );
        }
        assert!(!is_suspicious_removal(0, 0));
    }

    fn keys(numbers: impl Iterator<Item = usize>) -> HashSet<ServiceKey> {
        numbers.map(|i| ServiceKey::new(&format!("n{}", i % 5), &i.to_string())).collect()
    }

    #[test]
    fn absence_is_accepted_after_a_second_list() {
        let mut relist_guard = RelistGuard::default();
        let start = Instant::now();
        let mut kept = |missing: std::ops::Range<usize>, seconds| {
            relist_guard.keeps(100, &keys(missing), |_| true, start + Duration::from_secs(seconds)).len()
        };
        assert_eq!(kept(0..20, 0), 0);
        assert_eq!(kept(0..21, 100), 21);
        assert_eq!(kept(0..21, 129), 21, "too soon");
        assert_eq!(kept(0..31, 130), 10, "only the ten that the previous list contained are kept");
        assert_eq!(kept(21..31, 131), 0, "few enough");

        assert_eq!(kept(0..100, 200), 100);
        assert_eq!(kept(0..0, 210), 0, "all is there again");
        assert_eq!(kept(0..100, 240), 100, "the earlier suspicion is over");
    }

    #[test]
    fn lists_of_single_namespaces_are_judged_together() {
        let mut relist_guard = RelistGuard::default();
        let now = Instant::now();
        let kept: Vec<usize> = (0..5)
            .map(|namespace: usize| {
                let missing = keys((0..40).filter(|i| i % 5 == namespace));
                let listed = |key: &ServiceKey| *key.namespace() == *format!("n{namespace}");
                relist_guard.keeps(40, &missing, listed, now).len()
            })
            .collect();
        assert_eq!(kept, [0, 8, 8, 8, 8], "no more than ten at once");
    }
}
