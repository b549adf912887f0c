//! The verdict: a pure function of the facts.

use std::time::{Duration, Instant};

use super::facts::{
    Budget, Facts, Found, Lists, Membership, Owner, ServiceState, StartCheck, Subject, Which,
};
use super::reason::RemovalReason;

/// Time within which the watch of load balancers should report the load balancer of an object that a former leader has
/// created: the events of two watches have no common order. `--delete-delay` is for objects that clients may use.
const WATCH_LAG: Duration = Duration::from_secs(1);
/// Additional delay, beyond `--delete-delay`, before the removal of an external target if most external targets would
/// be removed at a start.
pub const EXTRA_DELETE_DELAY: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Remove(RemovalReason),
    Keep(RemovalReason),
    /// It stays until this time, or until a fact changes.
    Wait(RemovalReason, Instant),
    /// The answer to this question decides. Until then it stays.
    Ask(Question),
}

/// A fact that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// [`Facts::lists`]
    Lists,
    /// [`Facts::budget`]
    Budget,
    /// [`Facts::found`]
    Service,
    /// [`Facts::is_served`]
    Crd,
}

/// Decides whether the subject of the facts may be removed at `now`. Questions come in the order of their costs.
#[must_use]
pub fn may_remove(facts: &Facts, now: Instant) -> Verdict {
    if let Some(reason) = why_not_ours(facts) {
        return Verdict::Keep(reason);
    }
    match facts.subject {
        Subject::Link => of_link(facts, now),
        Subject::Announcement => of_announcement(facts, now),
        Subject::Override => of_override(facts, now),
        Subject::Finalizer { is_settled } => of_finalizer(facts, is_settled, now),
        Subject::ExternalTarget | Subject::FormerName | Subject::Slice | Subject::Target => {
            of_object(facts, now)
        }
    }
}

/// Returns why an object isn't lb-linker's to remove.
fn why_not_ours(facts: &Facts) -> Option<RemovalReason> {
    // The Service of these was never observed, or is another one than that of the object.
    let is_strict = facts.subject == Subject::FormerName
        || matches!(
            facts.service,
            ServiceState::Unlisted | ServiceState::Recreated | ServiceState::Withdrawn
        );
    match facts.owner {
        Owner::Foreign => Some(RemovalReason::Foreign),
        Owner::OtherInstance => Some(RemovalReason::OtherInstance),
        Owner::Unwritten if is_strict => Some(RemovalReason::Orphan),
        Owner::Unwritten | Owner::FormerLeader | Owner::Ours => {
            let is_going = facts.is_terminating && facts.subject != Subject::Target;
            is_going.then_some(RemovalReason::Terminating)
        }
    }
}

fn of_object(facts: &Facts, now: Instant) -> Verdict {
    match (facts.service, facts.surplus) {
        (ServiceState::Provisional, _) => return Verdict::Keep(RemovalReason::Provisional),
        _ if facts.check == StartCheck::LeftOut && facts.subject == Subject::ExternalTarget => {
            return Verdict::Keep(RemovalReason::LeftOut);
        }
        (ServiceState::Exists | ServiceState::Announced, None) => {
            return Verdict::Keep(RemovalReason::ServiceExists);
        }
        (ServiceState::Exists | ServiceState::Announced, Some(surplus)) => {
            return checked(facts, surplus.into(), now);
        }
        _ => {}
    }
    let reason = match (facts.owner, facts.surplus, facts.service) {
        (Owner::FormerLeader, ..) => RemovalReason::FormerLeader,
        (_, Some(surplus), _) => surplus.into(),
        (.., ServiceState::Withdrawn) => RemovalReason::Withdrawn,
        _ => RemovalReason::ServiceGone,
    };
    let delay = match (facts.owner, facts.delay) {
        // A tombstone and what it makes superfluous.
        _ if facts.subject == Subject::Target || facts.surplus.is_some() => Duration::ZERO,
        (Owner::FormerLeader, delay) => WATCH_LAG.min(delay.unwrap_or(WATCH_LAG)),
        (_, None) => return Verdict::Keep(RemovalReason::Retained),
        (_, Some(delay)) => delay,
    };
    let (reason_to_wait, delay) = match facts.check {
        StartCheck::MostGone => (RemovalReason::MostGone, delay.checked_add(EXTRA_DELETE_DELAY)),
        StartCheck::Passed | StartCheck::LeftOut => (RemovalReason::DeleteDelay, Some(delay)),
    };
    match end(facts.since, delay) {
        Some(due) if due <= now => checked(facts, reason, now),
        Some(due) => Verdict::Wait(reason_to_wait, due),
        None => Verdict::Keep(reason_to_wait),
    }
}

/// Returns the end of a delay; `None` if it isn't representable: then it never ends.
fn end(since: Option<Instant>, delay: Option<Duration>) -> Option<Instant> {
    since?.checked_add(delay?)
}

fn of_finalizer(facts: &Facts, is_settled: bool, now: Instant) -> Verdict {
    match facts.service {
        ServiceState::Provisional => Verdict::Keep(RemovalReason::Provisional),
        ServiceState::Exists => Verdict::Keep(RemovalReason::ServiceExists),
        _ if !is_settled => Verdict::Keep(RemovalReason::TargetStays),
        // The external target belongs to the StableName.
        ServiceState::Announced | ServiceState::Withdrawn => {
            checked(facts, RemovalReason::StableNameLeads, now)
        }
        ServiceState::Unlisted | ServiceState::Gone | ServiceState::Recreated => {
            checked(facts, RemovalReason::ServiceGone, now)
        }
    }
}

/// The last checks before a write to the API server: the lists, the deletion budget, and, last, the end of the Service.
fn checked(facts: &Facts, reason: RemovalReason, now: Instant) -> Verdict {
    match facts.lists {
        None => return Verdict::Ask(Question::Lists),
        Some(Lists::Unwatched) => return Verdict::Keep(RemovalReason::NotWatched),
        Some(Lists::Suspicious) => return Verdict::Keep(RemovalReason::SuspiciousList),
        Some(lists) if !lists.suffice(facts.service) => return Verdict::Keep(RemovalReason::NotListed),
        Some(_) => {}
    }
    match facts.budget.filter(|_| facts.is_counted()) {
        None if facts.is_counted() => return Verdict::Ask(Question::Budget),
        Some(Budget::UsedUp(None)) => return Verdict::Keep(RemovalReason::RemovalHeld),
        Some(Budget::UsedUp(Some(until))) if until > now => {
            return Verdict::Wait(RemovalReason::RemovalHeld, until);
        }
        _ => {}
    }
    match facts.service {
        // A watch may be silent although the Service exists again.
        ServiceState::Unlisted | ServiceState::Gone | ServiceState::Recreated => {
            looked_up(facts, reason, now)
        }
        _ => Verdict::Remove(reason),
    }
}

fn of_link(facts: &Facts, now: Instant) -> Verdict {
    match (facts.service, facts.lists) {
        (ServiceState::Unlisted | ServiceState::Gone, Some(Lists::Suspicious)) => {
            Verdict::Keep(RemovalReason::SuspiciousList)
        }
        (ServiceState::Gone, _) => Verdict::Remove(RemovalReason::ServiceGone),
        (ServiceState::Unlisted, _) => looked_up(facts, RemovalReason::ServiceGone, now),
        _ => Verdict::Keep(RemovalReason::ServiceExists),
    }
}

fn of_announcement(facts: &Facts, now: Instant) -> Verdict {
    match (facts.service, facts.lists) {
        _ if facts.is_denied => Verdict::Remove(RemovalReason::TargetDenied),
        (ServiceState::Exists, _) if facts.is_closed => Verdict::Remove(RemovalReason::NotAllowed),
        (ServiceState::Unlisted, Some(Lists::Missing)) => Verdict::Keep(RemovalReason::NotListed),
        (ServiceState::Unlisted, _) => looked_up(facts, RemovalReason::ServiceGone, now),
        _ => Verdict::Keep(RemovalReason::ServiceExists),
    }
}

fn of_override(facts: &Facts, now: Instant) -> Verdict {
    match (facts.service, facts.lists, facts.is_served) {
        (ServiceState::Unlisted, Some(Lists::Suspicious), _) => Verdict::Keep(RemovalReason::SuspiciousList),
        (ServiceState::Unlisted | ServiceState::Gone, _, None) => Verdict::Ask(Question::Crd),
        (ServiceState::Unlisted | ServiceState::Gone, _, Some(true)) => {
            Verdict::Remove(RemovalReason::StableNameGone)
        }
        (ServiceState::Unlisted | ServiceState::Gone, _, Some(false)) => {
            after_delay(facts, RemovalReason::CrdGone, now)
        }
        _ => Verdict::Keep(RemovalReason::ServiceExists),
    }
}

fn after_delay(facts: &Facts, reason: RemovalReason, now: Instant) -> Verdict {
    match end(facts.since, facts.delay) {
        Some(due) if due <= now => Verdict::Remove(reason),
        Some(due) => Verdict::Wait(reason, due),
        None => Verdict::Keep(reason),
    }
}

/// Decides by the look-up of a Service that the watch lacks. The subjects differ: another Service of the name is the
/// end of a link and of an announced target, but an external target stays until the watch has reported that Service; a
/// lasting refusal suffices for them, but an external target needs a reported deletion, too.
fn looked_up(facts: &Facts, reason: RemovalReason, now: Instant) -> Verdict {
    let is_of_uid = matches!(facts.subject, Subject::Link | Subject::Announcement);
    let Some(found) = facts.found else { return Verdict::Ask(Question::Service) };
    let because = |found| Verdict::Remove(if reason == RemovalReason::ServiceGone { found } else { reason });
    let (which, membership, is_open) = match found {
        Found::Absent => return Verdict::Remove(reason),
        Found::Exists { which, membership, is_open } => (which, membership, is_open),
        Found::Refused { is_lasting: true } if is_of_uid || facts.service == ServiceState::Gone => {
            return because(RemovalReason::LookUpRefused);
        }
        Found::Refused { .. } | Found::Failed => return Verdict::Keep(RemovalReason::Unconfirmed),
    };
    match (facts.subject, membership) {
        _ if which == Which::Successor || which == Which::Another && is_of_uid => Verdict::Remove(reason),
        (_, Membership::Gone) => Verdict::Remove(reason),
        (Subject::Announcement, _) if !is_open => Verdict::Remove(RemovalReason::NotAllowed),
        // A source needn't be selected.
        (Subject::Announcement, _) | (_, Membership::Selected) => Verdict::Keep(RemovalReason::ServiceExists),
        (_, Membership::OptedOut) => because(RemovalReason::OptedOut),
        (Subject::Link, Membership::NotSelected) if facts.check == StartCheck::LeftOut => {
            Verdict::Keep(RemovalReason::LeftOut)
        }
        (Subject::Link, Membership::NotSelected) => after_delay(facts, RemovalReason::NotSelected, now),
        (_, Membership::NotSelected) => because(RemovalReason::NotSelected),
    }
}
