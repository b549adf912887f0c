//! Limits removals, so that a mistake of the API server or of a user doesn't remove everything at once.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use crate::sync::source::relist_guard::{ALWAYS_SAFE_LOSS, max_safe_loss};

/// The time window in which removals are counted.
const WINDOW: Duration = Duration::from_secs(600);
/// The maximum number of external targets that may be removed in ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxDeletes {
    /// Ten, or a fifth of all external targets, whichever is more.
    #[default]
    Share,
    Number(usize),
    Unlimited,
}

impl fmt::Display for MaxDeletes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share => write!(f, "{ALWAYS_SAFE_LOSS}, or a fifth of the external targets"),
            Self::Number(number) => number.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// The removals of external targets in the last ten minutes, by any replica.
#[derive(Debug, Default)]
pub struct DeletionBudget {
    removals: VecDeque<(Instant, String)>,
    /// The objects in `removals`.
    counted: HashSet<String>,
    /// Objects with a removal in flight: they still count as present.
    in_flight: HashSet<String>,
}

impl DeletionBudget {
    /// Records that `waiting` of the `present` external targets wait for removal at the start. If these exceed the
    /// limit, the previous process may just have removed as many: then the budget counts as used up, so that a process
    /// that restarts again and again doesn't remove them all.
    pub fn initialize(&mut self, max: MaxDeletes, waiting: usize, present: usize, now: Instant) {
        if waiting > limit(max, present) {
            // `MaxDeletes::Share` grows with the number of removed targets, at most to this limit.
            for number in 0..limit(max, 2 * present) {
                // No object has such a name.
                self.count(&format!("{number} before the start"), now);
            }
        }
    }

    /// Returns whether this object may be removed now, with `present` external targets left. Doesn't count a removal.
    ///
    /// # Errors
    /// The time to wait; `None` means forever.
    pub fn allows(
        &mut self,
        max: MaxDeletes,
        object: &str,
        present: usize,
        now: Instant,
    ) -> Result<(), Option<Duration>> {
        self.expire(now);
        if self.counted.contains(object) {
            return Ok(());
        }
        let limit = limit(max, (present + self.removals.len()).saturating_sub(self.in_flight.len()));
        if self.removals.len() < limit {
            return Ok(());
        }
        Err(self.removals.front().map(|(first, _)| WINDOW.saturating_sub(now.duration_since(*first))))
    }

    /// Like [`DeletionBudget::allows`], and counts the removal, once per object.
    ///
    /// # Errors
    /// The time to wait; `None` means forever.
    pub fn reserve(
        &mut self,
        max: MaxDeletes,
        object: &str,
        present: usize,
        now: Instant,
    ) -> Result<(), Option<Duration>> {
        self.allows(max, object, present, now)?;
        self.count(object, now);
        self.in_flight.insert(object.to_owned());
        Ok(())
    }

    /// Records the answer to a removal. `refused` means that the object certainly still exists; after a
    /// missing answer this is unknown.
    pub fn record_result(&mut self, object: &str, refused: bool) {
        self.in_flight.remove(object);
        if refused && self.counted.remove(object) {
            self.removals.retain(|(_, made)| made != object);
        }
    }

    /// Records that an object is gone, perhaps removed by an earlier leader.
    pub fn record_observed_removal(&mut self, object: &str, now: Instant) {
        self.expire(now);
        self.in_flight.remove(object);
        self.count(object, now);
    }

    fn count(&mut self, object: &str, now: Instant) {
        if self.counted.insert(object.to_owned()) {
            self.removals.push_back((now, object.to_owned()));
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.removals.front().is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            let expired = self.removals.pop_front();
            expired.map(|(_, object)| self.counted.remove(&object));
        }
    }
}

/// Returns how many of `number` external targets may be removed in ten minutes.
fn limit(max: MaxDeletes, number: usize) -> usize {
    match max {
        MaxDeletes::Unlimited => usize::MAX,
        MaxDeletes::Number(number) => number,
        MaxDeletes::Share => max_safe_loss(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_objects_or_a_fifth_may_be_removed_in_ten_minutes() {
        let start = Instant::now();
        for (there, allowed) in [(1, 1), (11, 10), (49, 10), (60, 12), (100, 20), (3000, 600)] {
            for at_once in [1, 16] {
                let mut deletion_budget = DeletionBudget::default();
                let (mut present, mut removed) = (there, 0);
                let mut under_way = VecDeque::new();
                while removed < there
                    && deletion_budget
                        .reserve(MaxDeletes::Share, &removed.to_string(), present, start)
                        .is_ok()
                {
                    under_way.push_back(removed.to_string());
                    removed += 1;
                    if under_way.len() == at_once {
                        deletion_budget.record_result(&under_way.pop_front().unwrap(), false);
                        present -= 1;
                    }
                }
                assert_eq!(removed, allowed, "of {there}, {at_once} under way");
            }
        }
    }

    #[test]
    fn removal_is_forgotten_after_ten_minutes() {
        let mut deletion_budget = DeletionBudget::default();
        let start = Instant::now();
        let mut ask = |object, seconds| {
            deletion_budget.reserve(MaxDeletes::Number(2), object, 5, start + Duration::from_secs(seconds))
        };
        assert_eq!(ask("a", 0), Ok(()));
        assert_eq!(ask("b", 60), Ok(()));
        assert_eq!(ask("c", 100), Err(Some(Duration::from_secs(500))));
        assert_eq!(ask("a", 100), Ok(()), "it is tried again and counts once");
        assert_eq!(ask("c", 600), Ok(()));
        assert_eq!(ask("d", 601), Err(Some(Duration::from_secs(59))));
        assert_eq!(DeletionBudget::default().reserve(MaxDeletes::Number(0), "a", 2, start), Err(None));
        assert_eq!(deletion_budget.reserve(MaxDeletes::Unlimited, "d", 2, start), Ok(()));
    }

    #[test]
    fn unanswered_removal_counts_but_refused_removal_does_not() {
        let mut deletion_budget = DeletionBudget::default();
        let now = Instant::now();
        let max = MaxDeletes::Number(2);
        assert_eq!(deletion_budget.reserve(max, "a", 5, now), Ok(()));
        deletion_budget.record_result("a", true);
        assert_eq!(deletion_budget.allows(max, "b", 5, now), Ok(()));
        assert_eq!(deletion_budget.reserve(max, "b", 5, now), Ok(()), "allows() alone counts nothing");
        deletion_budget.record_result("b", false);
        deletion_budget.record_observed_removal("b", now);
        deletion_budget.record_observed_removal("theirs", now);
        assert!(deletion_budget.reserve(max, "c", 5, now).is_err());
    }

    #[test]
    fn more_removals_at_the_start_than_allowed_wait_ten_minutes() {
        let start = Instant::now();
        let later = start + WINDOW;
        for (max, waiting, allowed) in [
            (MaxDeletes::Share, 10, true),
            (MaxDeletes::Share, 11, false),
            (MaxDeletes::Number(2), 3, false),
            (MaxDeletes::Unlimited, 100, true),
        ] {
            let mut deletion_budget = DeletionBudget::default();
            deletion_budget.initialize(max, waiting, 30, start);
            assert_eq!(deletion_budget.reserve(max, "a", 30, start).is_ok(), allowed, "{max} {waiting}");
            assert!(deletion_budget.reserve(max, "a", 30, later).is_ok(), "{max} {waiting}");
        }
    }
}
