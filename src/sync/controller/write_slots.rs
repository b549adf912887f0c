//! The writes of a controller that are under way, and their limits: while the writes of one namespace hang, those of
//! other namespaces go on.

use std::collections::HashMap;

use crate::model::service_key::ServiceKey;

#[derive(Debug)]
pub(super) struct WriteSlots {
    max: usize,
    under_way: HashMap<ServiceKey, UnderWay>,
}

/// A write under way.
#[derive(Debug)]
struct UnderWay {
    is_retry: bool,
    /// Whether the desired state has changed since the write began.
    is_superseded: bool,
}

impl WriteSlots {
    /// Creates slots for at most `max` writes at once, at most half of them retries.
    pub(super) fn new(max: usize) -> Self {
        Self { max, under_way: HashMap::new() }
    }

    /// Returns whether no other write, or no other retry, may begin.
    pub(super) fn is_full(&self, for_retry: bool) -> bool {
        let retries = self.under_way.values().filter(|write| write.is_retry);
        self.under_way.len() >= self.max || for_retry && retries.count() >= self.max / 2
    }

    /// Returns whether a write may begin in a namespace: it has at most three quarters, rounded up, of all writes,
    /// and of all retries.
    pub(super) fn has_room(&self, namespace: &str, is_retry: bool) -> bool {
        let of_namespace = || self.under_way.iter().filter(|(key, _)| key.namespace() == namespace);
        let retries = || of_namespace().filter(|(_, write)| write.is_retry);
        let share = |max| max - max / 4;
        !self.is_full(is_retry)
            && of_namespace().count() < share(self.max)
            && (!is_retry || retries().count() < share(self.max / 2))
    }

    pub(super) fn begin(&mut self, key: &ServiceKey, is_retry: bool) {
        self.under_way.insert(key.clone(), UnderWay { is_retry, is_superseded: false });
    }

    /// Ends the write for a key. Returns whether the desired state has changed since it began.
    pub(super) fn end(&mut self, key: &ServiceKey) -> bool {
        self.under_way.remove(key).is_some_and(|write| write.is_superseded)
    }

    /// Records that the desired state of a key has changed.
    pub(super) fn supersede(&mut self, key: &ServiceKey) {
        if let Some(write) = self.under_way.get_mut(key) {
            write.is_superseded = true;
        }
    }

    pub(super) fn contains(&self, key: &ServiceKey) -> bool {
        self.under_way.contains_key(key)
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.under_way.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_has_three_quarters_of_writes_and_of_retries() {
        for (max, writes, retries) in [(1, 1, 0), (2, 2, 1), (4, 3, 2), (8, 6, 3), (16, 12, 6)] {
            for (is_retry, expected) in [(false, writes), (true, retries)] {
                let mut slots = WriteSlots::new(max);
                let keys = (0..max).map(|number| ServiceKey::new("a", &number.to_string()));
                let begun = keys.take_while(|key| {
                    let has_room = slots.has_room("a", is_retry);
                    if has_room {
                        slots.begin(key, is_retry);
                    }
                    has_room
                });
                assert_eq!(begun.count(), expected, "{max} {is_retry}");
                assert_eq!(slots.has_room("b", false), expected < max, "{max} {is_retry}");
            }
        }
    }

    #[test]
    fn all_namespaces_share_the_slots_and_half_of_them_for_retries() {
        let mut slots = WriteSlots::new(4);
        slots.begin(&ServiceKey::new("a", "1"), true);
        slots.begin(&ServiceKey::new("b", "1"), true);
        assert!(!slots.has_room("c", true) && slots.has_room("c", false));
        slots.begin(&ServiceKey::new("c", "1"), false);
        slots.begin(&ServiceKey::new("d", "1"), false);
        assert!(slots.is_full(false) && !slots.has_room("e", false));
        slots.end(&ServiceKey::new("a", "1"));
        assert!(slots.has_room("e", true));
    }
}
