//! How much of what the objects of a namespace ask for counts. Pure.

use std::collections::{BTreeMap, HashMap};

use super::shared::ObjectId;

/// Maximum size of what the objects of a source and namespace ask for, in bytes: some 30,000 names.
pub const MAX_BYTES: usize = 32 << 20;

/// When an object was created, and the object: the oldest ones count.
type Age = (i64, ObjectId);

/// The namespaces of a source.
#[derive(Debug, Default)]
pub struct Bounds {
    of_namespace: HashMap<Box<str>, Bound>,
    /// Whether there is room for objects that didn't count. What they ask for isn't kept: they have to be listed.
    pub has_room: bool,
}

/// A namespace.
#[derive(Debug, Default)]
struct Bound {
    /// The size of all that counts.
    bytes: usize,
    /// `None` if all objects count.
    excess: Option<Excess>,
}

/// What is known of a namespace where not all objects count.
#[derive(Debug)]
struct Excess {
    /// The objects that count, and their sizes.
    counting: BTreeMap<Age, usize>,
    /// The oldest object that doesn't count, and its size. All younger ones don't count, too.
    first: (Age, usize),
}

impl Bounds {
    /// Takes a change of an object: when it was created, and its size before, if it counted, and now, if it asks for
    /// something. `others` returns the other objects of the namespace that count. Returns the objects that don't count
    /// from here on; the changed one is among them each time.
    pub fn set(
        &mut self,
        id: &ObjectId,
        before: Option<(i64, usize)>,
        now: Option<(i64, usize)>,
        others: impl FnOnce() -> BTreeMap<Age, usize>,
    ) -> Vec<ObjectId> {
        let namespace = id.key.namespace();
        let mut bound = self.of_namespace.remove(namespace).unwrap_or_default();
        let evicted = bound.set(id, before, now, others);
        if bound.excess.as_ref().is_some_and(|excess| bound.bytes + excess.first.1 <= MAX_BYTES) {
            bound.excess = None;
            self.has_room = true;
        }
        if bound.bytes > 0 || bound.excess.is_some() {
            self.of_namespace.insert(namespace.into(), bound);
        }
        evicted
    }
}

impl Bound {
    fn set(
        &mut self,
        id: &ObjectId,
        before: Option<(i64, usize)>,
        now: Option<(i64, usize)>,
        others: impl FnOnce() -> BTreeMap<Age, usize>,
    ) -> Vec<ObjectId> {
        let age = |created: i64| (created, id.clone());
        if let Some((created, size)) = before {
            self.bytes -= size;
            if let Some(excess) = &mut self.excess {
                excess.counting.remove(&age(created));
            }
        }
        if let Some(excess) = self.excess.as_mut().filter(|excess| excess.first.0.1 == *id) {
            // Without it the next one may have room.
            excess.first.1 = 0;
        }
        let Some((created, size)) = now else { return Vec::new() };
        if let Some(excess) = self.excess.as_mut() {
            if excess.first.0 < age(created) {
                return vec![id.clone()];
            }
            excess.counting.insert(age(created), size);
        }
        self.bytes += size;
        let mut evicted = Vec::new();
        if self.bytes > MAX_BYTES {
            let mut all = self.excess.take().map_or_else(others, |excess| excess.counting);
            all.insert(age(created), size);
            let mut first = None;
            while self.bytes > MAX_BYTES
                && let Some((age, size)) = all.pop_last()
            {
                self.bytes -= size;
                evicted.push(age.1.clone());
                first = Some((age, size));
            }
            self.excess = first.map(|first| Excess { counting: all, first });
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::model::service_key::ServiceKey;
    use crate::sync::events::RegardingKind;

    const PART: usize = MAX_BYTES / 10;

    fn id(name: usize) -> ObjectId {
        ObjectId { key: ServiceKey::new("a", &name.to_string()), kind: RegardingKind::Ingress }
    }

    /// The objects of a namespace, with what counts.
    #[derive(Debug, Default)]
    struct World {
        bounds: Bounds,
        objects: BTreeMap<usize, (i64, usize)>,
        counting: BTreeMap<Age, usize>,
    }

    impl World {
        /// Sets when an object was created, and its size in tenths of the bound.
        fn set(&mut self, name: usize, now: Option<(i64, usize)>) {
            let known = self.objects.remove(&name);
            let before = known.filter(|(created, _)| self.counting.remove(&(*created, id(name))).is_some());
            let in_bytes = |(created, parts): (i64, usize)| (created, parts * PART);
            let others = || self.counting.clone();
            let evicted = self.bounds.set(&id(name), before.map(in_bytes), now.map(in_bytes), others);
            if let Some((created, size)) = now.map(in_bytes) {
                self.counting.insert((created, id(name)), size);
            }
            self.objects.extend(now.map(|now| (name, now)));
            self.counting.retain(|(_, id), _| !evicted.contains(id));
        }

        fn list(&mut self) {
            let all: Vec<_> = self.objects.iter().map(|(name, now)| (*name, *now)).collect();
            all.into_iter().for_each(|(name, now)| self.set(name, Some(now)));
        }

        fn shown(&self) -> String {
            self.counting.keys().map(|(_, id)| id.key.name()).collect::<Vec<_>>().join(" ")
        }

        /// Returns the oldest objects that fit.
        fn expected(&self) -> String {
            let mut all: Vec<_> =
                self.objects.iter().map(|(name, (created, size))| ((*created, id(*name)), size)).collect();
            all.sort();
            let mut parts = 0;
            let fitting = all.iter().take_while(|(_, size)| {
                parts += **size;
                parts <= 10
            });
            fitting.map(|((_, id), _)| id.key.name()).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn oldest_objects_of_a_namespace_count() {
        let mut world = World::default();
        for (name, created) in [(0, 9), (1, 8), (2, 7), (3, 6), (4, 5)] {
            world.set(name, Some((created, 3)));
        }
        assert_eq!(world.shown(), "4 3 2");
        world.set(3, Some((6, 4)));
        assert_eq!(world.shown(), "4 3 2", "it fits exactly");
        world.set(3, Some((6, 5)));
        assert_eq!(world.shown(), "4 3");
        assert!(!world.bounds.has_room);
        world.set(4, None);
        assert!(world.bounds.has_room);
        world.list();
        assert_eq!(world.shown(), "3 2");
        for name in 0..5 {
            world.set(name, None);
        }
        assert!(world.bounds.of_namespace.is_empty());
    }

    #[test]
    fn same_objects_count_after_any_history() {
        let mut random = StdRng::seed_from_u64(1);
        let mut world = World::default();
        for _ in 0..20_000 {
            let now = (random.random_range(0..10), random.random_range(1..=4));
            world.set(random.random_range(0..12), random.random_bool(0.7).then_some(now));
            if random.random_bool(0.2) {
                // Room may arise during a list, too.
                while std::mem::take(&mut world.bounds.has_room) {
                    world.list();
                }
                assert_eq!(world.shown(), world.expected(), "{world:?}");
            }
        }
    }
}
