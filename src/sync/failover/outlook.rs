//! What follows from a decision: which target is still waited for, and what is checked.

use super::facts::Facts;
use super::status::{AnnouncedTarget, SourceState, SourceStatus};
use crate::model::link::Target;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCheck {
    pub target: Target,
    /// Whether a decision waits for the result: see [`super::checks::CheckRecords::next_check`].
    pub is_awaited: bool,
}

/// A decision, apart from what follows from it.
pub(super) struct Outlook<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) sources: &'a [SourceStatus],
    pub(super) current: Option<&'a AnnouncedTarget>,
    /// The target that was announced before the decision.
    pub(super) former: Option<&'a AnnouncedTarget>,
    pub(super) is_failover_held: bool,
}

impl Outlook<'_> {
    /// Returns the place of the source in use, and its new target that isn't announced.
    pub(super) fn new_target(&self) -> Option<(usize, &Target)> {
        let current = self.current?;
        let place = self.facts.place_of(&current.source)?;
        let offered = self.facts.offered(place).filter(|offered| **offered != current.target)?;
        Some((place, offered))
    }

    /// Returns the targets to check.
    pub(super) fn checks(&self) -> Vec<PlannedCheck> {
        let facts = self.facts;
        let mut checks: Vec<PlannedCheck> = Vec::new();
        let mut add = |target: &Target, is_awaited: bool| {
            if !facts.input.spec.check.applies_to(target) {
                return;
            }
            match checks.iter_mut().find(|check| check.target == *target) {
                Some(known) => known.is_awaited |= is_awaited,
                None => checks.push(PlannedCheck { target: target.clone(), is_awaited }),
            }
        };
        let new = self.new_target().filter(|(place, _)| !facts.is_waited_out(&self.sources[*place]));
        if let Some(current) = self.current {
            let is_new = !current.verified && facts.tally(&current.target).is_empty();
            add(&current.target, is_new || new.is_some());
        }
        for place in facts.places() {
            let Some(target) = facts.offered(place) else { continue };
            // A target that was never checked is checked at once; the targets of a new leader are spread out.
            let is_new = self.sources[place].state == SourceState::Pending
                && (self.current.is_none() || facts.tally(target).is_empty());
            add(target, is_new || new.is_some_and(|(awaited, _)| awaited == place));
        }
        checks
    }
}
