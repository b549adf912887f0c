//! Random histories: edits, offers, failing targets and upstreams, and leaders that end. After each decision a model
//! checks that the announced target may be announced, that a rule allows each move, and that a second decision changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::checks::CheckOutcome;
use super::decide::FailoverDecision;
use super::spec::{Failback, Offer, RefusalReason};
use super::status::{AnnouncedTarget, FailoverStatus, MoveReason};
use super::test_support::{Harness, at, hostname, is_permitted, offer, refusal, target, upstream};
use super::times::{elapsed, later};
use crate::model::link::Target;

const NAMES: [&str; 4] = ["seoul", "busan", "fixed", "jeju"];
const TARGETS: [&str; 8] = [
    "a.example",
    "b.example",
    "c.example",
    "d.example",
    "e.example",
    "f.example",
    "192.0.2.1",
    "192.0.2.1,192.0.2.2",
];

/// How a target works at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Works,
    Fails,
    /// The first upstream resolves the hostname, the second one sends SERVFAIL.
    HalfServfail,
    /// No upstream answers.
    Silence,
}

struct World {
    random: StdRng,
    harness: Harness,
    offers: BTreeMap<&'static str, Offer>,
    health: BTreeMap<&'static str, Health>,
    /// Since when no upstream answers.
    silent: Option<Timestamp>,
    /// The results of each target that this leader has seen.
    seen: BTreeMap<String, Vec<(Timestamp, Health)>>,
    next_uid: u32,
    /// The targets that were withdrawn from a source, with the uid of the Service.
    withdrawn: Vec<(Target, String)>,
    moves: Vec<(Timestamp, MoveReason)>,
    context: String,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let number = random.random_range(1..=NAMES.len());
        let mut harness = Harness::new(&[]);
        harness.spec.sources = NAMES[..number].iter().map(|name| (*name).to_owned()).collect();
        harness.spec.max_wait = Duration::from_secs(random.random_range(0..=300));
        harness.spec.check.failure_threshold = random.random_range(1..=4);
        harness.spec.check.success_threshold = random.random_range(1..=4);
        harness.spec.check.period = Duration::from_secs(random.random_range(5..=60));
        harness.spec.failback = failback(&mut random);
        let mut world = Self {
            random,
            harness,
            offers: BTreeMap::new(),
            health: TARGETS.iter().map(|target| (*target, Health::Works)).collect(),
            silent: None,
            seen: BTreeMap::new(),
            next_uid: 0,
            withdrawn: Vec::new(),
            moves: Vec::new(),
            context: format!("seed {seed}"),
        };
        for name in NAMES {
            world.recreate(name);
        }
        world
    }

    fn recreate(&mut self, name: &'static str) {
        self.next_uid += 1;
        let target =
            if self.random.random_bool(0.3) { "" } else { TARGETS.choose(&mut self.random).unwrap() };
        self.offers.insert(name, offer(&format!("uid-{}", self.next_uid), target));
    }

    fn chosen(&mut self) -> &'static str {
        NAMES.choose(&mut self.random).unwrap()
    }

    /// Makes a random change: of an offer, a target, the upstreams, the policy, the specification or the leader.
    fn disturb(&mut self) {
        let (name, of) = (self.chosen(), *TARGETS.choose(&mut self.random).unwrap());
        let offer = self.offers.get_mut(name).unwrap();
        match self.random.random_range(0..22) {
            0..4 => offer.target = Some(target(of)),
            4 => offer.target = None,
            5 => self.recreate(name),
            6 => offer.refusal = refusal(RefusalReason::RefNotPermitted),
            7 => offer.refusal = refusal(RefusalReason::CheckRefused),
            8..10 => offer.refusal = None,
            10..14 => {
                let all = [Health::Works, Health::Works, Health::Fails, Health::HalfServfail];
                let health = *all.choose(&mut self.random).unwrap();
                self.health.insert(of, health);
            }
            14 => {
                let now = self.harness.now;
                self.silent = if self.silent.is_some() { None } else { Some(now) };
            }
            15 => self.harness.denied = vec![target(of)],
            16 => self.harness.denied.clear(),
            17 => {
                let mut names = NAMES.map(str::to_owned).to_vec();
                names.shuffle(&mut self.random);
                names.truncate(self.random.random_range(1..=NAMES.len()));
                self.harness.edit(|spec| spec.sources = names);
            }
            18 => {
                let pin = self.random.random_bool(0.3).then(|| name.to_owned());
                self.harness.edit(|spec| spec.pin = pin);
            }
            19 => {
                let failback = failback(&mut self.random);
                self.harness.edit(|spec| spec.failback = failback);
            }
            _ => self.restart(),
        }
    }

    /// Another leader begins with the status. By itself this moves nothing.
    fn restart(&mut self) {
        self.decide();
        self.harness.restart();
        self.seen.clear();
        let before = self.harness.status.target.clone();
        let decision = self.harness.decide();
        assert_eq!((decision.moved, &decision.status.target), (None, &before), "{}", self.context);
    }

    fn check(&mut self, target: &Target) {
        let name = target.to_string();
        let health = self.health.iter().find(|(text, _)| self::target(text) == *target).map(|(_, h)| *h);
        let health = health.unwrap_or(Health::Fails);
        let no_answer =
            |number| CheckOutcome::NoAnswer { upstream: upstream(number), message: "none".to_owned() };
        let health = if self.silent.is_some() { Health::Silence } else { health };
        let outcomes = match health {
            Health::Silence => vec![no_answer(1), no_answer(2)],
            Health::Works => vec![CheckOutcome::Passed, CheckOutcome::Passed],
            Health::Fails => vec![CheckOutcome::Failed("NXDOMAIN".to_owned()), CheckOutcome::Passed],
            Health::HalfServfail => vec![CheckOutcome::Passed, no_answer(2)],
        };
        self.seen.entry(name.clone()).or_default().push((self.harness.now, health));
        self.harness.record(&name, &outcomes);
        if self.silent.is_none() {
            let after = later(self.harness.now, Duration::from_millis(1));
            self.harness.upstreams.record(upstream(2), &hostname("other.example"), after);
        }
    }

    fn decide(&mut self) -> FailoverDecision {
        let sources = self.harness.spec.sources.clone();
        self.harness.offers = sources.iter().map(|name| self.offers[name.as_str()].clone()).collect();
        let permitted = self.offers.values().filter(|offer| is_permitted(offer));
        self.harness.other_living_uids = permitted.map(|offer| offer.uid.clone()).collect();
        let before = self.harness.status.clone();
        let decision = self.harness.decide();
        self.check_history(&before, &decision);
        self.check_target(&before, &decision);
        let checked: BTreeSet<String> =
            decision.checks.iter().map(|check| check.target.to_string()).collect();
        self.seen.retain(|target, _| checked.contains(target));
        decision
    }

    fn check_history(&self, before: &FailoverStatus, decision: &FailoverDecision) {
        let (status, context) = (&decision.status, &self.context);
        assert!(status.history.len() <= 10, "{context}");
        assert!(status.history.iter().all(|former| former.since <= former.until), "{context}");
        assert!(status.history.is_sorted_by(|newer, older| newer.since >= older.until), "{context}");
        if let (Some(last), Some(target)) = (status.history.first(), &status.target) {
            assert!(last.until <= target.since, "{context}");
        }
        let target = |status: &FailoverStatus| status.target.as_ref().map(|target| target.target.clone());
        if target(before) != target(status) {
            let moved = decision.moved.unwrap_or_else(|| panic!("{context}: moved without a reason"));
            let ended = before.target.as_ref().map(|target| target.target.to_string());
            if let Some(ended) = ended {
                let former = &status.history[0];
                assert_eq!((&former.display, former.reason.as_str()), (&ended, moved.as_str()), "{context}");
            }
        }
    }

    /// Checks the announced target, and the rule that allows its change.
    fn check_target(&mut self, before: &FailoverStatus, decision: &FailoverDecision) {
        let context = self.context.clone();
        let after = decision.status.target.clone();
        if let Some(after) = &after {
            assert!(!self.harness.denied.contains(&after.target), "{context}: the target is denied");
            assert!(!self.must_withdraw(after), "{context}: its Service is gone, or doesn't allow it");
            let known = (after.target.clone(), after.uid.to_string());
            assert!(decision.moved.is_some() || !self.withdrawn.contains(&known), "{context}");
        }
        match (&before.target, decision.moved) {
            (Some(before), Some(MoveReason::Withdrawn)) => {
                assert!(self.must_withdraw(before), "{context}: nothing withdraws it");
                self.withdrawn.push((before.target.clone(), before.uid.to_string()));
            }
            (Some(before), Some(reason)) => {
                let after = after.as_ref().unwrap_or_else(|| panic!("{context}: no target"));
                assert!(self.may_move(before, after, reason), "{context}: {reason:?}\n{before:?}\n{after:?}");
            }
            (Some(before), None) => {
                assert!(!self.must_withdraw(before), "{context}: it must be withdrawn");
                assert_eq!(Some(&before.target), after.as_ref().map(|after| &after.target), "{context}");
            }
            (None, Some(reason)) => {
                let after = after.as_ref().unwrap_or_else(|| panic!("{context}: no target"));
                let is_pin = self.harness.spec.pin.as_ref() == Some(&after.source);
                let is_allowed = match reason {
                    MoveReason::Announced => self.passes(&after.target),
                    MoveReason::Pinned => is_pin,
                    reason => reason == MoveReason::CutoverTimedOut && !self.passes(&after.target),
                };
                assert!(is_allowed, "{context}: {reason:?} {after:?}");
            }
            (None, None) => assert!(after.is_none(), "{context}"),
        }
        if let Some(reason) = decision.moved {
            self.moves.push((self.harness.now, reason));
            if let Some(after) = &after {
                self.withdrawn.retain(|(target, _)| *target != after.target);
            }
        }
    }

    fn must_withdraw(&self, before: &AnnouncedTarget) -> bool {
        let mut offers = self.offers.values().filter(|offer| is_permitted(offer));
        self.harness.denied.contains(&before.target) || !offers.any(|offer| offer.uid == before.uid)
    }

    fn may_move(&self, before: &AnnouncedTarget, after: &AnnouncedTarget, reason: MoveReason) -> bool {
        let spec = &self.harness.spec;
        let position = |name: &str| spec.sources.iter().position(|source| source == name);
        let (from, to) = (position(&before.source), position(&after.source));
        let is_listed = from.is_some();
        let pinned = spec.pin.as_deref();
        match reason {
            MoveReason::Pinned => pinned == Some(after.source.as_str()) && before.source != after.source,
            MoveReason::TargetChanged => from == to && self.passes(&after.target),
            MoveReason::CutoverTimedOut => from == to && self.has_failed(&before.target),
            MoveReason::FailedOver => {
                pinned.is_none()
                    && is_listed
                    && self.has_failed(&before.target)
                    && self.passes(&after.target)
                    && self.is_calm(reason)
            }
            MoveReason::FailedBack => {
                pinned.is_none()
                    && to < from
                    && self.was_healthy_long_enough(&after.target)
                    && self.passes(&after.target)
                    && self.is_calm(reason)
            }
            MoveReason::SourcesEdited => {
                pinned.is_none() && (!is_listed || to < from) && self.passes(&after.target)
            }
            MoveReason::Announced | MoveReason::Withdrawn => false,
        }
    }

    /// Returns whether this leader has seen no `failureThreshold` failures of a target in a row within the last
    /// `failback.afterSeconds`.
    fn was_healthy_long_enough(&self, target: &Target) -> bool {
        let Failback::Automatic { after } = self.harness.spec.failback else { return false };
        let results = self.seen.get(&target.to_string()).map_or(&[][..], |seen| seen);
        let recent = results
            .iter()
            .filter(|(at, health)| *health != Health::Silence && elapsed(*at, self.harness.now) < after);
        let worked: Vec<bool> = recent.map(|(_, health)| *health == Health::Works).collect();
        let threshold = self.harness.spec.check.failure_threshold as usize;
        !worked.windows(threshold).any(|row| row.iter().all(|worked| !worked))
    }

    /// Returns whether the former automatic moves are long enough ago for another one.
    fn is_calm(&self, reason: MoveReason) -> bool {
        let (over, back) = (MoveReason::FailedOver, MoveReason::FailedBack);
        let mut moves = self.moves.iter().rev().filter(|(_, reason)| [over, back].contains(reason));
        let is_older = |former: Option<&(Timestamp, MoveReason)>, seconds| {
            former.is_none_or(|(at, _)| elapsed(*at, self.harness.now) >= Duration::from_secs(seconds))
        };
        let (last, second_last) = (moves.next(), moves.next());
        let is_second_failure = reason == over && last.is_some_and(|(_, last)| *last == over);
        (is_second_failure || is_older(last, 60)) && is_older(second_last, 120)
    }

    fn passes(&self, target: &Target) -> bool {
        let settings = &self.harness.spec.check;
        let results = self.seen.get(&target.to_string()).map_or(&[][..], |seen| seen);
        let last = results.iter().rfind(|(_, health)| *health != Health::Silence);
        matches!(target, Target::Addresses(_))
            || last.is_some_and(|(at, health)| {
                *health == Health::Works && elapsed(*at, self.harness.now) <= settings.max_age()
            })
    }

    /// Returns whether at least the last `failureThreshold` results are failures. Of each silence of the upstreams only
    /// one result counts.
    fn has_failed(&self, target: &Target) -> bool {
        let mut results = self.seen.get(&target.to_string()).cloned().unwrap_or_default();
        results.dedup_by_key(|(at, health)| if *health == Health::Silence { Timestamp::MIN } else { *at });
        let failures = results.iter().rev().take_while(|(_, health)| *health != Health::Works);
        failures.count() >= self.harness.spec.check.failure_threshold as usize
    }

    /// Lets time pass until `until`, with each check and each decision when it is due. A decision at a random time
    /// before the next one is due must change nothing.
    fn run(&mut self, until: Timestamp) {
        loop {
            let decision = self.decide();
            let due = |world: &Self| {
                let (harness, mut next) = (&world.harness, decision.again);
                let mut checks = Vec::new();
                for check in &decision.checks {
                    let (settings, upstreams) = (&harness.spec.check, &harness.upstreams);
                    let at = harness.checks.next_check(check, settings, upstreams, harness.now);
                    next = Some(next.map_or(at, |next| next.min(at)));
                    checks.push((at, check.target.clone()));
                }
                (next, checks)
            };
            let (next, checks) = due(self);
            let next = next.map_or(until, |next| next.max(later(self.harness.now, Duration::from_millis(1))));
            let next = next.min(until);
            self.decide_between(&decision, next);
            self.harness.now = next;
            for (_, target) in checks.into_iter().filter(|(at, _)| *at <= next) {
                self.check(&target);
            }
            if next >= until {
                self.decide();
                return;
            }
        }
    }

    fn decide_between(&mut self, decision: &FailoverDecision, next: Timestamp) {
        let (now, context) = (self.harness.now, &self.context);
        let gap = u64::try_from(next.duration_since(now).as_millis()).unwrap();
        if gap > 1 {
            self.harness.now = later(now, Duration::from_millis(self.random.random_range(0..gap)));
            assert_eq!(
                self.harness.peek().status,
                decision.status,
                "{context}: the decision changes before the next one is due"
            );
            self.harness.now = now;
        }
    }

    /// Returns the most preferred source that works.
    fn best(&self) -> Option<&String> {
        let works = |name: &&String| {
            let offer = &self.offers[name.as_str()];
            let target = offer.target.as_ref().filter(|target| !self.harness.denied.contains(target));
            let health = |text: &str| self.health.iter().find(|(known, _)| target_text(known) == text);
            offer.refusal.is_none()
                && target.is_some_and(|target| {
                    matches!(target, Target::Addresses(_))
                        || health(&target.to_string()).is_some_and(|(_, health)| *health == Health::Works)
                })
        };
        self.harness.spec.sources.iter().find(works)
    }
}

fn target_text(text: &str) -> String {
    target(text).to_string()
}

fn failback(random: &mut StdRng) -> Failback {
    match random.random_range(0..4) {
        0 => Failback::Manual,
        _ => Failback::Automatic { after: Duration::from_secs(random.random_range(0..300)) },
    }
}

#[test]
fn random_histories_follow_the_rules() {
    let mut reasons = BTreeSet::new();
    // With seed 1083 a pin ends the wait for a new target that has failed.
    for seed in (0..60).chain([1_083]) {
        // Shown if an assertion of the harness fails, too.
        println!("seed {seed}");
        let mut world = World::new(seed);
        for step in 0..60 {
            world.context = format!("seed {seed}, step {step}");
            world.disturb();
            let wait = if world.random.random_bool(0.2) { 400_000 } else { 30_000 };
            let wait = Duration::from_millis(world.random.random_range(0..wait));
            let (before, silent) = (world.moves.len(), world.silent);
            world.run(later(world.harness.now, wait));
            // When checks are late after the last answer of an upstream, no move may be caused by their results.
            let limit = world.harness.spec.check.late_after();
            let is_of_health = |(at, reason): &&(Timestamp, MoveReason)| {
                let failover =
                    [MoveReason::TargetChanged, MoveReason::CutoverTimedOut, MoveReason::FailedOver];
                silent.is_some_and(|since| elapsed(since, *at) > limit) && failover.contains(reason)
            };
            let moved = world.moves[before..].iter().find(is_of_health);
            let to_hostname = world.harness.status.target.as_ref();
            let to_hostname =
                to_hostname.is_some_and(|to| matches!(to.target, Target::Hostname(_)) && to.verified);
            assert!(moved.is_none() || !to_hostname, "{}: {moved:?} without an answer", world.context);
        }

        world.context = format!("seed {seed}, at rest");
        world.silent = None;
        world.run(later(world.harness.now, Duration::from_secs(1_800)));
        let moves = world.moves.len();
        world.run(later(world.harness.now, Duration::from_secs(900)));
        assert_eq!(world.moves.len(), moves, "{}: {:?}", world.context, world.moves);
        let is_automatic =
            world.harness.spec.failback != Failback::Manual && world.harness.spec.pin.is_none();
        if let Some(best) = world.best().filter(|_| is_automatic) {
            let current = world.harness.status.target.as_ref();
            let position = |name: &str| world.harness.spec.sources.iter().position(|source| source == name);
            // A target that works stays although its source is blank or refused.
            let stays = current.is_some_and(|current| {
                position(&current.source).is_some_and(|kept| Some(kept) < position(best))
                    && world.passes(&current.target)
            });
            let is_best = current.is_some_and(|current| current.source == *best);
            assert!(is_best || stays, "{}: {best}: {:#?}", world.context, world.harness.status);
        }
        reasons.extend(world.moves.iter().map(|(_, reason)| reason.as_str()));
    }
    assert_eq!(reasons.len(), 8, "some rule was never used: {reasons:?}");
}

/// Two healthy sources, the first of which is announced. A failback waits `after` seconds.
fn two_sources(after: u64) -> World {
    let mut world = World::new(0);
    let harness = Harness::new(&[("seoul", ""), ("busan", "")]);
    world.harness = harness;
    world.harness.spec.failback = Failback::Automatic { after: Duration::from_secs(after) };
    world.offers.insert("seoul", offer("1", "a.example"));
    world.offers.insert("busan", offer("2", "b.example"));
    world.run(at(100));
    assert_eq!(world.harness.announced(), "seoul a.example");
    world.moves.clear();
    world
}

#[test]
fn flapping_source_causes_at_most_one_move_per_minute() {
    for (after, period, most) in [(300, 30, 1), (300, 5, 1), (0, 5, 10), (0, 30, 10), (10, 10, 10)] {
        let mut world = two_sources(after);
        world.harness.spec.check.period = Duration::from_secs(period);
        for flip in 0..30 {
            let health = if flip % 2 == 0 { Health::Fails } else { Health::Works };
            world.health.insert("a.example", health);
            world.run(at(100 + 20 * (flip + 1)));
        }
        let moves = world.moves.len();
        assert!((1..=most).contains(&moves), "{after} s, each {period} s: {:?}", world.moves);
    }
}

#[test]
fn silent_upstreams_move_nothing() {
    let mut world = two_sources(300);
    world.health.insert("a.example", Health::Fails);
    world.silent = Some(at(100));
    world.run(at(400));
    assert_eq!(world.moves, []);
    world.silent = None;
    world.run(at(500));
    assert_eq!(world.harness.announced(), "busan b.example");
}

#[test]
fn standby_takes_over_within_45_s() {
    for second in 0..30 {
        let mut world = two_sources(60);
        world.run(at(100 + second));
        world.health.insert("a.example", Health::Fails);
        world.run(at(100 + second + 45));
        assert_eq!(world.harness.announced(), "busan b.example", "{second}");
        world.health.insert("a.example", Health::Works);
        world.run(at(100 + second + 45 + 60 + 62));
        assert_eq!(world.harness.announced(), "seoul a.example", "{second}");
    }
}

#[test]
fn servfail_at_one_upstream_is_a_failure() {
    let mut world = two_sources(300);
    world.health.insert("a.example", Health::HalfServfail);
    world.run(at(200));
    assert_eq!(world.harness.announced(), "busan b.example");
}

#[test]
fn new_hostname_is_announced_within_two_seconds() {
    let mut world = two_sources(300);
    world.health.insert("new.example", Health::Fails);
    world.offers.get_mut("seoul").unwrap().target = Some(target("new.example"));
    world.run(at(120));
    assert_eq!(world.harness.announced(), "seoul a.example");
    world.health.insert("new.example", Health::Works);
    world.run(at(122));
    assert_eq!(world.harness.announced(), "seoul new.example");
}
