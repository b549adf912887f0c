//! The conditions of a StableName, except `AlertsReady`.

use jiff::Timestamp;

use super::history::{NextMove, next_move};
use super::outlook::StatusBuilder;
use super::sources::NOT_CHECKED;
use super::spec::{Failback, Refusal, RefusalReason};
use super::status::{
    AnnouncedTarget, CHECK_LATE, Condition, ConditionStatus, ConditionType, MASS_FAILURE, MoveReason,
    NO_EXTERNAL_TARGET, SourceState, SourceStatus, cut,
};
use super::times::end_of_wait;
use crate::api::limits::MAX_MESSAGE;

pub(super) const CUTOVER_TIMED_OUT: &str = MoveReason::CutoverTimedOut.as_str();

/// Status, reason and message of a condition.
type Finding = (ConditionStatus, String, String);

fn finding(is_true: bool, reason: &str, message: impl Into<String>) -> Finding {
    let status = if is_true { ConditionStatus::True } else { ConditionStatus::False };
    (status, reason.to_owned(), message.into())
}

impl StatusBuilder<'_> {
    /// Returns the conditions, in the order in which the status has them.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let (accepted, resolved) = (self.accepted(), self.resolved());
        let ready = self.ready(&accepted, &resolved);
        let degraded = self.degraded(&resolved);
        let findings = [
            (ConditionType::Accepted, accepted),
            (ConditionType::Resolved, resolved),
            (ConditionType::Progressing, self.progressing()),
            (ConditionType::Degraded, degraded),
            (ConditionType::Ready, ready),
        ];
        findings.map(|(kind, finding)| self.condition(kind, finding)).into()
    }

    fn condition(&self, kind: ConditionType, (status, reason, message): Finding) -> Condition {
        let former = self.facts.input.former.condition(kind).filter(|former| former.status == status);
        let since = former.map_or(self.facts.now_second(), |former| former.since);
        Condition { kind, status, reason, message: cut(message, MAX_MESSAGE), since }
    }

    fn accepted(&self) -> Finding {
        let offers = self.facts.input.offers.iter().enumerate();
        let of_sources = offers.filter_map(|(position, offer)| {
            Some(offer.refusal.as_ref()?.of_source(self.facts.name(position)))
        });
        match Refusal::joined(self.facts.input.refusal.cloned().into_iter().chain(of_sources)) {
            Some(Refusal { reason, message }) => finding(false, reason.as_str(), message),
            None => finding(true, "Accepted", ""),
        }
    }

    /// A new leader keeps the former condition until it has enough results of its own, or its checks are late. An
    /// unwritten decision about the same target counts, as for the state of the source.
    fn resolved(&self) -> Finding {
        let Some(current) = self.current else { return finding(false, "NoTarget", "no target is announced") };
        let (facts, settings) = (self.facts, &self.facts.input.spec.check);
        if !facts.is_checked(&current.target) {
            return finding(true, "NotChecked", NOT_CHECKED);
        }
        let tally = facts.tally(&current.target);
        let is_same = |former: &&AnnouncedTarget| former.target == current.target;
        let last = facts.input.last.target.as_ref().filter(is_same).map(|_| facts.input.last);
        let known = last.or_else(|| self.former.filter(is_same).map(|_| facts.input.former));
        let former = known.and_then(|known| known.condition(ConditionType::Resolved));
        let passes = match former {
            Some(former) if former.status == ConditionStatus::False => settings.success_threshold as usize,
            _ => 1,
        };
        if facts.is_late(&current.target) {
            // The first message stays, as below.
            let known = former.filter(|former| former.reason == CHECK_LATE);
            let why = tally.why_undecided().map(|why| format!(": {why}")).unwrap_or_default();
            let message = || format!("no check has passed or failed for more than two periods{why}");
            let message = known.map_or_else(message, |former| former.message.clone());
            (ConditionStatus::Unknown, CHECK_LATE.to_owned(), message)
        } else if facts.has_failed(&current.target) {
            // The first message stays, so that errors that alternate cause no writes.
            let known = former.filter(|former| former.reason == "CheckFailed");
            let known = known.map(|former| former.message.as_str());
            finding(false, "CheckFailed", known.or(tally.message).unwrap_or_default())
        } else if tally.passes >= passes {
            finding(true, "CheckPassed", "")
        } else if let Some(former) = former {
            (former.status, former.reason.clone(), former.message.clone())
        } else {
            (ConditionStatus::Unknown, "NotCheckedYet".to_owned(), String::new())
        }
    }

    fn progressing(&self) -> Finding {
        let pin = self.facts.input.spec.pin.as_deref();
        let Some(current) = self.current else {
            if let Some(pin) = pin {
                return finding(true, "NoTarget", self.unusable_pin(pin));
            }
            if let Some((position, until)) = self.awaited {
                let SourceStatus { name, message, .. } = &self.sources[position];
                let message = format!("waits until {until} for the preferred source {name}: {message}");
                return finding(true, "NoTarget", message);
            }
            let until = self.first_wait().map(|until| format!(" until {until}")).unwrap_or_default();
            return finding(true, "NoTarget", format!("waits{until} for a target that passes its check"));
        };
        if let Some(pin) = pin.filter(|pin| *pin != current.source) {
            return finding(true, "PinnedSourceNotReady", self.unusable_pin(pin));
        }
        if let Some(held) = self.held_failover() {
            return finding(true, "FailoverHeld", held);
        }
        let failback = self.held_failback();
        let Some((position, new)) = self.new_target() else {
            return match failback {
                Some(held) => finding(true, "FailbackHeld", held),
                None => finding(false, "TargetAnnounced", ""),
            };
        };
        let source = &self.sources[position];
        if !self.facts.is_wait_over(source) {
            let until = self.facts.waits_until(source);
            let message = format!("waits until {until} for {new}: {}", source.message);
            return finding(true, "WaitsForTarget", message);
        }
        let failback = failback.map(|held| format!("; {held}")).unwrap_or_default();
        let message = format!("{} stays: {new}: {}{failback}", current.target, source.message);
        finding(false, CUTOVER_TIMED_OUT, message)
    }

    /// Returns for what a failover waits although another source is healthy, and until when.
    fn held_failover(&self) -> Option<String> {
        let (facts, current) = (self.facts, self.current?);
        if self.is_failover_held {
            return Some("waits for another failed check: too many StableNames would fail over".to_owned());
        }
        let NextMove { at: until, limit } = next_move(self.history, MoveReason::FailedOver);
        if facts.input.spec.pin.is_some() || !facts.has_failed(&current.target) || until <= facts.input.now {
            return None;
        }
        let name = &healthy_except(self.sources, &current.source).next()?.name;
        Some(format!("waits until {until} for the failover to {name}: {limit}"))
    }

    /// Returns for what a failback waits although a preferred source is healthy, and until when. The newest check doesn't
    /// count, so that a single failed check causes no write.
    fn held_failback(&self) -> Option<String> {
        let (facts, current, spec) = (self.facts, self.current?, self.facts.input.spec);
        let Failback::Automatic { after } = spec.failback else { return None };
        let position = facts.position_of(&current.source).filter(|_| spec.pin.is_none())?;
        let next = next_move(self.history, MoveReason::FailedBack);
        let healthy = self.sources[..position].iter().filter(|source| source.state == SourceState::Healthy);
        let end = |source: &&SourceStatus| end_of_wait(source.since, after).max(next.at);
        let source = healthy.min_by_key(end)?;
        let (name, until) = (&source.name, end(&source));
        Some(if facts.has_passed(until) {
            format!(
                "waits for {} passed checks in a row, for the failback to {name}",
                spec.check.success_threshold
            )
        } else if until == next.at {
            format!("waits until {until} for the failback to {name}: {}", next.limit)
        } else {
            let seconds = after.as_secs();
            format!("waits until {until} for the failback to {name}: failback.afterSeconds is {seconds}")
        })
    }

    /// Returns why the pinned source isn't in use.
    fn unusable_pin(&self, pin: &str) -> String {
        let pinned = self.sources.iter().find(|source| source.name == pin);
        match pinned.filter(|pinned| pinned.state == SourceState::Refused) {
            Some(refused) => format!("source {pin} is pinned and refused: {}", refused.message),
            None => format!("source {pin} is pinned and has no target"),
        }
    }

    /// Returns the end of the wait for a first target that passes its check; `None` if no source offers a target, or
    /// the wait is over.
    fn first_wait(&self) -> Option<Timestamp> {
        let (facts, spec) = (self.facts, self.facts.input.spec);
        let offering = facts.positions().filter(|position| facts.offered(*position).is_some());
        let first = offering.map(|position| facts.waits_until(&self.sources[position])).min()?;
        let withdrawn = self.history.first().map(|last| end_of_wait(last.until, spec.max_wait));
        withdrawn.into_iter().chain([first]).max().filter(|end| *end > facts.input.now)
    }

    fn degraded(&self, resolved: &Finding) -> Finding {
        let (status, reason, mut message) = self.without_blank_sources(resolved);
        let blank: Vec<String> =
            self.facts.positions().filter_map(|position| self.of_blank_source(position)).collect();
        if !blank.is_empty() && reason == "AsSpecified" {
            return finding(true, "TargetKept", blank.join("; "));
        }
        if status == ConditionStatus::True {
            message = [vec![message], blank].concat().join("; ");
        }
        match self.current.filter(|_| reason == "TargetUnhealthy") {
            Some(current) => (status, reason, self.with_pin_note(message, current)),
            None => (status, reason, message),
        }
    }

    /// Returns the finding about degradation apart from blank statuses and the pin.
    fn without_blank_sources(&self, resolved: &Finding) -> Finding {
        let Some(current) = self.current else { return finding(false, "NoTarget", "no target is announced") };
        if self.is_failover_held {
            let held = "the failover is held, because too many StableNames would fail over";
            let message = format!("{held}: {}", self.in_use(current, &resolved.2));
            return finding(true, MASS_FAILURE, message);
        }
        if resolved.0 == ConditionStatus::False {
            return finding(true, "TargetUnhealthy", self.in_use(current, &resolved.2));
        }
        if !current.verified {
            return finding(true, "Unverified", self.in_use(current, "no check has passed yet"));
        }
        let preferred = self.sources.first().filter(|first| first.name != current.source);
        if let Some(preferred) =
            preferred.filter(|_| self.facts.input.spec.pin.as_deref() != Some(&*current.source))
        {
            let preferred = of_source(&preferred.name, &preferred.message);
            let message = format!("leads to {} instead of {preferred}", self.in_use(current, ""));
            return finding(true, "FailedOver", message);
        }
        if let Some(refused) = self.refused_source_in_use(current) {
            let reason = self.refusal_reason(&refused.name);
            return finding(true, reason.as_str(), of_source(&refused.name, &refused.message));
        }
        if let Some(unread) = self.unread_sources() {
            return finding(true, RefusalReason::Forbidden.as_str(), unread);
        }
        let is_standby = |source: &&SourceStatus| {
            source.name != current.source
                && matches!(source.state, SourceState::Unhealthy | SourceState::Refused)
        };
        let standbys = self.sources.iter().filter(is_standby);
        let standbys: Vec<String> =
            standbys.map(|standby| of_source(&standby.name, &standby.message)).collect();
        match standbys.is_empty() {
            false => finding(true, "StandbyUnhealthy", standbys.join("; ")),
            true => finding(false, "AsSpecified", ""),
        }
    }

    /// Returns the source in use if it may not be used any more: its last target stays.
    fn refused_source_in_use(&self, current: &AnnouncedTarget) -> Option<&SourceStatus> {
        let is_refused =
            |source: &&SourceStatus| source.name == current.source && source.state == SourceState::Refused;
        self.sources.iter().find(is_refused)
    }

    /// Returns which sources offer what their Services said last; `None` if all are up to date.
    fn unread_sources(&self) -> Option<String> {
        let unread = self.facts.positions().filter_map(|position| {
            let why = self.facts.input.offers[position].unread.as_ref()?;
            Some(of_source(self.facts.name(position), why))
        });
        unread.reduce(|all, next| format!("{all}; {next}"))
    }

    /// Returns a text about a source that offers its last target, because the status of its Service is blank.
    fn of_blank_source(&self, position: usize) -> Option<String> {
        let is_blank = self.facts.input.offers[position].is_blank && self.facts.offered(position).is_some();
        let why = "the status of its Service is blank, and its last target counts";
        is_blank.then(|| of_source(self.facts.name(position), why))
    }

    /// Returns why a source is refused: without a refusal of its own, the target policy denies its target.
    fn refusal_reason(&self, source: &str) -> RefusalReason {
        let offer = self.facts.position_of(source).and_then(|position| self.facts.input.offers.get(position));
        let refusal = offer.and_then(|offer| offer.refusal.as_ref());
        refusal.map_or(RefusalReason::TargetRefused, |refusal| refusal.reason)
    }

    /// Ready is about the target in use, and about the StableName's own names and rules. A source that may not be
    /// used counts only while no target is announced.
    fn ready(&self, accepted: &Finding, resolved: &Finding) -> Finding {
        let Some(current) = self.current.filter(|_| self.facts.input.refusal.is_none()) else {
            return match accepted.0 {
                ConditionStatus::False => accepted.clone(),
                _ => finding(false, "NoTarget", self.summary(resolved)),
            };
        };
        if resolved.0 == ConditionStatus::False {
            finding(false, "TargetUnhealthy", self.with_pin_note(self.summary(resolved), current))
        } else if !current.verified {
            finding(false, "Unverified", self.summary(resolved))
        } else if !self.facts.input.is_written {
            let message = "the external target doesn't exist yet or doesn't point at the target";
            let why = self.facts.input.write_failure.map(|why| format!(": {why}")).unwrap_or_default();
            finding(false, NO_EXTERNAL_TARGET, format!("{message}{why}"))
        } else {
            finding(true, "TargetVerified", self.summary(resolved))
        }
    }

    /// Appends the note about the pin, which a later decision looks for: the message is cut instead.
    fn with_pin_note(&self, message: String, current: &AnnouncedTarget) -> String {
        let note = pin_note(self.facts.input.spec.pin.as_deref(), current, self.sources);
        cut(message, MAX_MESSAGE.saturating_sub(note.chars().count())) + &note
    }

    /// Returns a message about the source in use, which an edit may have removed from the specification.
    fn in_use(&self, current: &AnnouncedTarget, message: &str) -> String {
        let name = &current.source;
        // A specification that breaks a rule has no sources here.
        let is_listed = self.sources.is_empty() || self.facts.position_of(name).is_some();
        if name.is_empty() || is_listed {
            return of_source(name, message);
        }
        of_source(&format!("{name} (not in spec.sources any more)"), message)
    }

    /// Returns the source in use, and what is wrong with each source.
    fn summary(&self, resolved: &Finding) -> String {
        let mut text = match self.current {
            Some(current) => format!("leads to {}", self.in_use(current, "")),
            None => "no target is announced".to_owned(),
        };
        // The message of the source in use may be about another target, or about none.
        let is_offered = |current: &AnnouncedTarget| {
            let position = self.facts.position_of(&current.source);
            position.is_some_and(|position| self.facts.is_offered(position, &current.target))
        };
        if resolved.0 == ConditionStatus::False && !self.current.is_none_or(is_offered) {
            text.push_str(&format!(", which fails: {}", resolved.2));
        }
        let new = self.new_target();
        for (position, source) in self.sources.iter().enumerate() {
            let about = new.filter(|(of, _)| *of == position);
            let about = about.map(|(_, target)| format!("new target {target}: ")).unwrap_or_default();
            let state = (source.state != SourceState::Healthy)
                .then(|| of_source(&source.name, &format!("{about}{}", source.message)));
            for told in state.into_iter().chain(self.of_blank_source(position)) {
                text.push_str("; ");
                text.push_str(&told);
            }
        }
        text
    }
}

/// Returns the end of a message about a target that has failed: which pin keeps it, and which sources are healthy.
pub(super) fn pin_note(pin: Option<&str>, current: &AnnouncedTarget, sources: &[SourceStatus]) -> String {
    let Some(pin) = pin else { return String::new() };
    let healthy: Vec<&str> =
        healthy_except(sources, &current.source).map(|source| source.name.as_str()).collect();
    let although = match healthy.len() {
        0 => String::new(),
        1 => format!(", although {} is healthy", healthy[0]),
        _ => format!(", although {} are healthy", healthy.join(", ")),
    };
    format!("; pinned to {pin}{although}")
}

/// Returns the healthy sources, except the one with this name.
pub(super) fn healthy_except<'a>(
    sources: &'a [SourceStatus],
    name: &'a str,
) -> impl Iterator<Item = &'a SourceStatus> {
    sources.iter().filter(move |source| source.name != name && source.state == SourceState::Healthy)
}

/// Returns a message about a source. An empty name stands for an announced target that no source offers.
pub(super) fn of_source(name: &str, message: &str) -> String {
    let name = if name.is_empty() { "a target that no source in spec.sources offers" } else { name };
    if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") }
}
