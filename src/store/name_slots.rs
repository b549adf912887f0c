//! What answers about names that don't exist rest on, and answers of wildcard names.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;

/// The number of slots. With 2,000 kept answers, each of which rests on at most seven slots, a name that comes or goes
/// outdates about 0.02 % of the answers that it has nothing to do with.
const SLOTS: usize = 1 << 16;

/// The names of an index that begin or cease to exist, counted in slots by their hash.
#[derive(Debug)]
pub(super) struct NameSlots {
    hasher: RandomState,
    slots: Box<[AtomicU32]>,
    /// Counts changes of unknown extent.
    epoch: AtomicU32,
    /// Odd while a change is in progress.
    changes: AtomicU64,
    /// Whether the present writer has let a name lead elsewhere.
    changed: AtomicBool,
}

/// A change in progress, which ends on drop.
#[derive(Debug)]
pub(super) struct ChangeGuard<'a>(&'a AtomicU64);

/// The state of names, some of which don't exist, at the time of an answer that rests on them.
#[derive(Clone, Debug)]
pub struct NameDependency {
    names: Arc<NameSlots>,
    epoch: u32,
    slots: SmallVec<[(u16, u32); 7]>,
    /// Whether names changed during the look-up, so that it may have seen names before the change.
    is_outdated: bool,
}

impl Default for NameSlots {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            epoch: AtomicU32::new(0),
            changes: AtomicU64::new(0),
            changed: AtomicBool::new(false),
        }
    }
}

impl NameSlots {
    /// Returns the slot of a name of a tree.
    #[expect(clippy::cast_possible_truncation, reason = "there are 2^16 slots")]
    pub(super) fn slot_of(&self, tree: u8, name: &[u8]) -> u16 {
        self.hasher.hash_one((tree, name)) as u16
    }

    /// Begins a change by which the names of these slots begin or cease to exist. It ends when the returned guard is
    /// dropped. Writers are serialized.
    pub(super) fn begin(&self, slots: impl IntoIterator<Item = u16>) -> ChangeGuard<'_> {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let guard = ChangeGuard(&self.changes);
        for slot in slots {
            self.slots[usize::from(slot)].fetch_add(1, Ordering::AcqRel);
        }
        guard
    }

    /// Records that a name leads elsewhere.
    pub(super) fn set_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Returns whether a name leads elsewhere since the last call.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// Outdates everything that rests on names.
    pub(super) fn outdate_all(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl NameDependency {
    /// Returns a dependency on changes of unknown extent from now on, and the number of changes before the look-up whose
    /// result may be kept.
    pub(super) fn on_all(names: &Arc<NameSlots>) -> (Self, u64) {
        let epoch = names.epoch.load(Ordering::Acquire);
        let all = Self { names: Arc::clone(names), epoch, slots: SmallVec::new(), is_outdated: false };
        (all, names.changes.load(Ordering::Acquire))
    }

    /// Adds slots after a look-up. `changes` is the number of changes before it.
    pub(super) fn with_slots(mut self, slots: impl IntoIterator<Item = u16>, changes: u64) -> Self {
        let read = |slot: u16| (slot, self.names.slots[usize::from(slot)].load(Ordering::Acquire));
        self.slots.extend(slots.into_iter().map(read));
        self.is_outdated =
            !changes.is_multiple_of(2) || self.names.changes.load(Ordering::Acquire) != changes;
        self
    }

    /// Returns whether both are about the names of the same store.
    #[must_use]
    pub fn is_of_same_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.names, &other.names)
    }

    /// Adds what another answer of the same store rests on.
    pub fn add(&mut self, other: &Self) {
        self.is_outdated |= other.is_outdated || self.epoch != other.epoch;
        for slot in &other.slots {
            if !self.slots.contains(slot) {
                self.slots.push(*slot);
            }
        }
    }

    /// Returns the approximate memory in bytes, without that of the store's slots.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.slots)
    }

    /// Returns whether none of the names has begun or ceased to exist.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let is_current = |(slot, count): &(u16, u32)| {
            self.names.slots[usize::from(*slot)].load(Ordering::Acquire) == *count
        };
        !self.is_outdated
            && self.names.epoch.load(Ordering::Acquire) == self.epoch
            && self.slots.iter().all(is_current)
    }
}
