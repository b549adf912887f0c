//! What keeps a mistake, of the API server or of a person, from removing everything at once.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// The time in which removals are counted.
const WINDOW: Duration = Duration::from_secs(600);
/// So many may always go: a small cluster is allowed to become empty.
const ALWAYS: usize = 10;
/// Beyond that, one of so many: 20 %.
const SHARE: usize = 5;
/// How much later a second list has to agree with a first one that isn't believed.
pub const SECOND_LOOK: Duration = Duration::from_secs(30);

/// Returns how many of `number` may disappear at once without suspicion.
#[must_use]
pub fn unsuspicious(number: usize) -> usize {
    ALWAYS.max(number / SHARE)
}

/// How many external targets may be removed in ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxDeletes {
    /// Ten, or a fifth of those that there are.
    #[default]
    Share,
    /// So many.
    Number(usize),
    /// Any number.
    Unlimited,
}

impl fmt::Display for MaxDeletes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share => write!(f, "{ALWAYS}, or a fifth of the external targets"),
            Self::Number(number) => number.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// The removals of the last ten minutes.
#[derive(Debug, Default)]
pub struct Removals(VecDeque<Instant>);

// === impl Removals ===

impl Removals {
    /// Asks for one more removal, while `present` external targets are there. It counts at once.
    ///
    /// # Errors
    /// How long the next one has to wait; `None`: for ever.
    pub fn ask(&mut self, max: MaxDeletes, present: usize, now: Instant) -> Result<(), Option<Duration>> {
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
        let limit = match max {
            MaxDeletes::Unlimited => usize::MAX,
            MaxDeletes::Number(number) => number,
            MaxDeletes::Share => unsuspicious(present + self.0.len()),
        };
        if self.0.len() < limit {
            self.0.push_back(now);
            return Ok(());
        }
        Err(self.0.front().map(|first| WINDOW.saturating_sub(now.duration_since(*first))))
    }

    /// Takes a removal back that wasn't made.
    pub fn take_back(&mut self) {
        self.0.pop_back();
    }
}

/// Lists that aren't believed at once.
#[derive(Debug, Default)]
pub struct Doubt(Option<Instant>);

// === impl Doubt ===

impl Doubt {
    /// Returns whether a list is believed in which `missing` of the `known` links are missing. One
    /// that isn't has to be confirmed by another, [`SECOND_LOOK`] later.
    pub fn believes(&mut self, known: usize, missing: usize, now: Instant) -> bool {
        if missing <= unsuspicious(known) {
            self.0 = None;
            return true;
        }
        let since = *self.0.get_or_insert(now);
        let confirmed = now.duration_since(since) >= SECOND_LOOK;
        if confirmed {
            self.0 = None;
        }
        confirmed
    }

    /// Returns whether a list waits for another one to confirm it.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_or_a_fifth_may_be_removed_in_ten_minutes() {
        let start = Instant::now();
        for (there, allowed) in [(1, 1), (11, 10), (49, 10), (100, 20), (1000, 200)] {
            let mut removals = Removals::default();
            let mut left = there;
            while left > 0 && removals.ask(MaxDeletes::Share, left, start).is_ok() {
                left -= 1;
            }
            assert_eq!(there - left, allowed, "of {there}");
        }
    }

    #[test]
    fn a_removal_is_forgotten_after_ten_minutes() {
        let mut removals = Removals::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(removals.ask(MaxDeletes::Number(2), 5, at(0)), Ok(()));
        assert_eq!(removals.ask(MaxDeletes::Number(2), 4, at(60)), Ok(()));
        assert_eq!(removals.ask(MaxDeletes::Number(2), 3, at(100)), Err(Some(Duration::from_secs(500))));
        assert_eq!(removals.ask(MaxDeletes::Number(2), 3, at(600)), Ok(()));
        assert_eq!(removals.ask(MaxDeletes::Number(2), 2, at(601)), Err(Some(Duration::from_secs(59))));
        removals.take_back();
        assert_eq!(removals.ask(MaxDeletes::Number(2), 2, at(601)), Ok(()));
        assert_eq!(Removals::default().ask(MaxDeletes::Number(0), 2, start), Err(None));
        assert_eq!(removals.ask(MaxDeletes::Unlimited, 2, at(601)), Ok(()));
    }

    #[test]
    fn a_list_that_lacks_too_much_is_believed_when_another_one_agrees_30_seconds_later() {
        let mut doubt = Doubt::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(doubt.believes(100, 20, at(0)));
        assert!(!doubt.believes(100, 21, at(0)));
        assert!(doubt.pending());
        assert!(!doubt.believes(100, 21, at(29)), "too soon");
        assert!(doubt.believes(100, 21, at(30)));
        assert!(!doubt.pending());

        assert!(!doubt.believes(100, 100, at(40)));
        assert!(doubt.believes(100, 0, at(50)), "all is there again");
        assert!(!doubt.believes(100, 100, at(80)), "the doubt before is over");
    }
}
