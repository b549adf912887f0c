//! Which StableNames have metrics of their own: at most 1,000.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of StableNames with metrics of their own.
pub(super) const MAX_METRICS: usize = 1000;
/// The minimum time between two decisions: a tenant that creates and deletes StableNames mustn't make the metrics
/// of other tenants come and go.
const INTERVAL: Duration = Duration::from_secs(60);

/// The namespaces whose StableNames have no metrics of their own, because there are too many.
#[derive(Debug, Default)]
pub(super) struct MetricsLimit {
    left_out: HashSet<String>,
    decided_at: Option<Instant>,
}

impl MetricsLimit {
    /// Returns whether the StableNames of a namespace have metrics of their own.
    pub(super) fn allows(&self, namespace: &str) -> bool {
        !self.left_out.contains(namespace)
    }

    /// Returns the number of namespaces without metrics.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// Returns whether a decision is due for this number of StableNames: at most one a minute, and none while all
    /// have metrics and there are at most [`MAX_METRICS`].
    pub(super) fn is_due(&self, objects: usize, now: Instant) -> bool {
        let is_needed = objects > MAX_METRICS || !self.left_out.is_empty();
        is_needed && self.decided_at.is_none_or(|at| now >= at + INTERVAL)
    }

    /// Decides which namespaces have metrics; `namespaces` has the namespace of each StableName. The namespaces
    /// with the fewest StableNames come first, so that a tenant with many can't take the metrics of other tenants.
    /// Returns the namespaces whose StableNames get or lose metrics.
    pub(super) fn decide<'a>(
        &mut self,
        namespaces: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> HashSet<String> {
        let mut numbers = BTreeMap::new();
        for namespace in namespaces {
            *numbers.entry(namespace).or_insert(0_usize) += 1;
        }
        let mut by_number: Vec<(usize, &str)> =
            numbers.into_iter().map(|(name, number)| (number, name)).collect();
        by_number.sort_unstable();
        let mut sum = 0;
        let is_left_out = |(number, _): &(usize, &str)| {
            sum += number;
            sum > MAX_METRICS
        };
        let left_out = by_number.into_iter().filter(is_left_out).map(|(_, name)| name.to_owned()).collect();
        let before = std::mem::replace(&mut self.left_out, left_out);
        self.decided_at = Some(now);
        before.symmetric_difference(&self.left_out).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(limit: &mut MetricsLimit, numbers: &[(&'static str, usize)]) -> Vec<String> {
        let all = numbers.iter().flat_map(|(name, number)| std::iter::repeat_n(*name, *number));
        let mut changed: Vec<String> = limit.decide(all, Instant::now()).into_iter().collect();
        changed.sort();
        changed
    }

    #[test]
    fn large_namespace_takes_no_metrics_of_other_namespaces() {
        let mut limit = MetricsLimit::default();
        assert!(decide(&mut limit, &[("shop", 400), ("web", 600)]).is_empty());
        assert_eq!(decide(&mut limit, &[("shop", 400), ("web", 601)]), ["web"]);
        assert!(limit.allows("shop") && !limit.allows("web"));
        assert!(decide(&mut limit, &[("shop", 400), ("web", 20_000)]).is_empty());
        assert_eq!(decide(&mut limit, &[("shop", 20_000), ("web", 20_000)]), ["shop"]);
        assert_eq!(limit.left_out(), 2);
        assert_eq!(decide(&mut limit, &[("shop", 1_000)]), ["shop", "web"]);
        assert_eq!(limit.left_out(), 0);
    }

    #[test]
    fn decisions_are_made_above_the_limit_once_a_minute() {
        let mut limit = MetricsLimit::default();
        let now = Instant::now();
        assert!(!limit.is_due(1_000, now) && limit.is_due(1_001, now));
        decide(&mut limit, &[("web", 1_001)]);
        let decided = limit.decided_at.unwrap();
        for objects in [1_001, 900] {
            assert!(!limit.is_due(objects, decided + Duration::from_secs(59)));
            assert!(limit.is_due(objects, decided + INTERVAL));
        }
        decide(&mut limit, &[("web", 900)]);
        assert!(!limit.is_due(900, now + INTERVAL * 9), "all have metrics");
    }
}
