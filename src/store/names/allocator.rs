//! Allocates names that several links claim: names of external targets, and the labels `<service>-<namespace>` directly
//! below a zone.
//!
//! The owner of a name keeps it. The owner of an external target's name is the link that the existing object of that
//! name is labelled for; the owner of a label is a link that owns its default external target. A name without an owner
//! goes to the oldest Service; among Services of the same age, to the first by namespace and name. A link that loses
//! the name of its external target takes its next candidate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::claims::{Claim, Claims};
use super::custom_hostnames::CustomHostnames;
use super::owners::CurrentOwners;
use crate::model::link::LinkChange;
use crate::model::names;
use crate::model::service_key::ServiceKey;

/// A name that has another owner from now on: the link has to be stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reassigned {
    /// The link's external target has this name from now on.
    Object(ServiceKey, Arc<str>),
    /// The label belongs to this link from now on, or to no link.
    Label(Box<[u8]>, Option<ServiceKey>),
}

/// Returns only the last change of each label, and of the external target of each link.
pub(crate) fn coalesce(changes: Vec<Reassigned>) -> Vec<Reassigned> {
    let (mut labels, mut objects) = (HashSet::new(), HashSet::new());
    let mut last: Vec<Reassigned> = changes
        .into_iter()
        .rev()
        .filter(|change| match change {
            Reassigned::Object(key, _) => objects.insert(key.clone()),
            Reassigned::Label(label, _) => labels.insert(label.clone()),
        })
        .collect();
    last.reverse();
    last
}

#[derive(Debug, Default)]
pub(crate) struct NameAllocator {
    /// The claims for the names of external targets.
    objects: Claims<Arc<str>>,
    /// The claims for labels, in wire form.
    labels: Claims<Box<[u8]>>,
    links: HashMap<ServiceKey, LinkClaims>,
    owners: CurrentOwners,
    pub(crate) custom_hostnames: CustomHostnames,
    /// Changes that are sent later, all at once, because each send wakes the subscribers of the feed.
    pub(crate) pending_changes: Option<Vec<LinkChange>>,
}

/// The claims of one link for names of external targets.
#[derive(Debug)]
struct LinkClaims {
    created: i64,
    /// The claimed candidates in their order; the last candidate is the name in use.
    objects: SmallVec<[Arc<str>; 1]>,
}

impl NameAllocator {
    /// Adds a link that was created at this time (seconds since 1970). Returns the name of its external target, and the
    /// changes for other links.
    pub(crate) fn add(&mut self, key: &ServiceKey, created: i64) -> (Arc<str>, Vec<Reassigned>) {
        let claim = Claim { created, key: key.clone() };
        let mut changes = Vec::new();
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.add(label.as_slice().into(), claim.clone());
            self.record_label_change(label, before.as_ref(), &mut changes);
        }
        self.rebalance(vec![claim], &mut changes);
        let mut own = default_name(key);
        changes.retain(|change| match change {
            Reassigned::Object(other, name) if other == key => {
                own = name.clone();
                false
            }
            _ => true,
        });
        (own, changes)
    }

    /// Removes a link. Returns the changes for other links.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Vec<Reassigned> {
        let mut changes = Vec::new();
        let Some(claims) = self.links.remove(key) else { return changes };
        let claim = Claim { created: claims.created, key: key.clone() };
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.remove(label.as_slice(), &claim);
            self.record_label_change(label, before.as_ref(), &mut changes);
        }
        let mut next = Vec::new();
        for name in claims.objects {
            self.objects.remove(&*name, &claim);
            next.extend(self.object_winner(&name).cloned());
        }
        self.rebalance(next, &mut changes);
        changes
    }

    /// Records the link that an object is labelled for, if any. Returns the changes.
    pub(crate) fn set_owner(&mut self, object: &str, owner: Option<&ServiceKey>) -> Vec<Reassigned> {
        let before = self.owners.get(object).cloned();
        if before.as_ref() == owner {
            return Vec::new();
        }
        let concerned: Vec<ServiceKey> = [before.as_ref(), owner].into_iter().flatten().cloned().collect();
        let labels: Vec<Vec<u8>> = concerned.iter().filter_map(ServiceKey::label).collect();
        let winners: Vec<_> = labels.iter().map(|label| self.label_winner(label).cloned()).collect();
        let displaced = self.object_winner(object).cloned();
        self.owners.set(object, owner);
        let mut changes = Vec::new();
        for (label, before) in labels.into_iter().zip(winners) {
            self.record_label_change(label, before.as_ref(), &mut changes);
        }
        let mut dirty: Vec<Claim> = concerned.iter().filter_map(|key| self.claim(key)).collect();
        dirty.extend(self.object_winner(object).cloned());
        dirty.extend(displaced);
        self.rebalance(dirty, &mut changes);
        changes
    }

    /// Returns the links that claim an object's name.
    pub(crate) fn claimants(&self, object: &str) -> Vec<ServiceKey> {
        self.objects.claims_for(object).iter().map(|claim| claim.key.clone()).collect()
    }

    /// Returns whether an object is labelled for this link.
    pub(crate) fn owns_object(&self, key: &ServiceKey) -> bool {
        self.owners.contains(key)
    }

    pub(crate) fn has_label(&self, key: &ServiceKey) -> bool {
        key.label().is_some_and(|label| self.label_winner(&label) == Some(key))
    }

    /// Gives each of these links the first of its candidates that it wins, and then does the same for each link that
    /// this affects.
    fn rebalance(&mut self, mut dirty: Vec<Claim>, changes: &mut Vec<Reassigned>) {
        while let Some(claim) = dirty.pop() {
            let key = &claim.key;
            let claimed = self.links.remove(key).map(|claims| claims.objects).unwrap_or_default();
            let mut claims = SmallVec::<[Arc<str>; 1]>::new();
            while let Some(candidate) = self.candidate(key, claims.len()) {
                let before = self.object_winner(&candidate).cloned();
                self.objects.add(Arc::clone(&candidate), claim.clone());
                claims.push(candidate.clone());
                if self.object_winner(&candidate) == Some(&claim) {
                    dirty.extend(before.filter(|before| *before != claim));
                    break;
                }
            }
            for name in claimed.iter().filter(|name| !claims.contains(name)) {
                self.objects.remove(&**name, &claim);
                dirty.extend(self.object_winner(name).cloned());
            }
            if let Some(name) = claims.last().filter(|name| Some(*name) != claimed.last()) {
                changes.push(Reassigned::Object(key.clone(), Arc::clone(name)));
            }
            self.links.insert(key.clone(), LinkClaims { created: claim.created, objects: claims });
        }
    }

    /// Returns the candidate at this position for the name of the link's external target. The name that the earlier
    /// operator cut at 63 characters is a candidate only if the link owns it already.
    fn candidate(&self, key: &ServiceKey, place: usize) -> Option<Arc<str>> {
        let (namespace, name) = key.parts();
        let earlier = Some(Arc::<str>::from(names::earlier_external_target(namespace, name)))
            .filter(|earlier| self.owners.get(earlier) == Some(key));
        match (place.checked_sub(usize::from(earlier.is_some())), earlier) {
            (None, earlier) => earlier,
            (Some(0), _) => Some(default_name(key)),
            (Some(place), _) => {
                let digits = names::HASH_DIGITS.get(place - 1)?;
                Some(names::external_target_hashed(namespace, name, *digits).into())
            }
        }
    }

    /// Returns the link's claim, or `None` for an unknown link.
    fn claim(&self, key: &ServiceKey) -> Option<Claim> {
        self.links.get(key).map(|claims| Claim { created: claims.created, key: key.clone() })
    }

    fn object_winner(&self, name: &str) -> Option<&Claim> {
        self.objects.winner(name, |key| self.owners.get(name) == Some(key))
    }

    /// Returns the owner of a label: a link that owns its default external target comes first.
    fn label_winner(&self, label: &[u8]) -> Option<&ServiceKey> {
        self.labels.winner(label, |key| self.owners.owns_default_name(key)).map(|claim| &claim.key)
    }

    fn record_label_change(
        &self,
        label: Vec<u8>,
        before: Option<&ServiceKey>,
        changes: &mut Vec<Reassigned>,
    ) {
        let now = self.label_winner(&label);
        if now != before {
            let now = now.cloned();
            changes.push(Reassigned::Label(label.into(), now));
        }
    }
}

fn default_name(key: &ServiceKey) -> Arc<str> {
    key.external_target().into()
}

#[cfg(test)]
mod tests {
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

        fn add(&mut self, allocator: &mut NameAllocator, key: &ServiceKey, created: i64) {
            let (name, changes) = allocator.add(key, created);
            self.objects.insert(key.clone(), name);
            self.take(changes);
        }

        fn remove(&mut self, allocator: &mut NameAllocator, key: &ServiceKey) {
            self.objects.remove(key);
            self.take(allocator.remove(key));
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

    fn check(known: &TestState, allocator: &NameAllocator, seed: u64) {
        let distinct: BTreeSet<_> = known.objects.values().collect();
        assert_eq!(distinct.len(), known.objects.len(), "seed {seed}: two links share an object: {known:#?}");
        for (label, key) in &known.labels {
            assert!(known.objects.contains_key(key), "seed {seed}: {label:?} belongs to a link that is gone");
            assert!(allocator.has_label(key), "seed {seed}");
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
            let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
            let mut created = HashMap::new();
            let mut owners: HashMap<Arc<str>, ServiceKey> = HashMap::new();
            for step in 0..120 {
                let key = &keys[random.random_range(0..keys.len())];
                if random.random_bool(0.1) {
                    // A write for a link that has lost the name meanwhile, or a label set by hand.
                    let name = default_name(&keys[random.random_range(0..keys.len())]);
                    known.take(allocator.set_owner(&name, Some(key)));
                    owners.insert(name, key.clone());
                } else if known.objects.contains_key(key) {
                    if random.random_bool(0.5) {
                        // The link's object is removed, and then the link is forgotten.
                        for (name, _) in owners.extract_if(|_, owner| owner == key) {
                            known.take(allocator.set_owner(&name, None));
                        }
                        known.remove(&mut allocator, key);
                        created.remove(key);
                    } else {
                        // The link's object is written; its previous object is removed.
                        let name = known.objects[key].clone();
                        for (other, _) in owners.extract_if(|other, owner| owner == key && *other != name) {
                            known.take(allocator.set_owner(&other, None));
                        }
                        if let Entry::Vacant(free) = owners.entry(name.clone()) {
                            known.take(allocator.set_owner(&name, Some(key)));
                            free.insert(key.clone());
                        }
                    }
                } else {
                    let time = random.random_range(0..3);
                    known.add(&mut allocator, key, time);
                    created.insert(key.clone(), time);
                }
                check(&known, &allocator, seed);
                if step % 20 == 0 {
                    // A restart: the objects are listed, then the links, in any order.
                    let (mut fresh, mut after) = (NameAllocator::default(), TestState::default());
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
        let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
        allocator.set_owner("x-y-z-ext", Some(&owner));
        known.add(&mut allocator, &owner, 2);
        known.add(&mut allocator, &old, 1);
        assert_eq!(&*known.objects[&owner], "x-y-z-ext");
        assert_eq!(*known.objects[&old], *names::external_target_hashed("z", "x-y", 8));
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&owner]);

        // The object is removed: the older link is next.
        known.take(allocator.set_owner("x-y-z-ext", None));
        assert_eq!(&*known.objects[&old], "x-y-z-ext");
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&old]);
    }

    #[test]
    fn link_keeps_the_name_cut_by_the_earlier_operator() {
        let key = ServiceKey::new("namespace", &"s".repeat(60));
        let earlier = names::earlier_external_target("namespace", &"s".repeat(60));
        let mut allocator = NameAllocator::default();
        allocator.set_owner(&earlier, Some(&key));
        assert_eq!(&*allocator.add(&key, 0).0, earlier);
        // The object is deleted by hand: from here on the link has its default name.
        let changes = allocator.set_owner(&earlier, None);
        assert_eq!(changes, [Reassigned::Object(key.clone(), default_name(&key))]);
    }

    #[test]
    fn taken_hashed_name_gets_more_digits() {
        let (winner, loser) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
        let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
        known.add(&mut allocator, &winner, 1);
        // Another link owns the name with 8 digits, and claims it.
        let taken = names::external_target_hashed("y-z", "x", 8);
        let squatter = ServiceKey::new("q", "q");
        allocator.set_owner(&taken, Some(&squatter));
        known.add(&mut allocator, &squatter, 3);
        allocator.objects.add(taken.as_str().into(), Claim { created: 0, key: squatter });
        known.add(&mut allocator, &loser, 2);
        assert_eq!(*known.objects[&loser], *names::external_target_hashed("y-z", "x", 16));
    }
}
