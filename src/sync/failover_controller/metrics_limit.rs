//! Which ExternalTargets have metrics of their own: at most 1,000.

use std::collections::{BTreeMap, HashSet};

/// Maximum number of ExternalTargets with metrics of their own.
pub(super) const MAX_METRICS: usize = 1000;
/// Maximum number of ExternalTargets, up to and including those of a namespace without metrics, at which the namespace
/// gets them again.
const MAX_METRICS_AGAIN: usize = 950;

/// The namespaces whose ExternalTargets have no metrics of their own, because there are too many.
#[derive(Debug, Default)]
pub(super) struct MetricsLimit {
    left_out: HashSet<String>,
}

impl MetricsLimit {
    /// Returns whether the ExternalTargets of a namespace have metrics of their own.
    pub(super) fn allows(&self, namespace: &str) -> bool {
        !self.left_out.contains(namespace)
    }

    /// Decides anew. The namespaces with the fewest ExternalTargets come first, so that a tenant with many can't take the
    /// metrics of other tenants. Returns the namespaces whose ExternalTargets get or lose metrics.
    pub(super) fn update<'a>(&mut self, namespaces: impl Iterator<Item = &'a str>) -> HashSet<String> {
        let mut numbers = BTreeMap::new();
        for namespace in namespaces {
            *numbers.entry(namespace).or_insert(0_usize) += 1;
        }
        let mut by_number: Vec<(usize, &str)> =
            numbers.into_iter().map(|(name, number)| (number, name)).collect();
        by_number.sort_unstable();
        let mut sum = 0;
        let is_left_out = |(number, namespace): &(usize, &str)| {
            sum += number;
            sum > if self.left_out.contains(*namespace) { MAX_METRICS_AGAIN } else { MAX_METRICS }
        };
        let left_out = by_number.into_iter().filter(is_left_out).map(|(_, name)| name.to_owned()).collect();
        let before = std::mem::replace(&mut self.left_out, left_out);
        before.symmetric_difference(&self.left_out).cloned().collect()
    }

    /// Returns the number of namespaces without metrics.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(limit: &mut MetricsLimit, numbers: &[(&'static str, usize)]) -> Vec<String> {
        let all = numbers.iter().flat_map(|(name, number)| std::iter::repeat_n(*name, *number));
        let mut changed: Vec<String> = limit.update(all).into_iter().collect();
        changed.sort();
        changed
    }

    #[test]
    fn namespace_with_many_objects_takes_no_metrics_of_other_namespaces() {
        let mut limit = MetricsLimit::default();
        assert!(update(&mut limit, &[("shop", 400), ("web", 600)]).is_empty());
        assert_eq!(update(&mut limit, &[("shop", 400), ("web", 601)]), ["web"]);
        assert!(limit.allows("shop") && !limit.allows("web"));
        assert!(update(&mut limit, &[("shop", 400), ("web", 20_000)]).is_empty());
        assert_eq!(update(&mut limit, &[("shop", 20_000), ("web", 20_000)]), ["shop"]);
        assert_eq!(limit.left_out(), 2);
    }

    #[test]
    fn namespace_gets_metrics_again_some_below_the_limit() {
        let mut limit = MetricsLimit::default();
        assert_eq!(update(&mut limit, &[("web", 1001)]), ["web"]);
        assert!(update(&mut limit, &[("web", 951)]).is_empty());
        assert_eq!(update(&mut limit, &[("web", 950)]), ["web"]);
        assert!(limit.allows("web"));
        assert_eq!(update(&mut limit, &[("web", 1001)]), ["web"]);
        assert_eq!(update(&mut limit, &[]), ["web"], "a namespace without ExternalTargets isn't stored");
        assert_eq!(limit.left_out(), 0);
    }
}
