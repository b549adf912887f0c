//! The links that want a name, in the order in which they get it.

use std::hash::{BuildHasher, RandomState};
use std::slice;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::model::service_key::ServiceKey;

/// A link's place in the queue for a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) created: i64,
    pub(crate) key: ServiceKey,
}

/// Which names there are queues for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum NameKind {
    /// Labels `<service>-<namespace>`, in wire form.
    Label,
    /// Names of external targets.
    ExternalTarget,
    /// Names that links ask for, in wire form.
    #[default]
    Extra,
}

/// The links that want a name, the oldest first.
#[derive(Debug)]
enum ClaimQueue {
    /// One link, whose default name it is: the name is derived, not stored. Nearly all queues are such.
    Default(Claim),
    Contested(Box<ContestedName>),
}

#[derive(Debug)]
struct ContestedName {
    name: Box<[u8]>,
    ranks: Vec<Claim>,
}

/// For each name the links that want it.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    kind: NameKind,
    queues: HashTable<ClaimQueue>,
    hasher: RandomState,
}

// === impl Kind ===

impl NameKind {
    /// Returns whether a link likes that name best.
    fn is_first(self, name: &[u8], key: &ServiceKey) -> bool {
        match self {
            Self::Label => key.is_label(name),
            Self::ExternalTarget => key.is_external_target(name),
            Self::Extra => false,
        }
    }

    /// Returns the queue of these links, if there are any.
    fn queue(self, name: &[u8], mut ranks: Vec<Claim>) -> Option<ClaimQueue> {
        if let [only] = &ranks[..]
            && self.is_first(name, &only.key)
        {
            return ranks.pop().map(ClaimQueue::Default);
        }
        (!ranks.is_empty())
            .then(|| ClaimQueue::Contested(Box::new(ContestedName { name: name.into(), ranks })))
    }

    /// Returns the name that a link likes best.
    fn first(self, key: &ServiceKey) -> Vec<u8> {
        match self {
            Self::Label => key.label().unwrap_or_default(),
            Self::ExternalTarget => key.external_target().into(),
            Self::Extra => Vec::new(),
        }
    }
}

// === impl Queue ===

impl ClaimQueue {
    fn is_for(&self, name: &[u8], kind: NameKind) -> bool {
        match self {
            Self::Default(only) => kind.is_first(name, &only.key),
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

// === impl Claims ===

impl Claims {
    pub(crate) fn of(kind: NameKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Puts a link into the queue for a name.
    pub(crate) fn add(&mut self, name: &[u8], rank: Claim) {
        self.change(name, |ranks| {
            if let Err(place) = ranks.binary_search(&rank) {
                ranks.insert(place, rank);
            }
        });
    }

    /// Takes a link out of the queue for a name.
    pub(crate) fn remove(&mut self, name: &[u8], rank: &Claim) {
        self.change(name, |ranks| ranks.retain(|other| other != rank));
    }

    /// Returns the links that want a name, in the order in which they get it.
    pub(crate) fn ranks(&self, name: &[u8]) -> &[Claim] {
        let queue = self.queues.find(self.hasher.hash_one(name), |queue| queue.is_for(name, self.kind));
        queue.map(ClaimQueue::ranks).unwrap_or_default()
    }

    /// Returns whose name it is: the claimant that holds it, else the first.
    pub(crate) fn winner(&self, name: &[u8], holds: impl Fn(&ServiceKey) -> bool) -> Option<&Claim> {
        let ranks = self.ranks(name);
        // Nearly always there is just one.
        let holder = if ranks.len() > 1 { ranks.iter().find(|rank| holds(&rank.key)) } else { None };
        holder.or(ranks.first())
    }

    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Vec<Claim>)) {
        let Self { kind, queues, hasher } = self;
        let hash = |queue: &ClaimQueue| match queue {
            ClaimQueue::Default(only) => hasher.hash_one(&*kind.first(&only.key)),
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
