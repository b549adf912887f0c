//! Tests of the table of decisions in docs/stable-names-reference.md, and of the checks and conditions that follow.

use std::time::Duration;

use crate::model::link::Target;
use crate::sync::stable_name::decision::checks::CheckOutcome;
use crate::sync::stable_name::decision::checks::Urgency;
use crate::sync::stable_name::decision::decide::EventReason;
use crate::sync::stable_name::decision::history::next_move;
use crate::sync::stable_name::decision::spec::{Failback, Offer, Refusal, RefusalReason};
use crate::sync::stable_name::decision::status::ConditionStatus::{False, True, Unknown};
use crate::sync::stable_name::decision::status::ConditionType::{
    Accepted, Degraded, Progressing, Ready, Resolved,
};
use crate::sync::stable_name::decision::status::{FailoverStatus, MoveReason, SourceState, restore_times};
use crate::sync::stable_name::decision::test_support::{
    Harness, at, hostname, offer, refusal, target, upstream,
};

const SOURCES: [(&str, &str); 3] = [("seoul", "a.example"), ("busan", "b.example"), ("fixed", "c.example")];

type Change = fn(&mut Harness);

fn reasons(decision: &super::FailoverDecision) -> Vec<EventReason> {
    decision.events.iter().map(|event| event.reason).collect()
}

fn urgencies(harness: &Harness) -> Vec<Urgency> {
    harness.peek().checks.iter().map(|check| check.urgency).collect()
}

/// The source in use, seoul, names another target.
fn cutover() -> Harness {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.offer("seoul").target = Some(target("new.example"));
    harness.decide_at(10);
    harness
}

/// Busan is announced, because seoul has failed at second 10.
fn failed_over() -> Harness {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    harness
}

// --- The source in use names another target

#[test]
fn new_target_is_announced_after_one_pass() {
    let mut harness = cutover();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.condition(Progressing), (True, "WaitsForTarget"));
    assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
    harness.fail("new.example");
    harness.decide_at(20);
    assert_eq!(harness.announced(), "seoul a.example");
    let message = &harness.status.condition(Progressing).unwrap().message;
    assert_eq!(message, &format!("waits until {} for new.example: NXDOMAIN", at(311)));

    harness.pass("new.example");
    let decision = harness.decide_at(22);
    assert_eq!(harness.announced(), "seoul new.example");
    assert_eq!(decision.moved, Some(MoveReason::TargetChanged));
    assert_eq!(reasons(&decision), [EventReason::TargetChanged]);
    assert_eq!(harness.condition(Progressing).0, False);
    assert!(harness.status.target.as_ref().unwrap().verified);
    let former = &harness.status.history[0];
    assert_eq!((former.display.as_str(), former.reason.as_str()), ("a.example", "TargetChanged"));
    assert_eq!((former.since, former.until), (at(-60), at(22)));
}

#[test]
fn old_target_stays_after_the_wait_while_it_passes() {
    let mut harness = cutover();
    for second in (10..310).step_by(20) {
        harness.now = at(second);
        harness.pass("a.example");
        harness.fail("new.example");
        harness.decide();
        assert_eq!(harness.state("seoul"), SourceState::Pending);
    }
    harness.now = at(311);
    harness.pass("a.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.state("seoul"), SourceState::Unhealthy);
    assert_eq!(harness.condition(Progressing), (False, "CutoverTimedOut"));
    assert_eq!(reasons(&decision), [EventReason::CutoverTimedOut]);
    harness.now = at(600);
    harness.pass("new.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul new.example");
    assert_eq!((harness.state("seoul"), message(&harness).as_str()), (SourceState::Healthy, ""));
}

#[test]
fn new_target_replaces_a_failed_one_after_the_wait() {
    let mut harness = cutover();
    harness.spec.max_wait = Duration::from_secs(10);
    harness.now = at(15);
    harness.fail_thrice("a.example");
    harness.fail_thrice("new.example");
    let decision = harness.decide_at(20);
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(decision.again, Some(at(21)));
    let decision = harness.decide_at(21);
    assert_eq!(harness.announced(), "seoul new.example");
    assert!(!harness.status.target.as_ref().unwrap().verified);
    assert_eq!(decision.moved, Some(MoveReason::CutoverTimedOut));
    assert_eq!(reasons(&decision), [EventReason::CutoverTimedOut]);
    assert_eq!(harness.condition(Ready).0, False);
    assert_eq!(harness.condition(Degraded).1, "TargetUnhealthy");
    harness.pass("new.example");
    harness.decide_at(30);
    assert!(harness.status.target.as_ref().unwrap().verified);
}

#[test]
fn old_target_is_checked_urgently_after_a_result_of_the_new_one() {
    let mut harness = cutover();
    assert_eq!(urgencies(&harness), [Urgency::Routine, Urgency::Awaited]);
    harness.fail("new.example");
    assert_eq!(urgencies(&harness), [Urgency::Awaited, Urgency::Awaited]);
}

#[test]
fn missing_results_dont_end_the_old_target() {
    let mut harness = cutover();
    harness.restart();
    harness.decide_at(11);
    for second in [20, 400, 500] {
        harness.now = at(second);
        let outcome = CheckOutcome::NoAnswer { upstream: upstream(1), message: "no reply".to_owned() };
        (0..3).for_each(|_| harness.record("a.example", std::slice::from_ref(&outcome)));
        harness.decide();
        assert_eq!(harness.announced(), "seoul a.example");
    }
}

// --- The target failed

#[test]
fn failed_target_is_replaced_by_the_first_healthy_source() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail("a.example");
    harness.fail("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    harness.fail("a.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(decision.moved, Some(MoveReason::FailedOver));
    assert_eq!(reasons(&decision), [EventReason::FailedOver]);
    assert_eq!(decision.events[0].message(), "seoul a.example → busan b.example: NXDOMAIN");
    assert!(decision.fails_over);
    assert_eq!(harness.state("seoul"), SourceState::Unhealthy);
    assert_eq!(harness.condition(Degraded), (True, "FailedOver"));
    assert_eq!(harness.status.condition(Ready).unwrap().message, "leads to busan; seoul: NXDOMAIN");
    assert_eq!(harness.condition(Ready).0, True);
}

#[test]
fn only_a_source_with_a_recent_pass_takes_over() {
    for (outcome, second, expected) in [
        (None, 34, "busan b.example"),
        (None, 35, "seoul a.example"),
        (Some(CheckOutcome::Failed("NODATA".to_owned())), 10, "fixed c.example"),
    ] {
        let mut harness = Harness::settled(&SOURCES);
        harness.now = at(9);
        if let Some(outcome) = outcome {
            harness.record("b.example", &[outcome]);
        }
        harness.fail_thrice("a.example");
        harness.decide_at(second);
        assert_eq!(harness.announced(), expected, "at {second}");
    }
}

#[test]
fn target_stays_while_no_source_is_healthy() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("b.example");
    harness.decide();
    assert_eq!(harness.condition(Degraded), (True, "StandbyUnhealthy"));
    harness.fail_thrice("a.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(reasons(&decision), [EventReason::NoHealthySource]);
    assert_eq!(harness.condition(Degraded), (True, "TargetUnhealthy"));
    assert_eq!(harness.condition(Ready), (False, "TargetUnhealthy"));
    harness.pass("a.example");
    harness.decide_at(20);
    assert_eq!(harness.condition(Resolved).0, False, "one pass of two");
    harness.pass("a.example");
    harness.decide_at(21);
    assert_eq!(harness.condition(Ready).0, True);
}

#[test]
fn sources_that_fail_together_are_reported_once() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.fail("b.example");
    assert_eq!(reasons(&harness.decide()), [], "busan hasn't failed yet");
    assert_eq!(harness.condition(Degraded), (True, "TargetUnhealthy"));
    harness.now = at(20);
    harness.fail("b.example");
    harness.fail("b.example");
    let decision = harness.decide();
    assert_eq!(reasons(&decision), [EventReason::NoHealthySource]);
    assert_eq!(decision.events[0].message(), "seoul a.example stays: NXDOMAIN");
    harness.now = at(30);
    harness.fail("a.example");
    harness.fail("b.example");
    assert_eq!(reasons(&harness.decide()), []);
}

#[test]
fn standby_that_fails_after_a_hold_is_reported() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.is_failover_held = true;
    assert_eq!(reasons(&harness.decide()), [EventReason::FailoverHeld]);
    assert_eq!(reasons(&harness.decide()), []);
    harness.is_failover_held = false;
    harness.now = at(60);
    harness.fail("a.example");
    assert_eq!(reasons(&harness.decide()), []);
    harness.fail_thrice("b.example");
    assert_eq!(reasons(&harness.decide()), [EventReason::NoHealthySource]);
}

#[test]
fn pin_to_a_failed_target_is_reported_with_the_move() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("b.example");
    harness.fail_thrice("a.example");
    assert_eq!(reasons(&harness.decide()), [EventReason::NoHealthySource]);
    harness.edit(|spec| spec.pin = Some("busan".to_owned()));
    let decision = harness.decide();
    assert_eq!(reasons(&decision), [EventReason::TargetChanged, EventReason::NoHealthySource]);
    let moved = "seoul a.example → busan b.example, which fails its checks; pinned by spec.pin";
    assert_eq!(decision.events[0].message(), moved);
    assert_eq!(reasons(&harness.decide()), []);
}

#[test]
fn failed_target_that_a_pin_keeps_is_reported() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    harness.now = at(10);
    harness.fail_thrice("a.example");
    let decision = harness.decide();
    assert_eq!(reasons(&decision), [EventReason::PinnedTargetFailed]);
    let why = "NXDOMAIN; pinned to seoul, although busan is healthy";
    assert_eq!(decision.events[0].message(), format!("seoul a.example stays: {why}"));
    for (kind, start) in [(Degraded, ""), (Ready, "leads to seoul; ")] {
        let condition = harness.status.condition(kind).unwrap();
        let expected = ("TargetUnhealthy".to_owned(), format!("{start}seoul: {why}"));
        assert_eq!((condition.reason.clone(), condition.message.clone()), expected);
    }
    for seconds in [10, 20] {
        harness.edit(|spec| spec.max_wait = Duration::from_secs(seconds));
        assert_eq!(reasons(&harness.decide()), [], "the edit isn't about the pin");
    }
    harness.fail_thrice("b.example");
    assert_eq!(reasons(&harness.decide()), [], "the pin still keeps it");
    assert!(harness.status.condition(Degraded).unwrap().message.ends_with("NXDOMAIN; pinned to seoul"));
    harness.edit(|spec| spec.pin = None);
    assert_eq!(reasons(&harness.decide()), []);
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.is_failover_held = true;
    assert_eq!(reasons(&harness.decide()), [EventReason::FailoverHeld]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    assert_eq!(reasons(&harness.decide()), [EventReason::PinnedTargetFailed], "it had failed before");
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.fail_thrice("b.example");
    assert_eq!(reasons(&harness.decide()), [EventReason::NoHealthySource]);
}

#[test]
fn pinned_target_with_a_long_failure_is_reported_once() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    harness.now = at(10);
    (0..3).for_each(|_| harness.record("a.example", &[CheckOutcome::Failed("é".repeat(2_000))]));
    assert_eq!(reasons(&harness.decide()), [EventReason::PinnedTargetFailed]);
    for kind in [Degraded, Ready] {
        let message = &harness.status.condition(kind).unwrap().message;
        assert!(message.ends_with("…; pinned to seoul, although busan is healthy"), "{message}");
        assert_eq!(message.chars().count(), crate::api::limits::MAX_MESSAGE);
    }
    harness.edit(|spec| spec.max_wait = Duration::from_secs(10));
    assert_eq!(reasons(&harness.decide()), [], "the edit isn't about the pin");
}

#[test]
fn first_moves_of_a_new_object_are_no_edits() {
    let mut harness = Harness::new(&SOURCES[..2]);
    harness.decide();
    harness.fail_thrice("a.example");
    harness.pass("b.example");
    let mut moves = vec![harness.decide().moved];
    assert_eq!(harness.announced(), "busan b.example");
    for second in [20, 30, 360] {
        harness.now = at(second);
        harness.pass("a.example");
        moves.push(harness.decide().moved);
    }
    assert_eq!(moves, [Some(MoveReason::Announced), None, None, Some(MoveReason::FailedBack)]);
}

#[test]
fn wait_begins_with_an_unwritten_decision() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    for second in [20, 25] {
        harness.now = at(second);
        harness.pass("a.example");
    }
    harness.last = Some(harness.peek().status);
    harness.now = at(330);
    harness.pass("a.example");
    assert_eq!(harness.peek().moved, Some(MoveReason::FailedBack), "healthy since second 25");
    harness.last = None;
    assert_eq!(harness.peek().moved, None, "healthy since second 330");
}

#[test]
fn unwritten_failure_needs_passes_for_the_condition_too() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.last = Some(harness.peek().status);
    for (second, state, resolved) in [(12, SourceState::Unhealthy, False), (14, SourceState::Healthy, True)] {
        harness.now = at(second);
        harness.pass("a.example");
        let status = harness.peek().status;
        let condition = status.condition(Resolved).unwrap();
        assert_eq!((status.sources[0].state, condition.status), (state, resolved), "second {second}");
    }
}

#[test]
fn target_of_a_removed_source_stays_until_a_source_is_healthy() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(40);
    harness.reorder(&["busan", "fixed"]);
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example", "no other source passed within the last period");
    let message = &harness.status.condition(Degraded).unwrap().message;
    let expected = "leads to seoul (not in spec.sources any more) instead of busan";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(harness.place(), Some(2), "the alert about a failover fires for places above 0");
    assert!(harness.peek().checks.iter().any(|check| check.target == target("a.example")));
    harness.pass("c.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "fixed c.example");
    assert_eq!(decision.moved, Some(MoveReason::SourcesEdited));
    assert_eq!(harness.place(), Some(1));
}

#[test]
fn removal_of_the_source_in_use_makes_checks_urgent() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(40);
    harness.fail_thrice("c.example");
    harness.reorder(&["busan", "fixed"]);
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(urgencies(&harness), [Urgency::Routine, Urgency::Awaited, Urgency::Routine]);
}

#[test]
fn second_failover_comes_at_once_and_a_third_one_waits() {
    let mut harness = failed_over();
    harness.now = at(15);
    harness.pass("c.example");
    harness.fail_thrice("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "fixed c.example");
    harness.now = at(20);
    harness.pass("b.example");
    harness.pass("b.example");
    harness.fail_thrice("c.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "fixed c.example");
    let (again, put_off_until) = (decision.again.unwrap(), at(131));
    assert!(again <= put_off_until, "the move is forgotten: {again}");
    harness.now = at(131);
    harness.pass("b.example");
    harness.fail("c.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn failover_in_a_cutover_makes_the_new_target_unhealthy() {
    let mut harness = Harness::settled(&SOURCES);
    harness.offer("seoul").target = Some(target("new.example"));
    harness.decide_at(5);
    harness.now = at(10);
    harness.fail_thrice("new.example");
    harness.decide();
    assert_eq!(harness.state("seoul"), SourceState::Pending);
    harness.fail_thrice("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(harness.state("seoul"), SourceState::Unhealthy);
}

#[test]
fn target_stays_while_the_move_to_a_ready_standby_waits() {
    let mut harness = failed_over();
    harness.spec.max_wait = Duration::ZERO;
    harness.spec.failback = Failback::Automatic { after: Duration::ZERO };
    for second in [60, 70, 80] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.decide();
    }
    assert_eq!(harness.announced(), "seoul a.example");
    harness.offer("seoul").target = Some(target("dead.example"));
    harness.decide();
    harness.now = at(90);
    harness.fail_thrice("a.example");
    harness.fail_thrice("dead.example");
    harness.pass("b.example");
    let decision = harness.decide();
    assert_eq!(decision.moved, None, "a failover may follow the failback after a minute");
    assert_eq!(decision.again, Some(at(90 + 35)), "the end of the standby's pass");
    let until = next_move(&harness.status.history, MoveReason::FailedOver).at;
    assert!(until > at(90) && harness.condition(Progressing) == (True, "FailoverHeld"));
    let expected = format!(
        "waits until {until} for the failover to busan: moves there and back are at least a minute apart"
    );
    assert_eq!(progress(&harness), expected);
}

// --- Withdrawal

#[test]
fn target_is_withdrawn_at_once_and_replaced_if_possible() {
    let withdrawals: [(&str, Change); 3] = [
        ("deleted, or not allowed any more", |harness| {
            *harness.offer("seoul") = offer("", "");
            harness.offer("seoul").refusal = refusal(RefusalReason::RefNotPermitted);
        }),
        ("recreated", |harness| *harness.offer("seoul") = offer("another uid", "")),
        ("denied", |harness| harness.denied.push(target("a.example"))),
    ];
    for (name, withdraw) in withdrawals {
        let mut harness = Harness::settled(&SOURCES);
        withdraw(&mut harness);
        let decision = harness.decide_at(10);
        assert_eq!(harness.announced(), "busan b.example", "{name}");
        assert_eq!(decision.moved, Some(MoveReason::Withdrawn), "{name}");
        assert!(!decision.fails_over, "{name}");
        assert_eq!(reasons(&decision), [EventReason::FailedOver], "{name}");
        let message = decision.events[0].message();
        assert!(message.starts_with("seoul a.example → busan b.example: "), "{name}: {message}");
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"), "{name}");
        assert_eq!(harness.condition(Degraded), (True, "FailedOver"), "{name}");

        let mut harness = Harness::settled(&SOURCES[..1]);
        withdraw(&mut harness);
        let decision = harness.decide_at(10);
        assert_eq!(harness.announced(), "", "{name}");
        assert_eq!(reasons(&decision), [EventReason::NoHealthySource], "{name}");
        assert_eq!(decision.moved, Some(MoveReason::Withdrawn), "{name}");
        assert!(harness.status.is_withdrawn(), "{name}");
        assert_eq!(harness.status.history[0].reason, "Withdrawn", "{name}");
        assert_eq!(harness.condition(Ready).0, False, "{name}");
    }
}

#[test]
fn target_of_a_living_service_is_not_withdrawn() {
    let changes: [(&str, Change); 4] = [
        ("blank", |harness| harness.offer("seoul").target = None),
        ("denied offer", |harness| {
            harness.offer("seoul").target = Some(target("d.example"));
            harness.offer("seoul").refusal = refusal(RefusalReason::TargetRefused);
        }),
        ("policy", |harness| {
            harness.offer("seoul").target = Some(target("d.example"));
            harness.denied.push(target("d.example"));
        }),
        ("check refused", |harness| {
            harness.offer("seoul").refusal = refusal(RefusalReason::CheckRefused);
        }),
    ];
    for (name, change) in changes {
        let mut harness = Harness::settled(&SOURCES);
        change(&mut harness);
        harness.decide_at(10);
        harness.decide_at(1000);
        assert_eq!(harness.announced(), "seoul a.example", "{name}");
    }
}

#[test]
fn blank_status_is_told_beside_the_failure_of_the_target() {
    let message_of = |harness: &Harness, kind| harness.status.condition(kind).unwrap().message.clone();
    for source in ["seoul", "busan"] {
        let mut harness = Harness::settled(&SOURCES[..2]);
        harness.offer(source).is_blank = true;
        harness.decide_at(10);
        let blank = format!("{source}: the status of its Service is blank, and its last target counts");
        assert_eq!(harness.condition(Degraded), (True, "TargetKept"));
        assert_eq!(message_of(&harness, Degraded), blank);
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
        assert_eq!(message_of(&harness, Ready), format!("leads to seoul; {blank}"));
        harness.offer("busan").unread = Some("not listed".to_owned());
        harness.decide_at(20);
        assert_eq!(harness.condition(Degraded), (True, "Forbidden"));
        assert_eq!(message_of(&harness, Degraded), format!("busan: not listed; {blank}"));
        harness.fail_thrice("b.example");
        harness.fail_thrice("a.example");
        harness.decide_at(30);
        assert_eq!(harness.condition(Ready), (False, "TargetUnhealthy"));
        let of_busan = "; busan: NXDOMAIN";
        let ready = match source {
            "seoul" => format!("leads to seoul; seoul: NXDOMAIN; {blank}{of_busan}"),
            _ => format!("leads to seoul; seoul: NXDOMAIN{of_busan}; {blank}"),
        };
        assert_eq!(message_of(&harness, Degraded), format!("seoul: NXDOMAIN; {blank}"));
        assert_eq!(message_of(&harness, Ready), ready);
        harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
        harness.decide_at(32);
        assert_eq!(message_of(&harness, Degraded), format!("seoul: NXDOMAIN; {blank}; pinned to seoul"));
        *harness.offer(source) = offer(source, "new.example");
        harness.decide_at(40);
        assert!(!message_of(&harness, Ready).contains("blank"));
    }
}

#[test]
fn withdrawal_of_a_pinned_target_names_the_pin() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    harness.decide_at(5);
    *harness.offer("seoul") = offer("", "");
    let decision = harness.decide_at(10);
    assert_eq!((harness.announced().as_str(), reasons(&decision)), ("", vec![EventReason::NoHealthySource]));
    let message = decision.events[0].message();
    assert!(message.ends_with("; pinned to seoul, although busan is healthy"), "{message}");
}

#[test]
fn message_in_a_cutover_names_the_target_that_fails() {
    let mut harness = cutover();
    let ready = |harness: &Harness| harness.status.condition(Ready).unwrap().message.clone();
    let waits = "seoul: new target new.example: not checked yet";
    assert_eq!(ready(&harness), format!("leads to seoul; {waits}"));
    harness.fail_thrice("a.example");
    harness.decide_at(20);
    assert_eq!(ready(&harness), format!("leads to seoul, which fails: NXDOMAIN; {waits}"));
}

#[test]
fn same_target_of_a_recreated_service_is_announced_anew() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.offer("seoul").uid = "another uid".into();
    let decision = harness.decide_at(10);
    assert_eq!(decision.moved, Some(MoveReason::Withdrawn));
    assert_eq!(harness.announced(), "seoul a.example", "its check has just passed");
    assert_eq!(reasons(&decision), [EventReason::TargetChanged; 2], "no other source replaces it");
    assert!(harness.status.target.as_ref().unwrap().uid == *"another uid");
}

#[test]
fn unhealthy_source_that_is_announced_after_a_pass_is_healthy() {
    let mut harness = failed_over();
    harness.spec.check.success_threshold = 4;
    for (name, target) in &SOURCES[1..] {
        *harness.offer(name) = offer(name, "");
        harness.denied.push(self::target(target));
    }
    harness.decide_at(20);
    assert_eq!((harness.announced().as_str(), message(&harness).as_str()), ("", "NXDOMAIN"));
    harness.now = at(30);
    harness.pass("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.condition(Resolved), (True, "CheckPassed"));
    assert_eq!((harness.state("seoul"), message(&harness).as_str()), (SourceState::Healthy, ""));
    let ready = &harness.status.condition(Ready).unwrap().message;
    assert_eq!(ready, "leads to seoul; busan: offers no target; fixed: offers no target");
    harness.fail_thrice("a.example");
    harness.decide_at(32);
    assert_eq!((harness.state("seoul"), harness.condition(Resolved).0), (SourceState::Unhealthy, False));
    harness.pass("a.example");
    harness.decide_at(34);
    assert_eq!((harness.state("seoul"), harness.condition(Resolved).0), (SourceState::Unhealthy, False));
}

#[test]
fn edited_reference_of_a_source_is_no_withdrawal() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.other_living_uids = vec!["seoul".into()];
    *harness.offer("seoul") = offer("another Service", "d.example");
    harness.edit(|_| ());
    harness.decide_at(10);
    harness.decide_at(11);
    assert_eq!(harness.announced(), "seoul a.example");
    harness.pass("d.example");
    harness.decide_at(12);
    assert_eq!(harness.announced(), "seoul d.example");
}

#[test]
fn typo_in_a_reference_withdraws_no_living_target() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.other_living_uids = vec!["seoul".into()];
    *harness.offer("seoul") = offer("", "");
    harness.offer("seoul").refusal = refusal(RefusalReason::RefNotPermitted);
    harness.edit(|_| ());
    assert_eq!(harness.decide_at(10).moved, None);
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.condition(Accepted), (False, "RefNotPermitted"));
}

#[test]
fn fixed_target_isnt_withdrawn_by_an_edit_of_its_source() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.offer("seoul").uid = "".into();
    harness.status.target.as_mut().unwrap().uid = "".into();
    *harness.offer("seoul") = offer("", "");
    harness.offer("seoul").refusal = refusal(RefusalReason::RefNotPermitted);
    harness.edit(|_| ());
    assert_eq!(harness.decide_at(10).moved, None);
    assert_eq!(harness.announced(), "seoul a.example");
}

#[test]
fn target_of_a_deleted_service_is_withdrawn_after_an_edit() {
    let edits: [(&str, Change); 3] = [
        ("removed", |harness| harness.reorder(&["fixed"])),
        ("renamed", |harness| harness.edit(|spec| spec.sources[0] = "incheon".to_owned())),
        ("edited together", |harness| {
            *harness.offer("seoul") = offer("another uid", "d.example");
            harness.edit(|_| ());
        }),
    ];
    for (name, edit) in edits {
        let mut harness = Harness::settled(&SOURCES);
        harness.now = at(40);
        edit(&mut harness);
        harness.other_living_uids.clear();
        harness.offers.iter_mut().filter(|offer| offer.uid == *"seoul").for_each(|offer| {
            *offer = Offer { refusal: refusal(RefusalReason::RefNotPermitted), ..Offer::default() };
        });
        harness.pass("c.example");
        let decision = harness.decide();
        assert_eq!(decision.moved, Some(MoveReason::Withdrawn), "{name}");
        assert_eq!(harness.announced(), "fixed c.example", "{name}");
        let is_listed = harness.spec.sources.contains(&"seoul".to_owned());
        assert_eq!(reasons(&decision).contains(&EventReason::FailedOver), is_listed, "{name}");
    }
}

#[test]
fn missing_uid_is_filled_from_the_source_with_the_target() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.status.target.as_mut().unwrap().uid = "".into();
    harness.decide_at(10);
    assert!(harness.status.target.as_ref().unwrap().uid == *"seoul");
    *harness.offer("seoul") = offer("another uid", "a.example");
    assert_eq!(harness.decide_at(11).moved, Some(MoveReason::Withdrawn));
}

// --- Nothing is announced

#[test]
fn target_of_the_live_link_is_announced_without_a_check() {
    let mut harness = Harness::new(&SOURCES);
    harness.offer("busan").is_live_link = true;
    let decision = harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(decision.moved, Some(MoveReason::Announced));
    assert_eq!(harness.condition(Ready), (False, "Unverified"));
    assert!(harness.status.history.is_empty());
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
}

#[test]
fn first_target_is_the_most_preferred_that_passes() {
    let mut harness = Harness::new(&SOURCES);
    let decision = harness.decide();
    assert_eq!((decision.moved, harness.announced().as_str()), (None, ""));
    assert_eq!(harness.condition(Progressing), (True, "NoTarget"));
    assert!(decision.checks.iter().all(|check| check.urgency == Urgency::Awaited));
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "", "seoul isn't checked yet");
    harness.fail("a.example");
    let decision = harness.decide();
    assert_eq!(harness.announced(), "busan b.example", "seoul has failed a check");
    assert!(harness.status.target.as_ref().unwrap().verified);
    assert_eq!(reasons(&decision), [EventReason::FailedOver]);
    let message = "busan b.example is announced instead of seoul: NXDOMAIN";
    assert_eq!(decision.events[0].message(), message);
}

/// Returns the message of the first source.
fn message(harness: &Harness) -> String {
    harness.status.sources[0].message.clone()
}

#[test]
fn source_without_an_answer_names_upstream_and_answer() {
    let mut harness = Harness::new(&SOURCES[..1]);
    harness.decide();
    assert_eq!(message(&harness), "not checked yet");
    let first = "not checked yet: a.example gets SERVFAIL (upstream 192.0.2.1:53)";
    for (second, answer) in [(2, "a.example gets SERVFAIL"), (4, "no reply")] {
        harness.now = at(second);
        let outcome = CheckOutcome::NoAnswer { upstream: upstream(1), message: answer.to_owned() };
        harness.record("a.example", &[outcome]);
        harness.decide();
        assert_eq!(message(&harness), first, "messages that alternate cause no writes");
    }
    let summary = &harness.status.condition(Ready).unwrap().message;
    assert!(summary.contains(first), "{summary}");
    harness.fail("a.example");
    harness.decide_at(6);
    assert_eq!(message(&harness), "NXDOMAIN");
    harness.pass("a.example");
    harness.decide_at(8);
    assert_eq!(message(&harness), "");
    harness.now = at(74);
    let outcome = CheckOutcome::NoAnswer { upstream: upstream(1), message: "no reply".to_owned() };
    harness.record("a.example", &[outcome]);
    harness.decide();
    let late = "no check has passed or failed for more than two periods: no reply (upstream 192.0.2.1:53)";
    assert_eq!(harness.status.condition(Resolved).unwrap().message, late);
}

#[test]
fn held_first_target_says_why_it_waits() {
    let mut harness = Harness::new(&[("own", ""), ("busan", "b.example")]);
    harness.offer("own").refusal = refusal(RefusalReason::Forbidden);
    harness.is_first_target_held = true;
    harness.pass("b.example");
    harness.decide();
    harness.decide_at(301);
    assert_eq!(harness.announced(), "");
    assert_eq!(harness.condition(Accepted), (False, "Forbidden"));
    assert_eq!(harness.condition(Ready), (False, "Forbidden"));
    harness.is_first_target_held = false;
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn target_of_an_unlisted_service_is_checked_by_tcp_as_before() {
    let mut harness = Harness::settled(&[("seoul", "192.0.2.1"), ("busan", "192.0.2.2")]);
    harness.edit(|spec| spec.check.tcp_port = Some(443));
    harness.restart();
    *harness.offer("seoul") =
        Offer { uid: "seoul".into(), refusal: refusal(RefusalReason::Forbidden), ..Offer::default() };
    let checks = harness.decide().checks;
    assert!(
        checks.iter().any(|check| check.target == target("192.0.2.1") && check.tcp_port == Some(443)),
        "{checks:?}"
    );
    harness.fail_thrice("192.0.2.1");
    harness.pass("192.0.2.2");
    harness.decide();
    assert_eq!(harness.announced(), "busan 192.0.2.2", "{:#?}", harness.status);
}

#[test]
fn source_without_a_target_is_passed_over_after_30_s() {
    for refused in [None, refusal(RefusalReason::RefNotPermitted)] {
        let mut harness = Harness::new(&[("seoul", ""), ("busan", "b.example")]);
        harness.offer("seoul").refusal = refused;
        harness.decide();
        harness.now = at(30);
        harness.pass("b.example");
        let decision = harness.decide();
        assert_eq!((harness.announced().as_str(), decision.again), ("", Some(at(31))));
        let expected =
            format!("waits until {} for the preferred source seoul: {}", at(31), message(&harness));
        assert_eq!((harness.condition(Progressing), progress(&harness)), ((True, "NoTarget"), expected));
        harness.decide_at(31);
        assert_eq!(harness.announced(), "busan b.example");
    }
}

#[test]
fn source_is_passed_over_earlier_if_max_wait_is_shorter() {
    let mut harness = Harness::new(&[("seoul", ""), ("busan", "b.example")]);
    harness.spec.max_wait = Duration::from_secs(10);
    harness.decide();
    harness.now = at(9);
    harness.pass("b.example");
    assert_eq!(harness.decide().again, Some(at(11)));
    assert_eq!(harness.decide_at(11).moved, Some(MoveReason::Announced));
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn source_that_comes_and_goes_is_waited_for_once() {
    let mut harness = Harness::new(&[("seoul", ""), ("busan", "b.example")]);
    let mut announced_at = |second: i64| {
        let is_refused = second % 40 == 0;
        harness.offer("seoul").refusal =
            is_refused.then(|| refusal(RefusalReason::RefNotPermitted)).flatten();
        harness.now = at(second);
        harness.pass("b.example");
        harness.decide();
        harness.announced()
    };
    // seoul is waited for 30 s from each change on, and in all as long as a target is: 300 s.
    for second in (20..=300).step_by(20) {
        assert_eq!(announced_at(second), "", "{second}");
    }
    assert_eq!(announced_at(340), "busan b.example");
}

#[test]
fn first_target_is_announced_unverified_after_the_wait() {
    let mut harness = Harness::new(&[("seoul", ""), ("busan", "b.example"), ("fixed", "c.example")]);
    harness.decide();
    harness.now = at(300);
    harness.fail_thrice("b.example");
    harness.fail_thrice("c.example");
    harness.offer("seoul").target = Some(target("a.example"));
    harness.decide();
    assert_eq!(harness.announced(), "");
    let decision = harness.decide_at(301);
    assert_eq!(harness.announced(), "busan b.example", "seoul hasn't been waited for yet");
    assert_eq!(decision.moved, Some(MoveReason::CutoverTimedOut));
    assert!(!harness.status.target.as_ref().unwrap().verified);
}

#[test]
fn wait_for_a_first_target_begins_anew_after_a_withdrawal() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(1000);
    harness.fail_thrice("b.example");
    *harness.offer("seoul") = offer("another uid", "");
    harness.decide();
    assert_eq!(harness.announced(), "");
    let message = &harness.status.condition(Progressing).unwrap().message;
    assert_eq!(message, &format!("waits until {} for a target that passes its check", at(1_301)));
    harness.now = at(1300);
    harness.fail_thrice("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "");
    harness.decide_at(1301);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn sources_are_checked_urgently_after_a_withdrawal() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(40);
    harness.fail_thrice("c.example");
    *harness.offer("seoul") = offer("another uid", "");
    harness.decide();
    assert_eq!((harness.announced().as_str(), harness.state("busan")), ("", SourceState::Healthy));
    assert_eq!(urgencies(&harness), [Urgency::Awaited, Urgency::Awaited]);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    assert_eq!(urgencies(&harness), [Urgency::Routine, Urgency::Routine]);
}

#[test]
fn progressing_tells_the_end_of_the_wait_for_a_first_target() {
    let message = |harness: &Harness| harness.status.condition(Progressing).unwrap().message.clone();
    let mut harness = Harness::new(&[("seoul", "")]);
    harness.decide();
    assert_eq!(message(&harness), "waits for a target that passes its check");
    harness.offer("seoul").target = Some(target("a.example"));
    harness.decide_at(10);
    assert_eq!(message(&harness), format!("waits until {} for a target that passes its check", at(311)));
    harness.pass("a.example");
    harness.decide_at(20);
    harness.denied.push(target("a.example"));
    harness.decide_at(1_000);
    harness.offer("seoul").target = Some(target("b.example"));
    harness.decide_at(1_000);
    harness.decide_at(1_100);
    assert_eq!(message(&harness), format!("waits until {} for a target that passes its check", at(1_301)));
}

#[test]
fn source_without_results_is_passed_over_after_30_s() {
    let mut harness = Harness::new(&SOURCES[..2]);
    harness.decide();
    harness.now = at(30);
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "");
    harness.decide_at(31);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn new_leader_waits_30_s_for_an_unchecked_source() {
    let mut harness = Harness::new(&SOURCES[..2]);
    harness.decide();
    harness.restart();
    harness.decide_at(100);
    harness.now = at(130);
    harness.pass("b.example");
    let decision = harness.decide();
    assert_eq!((harness.announced().as_str(), decision.again), ("", Some(at(131))));
    let expected = format!("waits until {} for the preferred source seoul: not checked yet", at(131));
    assert_eq!(progress(&harness), expected);
    harness.decide_at(131);
    assert_eq!(harness.announced(), "busan b.example");
}

// --- Failback

#[test]
fn failback_comes_after_the_source_was_healthy_long_enough() {
    let mut harness = failed_over();
    harness.pass("a.example");
    harness.decide_at(20);
    assert_eq!(harness.state("seoul"), SourceState::Unhealthy, "one pass of two");
    harness.pass("a.example");
    harness.decide_at(40);
    assert_eq!(harness.state("seoul"), SourceState::Healthy);
    harness.now = at(340);
    harness.pass("a.example");
    harness.pass("b.example");
    let decision = harness.decide();
    assert_eq!((harness.announced().as_str(), decision.again), ("busan b.example", Some(at(341))));
    let decision = harness.decide_at(341);
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(
        (decision.moved, reasons(&decision)),
        (Some(MoveReason::FailedBack), vec![EventReason::FailedBack])
    );
    assert_eq!(harness.condition(Degraded).0, False);
}

fn progress(harness: &Harness) -> String {
    harness.status.condition(Progressing).unwrap().message.clone()
}

#[test]
fn held_failback_says_for_what_it_waits_and_until_when() {
    let mut harness = failed_over();
    assert_eq!(harness.condition(Progressing), (False, "TargetAnnounced"));
    for second in [20, 40] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.decide();
    }
    let expected = format!("waits until {} for the failback to seoul: failback.afterSeconds is 300", at(341));
    assert_eq!(harness.condition(Progressing), (True, "FailbackHeld"));
    assert_eq!(progress(&harness), expected);
    let before = harness.status.clone();
    harness.now = at(100);
    harness.fail("a.example");
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.status, before, "a single failure causes no write");
    harness.now = at(341);
    harness.pass("a.example");
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(progress(&harness), "waits for 2 passed checks in a row, for the failback to seoul");
    harness.pass("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.condition(Progressing), (False, "TargetAnnounced"));
}

#[test]
fn failback_that_waits_for_the_next_minute_says_so() {
    let mut harness = failed_over();
    harness.spec.failback = Failback::Automatic { after: Duration::ZERO };
    for second in [12, 14] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.decide();
    }
    let until = next_move(&harness.status.history, MoveReason::FailedBack).at;
    let expected = format!(
        "waits until {until} for the failback to seoul: moves there and back are at least a minute apart"
    );
    assert_eq!(progress(&harness), expected);
    harness.spec.failback = Failback::Manual;
    harness.decide();
    assert_eq!(harness.condition(Progressing), (False, "TargetAnnounced"));
}

#[test]
fn failback_waits_anew_after_a_failure() {
    let mut harness = failed_over();
    for second in [20, 50] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.decide();
    }
    harness.now = at(200);
    harness.fail_thrice("a.example");
    harness.decide();
    for second in [300, 330, 360] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.pass("b.example");
        harness.decide();
        assert_eq!(harness.announced(), "busan b.example");
    }
    harness.now = at(631);
    harness.pass("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
}

/// Runs `check` and a decision every five seconds for ten minutes, and returns the seconds at which the target changed.
fn ten_minutes(mut check: impl FnMut(&mut Harness, i64)) -> Vec<i64> {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| {
        spec.failback = Failback::Automatic { after: Duration::ZERO };
        spec.check.failure_threshold = 1;
        spec.check.success_threshold = 1;
    });
    let mut moves = Vec::new();
    for second in (0..600).step_by(5) {
        harness.now = at(second);
        check(&mut harness, second);
        moves.extend(harness.decide().moved.map(|_| second));
    }
    moves
}

#[test]
fn flipping_source_moves_the_target_once_a_minute_at_most() {
    let moves = ten_minutes(|harness, second| {
        match second / 20 % 2 {
            0 => harness.fail("a.example"),
            _ => harness.pass("a.example"),
        }
        harness.pass("b.example");
    });
    assert!(moves.len() > 4, "{moves:?}");
    assert!(moves.windows(2).all(|pair| pair[1] - pair[0] >= 60), "{moves:?}");
}

#[test]
fn silent_upstreams_move_nothing() {
    let moves = ten_minutes(|harness, second| {
        let silent = CheckOutcome::NoAnswer { upstream: upstream(1), message: "no reply".to_owned() };
        for target in ["a.example", "b.example"] {
            let outcome = if (60..180).contains(&second) { silent.clone() } else { CheckOutcome::Passed };
            harness.record(target, &[outcome]);
        }
    });
    assert!(moves.is_empty(), "{moves:?}");
}

#[test]
fn manual_failback_never_moves() {
    let mut harness = failed_over();
    harness.spec.failback = Failback::Manual;
    for second in (20..2000).step_by(20) {
        harness.now = at(second);
        harness.pass("a.example");
        harness.pass("b.example");
        assert_eq!(harness.decide().moved, None);
    }
    assert_eq!(harness.condition(Degraded), (True, "FailedOver"));
}

// --- Pin and edits

#[test]
fn pin_moves_at_once_and_ends_automatic_moves() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail_thrice("b.example");
    harness.edit(|spec| spec.pin = Some("busan".to_owned()));
    let decision = harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(decision.moved, Some(MoveReason::Pinned));
    let message = "seoul a.example → busan b.example, which fails its checks; pinned by spec.pin";
    assert_eq!(decision.events[0].message(), message);
    assert!(!harness.status.target.as_ref().unwrap().verified);
    for second in (20..2000).step_by(20) {
        harness.now = at(second);
        harness.pass("a.example");
        harness.fail("b.example");
        assert_eq!(harness.decide().moved, None);
    }
    harness.edit(|spec| spec.pin = None);
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
}

#[test]
fn pinned_source_without_a_target_moves_nothing() {
    let mut harness = Harness::settled(&[("seoul", "a.example"), ("busan", "")]);
    harness.edit(|spec| spec.pin = Some("busan".to_owned()));
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.condition(Progressing), (True, "PinnedSourceNotReady"));
    harness.offer("busan").target = Some(target("b.example"));
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    *harness.offer("busan") = offer("another uid", "");
    harness.decide();
    assert_eq!(harness.announced(), "", "nothing moves by itself");
    assert_eq!(harness.condition(Progressing), (True, "NoTarget"));
    let message = &harness.status.condition(Progressing).unwrap().message;
    assert_eq!(message, "source busan is pinned and has no target");
}

#[test]
fn first_source_whose_pin_cant_be_used_is_no_standby() {
    let mut harness = failed_over();
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    *harness.offer("seoul") = offer("", "");
    harness.offer("seoul").refusal = refusal(RefusalReason::RefNotPermitted);
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
    assert_eq!(harness.condition(Progressing), (True, "PinnedSourceNotReady"));
    assert_eq!(harness.condition(Degraded), (True, "FailedOver"));
    let message = &harness.status.condition(Degraded).unwrap().message;
    assert_eq!(message, "leads to busan instead of seoul: refused");
}

#[test]
fn progressing_tells_why_a_pinned_source_is_refused() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.edit(|spec| spec.pin = Some("busan".to_owned()));
    harness.denied.push(target("b.example"));
    harness.decide();
    assert_eq!(harness.condition(Progressing), (True, "PinnedSourceNotReady"));
    let message = &harness.status.condition(Progressing).unwrap().message;
    assert_eq!(message, "source busan is pinned and refused: the target policy denies its target");
}

#[test]
fn new_target_of_a_pinned_source_is_waited_for() {
    let mut harness = Harness::settled(&SOURCES);
    harness.edit(|spec| spec.pin = Some("seoul".to_owned()));
    harness.offer("seoul").target = Some(target("new.example"));
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    harness.pass("new.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul new.example");
}

#[test]
fn edit_moves_the_target_only_to_a_healthy_preferred_source() {
    for (order, healthy, expected) in [
        (&["busan", "seoul", "fixed"][..], true, "busan b.example"),
        (&["busan", "seoul", "fixed"][..], false, "seoul a.example"),
        (&["seoul", "fixed", "busan"][..], true, "seoul a.example"),
        (&["seoul"][..], true, "seoul a.example"),
        (&["fixed", "busan"][..], true, "fixed c.example"),
    ] {
        let mut harness = Harness::settled(&SOURCES);
        harness.spec.failback = Failback::Manual;
        harness.now = at(10);
        if !healthy {
            harness.fail_thrice("b.example");
        }
        harness.reorder(order);
        let decision = harness.decide();
        assert_eq!(harness.announced(), expected, "{order:?}");
        let is_move = expected != "seoul a.example";
        assert_eq!(decision.moved, is_move.then_some(MoveReason::SourcesEdited), "{order:?}");
        assert_eq!(harness.status.observed_generation, 2);
    }
}

#[test]
fn replaced_sources_are_tried_in_their_order() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.other_living_uids = vec!["seoul".into()];
    harness.offers = vec![offer("busan", "b.example"), offer("fixed", "c.example")];
    harness.edit(|spec| spec.sources = vec!["busan".to_owned(), "fixed".to_owned()]);
    harness.decide_at(10);
    harness.pass("c.example");
    assert_eq!(harness.decide_at(12).moved, None, "busan isn't checked yet");
    harness.pass("b.example");
    harness.decide_at(13);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn renamed_source_with_the_same_target_is_no_move() {
    let mut harness = Harness::settled(&SOURCES);
    harness.edit(|spec| spec.sources[0] = "incheon".to_owned());
    let decision = harness.decide_at(10);
    assert_eq!((decision.moved, harness.announced().as_str()), (None, "incheon a.example"));
    assert!(harness.status.history.is_empty());
    assert_eq!(harness.status.target.as_ref().unwrap().since, at(-60));
}

#[test]
fn renamed_source_in_use_keeps_its_target() {
    let mut harness = failed_over();
    harness.spec.failback = Failback::Manual;
    harness.now = at(20);
    harness.pass("a.example");
    harness.pass("a.example");
    harness.decide();
    harness.edit(|spec| spec.sources[1] = "daegu".to_owned());
    let decision = harness.decide_at(21);
    assert_eq!((decision.moved, harness.announced().as_str()), (None, "daegu b.example"));
    harness.fail_thrice("b.example");
    harness.edit(|spec| spec.sources[1] = "jeju".to_owned());
    assert_eq!(harness.decide_at(22).moved, Some(MoveReason::FailedOver));
    assert_eq!(harness.status.history[0].source, "jeju");
}

#[test]
fn announced_source_that_is_moved_down_and_renamed_is_replaced() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.spec.failback = Failback::Manual;
    harness.reorder(&["busan", "seoul"]);
    harness.edit(|spec| spec.sources[1] = "incheon".to_owned());
    assert_eq!(harness.decide_at(10).moved, Some(MoveReason::SourcesEdited));
    assert_eq!(harness.announced(), "busan b.example");
}

// --- Mass failure, leaders, lost statuses

#[test]
fn held_failover_keeps_the_target_and_is_degraded() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.is_failover_held = true;
    let decision = harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    assert!(decision.fails_over);
    let condition = harness.status.condition(Degraded).unwrap();
    let held = "the failover is held, because too many StableNames would fail over: seoul: NXDOMAIN";
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("MassFailure", held));
    harness.is_failover_held = false;
    assert!(harness.decide().fails_over);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn hold_ends_when_the_pass_of_the_standby_is_too_old() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.is_failover_held = true;
    let again = harness.decide().again.unwrap();
    assert_eq!(again, at(35));
    harness.now = at(34);
    assert_eq!(harness.decide().again, Some(again));
    harness.now = again;
    harness.decide();
    assert_eq!(harness.condition(Degraded), (True, "TargetUnhealthy"));
}

#[test]
fn new_leader_moves_only_by_checks_of_its_own() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    harness.is_failover_held = true;
    harness.decide();
    let status = harness.status.clone();
    harness.is_failover_held = false;
    harness.restart();
    harness.decide_at(12);
    assert_eq!(harness.announced(), "seoul a.example");
    assert_eq!(harness.status.sources, status.sources, "the states of the status");
    assert_eq!(harness.condition(Resolved), (False, "CheckFailed"));
    harness.fail_thrice("a.example");
    harness.decide_at(14);
    assert_eq!(harness.announced(), "seoul a.example", "this leader hasn't seen busan pass");
    harness.pass("b.example");
    harness.decide_at(15);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn new_leader_continues_the_wait_for_a_failback() {
    let mut harness = failed_over();
    for second in [20, 50] {
        harness.now = at(second);
        harness.pass("a.example");
        harness.decide();
    }
    harness.restart();
    for (second, expected) in [(340, "busan b.example"), (351, "busan b.example"), (353, "seoul a.example")] {
        harness.decide_at(second);
        harness.pass("a.example");
        harness.decide();
        assert_eq!(harness.announced(), expected, "at {second}");
        if second == 340 {
            harness.restart();
        }
    }
}

#[test]
fn object_without_status_begins_with_its_external_target() {
    for (present, expected) in [("b.example", "busan b.example"), ("old.example", " old.example")] {
        let mut harness = Harness::new(&SOURCES);
        harness.present_target = Some((target(present), "".into()));
        let decision = harness.decide();
        assert_eq!((decision.moved, harness.announced().as_str()), (None, expected));
        assert_eq!(harness.condition(Ready), (False, "Unverified"));
        harness.pass(present);
        harness.decide();
        assert_eq!(harness.condition(Ready).0, True);
    }
}

#[test]
fn missing_status_target_is_taken_from_the_external_target() {
    let mut harness = Harness::new(&SOURCES);
    harness.decide();
    harness.present_target = Some((target("b.example"), "busan".into()));
    harness.decide_at(1);
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn present_target_is_withdrawn_only_if_its_service_is_known() {
    // A restored Service has another uid, and may have the same target.
    for (uid, present, expected) in [
        ("", "a.example", Some("seoul")),
        ("seoul", "a.example", Some("seoul")),
        ("gone", "a.example", Some("seoul")),
        // No Service with the recorded uid is known.
        ("", "old.example", Some("")),
        // The Service is known, and doesn't allow the namespace any more.
        ("closed", "old.example", None),
    ] {
        let mut harness = Harness::new(&SOURCES);
        harness.present_target = Some((target(present), uid.into()));
        let decision = harness.decide();
        let announced = decision.status.target.as_ref();
        assert_eq!(announced.map(|target| target.uid.to_string()).as_deref(), expected, "{uid} {present}");
        let reason = expected.is_none().then_some(MoveReason::Withdrawn);
        assert_eq!((decision.moved, harness.status.is_withdrawn()), (reason, expected.is_none()), "{uid}");
        assert_eq!(harness.decide_at(10).moved, None);
    }
}

#[test]
fn present_target_is_withdrawn_once_its_service_is_deleted() {
    let mut harness = Harness::new(&SOURCES);
    harness.present_target = Some((target("old.example"), "old".into()));
    harness.other_living_uids = vec!["old".into()];
    harness.decide();
    assert_eq!(harness.announced(), " old.example");
    harness.other_living_uids.clear();
    assert_eq!(harness.decide_at(10).moved, Some(MoveReason::Withdrawn));
    assert_eq!(harness.decide_at(20).moved, None);
}

#[test]
fn times_in_the_future_are_moved_to_now() {
    let mut harness = failed_over();
    harness.decide_at(-1000);
    let target = harness.status.target.as_ref().unwrap();
    assert_eq!((target.since, harness.status.history[0].until), (at(-1000), at(-1000)));
    assert!(harness.status.sources.iter().all(|source| source.since <= at(-1000)));
}

#[test]
fn answers_from_before_the_clock_was_set_back_fail_nothing() {
    let mut harness = Harness::settled(&SOURCES);
    harness.upstreams.record(upstream(1), &hostname("other.example"), at(1_000));
    harness.now = at(10);
    harness.upstreams.forget_after(harness.now);
    let outcome = CheckOutcome::NoAnswer { upstream: upstream(1), message: "no reply".to_owned() };
    (0..3).for_each(|_| harness.record("a.example", std::slice::from_ref(&outcome)));
    assert_eq!(harness.decide().moved, None);
}

// --- Checks

#[test]
fn addresses_without_tcp_port_are_healthy_by_themselves() {
    let mut harness = Harness::new(&[("fixed", "192.0.2.10"), ("seoul", "a.example")]);
    let decision = harness.decide();
    assert_eq!(harness.announced(), "fixed 192.0.2.10");
    assert_eq!(harness.status.sources[0].message, "not checked: no tcpPort");
    assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
    assert_eq!(decision.checks.len(), 1);
    harness.spec.check.tcp_port = Some(443);
    assert_eq!(harness.decide().checks.len(), 2);
    harness.fail_thrice("192.0.2.10");
    harness.pass("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
}

#[test]
fn check_without_the_right_to_connect_is_about_dns_only() {
    let ports = |harness: &Harness| -> Vec<_> {
        harness.peek().checks.iter().map(|check| (check.target.to_string(), check.tcp_port)).collect()
    };
    let mut harness = Harness::settled(&[("seoul", "a.example"), ("fixed", "192.0.2.10")]);
    harness.edit(|spec| spec.check.tcp_port = Some(443));
    let (host, address) = ("a.example".to_owned(), "192.0.2.10".to_owned());
    assert_eq!(ports(&harness), [(host.clone(), Some(443)), (address.clone(), Some(443))]);
    harness.offer("seoul").target = None;
    assert_eq!(
        ports(&harness),
        [(host.clone(), Some(443)), (address, Some(443))],
        "the Service has the port"
    );
    for source in ["seoul", "fixed"] {
        harness.offer(source).refusal = refusal(RefusalReason::CheckRefused);
    }
    assert_eq!(ports(&harness), [(host.clone(), None)]);
    let status = harness.decide_at(10).status;
    assert_eq!((harness.announced().as_str(), &status.target.unwrap().verified), ("seoul a.example", &true));
    harness.offer("seoul").refusal = None;
    harness.offer("seoul").target = Some(target("new.example"));
    harness.offer("seoul").uid = "another uid".into();
    harness.other_living_uids = vec!["seoul".into()];
    assert_eq!(ports(&harness)[0], (host, None), "another Service has the port");
}

#[test]
fn results_before_an_edit_of_the_port_dont_count() {
    let mut harness = Harness::settled(&SOURCES);
    harness.edit(|spec| spec.check.tcp_port = Some(443));
    harness.now = at(10);
    harness.decide();
    harness.fail_thrice("a.example");
    assert_eq!(harness.decide().moved, None, "no check has connected to busan");
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
}

#[test]
fn late_check_makes_resolved_unknown_and_no_source_unhealthy() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    harness.fail("a.example");
    let again = harness.decide().again.unwrap();
    assert_eq!(again, at(10 + 65));
    harness.decide_at(74);
    assert_eq!(harness.condition(Resolved), (True, "CheckPassed"));
    harness.decide_at(75);
    assert_eq!(harness.condition(Resolved), (Unknown, "CheckLate"));
    assert_eq!(harness.condition(Ready).0, True);
    assert!(harness.status.sources.iter().all(|source| source.state == SourceState::Healthy));
}

#[test]
fn failures_from_before_a_suspend_move_nothing() {
    let mut harness = cutover();
    harness.now = at(20);
    harness.fail_thrice("a.example");
    harness.decide_at(1000);
    assert_eq!(harness.announced(), "seoul a.example");
}

#[test]
fn standby_that_fails_is_unhealthy_without_a_wait() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.offer("busan").target = Some(target("new.example"));
    harness.decide_at(10);
    harness.fail_thrice("new.example");
    harness.decide_at(20);
    assert_eq!(harness.state("busan"), SourceState::Unhealthy);
}

#[test]
fn passes_from_before_the_clock_was_set_back_dont_count() {
    let mut harness = Harness::settled(&SOURCES[..2]);
    harness.now = at(-1000);
    harness.fail_thrice("a.example");
    harness.decide();
    assert_eq!(harness.announced(), "seoul a.example");
    harness.pass("b.example");
    harness.decide();
    assert_eq!(harness.announced(), "busan b.example");
}

// --- Conditions

#[test]
fn first_message_of_a_state_stays() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.now = at(10);
    harness.fail_thrice("a.example");
    let status = harness.decide().status;
    harness.record("a.example", &[CheckOutcome::Failed("no addresses".to_owned())]);
    assert_eq!(harness.decide_at(15).status, status);
}

#[test]
fn change_of_an_unshown_address_is_a_new_target() {
    let addresses = |last: u8| (1..=9).chain([last]).map(|number| format!("192.0.2.{number}"));
    let text = |last| addresses(last).collect::<Vec<_>>().join(",");
    let mut harness = Harness::new(&[("fixed", &text(10))]);
    let before = harness.decide().status.sources[0].clone();
    harness.offer("fixed").target = Some(target(&text(11)));
    let after = harness.decide_at(10).status.sources[0].clone();
    let shown = (1..=8).map(|number| format!("192.0.2.{number}")).collect::<Vec<_>>().join(",");
    assert_eq!(before.offers, Some(format!("{shown} and 2 more (f686eef4)")));
    assert_ne!(after.offers, before.offers);
    assert_eq!((before.since, after.since), (at(0), at(10)));
}

#[test]
fn addresses_in_another_order_are_the_same_target() {
    for (port, others) in [(None, "192.0.2.2,192.0.2.1"), (Some(443), "2001:db8::1,192.0.2.1")] {
        let mut harness = Harness::new(&[("fixed", "192.0.2.1,192.0.2.2"), ("seoul", others)]);
        harness.spec.check.tcp_port = port;
        for _ in 0..2 {
            harness.decide();
            harness.pass("192.0.2.1,192.0.2.2");
            harness.pass(others);
        }
        let before = harness.decide().status;
        for offer in &mut harness.offers {
            let Some(Target::Addresses(addresses)) = &mut offer.target else { panic!() };
            addresses.reverse();
        }
        assert_eq!(harness.decide_at(10).status, before);
        assert_eq!(harness.announced(), "fixed 192.0.2.1,192.0.2.2");
        assert_eq!(harness.status.sources[0].since, at(0));
    }
}

#[test]
fn messages_are_cut_to_the_length_of_the_schema() {
    let mut harness = Harness::settled(&SOURCES);
    harness.now = at(10);
    for host in ["a.example", "b.example", "c.example"] {
        (0..3).for_each(|_| harness.record(host, &[CheckOutcome::Failed("é".repeat(2_000))]));
    }
    let status = harness.decide().status;
    let sources = status.sources.iter().map(|source| &source.message);
    let messages = sources.chain(status.conditions.iter().map(|condition| &condition.message));
    let longest = messages.map(|message| message.chars().count()).max();
    assert_eq!(longest, Some(crate::api::limits::MAX_MESSAGE));
}

const REFUSALS_OF_SOURCES: [RefusalReason; 5] = [
    RefusalReason::RefNotPermitted,
    RefusalReason::Forbidden,
    RefusalReason::NotListed,
    RefusalReason::TargetRefused,
    RefusalReason::CheckRefused,
];

#[test]
fn source_whose_service_isnt_read_is_degraded() {
    for source in ["seoul", "busan"] {
        let mut harness = Harness::settled(&SOURCES);
        harness.offer(source).unread = Some("may not be listed".to_owned());
        harness.decide();
        assert_eq!(harness.condition(Degraded), (True, "Forbidden"));
        let message = &harness.status.condition(Degraded).unwrap().message;
        assert_eq!(*message, format!("{source}: may not be listed"));
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
        assert_eq!(harness.state(source), SourceState::Healthy);
        harness.fail_thrice("a.example");
        harness.decide();
        assert_eq!(harness.announced(), "busan b.example");
    }
}

#[test]
fn refused_standby_is_degraded_and_the_target_in_use_ready() {
    for reason in REFUSALS_OF_SOURCES {
        let mut harness = Harness::settled(&SOURCES);
        harness.offer("busan").refusal = refusal(reason);
        harness.decide();
        assert_eq!(harness.condition(Accepted), (False, reason.as_str()));
        assert_eq!(harness.condition(Degraded), (True, "StandbyUnhealthy"));
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
        assert_eq!(harness.status.condition(Ready).unwrap().message, "leads to seoul; busan: refused");
        assert_eq!(harness.state("busan"), SourceState::Refused);
        assert_eq!(harness.announced(), "seoul a.example");
    }
}

#[test]
fn refused_preferred_source_is_degraded_and_the_target_ready() {
    for reason in REFUSALS_OF_SOURCES {
        let mut harness = failed_over();
        harness.other_living_uids = vec!["seoul".into()];
        harness.offer("seoul").refusal = refusal(reason);
        harness.decide_at(20);
        assert_eq!(harness.condition(Accepted), (False, reason.as_str()));
        assert_eq!(harness.condition(Degraded), (True, "FailedOver"));
        let message = &harness.status.condition(Degraded).unwrap().message;
        assert_eq!(message, "leads to busan instead of seoul: refused");
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
        assert_eq!(harness.state("seoul"), SourceState::Refused);
        harness.is_written = false;
        harness.decide_at(21);
        assert_eq!(harness.condition(Ready), (False, "NoExternalTarget"));
        harness.is_written = true;
        harness.fail_thrice("b.example");
        harness.fail_thrice("c.example");
        harness.decide_at(22);
        assert_eq!(harness.condition(Ready), (False, "TargetUnhealthy"));
    }
}

#[test]
fn refused_source_in_use_is_degraded_and_its_target_ready() {
    for reason in REFUSALS_OF_SOURCES {
        let mut harness = Harness::settled(&SOURCES[..1]);
        harness.other_living_uids = vec!["seoul".into()];
        harness.offer("seoul").refusal = refusal(reason);
        harness.decide_at(10);
        assert_eq!(harness.condition(Degraded), (True, reason.as_str()));
        assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
    }
    let mut harness = Harness::settled(&SOURCES[..1]);
    harness.denied.push(target("d.example"));
    harness.offer("seoul").target = Some(target("d.example"));
    harness.decide_at(10);
    assert_eq!(harness.condition(Degraded), (True, "TargetRefused"));
    assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
}

#[test]
fn refused_source_without_a_target_is_not_ready() {
    let mut harness = Harness::new(&[("seoul", "")]);
    harness.offer("seoul").refusal = refusal(RefusalReason::RefNotPermitted);
    harness.decide();
    assert_eq!(harness.condition(Ready), (False, "RefNotPermitted"));
}

#[test]
fn refused_names_make_the_object_unaccepted_and_not_ready() {
    for reason in [RefusalReason::HostnameRefused, RefusalReason::Conflict] {
        let mut harness = Harness::settled(&SOURCES);
        harness.refusal = refusal(reason);
        harness.decide();
        assert_eq!(harness.condition(Ready), (False, reason.as_str()));
    }
}

#[test]
fn conditions_name_every_refusal() {
    let mut harness = Harness::new(&[("seoul", ""), ("busan", "")]);
    for name in ["seoul", "busan"] {
        let (reason, message) = (RefusalReason::RefNotPermitted, "no".to_owned());
        harness.offer(name).refusal = Some(Refusal { reason, message });
    }
    harness.refusal = refusal(RefusalReason::HostnameRefused);
    harness.decide();
    for kind in [Accepted, Ready] {
        assert_eq!(harness.condition(kind), (False, "HostnameRefused"));
        let message = &harness.status.condition(kind).unwrap().message;
        assert_eq!(message, "refused; source seoul: no; source busan: no");
    }
    let mut harness =
        Harness::settled(&[("seoul", "a.example"), ("busan", "b.example"), ("pohang", "c.example")]);
    for name in ["busan", "pohang"] {
        harness.offer(name).refusal = refusal(RefusalReason::CheckRefused);
    }
    harness.decide();
    let message = &harness.status.condition(Degraded).unwrap().message;
    assert_eq!(message, "busan: refused; pohang: refused");
}

#[test]
fn target_stays_while_the_specification_is_invalid() {
    let mut harness = Harness::settled(&SOURCES);
    harness.other_living_uids = vec!["seoul".into()];
    harness.refusal = refusal(RefusalReason::InvalidSpec);
    harness.edit(|spec| spec.sources.clear());
    harness.present_target = Some((target("a.example"), "seoul".into()));
    for second in [10, 1_000] {
        assert_eq!(harness.decide_at(second).moved, None);
        assert_eq!(harness.announced(), "seoul a.example");
        assert_eq!(harness.condition(Accepted), (False, "InvalidSpec"));
        assert_eq!(harness.condition(Ready), (False, "InvalidSpec"));
        assert_eq!(harness.place(), None);
        let degraded = &harness.status.condition(Degraded).unwrap().message;
        assert!(!degraded.contains("not in spec.sources"), "{degraded}");
    }
    harness.status = FailoverStatus::default();
    harness.decide_at(1_001);
    assert_eq!(harness.announced(), " a.example", "more offers than sources");
}

#[test]
fn condition_that_returns_before_a_write_keeps_its_time() {
    let mut harness = Harness::settled(&SOURCES[..1]);
    let written = harness.status.clone();
    harness.is_written = false;
    harness.decide_at(10);
    let mut status = harness.status.clone();
    restore_times(&mut status, &written);
    assert_eq!(status, harness.status, "Ready has changed");
    harness.is_written = true;
    harness.decide_at(20);
    assert_eq!(harness.status.condition(Ready).unwrap().since, at(20));
    restore_times(&mut harness.status, &written);
    assert_eq!(harness.status, written);
}

#[test]
fn object_is_ready_only_while_its_external_target_exists() {
    let mut harness = Harness::settled(&SOURCES);
    assert_eq!(harness.condition(Ready), (True, "TargetVerified"));
    let since = harness.status.condition(Ready).unwrap().since;
    harness.is_written = false;
    harness.decide_at(10);
    assert_eq!(harness.condition(Ready), (False, "NoExternalTarget"));
    harness.write_failure = Some("no permission");
    harness.decide();
    let message = &harness.status.condition(Ready).unwrap().message;
    assert!(message.ends_with("point at the target: no permission"), "{message}");
    assert_eq!(harness.status.condition(Ready).unwrap().since, at(10));
    assert_eq!(harness.status.condition(Accepted).unwrap().since, since);
}
