//! Who is in the queue for a name.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::slice;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::ServiceKey;
use crate::names;

/// A link's place in the queue for a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) created: i64,
    pub(super) key: ServiceKey,
}

/// The links that want a name, the oldest first: nearly always one.
#[derive(Debug)]
enum Claimants {
    One(Rank),
    Many(Vec<Rank>),
}

/// For each name the links that want it.
#[derive(Debug)]
pub(super) struct Claims<N>(HashMap<N, Claimants>);

/// For each label `<service>-<namespace>` in wire form the links whose own it is. It isn't kept: a link tells it.
#[derive(Debug, Default)]
pub(super) struct Labels {
    claims: HashTable<Claimants>,
    hasher: RandomState,
}

/// Returns the label `<service>-<namespace>` in wire form.
pub(super) fn label(key: &ServiceKey) -> Option<Box<[u8]>> {
    let (namespace, name) = key.parts();
    names::wire([names::dashed_label(namespace, name).as_bytes()]).map(Into::into)
}

// === impl Claimants ===

impl Claimants {
    fn add(&mut self, rank: Rank) {
        match self {
            Self::One(only) if *only == rank => {}
            Self::One(only) => {
                let mut both = vec![only.clone(), rank];
                both.sort();
                *self = Self::Many(both);
            }
            Self::Many(ranks) => {
                if let Err(place) = ranks.binary_search(&rank) {
                    ranks.insert(place, rank);
                }
            }
        }
    }

    /// Takes a link out. Returns whether it was the last one.
    fn remove(&mut self, rank: &Rank) -> bool {
        match self {
            Self::One(only) => only == rank,
            Self::Many(ranks) => {
                if let Ok(place) = ranks.binary_search(rank) {
                    ranks.remove(place);
                }
                match &ranks[..] {
                    [] => true,
                    [only] => {
                        *self = Self::One(only.clone());
                        false
                    }
                    _ => false,
                }
            }
        }
    }

    fn ranks(&self) -> &[Rank] {
        match self {
            Self::One(only) => slice::from_ref(only),
            Self::Many(ranks) => ranks,
        }
    }

    /// Returns whose name it is: the claimant that holds it, else the first.
    fn winner(&self, holds: impl Fn(&ServiceKey) -> bool) -> Option<&ServiceKey> {
        let ranks = self.ranks();
        // Nearly always there is just one.
        let holder = if ranks.len() > 1 { ranks.iter().find(|rank| holds(&rank.key)) } else { None };
        holder.or(ranks.first()).map(|rank| &rank.key)
    }

    fn label(&self) -> Option<Box<[u8]>> {
        label(&self.ranks().first()?.key)
    }
}

// === impl Claims ===

impl<N> Default for Claims<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<N: Clone + Eq + Hash> Claims<N> {
    /// Puts a link into the queue for a name.
    pub(super) fn add(&mut self, name: &N, rank: Rank) {
        match self.0.get_mut(name) {
            Some(claimants) => claimants.add(rank),
            None => drop(self.0.insert(name.clone(), Claimants::One(rank))),
        }
    }

    /// Takes a link out of the queue for a name.
    pub(super) fn remove(&mut self, name: &N, rank: &Rank) {
        if self.0.get_mut(name).is_some_and(|claimants| claimants.remove(rank)) {
            self.0.remove(name);
        }
    }

    /// Returns who is in the queue for a name.
    pub(super) fn claimants(&self, name: &N) -> impl Iterator<Item = &ServiceKey> {
        self.0.get(name).into_iter().flat_map(Claimants::ranks).map(|rank| &rank.key)
    }

    /// Returns whose name it is: the claimant that holds it, else the first.
    pub(super) fn winner<Q: Eq + Hash + ?Sized>(
        &self,
        name: &Q,
        holds: impl Fn(&ServiceKey) -> bool,
    ) -> Option<&ServiceKey>
    where
        N: Borrow<Q>,
    {
        self.0.get(name)?.winner(holds)
    }

    /// Returns the name that is kept here, if it is wanted.
    pub(super) fn kept(&self, name: &N) -> Option<&N> {
        self.0.get_key_value(name).map(|(kept, _)| kept)
    }
}

// === impl Labels ===

impl Labels {
    /// Puts a link into the queue for its label.
    pub(super) fn add(&mut self, label: &[u8], rank: Rank) {
        let Self { claims, hasher } = self;
        let is_it = |claimants: &Claimants| claimants.label().as_deref() == Some(label);
        let hash = |claimants: &Claimants| hash_of(hasher, claimants.label().as_deref().unwrap_or_default());
        match claims.entry(hash_of(hasher, label), is_it, hash) {
            Entry::Occupied(mut claimants) => claimants.get_mut().add(rank),
            Entry::Vacant(place) => drop(place.insert(Claimants::One(rank))),
        }
    }

    /// Takes a link out of the queue for its label.
    pub(super) fn remove(&mut self, label: &[u8], rank: &Rank) {
        let is_it = |claimants: &Claimants| claimants.label().as_deref() == Some(label);
        if let Ok(mut claimants) = self.claims.find_entry(hash_of(&self.hasher, label), is_it)
            && claimants.get_mut().remove(rank)
        {
            claimants.remove();
        }
    }

    /// Returns whose label it is: the claimant that holds it, else the first.
    pub(super) fn winner(&self, label: &[u8], holds: impl Fn(&ServiceKey) -> bool) -> Option<&ServiceKey> {
        let is_it = |claimants: &Claimants| claimants.label().as_deref() == Some(label);
        self.claims.find(hash_of(&self.hasher, label), is_it)?.winner(holds)
    }
}

fn hash_of(hasher: &RandomState, label: &[u8]) -> u64 {
    hasher.hash_one(label)
}
