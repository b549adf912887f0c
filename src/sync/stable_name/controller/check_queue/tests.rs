use std::collections::{BTreeMap, BTreeSet};

use hickory_proto::rr::Name;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::hostname::Hostname;

const MAX_UNDER_WAY: usize = 64;
const MAX_STARTS: usize = 200;
const WINDOW: Duration = Duration::from_secs(1);
/// A namespace's share of `MAX_UNDER_WAY`.
const SHARE: usize = 31;

fn check(host: &str) -> CheckKey {
    let target = Target::Hostname(Hostname::from(&Name::from_ascii(format!("{host}.example.")).unwrap()));
    CheckKey { target, namespace: None, tcp_port: None, timeout: Duration::from_secs(2) }
}

fn waiter(namespace: &str) -> ServiceKey {
    ServiceKey::new(namespace, "web")
}

/// A queue in which each namespace waits for this number of checks, which are named after the namespace.
fn queue(namespaces: &[(&str, usize)]) -> CheckQueue {
    let mut queue = CheckQueue::default();
    for (namespace, number) in namespaces {
        (0..*number).for_each(|i| queue.add(check(&format!("{namespace}-{i}")), waiter(namespace)));
    }
    queue
}

/// Starts all checks that may start, and returns them as text.
fn start(queue: &mut CheckQueue, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.next(now)).map(|key| name(&key)).collect()
}

fn name(key: &CheckKey) -> String {
    key.target.to_string().trim_end_matches(".example").to_owned()
}

fn is_empty(queue: &CheckQueue) -> bool {
    let CheckQueue { checks, waiters, turns, .. } = queue;
    checks.is_empty() && waiters.is_empty() && turns.is_empty()
}

#[test]
fn equal_checks_are_made_once() {
    let (mut queue, now) = (CheckQueue::default(), Instant::now());
    let with_port = CheckKey { tcp_port: Some(443), ..check("a") };
    let longer = CheckKey { timeout: Duration::from_secs(3), ..check("a") };
    let of_x = CheckKey { namespace: Some("x".into()), ..check("a") };
    let equal = ["x", "x", "y"].map(|namespace| (check("a"), namespace));
    for (key, namespace) in [(with_port.clone(), "x"), (longer, "x"), (of_x, "x")].into_iter().chain(equal) {
        queue.add(key, waiter(namespace));
    }
    let started: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
    assert_eq!(started.len(), 4);
    queue.add(check("a"), waiter("z"));
    assert_eq!(queue.next(now), None, "the check is under way");
    assert!(queue.is_waiting(&check("a"), &waiter("z")) && !queue.is_waiting(&with_port, &waiter("z")));
    assert_eq!(queue.done(&check("a")), ["x", "y", "z"].map(waiter));
    assert_eq!(queue.done(&check("a")), []);
    assert!(!queue.is_waiting(&check("a"), &waiter("z")));
    queue.add(check("a"), waiter("z"));
    assert_eq!(queue.done(&check("a")), [], "the check is only queued");
    assert_eq!(queue.next(now), Some(check("a")));
}

#[test]
fn namespaces_take_turns() {
    let mut queue = queue(&[("a", 3), ("b", 1), ("c", 2)]);
    assert_eq!(start(&mut queue, Instant::now()), ["a-0", "b-0", "c-0", "a-1", "c-1", "a-2"]);
}

#[test]
fn two_namespaces_leave_room_for_a_third_one() {
    let (mut queue, now) = (queue(&[("a", 100), ("b", 100)]), Instant::now());
    let first = start(&mut queue, now);
    assert_eq!((first.len(), queue.due(now)), (2 * SHARE, None));
    (0..3).for_each(|number| queue.add(check(&format!("c-{number}")), waiter("c")));
    assert_eq!(start(&mut queue, now), ["c-0", "c-1"]);
    assert_eq!(queue.due(now), None, "64 are under way");
    queue.done(&check("a-7"));
    assert_eq!((queue.due(now), start(&mut queue, now)), (Some(now), vec!["a-31".to_owned()]));
    for (ended, next) in [("b-7", "b-31"), ("a-8", "c-2")] {
        queue.done(&check(ended));
        assert_eq!(start(&mut queue, now), [next]);
    }
}

#[test]
fn at_most_200_checks_start_in_any_second() {
    let (mut queue, start) = (queue(&[("a", 1000)]), Instant::now());
    let mut starts = Vec::new();
    for millisecond in 0..3500 {
        let now = start + Duration::from_millis(millisecond);
        // One check in each millisecond, and every 400 ms all checks that may start.
        let most = if millisecond % 400 == 0 { usize::MAX } else { 1 };
        for _ in 0..most {
            let Some(key) = queue.next(now) else { break };
            queue.done(&key);
            starts.push(now);
        }
    }
    assert!(starts.windows(MAX_STARTS + 1).all(|starts| starts[MAX_STARTS] - starts[0] >= WINDOW));
    assert_eq!(starts.len(), 4 * MAX_STARTS, "all that is allowed");
}

#[test]
fn namespace_has_its_share_of_starts_while_another_waits() {
    let now = Instant::now();
    let mut queue = queue(&[("a", 500)]);
    let mut started = Vec::new();
    while let Some(key) = queue.next(now) {
        queue.done(&key);
        started.push(name(&key));
        if started.len() == 110 {
            (0..40).for_each(|i| queue.add(check(&format!("b-{i}")), waiter("b")));
        }
    }
    assert!(started[110..150].iter().all(|name| name.starts_with('b')), "{started:?}");
    assert!(started[150..].iter().all(|name| name.starts_with('a')), "nothing else waits");
    assert_eq!(started.len(), MAX_STARTS);
}

#[test]
fn queued_check_starts_in_the_turn_of_another_namespace() {
    let mut queue = queue(&[("a", 10_000)]);
    queue.add(check("a-9999"), waiter("b"));
    let now = Instant::now();
    assert_eq!([queue.next(now), queue.next(now)], [Some(check("a-0")), Some(check("a-9999"))]);
    assert_eq!(queue.done(&check("a-9999")), ["a", "b"].map(waiter));
}

#[test]
fn forgotten_waiter_leaves_no_check_of_its_own() {
    let (mut queue, now) = (queue(&[("a", 3)]), Instant::now());
    queue.add(check("a-1"), waiter("b"));
    queue.add(check("a-2"), ServiceKey::new("a", "other"));
    assert_eq!(queue.next(now), Some(check("a-0")));
    queue.forget(&waiter("a"));
    assert_eq!(start(&mut queue, now), ["a-1", "a-2"]);
    assert_eq!(queue.done(&check("a-0")), []);
    assert_eq!(queue.done(&check("a-1")), [waiter("b")]);
    assert_eq!(queue.done(&check("a-2")), [ServiceKey::new("a", "other")]);
    assert!(is_empty(&queue));
    assert_eq!((queue.next(now + WINDOW), queue.due(now + WINDOW)), (None, None));
    assert!(queue.usage.is_unused());
}

/// A queue, and what it should contain.
#[derive(Default)]
struct ReferenceModel {
    queue: CheckQueue,
    waiting: BTreeMap<String, BTreeSet<ServiceKey>>,
    under_way: BTreeMap<String, String>,
    starts: Vec<(Instant, String)>,
}

impl ReferenceModel {
    fn add(&mut self, name: &str, waiter: ServiceKey) {
        self.waiting.entry(name.to_owned()).or_default().insert(waiter.clone());
        self.queue.add(check(name), waiter);
        assert!(self.queue.checks.len() <= self.waiting.len());
    }

    fn forget(&mut self, waiter: &ServiceKey) {
        self.waiting.values_mut().for_each(|waiters| {
            waiters.remove(waiter);
        });
        self.waiting.retain(|name, waiters| !waiters.is_empty() || self.under_way.contains_key(name));
        self.queue.forget(waiter);
    }

    fn done(&mut self, name: &str) {
        let waiters = self.queue.done(&check(name));
        assert!(waiters.into_iter().eq(self.waiting.remove(name).unwrap()), "{name}");
        self.under_way.remove(name).unwrap();
    }

    /// Returns the namespaces with a queued check and with room for it, and the subset that has started less than its
    /// share.
    fn queued(&self, now: Instant) -> (BTreeSet<String>, BTreeSet<String>) {
        let queued = self.waiting.iter().filter(|(name, _)| !self.under_way.contains_key(*name));
        let queued: BTreeSet<&str> =
            queued.flat_map(|(_, waiters)| waiters).map(ServiceKey::namespace).collect();
        let recent = self.starts.iter().rev().take_while(|(at, _)| now < *at + WINDOW);
        let recent: Vec<&str> = recent.map(|(_, namespace)| namespace.as_str()).collect();
        let has_room =
            |namespace: &&str| self.under_way.values().filter(|of| of == namespace).count() < SHARE;
        let queued: BTreeSet<&str> = queued.into_iter().filter(has_room).collect();
        let is_below = |namespace: &&str| recent.iter().filter(|of| *of == namespace).count() < 99;
        let below = queued.iter().copied().filter(is_below).map(str::to_owned).collect();
        (queued.into_iter().map(str::to_owned).collect(), below)
    }

    fn next(&mut self, now: Instant) -> Option<String> {
        let recent = self.starts.iter().rev().take_while(|(at, _)| now < *at + WINDOW).count();
        let (queued, below) = self.queued(now);
        let is_allowed = self.under_way.len() < MAX_UNDER_WAY && recent < MAX_STARTS;
        let due = self.queue.due(now);
        assert_eq!(due == Some(now), is_allowed && !queued.is_empty());
        assert_eq!(due.is_some(), self.under_way.len() < MAX_UNDER_WAY && !queued.is_empty());
        let key = self.queue.next(now);
        assert_eq!(key.is_some(), due == Some(now));
        let name = name(&key?);
        let namespace = self.queue.checks[&check(&name)].started_for.as_deref().unwrap().to_owned();
        let allowed = if below.is_empty() { queued } else { below };
        assert!(allowed.contains(&namespace), "{namespace} isn't one of {allowed:?}");
        assert!(self.waiting[&name].iter().any(|waiter| waiter.namespace() == namespace));
        assert_eq!(self.under_way.insert(name.clone(), namespace.clone()), None, "{name} is under way");
        self.starts.push((now, namespace));
        Some(name)
    }
}

#[test]
fn limits_hold_and_nothing_is_lost_in_random_runs() {
    for seed in 0..12 {
        println!("seed {seed}");
        let (mut random, mut world) = (StdRng::seed_from_u64(seed), ReferenceModel::default());
        let (mut now, namespaces) = (Instant::now(), random.random_range(1..12));
        let (checks, pauses) = (random.random_range(1..400), *[2, 20, 500].choose(&mut random).unwrap());
        for _ in 0..1500 {
            now += Duration::from_millis(random.random_range(0..pauses));
            // The first namespace has most of the waiters.
            let namespace = random.random_range(0..namespaces) * random.random_range(0..2);
            let waiter = ServiceKey::new(&format!("n{namespace}"), &random.random_range(0..4).to_string());
            match random.random_range(0..20) {
                0..11 => (0..5).for_each(|_| {
                    world.add(&random.random_range(0..checks).to_string(), waiter.clone());
                }),
                11 => world.forget(&waiter),
                12..16 => {
                    let number = random.random_range(0..=world.under_way.len());
                    let ended: Vec<_> = world.under_way.keys().take(number).cloned().collect();
                    ended.iter().for_each(|name| world.done(name));
                }
                _ => {
                    let most = random.random_range(1..80);
                    std::iter::from_fn(|| world.next(now)).take(most).for_each(drop);
                }
            }
        }
        // At the end all checks are made.
        while !world.waiting.is_empty() {
            now = world.queue.due(now).unwrap_or(now);
            while world.next(now).is_some() {}
            let ended: Vec<_> = world.under_way.keys().cloned().collect();
            ended.iter().for_each(|name| world.done(name));
        }
        assert!(is_empty(&world.queue));
    }
}

#[test]
fn every_namespace_is_served_within_a_round() {
    let names: Vec<String> = (0..300).map(|i| format!("n{i}")).collect();
    let counts: Vec<_> = names.iter().map(|name| (name.as_str(), 3)).collect();
    let mut queue = queue(&[&[("busy", 10_000)], &*counts].concat());
    let (mut now, mut started) = (Instant::now(), Vec::new());
    while started.len() < 301 {
        now = queue.due(now).unwrap();
        let key = queue.next(now).unwrap();
        queue.done(&key);
        started.push(name(&key).split_once('-').unwrap().0.to_owned());
    }
    assert_eq!(started.into_iter().collect::<BTreeSet<_>>().len(), 301);
}

#[test]
fn checks_that_are_not_wanted_any_more_leave_the_queue() {
    let (mut queue, now) = (queue(&[("shop", 3)]), Instant::now());
    queue.add(check("shop-1"), waiter("other"));
    assert_eq!(queue.next(now), Some(check("shop-0")));
    queue.retain(&waiter("shop"), &[check("shop-2")]);
    assert_eq!(queue.done(&check("shop-0")), [waiter("shop")], "its check is under way");
    let mut rest = start(&mut queue, now);
    rest.sort();
    assert_eq!(rest, ["shop-1", "shop-2"]);
    assert_eq!(queue.done(&check("shop-1")), [waiter("other")]);
    assert_eq!(queue.done(&check("shop-2")), [waiter("shop")]);
    assert!(is_empty(&queue));
}
