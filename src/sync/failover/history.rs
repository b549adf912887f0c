//! The former targets of an ExternalTarget.

use std::time::Duration;

use jiff::Timestamp;

use super::status::{AnnouncedTarget, FormerTarget, MoveReason};
use super::times::end_of_wait;
use crate::api::status::MAX_HISTORY;

/// An automatic move between sources waits until the second last one is this old: one move a minute in the long run,
/// while a failover and the way back may follow each other at once.
const TWO_MOVES: Duration = Duration::from_secs(120);

pub(super) fn push(
    history: &mut Vec<FormerTarget>,
    ended: AnnouncedTarget,
    until: Timestamp,
    reason: MoveReason,
) {
    let display = ended.target.to_string();
    let reason = reason.as_str().to_owned();
    history.insert(0, FormerTarget { source: ended.source, display, since: ended.since, until, reason });
    history.truncate(MAX_HISTORY);
}

/// Returns when the next automatic move between sources may be made.
pub(super) fn next_move(history: &[FormerTarget]) -> Timestamp {
    let automatic = [MoveReason::FailedOver, MoveReason::FailedBack].map(MoveReason::as_str);
    let mut moves = history.iter().filter(|former| automatic.contains(&former.reason.as_str()));
    moves.nth(1).map_or(Timestamp::MIN, |second_last| end_of_wait(second_last.until, TWO_MOVES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::link::Target;
    use crate::sync::failover::test_support::{at, hostname};

    fn history(moves: &[(i64, MoveReason)]) -> Vec<FormerTarget> {
        let mut history = Vec::new();
        for (until, reason) in moves {
            let ended = AnnouncedTarget {
                source: "seoul".to_owned(),
                target: Target::Hostname(hostname("a.example")),
                uid: "".into(),
                since: at(0),
                verified: true,
            };
            push(&mut history, ended, at(*until), *reason);
        }
        history
    }

    #[test]
    fn history_has_the_ten_newest_targets() {
        let moves: Vec<_> = (1..=12).map(|second| (second, MoveReason::TargetChanged)).collect();
        let history = history(&moves);
        assert_eq!(history.iter().map(|former| former.until).collect::<Vec<_>>(), {
            (3..=12).rev().map(at).collect::<Vec<_>>()
        });
        assert_eq!(history[0].reason, "TargetChanged");
    }

    #[test]
    fn third_automatic_move_waits_two_minutes_after_the_first() {
        let (over, back) = (MoveReason::FailedOver, MoveReason::FailedBack);
        for (moves, next) in [
            (vec![], Timestamp::MIN),
            (vec![(0, over)], Timestamp::MIN),
            (vec![(0, over), (30, back)], at(121)),
            (vec![(0, over), (30, back), (121, over)], at(151)),
            (vec![(0, over), (5, MoveReason::Pinned), (6, MoveReason::TargetChanged)], Timestamp::MIN),
        ] {
            assert_eq!(next_move(&history(&moves)), next, "{moves:?}");
        }
    }
}
