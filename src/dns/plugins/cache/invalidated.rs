//! Recently invalidated names: an answer to a query that was sent before the invalidation isn't stored.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long an invalidated name is kept at least, unless there are more than [`MAX_NAMES`]. When the name is removed,
/// all queries sent before its invalidation count as invalidated.
const RETENTION: Duration = Duration::from_secs(10);
const MAX_NAMES: usize = 4096;

/// The invalidated names, oldest first.
#[derive(Debug, Default)]
pub(super) struct InvalidatedNames {
    /// The number of the next invalidation; changes with the lock held.
    next: AtomicU64,
    state: Mutex<InvalidatedState>,
}

#[derive(Debug, Default)]
struct InvalidatedState {
    names: VecDeque<InvalidatedName>,
    /// A query with a mark below this number counts as invalidated, whatever its name.
    all_before: u64,
}

#[derive(Debug)]
struct InvalidatedName {
    number: u64,
    at: Instant,
    name: Box<[u8]>,
}

/// The number of invalidations when a query was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryMark(u64);

impl InvalidatedNames {
    pub(super) fn mark(&self) -> QueryMark {
        QueryMark(self.next.load(Ordering::SeqCst))
    }

    /// Adds an invalidated name; `None` invalidates all names.
    pub(super) fn add(&self, name: Option<&[u8]>) {
        let mut inner = self.state.lock();
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let Some(name) = name else {
            inner.names.clear();
            inner.all_before = number + 1;
            return;
        };
        inner.names.push_back(InvalidatedName { number, at: Instant::now(), name: name.into() });
        while inner.names.len() > MAX_NAMES
            || inner.names.front().is_some_and(|oldest| oldest.at.elapsed() > RETENTION)
        {
            // The removed name can't be compared any more, so all older queries count as invalidated.
            if let Some(oldest) = inner.names.pop_front() {
                inner.all_before = oldest.number + 1;
            }
        }
    }

    /// Returns whether a name was invalidated after a query for it was sent.
    pub(super) fn is_invalidated_since(&self, query_mark: QueryMark, name: &[u8]) -> bool {
        // Usually nothing was invalidated meanwhile.
        if self.next.load(Ordering::SeqCst) == query_mark.0 {
            return false;
        }
        let inner = self.state.lock();
        let later = inner.names.iter().rev().take_while(|entry| entry.number >= query_mark.0);
        query_mark.0 < inner.all_before || later.into_iter().any(|entry| *entry.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_queries_before_the_invalidation_are_affected() {
        let invalidated = InvalidatedNames::default();
        let before = invalidated.mark();
        invalidated.add(Some(b"a"));
        let after = invalidated.mark();
        assert!(invalidated.is_invalidated_since(before, b"a"));
        assert!(!invalidated.is_invalidated_since(before, b"b"));
        assert!(!invalidated.is_invalidated_since(after, b"a"));
        invalidated.add(None);
        assert!(invalidated.is_invalidated_since(after, b"b"));
        assert!(!invalidated.is_invalidated_since(invalidated.mark(), b"b"));
    }

    #[tokio::test(start_paused = true)]
    async fn queries_before_the_oldest_entry_count_as_invalidated() {
        let invalidated = InvalidatedNames::default();
        let before = invalidated.mark();
        for i in 0..=MAX_NAMES {
            invalidated.add(Some(i.to_string().as_bytes()));
        }
        assert_eq!(invalidated.state.lock().names.len(), MAX_NAMES);
        assert!(invalidated.is_invalidated_since(before, b"a"));
        let after = invalidated.mark();
        advance(RETENTION + Duration::from_secs(1)).await;
        invalidated.add(Some(b"a"));
        assert_eq!(invalidated.state.lock().names.len(), 1);
        assert!(invalidated.is_invalidated_since(after, b"a"));
        assert!(!invalidated.is_invalidated_since(after, b"b"));
    }
}
