use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;

/// The names that the store would have: each link's external target, and the owner of each label.
#[derive(Debug, Default, PartialEq)]
struct TestState {
    objects: BTreeMap<ServiceKey, Arc<str>>,
    labels: BTreeMap<Box<[u8]>, ServiceKey>,
}

impl TestState {
    fn take(&mut self, changes: Vec<Reassigned>) {
        for change in changes {
            match change {
                Reassigned::Object(key, name) => drop(self.objects.insert(key, name)),
                Reassigned::Label(label, Some(key)) => drop(self.labels.insert(label, key)),
                Reassigned::Label(label, None) => drop(self.labels.remove(&label)),
            }
        }
    }

    fn add(&mut self, names: &mut Names, key: &ServiceKey, created: i64) {
        let (name, changes) = names.claim(key, created);
        self.objects.insert(key.clone(), name);
        self.take(changes);
    }

    fn remove(&mut self, names: &mut Names, key: &ServiceKey) {
        self.objects.remove(key);
        self.take(names.release(key));
    }
}

/// Returns keys that are bound to clash: few parts joined by hyphens, some too long for a label.
fn keys() -> Vec<ServiceKey> {
    let long = "l".repeat(40);
    let parts =
        ["a".to_owned(), "a-a".to_owned(), "a-a-a".to_owned(), format!("{long}-a"), format!("a-{long}")];
    parts
        .iter()
        .flat_map(|namespace| parts.iter().map(move |name| ServiceKey::new(namespace, name)))
        .collect()
}

/// Returns the names that a link's external target may have, in the order in which a link with several keeps one.
fn candidates(key: &ServiceKey) -> Vec<Arc<str>> {
    let (namespace, name) = key.parts();
    let hashed = names::HASH_DIGITS.map(|digits| names::external_target_hashed(namespace, name, digits));
    let earlier = names::earlier_external_target(namespace, name);
    [earlier, key.external_target()].into_iter().chain(hashed).map(Arc::from).collect()
}

type Candidates = HashMap<ServiceKey, Vec<Arc<str>>>;

fn check(
    known: &TestState,
    names: &Names,
    (owners, candidates): (&HashMap<Arc<str>, ServiceKey>, &Candidates),
    context: &str,
) {
    let distinct: BTreeSet<_> = known.objects.values().collect();
    assert_eq!(distinct.len(), known.objects.len(), "{context}: two links share an object: {known:#?}");
    for (label, key) in &known.labels {
        assert!(known.objects.contains_key(key), "{context}: {label:?} belongs to a link that is gone");
        assert!(names.has_label(key), "{context}");
    }
    for (key, name) in &known.objects {
        let all = &candidates[key];
        let own = all.iter().find(|name| owners.get(*name) == Some(key));
        assert!(own.is_none_or(|own| own == name), "{context}: {key} owns {own:?} and has {name}");
        let keeps_hashed = own.is_some_and(|own| !all[..2].contains(own));
        let holder = known.labels.get(&*key.label().unwrap());
        assert!(holder.is_some() || keeps_hashed, "{context}: no link has the label of {key}");
        assert!(holder != Some(key) || !keeps_hashed, "{context}: {key} has the hashed name, and the label");
    }
}

#[test]
fn names_are_unique_and_independent_of_order_and_restarts() {
    let keys = keys();
    let all: Candidates = keys.iter().map(|key| (key.clone(), candidates(key))).collect();
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut names, mut known) = (Names::default(), TestState::default());
        let mut created = HashMap::new();
        let mut owners: HashMap<Arc<str>, ServiceKey> = HashMap::new();
        for step in 0..120 {
            let key = &keys[random.random_range(0..keys.len())];
            if random.random_bool(0.1) {
                // A write for a link that has lost the name meanwhile, or a label set by hand.
                let name = all[&keys[random.random_range(0..keys.len())]][random.random_range(0..5)].clone();
                known.take(names.set_owner(&name, Some(key)));
                owners.insert(name, key.clone());
            } else if random.random_bool(0.1) {
                // The link's objects are deleted by hand.
                for (name, _) in owners.extract_if(|_, owner| owner == key) {
                    known.take(names.set_owner(&name, None));
                }
            } else if known.objects.contains_key(key) {
                if random.random_bool(0.5) {
                    // The link's object is removed, and then the link is forgotten.
                    for (name, _) in owners.extract_if(|_, owner| owner == key) {
                        known.take(names.set_owner(&name, None));
                    }
                    known.remove(&mut names, key);
                    created.remove(key);
                } else {
                    // The link's object is written; its previous object is removed.
                    let name = known.objects[key].clone();
                    for (other, _) in owners.extract_if(|other, owner| owner == key && *other != name) {
                        known.take(names.set_owner(&other, None));
                    }
                    if let Entry::Vacant(free) = owners.entry(name.clone()) {
                        known.take(names.set_owner(&name, Some(key)));
                        free.insert(key.clone());
                    }
                }
            } else {
                let time = random.random_range(0..3);
                known.add(&mut names, key, time);
                created.insert(key.clone(), time);
            }
            let context = format!("seed {seed}, step {step}");
            check(&known, &names, (&owners, &all), &context);
            if step % 20 == 0 {
                // A restart, or a replica that begins: objects and links are listed in any order.
                let (mut fresh, mut after) = (Names::default(), TestState::default());
                let objects = owners.iter().map(|(name, owner)| (Some(name), owner));
                let mut order: Vec<_> = objects.chain(known.objects.keys().map(|key| (None, key))).collect();
                order.shuffle(&mut random);
                for (object, key) in order {
                    match object {
                        Some(name) => after.take(fresh.set_owner(name, Some(key))),
                        None => after.add(&mut fresh, key, created[key]),
                    }
                }
                assert_eq!(after, known, "{context}");
            }
        }
    }
}

#[test]
fn owner_keeps_its_name_against_an_older_link() {
    let (old, owner) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
    let (mut names, mut known) = (Names::default(), TestState::default());
    names.set_owner("x-y-z-ext", Some(&owner));
    known.add(&mut names, &owner, 2);
    known.add(&mut names, &old, 1);
    assert_eq!(&*known.objects[&owner], "x-y-z-ext");
    assert_eq!(*known.objects[&old], *names::external_target_hashed("z", "x-y", 8));
    assert_eq!(known.labels.values().collect::<Vec<_>>(), [&owner]);

    // The object is removed: the older link is next.
    known.take(names.set_owner("x-y-z-ext", None));
    assert_eq!(&*known.objects[&old], "x-y-z-ext");
    assert_eq!(known.labels.values().collect::<Vec<_>>(), [&old]);
}

#[test]
fn link_keeps_the_name_cut_by_the_earlier_operator() {
    let key = ServiceKey::new("namespace", &"s".repeat(60));
    let earlier = names::earlier_external_target("namespace", &"s".repeat(60));
    let mut names = Names::default();
    names.set_owner(&earlier, Some(&key));
    assert_eq!(&*names.claim(&key, 0).0, earlier);
    // The object is deleted by hand: from here on the link has its default name.
    let changes = names.set_owner(&earlier, None);
    assert_eq!(changes, [Reassigned::Object(key.clone(), default_name(&key))]);
}

#[test]
fn hashed_name_stays_as_long_as_its_external_target() {
    let (winner, loser) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
    for digits in names::HASH_DIGITS {
        let hashed = names::external_target_hashed("y-z", "x", digits);
        let (mut names, mut known) = (Names::default(), TestState::default());
        names.set_owner("x-y-z-ext", Some(&winner));
        names.set_owner(&hashed, Some(&loser));
        known.add(&mut names, &loser, 1);
        known.add(&mut names, &winner, 2);
        // The winner goes: its names are free, and wait for it.
        known.take(names.set_owner("x-y-z-ext", None));
        known.remove(&mut names, &winner);
        assert_eq!((&*known.objects[&loser], known.labels.len()), (&*hashed, 0));
        known.add(&mut names, &winner, 3);
        assert_eq!((&*known.objects[&winner], &*known.objects[&loser]), ("x-y-z-ext", &*hashed));
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&winner]);
        known.remove(&mut names, &winner);
        // The external target with the hash is deleted by hand.
        known.take(names.set_owner(&hashed, None));
        assert_eq!(&*known.objects[&loser], "x-y-z-ext");
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&loser]);
    }
}

#[test]
fn default_name_stays_beside_a_hashed_name() {
    let key = ServiceKey::new("y-z", "x");
    let mut names = Names::default();
    names.set_owner(&names::external_target_hashed("y-z", "x", 8), Some(&key));
    names.set_owner("x-y-z-ext", Some(&key));
    assert_eq!(&*names.claim(&key, 0).0, "x-y-z-ext");
    assert!(names.has_label(&key));
}

#[test]
fn taken_hashed_name_gets_more_digits() {
    let (winner, loser) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
    let (mut names, mut known) = (Names::default(), TestState::default());
    known.add(&mut names, &winner, 1);
    // Another link owns the name with 8 digits, and claims it.
    let taken = names::external_target_hashed("y-z", "x", 8);
    let squatter = ServiceKey::new("q", "q");
    names.set_owner(&taken, Some(&squatter));
    known.add(&mut names, &squatter, 3);
    let claim = Claim { place: 0, created: 0, owner: names.id(&squatter) };
    let owners = Arc::clone(&names.0.owners);
    names.0.objects.add(taken.as_str().into(), claim, &owners);
    known.add(&mut names, &loser, 2);
    assert_eq!(*known.objects[&loser], *names::external_target_hashed("y-z", "x", 16));
}
