//! Links, found by something that they tell themselves: nothing is kept beside them.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::model::link::Link;

/// In how many parts a table is, each of which grows, and waits for writers, by itself.
const SHARDS: usize = 32;

/// A link in a table.
pub(super) trait Place {
    fn link(&self) -> &Arc<Link>;

    /// Returns what it is found by.
    fn name(&self) -> Cow<'_, [u8]>;

    /// Returns whether that is its name.
    fn is(&self, name: &[u8]) -> bool;
}

/// A link, found by the key of its Service.
#[derive(Debug)]
pub(super) struct Keyed(pub(super) Arc<Link>);

/// A link, found by its name `<service>.<namespace>` in wire form.
#[derive(Debug)]
pub(super) struct Dotted(pub(super) Arc<Link>);

/// A link, found by its label `<service>-<namespace>` in wire form.
#[derive(Debug)]
pub(super) struct Dashed(pub(super) Arc<Link>);

/// A link, found by a name in wire form that it asks for.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) name: Box<[u8]>,
    pub(super) link: Arc<Link>,
}

/// A concurrent table of links.
#[derive(Debug)]
pub(super) struct Table<P> {
    shards: [Shard<P>; SHARDS],
    hasher: RandomState,
}

/// Two cache lines of its own, which the processor fetches together: readers of one shard don't delay those of another
/// shard.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<P>(RwLock<HashTable<P>>);

// === impl Table ===

impl<P> Default for Table<P> {
    fn default() -> Self {
        let shard = |_| Shard(RwLock::new(HashTable::new()));
        Self { shards: std::array::from_fn(shard), hasher: RandomState::new() }
    }
}

impl<P: Place> Table<P> {
    /// Returns the link that has this name.
    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Link>> {
        let (hash, shard) = self.shard(name);
        shard.read().find(hash, |place| place.is(name)).map(|place| Arc::clone(place.link()))
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let (hash, shard) = self.shard(name);
        shard.read().find(hash, |place| place.is(name)).is_some()
    }

    /// Changes the entry of this name. Readers of its shard wait meanwhile.
    pub(super) fn change<T>(&self, name: &[u8], change: impl FnOnce(Entry<'_, P>) -> T) -> T {
        let (hash, shard) = self.shard(name);
        // A panic of another writer leaves it usable: each step stands for itself.
        let mut places = shard.0.write();
        let hash_of = |place: &P| self.hasher.hash_one(&*place.name());
        change(places.entry(hash, |place| place.is(name), hash_of))
    }

    /// Puts a link in. Returns the link that had its name.
    pub(super) fn insert(&self, place: P) -> Option<P> {
        let name = place.name().into_owned();
        self.change(&name, |entry| match entry {
            Entry::Occupied(mut known) => Some(std::mem::replace(known.get_mut(), place)),
            Entry::Vacant(free) => {
                free.insert(place);
                None
            }
        })
    }

    /// Takes a link out.
    pub(super) fn remove(&self, name: &[u8]) -> Option<P> {
        self.change(name, |entry| match entry {
            Entry::Occupied(known) => Some(known.remove().0),
            Entry::Vacant(_) => None,
        })
    }

    /// Returns all links, in no order.
    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().iter().map(|place| Arc::clone(place.link())));
        }
        all
    }

    fn shard(&self, name: &[u8]) -> (u64, &Shard<P>) {
        let hash = self.hasher.hash_one(name);
        // Within a part the lowest bits and the highest ones tell places apart.
        (hash, &self.shards[(hash >> 40) as usize % SHARDS])
    }
}

impl<P> Shard<P> {
    fn read(&self) -> RwLockReadGuard<'_, HashTable<P>> {
        self.0.read()
    }
}

// === impl Place ===

impl Place for Keyed {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn name(&self) -> Cow<'_, [u8]> {
        self.0.key.bytes().into()
    }

    fn is(&self, name: &[u8]) -> bool {
        self.0.key.bytes() == name
    }
}

impl Place for Dotted {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn name(&self) -> Cow<'_, [u8]> {
        self.0.key.dotted().unwrap_or_default().into()
    }

    fn is(&self, name: &[u8]) -> bool {
        self.0.key.is_dotted(name)
    }
}

impl Place for Dashed {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn name(&self) -> Cow<'_, [u8]> {
        self.0.key.label().unwrap_or_default().into()
    }

    fn is(&self, name: &[u8]) -> bool {
        self.0.key.is_label(name)
    }
}

impl Place for Extra {
    fn link(&self) -> &Arc<Link> {
        &self.link
    }

    fn name(&self) -> Cow<'_, [u8]> {
        (&*self.name).into()
    }

    fn is(&self, name: &[u8]) -> bool {
        *self.name == *name
    }
}
