//! What follows from a decision: which target is still waited for, and what is checked.

use jiff::Timestamp;

use super::checks::{PlannedCheck, Urgency};
use super::facts::Facts;
use super::status::{AnnouncedTarget, FormerTarget, SourceState, SourceStatus};
use crate::model::link::Target;

/// The chosen target, from which conditions and checks are derived.
pub(super) struct StatusBuilder<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) sources: &'a [SourceStatus],
    pub(super) current: Option<&'a AnnouncedTarget>,
    /// The target that was announced before the decision.
    pub(super) former: Option<&'a AnnouncedTarget>,
    pub(super) history: &'a [FormerTarget],
    pub(super) is_failover_held: bool,
    /// The position of the source that a source that works waits for, and until when.
    pub(super) awaited: Option<(usize, Timestamp)>,
}

impl StatusBuilder<'_> {
    /// Returns the position of the source in use, and its new target; `None` if the source offers no target, or still
    /// the announced one.
    pub(super) fn new_target(&self) -> Option<(usize, &Target)> {
        let current = self.current?;
        let position = self.facts.position_of(&current.source)?;
        let offered = self.facts.offered(position).filter(|offered| **offered != current.target)?;
        Some((position, offered))
    }

    /// Returns the targets to check. Until a move is written, each decision begins with the former target: `unwritten`
    /// stays checked, so that its failures aren't forgotten.
    pub(super) fn checks(&self, unwritten: Option<&AnnouncedTarget>) -> Vec<PlannedCheck> {
        let facts = self.facts;
        let mut checks: Vec<PlannedCheck> = Vec::new();
        let mut add = |target: &Target, urgency: Urgency| {
            if !facts.is_checked(target) {
                return;
            }
            match checks.iter_mut().find(|check| check.target == *target) {
                Some(known) => known.urgency = known.urgency.max(urgency),
                None => {
                    let (target, tcp_port) = (target.clone(), facts.tcp_port(target));
                    checks.push(PlannedCheck { target, tcp_port, urgency });
                }
            }
        };
        let awaited = |is_awaited| if is_awaited { Urgency::Awaited } else { Urgency::Routine };
        let new = self.new_target().filter(|(position, _)| !facts.is_wait_over(&self.sources[*position]));
        if let Some(current) = self.current {
            let is_new = !current.verified && facts.tally(&current.target).is_empty();
            // A held failover needs a failure after the hold began.
            let held = if self.is_failover_held { Urgency::Undecided } else { Urgency::Routine };
            // In a cutover the old target is checked urgently only after a result of the new target: when many cutovers
            // begin at once, the checks of the new targets come first.
            let is_needed = new.is_some_and(|(_, new)| !facts.tally(new).is_empty());
            add(&current.target, held.max(awaited(is_new || is_needed)));
        }
        for position in facts.positions() {
            let Some(target) = facts.offered(position) else { continue };
            // A new target is checked at once. After a change of the leader, the checks of known targets are spread
            // out.
            let is_new =
                self.sources[position].state == SourceState::Pending && facts.tally(target).is_empty();
            let is_awaited =
                is_new || new.is_some_and(|(new, _)| new == position) || self.may_be_next(position);
            add(target, awaited(is_awaited));
        }
        if let Some(unwritten) = unwritten {
            add(&unwritten.target, Urgency::Routine);
        }
        checks
    }

    /// Returns whether a source may be announced as soon as its target passes: no target is announced, or the announced
    /// one is of a removed source.
    fn may_be_next(&self, position: usize) -> bool {
        let pin = self.facts.input.spec.pin.as_deref();
        let is_next = match self.current {
            None => true,
            Some(current) => {
                self.facts.position_of(&current.source).is_none()
                    && self.sources[position].state != SourceState::Unhealthy
            }
        };
        is_next && pin.is_none_or(|pin| pin == self.facts.name(position))
    }
}
