//! Decides which target a StableName announces, and what its status says.

#[cfg(test)]
mod tests;

use jiff::Timestamp;

use super::checks::PlannedCheck;
use super::conditions::{CUTOVER_TIMED_OUT, healthy_except, of_source, pin_note};
use super::facts::{Facts, Inputs};
use super::history;
use super::outlook::StatusBuilder;
use super::rules::{Choice, Rules};
use super::sources;
use super::spec::Offer;
use super::status::{
    AnnouncedTarget, Condition, ConditionStatus, ConditionType, FailoverStatus, FormerTarget, MASS_FAILURE,
    MoveReason, SourceStatus,
};
use super::times::whole_second;

const UNVERIFIED: &str = ", which hasn't passed a check yet";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverDecision {
    /// The decided status, to be written unless the API server has it already.
    pub status: FailoverStatus,
    /// Why the announced target changed, if it changed.
    pub moved: Option<MoveReason>,
    pub events: Vec<FailoverEvent>,
    /// Whether the announced target has failed its checks and another source replaces it, or would if the failover
    /// weren't held.
    pub fails_over: bool,
    /// The time of the newest failure of the formerly announced target, if that target has failed.
    pub failed_at: Option<Timestamp>,
    /// The targets to check from now on.
    pub checks: Vec<PlannedCheck>,
    /// When to decide again at the latest; `None` if only a changed input can change the decision.
    pub again: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverEvent {
    pub reason: EventReason,
    /// For a move, the source and target before it.
    from: Option<String>,
    /// For a move, the source and target after it.
    to: String,
    note: String,
}

impl FailoverEvent {
    pub fn new(reason: EventReason, message: String) -> Self {
        Self { reason, from: None, to: message, note: String::new() }
    }

    pub fn message(&self) -> String {
        let Self { from, to, note, .. } = self;
        from.as_ref().map_or_else(|| format!("{to}{note}"), |from| format!("{from} → {to}{note}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReason {
    TargetChanged,
    FailedOver,
    FailedBack,
    CutoverTimedOut,
    NoHealthySource,
    PinnedTargetFailed,
    FailoverHeld,
}

/// Decides about a StableName. With equal inputs, and with the decided status as the former and the last one, the status
/// stays as it is, unless two changes of the target are due at once.
#[must_use]
pub fn decide(input: &Inputs<'_>) -> FailoverDecision {
    let (former, mut last) = (begin(input), input.last.clone());
    last.clamp_times(whole_second(input.now));
    let input = &Inputs { former: &former, last: &last, ..*input };
    let facts = Facts::new(input);
    let mut transition = Transition::begin(&facts);
    let choice = transition.choose();
    transition.apply(&choice);
    let Transition { current, history, moved, mut events, .. } = transition;
    let sources = sources::statuses(&facts, current.as_ref());

    let builder = StatusBuilder {
        facts: &facts,
        sources: &sources,
        current: current.as_ref(),
        former: former.target.as_ref(),
        history: &history,
        is_failover_held: choice == Choice::Hold,
        awaited: if let Choice::Wait(position, until) = choice { Some((position, until)) } else { None },
    };
    let unwritten = former.target.as_ref().filter(|_| moved != Some(MoveReason::Withdrawn));
    let (conditions, checks) = (builder.conditions(), builder.checks(unwritten));
    let observed_generation = input.spec.generation;
    let status = FailoverStatus { observed_generation, target: current, sources, history, conditions };
    events.extend(events_of_target(input, &status, moved));
    let fails_over = choice == Choice::Hold || moved == Some(MoveReason::FailedOver);
    let failed = former.target.as_ref().filter(|target| facts.has_failed(&target.target));
    let failed_at = failed.and_then(|failed| facts.tally(&failed.target).decided);
    FailoverDecision { moved, events, fails_over, failed_at, checks, again: facts.next(), status }
}

/// Returns the status with which a decision begins. A status that has neither a target nor a history begins with the
/// target of the external target.
fn begin(input: &Inputs<'_>) -> FailoverStatus {
    let mut status = input.former.clone();
    let now = whole_second(input.now);
    status.clamp_times(now);
    if status.target.is_none()
        && status.history.is_empty()
        && let Some((target, uid)) = input.present_target
    {
        let offering = || {
            let sources = input.spec.sources.iter().zip(input.offers);
            sources.filter(|(_, offer)| offer.target.as_ref() == Some(target))
        };
        let is_exact = |(_, offer): &(_, &Offer)| uid.is_empty() || offer.uid == *uid;
        // A restored Service has another uid.
        let source = offering().find(is_exact).or_else(|| offering().next());
        let (name, uid) = match source {
            Some((name, offer)) => (name.clone(), offer.uid.clone()),
            None => (String::new(), uid.clone()),
        };
        status.target =
            Some(AnnouncedTarget { source: name, target: target.clone(), uid, since: now, verified: false });
    }
    status
}

/// The change of the announced target.
struct Transition<'a> {
    facts: &'a Facts<'a>,
    current: Option<AnnouncedTarget>,
    history: Vec<FormerTarget>,
    moved: Option<MoveReason>,
    /// The target that was withdrawn, and why, until another one replaces it.
    withdrawn: Option<(AnnouncedTarget, &'static str)>,
    events: Vec<FailoverEvent>,
}

impl<'a> Transition<'a> {
    fn begin(facts: &'a Facts<'a>) -> Self {
        let former = facts.input.former;
        let history = former.history.clone();
        let current = former.target.clone();
        let mut begun = Self { facts, current, history, moved: None, withdrawn: None, events: Vec::new() };
        begun.withdraw();
        if let Some(current) = &mut begun.current {
            if facts.position_of(&current.source).is_none()
                && let Some(position) =
                    facts.positions().find(|position| facts.is_offered(*position, &current.target))
            {
                // The source was renamed, or another source offers the same target.
                current.source = facts.name(position).to_owned();
                current.uid = facts.input.offers[position].uid.clone();
            }
            let last = facts.input.last.target.as_ref().filter(|last| last.target == current.target);
            current.verified |= last.is_some_and(|last| last.verified) || facts.is_passing(&current.target);
        }
        begun
    }

    fn withdraw(&mut self) {
        let facts = self.facts;
        // An external target, or the status of an earlier version, may lack the uid.
        if let Some(current) = self.current.as_mut().filter(|current| current.uid.is_empty())
            && let Some(position) = facts.position_of(&current.source)
            && facts.is_offered(position, &current.target)
        {
            current.uid = facts.input.offers[position].uid.clone();
        }
        if let Some(current) = &self.current
            && let Some(why) = facts.withdrawal(current)
            && let Some(current) = self.current.take()
        {
            self.moved = Some(MoveReason::Withdrawn);
            self.withdrawn = Some((current.clone(), why));
            history::push(&mut self.history, current, facts.now_second(), MoveReason::Withdrawn);
        }
    }

    fn choose(&self) -> Choice {
        let (facts, current, history) = (self.facts, self.current.as_ref(), &self.history);
        Rules { facts, sources: &sources::statuses(facts, current), history, current }.choose()
    }

    /// Applies the choice, and adds the Event of a withdrawal that isn't part of a failover.
    fn apply(&mut self, choice: &Choice) {
        self.change_target(choice);
        if let Some((former, why)) = self.withdrawn.take() {
            // No target replaces the withdrawn one: DNS answers with NODATA.
            let is_missing = self.current.is_none();
            let reason = if is_missing { EventReason::NoHealthySource } else { EventReason::TargetChanged };
            let pin = self.facts.input.spec.pin.as_deref().filter(|_| is_missing);
            let pinned = pin_note(pin, &former, &sources::statuses(self.facts, None));
            let message = format!("{} is withdrawn: {why}{pinned}", source_and_target(&former));
            self.events.insert(0, FailoverEvent::new(reason, message));
        }
    }

    fn change_target(&mut self, choice: &Choice) {
        let Choice::Move(position, reason) = *choice else { return };
        let Some(target) = self.facts.offered(position) else { return };
        let source = self.facts.name(position).to_owned();
        let uid = self.facts.input.offers[position].uid.clone();
        if let Some(current) = self.current.as_mut().filter(|current| current.target == *target) {
            // Another source offers the same target: nothing changes for clients.
            (current.source, current.uid) = (source, uid);
            return;
        }
        let since = self.facts.now_second();
        let verified = self.facts.is_passing(target);
        let new = AnnouncedTarget { source, target: target.clone(), uid, since, verified };
        let event = self.replacement_event(&new, reason).unwrap_or_else(|| self.change_event(&new, reason));
        self.events.push(event);
        // A withdrawal remains the reason of the whole change.
        self.moved = self.moved.or(Some(reason));
        if let Some(ended) = self.current.replace(new) {
            history::push(&mut self.history, ended, since, reason);
        }
    }

    /// Returns the Event of a failover, if another source replaces the withdrawn target. A new target of the same
    /// source, a pin, and the move after an edit that removes the source are no failovers.
    fn replacement_event(&mut self, new: &AnnouncedTarget, reason: MoveReason) -> Option<FailoverEvent> {
        let facts = self.facts;
        let is_failover = |former: &AnnouncedTarget| {
            let is_other = former.source != new.source && facts.position_of(&former.source).is_some();
            is_other && reason == MoveReason::Announced
        };
        let (former, why) = self.withdrawn.take_if(|(former, _)| is_failover(former))?;
        let unverified = if new.verified { "" } else { UNVERIFIED };
        Some(FailoverEvent {
            reason: EventReason::FailedOver,
            from: Some(source_and_target(&former)),
            to: source_and_target(new),
            note: format!("{unverified}: {why}"),
        })
    }

    fn change_event(&self, new: &AnnouncedTarget, reason: MoveReason) -> FailoverEvent {
        let from = self.current.as_ref().map(source_and_target);
        let mut note = if from.is_some() { String::new() } else { " is announced".to_owned() };
        // A link that a StableName takes over keeps its target without a check.
        if !new.verified && reason != MoveReason::Announced {
            note += if self.facts.has_failed(&new.target) { ", which fails its checks" } else { UNVERIFIED };
        }
        if reason == MoveReason::Pinned {
            note += "; pinned by spec.pin";
        }
        let is_first = reason == MoveReason::Announced && self.withdrawn.is_none();
        if let Some(preferred) = self.passed_over(new).filter(|_| is_first) {
            note += &format!(" instead of {preferred}");
            return FailoverEvent { reason: EventReason::FailedOver, from, to: source_and_target(new), note };
        }
        let failed = self.current.as_ref().filter(|_| reason == MoveReason::FailedOver);
        if let Some(why) = failed.and_then(|failed| self.facts.tally(&failed.target).message) {
            note = format!("{note}: {why}");
        }
        FailoverEvent { reason: event_reason(reason), from, to: source_and_target(new), note }
    }

    /// Returns the first source and what is wrong with it, if a target is announced that is another source's and not
    /// pinned.
    fn passed_over(&self, new: &AnnouncedTarget) -> Option<String> {
        let facts = self.facts;
        // A link that the StableName takes over keeps its target.
        let is_passed_over = |position: &usize| *position > 0 && !facts.input.offers[*position].is_live_link;
        let is_pinned = facts.input.spec.pin.as_deref() == Some(&*new.source);
        facts.position_of(&new.source).filter(is_passed_over).filter(|_| !is_pinned)?;
        let first = sources::statuses(facts, None).into_iter().next()?;
        Some(of_source(&first.name, &first.message))
    }
}

fn source_and_target(announced: &AnnouncedTarget) -> String {
    let AnnouncedTarget { source, target, .. } = announced;
    if source.is_empty() { target.to_string() } else { format!("{source} {target}") }
}

/// Returns the Events about the target that a decision keeps or moves to: the wait for a new target has just timed out, a
/// failover is held, or the target has failed and no other source may replace it any more.
fn events_of_target(
    input: &Inputs<'_>,
    status: &FailoverStatus,
    moved: Option<MoveReason>,
) -> Vec<FailoverEvent> {
    let (former, pin) = (input.former, input.spec.pin.as_deref());
    let mut events = Vec::new();
    let Some(target) = &status.target else { return events };
    let is_new = |kind, is: &dyn Fn(&Condition) -> bool| {
        status.condition(kind).filter(|now| is(now) && !former.condition(kind).is_some_and(is))
    };
    for (kind, text, reason) in [
        (ConditionType::Progressing, CUTOVER_TIMED_OUT, EventReason::CutoverTimedOut),
        (ConditionType::Degraded, MASS_FAILURE, EventReason::FailoverHeld),
    ] {
        let begins = is_new(kind, &|condition| condition.reason == text).filter(|_| moved.is_none());
        events.extend(begins.map(|condition| FailoverEvent::new(reason, condition.message.clone())));
    }
    let stays_failed = |status: &FailoverStatus, pin: Option<&str>| {
        let resolved = status.condition(ConditionType::Resolved);
        let has_failed = resolved.is_some_and(|resolved| resolved.status == ConditionStatus::False);
        has_failed && (pin.is_some() || healthy_standbys(status).next().is_none())
    };
    let failed = status.condition(ConditionType::Resolved).filter(|_| stays_failed(status, pin));
    // The pin may be new after an edit: then the former status doesn't name it.
    let names_it = |pin: &&str| {
        let note = former.target.as_ref().map(|target| pin_note(Some(pin), target, &former.sources));
        let degraded = former.condition(ConditionType::Degraded).map(|degraded| &*degraded.message);
        note.zip(degraded).is_some_and(|(note, degraded)| degraded.ends_with(&note))
    };
    let is_same_spec = former.observed_generation == status.observed_generation;
    let former_pin = pin.filter(|pin| is_same_spec || names_it(pin));
    let is_reported = match moved {
        None => stays_failed(former, former_pin),
        // Only a pin moves to a target that is known to fail.
        Some(moved) => moved != MoveReason::Pinned,
    };
    if let Some(condition) = failed.filter(|_| !is_reported) {
        let reason = match healthy_standbys(status).next() {
            Some(_) => EventReason::PinnedTargetFailed,
            None => EventReason::NoHealthySource,
        };
        let pinned = pin_note(pin, target, &status.sources);
        let message = format!("{} stays: {}{pinned}", source_and_target(target), condition.message);
        events.push(FailoverEvent::new(reason, message));
    }
    events
}

fn healthy_standbys(status: &FailoverStatus) -> impl Iterator<Item = &SourceStatus> {
    let target = status.target.iter();
    target.flat_map(|target| healthy_except(&status.sources, &target.source))
}

fn event_reason(reason: MoveReason) -> EventReason {
    match reason {
        MoveReason::FailedOver => EventReason::FailedOver,
        MoveReason::FailedBack => EventReason::FailedBack,
        MoveReason::CutoverTimedOut => EventReason::CutoverTimedOut,
        MoveReason::Announced
        | MoveReason::TargetChanged
        | MoveReason::Pinned
        | MoveReason::SourcesEdited
        | MoveReason::Withdrawn => EventReason::TargetChanged,
    }
}
