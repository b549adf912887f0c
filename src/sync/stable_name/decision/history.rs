//! The former targets of a StableName.

use std::time::Duration;

use jiff::Timestamp;

use super::status::{AnnouncedTarget, FormerTarget, MoveReason};
use super::times::end_of_wait;
use crate::api::limits::MAX_HISTORY;

/// The minimum time between an automatic move between sources and the next one, unless both are failovers: a source
/// that flips causes at most one move a minute, while a second failover may follow the first one at once.
const MOVE_INTERVAL: Duration = Duration::from_secs(60);

/// The minimum time between the first and the third of three automatic moves.
const TWO_MOVES_INTERVAL: Duration = Duration::from_secs(120);

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

/// When the next automatic move may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextMove {
    pub(super) at: Timestamp,
    /// The limit that the move waits for, for messages; empty without a limit.
    pub(super) limit: &'static str,
}

/// Returns when the next automatic move of a kind, a failover or a failback, may be made.
pub(super) fn next_move(history: &[FormerTarget], reason: MoveReason) -> NextMove {
    let (over, back) = (MoveReason::FailedOver.as_str(), MoveReason::FailedBack.as_str());
    let mut moves = history.iter().filter(|former| [over, back].contains(&former.reason.as_str()));
    let (last, second_last) = (moves.next(), moves.next());
    let follows_failover = |last: &&FormerTarget| last.reason == over && reason == MoveReason::FailedOver;
    let after_last = last.filter(|last| !follows_failover(last));
    let limits = [
        (after_last, MOVE_INTERVAL, "moves there and back are at least a minute apart"),
        (second_last, TWO_MOVES_INTERVAL, "at most two automatic moves are made in two minutes"),
    ];
    let next = |(former, wait, limit): (Option<&FormerTarget>, _, _)| {
        Some(NextMove { at: end_of_wait(former?.until, wait), limit })
    };
    let none = NextMove { at: Timestamp::MIN, limit: "" };
    limits.into_iter().filter_map(next).max_by_key(|next| next.at).unwrap_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::link::Target;
    use crate::sync::stable_name::decision::test_support::{at, hostname};

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
    fn automatic_moves_keep_their_minimum_intervals() {
        let (over, back) = (MoveReason::FailedOver, MoveReason::FailedBack);
        let none = (Timestamp::MIN, "");
        let one = |second| (at(second), "moves there and back are at least a minute apart");
        let two = |second| (at(second), "at most two automatic moves are made in two minutes");
        for (moves, next_over, next_back) in [
            (vec![], none, none),
            (vec![(0, over)], none, one(61)),
            (vec![(0, over), (5, over)], two(121), two(121)),
            (vec![(0, over), (90, back)], one(151), one(151)),
            (vec![(0, over), (5, MoveReason::Pinned), (6, MoveReason::TargetChanged)], none, one(61)),
        ] {
            let history = history(&moves);
            for (reason, expected) in [(over, next_over), (back, next_back)] {
                let next = next_move(&history, reason);
                assert_eq!((next.at, next.limit), expected, "{moves:?}");
            }
        }
    }
}
