//! A concurrent hash table of links. Keys are derived from the links, not stored.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::model::link::Link;

/// Number of shards. Each of them has a lock and grows on its own.
const SHARDS: usize = 32;

/// An entry of a table.
pub(super) trait TableEntry {
    fn link(&self) -> &Arc<Link>;

    /// Returns the key of the entry.
    fn key(&self) -> Cow<'_, [u8]>;

    /// Returns whether the key of the entry equals `name`.
    fn matches(&self, name: &[u8]) -> bool;
}

/// A link by the key of its Service.
#[derive(Debug)]
pub(super) struct Keyed(pub(super) Arc<Link>);

/// A link by its name `<service>.<namespace>` in wire form.
#[derive(Debug)]
pub(super) struct Dotted(pub(super) Arc<Link>);

/// A link by its label `<service>-<namespace>` in wire form.
#[derive(Debug)]
pub(super) struct Dashed(pub(super) Arc<Link>);

/// A link by one of its custom hostnames in wire form.
#[derive(Debug)]
pub(super) struct Custom {
    pub(super) name: Box<[u8]>,
    pub(super) link: Arc<Link>,
}

#[derive(Debug)]
pub(super) struct Table<P> {
    shards: [Shard<P>; SHARDS],
    hasher: RandomState,
}

/// A shard. The alignment of two cache lines, which the processor fetches together, keeps readers of one shard from
/// slowing those of another.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<P>(RwLock<HashTable<P>>);

impl<P> Default for Table<P> {
    fn default() -> Self {
        let shard = |_| Shard(RwLock::new(HashTable::new()));
        Self { shards: std::array::from_fn(shard), hasher: RandomState::new() }
    }
}

impl<P: TableEntry> Table<P> {
    /// Returns the link that has this name.
    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Link>> {
        let (hash, shard) = self.shard(name);
        shard.read().find(hash, |place| place.matches(name)).map(|place| Arc::clone(place.link()))
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let (hash, shard) = self.shard(name);
        shard.read().find(hash, |place| place.matches(name)).is_some()
    }

    /// Changes the entry of this key. Readers of its shard wait meanwhile.
    pub(super) fn change<T>(&self, name: &[u8], change: impl FnOnce(Entry<'_, P>) -> T) -> T {
        let (hash, shard) = self.shard(name);
        // A panic of another writer leaves the shard usable: each step is complete in itself.
        let mut places = shard.0.write();
        let hash_of = |place: &P| self.hasher.hash_one(&*place.key());
        change(places.entry(hash, |place| place.matches(name), hash_of))
    }

    /// Inserts an entry. Returns the previous entry of its key.
    pub(super) fn insert(&self, place: P) -> Option<P> {
        let name = place.key().into_owned();
        self.change(&name, |entry| match entry {
            Entry::Occupied(mut known) => Some(std::mem::replace(known.get_mut(), place)),
            Entry::Vacant(free) => {
                free.insert(place);
                None
            }
        })
    }

    pub(super) fn remove(&self, name: &[u8]) -> Option<P> {
        self.change(name, |entry| match entry {
            Entry::Occupied(known) => Some(known.remove().0),
            Entry::Vacant(_) => None,
        })
    }

    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().iter().map(|place| Arc::clone(place.link())));
        }
        all
    }

    fn shard(&self, name: &[u8]) -> (u64, &Shard<P>) {
        let hash = self.hasher.hash_one(name);
        // Within a shard, hashbrown uses the lowest and the highest bits of the hash.
        (hash, &self.shards[(hash >> 40) as usize % SHARDS])
    }
}

impl<P> Shard<P> {
    fn read(&self) -> RwLockReadGuard<'_, HashTable<P>> {
        self.0.read()
    }
}

impl TableEntry for Keyed {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn key(&self) -> Cow<'_, [u8]> {
        self.0.key.bytes().into()
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.0.key.bytes() == name
    }
}

impl TableEntry for Dotted {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn key(&self) -> Cow<'_, [u8]> {
        self.0.key.dotted().unwrap_or_default().into()
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.0.key.is_dotted(name)
    }
}

impl TableEntry for Dashed {
    fn link(&self) -> &Arc<Link> {
        &self.0
    }

    fn key(&self) -> Cow<'_, [u8]> {
        self.0.key.label().unwrap_or_default().into()
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.0.key.is_label(name)
    }
}

impl TableEntry for Custom {
    fn link(&self) -> &Arc<Link> {
        &self.link
    }

    fn key(&self) -> Cow<'_, [u8]> {
        (&*self.name).into()
    }

    fn matches(&self, name: &[u8]) -> bool {
        *self.name == *name
    }
}
