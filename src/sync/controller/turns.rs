//! Items that wait, by namespace: namespaces take turns, so that the items of one namespace don't delay those of
//! another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use crate::sync::controller::limits::Usage;

/// The items of each namespace in their order, and the order of the namespaces. An item may wait in several namespaces,
/// each with a copy of its own.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    by_namespace: HashMap<Arc<str>, Waiting<T>>,
    /// The namespaces with items, the next one first.
    order: BTreeMap<u64, Arc<str>>,
    turns_given: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The place of the namespace in the order of namespaces.
    turn: u64,
    items: BTreeMap<u64, T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { by_namespace: HashMap::new(), order: BTreeMap::new(), turns_given: 0 }
    }
}

impl<T> Turns<T> {
    /// Adds an item to a namespace. The items of a namespace are taken in the order of `number`; an item with an equal
    /// number is replaced.
    pub(crate) fn add(&mut self, namespace: &str, number: u64, item: T) {
        if let Some(waiting) = self.by_namespace.get_mut(namespace) {
            waiting.items.insert(number, item);
            return;
        }
        let (namespace, turn) = (Arc::<str>::from(namespace), self.next_turn());
        self.order.insert(turn, Arc::clone(&namespace));
        self.by_namespace.insert(namespace, Waiting { turn, items: BTreeMap::from([(number, item)]) });
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, namespace: &str, number: u64) {
        let Some(waiting) = self.by_namespace.get_mut(namespace) else { return };
        waiting.items.remove(&number);
        if waiting.items.is_empty() {
            self.order.remove(&waiting.turn);
            self.by_namespace.remove(namespace);
        }
    }

    /// Takes the first item of the next namespace for which `has_room` is true.
    pub(crate) fn take(&mut self, has_room: impl Fn(&str) -> bool) -> Option<(Arc<str>, T)> {
        let turn = *self.order.iter().find(|(_, namespace)| has_room(namespace))?.0;
        let namespace = self.order.remove(&turn)?;
        let next_turn = self.next_turn();
        let waiting = self.by_namespace.get_mut(&namespace)?;
        let (_, item) = waiting.items.pop_first()?;
        if waiting.items.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            waiting.turn = next_turn;
            self.order.insert(next_turn, Arc::clone(&namespace));
        }
        Some((namespace, item))
    }

    /// Takes the next item that the limits allow to begin: of a namespace that has begun less than its share, if there
    /// is one. The caller counts the beginning in `usage`.
    pub(crate) fn take_within(&mut self, usage: &mut Usage, now: Instant) -> Option<(Arc<str>, T)> {
        usage.forget_starts(now);
        if usage.is_full() || usage.next_start(now) > now {
            return None;
        }
        self.take(|namespace| usage.has_room(namespace) && usage.is_below_share(namespace))
            .or_else(|| self.take(|namespace| usage.has_room(namespace)))
    }

    /// Returns when [`Self::take_within`] has an item; `None` if nothing waits, or if something under way must end
    /// first.
    pub(crate) fn due(&self, usage: &Usage, now: Instant) -> Option<Instant> {
        let has_room = !usage.is_full() && self.order.values().any(|namespace| usage.has_room(namespace));
        has_room.then(|| usage.next_start(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of items of a namespace.
    pub(crate) fn number_in(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).map_or(0, |waiting| waiting.items.len())
    }

    /// Frees the memory that removed namespaces have left.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.by_namespace.shrink_to_fit();
    }

    fn next_turn(&mut self) -> u64 {
        self.turns_given += 1;
        self.turns_given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_items_keep_their_order() {
        let mut turns = Turns::default();
        for (number, text) in ["a/1", "a/2", "a/3", "b/1", "b/2", "c/1"].into_iter().enumerate() {
            turns.add(&text[..1], number as u64, text);
        }
        turns.remove("c", 7);
        assert_eq!((turns.number_in("a"), turns.number_in("d")), (3, 0));
        let mut next = |blocked: &str| turns.take(|namespace| namespace != blocked).map(|(_, item)| item);
        assert_eq!(next("a"), Some("b/1"));
        assert_eq!(next(""), Some("a/1"), "a blocked namespace keeps its turn");
        let taken: Vec<&str> = std::iter::from_fn(|| next("")).collect();
        assert_eq!(taken, ["c/1", "b/2", "a/2", "a/3"]);
        assert!(turns.is_empty() && turns.by_namespace.is_empty());
        turns.add("a", 1, "a/1");
        assert_eq!(turns.take(|_| false), None);
        turns.remove("a", 1);
        assert_eq!(turns.take(|_| true), None);
    }
}
