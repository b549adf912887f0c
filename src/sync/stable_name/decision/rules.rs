//! The rules: whether another target is announced, and why.

use std::time::Duration;

use jiff::Timestamp;

use super::facts::Facts;
use super::history::next_move;
use super::spec::Failback;
use super::status::{AnnouncedTarget, FormerTarget, MoveReason, SourceState, SourceStatus};
use super::times::{end_of_wait, whole_second};
use crate::model::link::Target;

/// A source is passed over after this time if it offers no target, or if no check of its target has had a result. A
/// refused one, too: its Service may be created, or allow the namespace, a moment after the StableName is created.
const NO_RESULT: Duration = Duration::from_secs(30);

pub(super) struct Rules<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) sources: &'a [SourceStatus],
    pub(super) history: &'a [FormerTarget],
    pub(super) current: Option<&'a AnnouncedTarget>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Stay,
    /// The announced target has failed, and the move to another source is held.
    Hold,
    /// A source works, and until this time the source at this position, which precedes it, may replace it.
    Wait(usize, Timestamp),
    /// The target of the source at this position.
    Move(usize, MoveReason),
}

impl Rules<'_> {
    pub(super) fn choose(&self) -> Choice {
        let Some(current) = self.current else { return self.first_target() };
        let (facts, pin) = (self.facts, self.facts.input.spec.pin.as_deref());
        if let Some(pin) = pin.filter(|pin| *pin != current.source) {
            let pinned = facts.position_of(pin).filter(|position| facts.offered(*position).is_some());
            return move_to(pinned, MoveReason::Pinned);
        }
        let Some(position) = facts.position_of(&current.source) else {
            let is_ready = |position: &usize| self.is_ready(*position) && pin.is_none();
            return self.first_in_order(MoveReason::SourcesEdited, is_ready);
        };
        // The new target of a pinned source is announced like that of any other source: once it passes a check.
        let new = facts.offered(position).filter(|offered| **offered != current.target);
        if new.is_some_and(|new| facts.is_passing(new)) {
            return Choice::Move(position, MoveReason::TargetChanged);
        }
        let has_failed = facts.has_failed(&current.target);
        if has_failed
            && pin.is_none()
            && let Some(standby) = self.healthy_except(Some(position))
        {
            // A healthy standby is better than a new target of the source in use that doesn't pass its checks.
            let may_move = facts.has_passed(next_move(self.history, MoveReason::FailedOver).at);
            if may_move && !facts.input.is_failover_held {
                return Choice::Move(standby, MoveReason::FailedOver);
            }
            if let Some(target) = facts.offered(standby) {
                facts.schedule_pass_expiry(target);
            }
            return if may_move { Choice::Hold } else { Choice::Stay };
        }
        if new.is_some() && facts.is_wait_over(&self.sources[position]) && has_failed {
            return Choice::Move(position, MoveReason::CutoverTimedOut);
        }
        if pin.is_some() { Choice::Stay } else { self.preferred(position) }
    }

    /// Chooses a source that stands before the source in use, if one may replace it.
    fn preferred(&self, position: usize) -> Choice {
        let facts = self.facts;
        // The former status has the order of the sources, and the name of the source in use, before the edit. If the
        // new first source becomes healthy only after that status is replaced, the move is a failback. The last
        // decision has the new order even if it isn't written: with its order a retry would undo the move.
        let status = facts.input.former;
        let former = |name: &str| status.sources.iter().position(|source| source.name == name);
        let current_position = status.target.as_ref().and_then(|target| former(&target.source));
        let is_new_before = |before: &usize| {
            current_position
                .is_some_and(|current| former(facts.name(*before)).is_none_or(|was| was > current))
        };
        let edited = (0..position).find(|before| is_new_before(before) && self.is_ready(*before));
        if edited.is_some() {
            return move_to(edited, MoveReason::SourcesEdited);
        }
        let Failback::Automatic { after } = facts.input.spec.failback else { return Choice::Stay };
        let has_proved_itself = |before: &usize| {
            let target = facts.offered(*before);
            self.is_ready(*before)
                && target.is_some_and(|target| self.has_passes_in_a_row(target))
                && facts.wait_is_over(self.sources[*before].since, after)
        };
        let back = (0..position).find(has_proved_itself);
        let may_move = |_: &usize| facts.has_passed(next_move(self.history, MoveReason::FailedBack).at);
        move_to(back.filter(may_move), MoveReason::FailedBack)
    }

    /// Returns whether this leader has seen `successThreshold` passes in a row: a failback isn't urgent.
    fn has_passes_in_a_row(&self, target: &Target) -> bool {
        let settings = &self.facts.input.spec.check;
        !self.facts.is_checked(target)
            || self.facts.tally(target).passes >= settings.success_threshold as usize
    }

    /// Chooses a target while none is announced.
    fn first_target(&self) -> Choice {
        let facts = self.facts;
        if facts.input.is_first_target_held {
            return Choice::Stay;
        }
        if let Some(pin) = &facts.input.spec.pin {
            let pinned = facts.position_of(pin).filter(|position| facts.offered(*position).is_some());
            return move_to(pinned, MoveReason::Pinned);
        }
        let is_live_link = |position: &usize| {
            facts.input.offers[*position].is_live_link && facts.offered(*position).is_some()
        };
        let live = facts.positions().find(is_live_link);
        // After a withdrawal each second without a target is an outage: a healthy source is announced without a wait
        // for more preferred ones.
        let healthy = || self.healthy_except(None).filter(|_| !self.history.is_empty());
        if let Some(position) = live.or_else(healthy) {
            return Choice::Move(position, MoveReason::Announced);
        }
        let is_passing =
            |position: &usize| facts.offered(*position).is_some_and(|target| facts.is_passing(target));
        let choice = self.first_in_order(MoveReason::Announced, is_passing);
        if matches!(choice, Choice::Move(..)) {
            return choice;
        }
        let max_wait = facts.input.spec.max_wait;
        let is_over = self.history.first().is_none_or(|last| facts.wait_is_over(last.until, max_wait));
        if choice != Choice::Stay {
            // The wait for a source before it that comes and goes begins again and again.
            let is_late = |position: &usize| is_over && facts.is_wait_over(&self.sources[*position]);
            let late = facts.positions().find(is_passing).filter(is_late);
            return late.map_or(choice, |position| Choice::Move(position, MoveReason::Announced));
        }
        let waited = |position: &usize| {
            facts.offered(*position).is_some() && facts.is_wait_over(&self.sources[*position])
        };
        move_to(facts.positions().find(waited).filter(|_| is_over), MoveReason::CutoverTimedOut)
    }

    /// Chooses the most preferred source that works, once each source before it has failed a check, or has had no result
    /// for [`NO_RESULT`], or for `maxWaitSeconds` if that is less.
    fn first_in_order(&self, reason: MoveReason, works: impl FnMut(&usize) -> bool) -> Choice {
        let facts = self.facts;
        let Some(first) = facts.positions().find(works) else { return Choice::Stay };
        let end = |position: usize| {
            let since = self.sources[position].since;
            // The time in the status may be of an earlier leader: the checks of that leader don't count.
            let began = |target| whole_second(facts.tally(target).decided.unwrap_or(facts.input.now));
            let since = facts.offered(position).map_or(since, |target| since.max(began(target)));
            end_of_wait(since, NO_RESULT.min(facts.input.spec.max_wait))
        };
        let has_failed =
            |position| facts.offered(position).is_some_and(|target| facts.tally(target).failures > 0);
        let waited = (0..first).find(|position| !has_failed(*position) && !facts.has_passed(end(*position)));
        let Some(position) = waited else { return Choice::Move(first, reason) };
        if let Some(target) = facts.offered(first) {
            facts.schedule_pass_expiry(target);
        }
        Choice::Wait(position, end(position))
    }

    /// Returns whether a source is healthy, and its target passes the checks of this leader ([`Facts::is_passing`]).
    fn is_ready(&self, position: usize) -> bool {
        self.sources[position].state == SourceState::Healthy
            && self.facts.offered(position).is_some_and(|target| self.facts.is_passing(target))
    }

    fn healthy_except(&self, position: Option<usize>) -> Option<usize> {
        self.facts.positions().find(|other| Some(*other) != position && self.is_ready(*other))
    }
}

fn move_to(position: Option<usize>, reason: MoveReason) -> Choice {
    position.map_or(Choice::Stay, |position| Choice::Move(position, reason))
}
