//! What users see of the removal of a gone Service's external target.

use std::time::Instant;

use jiff::Timestamp;

use super::Reconciler;
use crate::model::link::Link;
use crate::sync::external_target::decision::{OnDelete, SyncMode, SyncPolicy};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::Verdict;

impl Reconciler {
    /// Shows when the external target of a gone Service is removed, or why it stays.
    pub(super) fn show_removal(&self, link: &Link, verdict: Option<Verdict>, now: Instant) {
        let is_gone = link.service_gone_since().is_some() && self.context.policy.sync == SyncMode::On;
        let policy = &self.context.policy;
        let note = is_gone.then(|| note(policy, verdict, Timestamp::now(), now)).flatten();
        self.context.link_reporter.findings.removals.set(&link.key, note.as_deref());
    }
}

/// Returns the clause about a verdict; `None` if the object is removed now, or another note has the reason.
fn note(policy: &SyncPolicy, verdict: Option<Verdict>, time: Timestamp, now: Instant) -> Option<String> {
    match verdict {
        None | Some(Verdict::Remove(_)) if policy.on_delete == OnDelete::Tombstone => {
            return Some(format!(
                "its external target leads to {} (--on-delete tombstone)",
                policy.tombstone
            ));
        }
        _ => {}
    }
    match verdict? {
        // Held removals have a note with their number.
        Verdict::Wait(RemovalReason::RemovalHeld, _) | Verdict::Keep(RemovalReason::RemovalHeld) => None,
        Verdict::Wait(reason, until) => {
            let at = time.checked_add(until.saturating_duration_since(now)).ok()?;
            Some(format!("its external target is removed at {at:.0} ({reason}, by this replica's count)"))
        }
        Verdict::Keep(reason) => Some(format!("its external target stays ({reason})")),
        Verdict::Remove(_) | Verdict::Ask(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::test_support;

    #[test]
    fn note_has_the_time_of_the_removal_or_why_it_stays() {
        let (time, now) = (Timestamp::UNIX_EPOCH, Instant::now());
        let until = now + Duration::from_secs(600);
        let policy = test_support::policy(None);
        let of = |verdict| note(&policy, Some(verdict), time, now);
        let removed =
            "its external target is removed at 1970-01-01T00:10:00Z (DeleteDelay, by this replica's \
                       count)"
                .to_owned();
        assert_eq!(of(Verdict::Wait(RemovalReason::DeleteDelay, until)), Some(removed));
        let stays = "its external target stays (Retained)".to_owned();
        assert_eq!(of(Verdict::Keep(RemovalReason::Retained)), Some(stays));
        assert_eq!(of(Verdict::Wait(RemovalReason::RemovalHeld, until)), None);
        assert_eq!(of(Verdict::Remove(RemovalReason::ServiceGone)), None);
        let tombstone = SyncPolicy {
            on_delete: OnDelete::Tombstone,
            tombstone: "deleted.lb.internal".to_owned(),
            ..policy
        };
        for verdict in [None, Some(Verdict::Remove(RemovalReason::ServiceGone))] {
            let why = note(&tombstone, verdict, time, now);
            assert_eq!(
                why.as_deref(),
                Some("its external target leads to deleted.lb.internal (--on-delete tombstone)")
            );
        }
    }
}
