//! Limits removals, so that a mistake of the API server or of a user doesn't remove everything at once.

use std::collections::{HashMap, HashSet, VecDeque};
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
///
/// For a removal, all removals in the same namespace count, and of those in each other namespace at most half of the
/// limit, rounded up. So a namespace that has used up the limit leaves half of the limit to the other namespaces, and
/// all namespaces together may exceed the limit by half.
#[derive(Debug, Default)]
pub struct DeletionBudget {
    removals: VecDeque<Removal>,
    /// The objects in `removals`.
    counted: HashSet<String>,
    /// The number of `removals` by namespace.
    by_namespace: HashMap<Option<Box<str>>, usize>,
    /// Objects with a removal in flight: they still count as present.
    in_flight: HashSet<String>,
}

#[derive(Debug)]
struct Removal {
    at: Instant,
    object: String,
    /// The namespace of the load balancer; `None` for a removal that counts in every namespace.
    namespace: Option<Box<str>>,
}

impl DeletionBudget {
    /// Records that `waiting` of the `present` external targets wait for removal at the start. If these exceed the
    /// limit, the previous process may just have removed as many: then the budget counts as used up, so that a process
    /// that restarts again and again doesn't remove them all.
    pub fn use_up_if_exceeded(&mut self, max: MaxDeletes, waiting: usize, present: usize, now: Instant) {
        if waiting > limit(max, present) {
            // `MaxDeletes::Share` grows with the number of removed targets, at most to this limit.
            for number in 0..limit(max, 2 * present) {
                // No object has such a name.
                self.count(None, &format!("{number} before the start"), now);
            }
        }
    }

    /// Returns whether this object of a load balancer in `namespace` may be removed now, with `present` external
    /// targets left. Doesn't count a removal.
    ///
    /// # Errors
    /// The time to wait; `None` means forever.
    pub fn allows(
        &mut self,
        max: MaxDeletes,
        namespace: &str,
        object: &str,
        present: usize,
        now: Instant,
    ) -> Result<(), Option<Duration>> {
        self.expire(now);
        if self.counted.contains(object) {
            return Ok(());
        }
        let limit = limit(max, (present + self.removals.len()).saturating_sub(self.in_flight.len()));
        let share = limit.div_ceil(2);
        let is_elsewhere = |of: &Option<Box<str>>| of.as_deref().is_some_and(|of| of != namespace);
        let counted = |(of, number): (&Option<Box<str>>, &usize)| match is_elsewhere(of) {
            true => share.min(*number),
            false => *number,
        };
        let number: usize = self.by_namespace.iter().map(counted).sum();
        if number < limit {
            return Ok(());
        }
        // Of the removals in another namespace only the newest `share` count.
        let mut uncounted: HashMap<_, usize> = HashMap::new();
        let mut counting = self.removals.iter().filter(|Removal { namespace: of, .. }| {
            let number = self.by_namespace.get(of).copied().unwrap_or_default();
            if !is_elsewhere(of) || number <= share {
                return true;
            }
            let passed = uncounted.entry(of).or_default();
            *passed += 1;
            *passed > number - share
        });
        let last = counting.nth(number - limit);
        Err(last.map(|last| WINDOW.saturating_sub(now.duration_since(last.at))))
    }

    /// Like [`DeletionBudget::allows`], and counts the removal, once per object.
    ///
    /// # Errors
    /// The time to wait; `None` means forever.
    pub fn reserve(
        &mut self,
        max: MaxDeletes,
        namespace: &str,
        object: &str,
        present: usize,
        now: Instant,
    ) -> Result<(), Option<Duration>> {
        self.allows(max, namespace, object, present, now)?;
        self.count(Some(namespace), object, now);
        self.in_flight.insert(object.to_owned());
        Ok(())
    }

    /// Records the answer to a removal. `refused` means that the object certainly still exists; after a
    /// missing answer this is unknown.
    pub fn record_result(&mut self, object: &str, refused: bool) {
        self.in_flight.remove(object);
        if refused
            && let Some(place) = self.removals.iter().position(|removal| removal.object == object)
            && let Some(removal) = self.removals.remove(place)
        {
            self.forget(&removal);
        }
    }

    /// Records that an object of a load balancer in `namespace` is gone, perhaps removed by an earlier leader.
    pub fn record_observed_removal(&mut self, namespace: &str, object: &str, now: Instant) {
        self.expire(now);
        self.in_flight.remove(object);
        self.count(Some(namespace), object, now);
    }

    fn count(&mut self, namespace: Option<&str>, object: &str, now: Instant) {
        if self.counted.insert(object.to_owned()) {
            let namespace: Option<Box<str>> = namespace.map(Into::into);
            *self.by_namespace.entry(namespace.clone()).or_default() += 1;
            self.removals.push_back(Removal { at: now, object: object.to_owned(), namespace });
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(expired) =
            self.removals.pop_front_if(|removal| now.duration_since(removal.at) >= WINDOW)
        {
            self.forget(&expired);
        }
    }

    fn forget(&mut self, Removal { object, namespace, .. }: &Removal) {
        self.counted.remove(object);
        if let Some(number) = self.by_namespace.get_mut(namespace) {
            *number -= 1;
            if *number == 0 {
                self.by_namespace.remove(namespace);
            }
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
                        .reserve(MaxDeletes::Share, "a", &removed.to_string(), present, start)
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
            deletion_budget.reserve(
                MaxDeletes::Number(2),
                "a",
                object,
                5,
                start + Duration::from_secs(seconds),
            )
        };
        assert_eq!(ask("a", 0), Ok(()));
        assert_eq!(ask("b", 60), Ok(()));
        assert_eq!(ask("c", 100), Err(Some(Duration::from_secs(500))));
        assert_eq!(ask("a", 100), Ok(()), "a repeated removal counts once");
        assert_eq!(ask("c", 600), Ok(()));
        assert_eq!(ask("d", 601), Err(Some(Duration::from_secs(59))));
        assert_eq!(DeletionBudget::default().reserve(MaxDeletes::Number(0), "a", "a", 2, start), Err(None));
        assert_eq!(deletion_budget.reserve(MaxDeletes::Unlimited, "a", "d", 2, start), Ok(()));
    }

    #[test]
    fn unanswered_removal_counts_but_refused_removal_does_not() {
        let mut deletion_budget = DeletionBudget::default();
        let now = Instant::now();
        let max = MaxDeletes::Number(2);
        assert_eq!(deletion_budget.reserve(max, "a", "a", 5, now), Ok(()));
        deletion_budget.record_result("a", true);
        assert_eq!(deletion_budget.allows(max, "a", "b", 5, now), Ok(()));
        assert_eq!(deletion_budget.reserve(max, "a", "b", 5, now), Ok(()), "allows() alone counts nothing");
        deletion_budget.record_result("b", false);
        deletion_budget.record_observed_removal("a", "b", now);
        deletion_budget.record_observed_removal("a", "theirs", now);
        assert!(deletion_budget.reserve(max, "a", "c", 5, now).is_err());
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
            deletion_budget.use_up_if_exceeded(max, waiting, 30, start);
            assert_eq!(deletion_budget.reserve(max, "a", "a", 30, start).is_ok(), allowed, "{max} {waiting}");
            assert!(deletion_budget.reserve(max, "a", "a", 30, later).is_ok(), "{max} {waiting}");
        }
    }

    /// Returns how many of the `due` removals of each namespace are allowed. The namespaces ask one after another.
    fn removed<const N: usize>(due: [usize; N], max: MaxDeletes) -> [usize; N] {
        let (mut budget, now, mut namespace) = (DeletionBudget::default(), Instant::now(), 0);
        due.map(|number| {
            namespace += 1;
            let mut allows = |object: usize| {
                let (namespace, object) = (namespace.to_string(), format!("{namespace} {object}"));
                budget.reserve(max, &namespace, &object, 30, now).is_ok()
            };
            (0..number).filter(|object| allows(*object)).count()
        })
    }

    #[test]
    fn namespace_leaves_half_of_the_limit_to_other_namespaces() {
        assert_eq!(removed([1000, 1], MaxDeletes::Share), [10, 1]);
        for (limit, second) in [(0, 0), (1, 0), (2, 1), (3, 1), (10, 5), (11, 5)] {
            assert_eq!(removed([100; 3], MaxDeletes::Number(limit)), [limit, second, 0], "{limit}");
        }
        assert_eq!(removed([1; 20], MaxDeletes::Share).iter().sum::<usize>(), 10);
        assert_eq!(removed([3, 4, 5, 6], MaxDeletes::Share), [3, 4, 3, 0]);
    }

    #[test]
    fn wait_ends_when_a_removal_that_counts_expires() {
        let (mut budget, start) = (DeletionBudget::default(), Instant::now());
        let mut ask = |namespace: &str, object: &str, second| {
            let now = start + Duration::from_secs(second);
            budget.reserve(MaxDeletes::Number(4), namespace, object, 30, now)
        };
        for second in 0..4 {
            assert_eq!(ask("a", &second.to_string(), second), Ok(()));
        }
        assert_eq!(ask("b", "4", 4), Ok(()));
        assert_eq!(ask("b", "5", 5), Ok(()));
        assert_eq!(ask("b", "6", 10), Err(Some(Duration::from_secs(592))), "two of a's removals don't count");
        assert_eq!(ask("a", "7", 10), Err(Some(Duration::from_secs(592))), "three of six must expire");
        assert_eq!(ask("b", "6", 602), Ok(()));
    }

    #[test]
    fn removals_before_the_start_count_in_every_namespace() {
        let (mut budget, now) = (DeletionBudget::default(), Instant::now());
        budget.use_up_if_exceeded(MaxDeletes::Number(4), 5, 30, now);
        for namespace in ["a", "b"] {
            let answer = budget.reserve(MaxDeletes::Number(4), namespace, namespace, 30, now);
            assert_eq!(answer, Err(Some(WINDOW)));
        }
    }
}
