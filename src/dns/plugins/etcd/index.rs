//! The keys of a path in etcd, in memory.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hickory_proto::rr::Name;
use tokio::time::Instant;

use super::gateway::KeyValue;
use super::record::{Service, ValueError};
use crate::dns::message::presentation::{lower_name_text, parse_name};
use crate::model::excerpt::value;
use crate::model::outdated::OutdatedFlag;

/// The maximum memory of the keys of a path, in bytes.
const MAX_MEMORY: usize = 64 << 20;
/// The memory of a key beside its texts, in bytes.
const ENTRY_SIZE: usize = 256;

/// The keys that are followed: a path and what is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The path of names in the root zone, without a slash at its end: `/skydns`, or nothing.
    base: String,
    /// The first key, and the first one after the last key.
    start: Vec<u8>,
    end: Vec<u8>,
}

/// The path of a name.
#[derive(Debug, PartialEq, Eq)]
pub struct NamePath {
    pub text: String,
    /// The length of the part before the first label that stands for any label.
    pub before_wildcard: Option<usize>,
}

#[derive(Debug)]
pub struct Entry {
    pub key: Box<[u8]>,
    mod_revision: u64,
    pub lease: i64,
    /// `None` if key or value aren't right.
    pub service: Option<Service>,
}

/// An entry in the order of the keys.
#[derive(Clone, Debug)]
struct Kept(Arc<Entry>);

/// The keys, with what was read of their leases.
#[derive(Debug, Default)]
pub struct Index {
    entries: BTreeSet<Kept>,
    memory: usize,
    leases: HashMap<i64, Lease>,
    /// Outdates the answers that rest on the keys.
    outdated: OutdatedFlag,
    /// The time of the last change, in seconds since 1970.
    serial: u32,
}

#[derive(Debug, Default)]
struct Lease {
    /// The number of keys with the lease.
    keys: usize,
    times: Option<LeaseTimes>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseTimes {
    granted: Duration,
    ends: Instant,
    read: Instant,
}

/// A list in the making.
#[derive(Debug, Default)]
pub struct Listing {
    entries: BTreeSet<Kept>,
    memory: usize,
    leases: HashMap<i64, Lease>,
    /// The number of entries that have changed since the last list.
    changed: usize,
}

/// Why a key can't be taken.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("the keys take more than {} MiB of memory", MAX_MEMORY >> 20)]
    Full,
    #[error("it sends keys that weren't asked for, or in another order")]
    Misplaced,
}

/// What is wrong with a key, for the log.
pub type Problem = String;

// === impl KeyRange ===

impl KeyRange {
    /// Returns the keys below a path that names in some zones have; `None` if the path can't be that of keys.
    #[must_use]
    pub fn new(path: &str, zones: &[Name]) -> Option<Self> {
        let parts = || path.split('/').filter(|part| !part.is_empty());
        if parts().any(|part| matches!(part, "." | "..")) {
            return None;
        }
        let base: String = parts().flat_map(|part| ["/", part]).collect();
        let mut range = Self { base, start: Vec::new(), end: Vec::new() };
        let paths: Vec<String> = zones.iter().filter_map(|zone| Some(range.path(zone)?.text)).collect();
        let mut common: Vec<&str> = paths.first()?.split('/').collect();
        for path in &paths {
            let same = common.iter().zip(path.split('/')).take_while(|(one, other)| *one == other).count();
            common.truncate(same);
        }
        let common = common.join("/");
        // The base itself may be outside of what a user may read.
        let start = if common == range.base { format!("{common}/") } else { common.clone() };
        (range.start, range.end) = (start.into_bytes(), format!("{common}0").into_bytes());
        Some(range)
    }

    #[must_use]
    pub fn bounds(&self) -> (&[u8], &[u8]) {
        (&self.start, &self.end)
    }

    /// Returns the path of the names in the root zone.
    #[must_use]
    pub fn base(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && *key < *self.end
    }

    /// Returns the path of a name; `None` if keys can't have it.
    #[must_use]
    pub fn path(&self, name: &Name) -> Option<NamePath> {
        let (mut text, mut before_wildcard) = (self.base.clone(), None);
        for label in name.iter().rev() {
            let label = lower_name_text(&Name::from_labels([label]).ok()?);
            let label = label.strip_suffix('.')?;
            // Go's package path removes empty parts.
            if label.split('/').any(str::is_empty) {
                return None;
            }
            if matches!(label, "*" | "any") {
                before_wildcard.get_or_insert(text.len());
            }
            text.push('/');
            text.push_str(label);
        }
        Some(NamePath { text, before_wildcard })
    }

    /// Returns the name of a key; `None` if it isn't the path of a name.
    #[must_use]
    pub fn name(&self, key: &[u8]) -> Option<Name> {
        let below = std::str::from_utf8(key).ok()?.strip_prefix(&*self.base)?.strip_prefix('/')?;
        let parts: Vec<&str> = below.strip_suffix('/').unwrap_or(below).rsplit('/').collect();
        parse_name(&parts.join("."))
    }
}

// === impl Entry ===

impl Entry {
    /// Reads a key that has changed. Also returns what is wrong with it.
    ///
    /// # Errors
    /// If it can't be taken.
    pub fn changed(found: &KeyValue, range: &KeyRange) -> Result<(Self, Option<Problem>), KeyError> {
        if range.contains(&found.key) {
            Ok(Self::read(found, false, range))
        } else {
            Err(KeyError::Misplaced)
        }
    }

    /// Reads a key with its value, which is empty if it is too long. Also returns what is wrong with it.
    fn read(found: &KeyValue, is_too_long: bool, range: &KeyRange) -> (Self, Option<Problem>) {
        let read = match range.name(&found.key) {
            None => Err("it isn't the path of a domain name".to_owned()),
            Some(_) if is_too_long => Err(ValueError::TooLong.to_string()),
            Some(_) => Service::parse(&found.value).map_err(|error| error.to_string()),
        };
        let key = String::from_utf8_lossy(&found.key);
        let problem = read.as_ref().err().map(|why| format!("the key {} is left out: {why}", value(&key)));
        let KeyValue { mod_revision, lease, .. } = *found;
        (Self { key: (*found.key).into(), mod_revision, lease, service: read.ok() }, problem)
    }

    fn memory_size(&self) -> usize {
        ENTRY_SIZE + self.key.len() + self.service.as_ref().map_or(0, Service::heap_size)
    }
}

// === impl Kept ===

impl Borrow<[u8]> for Kept {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Kept {}

// === impl Listing ===

impl Listing {
    /// Adds a key, which has to be after the last one. `known` has the entries of the last list. Returns what is
    /// wrong with the key, unless that is known.
    ///
    /// # Errors
    /// If it can't be taken.
    pub fn add(
        &mut self,
        found: &KeyValue,
        is_too_long: bool,
        range: &KeyRange,
        known: &Index,
    ) -> Result<Option<Problem>, KeyError> {
        if !range.contains(&found.key) || self.last().is_some_and(|last| *last >= *found.key) {
            return Err(KeyError::Misplaced);
        }
        let same = known.entries.get(&*found.key).filter(|entry| {
            entry.0.mod_revision == found.mod_revision
                && found.mod_revision > 0
                && entry.0.lease == found.lease
        });
        let (entry, problem) = match same {
            Some(same) => (same.clone(), None),
            None => {
                self.changed += 1;
                let (entry, problem) = Entry::read(found, is_too_long, range);
                (Kept(Arc::new(entry)), problem)
            }
        };
        self.memory += entry.0.memory_size();
        if self.memory > MAX_MEMORY {
            return Err(KeyError::Full);
        }
        if found.lease != 0 {
            let times = || known.leases.get(&found.lease).and_then(|lease| lease.times);
            self.leases.entry(found.lease).or_insert_with(|| Lease { keys: 0, times: times() }).keys += 1;
        }
        self.entries.insert(entry);
        Ok(problem)
    }

    #[must_use]
    pub fn last(&self) -> Option<&[u8]> {
        self.entries.last().map(Borrow::borrow)
    }
}

// === impl Index ===

impl Index {
    /// Returns the keys of another index, whose leases have to be read again.
    #[must_use]
    pub fn copy(&self) -> Self {
        let unread = |(id, lease): (&i64, &Lease)| (*id, Lease { keys: lease.keys, times: None });
        let leases = self.leases.iter().map(unread).collect();
        let mut copy = Self { entries: self.entries.clone(), memory: self.memory, leases, ..Self::default() };
        copy.note_change();
        copy
    }

    /// Takes a complete list, and returns the keys before: to free them takes time.
    pub fn replace(&mut self, mut listing: Listing) -> Listing {
        let is_same = listing.changed == 0 && listing.entries.len() == self.entries.len() && self.serial > 0;
        std::mem::swap(&mut self.entries, &mut listing.entries);
        std::mem::swap(&mut self.leases, &mut listing.leases);
        self.memory = listing.memory;
        if !is_same {
            self.note_change();
        }
        listing
    }

    /// Takes a key that has changed, and returns what is wrong with it.
    ///
    /// # Errors
    /// If it can't be taken.
    pub fn put(&mut self, found: &KeyValue, range: &KeyRange) -> Result<Option<Problem>, KeyError> {
        let (entry, problem) = Entry::changed(found, range)?;
        self.insert(entry)?;
        Ok(problem)
    }

    /// Takes an entry that has changed.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn insert(&mut self, entry: Entry) -> Result<(), KeyError> {
        let before = self.entries.get(&*entry.key).map_or(0, |before| before.0.memory_size());
        if self.memory - before + entry.memory_size() > MAX_MEMORY {
            return Err(KeyError::Full);
        }
        self.remove(&entry.key);
        self.memory += entry.memory_size();
        if entry.lease != 0 {
            self.leases.entry(entry.lease).or_default().keys += 1;
        }
        self.entries.insert(Kept(Arc::new(entry)));
        self.note_change();
        Ok(())
    }

    /// Removes a key that was deleted, or whose lease has expired.
    pub fn delete(&mut self, key: &[u8]) {
        if self.remove(key) {
            self.note_change();
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(Kept(entry)) = self.entries.take(key) else { return false };
        self.memory -= entry.memory_size();
        if let Place::Occupied(mut lease) = self.leases.entry(entry.lease) {
            lease.get_mut().keys -= 1;
            if lease.get().keys == 0 {
                lease.remove();
            }
        }
        true
    }

    fn note_change(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Serials are numbers of 32 bits (RFC 1982).
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are the serial")]
        let now = now as u32;
        self.serial = now.max(1);
        std::mem::take(&mut self.outdated).set();
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of keys that are left out.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.entries.iter().filter(|entry| entry.0.service.is_none()).count()
    }

    /// Returns the flag of answers that rest on the keys as they are.
    #[must_use]
    pub fn outdated(&self) -> &OutdatedFlag {
        &self.outdated
    }

    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Returns the entry with exactly this key.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path.as_bytes()).map(|kept| &*kept.0)
    }

    /// Returns the entries below a path in the order of their keys; if there are none, the entry with this key.
    pub fn at_or_below(&self, path: &str) -> impl Iterator<Item = &Entry> {
        let prefix = format!("{path}/");
        let from = (Bound::Included(prefix.as_bytes()), Bound::Unbounded);
        let mut below = self.entries.range::<[u8], _>(from).peekable();
        let has_below = below.peek().is_some_and(|kept| kept.0.key.starts_with(prefix.as_bytes()));
        let own = if has_below { None } else { self.at(path) };
        let below = below.map(|kept| &*kept.0);
        below.take_while(move |entry| entry.key.starts_with(prefix.as_bytes())).chain(own)
    }
}

// Leases.

impl Index {
    /// Returns the remaining time of a lease; 0 if it isn't known yet. A client that keeps the lease alive makes it
    /// longer.
    #[must_use]
    pub fn lease_left(&self, lease: i64, now: Instant) -> Duration {
        let times = self.leases.get(&lease).and_then(|lease| lease.times);
        times.map_or(Duration::ZERO, |times| times.ends.saturating_duration_since(now))
    }

    /// Returns leases whose times have to be read, at most `most`: leases with unknown times, and leases that seem
    /// to be half over, the last read one at the end.
    #[must_use]
    pub fn leases_to_read(&self, now: Instant, most: usize) -> Vec<i64> {
        let is_due = |lease: &Lease| {
            lease.times.is_none_or(|LeaseTimes { granted, ends, read }| {
                ends.saturating_duration_since(now) < granted / 2 && now.duration_since(read) > granted / 8
            })
        };
        let due = self.leases.iter().filter(|(_, lease)| is_due(lease));
        let mut due: Vec<(Option<Instant>, i64)> =
            due.map(|(id, lease)| (lease.times.map(|times| times.read), *id)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).take(most).collect()
    }

    /// Notes the times of a lease, which were asked for at `read`.
    pub fn note_lease(&mut self, lease: i64, left: Duration, granted: Duration, read: Instant) {
        /// The longest time that etcd grants.
        const LONGEST: Duration = Duration::from_secs(9_000_000_000);
        if let Some(lease) = self.leases.get_mut(&lease) {
            let ends = read.checked_add(left.min(LONGEST)).unwrap_or(read);
            lease.times = Some(LeaseTimes { granted: granted.min(LONGEST), ends, read });
        }
    }
}

#[cfg(test)]
mod tests;
