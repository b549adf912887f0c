//! How often the status of StableNames is written.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::service_key::ServiceKey;

/// The time between a write of an object and the next one that isn't urgent.
const OBJECT_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of writes within [`WINDOW`] that aren't urgent.
const MAX_WRITES: usize = 20;
/// The maximum number for one namespace while another one waits.
const NAMESPACE_SHARE: usize = MAX_WRITES / 4;
const WINDOW: Duration = Duration::from_secs(1);

/// Limits the writes that aren't urgent.
#[derive(Debug, Default)]
pub struct WriteBudget {
    /// The writes within the last [`OBJECT_INTERVAL`], the oldest one first.
    writes: VecDeque<(Instant, ServiceKey)>,
    /// The last write of each object in `writes`.
    last: HashMap<ServiceKey, Instant>,
    /// The writes within the last [`WINDOW`] that aren't urgent.
    counted: VecDeque<(Instant, Box<str>)>,
    /// The namespaces that wait, and until when they count as waiting. Two different namespaces are enough: at least
    /// one of them isn't the namespace of the next write.
    waiting: VecDeque<(Instant, Box<str>)>,
}

impl WriteBudget {
    /// Takes a write that isn't urgent from the budget.
    ///
    /// # Errors
    /// The time to wait, if the limits allow no write now.
    pub fn take(&mut self, key: &ServiceKey, now: Instant) -> Result<(), Duration> {
        self.remove_old(now);
        if let Some(last) = self.last.get(key) {
            return Err(*last + OBJECT_INTERVAL - now);
        }
        let namespace = key.namespace();
        if self.counted.len() >= MAX_WRITES
            && let Some((first, _)) = self.counted.front()
        {
            let free = *first + WINDOW;
            // The namespace counts as waiting until it has had time to try again.
            self.waiting.retain(|(_, waiting)| **waiting != *namespace);
            self.waiting.push_front((free + WINDOW, namespace.into()));
            self.waiting.truncate(2);
            return Err(free - now);
        }
        let of_namespace = self.counted.iter().rev().filter(|(_, of)| **of == *namespace);
        let is_other_waiting = self.waiting.iter().any(|(_, waiting)| **waiting != *namespace);
        if let Some((at, _)) = of_namespace.take(NAMESPACE_SHARE).nth(NAMESPACE_SHARE - 1)
            && is_other_waiting
        {
            return Err(*at + WINDOW - now);
        }
        self.counted.push_back((now, namespace.into()));
        self.record_urgent(key, now);
        Ok(())
    }

    /// Records an urgent write, which isn't limited. It delays the object's next write that isn't urgent, but doesn't
    /// count for `MAX_WRITES`.
    pub fn record_urgent(&mut self, key: &ServiceKey, now: Instant) {
        self.remove_old(now);
        self.last.insert(key.clone(), now);
        self.writes.push_back((now, key.clone()));
    }

    /// Processes that the last write of an object has failed: it doesn't delay the next one. It still counts for
    /// `MAX_WRITES`.
    pub fn failed(&mut self, key: &ServiceKey) {
        let Some(position) = self.writes.iter().rposition(|(_, written)| written == key) else { return };
        self.writes.remove(position);
        match self.writes.iter().rfind(|(_, written)| written == key) {
            Some((at, _)) => self.last.insert(key.clone(), *at),
            None => self.last.remove(key),
        };
    }

    fn remove_old(&mut self, now: Instant) {
        while let Some((at, key)) = self.writes.pop_front_if(|(at, _)| *at + OBJECT_INTERVAL <= now) {
            // Not if the object was written again.
            if self.last.get(&key) == Some(&at) {
                self.last.remove(&key);
            }
        }
        while self.counted.pop_front_if(|(at, _)| *at + WINDOW <= now).is_some() {}
        self.waiting.retain(|(until, _)| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, &number.to_string())
    }

    /// Takes writes of different objects until one is refused. Returns the number of writes, and the time to wait.
    fn take_all(budget: &mut WriteBudget, namespace: &str, first: usize, now: Instant) -> (usize, Duration) {
        let taken = (first..).map(|number| budget.take(&key(namespace, number), now));
        let mut taken = taken.enumerate().filter_map(|(number, taken)| Some((number, taken.err()?)));
        taken.next().unwrap()
    }

    #[test]
    fn object_is_written_once_in_ten_seconds() {
        let (mut budget, start) = (WriteBudget::default(), Instant::now());
        let web = key("shop", 0);
        for (second, is_urgent, expected) in [
            (0, false, Ok(())),
            (3, false, Err(7)),
            (10, false, Ok(())),
            (12, true, Ok(())),
            (13, true, Ok(())),
            (20, false, Err(3)),
            (23, false, Ok(())),
        ] {
            let now = start + Duration::from_secs(second);
            if is_urgent {
                budget.record_urgent(&web, now);
            } else {
                assert_eq!(budget.take(&web, now), expected.map_err(Duration::from_secs), "{second}");
            }
        }
    }

    #[test]
    fn failed_write_delays_no_retry() {
        let (mut budget, start) = (WriteBudget::default(), Instant::now());
        let web = key("shop", 0);
        budget.failed(&web);
        assert_eq!(budget.take(&web, start), Ok(()));
        budget.failed(&web);
        assert_eq!(budget.take(&web, start + SECOND), Ok(()));
        budget.record_urgent(&web, start + 2 * SECOND);
        budget.failed(&web);
        assert_eq!(budget.take(&web, start + 3 * SECOND), Err(8 * SECOND), "the write before counts");
        let mut budget = WriteBudget::default();
        for _ in 0..2 {
            assert_eq!(budget.take(&web, start), Ok(()));
            budget.failed(&web);
        }
        assert_eq!(take_all(&mut budget, "shop", 0, start), (18, SECOND), "failed writes count");
    }

    #[test]
    fn at_most_twenty_writes_are_made_in_a_second() {
        let (mut budget, start) = (WriteBudget::default(), Instant::now());
        (0..100).for_each(|number| budget.record_urgent(&key("urgent", number), start));
        assert_eq!(take_all(&mut budget, "shop", 0, start), (20, SECOND));
        let later = start + SECOND / 4;
        assert_eq!(take_all(&mut budget, "shop", 20, later), (0, SECOND * 3 / 4));
        assert_eq!(take_all(&mut budget, "shop", 20, start + SECOND), (20, SECOND), "nothing else waits");
    }

    #[test]
    fn namespace_has_a_quarter_while_another_one_waits() {
        let (mut budget, start) = (WriteBudget::default(), Instant::now());
        assert_eq!(take_all(&mut budget, "busy", 0, start).0, 20);
        assert_eq!(budget.take(&key("small", 0), start), Err(SECOND));
        // Both try again at the same time, the busy one first.
        let mut now = start + SECOND;
        assert_eq!(take_all(&mut budget, "busy", 20, now), (5, SECOND));
        assert_eq!(budget.take(&key("small", 0), now), Ok(()));
        now += SECOND / 2;
        assert_eq!(take_all(&mut budget, "busy", 25, now), (0, SECOND / 2));
        now = start + 2 * SECOND;
        assert_eq!(take_all(&mut budget, "busy", 25, now).0, 20, "no other namespace waits any more");
    }

    #[test]
    fn namespace_waits_until_it_has_less_than_a_quarter() {
        let (mut budget, start) = (WriteBudget::default(), Instant::now());
        let at = |millisecond| start + Duration::from_millis(millisecond);
        for (first, number, millisecond) in [(0, 12, 0), (12, 4, 200), (16, 4, 400)] {
            let taken =
                (first..first + number).map(|number| budget.take(&key("busy", number), at(millisecond)));
            assert!(taken.into_iter().all(|taken| taken.is_ok()));
        }
        assert_eq!(budget.take(&key("small", 0), at(400)), Err(Duration::from_millis(600)));
        assert_eq!(budget.take(&key("busy", 20), at(1100)), Err(Duration::from_millis(100)));
        assert_eq!(budget.take(&key("busy", 20), at(1200)), Ok(()));
    }

    #[test]
    fn limits_hold_and_nothing_is_kept_in_random_runs() {
        for seed in 0..50 {
            println!("seed {seed}");
            let (mut random, mut budget) = (StdRng::seed_from_u64(seed), WriteBudget::default());
            let (mut now, mut writes) = (Instant::now(), Vec::<(Instant, ServiceKey, bool)>::new());
            let (namespaces, objects) = (random.random_range(1..6), random.random_range(1..300));
            let pause = random.random_range(2..60);
            let mut waiting: HashMap<usize, Instant> = HashMap::new();
            for _ in 0..3000 {
                now += Duration::from_millis(random.random_range(0..pause));
                let namespace = random.random_range(0..namespaces) * random.random_range(0..2);
                let key = key(&namespace.to_string(), random.random_range(0..objects));
                if random.random_bool(0.1) {
                    budget.record_urgent(&key, now);
                    writes.push((now, key, true));
                    continue;
                }
                let within =
                    |span: Duration| writes.iter().rev().take_while(move |(at, ..)| *at + span > now);
                let is_recent = within(OBJECT_INTERVAL).any(|(_, written, _)| *written == key);
                let counted = within(WINDOW).filter(|(_, _, is_urgent)| !is_urgent);
                let (number, of_namespace) = counted.fold((0, 0), |(all, own), (_, written, _)| {
                    (all + 1, own + usize::from(written.namespace() == key.namespace()))
                });
                let is_other_waiting =
                    waiting.iter().any(|(other, until)| *other != namespace && *until > now);
                let is_full = number >= 20;
                let is_allowed = !(is_recent || is_full || is_other_waiting && of_namespace >= 5);
                match budget.take(&key, now) {
                    Ok(()) => {
                        assert!(is_allowed, "{key}");
                        writes.push((now, key, false));
                    }
                    Err(wait) => {
                        assert!(!is_allowed && wait > Duration::ZERO && wait <= OBJECT_INTERVAL, "{key}");
                        if is_full && !is_recent {
                            waiting.insert(namespace, now + wait + WINDOW);
                        }
                    }
                }
            }
            now += OBJECT_INTERVAL;
            budget.remove_old(now);
            let WriteBudget { writes, last, counted, waiting } = &budget;
            assert!(writes.is_empty() && last.is_empty() && counted.is_empty() && waiting.is_empty());
        }
    }
}
