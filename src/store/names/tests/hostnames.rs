use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("default", name)
}

fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn passed(name: &str, from: Option<&str>, to: Option<&str>) -> OwnerChange {
    OwnerChange { name: name.into(), from: from.map(key), to: to.map(key) }
}

#[test]
fn oldest_requester_owns_a_name_until_its_request_ends() {
    let mut all_names = Names::default();
    let shop = names(&["shop.example", "b.example"]);
    assert_eq!(
        all_names.request(&key("young"), 2, &shop[..1]),
        [passed("shop.example", None, Some("young"))]
    );
    let changes = all_names.request(&key("old"), 1, &shop);
    assert_eq!(
        changes,
        [passed("b.example", None, Some("old")), passed("shop.example", Some("young"), Some("old"))]
    );
    assert_eq!(*all_names.hostnames_of(&key("old")), *shop);
    assert!(all_names.hostnames_of(&key("young")).is_empty());
    assert_eq!(
        all_names.request(&key("old"), 1, &shop[1..]),
        [passed("shop.example", Some("old"), Some("young"))]
    );
    assert_eq!(all_names.request(&key("young"), 2, &[]), [passed("shop.example", Some("young"), None)]);
}

#[test]
fn recorded_owner_keeps_a_name_that_it_requests() {
    let mut all_names = Names::default();
    let shop = names(&["shop.example"]);
    assert!(all_names.record("young-ext", Some((&key("young"), &shop))).is_empty());
    assert!(all_names.hostnames_of(&key("young")).is_empty());
    all_names.request(&key("young"), 2, &shop);
    assert!(all_names.request(&key("old"), 1, &shop).is_empty());
    assert_eq!(*all_names.hostnames_of(&key("young")), *shop);
    assert_eq!(all_names.record("young-ext", None), [passed("shop.example", Some("young"), Some("old"))]);
}

#[test]
fn owner_keeps_its_name_while_its_external_target_is_renamed() {
    let mut all_names = Names::default();
    let shop = names(&["shop.example"]);
    all_names.request(&key("young"), 2, &shop);
    all_names.record("hashed-ext", Some((&key("young"), &shop)));
    all_names.request(&key("old"), 1, &shop);
    all_names.record("young-ext", Some((&key("young"), &shop)));
    assert!(all_names.record("hashed-ext", None).is_empty());
    assert_eq!(*all_names.hostnames_of(&key("young")), *shop);
}

#[test]
fn names_are_unique_and_independent_of_order_and_restarts() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let all = names(&["a.example", "b.example", "*.a.example"]);
        let keys: Vec<ServiceKey> = ["x", "y", "z"].map(key).into();
        let mut all_names = Names::default();
        let (mut requested, mut noted) = (HashMap::new(), HashMap::<String, (ServiceKey, Vec<_>)>::new());
        let mut owners: HashMap<Arc<str>, ServiceKey> = HashMap::new();
        for _ in 0..80 {
            let key = keys[random.random_range(0..keys.len())].clone();
            let changes = if random.random_bool(0.4) {
                // The names that a link owns are recorded on its external target, now or later.
                let names = all_names.hostnames_of(&key).to_vec();
                let object = format!("{}-ext", key.name());
                noted.insert(object.clone(), (key.clone(), names.clone()));
                all_names.record(&object, Some((&key, &names)))
            } else {
                let names: Vec<_> = all.iter().filter(|_| random.random_bool(0.5)).cloned().collect();
                let created = requested.get(&key).map_or(random.random_range(0..3), |(created, _)| *created);
                requested.insert(key.clone(), (created, names.clone()));
                all_names.request(&key, created, &names)
            };
            for OwnerChange { name, from, to } in changes {
                assert_eq!(owners.get(&name), from.as_ref(), "seed {seed}");
                match to {
                    Some(to) => owners.insert(name, to),
                    None => owners.remove(&name),
                };
            }
            let mut shown: Vec<(Arc<str>, ServiceKey)> = Vec::new();
            for key in &keys {
                shown.extend(all_names.hostnames_of(key).iter().map(|name| (Arc::clone(name), key.clone())));
            }
            assert_eq!(shown.len(), owners.len(), "seed {seed}: {shown:?} {owners:?}");
            assert_eq!(shown.into_iter().collect::<HashMap<_, _>>(), owners, "seed {seed}");

            let mut fresh = Names::default();
            let mut order: Vec<_> = requested.iter().collect();
            order.shuffle(&mut random);
            for (key, (created, names)) in order {
                fresh.request(key, *created, names);
            }
            for (object, (key, names)) in &noted {
                fresh.record(object, Some((key, names)));
            }
            for key in &keys {
                assert_eq!(fresh.hostnames_of(key), all_names.hostnames_of(key), "seed {seed}");
            }
        }
    }
}
