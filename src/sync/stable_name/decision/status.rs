//! The status of a StableName: the last decision, and all that a new leader knows about earlier ones. All times
//! are whole seconds.

use jiff::Timestamp;

use crate::model::link::{MAX_SHOWN_ADDRESSES, Target};
use crate::model::names::{HASH_DIGITS, hash_of};
use crate::model::uid::Uid;

/// The reason of the condition Ready while the external target is missing, or points elsewhere.
pub const NO_EXTERNAL_TARGET: &str = "NoExternalTarget";
/// The reason of `Resolved` when no check has ended for too long.
pub const CHECK_LATE: &str = "CheckLate";
/// The reason of Degraded while a failover is held.
pub const MASS_FAILURE: &str = "MassFailure";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailoverStatus {
    pub observed_generation: i64,
    pub target: Option<AnnouncedTarget>,
    /// In the order of the specification.
    pub sources: Vec<SourceStatus>,
    /// The former targets, the newest first.
    pub history: Vec<FormerTarget>,
    pub conditions: Vec<Condition>,
}

/// The target that DNS and the external target have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedTarget {
    /// The name of the source; empty if no source is known to offer the target.
    pub source: String,
    pub target: Target,
    pub uid: Uid,
    pub since: Timestamp,
    /// Whether a check of the target has passed, or the target needs no check: addresses are only checked if the check
    /// has a port.
    pub verified: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    pub name: String,
    pub state: SourceState,
    /// The offered target as text; `None` if the source is refused, or offers no target.
    pub offers: Option<String>,
    /// When the state or the offered target changed last.
    pub since: Timestamp,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The source offers no target, or a target that hasn't passed a check yet and doesn't count as unhealthy yet.
    Pending,
    Healthy,
    Unhealthy,
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerTarget {
    pub source: String,
    /// The target, as text.
    pub display: String,
    pub since: Timestamp,
    pub until: Timestamp,
    /// Why it ended: a [`MoveReason`], or a text of a newer version.
    pub reason: String,
}

/// Why the announced target changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// Nothing was announced before.
    Announced,
    /// The source in use offers another target, which has passed a check.
    TargetChanged,
    /// A new or a first target hasn't passed a check within `maxWaitSeconds` and is announced unverified.
    CutoverTimedOut,
    FailedOver,
    FailedBack,
    /// `spec.pin`.
    Pinned,
    /// `spec.sources`.
    SourcesEdited,
    /// The target may not be announced any more.
    Withdrawn,
}

impl MoveReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "Announced",
            Self::TargetChanged => "TargetChanged",
            Self::CutoverTimedOut => "CutoverTimedOut",
            Self::FailedOver => "FailedOver",
            Self::FailedBack => "FailedBack",
            Self::Pinned => "Pinned",
            Self::SourcesEdited => "SourcesEdited",
            Self::Withdrawn => "Withdrawn",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: ConditionType,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
    /// When the status of the condition changed last.
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The whole specification may be used.
    Accepted,
    /// The announced target passes its checks.
    Resolved,
    /// A target is waited for.
    Progressing,
    /// The announced target, or a source, isn't as the owner wants it.
    Degraded,
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Shortens a message to at most `most` characters: then the last one is "…".
pub(super) fn cut(mut message: String, most: usize) -> String {
    if let Some((end, _)) = message.char_indices().nth(most) {
        let last = message[..end].char_indices().next_back().map_or(0, |(last, _)| last);
        message.replace_range(last.., "…");
    }
    message
}

/// Returns a target as text: the same text for the same addresses in any order, another text for another target. If
/// some addresses aren't shown, the text ends in a hash of all.
pub(super) fn text_of(target: &Target) -> String {
    let text = target.to_string();
    let Target::Addresses(addresses) = target else { return text };
    if addresses.len() <= MAX_SHOWN_ADDRESSES {
        return text;
    }
    let mut addresses = addresses.clone();
    addresses.sort_unstable();
    let all: String = addresses.iter().map(|address| format!("{address},")).collect();
    format!("{text} ({})", &hash_of(&all)[..HASH_DIGITS[0]])
}

/// Sets the time of each decided condition whose status equals the written one to the written time: a condition that
/// changed and returned while one decision changed the target twice hasn't changed.
pub fn restore_times(decided: &mut FailoverStatus, written: &FailoverStatus) {
    for condition in &mut decided.conditions {
        let known = written.condition(condition.kind).filter(|known| known.status == condition.status);
        // If the written time is the later one, it was set before the clock was set back.
        condition.since = known.map_or(condition.since, |known| known.since.min(condition.since));
    }
}

// === impl FailoverStatus ===

impl FailoverStatus {
    /// Returns whether the last target was withdrawn and not replaced: DNS answers with NODATA.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.target.is_none() && !self.history.is_empty()
    }

    #[must_use]
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Returns the place of a source in the specification: behind all of them if an edit has removed it; `None` if the
    /// specification breaks a rule.
    #[must_use]
    pub fn place_of(&self, name: &str) -> Option<usize> {
        let place = self.sources.iter().position(|source| source.name == name);
        (!self.sources.is_empty()).then(|| place.unwrap_or(self.sources.len()))
    }

    pub(super) fn source(&self, name: &str) -> Option<&SourceStatus> {
        self.sources.iter().find(|source| source.name == name)
    }

    /// Moves times that lie in the future to now: the clock of an earlier leader was ahead, or the clock was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        let target = self.target.iter_mut().map(|target| &mut target.since);
        let sources = self.sources.iter_mut().map(|source| &mut source.since);
        let history = self.history.iter_mut().flat_map(|former| [&mut former.since, &mut former.until]);
        let conditions = self.conditions.iter_mut().map(|condition| &mut condition.since);
        for time in target.chain(sources).chain(history).chain(conditions) {
            *time = now.min(*time);
        }
    }
}
