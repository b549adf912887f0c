use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

fn queue<A: PartialEq + Clone>(at_once: usize) -> WorkQueue<A> {
    WorkQueue::new(Limits::at_once(at_once), Duration::ZERO)
}

fn key() -> ServiceKey {
    ServiceKey::new("default", "web")
}

#[tokio::test]
async fn repeated_writes_for_an_unchanged_key_are_throttled() {
    let (mut work_queue, key) = (queue(4), key());
    for _ in 0..MAX_UNTHROTTLED_WRITES {
        assert_eq!(work_queue.record_write(&key, &"same"), None);
        assert_eq!(work_queue.throttled_for(&key, &"same"), None);
    }
    let pause = work_queue.record_write(&key, &"same").unwrap();
    assert!(pause >= REPAIR_BACKOFF.0 && pause <= REPAIR_BACKOFF.1);
    assert!(work_queue.throttled_for(&key, &"same").unwrap() <= pause);
    assert_eq!(work_queue.throttled_for(&key, &"new"), None, "a new target is written at once");
    assert_eq!(work_queue.record_write(&key, &"new"), None);
    assert_eq!(work_queue.throttled_for(&key, &"same"), None);
}

#[tokio::test(start_paused = true)]
async fn pauses_after_failures_grow_to_their_bound_until_resume() {
    let (mut work_queue, key) = (queue::<()>(4), key());
    let pauses: Vec<Duration> = (0..12).map(|_| work_queue.add_rate_limited(&key, None)).collect();
    assert!(pauses[0] < Duration::from_secs(2));
    assert!(pauses.iter().all(|pause| *pause <= RETRY_BACKOFF.1));
    assert_eq!(pauses[11], RETRY_BACKOFF.1);
    assert!(work_queue.add_rate_limited(&key, Some(Duration::from_secs(50))) >= Duration::from_secs(50));
    assert!(work_queue.is_backing_off(&key));
    work_queue.resume();
    assert!(!work_queue.is_backing_off(&key));
    assert_eq!(work_queue.next(), Some(key));
}

#[tokio::test(start_paused = true)]
async fn many_failing_links_are_retried_at_a_bounded_rate() {
    for (links, expected) in [(500, 9_000..=15_000), (2000, 36_000..=50_000)] {
        let mut work_queue = queue::<()>(4);
        let keys: Vec<ServiceKey> = (0..links).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        for key in &keys {
            let pause = work_queue.add_refused(key, None, "a policy").0;
            assert!(pause < Duration::from_secs(2), "other links don't delay the first retry: {pause:?}");
        }
        let start = Instant::now();
        let mut tries = 0;
        while start.elapsed() < Duration::from_secs(600) {
            work_queue.due().await;
            let key = work_queue.next().unwrap();
            assert!(work_queue.add_rate_limited(&key, None) <= RETRY_PAUSE_PER_FAILING_KEY.1);
            tries += 1;
        }
        assert!(expected.contains(&tries), "{tries} of {links} links in 600 s");
        let other = ServiceKey::new("another", "web");
        let pauses = [(); 2].map(|()| work_queue.add_rate_limited(&other, None));
        assert!(pauses[1] < Duration::from_secs(4), "keys of another namespace fail: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn success_releases_two_keys_with_the_same_limit() {
    let mut work_queue = queue::<()>(4);
    let keys: Vec<ServiceKey> = (0..5).map(|i| ServiceKey::new("default", &i.to_string())).collect();
    for key in &keys {
        work_queue.add_rate_limited(key, None);
    }
    for key in &keys[..4] {
        work_queue.mark_limited(key);
    }
    work_queue.succeeded_and_release(&keys[4]);
    assert_eq!(work_queue.next(), None, "its own write was refused for another reason");
    work_queue.succeeded_and_release(&keys[0]);
    assert_eq!([work_queue.next(), work_queue.next()], [Some(keys[1].clone()), Some(keys[2].clone())]);
    assert!(!work_queue.is_backing_off(&keys[1]) && work_queue.is_backing_off(&keys[3]));
    work_queue.succeeded_and_release(&keys[3]);
    assert_eq!(work_queue.next(), None, "no key is limited any more");
}

#[tokio::test]
async fn repeated_reason_is_not_new_until_a_write_succeeds() {
    let (mut work_queue, key) = (queue::<()>(4), key());
    let fails = |work_queue: &mut WorkQueue<()>, reason| work_queue.add_refused(&key, None, reason).1;
    assert!(fails(&mut work_queue, "a") && !fails(&mut work_queue, "a"));
    assert!(fails(&mut work_queue, "b") && !fails(&mut work_queue, "b"));
    work_queue.succeeded(&ServiceKey::new("default", "web"));
    assert!(fails(&mut work_queue, "b"));
}

#[tokio::test(start_paused = true)]
async fn resume_keeps_the_pause_of_an_individually_refused_key() {
    let (mut work_queue, refused) = (queue::<()>(4), key());
    let keys: Vec<ServiceKey> = (0..3).map(|i| ServiceKey::new("default", &i.to_string())).collect();
    work_queue.add_refused(&refused, None, "a policy");
    for key in &keys {
        work_queue.add_rate_limited(key, None);
    }
    work_queue.resume();
    let resumed: Vec<ServiceKey> = std::iter::from_fn(|| work_queue.next()).collect();
    assert_eq!(resumed.into_iter().collect::<BTreeSet<_>>(), keys.into_iter().collect());
    assert!(work_queue.is_backing_off(&refused) && work_queue.has_failed(&refused));
    work_queue.add_rate_limited(&refused, None);
    work_queue.resume();
    assert_eq!(work_queue.next(), Some(refused.clone()), "other keys may share the last reason");
    work_queue.add_refused(&refused, None, "a policy");
    work_queue.end_pauses();
    assert!(!work_queue.is_backing_off(&refused) && !work_queue.has_failed(&refused));
}

#[tokio::test(start_paused = true)]
async fn key_is_due_when_its_timer_ends() {
    let (mut work_queue, key) = (queue::<()>(4), key());
    work_queue.add_after(key.clone(), Duration::from_secs(600));
    let before = Instant::now();
    work_queue.due().await;
    assert_eq!(work_queue.next(), Some(key));
    assert!(before.elapsed() >= Duration::from_secs(600));
}

#[test]
fn key_is_taken_once_and_not_while_its_write_is_under_way() {
    let (mut work_queue, key) = (queue::<()>(2), key());
    work_queue.add(&key);
    work_queue.add(&key);
    assert_eq!(work_queue.next(), Some(key.clone()));
    assert_eq!(work_queue.next(), None);
    work_queue.begin(&key, false);
    work_queue.add(&key);
    assert_eq!(work_queue.next(), None);
    assert_eq!(work_queue.done(&key, false), Meanwhile::default(), "nothing has changed");
    work_queue.begin(&key, false);
    work_queue.changed(&key);
    assert!(work_queue.done(&key, false).is_superseded);
    work_queue.add(&key);
    assert_eq!(work_queue.next(), Some(key));
}

#[tokio::test(start_paused = true)]
async fn retry_with_a_new_target_counts_as_new() {
    let mut work_queue = queue::<()>(4);
    let [first, second, new] = ["1", "2", "3"].map(|name| ServiceKey::new("default", name));
    for key in [&first, &second] {
        work_queue.add_rate_limited(key, None);
        work_queue.due().await;
    }
    work_queue.add(&new);
    work_queue.changed(&second);
    let taken: Vec<ServiceKey> = std::iter::from_fn(|| work_queue.next()).collect();
    assert_eq!(taken, [second, new, first], "a changed key keeps its place, retries come last");
}

#[tokio::test(start_paused = true)]
async fn wait_after_a_conflict_is_no_failure() {
    let (mut work_queue, key) = (queue::<()>(4), key());
    work_queue.begin(&key, false);
    work_queue.done(&key, true);
    work_queue.conflict(&key, "7");
    let start = Instant::now();
    assert!(!work_queue.may_start(&key, &(), "7", true));
    assert!(!work_queue.is_backing_off(&key) && !work_queue.has_failed(&key));
    assert!(work_queue.may_start(&key, &(), "8", true), "the watch has delivered another version");
    work_queue.conflict(&key, "8");
    assert!(!work_queue.may_start(&key, &(), "8", false));
    work_queue.due().await;
    while !work_queue.may_start(&key, &(), "8", false) {
        work_queue.due().await;
    }
    assert!(start.elapsed() >= CONFLICT_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn key_is_written_once_in_its_interval_unless_urgent() {
    let second = Duration::from_secs(1);
    let mut work_queue = WorkQueue::<()>::new(Limits::at_once(4), 10 * second);
    let (key, start) = (key(), Instant::now());
    for (at, is_urgent, has_failed, expected) in [
        (0, false, false, true),
        (3, false, false, false),
        (10, false, true, true),
        (11, false, false, true),
        (12, true, false, true),
        (13, true, true, true),
        (20, false, false, false),
        (22, false, false, true),
    ] {
        tokio::time::sleep_until(start + at * second).await;
        let is_admitted = work_queue.may_start(&key, &(), "", is_urgent);
        assert_eq!(is_admitted, expected, "{at}");
        if is_admitted {
            work_queue.begin(&key, is_urgent);
            work_queue.done(&key, has_failed);
        }
    }
    work_queue.forget(&key);
    work_queue.add_after(key, 2 * QUIET_PERIOD);
    work_queue.due().await;
    assert!(work_queue.written.is_empty() && work_queue.usage.is_unused());
}

#[tokio::test(start_paused = true)]
async fn urgent_write_precedes_writes_that_wait_for_a_start() {
    let limits = Limits { at_once: 16, starts: Some((2, Duration::from_secs(1))) };
    let mut work_queue = WorkQueue::<()>::new(limits, Duration::ZERO);
    for number in 0..20 {
        work_queue.add(&ServiceKey::new(&number.to_string(), "web"));
    }
    let begin_all = |work_queue: &mut WorkQueue<()>, urgent: &str| {
        while let Some(key) = work_queue.next() {
            if work_queue.may_start(&key, &(), "", key.namespace() == urgent) {
                work_queue.begin(&key, key.namespace() == urgent);
            }
        }
    };
    begin_all(&mut work_queue, "");
    assert_eq!(work_queue.in_flight().len(), 2);
    // A key that waits becomes urgent, and its turn comes at the same time.
    let urgent = ServiceKey::new("2", "web");
    work_queue.add(&urgent);
    tokio::time::advance(Duration::from_secs(1)).await;
    begin_all(&mut work_queue, "2");
    assert_eq!(work_queue.in_flight().len(), 5);
    assert!(work_queue.in_flight().contains(&urgent) && work_queue.waiting.numbers.len() == 15);
    for key in work_queue.in_flight() {
        work_queue.done(&key, false);
    }
    while !work_queue.waiting.numbers.is_empty() {
        work_queue.due().await;
        begin_all(&mut work_queue, "");
    }
    for key in work_queue.in_flight() {
        work_queue.done(&key, false);
    }
    work_queue.usage.forget_starts(Instant::now() + Duration::from_secs(2));
    assert!(work_queue.usage.is_unused() && work_queue.retry_usage.is_unused());
}

/// How the writes of a namespace end in [`no_namespace_waits_for_another_one`].
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// After a time-out, failed.
    Hang,
    /// At once, failed.
    Fail,
    /// At once, written; each key has news again.
    Flood,
}

/// The time-out of a request.
const HANG: Duration = Duration::from_secs(10);
const QUICK: Duration = Duration::from_millis(20);
const WINDOW: Duration = Duration::from_secs(1);

/// The longest wait of a key for its write: each busy namespace has a turn at each slot that it may hold until a
/// request times out. If at most two namespaces hang, there are slots without a hanging write. With a limit of starts a
/// key has two turns, one for its decision and one for its write.
fn bound(limits: Limits, habits: &[Habit]) -> Duration {
    let hanging = habits.iter().filter(|habit| matches!(habit, Habit::Hang)).count();
    let rounds = |of: usize, slots: usize| u32::try_from(of.div_ceil(slots) + 1).unwrap();
    let turns = rounds(habits.len(), 1) * QUICK;
    let starts = limits.starts.map_or(Duration::ZERO, |(max, within)| rounds(habits.len(), max) * within);
    let hangs = if hanging <= 2 { Duration::ZERO } else { rounds(hanging, limits.at_once) * HANG };
    let number_of_turns = if limits.starts.is_some() { 2 } else { 1 };
    number_of_turns * (turns + starts + hangs) + Duration::from_millis(10)
}

async fn run_with_busy_namespaces(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let limits = Limits {
        at_once: random.random_range(3..=16),
        starts: random.random_bool(0.3).then_some((random.random_range(4..20), WINDOW)),
    };
    let habits: Vec<Habit> = (0..random.random_range(1..24))
        .map(|_| match random.random_range(0..3) {
            0 => Habit::Hang,
            1 => Habit::Fail,
            _ => Habit::Flood,
        })
        .collect();
    let mut work_queue = WorkQueue::<()>::new(limits, Duration::ZERO);
    for number in 0..habits.len() {
        let keys = 1 << random.random_range(0..7);
        (0..keys).for_each(|key| work_queue.add(&ServiceKey::new(&number.to_string(), &key.to_string())));
    }
    // A namespace with one key, which has news now and then.
    let (quiet, end) = (ServiceKey::new("quiet", "web"), Instant::now() + Duration::from_secs(60));
    let mut news_at = Instant::now() + Duration::from_millis(random.random_range(0..9000));
    let mut waits_since = None;
    let mut ends: BTreeMap<(Instant, ServiceKey), bool> = BTreeMap::new();
    while Instant::now() < end {
        while let Some(key) = work_queue.next() {
            if !work_queue.may_start(&key, &(), "", false) {
                continue;
            }
            work_queue.begin(&key, false);
            let habit = key.namespace().parse().ok().map(|number: usize| habits[number]);
            let (takes, has_failed) = match habit {
                Some(Habit::Hang) => (HANG, true),
                Some(Habit::Fail) => (QUICK, true),
                Some(Habit::Flood) | None => (QUICK, false),
            };
            if key == quiet {
                let waited = waits_since.take().map_or(Duration::ZERO, |since: Instant| since.elapsed());
                let bound = bound(limits, &habits);
                assert!(waited <= bound, "waited {waited:?}, more than {bound:?}: {limits:?} {habits:?}");
            }
            ends.insert((Instant::now() + takes, key), has_failed);
        }
        let next_end = ends.first_key_value().map(|((at, _), _)| *at);
        tokio::select! {
            biased;
            () = work_queue.due() => {}
            () = tokio::time::sleep_until(news_at), if waits_since.is_none() => {
                waits_since = Some(Instant::now());
                news_at = Instant::now() + Duration::from_millis(random.random_range(100..9000));
                work_queue.add(&quiet);
            }
            () = sleep_until_opt(next_end) => {
                let Some(((_, key), has_failed)) = ends.pop_first() else { continue };
                work_queue.done(&key, has_failed);
                if has_failed {
                    work_queue.add_rate_limited(&key, None);
                } else if key != quiet || waits_since.is_some() {
                    work_queue.succeeded(&key);
                    work_queue.add(&key);
                }
            }
            () = tokio::time::sleep_until(end) => {}
        }
    }
    let waited = waits_since.map_or(Duration::ZERO, |since| since.elapsed());
    assert!(waited <= bound(limits, &habits), "still waits: {waited:?} {limits:?} {habits:?}");
}

#[tokio::test(start_paused = true)]
async fn no_namespace_waits_for_another_one() {
    let seeds = std::env::var("LB_LINKER_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seeds.map_or(0..20, |seed: u64| seed..seed + 1) {
        println!("seed {seed} (LB_LINKER_SEED={seed} replays it)");
        run_with_busy_namespaces(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn throttle_is_forgotten_after_the_quiet_period() {
    let (mut work_queue, key) = (queue(4), key());
    for _ in 0..=MAX_UNTHROTTLED_WRITES {
        work_queue.record_write(&key, &"same");
    }
    work_queue.add_after(key.clone(), QUIET_PERIOD - Duration::from_secs(1));
    work_queue.due().await;
    assert_eq!(work_queue.known().count(), 1, "not forgotten yet");
    work_queue.add_after(key.clone(), QUIET_PERIOD);
    work_queue.due().await;
    assert_eq!(work_queue.known().count(), 0);
    assert_eq!(work_queue.record_write(&key, &"same"), None);
}
