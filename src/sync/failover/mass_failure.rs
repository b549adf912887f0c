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

/// Time after which a held failover is made if it is still wanted.
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
    /// Decides about one of `all` ExternalTargets. A failover that too many want is held: the decision asks for a second
    /// look.
    pub fn decide(&mut self, key: &ServiceKey, all: usize, inputs: &Inputs<'_>) -> FailoverDecision {
        let decision = decide(&Inputs { is_failover_held: false, ..*inputs });
        if !decision.fails_over {
            self.forget(key);
            return decision;
        }
        let Some(until) = self.held_until(key, all, inputs.now) else { return decision };
        let held = decide(&Inputs { is_failover_held: true, ..*inputs });
        FailoverDecision { again: Some(held.again.map_or(until, |again| again.min(until))), ..held }
    }

    /// Forgets a failover that isn't wanted any more, or whose ExternalTarget was deleted. One that was made still
    /// counts.
    pub fn forget(&mut self, key: &ServiceKey) {
        if self.0.get(key).is_some_and(|intent| !intent.is_allowed) {
            self.0.remove(key);
        }
    }

    /// Returns until when a failover is held, if it is.
    fn held_until(&mut self, key: &ServiceKey, all: usize, now: Timestamp) -> Option<Timestamp> {
        // Later times are from before the clock was set back.
        self.0.retain(|_, intent| intent.last <= now && elapsed(intent.last, now) < WINDOW);
        let number = self.0.len() + usize::from(!self.0.contains_key(key));
        let new = Intent { since: now, last: now, is_allowed: false };
        let intent = self.0.entry(key.clone()).or_insert(new);
        intent.last = now;
        let is_confirmed = elapsed(intent.since, now) >= CONFIRM_AFTER;
        intent.is_allowed |= is_confirmed || number <= ALWAYS_ALLOWED.max(all / ALLOWED_DIVISOR);
        (!intent.is_allowed).then(|| later(intent.since, CONFIRM_AFTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::failover::test_support::{Harness, at};

    fn key(number: usize) -> ServiceKey {
        ServiceKey::new("shop", &number.to_string())
    }

    fn held(guard: &mut MassFailureGuard, keys: std::ops::Range<usize>, all: usize, second: i64) -> usize {
        keys.filter(|number| guard.held_until(&key(*number), all, at(second)).is_some()).count()
    }

    #[test]
    fn three_or_a_fifth_of_all_may_fail_over_at_once() {
        for (all, allowed) in [(1, 1), (4, 3), (19, 3), (20, 4), (100, 20), (2_000, 400)] {
            let mut guard = MassFailureGuard::default();
            assert_eq!(held(&mut guard, 0..all, all, 0), all - allowed, "of {all}");
        }
    }

    #[test]
    fn held_failover_is_made_after_a_second_look() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..3, 10, 0), 0);
        assert_eq!(guard.held_until(&key(3), 10, at(10)), Some(at(40)));
        assert_eq!(guard.held_until(&key(4), 10, at(20)), Some(at(50)));
        assert_eq!(held(&mut guard, 0..3, 10, 39), 0, "allowed once, allowed again");
        assert_eq!(held(&mut guard, 3..5, 10, 39), 2, "too soon");
        assert_eq!(guard.held_until(&key(3), 10, at(40)), None);
        assert_eq!(guard.held_until(&key(4), 10, at(40)), Some(at(50)));
    }

    #[test]
    fn second_look_that_disagrees_ends_the_hold() {
        let mut guard = MassFailureGuard::default();
        assert_eq!(held(&mut guard, 0..4, 10, 0), 1);
        guard.forget(&key(3));
        assert_eq!(guard.held_until(&key(3), 10, at(30)), Some(at(60)), "the wait begins anew");
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

    #[test]
    fn only_failovers_of_failed_targets_are_counted() {
        let mut guard = MassFailureGuard::default();
        let mut decide = |number: usize, second: i64, is_failed: bool| {
            let mut harness = Harness::settled(&[("seoul", "a.example"), ("busan", "b.example")]);
            harness.now = at(second);
            harness.pass("b.example");
            if is_failed {
                harness.fail_thrice("a.example");
            }
            let decision = harness.with_inputs(|inputs| guard.decide(&key(number), 10, inputs));
            let source = decision.status.target.unwrap().source;
            (source == "busan", decision.again)
        };
        for number in 0..3 {
            assert!(decide(number, 10, true).0);
        }
        assert_eq!(decide(3, 10, true), (false, Some(at(40))));
        assert_eq!(decide(4, 10, true), (false, Some(at(40))));
        assert!(!decide(3, 20, false).0, "its target passes again");
        assert!(decide(4, 40, true).0);
        assert_eq!(decide(3, 40, true), (false, Some(at(70))));
    }
}
