//! Keys that wait for a write: namespaces take turns, so that the keys of one namespace don't delay those of another.
//! The caller of `pop` sets the limits.

use std::collections::{HashMap, VecDeque};

use crate::model::service_key::ServiceKey;

/// The keys of each namespace in the order in which they were added, and the order of the namespaces.
#[derive(Debug, Default)]
pub(super) struct FairKeys {
    by_namespace: HashMap<Box<str>, VecDeque<ServiceKey>>,
    /// The namespaces with keys, each once; the next one comes first.
    turns: VecDeque<Box<str>>,
}

impl FairKeys {
    pub(super) fn push(&mut self, key: ServiceKey) {
        if let Some(keys) = self.by_namespace.get_mut(key.namespace()) {
            return keys.push_back(key);
        }
        let namespace: Box<str> = key.namespace().into();
        self.turns.push_back(namespace.clone());
        self.by_namespace.insert(namespace, VecDeque::from([key]));
    }

    /// Takes the first key of the next namespace for which `has_room` is true.
    pub(super) fn pop(&mut self, has_room: impl Fn(&str) -> bool) -> Option<ServiceKey> {
        let turn = self.turns.iter().position(|namespace| has_room(namespace))?;
        let namespace = self.turns.remove(turn)?;
        let keys = self.by_namespace.get_mut(&namespace)?;
        let key = keys.pop_front();
        if keys.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Frees the memory that removed namespaces have left.
    pub(super) fn shrink_to_fit(&mut self) {
        self.by_namespace.shrink_to_fit();
        self.turns.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_keys_keep_their_order() {
        let mut waiting = FairKeys::default();
        let key = |text: &str| {
            let (namespace, name) = text.split_once('/').unwrap();
            ServiceKey::new(namespace, name)
        };
        for text in ["a/1", "a/2", "a/3", "b/1", "b/2", "c/1"] {
            waiting.push(key(text));
        }
        let mut next =
            |blocked: &str| waiting.pop(|namespace| namespace != blocked).map(|key| key.to_string());
        assert_eq!(next("a").as_deref(), Some("b/1"));
        assert_eq!(next("").as_deref(), Some("a/1"), "a blocked namespace keeps its turn");
        let taken: Vec<String> = std::iter::from_fn(|| next("")).collect();
        assert_eq!(taken, ["c/1", "b/2", "a/2", "a/3"]);
        assert!(waiting.is_empty() && waiting.by_namespace.is_empty());
        waiting.push(key("a/1"));
        assert_eq!(waiting.pop(|_| false), None);
        assert_eq!(waiting.pop(|_| true), Some(key("a/1")));
    }
}
