//! The claims of links for names, in order of precedence.

use std::hash::{BuildHasher, RandomState};
use std::slice;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::model::service_key::ServiceKey;

/// A link's claim for a name. Claims sort by precedence: the oldest first, then by key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) created: i64,
    pub(crate) key: ServiceKey,
}

/// The kind of names that a set of claims is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum NameKind {
    /// Labels `<service>-<namespace>`, in wire form.
    Label,
    ExternalTarget,
    /// Custom hostnames, in wire form.
    #[default]
    CustomHostname,
}

/// The claims for one name, in order of precedence.
#[derive(Debug)]
enum ClaimQueue {
    /// A single claim of a link for its default name: the name is derived, not stored. Nearly all queues are of
    /// this kind.
    Default(Claim),
    Contested(Box<ContestedName>),
}

#[derive(Debug)]
struct ContestedName {
    name: Box<[u8]>,
    ranks: Vec<Claim>,
}

/// The claims for all names of one kind.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    kind: NameKind,
    queues: HashTable<ClaimQueue>,
    hasher: RandomState,
}

impl NameKind {
    /// Returns whether the name is the default name of a link.
    fn is_default(self, name: &[u8], key: &ServiceKey) -> bool {
        match self {
            Self::Label => key.is_label(name),
            Self::ExternalTarget => key.is_external_target(name),
            Self::CustomHostname => false,
        }
    }

    /// Returns the queue of these claims, or `None` if there are none.
    fn queue(self, name: &[u8], mut ranks: Vec<Claim>) -> Option<ClaimQueue> {
        if let [only] = &ranks[..]
            && self.is_default(name, &only.key)
        {
            return ranks.pop().map(ClaimQueue::Default);
        }
        (!ranks.is_empty())
            .then(|| ClaimQueue::Contested(Box::new(ContestedName { name: name.into(), ranks })))
    }

    /// Returns the default name of a link.
    fn default_name(self, key: &ServiceKey) -> Vec<u8> {
        match self {
            Self::Label => key.label().unwrap_or_default(),
            Self::ExternalTarget => key.external_target().into(),
            Self::CustomHostname => Vec::new(),
        }
    }
}

impl ClaimQueue {
    fn is_for(&self, name: &[u8], kind: NameKind) -> bool {
        match self {
            Self::Default(only) => kind.is_default(name, &only.key),
            Self::Contested(other) => *other.name == *name,
        }
    }

    fn ranks(&self) -> &[Claim] {
        match self {
            Self::Default(only) => slice::from_ref(only),
            Self::Contested(other) => &other.ranks,
        }
    }
}

impl Claims {
    pub(crate) fn of(kind: NameKind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub(crate) fn add(&mut self, name: &[u8], rank: Claim) {
        self.change(name, |ranks| {
            if let Err(place) = ranks.binary_search(&rank) {
                ranks.insert(place, rank);
            }
        });
    }

    pub(crate) fn remove(&mut self, name: &[u8], rank: &Claim) {
        self.change(name, |ranks| ranks.retain(|other| other != rank));
    }

    /// Returns the claims for a name, in order of precedence.
    pub(crate) fn claims_for(&self, name: &[u8]) -> &[Claim] {
        let queue = self.queues.find(self.hasher.hash_one(name), |queue| queue.is_for(name, self.kind));
        queue.map(ClaimQueue::ranks).unwrap_or_default()
    }

    /// Returns the winning claim: that of the present owner, else the first.
    pub(crate) fn winner(&self, name: &[u8], holds: impl Fn(&ServiceKey) -> bool) -> Option<&Claim> {
        let ranks = self.claims_for(name);
        // Fast path: nearly every name has a single claim.
        let holder = if ranks.len() > 1 { ranks.iter().find(|rank| holds(&rank.key)) } else { None };
        holder.or(ranks.first())
    }

    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Vec<Claim>)) {
        let Self { kind, queues, hasher } = self;
        let hash = |queue: &ClaimQueue| match queue {
            ClaimQueue::Default(only) => hasher.hash_one(&*kind.default_name(&only.key)),
            ClaimQueue::Contested(other) => hasher.hash_one(&*other.name),
        };
        match queues.entry(hasher.hash_one(name), |queue| queue.is_for(name, *kind), hash) {
            Entry::Occupied(mut queue) => {
                let mut ranks = queue.get().ranks().to_vec();
                change(&mut ranks);
                match kind.queue(name, ranks) {
                    Some(changed) => *queue.get_mut() = changed,
                    None => drop(queue.remove()),
                }
            }
            Entry::Vacant(place) => {
                let mut ranks = Vec::new();
                change(&mut ranks);
                if let Some(queue) = kind.queue(name, ranks) {
                    place.insert(queue);
                }
            }
        }
    }
}
