//! A map from queries to values, with limits on its size. Evictions are random, so that an attacker can't predict them.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use indexmap::IndexMap;
use parking_lot::{Mutex, MutexGuard};
use rand::RngExt;

use crate::dns::message::query::{QueryKey, QueryKeyHashing, name_hash};

/// The number of shards with separate locks. All queries about a name are in one shard.
const SHARDS: usize = 64;
/// The minimum capacity of a shard, in entries, unless the whole cache is smaller: some names with all their types.
const MIN_SHARD_CAPACITY: usize = 32;

#[derive(Debug)]
pub(crate) struct ShardedCache<V> {
    shards: Box<[Mutex<CacheShard<V>>]>,
    /// The limits of a shard: entries, and bytes.
    max_shard_entries: usize,
    max_shard_bytes: usize,
    /// The number of entries in all shards.
    len: AtomicUsize,
}

#[derive(Debug)]
struct CacheShard<V> {
    /// The values, and the size of each in bytes.
    values: IndexMap<QueryKey, (V, usize), QueryKeyHashing>,
    bytes: usize,
}

impl<V: Clone> ShardedCache<V> {
    /// Returns an empty map for at most `capacity` entries and `bytes` bytes. It holds less if the entries are unevenly
    /// distributed over the shards.
    pub(crate) fn new(capacity: usize, bytes: usize) -> Self {
        let shards = (capacity / MIN_SHARD_CAPACITY).clamp(1, SHARDS);
        let shard = || Mutex::new(CacheShard { values: IndexMap::default(), bytes: 0 });
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            max_shard_entries: capacity / shards,
            max_shard_bytes: bytes / shards,
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn get(&self, key: &QueryKey) -> Option<V> {
        self.shard(key.name_hash()).values.get(key).map(|(value, _)| value.clone())
    }

    /// Replaces the value of a key by a value of `bytes` bytes. A value that exceeds the limit of a shard isn't stored.
    /// Returns the number of evicted entries of other keys.
    pub(crate) fn put(&self, key: QueryKey, value: V, bytes: usize) -> usize {
        let mut shard = self.shard(key.name_hash());
        self.change(&mut shard, |shard| {
            shard.remove(&key);
            if bytes > self.max_shard_bytes {
                return 0;
            }
            let number = shard.values.len();
            if 0 < number && number == self.max_shard_entries && shard.bytes + bytes <= self.max_shard_bytes {
                // In the place of the evicted entry, so that no other entry moves.
                let victim = rand::rng().random_range(0..number);
                if shard.values.replace_index(victim, key).is_ok() {
                    let (_, freed) = mem::replace(&mut shard.values[victim], (value, bytes));
                    shard.bytes = shard.bytes + bytes - freed;
                }
                return 1;
            }
            let mut evicted = 0;
            while !shard.values.is_empty()
                && (shard.values.len() >= self.max_shard_entries
                    || shard.bytes + bytes > self.max_shard_bytes)
            {
                let victim = rand::rng().random_range(0..shard.values.len());
                if let Some((_, (_, freed))) = shard.values.swap_remove_index(victim) {
                    shard.bytes -= freed;
                    evicted += 1;
                }
            }
            if self.max_shard_entries > 0 {
                shard.bytes += bytes;
                shard.values.insert(key, (value, bytes));
            }
            evicted
        })
    }

    pub(crate) fn remove(&self, key: &QueryKey) -> Option<V> {
        self.change(&mut self.shard(key.name_hash()), |shard| shard.remove(key))
    }

    pub(crate) fn remove_name(&self, name: &[u8]) {
        self.change(&mut self.shard(name_hash(name)), |shard| {
            shard.values.retain(|key, _| *key.name() != *name);
            shard.bytes = shard.values.values().map(|(_, bytes)| bytes).sum();
        });
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            self.change(&mut shard.lock(), |shard| {
                shard.values.clear();
                shard.bytes = 0;
            });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn change<R>(&self, shard: &mut CacheShard<V>, change: impl FnOnce(&mut CacheShard<V>) -> R) -> R {
        let before = shard.values.len();
        let result = change(shard);
        match shard.values.len() {
            after if after >= before => self.len.fetch_add(after - before, Ordering::Relaxed),
            after => self.len.fetch_sub(before - after, Ordering::Relaxed),
        };
        result
    }

    fn shard(&self, name_hash: usize) -> MutexGuard<'_, CacheShard<V>> {
        self.shards[name_hash % self.shards.len()].lock()
    }
}

impl<V> CacheShard<V> {
    fn remove(&mut self, key: &QueryKey) -> Option<V> {
        let (value, freed) = self.values.swap_remove(key)?;
        self.bytes -= freed;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::*;
    use crate::dns::message::query::UpstreamQuery;

    fn key(name: &str, qtype: RecordType) -> QueryKey {
        UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), qtype).key()
    }

    #[test]
    fn entries_never_exceed_the_capacity() {
        for (capacity, at_least) in [(0, 0), (1, 1), (10, 1), (1000, 500)] {
            let map = ShardedCache::new(capacity, usize::MAX);
            let mut evicted = 0;
            for i in 0..5000 {
                evicted += map.put(key(&format!("{i}.example."), RecordType::A), i, 1);
                assert!(map.len() <= capacity, "{} > {capacity}", map.len());
            }
            assert_eq!(evicted, if capacity == 0 { 0 } else { 5000 - map.len() });
            assert!(map.len() >= at_least, "{} of {capacity}", map.len());
        }
    }

    #[test]
    fn name_is_removed_with_all_types_in_any_case() {
        let map = ShardedCache::new(100, usize::MAX);
        for name in ["a.example.", "b.example.", "x.a.example."] {
            for qtype in [RecordType::A, RecordType::AAAA] {
                map.put(key(name, qtype), name, 1);
            }
        }
        assert_eq!(map.get(&key("A.Example.", RecordType::A)), Some("a.example."));
        map.remove_name(key("A.example.", RecordType::TXT).name());
        assert_eq!(map.get(&key("a.example.", RecordType::AAAA)), None);
        assert_eq!(map.len(), 4);
        map.remove(&key("b.example.", RecordType::A));
        assert_eq!(map.len(), 3);
        map.clear();
        assert_eq!(map.len(), 0);
    }

    #[test]
    fn size_never_exceeds_the_byte_limit() {
        let map = ShardedCache::new(10_000, 64_000);
        let bytes =
            |map: &ShardedCache<usize>| map.shards.iter().map(|shard| shard.lock().bytes).sum::<usize>();
        for i in 0..5000 {
            map.put(key(&format!("{i}.example."), RecordType::A), i, i % 700);
            map.put(key(&format!("{}.example.", i / 2), RecordType::A), i, 100);
            map.remove(&key(&format!("{}.example.", i / 3), RecordType::A));
            map.remove_name(key(&format!("{}.example.", i / 4), RecordType::A).name());
            assert!(bytes(&map) <= 64_000);
        }
        assert!(bytes(&map) > 32_000, "{}", bytes(&map));
        let counted: usize =
            map.shards.iter().map(|s| s.lock().values.values().map(|(_, bytes)| bytes).sum::<usize>()).sum();
        assert_eq!(counted, bytes(&map));
        // A value that is too large for a shard isn't inserted, and evicts nothing.
        let before = map.len();
        assert_eq!(map.put(key("big.example.", RecordType::A), 0, 1001), 0);
        assert_eq!(map.len(), before);
        assert_eq!(map.len(), map.shards.iter().map(|shard| shard.lock().values.len()).sum::<usize>());
    }
}
