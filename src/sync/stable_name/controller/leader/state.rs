//! What the leader knows about a StableName, and the changes that no written status contains yet.

use tokio::time::Instant;

use super::super::object::ObservedStableName;
use super::super::status_format::{from_stored, own_part};
use crate::api::status::StableNameStatus;
use crate::sync::stable_name::decision::checks::CheckRecords;
use crate::sync::stable_name::decision::decide::FailoverEvent;
use crate::sync::stable_name::decision::status::{FailoverStatus, MoveReason};

/// Maximum number of Events of a write of the status, and of failed writes whose Events are reported with a later one;
/// the newest ones are kept.
const MAX_EVENTS: usize = 16;

/// What the leader knows about a StableName.
pub(super) struct DecisionState {
    /// The last decision of this term, written or not; before it, and after another client's change, the stored status.
    pub(super) status: FailoverStatus,
    /// When the last decision was made.
    pub(super) decided_at: Option<Instant>,
    /// The status that was sent last; with `--sync plan`, the status that was logged last.
    pub(super) sent: Option<StableNameStatus>,
    pub(super) records: CheckRecords,
    /// What the decisions since the last write have changed.
    pub(super) changes: UnreportedEvents,
    /// The changes that the write under way contains, after those of former writes that may have been made although
    /// they have failed.
    pub(super) in_flight: Vec<UnreportedEvents>,
    /// The refusal that was reported last.
    pub(super) refusal: Option<StoredRefusal>,
    /// The refusal of the status as it was before this term's first decision: it isn't news, and has no Event.
    pub(super) initial_refusal: Option<StoredRefusal>,
}

/// The reason and the message of the condition Accepted, if it is False.
pub(super) type StoredRefusal = (String, String);

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
            sent: None,
            records: CheckRecords::new(object.key.namespace()),
            changes: UnreportedEvents::default(),
            in_flight: Vec::new(),
            refusal: None,
            initial_refusal: refusal_of(&object.status),
        }
    }
}

/// The Events of decisions, and the reason of a move. They are reported once the status is written.
#[derive(Default)]
pub(super) struct UnreportedEvents {
    pub(super) events: Vec<FailoverEvent>,
    pub(super) moved: Option<MoveReason>,
    /// The status of the write that contains them.
    pub(super) written: Option<StableNameStatus>,
    /// Whether another client has changed the status since: then these changes are dropped if the write fails.
    pub(super) is_void: bool,
}

impl UnreportedEvents {
    /// Adds what happened later. Moves that haven't been written in between become one.
    pub(super) fn extend(&mut self, later: Self) {
        let failover =
            [self.moved, later.moved].into_iter().find(|moved| *moved == Some(MoveReason::FailedOver));
        self.moved = failover.flatten().or(self.moved).or(later.moved);
        for event in later.events {
            match self.events.pop() {
                Some(former) if former.is_move() && event.is_move() => match former.followed_by(event) {
                    Some(both) => self.events.push(both),
                    None if !self.events.iter().any(FailoverEvent::is_move) => self.moved = None,
                    None => {}
                },
                former => self.events.extend(former.into_iter().chain([event])),
            }
        }
        self.events.drain(..self.events.len().saturating_sub(MAX_EVENTS));
    }
}

impl DecisionState {
    /// Processes a new version of the StableName. If another client has changed the status, the next decision begins
    /// with the changed status.
    pub(super) fn observed(&mut self, object: &ObservedStableName, before: Option<&ObservedStableName>) {
        let status = own_part(&object.status);
        let is_known = before.is_some_and(|before| own_part(&before.status) == status);
        let is_own = |written: &Option<StableNameStatus>| written.as_ref() == Some(&status);
        let is_own = is_own(&self.sent) || self.in_flight.iter().any(|changes| is_own(&changes.written));
        if !is_known && !is_own {
            self.status = from_stored(&object.status);
            self.drop_changes();
            self.in_flight.iter_mut().for_each(|changes| changes.is_void = true);
        }
    }

    /// Forgets the changes that no write contains.
    pub(super) fn drop_changes(&mut self) {
        self.changes = UnreportedEvents::default();
    }

    /// Moves the changes to the write of a status that begins, also if the API server has this status already.
    pub(super) fn begin_write(&mut self, status: &StableNameStatus) {
        self.in_flight
            .push(UnreportedEvents { written: Some(status.clone()), ..std::mem::take(&mut self.changes) });
        self.in_flight.drain(..self.in_flight.len().saturating_sub(MAX_EVENTS));
    }

    /// Processes that the write under way has failed: its changes are reported with the next write. If the write
    /// may have been made, later moves aren't merged with them.
    pub(super) fn write_failed(&mut self, may_be_made: bool) {
        let unwritten = self.in_flight.pop();
        self.in_flight.retain(|former| !former.is_void);
        let Some(mut unwritten) = unwritten.filter(|unwritten| !unwritten.is_void) else { return };
        if !may_be_made {
            unwritten.extend(std::mem::take(&mut self.changes));
            self.changes = unwritten;
        } else if !unwritten.events.is_empty() {
            self.in_flight.push(unwritten);
        }
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

    fn decided(state: &mut DecisionState, message: &str, moved: MoveReason) {
        let event = FailoverEvent::new(EventReason::TargetChanged, message.to_owned());
        state.changes.extend(UnreportedEvents {
            events: vec![event],
            moved: Some(moved),
            ..Default::default()
        });
    }

    fn messages<'a>(changes: impl IntoIterator<Item = &'a UnreportedEvents>) -> String {
        let events = changes.into_iter().flat_map(|changes| &changes.events);
        events.map(FailoverEvent::message).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn changes_are_reported_with_the_write_that_contains_them() {
        let mut state = DecisionState::new(&object(&StableNameStatus::default()));
        decided(&mut state, "first", MoveReason::FailedOver);
        state.begin_write(&StableNameStatus::default());
        decided(&mut state, "second", MoveReason::FailedBack);
        assert_eq!(
            (messages(&state.in_flight), messages([&state.changes])),
            ("first".to_owned(), "second".to_owned())
        );
        assert_eq!(state.in_flight[0].moved, Some(MoveReason::FailedOver));
        state.write_failed(false);
        assert_eq!(
            (messages(&state.in_flight), messages([&state.changes])),
            (String::new(), "first, second".to_owned())
        );
        assert_eq!(state.changes.moved, Some(MoveReason::FailedOver));
        for number in 0..20 {
            decided(&mut state, &number.to_string(), MoveReason::FailedBack);
        }
        assert_eq!(state.changes.events.len(), MAX_EVENTS);
    }

    fn a_move(reason: EventReason, from: &str, to: &str) -> UnreportedEvents {
        let moved = match reason {
            EventReason::FailedOver => MoveReason::FailedOver,
            _ => MoveReason::TargetChanged,
        };
        let events = vec![FailoverEvent::of_move(reason, from, to)];
        UnreportedEvents { events, moved: Some(moved), ..Default::default() }
    }

    #[test]
    fn failover_is_seen_though_another_move_precedes_its_write() {
        for reasons in [
            [EventReason::FailedOver, EventReason::TargetChanged],
            [EventReason::TargetChanged, EventReason::FailedOver],
        ] {
            let mut changes = a_move(reasons[0], "a", "b");
            changes.extend(a_move(reasons[1], "b", "c"));
            assert_eq!(messages([&changes]), "a → c");
            assert_eq!(changes.events[0].reason, EventReason::FailedOver, "{reasons:?}");
            assert_eq!(changes.moved, Some(MoveReason::FailedOver), "{reasons:?}");
        }
    }

    #[test]
    fn move_of_an_unanswered_write_is_reported_with_its_reversal() {
        for (may_be_made, reported) in [(false, ""), (true, "a → b, b → a")] {
            let mut state = DecisionState::new(&object(&StableNameStatus::default()));
            state.changes.extend(a_move(EventReason::FailedOver, "a", "b"));
            state.begin_write(&StableNameStatus::default());
            state.write_failed(may_be_made);
            state.changes.extend(a_move(EventReason::TargetChanged, "b", "a"));
            state.begin_write(&StableNameStatus::default());
            assert_eq!(messages(&state.in_flight), reported);
            // The first write was made, so the second one has a conflict.
            state.write_failed(false);
            state.begin_write(&StableNameStatus::default());
            assert_eq!(messages(&state.in_flight), reported);
        }
        let mut state = DecisionState::new(&object(&StableNameStatus::default()));
        for number in 0..50 {
            state.changes.extend(a_move(EventReason::TargetChanged, "a", &number.to_string()));
            state.begin_write(&StableNameStatus::default());
            state.write_failed(true);
        }
        assert_eq!(state.in_flight.len(), MAX_EVENTS);
    }

    #[test]
    fn moves_between_two_writes_are_reported_as_one() {
        let moves = |path: &[&str]| {
            let mut changes = UnreportedEvents::default();
            for step in path.windows(2) {
                changes.extend(a_move(EventReason::TargetChanged, step[0], step[1]));
            }
            messages([&changes])
        };
        assert_eq!(moves(&["a", "b"]), "a → b");
        assert_eq!(moves(&["a", "b", "c", "d"]), "a → d");
        assert_eq!(moves(&["a", "b", "a"]), "");
    }

    #[test]
    fn change_by_another_client_voids_unwritten_changes() {
        let first = object(&StableNameStatus::default());
        let state = &mut DecisionState::new(&first);
        decided(state, "first", MoveReason::FailedOver);
        state.begin_write(&StableNameStatus::default());
        decided(state, "second", MoveReason::FailedBack);
        let of =
            |generation| StableNameStatus { observed_generation: Some(generation), ..Default::default() };
        state.observed(&object(&of(7)), Some(&first));
        assert_eq!(messages(&state.in_flight), "first", "the write may have been made before");
        state.write_failed(false);
        assert_eq!((messages(&state.in_flight), messages([&state.changes])), (String::new(), String::new()));

        // The status of a write without an answer isn't another client's, even after a further write.
        for (generation, message) in [(8, "third"), (9, "fourth")] {
            decided(state, message, MoveReason::FailedOver);
            state.begin_write(&of(generation));
            state.sent = Some(of(generation));
            state.write_failed(true);
        }
        state.observed(&object(&of(8)), Some(&object(&of(7))));
        assert_eq!(messages(state.in_flight.iter().filter(|changes| !changes.is_void)), "third, fourth");
    }
}
