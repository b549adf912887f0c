//! What the leader knows about a StableName, and the changes that no written status contains yet.

use tokio::time::Instant;

use super::super::object::{ObservedStableName, StoredRefusal};
use super::super::status_format::{from_stored, own_part};
use crate::api::status::StableNameStatus;
use crate::sync::stable_name::decision::checks::CheckRecords;
use crate::sync::stable_name::decision::decide::FailoverEvent;
use crate::sync::stable_name::decision::status::{FailoverStatus, MoveReason};

/// Maximum number of failed writes that may have been made, and whose Events are kept; the newest ones are.
const MAX_IN_FLIGHT: usize = 16;

/// What the leader knows about a StableName.
pub(super) struct DecisionState {
    /// The last decision of this term, written or not; before it, and after another client's change, the stored status.
    pub(super) status: FailoverStatus,
    /// When the last decision was made.
    pub(super) decided_at: Option<Instant>,
    /// Whether the last decision found a written target that hasn't failed, and needn't be withdrawn.
    pub(super) is_written_target_working: bool,
    /// The status that was sent last; with `--sync plan`, the status that was logged last.
    pub(super) sent: Option<StableNameStatus>,
    pub(super) records: CheckRecords,
    /// What the last decision changes in the stored status.
    pub(super) changes: UnreportedEvents,
    /// The changes that the write under way contains, after those of former writes that may have been made although
    /// they have failed.
    pub(super) in_flight: Vec<UnreportedEvents>,
    /// The refusal of the status as it was before this term's first decision: it isn't news, and has no Event.
    pub(super) initial_refusal: Option<StoredRefusal>,
}

pub(super) fn refusal_of(status: &StableNameStatus) -> Option<StoredRefusal> {
    let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted");
    let refused = accepted.filter(|accepted| accepted.status == "False");
    refused.map(|condition| (condition.reason.clone(), condition.message.clone()))
}

impl DecisionState {
    pub(super) fn new(object: &ObservedStableName) -> Self {
        Self {
            status: from_stored(&object.status),
            decided_at: None,
            is_written_target_working: false,
            sent: None,
            records: CheckRecords::new(object.key.namespace()),
            changes: UnreportedEvents::default(),
            in_flight: Vec::new(),
            initial_refusal: refusal_of(&object.status),
        }
    }
}

/// The Events of a decision, and the reason of a move. They are reported once the status is written.
#[derive(Default)]
pub(super) struct UnreportedEvents {
    pub(super) events: Vec<FailoverEvent>,
    pub(super) moved: Option<MoveReason>,
    /// The status of the write that contains them.
    pub(super) written: Option<StableNameStatus>,
    /// Whether the API server has had that status.
    pub(super) is_made: bool,
}

impl DecisionState {
    /// Processes a new version of the StableName. If another client has changed the status, what this leader has seen
    /// doesn't count any more.
    pub(super) fn observed(&mut self, object: &ObservedStableName, before: Option<&ObservedStableName>) {
        let status = own_part(&object.status);
        let is_known = before.is_some_and(|before| own_part(&before.status) == status);
        // Of equal writes only one can be made: the next one has a conflict.
        let mut writes = self.in_flight.iter_mut().rev();
        let own = writes.find(|changes| changes.written.as_ref() == Some(&status));
        let is_own = own.is_some() || self.sent.as_ref() == Some(&status);
        own.into_iter().for_each(|changes| changes.is_made = true);
        if !is_known && !is_own {
            self.status = from_stored(&object.status);
        }
    }

    /// Moves the changes to the write of a status that begins.
    pub(super) fn begin_write(&mut self, status: &StableNameStatus) {
        self.in_flight
            .push(UnreportedEvents { written: Some(status.clone()), ..std::mem::take(&mut self.changes) });
        self.in_flight.drain(..self.in_flight.len().saturating_sub(MAX_IN_FLIGHT));
    }

    /// Processes that the write under way was made. A former write whose status wasn't seen wasn't made: this write
    /// would have had a conflict.
    pub(super) fn write_succeeded(&mut self) {
        if let Some(written) = self.in_flight.last_mut() {
            written.is_made = true;
        }
        self.in_flight.retain(|changes| changes.is_made);
    }

    /// Processes that the write under way has failed. Unless it may have been made, its changes are dropped: another
    /// decision is made before the next write.
    pub(super) fn write_failed(&mut self, may_be_made: bool) {
        self.in_flight.pop_if(|changes| changes.events.is_empty() || !may_be_made && !changes.is_made);
    }

    /// Returns the changes that are written, and not reported yet.
    pub(super) fn take_written(&mut self) -> Vec<UnreportedEvents> {
        let (written, in_doubt) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|changes| changes.is_made);
        self.in_flight = in_doubt;
        written
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::stable_name::StableName;
    use crate::sync::stable_name::decision::decide::EventReason;

    fn object(status: &StableNameStatus) -> ObservedStableName {
        let spec = json!({"sources": [{"name": "a", "hostname": "a.example"}]});
        let mut object = StableName::new("web", serde_json::from_value(spec).unwrap());
        object.metadata.namespace = Some("shop".to_owned());
        object.status = Some(status.clone());
        ObservedStableName::new(object)
    }

    fn state() -> DecisionState {
        DecisionState::new(&object(&StableNameStatus::default()))
    }

    /// Returns a status that differs from the status of any other number.
    fn numbered(number: i64) -> StableNameStatus {
        StableNameStatus { observed_generation: Some(number), ..Default::default() }
    }

    /// Decides, and begins to write the status with this number.
    fn write(state: &mut DecisionState, message: &str, number: i64) {
        let events = vec![FailoverEvent::new(EventReason::TargetChanged, message.to_owned())];
        state.changes = UnreportedEvents { events, ..Default::default() };
        state.begin_write(&numbered(number));
        state.sent = Some(numbered(number));
    }

    fn see(state: &mut DecisionState, number: i64) {
        state.observed(&object(&numbered(number)), Some(&object(&numbered(number - 1))));
    }

    fn reported(state: &mut DecisionState) -> String {
        let written = state.take_written();
        let events = written.iter().flat_map(|changes| &changes.events);
        events.map(FailoverEvent::message).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn only_written_changes_are_reported() {
        let state = &mut state();
        write(state, "first", 1);
        assert_eq!(reported(state), "");
        state.write_failed(false);
        write(state, "second", 2);
        state.write_succeeded();
        assert_eq!((reported(state), reported(state)), ("second".to_owned(), String::new()));
    }

    #[test]
    fn unanswered_write_is_reported_if_its_status_is_seen() {
        for (is_seen, expected) in [(true, "first, second"), (false, "second")] {
            let state = &mut state();
            write(state, "first", 1);
            state.write_failed(true);
            if is_seen {
                see(state, 1);
            }
            write(state, "second", 2);
            state.write_succeeded();
            assert_eq!(reported(state), expected);
        }
    }

    #[test]
    fn repetition_of_an_unanswered_write_is_reported_once() {
        for is_conflict in [false, true] {
            let state = &mut state();
            write(state, "first", 1);
            state.write_failed(true);
            write(state, "first", 1);
            see(state, 1);
            match is_conflict {
                true => state.write_failed(false),
                false => state.write_succeeded(),
            }
            assert_eq!(reported(state), "first");
        }
    }

    #[test]
    fn few_unanswered_writes_are_kept() {
        let state = &mut state();
        for number in 0..50 {
            write(state, "first", number);
            state.write_failed(true);
        }
        assert_eq!(state.in_flight.len(), MAX_IN_FLIGHT);
    }

    #[test]
    fn change_by_another_client_replaces_the_last_decision() {
        let state = &mut state();
        // The status of a write without an answer isn't another client's, even after a further write.
        for number in [8, 9] {
            write(state, "first", number);
            state.write_failed(true);
        }
        see(state, 8);
        assert_eq!(state.status.observed_generation, 0);
        see(state, 7);
        assert_eq!(state.status.observed_generation, 7);
    }
}
