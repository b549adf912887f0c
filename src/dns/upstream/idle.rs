//! Sockets and connections that wait for their next question, and the task that closes them when their time is over.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

/// The idle items of a pool.
#[derive(Debug)]
pub(super) struct Idle<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    /// Whether a task closes the items that are over.
    is_swept: bool,
}

impl<T> Default for Idle<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { items: Vec::new(), is_swept: false })))
    }
}

impl<T: Send + 'static> Idle<T> {
    /// Returns the items; the youngest comes last.
    pub(super) fn items(&self) -> MappedMutexGuard<'_, Vec<T>> {
        MutexGuard::map(self.0.lock(), |state| &mut state.items)
    }

    /// Adds an item, if there are fewer than `most`. Once per `interval` the items are closed of which `is_over` says so,
    /// as long as there are any.
    pub(super) fn put(
        &self,
        most: usize,
        item: impl FnOnce() -> Option<T>,
        interval: Duration,
        is_over: impl FnMut(&mut T, Instant) -> bool + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if state.items.len() >= most {
            return;
        }
        let Some(item) = item() else { return };
        state.items.push(item);
        if !state.is_swept {
            state.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0), interval, is_over));
        }
    }
}

/// Closes items until there are none.
async fn sweep<T>(
    idle: Weak<Mutex<State<T>>>,
    interval: Duration,
    mut is_over: impl FnMut(&mut T, Instant) -> bool,
) {
    loop {
        sleep(interval).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut state = idle.lock();
        let now = Instant::now();
        let over: Vec<T> = state.items.extract_if(.., |item| is_over(item, now)).collect();
        state.is_swept = !state.items.is_empty();
        let is_done = !state.is_swept;
        // A look-up that needs an item doesn't wait until these are closed.
        drop(state);
        drop(over);
        if is_done {
            return;
        }
    }
}
