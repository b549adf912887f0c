use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::facts::*;
use super::reason::RemovalReason;
use super::verdict::*;

const DELAY: Duration = Duration::from_secs(600);

/// The reasons to remove an object of a living Service, or within its delay.
const DESPITE: [RemovalReason; 5] = [
    RemovalReason::IpTargets,
    RemovalReason::ForeignService,
    RemovalReason::FormerName,
    RemovalReason::UnwantedSlice,
    RemovalReason::FormerLeader,
];

fn one<T: Copy>(random: &mut StdRng, all: &[T]) -> T {
    *all.choose(random).unwrap()
}

fn found(random: &mut StdRng) -> Option<Found> {
    let exists = Found::Exists {
        which: one(random, &[Which::Same, Which::Successor, Which::Another]),
        membership: one(
            random,
            &[Membership::Selected, Membership::OptedOut, Membership::NotSelected, Membership::Gone],
        ),
        is_open: random.random(),
    };
    let refused = Found::Refused { is_lasting: random.random() };
    one(random, &[None, Some(Found::Absent), Some(exists), Some(exists), Some(refused), Some(Found::Failed)])
}

/// Returns facts in any combination, also in combinations that don't occur.
fn facts(random: &mut StdRng, now: Instant) -> Facts {
    let is_settled = random.random();
    let subjects = [
        Subject::ExternalTarget,
        Subject::FormerName,
        Subject::Slice,
        Subject::Target,
        Subject::Finalizer { is_settled },
        Subject::Link,
        Subject::Announcement,
        Subject::Override,
    ];
    let owners = [Owner::Foreign, Owner::OtherInstance, Owner::Unwritten, Owner::FormerLeader, Owner::Ours];
    let services = [
        ServiceState::Exists,
        ServiceState::Announced,
        ServiceState::Provisional,
        ServiceState::Withdrawn,
        ServiceState::Unlisted,
        ServiceState::Gone,
        ServiceState::Recreated,
    ];
    let surpluses =
        [Surplus::IpTargets, Surplus::FormerName, Surplus::UnwantedSlice, Surplus::ForeignService];
    let lists = [
        Lists::Unwatched,
        Lists::Missing,
        Lists::BeforeTerm,
        Lists::Suspicious,
        Lists::Complete,
        Lists::Complete,
    ];
    let until = one(random, &[None, Some(now), Some(now + DELAY)]);
    let ago = Duration::from_millis(random.random_range(0..1_300_000));
    Facts {
        subject: one(random, &subjects),
        owner: if random.random() { Owner::Ours } else { one(random, &owners) },
        is_terminating: random.random_ratio(1, 5),
        service: one(random, &services),
        since: one(random, &[None, Some(now - ago), Some(now - ago), Some(now)]),
        delay: one(random, &[None, Some(Duration::ZERO), Some(DELAY), Some(Duration::MAX)]),
        surplus: if random.random() { None } else { Some(one(random, &surpluses)) },
        is_denied: random.random_ratio(1, 5),
        is_closed: random.random_ratio(1, 5),
        check: one(random, &[StartCheck::Passed, StartCheck::MostGone, StartCheck::LeftOut]),
        lists: if random.random_ratio(1, 5) { None } else { Some(one(random, &lists)) },
        budget: one(random, &[None, Some(Budget::Free), Some(Budget::Free), Some(Budget::UsedUp(until))]),
        found: found(random),
        is_served: one(random, &[None, Some(true), Some(false)]),
    }
}

/// Returns whether the Service, or the StableName in its place, lives and is selected, as far as the facts tell.
fn is_living(facts: &Facts) -> bool {
    let is_of_uid = matches!(facts.subject, Subject::Link | Subject::Announcement);
    let lives_by_look_up = match facts.found {
        Some(Found::Exists { which: Which::Same, membership: Membership::Selected, .. }) => true,
        Some(Found::Exists { which: Which::Another, membership: Membership::Selected, .. }) => !is_of_uid,
        _ => false,
    };
    match facts.service {
        ServiceState::Exists | ServiceState::Announced | ServiceState::Provisional => true,
        // A deletion that the watch has reported ends a link without a look-up.
        ServiceState::Gone if facts.subject == Subject::Link => false,
        ServiceState::Unlisted | ServiceState::Gone | ServiceState::Recreated => {
            lives_by_look_up && facts.subject != Subject::Override
        }
        ServiceState::Withdrawn => false,
    }
}

fn is_object(subject: Subject) -> bool {
    matches!(subject, Subject::ExternalTarget | Subject::FormerName | Subject::Slice)
}

/// Returns whether a delay that keeps the subject isn't over.
fn is_within_delay(facts: &Facts, now: Instant) -> bool {
    let is_not_selected = matches!(
        facts.found,
        Some(Found::Exists { which: Which::Same, membership: Membership::NotSelected, .. })
    );
    let is_delayed = match facts.subject {
        Subject::Link => facts.service == ServiceState::Unlisted && is_not_selected,
        Subject::Override => facts.is_served == Some(false),
        subject => is_object(subject),
    };
    let extra =
        if facts.check == StartCheck::MostGone && is_object(facts.subject) { DELAY } else { Duration::ZERO };
    let delay = facts.delay.and_then(|delay| delay.checked_add(extra));
    let end = facts.since.zip(delay).and_then(|(since, delay)| since.checked_add(delay));
    is_delayed && end.is_none_or(|end| end > now)
}

/// Checks a verdict against what must never happen.
fn check(facts: &Facts, verdict: Verdict, now: Instant) -> Result<(), &'static str> {
    let reason = match verdict {
        Verdict::Remove(reason) => reason,
        Verdict::Wait(_, until) if until <= now => return Err("waits for a time that has passed"),
        _ => return Ok(()),
    };
    let is_of_api =
        is_object(facts.subject) || matches!(facts.subject, Subject::Target | Subject::Finalizer { .. });
    let is_confirmed = matches!(facts.found, Some(Found::Absent | Found::Exists { .. }))
        || matches!(facts.found, Some(Found::Refused { is_lasting: true }))
            && (!is_of_api || facts.service == ServiceState::Gone);
    let needs_look_up = match facts.service {
        ServiceState::Gone => is_of_api,
        ServiceState::Unlisted => facts.subject != Subject::Override && reason != RemovalReason::TargetDenied,
        ServiceState::Recreated => is_of_api,
        _ => false,
    };
    let may_despite = DESPITE.contains(&reason)
        || facts.subject == Subject::Announcement
            && matches!(reason, RemovalReason::TargetDenied | RemovalReason::NotAllowed)
        || reason == RemovalReason::StableNameLeads && facts.service == ServiceState::Announced;
    let is_used_up = match facts.budget {
        Some(Budget::UsedUp(until)) => until.is_none_or(|until| until > now),
        Some(Budget::Free) => false,
        None => true,
    };
    let has_no_time = facts.delay != Some(Duration::ZERO)
        && facts.surplus.is_none()
        && facts.subject != Subject::Target
        && facts.since.is_none_or(|since| now - since < Duration::from_secs(1));
    let wrong = [
        (matches!(facts.owner, Owner::Foreign | Owner::OtherInstance), "it isn't this instance's"),
        (is_living(facts) && !may_despite, "its Service lives"),
        (is_within_delay(facts, now) && !DESPITE.contains(&reason), "it is within its delay"),
        (reason == RemovalReason::FormerLeader && has_no_time, "the watch has had no time"),
        (needs_look_up && !is_confirmed, "its end isn't confirmed"),
        (
            is_of_api && !facts.lists.is_some_and(|lists| lists.suffice(facts.service)),
            "the lists are incomplete",
        ),
        (
            is_of_api && facts.lists == Some(Lists::BeforeTerm) && facts.service != ServiceState::Gone,
            "the lists are old",
        ),
        (facts.is_counted() && is_used_up, "the budget is used up"),
        (
            facts.subject == Subject::ExternalTarget && facts.check == StartCheck::LeftOut,
            "a flag leaves it out",
        ),
        (is_object(facts.subject) && facts.service == ServiceState::Provisional, "its StableName isn't read"),
        (facts.service == ServiceState::Unlisted && facts.owner == Owner::Unwritten, "it is an orphan"),
        (facts.subject == Subject::Finalizer { is_settled: false }, "the external target is there"),
        (facts.subject == Subject::Override && facts.is_served.is_none(), "the CRD may be gone"),
    ];
    wrong.into_iter().find(|(is_wrong, _)| *is_wrong).map_or(Ok(()), |(_, why)| Err(why))
}

/// The names of [`RemovalReason`].
fn names() -> BTreeSet<String> {
    let text = include_str!("reason.rs").split_once("pub enum RemovalReason {").unwrap().1;
    let names = text.split_once("\n}").unwrap().0.lines().filter_map(|line| line.trim().strip_suffix(','));
    names.map(str::to_owned).collect()
}

#[test]
fn nothing_living_foreign_or_delayed_is_removed() {
    let (now, mut seen) = (Instant::now() + 10 * DELAY, BTreeSet::new());
    for seed in 0..100 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..2_000 {
            let facts = facts(&mut random, now);
            let verdict = may_remove(&facts, now);
            if let Err(why) = check(&facts, verdict, now) {
                panic!("seed {seed}: {verdict:?}, although {why}: {facts:#?}");
            }
            if let Verdict::Remove(reason) | Verdict::Keep(reason) | Verdict::Wait(reason, _) = verdict {
                seen.insert(reason.to_string());
            }
        }
    }
    assert_eq!(seen, names(), "each reason occurs");
}

/// The name of what a mutation ignores, and the change of the facts that has that effect.
type Ignoring = (&'static str, fn(&mut Facts));

#[test]
fn verdict_that_ignores_a_fact_is_noticed() {
    let now = Instant::now() + 10 * DELAY;
    let ignoring: [Ignoring; 9] = [
        ("owner", |facts| facts.owner = Owner::Ours),
        ("service", |facts| facts.service = ServiceState::Gone),
        ("delay", |facts| facts.delay = Some(Duration::ZERO)),
        ("start check", |facts| facts.check = StartCheck::Passed),
        ("lists", |facts| facts.lists = Some(Lists::Complete)),
        ("budget", |facts| facts.budget = Some(Budget::Free)),
        ("look-up", |facts| facts.found = Some(Found::Absent)),
        ("surplus", |facts| facts.surplus = Some(Surplus::FormerName)),
        ("CRD", |facts| facts.is_served = Some(true)),
    ];
    for (name, ignore) in ignoring {
        let mut random = StdRng::seed_from_u64(0);
        let is_noticed = |_| {
            let facts = facts(&mut random, now);
            let mut ignorant = facts;
            ignore(&mut ignorant);
            check(&facts, may_remove(&ignorant, now), now).is_err()
        };
        assert!((0..20_000).any(is_noticed), "{name}");
    }
}

#[test]
fn each_answer_leads_to_another_question_or_a_verdict() {
    let now = Instant::now() + 10 * DELAY;
    for seed in 0..50 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..1_000 {
            let known = facts(&mut random, now);
            let mut facts = Facts { lists: None, budget: None, found: None, is_served: None, ..known };
            let mut asked = Vec::new();
            while let Verdict::Ask(question) = may_remove(&facts, now) {
                assert!(!asked.contains(&question), "seed {seed}: {question:?} twice: {facts:#?}");
                asked.push(question);
                match question {
                    Question::Lists => facts.lists = known.lists.or(Some(Lists::Complete)),
                    Question::Budget => facts.budget = known.budget.or(Some(Budget::Free)),
                    Question::Service => facts.found = known.found.or(Some(Found::Absent)),
                    Question::Crd => facts.is_served = known.is_served.or(Some(true)),
                }
            }
        }
    }
}

/// Facts about the external target of a Service that is gone since `since`, which leave nothing to ask.
fn of_gone(since: Instant) -> Facts {
    Facts {
        owner: Owner::Ours,
        service: ServiceState::Gone,
        since: Some(since),
        delay: Some(DELAY),
        lists: Some(Lists::Complete),
        budget: Some(Budget::Free),
        found: Some(Found::Absent),
        ..Facts::default()
    }
}

#[test]
fn unknown_facts_keep() {
    assert_eq!(may_remove(&Facts::default(), Instant::now()), Verdict::Keep(RemovalReason::Foreign));
    let ours = Facts { owner: Owner::Ours, ..Facts::default() };
    assert_eq!(may_remove(&ours, Instant::now()), Verdict::Keep(RemovalReason::ServiceExists));
}

#[test]
fn removal_of_most_targets_waits_ten_minutes_longer() {
    let since = Instant::now();
    let minutes = |number: u64| Duration::from_secs(60 * number);
    for (subject, delay, due) in [
        (Subject::ExternalTarget, minutes(0), minutes(10)),
        (Subject::ExternalTarget, minutes(10), minutes(20)),
        (Subject::Target, minutes(10), minutes(10)),
    ] {
        let facts = Facts { subject, delay: Some(delay), check: StartCheck::MostGone, ..of_gone(since) };
        let at = |after| may_remove(&facts, since + after);
        let wait = Verdict::Wait(RemovalReason::MostGone, since + due);
        assert_eq!(at(Duration::ZERO), wait, "{subject:?} {delay:?}");
        assert_eq!(at(due - Duration::from_millis(1)), wait);
        assert_eq!(at(due), Verdict::Remove(RemovalReason::ServiceGone));
        let never = Facts { delay: Some(Duration::MAX), ..facts };
        let verdict = may_remove(&never, since + due);
        assert_eq!(verdict == Verdict::Keep(RemovalReason::MostGone), subject == Subject::ExternalTarget);
    }
    let finalizer = Subject::Finalizer { is_settled: true };
    let facts = Facts { subject: finalizer, check: StartCheck::MostGone, ..of_gone(since) };
    assert_eq!(may_remove(&facts, since), Verdict::Remove(RemovalReason::ServiceGone), "it doesn't wait");
}

#[test]
fn only_final_removals_of_external_targets_count() {
    let (gone, living) = (of_gone(Instant::now()), ServiceState::Exists);
    let counts = |subject, service| Facts { subject, service, ..gone }.is_counted();
    assert!(counts(Subject::ExternalTarget, ServiceState::Gone));
    assert!(counts(Subject::FormerName, ServiceState::Gone));
    assert!(counts(Subject::ExternalTarget, living), "with --ip-targets skip");
    assert!(!counts(Subject::FormerName, living), "it has another name now");
    assert!(!counts(Subject::Slice, ServiceState::Gone));
    assert!(!Facts { owner: Owner::FormerLeader, ..gone }.is_counted());
}

#[test]
fn look_ups_mean_different_things_to_subjects() {
    let now = Instant::now() + 2 * DELAY;
    let verdict = |subject, service, found| {
        let found = Some(found);
        may_remove(&Facts { subject, service, found, ..of_gone(now - DELAY) }, now)
    };
    let (object, unlisted) = (Subject::ExternalTarget, ServiceState::Unlisted);
    let another = |which| Found::Exists { which, membership: Membership::Selected, is_open: true };
    let lasting = Found::Refused { is_lasting: true };
    for of_uid in [Subject::Link, Subject::Announcement] {
        assert_eq!(verdict(of_uid, unlisted, lasting), Verdict::Remove(RemovalReason::LookUpRefused));
        assert_eq!(
            verdict(of_uid, unlisted, another(Which::Another)),
            Verdict::Remove(RemovalReason::ServiceGone)
        );
        assert_eq!(
            verdict(of_uid, unlisted, another(Which::Same)),
            Verdict::Keep(RemovalReason::ServiceExists)
        );
    }
    assert_eq!(verdict(object, unlisted, lasting), Verdict::Keep(RemovalReason::Unconfirmed));
    assert_eq!(verdict(object, ServiceState::Gone, lasting), Verdict::Remove(RemovalReason::LookUpRefused));
    let living = Verdict::Keep(RemovalReason::ServiceExists);
    assert_eq!(verdict(object, ServiceState::Gone, another(Which::Another)), living);
    assert_eq!(
        verdict(object, ServiceState::Gone, another(Which::Successor)),
        Verdict::Remove(RemovalReason::ServiceGone)
    );
}

#[test]
fn creation_of_a_former_leader_goes_after_a_second() {
    let since = Instant::now();
    let facts =
        Facts { owner: Owner::FormerLeader, service: ServiceState::Unlisted, budget: None, ..of_gone(since) };
    for delay in [Some(DELAY), None] {
        let at = |after| may_remove(&Facts { delay, ..facts }, since + Duration::from_millis(after));
        assert_eq!(at(999), Verdict::Wait(RemovalReason::DeleteDelay, since + Duration::from_secs(1)));
        assert_eq!(at(1_000), Verdict::Remove(RemovalReason::FormerLeader));
    }
}
