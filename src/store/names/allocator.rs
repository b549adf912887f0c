//! Allocates names that several links claim: names of external targets, and the labels `<service>-<namespace>` directly
//! below a zone.
//!
//! The owner of a name keeps it: the link that the existing object of that name is labelled for. A name without an
//! owner goes to the oldest Service, then by namespace and name. A link that loses the name of its external target
//! takes its next candidate.

use std::collections::{HashMap, HashSet};

use arcstr::ArcStr;

use super::claims::{Claim, Claims, NameKind};
use super::custom_hostnames::CustomHostnames;
use super::owners::CurrentOwners;
use crate::model::link::LinkChange;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::ports::PortInterner;

/// A name that has another owner from now on: the link has to be stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reassigned {
    /// The link's external target has this name from now on.
    Object(ServiceKey, ArcStr),
    /// The label belongs to this link from now on, or to no link.
    Label(Box<[u8]>, Option<ServiceKey>),
}

/// Returns the last change of each name and of each link.
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

#[derive(Debug)]
pub(crate) struct NameAllocator {
    /// Every link has at least one claim here.
    objects: Claims,
    labels: Claims,
    /// The claims of links with other names than their default; the last claim is the name in use.
    non_default_claims: HashMap<ServiceKey, Vec<ArcStr>>,
    owners: CurrentOwners,
    pub(crate) custom_hostnames: CustomHostnames,
    pub(crate) ports: PortInterner,
    /// Changes that are sent later, all at once, because each send wakes the subscribers of the feed.
    pub(crate) pending_changes: Option<Vec<LinkChange>>,
}

impl Default for NameAllocator {
    fn default() -> Self {
        Self {
            objects: Claims::of(NameKind::ExternalTarget),
            labels: Claims::of(NameKind::Label),
            non_default_claims: HashMap::new(),
            owners: CurrentOwners::default(),
            custom_hostnames: CustomHostnames::default(),
            ports: PortInterner::default(),
            pending_changes: None,
        }
    }
}

impl NameAllocator {
    /// Adds a link that was created at this time (seconds since 1970). Returns the name of its external target, and the
    /// changes for other links.
    pub(crate) fn add(&mut self, key: &ServiceKey, created: i64) -> (ArcStr, Vec<Reassigned>) {
        let rank = Claim { created, key: key.clone() };
        let mut changes = Vec::new();
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.add(&label, rank.clone());
            self.record_label_change(label, before.as_ref(), &mut changes);
        }
        self.rebalance(vec![rank], &mut changes);
        let mut own = default_name(key);
        changes.retain(|change| match change {
            Reassigned::Object(whose, name) if whose == key => {
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
        let claimed = self.claimed(key);
        let Some(rank) = self.claim(key).cloned() else { return changes };
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.remove(&label, &rank);
            self.record_label_change(label, before.as_ref(), &mut changes);
        }
        self.non_default_claims.remove(key);
        let mut next = Vec::new();
        for name in claimed {
            self.objects.remove(name.as_bytes(), &rank);
            next.extend(self.object_winner(&name).cloned());
        }
        self.rebalance(next, &mut changes);
        changes
    }

    /// Records the link that an object is labelled for, if any. Returns the changes.
    pub(crate) fn set_holder(&mut self, object: &str, holder: Option<&ServiceKey>) -> Vec<Reassigned> {
        let before = self.owners.get(object).cloned();
        if before.as_ref() == holder {
            return Vec::new();
        }
        let concerned: Vec<ServiceKey> = [before.as_ref(), holder].into_iter().flatten().cloned().collect();
        let labels: Vec<Vec<u8>> = concerned.iter().filter_map(ServiceKey::label).collect();
        let owners: Vec<_> = labels.iter().map(|label| self.label_winner(label).cloned()).collect();
        let displaced = self.object_winner(object).cloned();
        self.owners.set(object, holder.map(|holder| self.interned_key(holder)));
        let mut changes = Vec::new();
        for (label, owner) in labels.into_iter().zip(owners) {
            self.record_label_change(label, owner.as_ref(), &mut changes);
        }
        let mut dirty: Vec<Claim> = concerned.iter().filter_map(|key| self.claim(key)).cloned().collect();
        dirty.extend(self.object_winner(object).cloned());
        dirty.extend(displaced);
        self.rebalance(dirty, &mut changes);
        changes
    }

    /// Returns the links that claim an object's name.
    pub(crate) fn claimants(&self, object: &str) -> Vec<ServiceKey> {
        self.objects.claims_for(object.as_bytes()).iter().map(|rank| rank.key.clone()).collect()
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
        while let Some(rank) = dirty.pop() {
            let key = &rank.key;
            let claimed = self.claimed(key);
            let had = claimed.last().cloned();
            let mut claims = Vec::new();
            while let Some(candidate) = self.candidate(key, claims.len()) {
                let before = self.object_winner(&candidate).cloned();
                self.objects.add(candidate.as_bytes(), rank.clone());
                claims.push(candidate.clone());
                if self.object_winner(&candidate) == Some(&rank) {
                    dirty.extend(before.filter(|before| *before != rank));
                    break;
                }
            }
            for name in claimed.iter().filter(|name| !claims.contains(name)) {
                self.objects.remove(name.as_bytes(), &rank);
                dirty.extend(self.object_winner(name).cloned());
            }
            let has = claims.last().cloned();
            if claims.len() == 1 && has.as_ref().is_some_and(|has| key.is_external_target(has.as_bytes())) {
                self.non_default_claims.remove(key);
            } else {
                self.non_default_claims.insert(key.clone(), claims);
            }
            if let Some(has) = has.filter(|has| Some(has) != had.as_ref()) {
                changes.push(Reassigned::Object(rank.key, has));
            }
        }
    }

    /// Returns the candidate at this position for the name of the link's external target. The name that the earlier
    /// operator cut at 63 characters is a candidate only if the link owns it already.
    fn candidate(&self, key: &ServiceKey, place: usize) -> Option<ArcStr> {
        let (namespace, name) = key.parts();
        let earlier = Some(ArcStr::from(names::earlier_external_target(namespace, name)))
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

    /// Returns the names that a link claims. The link has the last one.
    fn claimed(&self, key: &ServiceKey) -> Vec<ArcStr> {
        let first = || {
            let first = default_name(key);
            if self.objects.claims_for(first.as_bytes()).iter().any(|rank| rank.key == *key) {
                vec![first]
            } else {
                Vec::new()
            }
        };
        self.non_default_claims.get(key).cloned().unwrap_or_else(first)
    }

    /// Returns the link's claim, or `None` for an unknown link.
    fn claim(&self, key: &ServiceKey) -> Option<&Claim> {
        let first = || key.external_target().into();
        let claim =
            self.non_default_claims.get(key).and_then(|claims| claims.first()).cloned().unwrap_or_else(first);
        self.objects.claims_for(claim.as_bytes()).iter().find(|rank| rank.key == *key)
    }

    /// Returns an equal key that shares its memory with the stored key.
    pub(crate) fn interned_key(&self, key: &ServiceKey) -> ServiceKey {
        let holder = || self.owners.default_owner(key);
        self.claim(key).map(|rank| &rank.key).or_else(holder).unwrap_or(key).clone()
    }

    fn object_winner(&self, name: &str) -> Option<&Claim> {
        self.objects.winner(name.as_bytes(), |key| self.owners.get(name) == Some(key))
    }

    /// Returns the owner of a label: a link that owns its default external target comes first.
    fn label_winner(&self, label: &[u8]) -> Option<&ServiceKey> {
        self.labels.winner(label, |key| self.owners.default_owner(key).is_some()).map(|rank| &rank.key)
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

fn default_name(key: &ServiceKey) -> ArcStr {
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
        objects: BTreeMap<ServiceKey, ArcStr>,
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
            assert!(known.labels.contains_key(&*label), "seed {seed}: nobody has {label:?}");
        }
    }

    #[test]
    fn names_are_unique_and_independent_of_order_and_restarts() {
        for seed in 0..100 {
            let mut random = StdRng::seed_from_u64(seed);
            let keys = keys();
            let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
            let mut created = HashMap::new();
            let mut holders: HashMap<ArcStr, ServiceKey> = HashMap::new();
            for step in 0..120 {
                let key = &keys[random.random_range(0..keys.len())];
                if random.random_bool(0.1) {
                    // A write for a link that has lost the name meanwhile, or a label set by hand.
                    let name = default_name(&keys[random.random_range(0..keys.len())]);
                    known.take(allocator.set_holder(&name, Some(key)));
                    holders.insert(name, key.clone());
                } else if known.objects.contains_key(key) {
                    if random.random_bool(0.5) {
                        // The link's object is removed, and then the link is forgotten.
                        for (name, _) in holders.extract_if(|_, holder| holder == key) {
                            known.take(allocator.set_holder(&name, None));
                        }
                        known.remove(&mut allocator, key);
                        created.remove(key);
                    } else {
                        // The link's object is written; its previous object is removed.
                        let name = known.objects[key].clone();
                        for (other, _) in holders.extract_if(|other, holder| holder == key && *other != name)
                        {
                            known.take(allocator.set_holder(&other, None));
                        }
                        if let Entry::Vacant(free) = holders.entry(name.clone()) {
                            known.take(allocator.set_holder(&name, Some(key)));
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
                    for (name, holder) in &holders {
                        fresh.set_holder(name, Some(holder));
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
        let (old, holder) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
        let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
        allocator.set_holder("x-y-z-ext", Some(&holder));
        known.add(&mut allocator, &holder, 2);
        known.add(&mut allocator, &old, 1);
        assert_eq!(&*known.objects[&holder], "x-y-z-ext");
        assert_eq!(*known.objects[&old], *names::external_target_hashed("z", "x-y", 8));
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&holder]);

        // The object is removed: the older link is next.
        known.take(allocator.set_holder("x-y-z-ext", None));
        assert_eq!(&*known.objects[&old], "x-y-z-ext");
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&old]);
    }

    #[test]
    fn link_keeps_the_name_cut_by_the_earlier_operator() {
        let key = ServiceKey::new("namespace", &"s".repeat(60));
        let earlier = names::earlier_external_target("namespace", &"s".repeat(60));
        let mut allocator = NameAllocator::default();
        allocator.set_holder(&earlier, Some(&key));
        assert_eq!(&*allocator.add(&key, 0).0, earlier);
        // The object is deleted by hand: from here on the link has its default name.
        let changes = allocator.set_holder(&earlier, None);
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
        allocator.set_holder(&taken, Some(&squatter));
        known.add(&mut allocator, &squatter, 3);
        allocator.objects.add(taken.as_bytes(), Claim { created: 0, key: squatter });
        known.add(&mut allocator, &loser, 2);
        assert_eq!(*known.objects[&loser], *names::external_target_hashed("y-z", "x", 16));
    }
}
