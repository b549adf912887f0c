//! Holds failovers if too many StableNames would fail over at once: more likely the checks are wrong than the
//! targets.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::checks::PlannedCheck;
use super::decide::{FailoverDecision, decide};
use super::facts::Inputs;
use super::times::{elapsed, later};
use crate::model::service_key::ServiceKey;

/// The number of StableNames that may always fail over within [`WINDOW`].
const ALWAYS_ALLOWED: usize = 3;

/// Of many StableNames, the number divided by this (20 %) may fail over within [`WINDOW`].
const ALLOWED_DIVISOR: usize = 5;

const WINDOW: Duration = Duration::from_secs(60);

/// The maximum number of successive decisions in one call of [`MassFailureGuard::decide`].
const MAX_ROUNDS: usize = 3;

/// The minimum time between the start of a hold and the failed check that confirms the failover.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);

/// The failovers that were due or made within the last minute, and all held ones. Withdrawals aren't among them.
#[derive(Debug, Default)]
pub struct MassFailureGuard(HashMap<ServiceKey, PendingFailover>);

/// A failover to a source that is ready.
#[derive(Debug)]
struct PendingFailover {
    since: Timestamp,
    /// When the failover was last due or made.
    last: Timestamp,
    is_allowed: bool,
}

impl MassFailureGuard {
    /// Decides about one of `all` StableNames. If too many would fail over, the failover is held: the decision
    /// plans checks of the failed target, and the first check that fails 30 s or more after the start of the hold
    /// confirms the failover.
    ///
    /// After a change of the target the decision is made again, with the decided status as the former one. Then `moved`
    /// is the reason of the first change, and `events` has the Events of all changes.
    pub fn decide(&mut self, key: &ServiceKey, all: usize, inputs: &Inputs<'_>) -> FailoverDecision {
        let mut decision = self.decide_once(key, all, inputs);
        let mut before = inputs.former.target.clone();
        for _ in 1..MAX_ROUNDS {
            if decision.status.target == before {
                break;
            }
            let next = self.decide_once(
                key,
                all,
                &Inputs { former: &decision.status, last: &decision.status, ..*inputs },
            );
            before = decision.status.target;
            let is_new = |check: &PlannedCheck| next.checks.iter().all(|known| known.target != check.target);
            let unwritten = decision.checks.into_iter().filter(is_new).collect();
            decision = FailoverDecision {
                moved: decision.moved.or(next.moved),
                events: [decision.events, next.events].concat(),
                fails_over: decision.fails_over || next.fails_over,
                failed_at: decision.failed_at.or(next.failed_at),
                checks: [unwritten, next.checks].concat(),
                ..next
            };
        }
        decision
    }

    fn decide_once(&mut self, key: &ServiceKey, all: usize, inputs: &Inputs<'_>) -> FailoverDecision {
        let decision = decide(&Inputs { is_failover_held: false, ..*inputs });
        let Some(failed_at) = decision.failed_at else {
            self.forget(key);
            return decision;
        };
        // Without a healthy source no failover is due. A held failover doesn't wait anew when a source is healthy
        // again.
        if !decision.fails_over || self.is_allowed(key, all, failed_at, inputs.now) {
            return decision;
        }
        decide(&Inputs { is_failover_held: true, ..*inputs })
    }

    /// Forgets a held failover: the target hasn't failed any more, or the StableName was deleted. A failover that
    /// was allowed still counts.
    pub fn forget(&mut self, key: &ServiceKey) {
        if self.0.get(key).is_some_and(|pending| !pending.is_allowed) {
            self.0.remove(key);
        }
    }

    /// Returns whether a failover may be made: few enough are due or made, a check has failed again, or this failover
    /// was allowed before.
    fn is_allowed(&mut self, key: &ServiceKey, all: usize, failed_at: Timestamp, now: Timestamp) -> bool {
        let is_recent = |pending: &PendingFailover| elapsed(pending.last, now) < WINDOW;
        // Later times are from before the clock was set back.
        self.0.retain(|_, pending| pending.last <= now && (is_recent(pending) || !pending.is_allowed));
        let allowed = ALWAYS_ALLOWED.max(all / ALLOWED_DIVISOR);
        let mut by_namespace: HashMap<&str, usize> = HashMap::new();
        for (other, _) in self.0.iter().filter(|(other, pending)| *other != key && is_recent(pending)) {
            *by_namespace.entry(other.namespace()).or_default() += 1;
        }
        // A namespace with targets that fail all the time doesn't hold the failovers of other namespaces.
        let counted = |(namespace, number): (&str, usize)| match namespace == key.namespace() {
            true => number,
            false => number.min(allowed.div_ceil(2)),
        };
        let others: usize = by_namespace.into_iter().map(counted).sum();
        let new = PendingFailover { since: now, last: now, is_allowed: false };
        let pending = self.0.entry(key.clone()).or_insert(new);
        pending.last = now;
        let is_confirmed = failed_at >= later(pending.since, CONFIRM_AFTER);
        pending.is_allowed |= is_confirmed || others < allowed;
        pending.is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::stable_name::decision::checks::Urgency;
    use crate::sync::stable_name::decision::decide::EventReason;
    use crate::sync::stable_name::decision::status::MoveReason;
    use crate::sync::stable_name::decision::test_support::{Harness, at, target};

    fn key(number: usize) -> ServiceKey {
        ServiceKey::new("shop", &number.to_string())
    }

    /// Returns how many of these StableNames have to wait if a check of each has just failed.
    fn held(guard: &mut MassFailureGuard, keys: std::ops::Range<usize>, all: usize, second: i64) -> usize {
        keys.filter(|number| !guard.is_allowed(&key(*number), all, at(second), at(second))).count()
    }

    /// Returns how many failovers each namespace makes if this many are due at once, namespace by namespace.
    fn made<const N: usize>(due: [usize; N], all: usize) -> [usize; N] {
        let (mut guard, mut namespace) = (MassFailureGuard::default(), 0);
        due.map(|number| {
            namespace += 1;
            let key = |number: usize| ServiceKey::new(&namespace.to_string(), &number.to_string());
            (0..number).filter(|number| guard.is_allowed(&key(*number), all, at(0), at(0))).count()
        })
    }

    #[test]
    fn mass_failure_of_a_namespace_allows_a_failover_elsewhere() {
        assert_eq!(made([4, 1], 10), [3, 1]);
        assert_eq!(made([1000, 1], 1000), [200, 1]);
    }

    #[test]
    fn mass_failure_in_several_namespaces_is_recognized() {
        assert_eq!(made([10, 10], 20), [4, 2]);
        assert_eq!(made([10, 10, 10], 15), [3, 1, 0]);
        assert_eq!(made([100, 100], 200), [40, 20]);
        assert_eq!(made([1; 10], 10), [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(made([100; 5], 500), [100, 50, 0, 0, 0]);
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
    fn forgotten_hold_begins_anew() {
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

    /// Returns whether a StableName fails over at `second`. `fails` tells whether its target fails now, `passes`
    /// whether the target of its other source passes a check now.
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
    fn targets_that_stay_failed_dont_hold_other_failovers() {
        let mut guard = MassFailureGuard::default();
        for number in 0..3 {
            assert!(moves(&mut guard, number, 10, true, true));
        }
        for second in (40..70).step_by(5) {
            for number in 0..3 {
                assert!(!moves(&mut guard, number, second, true, false), "no source is healthy");
            }
        }
        assert!(moves(&mut guard, 3, 70, true, true));
    }

    #[test]
    fn hold_continues_after_a_minute_without_a_healthy_source() {
        let mut guard = MassFailureGuard::default();
        for number in 0..3 {
            assert!(moves(&mut guard, number, 10, true, true));
        }
        assert!(!moves(&mut guard, 3, 20, true, true));
        assert!(!moves(&mut guard, 3, 60, true, false));
        for number in 4..7 {
            assert!(moves(&mut guard, number, 81, true, true));
        }
        assert!(moves(&mut guard, 3, 90, true, true), "its checks have failed again since");
    }

    #[test]
    fn two_due_changes_are_made_in_one_decision() {
        let mut harness = Harness::settled(&[("seoul", "a.example"), ("busan", "b.example")]);
        harness.now = at(10);
        harness.fail_thrice("a.example");
        for second in [10, 20, 50, 340] {
            harness.decide_at(second);
            harness.pass("a.example");
        }
        harness.now = at(360);
        harness.pass("a.example");
        harness.offer("busan").target = Some(target("192.0.2.1"));
        let mut guard = MassFailureGuard::default();
        let decision = harness.with_inputs(|inputs| guard.decide(&key(0), 10, inputs));
        assert_eq!(decision.status.target.as_ref().unwrap().source, "seoul");
        assert_eq!(decision.moved, Some(MoveReason::TargetChanged));
        let reasons: Vec<_> = decision.events.iter().map(|event| event.reason).collect();
        assert_eq!(reasons, [EventReason::TargetChanged, EventReason::FailedBack]);
        let checked = |decision: &FailoverDecision| {
            let mut checked: Vec<String> =
                decision.checks.iter().map(|check| check.target.to_string()).collect();
            checked.sort();
            checked
        };
        assert_eq!(checked(&decision), ["a.example", "b.example"], "nothing is written yet");
        harness.status = decision.status.clone();
        let written = harness.decide();
        assert_eq!((&written.status, checked(&written)), (&decision.status, vec!["a.example".to_owned()]));
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
