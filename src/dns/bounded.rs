//! A map of questions with a bound on its size: what is too much is dropped at random, so that nobody
//! can foresee what goes.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use indexmap::map::Entry;
use rand::RngExt;

use super::question::Key;

/// Parts that are locked one by one. All questions about a name are in one part.
const SHARDS: usize = 64;
/// What a part should have room for: all types of some names.
const ROOM: usize = 32;

/// A map from questions to something.
#[derive(Debug)]
pub(super) struct Bounded<V> {
    shards: Box<[Mutex<IndexMap<Key, V>>]>,
    hasher: RandomState,
    /// How many a shard may hold.
    room: usize,
}

impl<V: Clone> Bounded<V> {
    /// Returns an empty map for about `capacity` questions: never more, and less where they are spread
    /// unevenly.
    pub(super) fn new(capacity: usize) -> Self {
        let shards = (capacity / ROOM).clamp(1, SHARDS);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            room: capacity / shards,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<V> {
        self.shard(&key.name).get(key).cloned()
    }

    /// Puts a value in. Returns whether another one had to go for it.
    pub(super) fn put(&self, key: Key, value: V) -> bool {
        let mut shard = self.shard(&key.name);
        let size = shard.len();
        match shard.entry(key) {
            Entry::Occupied(mut entry) => {
                entry.insert(value);
                false
            }
            Entry::Vacant(_) if self.room == 0 => false,
            Entry::Vacant(entry) => {
                entry.insert(value);
                let full = size >= self.room;
                if full {
                    shard.swap_remove_index(rand::rng().random_range(0..size));
                }
                full
            }
        }
    }

    pub(super) fn remove(&self, key: &Key) {
        self.shard(&key.name).swap_remove(key);
    }

    /// Removes everything about a name.
    pub(super) fn remove_name(&self, name: &[u8]) {
        self.shard(name).retain(|key, _| *key.name != *name);
    }

    pub(super) fn clear(&self) {
        for shard in &self.shards {
            lock(shard).clear();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, name: &[u8]) -> MutexGuard<'_, IndexMap<Key, V>> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
        let hash = self.hasher.hash_one(name) as usize;
        lock(&self.shards[hash % self.shards.len()])
    }
}

fn lock<V>(shard: &Mutex<IndexMap<Key, V>>) -> MutexGuard<'_, IndexMap<Key, V>> {
    // A map is whole after a panic, too.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::super::question::Question;
    use super::*;

    fn key(name: &str, qtype: RecordType) -> Key {
        Question::plain(Name::from_ascii(name).unwrap(), qtype).key()
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        for (capacity, at_least) in [(0, 0), (1, 1), (10, 1), (1000, 500)] {
            let map = Bounded::new(capacity);
            for i in 0..5000 {
                map.put(key(&format!("{i}.example."), RecordType::A), i);
                assert!(map.len() <= capacity, "{} > {capacity}", map.len());
            }
            assert!(map.len() >= at_least, "{} of {capacity}", map.len());
        }
    }

    #[test]
    fn a_name_goes_with_all_its_types_and_in_any_case() {
        let map = Bounded::new(100);
        for name in ["a.example.", "b.example.", "x.a.example."] {
            for qtype in [RecordType::A, RecordType::AAAA] {
                map.put(key(name, qtype), name);
            }
        }
        assert_eq!(map.get(&key("A.Example.", RecordType::A)), Some("a.example."));
        map.remove_name(&key("A.example.", RecordType::TXT).name);
        assert_eq!(map.get(&key("a.example.", RecordType::AAAA)), None);
        assert_eq!(map.len(), 4);
        map.remove(&key("b.example.", RecordType::A));
        assert_eq!(map.len(), 3);
        map.clear();
        assert_eq!(map.len(), 0);
    }
}
