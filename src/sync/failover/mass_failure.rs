//! Holds failovers that too many ExternalTargets want at once: more likely the checks are wrong than the targets.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::decision::{FailoverDecision, decide};
use super::facts::Inputs;
use super::times::{elapsed, later};
use crate::model::service_key::ServiceKey;

/// The number of ExternalTargets that may always fail over within [`WINDOW`].
const ALWAYS_ALLOWED: usize = 3;

/// Of many ExternalTargets, the number divided by this (20 %) may fail over within [`WINDOW`].
const ALLOWED_DIVISOR: usize = 5;

const WINDOW: Duration = Duration::from_secs(60);

/// Time after which a check has to fail again before a held failover is made.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);

/// The failovers of all ExternalTargets of the last minute, wanted or made. Withdrawals aren't among them.
#[derive(Debug, Default)]
pub struct MassFailureGuard(HashMap<ServiceKey, Intent>);

#[derive(Debug)]
struct Intent {
    since: Timestamp,
    last: Timestamp,
    is_allowed: bool,
}

impl MassFailureGuard {
    /// Decides about one of `all` ExternalTargets. A failover that too many want is held: then the decision plans
    /// checks of the failed target, and the first one that fails after 30 s confirms the failover.
    pub fn decide(&mut self, key: &ServiceKey, all: usize, inputs: &Inputs<'_>) -> FailoverDecision {
        let decision = decide(&Inputs { is_failover_held: false, ..*inputs });
        let Some(failed_at) = decision.failed_at else {
            self.forget(key);
            return decision;
        };
        if !decision.fails_over {
            // No source is healthy at present: when one is again, the wait doesn't begin anew.
            self.0.entry(key.clone()).and_modify(|intent| intent.last = inputs.now);
            return decision;
        }
        if self.is_allowed(key, all, failed_at, inputs.now) {
            return decision;
        }
        decide(&Inputs { is_failover_held: true, ..*inputs })
    }

    /// Forgets a failover that isn't wanted any more, or whose ExternalTarget was deleted. One that was made still
    /// counts.
    pub fn forget(&mut self, key: &ServiceKey) {
        if self.0.get(key).is_some_and(|intent| !intent.is_allowed) {
            self.0.remove(key);
        }
    }

    /// Returns whether a failover may be made: too few ExternalTargets want one, or a check has failed again.
    fn is_allowed(&mut self, key: &ServiceKey, all: usize, failed_at: Timestamp, now: Timestamp) -> bool {
        // Later times are from before the clock was set back.
        self.0.retain(|_, intent| intent.last <= now && elapsed(intent.last, now) < WINDOW);
        let number = self.0.len() + usize::from(!self.0.contains_key(key));
        let new = Intent { since: now, last: now, is_allowed: false };
        let intent = self.0.entry(key.clone()).or_insert(new);
        intent.last = now;
        let is_confirmed = failed_at >= later(intent.since, CONFIRM_AFTER);
        intent.is_allowed |= is_confirmed || number <= ALWAYS_ALLOWED.max(all / ALLOWED_DIVISOR);
        intent.is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::failover::outlook::Urgency;
    use crate::sync::failover::test_support::{Harness, at};

    fn key(number: usize) -> ServiceKey {
        ServiceKey::new("shop", &number.to_string())
    }

    /// Returns how many of these ExternalTargets, whose checks have just failed, have to wait.
    fn held(guard: &mut MassFailureGuard, keys: std::ops::Range<usize>, all: usize, second: i64) -> usize {
        keys.filter(|number| !guard.is_allowed(&key(*number), all, at(second), at(second))).count()
    }

    #[test]
    fn three_or_a_fifth_of_all_may_fail_over_at_once() {
        for (all, allowed) in [(1, 1), (4, 3), (19, 3), (20, 4), (100, 20), (2_000, 400)] {
            let mut guard = MassFailureGuard::default();
            assert_eq!(held(&mut guard, 0..all, all, 0), all - allowed, "of {all}");
        }
    }

    #[test]
    fn held_failover_is_made_after_another_failure() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..3, 10, 0), 0);
        assert_eq!(held(&mut guard, 3..4, 10, 10), 1);
        assert_eq!(held(&mut guard, 4..5, 10, 20), 1);
        assert_eq!(held(&mut guard, 0..3, 10, 39), 0, "allowed once, allowed again");
        assert_eq!(held(&mut guard, 3..5, 10, 39), 2, "too soon");
        assert!(!guard.is_allowed(&key(3), 10, at(39), at(45)), "no check has failed since");
        assert_eq!(held(&mut guard, 3..5, 10, 45), 1);
        assert_eq!(held(&mut guard, 4..5, 10, 50), 0);
    }

    #[test]
    fn second_look_that_disagrees_ends_the_hold() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..4, 10, 0), 1);
        guard.forget(&key(3));
        assert_eq!(held(&mut guard, 3..4, 10, 30), 1, "the wait begins anew");
        assert_eq!(held(&mut guard, 3..4, 10, 60), 0);
    }

    #[test]
    fn failovers_count_for_a_minute() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..3, 10, 0), 0);
        for number in 0..3 {
            guard.forget(&key(number));
        }
        assert_eq!(held(&mut guard, 3..4, 10, 59), 1);
        guard.forget(&key(3));
        assert_eq!(held(&mut guard, 3..6, 10, 60), 0);
        assert_eq!(held(&mut guard, 6..7, 10, 60), 1);
    }

    #[test]
    fn hold_ends_although_the_clock_was_set_back() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..4, 10, 1_000), 1);
        assert_eq!(held(&mut guard, 0..4, 10, 0), 1);
        assert_eq!(held(&mut guard, 3..4, 10, 30), 0);
    }

    /// Decides about an ExternalTarget whose target fails and whose other source passes, or not.
    fn moves(guard: &mut MassFailureGuard, number: usize, second: i64, fails: bool, passes: bool) -> bool {
        let mut harness = Harness::settled(&[("seoul", "a.example"), ("busan", "b.example")]);
        harness.now = at(second);
        if passes {
            harness.pass("b.example");
        }
        if fails {
            harness.fail_thrice("a.example");
        }
        let decision = harness.with_inputs(|inputs| guard.decide(&key(number), 10, inputs));
        decision.status.target.unwrap().source == "busan"
    }

    #[test]
    fn only_failovers_of_failed_targets_are_counted() {
        let mut guard = MassFailureGuard::default();
        for number in 0..3 {
            assert!(moves(&mut guard, number, 10, true, true));
        }
        assert!(!moves(&mut guard, 3, 10, true, true));
        assert!(!moves(&mut guard, 4, 10, true, true));
        assert!(!moves(&mut guard, 3, 20, false, true), "its target passes again");
        assert!(moves(&mut guard, 4, 40, true, true));
        assert!(!moves(&mut guard, 3, 40, true, true));
    }

    #[test]
    fn hold_continues_while_no_source_is_healthy() {
        let mut guard = MassFailureGuard::default();
        for number in 0..3 {
            assert!(moves(&mut guard, number, 10, true, true));
        }
        assert!(!moves(&mut guard, 3, 10, true, true));
        assert!(!moves(&mut guard, 3, 50, true, false), "the pass of the other source is too old");
        assert!(moves(&mut guard, 3, 60, true, true));
    }

    #[test]
    fn failed_target_is_checked_often_while_held() {
        let mut harness = Harness::settled(&[("seoul", "a.example"), ("busan", "b.example")]);
        harness.now = at(10);
        harness.fail_thrice("a.example");
        harness.is_failover_held = true;
        let urgencies: Vec<_> = harness.decide().checks.iter().map(|check| check.urgency).collect();
        assert_eq!(urgencies, [Urgency::Undecided, Urgency::Routine]);
    }
}
