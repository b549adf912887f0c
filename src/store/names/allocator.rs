//! Which link gets a name that several links want: external targets' names, and the labels
//! `<service>-<namespace>` directly below a zone.
//!
//! For each name the holder wins, which is the link that the existing object of that name is
//! labelled for; where there is no owner the oldest Service, then by namespace and name. A link that
//! loses the name of its external target takes the next of its candidates.

use std::collections::{HashMap, HashSet};

use arcstr::ArcStr;

use super::claims::{Claim, Claims, NameKind};
use super::custom_hostnames::CustomHostnames;
use super::owners::CurrentOwners;
use crate::model::link::LinkChange;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::ports::PortInterner;

/// A link whose names have changed hands: it has to be stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reassigned {
    /// The link has another external target's name from now on.
    Object(ServiceKey, ArcStr),
    /// The label is this link's from now on, or no link's.
    Label(Box<[u8]>, Option<ServiceKey>),
}

/// Returns what has changed in the end: of each name and each link the last change.
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

/// Which name is whose.
#[derive(Debug)]
pub(crate) struct NameAllocator {
    /// Every link has a claim here.
    objects: Claims,
    labels: Claims,
    /// What links claim and have, where that isn't just their first choice.
    losers: HashMap<ServiceKey, Vec<ArcStr>>,
    holders: CurrentOwners,
    /// Further names, which links ask for.
    pub(crate) custom_hostnames: CustomHostnames,
    pub(crate) ports: PortInterner,
    /// Changes that are told later, all at once: each one wakes the feed's subscribers.
    pub(crate) pending_changes: Option<Vec<LinkChange>>,
}

impl Default for NameAllocator {
    fn default() -> Self {
        Self {
            objects: Claims::of(NameKind::ExternalTarget),
            labels: Claims::of(NameKind::Label),
            losers: HashMap::new(),
            holders: CurrentOwners::default(),
            custom_hostnames: CustomHostnames::default(),
            ports: PortInterner::default(),
            pending_changes: None,
        }
    }
}

impl NameAllocator {
    /// Takes a link in that was created at that time (seconds since 1970). Returns the name of its external
    /// target, and what changed for others.
    pub(crate) fn add(&mut self, key: &ServiceKey, created: i64) -> (ArcStr, Vec<Reassigned>) {
        let rank = Claim { created, key: key.clone() };
        let mut changes = Vec::new();
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.add(&label, rank.clone());
            self.note_label(label, before.as_ref(), &mut changes);
        }
        self.rebalance(vec![rank], &mut changes);
        let mut own = first_choice(key);
        changes.retain(|change| match change {
            Reassigned::Object(whose, name) if whose == key => {
                own = name.clone();
                false
            }
            _ => true,
        });
        (own, changes)
    }

    /// Lets a link go. Returns what changed for others.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Vec<Reassigned> {
        let mut changes = Vec::new();
        let claimed = self.claimed(key);
        let Some(rank) = self.rank(key).cloned() else { return changes };
        if let Some(label) = key.label() {
            let before = self.label_winner(&label).cloned();
            self.labels.remove(&label, &rank);
            self.note_label(label, before.as_ref(), &mut changes);
        }
        self.losers.remove(key);
        let mut next = Vec::new();
        for name in claimed {
            self.objects.remove(name.as_bytes(), &rank);
            next.extend(self.object_winner(&name).cloned());
        }
        self.rebalance(next, &mut changes);
        changes
    }

    /// Takes over which link an object is labelled for, if it is one of ours at all. Returns what
    /// changed.
    pub(crate) fn set_holder(&mut self, object: &str, holder: Option<&ServiceKey>) -> Vec<Reassigned> {
        let before = self.holders.get(object).cloned();
        if before.as_ref() == holder {
            return Vec::new();
        }
        let concerned: Vec<ServiceKey> = [before.as_ref(), holder].into_iter().flatten().cloned().collect();
        let labels: Vec<Vec<u8>> = concerned.iter().filter_map(ServiceKey::label).collect();
        let owners: Vec<_> = labels.iter().map(|label| self.label_winner(label).cloned()).collect();
        let displaced = self.object_winner(object).cloned();
        self.holders.set(object, holder.map(|holder| self.kept_key(holder)));
        let mut changes = Vec::new();
        for (label, owner) in labels.into_iter().zip(owners) {
            self.note_label(label, owner.as_ref(), &mut changes);
        }
        let mut dirty: Vec<Claim> = concerned.iter().filter_map(|key| self.rank(key)).cloned().collect();
        dirty.extend(self.object_winner(object).cloned());
        dirty.extend(displaced);
        self.rebalance(dirty, &mut changes);
        changes
    }

    /// Returns the links that are in the queue for an object's name.
    pub(crate) fn claimants(&self, object: &str) -> Vec<ServiceKey> {
        self.objects.ranks(object.as_bytes()).iter().map(|rank| rank.key.clone()).collect()
    }

    /// Returns whether an object is labelled for this link.
    pub(crate) fn holds_something(&self, key: &ServiceKey) -> bool {
        self.holders.contains(key)
    }

    /// Returns whether a label is this link's.
    pub(crate) fn has_label(&self, key: &ServiceKey) -> bool {
        key.label().is_some_and(|label| self.label_winner(&label) == Some(key))
    }

    /// Gives each of these links the first of its candidates that it wins, and looks again at each link that this
    /// concerns.
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
                self.losers.remove(key);
            } else {
                self.losers.insert(key.clone(), claims);
            }
            if let Some(has) = has.filter(|has| Some(has) != had.as_ref()) {
                changes.push(Reassigned::Object(rank.key, has));
            }
        }
    }

    /// Returns the name of the link's external target that stands at this place in the order of its wishes. The name
    /// that the earlier operator cut off at 63 characters counts only where the link has it already.
    fn candidate(&self, key: &ServiceKey, place: usize) -> Option<ArcStr> {
        let (namespace, name) = key.parts();
        let earlier = Some(ArcStr::from(names::earlier_external_target(namespace, name)))
            .filter(|earlier| self.holders.get(earlier) == Some(key));
        match (place.checked_sub(usize::from(earlier.is_some())), earlier) {
            (None, earlier) => earlier,
            (Some(0), _) => Some(first_choice(key)),
            (Some(place), _) => {
                let digits = names::HASH_DIGITS.get(place - 1)?;
                Some(names::external_target_hashed(namespace, name, *digits).into())
            }
        }
    }

    /// Returns the names that a link claims; the last one it has.
    fn claimed(&self, key: &ServiceKey) -> Vec<ArcStr> {
        let first = || {
            let first = first_choice(key);
            if self.objects.ranks(first.as_bytes()).iter().any(|rank| rank.key == *key) {
                vec![first]
            } else {
                Vec::new()
            }
        };
        self.losers.get(key).cloned().unwrap_or_else(first)
    }

    /// Returns the link's place in queues, if there is such a link.
    fn rank(&self, key: &ServiceKey) -> Option<&Claim> {
        let first = || key.external_target().into();
        let claim = self.losers.get(key).and_then(|claims| claims.first()).cloned().unwrap_or_else(first);
        self.objects.ranks(claim.as_bytes()).iter().find(|rank| rank.key == *key)
    }

    /// Returns an equal key that shares its memory with the stored one.
    pub(crate) fn kept_key(&self, key: &ServiceKey) -> ServiceKey {
        let holder = || self.holders.usual(key);
        self.rank(key).map(|rank| &rank.key).or_else(holder).unwrap_or(key).clone()
    }

    fn object_winner(&self, name: &str) -> Option<&Claim> {
        self.objects.winner(name.as_bytes(), |key| self.holders.get(name) == Some(key))
    }

    /// A label goes with the external target that bears the same name.
    fn label_winner(&self, label: &[u8]) -> Option<&ServiceKey> {
        self.labels.winner(label, |key| self.holders.usual(key).is_some()).map(|rank| &rank.key)
    }

    fn note_label(&self, label: Vec<u8>, before: Option<&ServiceKey>, changes: &mut Vec<Reassigned>) {
        let now = self.label_winner(&label);
        if now != before {
            let now = now.cloned();
            changes.push(Reassigned::Label(label.into(), now));
        }
    }
}

fn first_choice(key: &ServiceKey) -> ArcStr {
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

    /// What the store would know: each link's external target, and whose each label is.
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

    /// Keys that are bound to clash: few parts joined by hyphens, some too long for a label.
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
    fn nobody_ever_shares_a_name_and_order_and_restarts_change_nothing() {
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
                    let name = first_choice(&keys[random.random_range(0..keys.len())]);
                    known.take(allocator.set_holder(&name, Some(key)));
                    holders.insert(name, key.clone());
                } else if known.objects.contains_key(key) {
                    if random.random_bool(0.5) {
                        // Its object is removed, and then it is forgotten.
                        for (name, _) in holders.extract_if(|_, holder| holder == key) {
                            known.take(allocator.set_holder(&name, None));
                        }
                        known.remove(&mut allocator, key);
                        created.remove(key);
                    } else {
                        // Its object is written; one that it had before is removed.
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
    fn the_holder_of_a_name_keeps_it_against_an_older_link() {
        let (old, holder) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
        let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
        allocator.set_holder("x-y-z-ext", Some(&holder));
        known.add(&mut allocator, &holder, 2);
        known.add(&mut allocator, &old, 1);
        assert_eq!(&*known.objects[&holder], "x-y-z-ext");
        assert_eq!(*known.objects[&old], *names::external_target_hashed("z", "x-y", 8));
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&holder]);

        // The object goes: the older one is next.
        known.take(allocator.set_holder("x-y-z-ext", None));
        assert_eq!(&*known.objects[&old], "x-y-z-ext");
        assert_eq!(known.labels.values().collect::<Vec<_>>(), [&old]);
    }

    #[test]
    fn a_link_keeps_the_object_that_the_earlier_operator_cut_off() {
        let key = ServiceKey::new("namespace", &"s".repeat(60));
        let earlier = names::earlier_external_target("namespace", &"s".repeat(60));
        let mut allocator = NameAllocator::default();
        allocator.set_holder(&earlier, Some(&key));
        assert_eq!(&*allocator.add(&key, 0).0, earlier);
        // It is deleted by hand: from here on the link has the name that it would have had.
        let changes = allocator.set_holder(&earlier, None);
        assert_eq!(changes, [Reassigned::Object(key.clone(), first_choice(&key))]);
    }

    #[test]
    fn a_hash_that_is_taken_too_gets_more_digits() {
        let (winner, loser) = (ServiceKey::new("z", "x-y"), ServiceKey::new("y-z", "x"));
        let (mut allocator, mut known) = (NameAllocator::default(), TestState::default());
        known.add(&mut allocator, &winner, 1);
        // An object of another link has the name with 8 digits, and that link wants it.
        let taken = names::external_target_hashed("y-z", "x", 8);
        let squatter = ServiceKey::new("q", "q");
        allocator.set_holder(&taken, Some(&squatter));
        known.add(&mut allocator, &squatter, 3);
        allocator.objects.add(taken.as_bytes(), Claim { created: 0, key: squatter });
        known.add(&mut allocator, &loser, 2);
        assert_eq!(*known.objects[&loser], *names::external_target_hashed("y-z", "x", 16));
    }
}
