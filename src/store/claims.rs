//! Who gets a name that several links want.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::ServiceKey;

/// A link's place in the queue for a name: the oldest Service first, then by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    created: i64,
    key: ServiceKey,
}

impl Rank {
    /// Returns the rank of the Service `key`; without a creation time only its name counts.
    pub(super) fn new(created: Option<i64>, key: &ServiceKey) -> Self {
        Self { created: created.unwrap_or(i64::MIN), key: key.clone() }
    }
}

/// For each name the links that want it, best rank first.
#[derive(Debug)]
pub(super) struct Claims<N>(HashMap<N, BTreeSet<Rank>>);

impl<N> Default for Claims<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<N: Eq + Hash> Claims<N> {
    /// Adds a claim.
    pub(super) fn add(&mut self, name: N, rank: Rank) {
        self.0.entry(name).or_default().insert(rank);
    }

    /// Takes a claim back.
    pub(super) fn remove(&mut self, name: &N, rank: &Rank) {
        if let Some(claimants) = self.0.get_mut(name) {
            claimants.remove(rank);
            if claimants.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// Returns whose name it is.
    pub(super) fn winner(&self, name: &N) -> Option<&ServiceKey> {
        self.0.get(name)?.first().map(|rank| &rank.key)
    }
}
