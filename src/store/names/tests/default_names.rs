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

fn check(known: &TestState, names: &Names, seed: u64) {
    let distinct: BTreeSet<_> = known.objects.values().collect();
    assert_eq!(distinct.len(), known.objects.len(), "seed {seed}: two links share an object: {known:#?}");
    for (label, key) in &known.labels {
        assert!(known.objects.contains_key(key), "seed {seed}: {label:?} belongs to a link that is gone");
        assert!(names.has_label(key), "seed {seed}");
    }
    for key in known.objects.keys() {
        let label = key.label().unwrap();
        assert!(known.labels.contains_key(&*label), "seed {seed}: no link has {label:?}");
    }
}

#[test]
fn names_are_unique_and_independent_of_order_and_restarts() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let keys = keys();
        let (mut names, mut known) = (Names::default(), TestState::default());
        let mut created = HashMap::new();
        let mut owners: HashMap<Arc<str>, ServiceKey> = HashMap::new();
        for step in 0..120 {
            let key = &keys[random.random_range(0..keys.len())];
            if random.random_bool(0.1) {
                // A write for a link that has lost the name meanwhile, or a label set by hand.
                let name = default_name(&keys[random.random_range(0..keys.len())]);
                known.take(names.set_owner(&name, Some(key)));
                owners.insert(name, key.clone());
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
            check(&known, &names, seed);
            if step % 20 == 0 {
                // A restart: the objects are listed, then the links, in any order.
                let (mut fresh, mut after) = (Names::default(), TestState::default());
                for (name, owner) in &owners {
                    fresh.set_owner(name, Some(owner));
                }
                let mut order: Vec<_> = known.objects.keys().cloned().collect();
                order.shuffle(&mut random);
                for key in &order {
                    after.add(&mut fresh, key, created[key]);
                }
                assert_eq!(after, known, "seed {seed}, step {step}");
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
