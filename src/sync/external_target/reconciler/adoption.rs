//! Paces the writes that add this instance's name to objects that name no instance: an upgrade mustn't cause thousands
//! of writes at once.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::service_key::ServiceKey;

/// Delay of the first write that adds the instance's name: after a start, other writes are more urgent.
pub(super) const FIRST_DELAY: Duration = Duration::from_secs(60);
/// Pause between two writes that add the instance's name.
const NEXT_DELAY: Duration = Duration::from_secs(1);

/// The links with an object that names no instance.
#[derive(Debug, Default)]
pub(super) struct AdoptionQueue {
    waiting: BTreeSet<ServiceKey>,
    /// The time of the next turn.
    due: Option<Instant>,
    /// The link that may write.
    turn: Option<ServiceKey>,
}

impl AdoptionQueue {
    /// Returns whether a link may write now; otherwise it waits for its turn.
    pub(super) fn may_write(&mut self, key: &ServiceKey, now: Instant) -> bool {
        if self.turn.take_if(|turn| turn == key).is_some() {
            return true;
        }
        self.waiting.insert(key.clone());
        self.due.get_or_insert(now + FIRST_DELAY);
        false
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins the next turn, and returns its link.
    pub(super) fn next(&mut self, now: Instant) -> Option<ServiceKey> {
        self.turn = self.waiting.pop_first();
        // The timer is set once more after the last link, so that links found a moment later are paced, too.
        self.due = self.turn.is_some().then(|| now + NEXT_DELAY);
        self.turn.clone()
    }

    /// Forgets a link that has nothing to adopt.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.waiting.remove(key);
    }

    /// Forgets all links, because this process doesn't lead any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_are_adopted_one_per_second_after_a_minute() {
        let (mut queue, start) = (AdoptionQueue::default(), Instant::now());
        let keys: Vec<ServiceKey> = (0..5).map(|i| ServiceKey::new("a", &i.to_string())).collect();
        for key in &keys {
            assert!(!queue.may_write(key, start));
            assert!(!queue.may_write(key, start), "asking twice changes nothing");
        }
        for (i, key) in keys.iter().enumerate() {
            let due = queue.due().unwrap();
            assert_eq!(due, start + FIRST_DELAY + NEXT_DELAY * u32::try_from(i).unwrap());
            assert_eq!(queue.next(due).as_ref(), Some(key));
            assert!(!queue.may_write(&ServiceKey::new("b", "b"), due), "it is another link's turn");
            queue.forget(&ServiceKey::new("b", "b"));
            assert!(queue.may_write(key, due));
        }
        let after = queue.due().unwrap();
        assert_eq!(queue.next(after), None);
        assert_eq!(queue.due(), None);
    }
}
