//! A pool of idle connections, with a task that closes expired ones.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

#[derive(Debug)]
pub(super) struct IdlePool<T>(Arc<Mutex<IdlePoolState<T>>>);

#[derive(Debug)]
struct IdlePoolState<T> {
    items: Vec<T>,
    /// The task that closes expired items; `None` after it has closed the last one.
    sweep: Option<AbortOnDropHandle<()>>,
}

impl<T> Default for IdlePool<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(IdlePoolState { items: Vec::new(), sweep: None })))
    }
}

impl<T: Send + 'static> IdlePool<T> {
    /// Locks the pool and returns its items. `put` appends; a caller may change the order.
    pub(super) fn items(&self) -> MappedMutexGuard<'_, Vec<T>> {
        MutexGuard::map(self.0.lock(), |state| &mut state.items)
    }

    /// Adds the result of `item`, if it is `Some` and the pool has fewer than `most` items. As long as there are
    /// items, a task closes those for which `is_over` returns true, once per `interval`.
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
        let ended = state.sweep.as_mut().map_or(Some(Ok(())), FutureExt::now_or_never);
        if let Some(ended) = ended {
            if let Err(error) = ended {
                error!(
                    "the task that closes idle connections to upstreams has failed: {error}; it is started again"
                );
            }
            let task = tokio::spawn(sweep(Arc::downgrade(&self.0), interval, is_over));
            state.sweep = Some(AbortOnDropHandle::new(task));
        }
    }
}

/// Closes expired items until none is left.
async fn sweep<T>(
    idle: Weak<Mutex<IdlePoolState<T>>>,
    interval: Duration,
    mut is_over: impl FnMut(&mut T, Instant) -> bool,
) {
    loop {
        sleep(interval).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut state = idle.lock();
        let now = Instant::now();
        let over: Vec<T> = state.items.extract_if(.., |item| is_over(item, now)).collect();
        let is_done = state.items.is_empty();
        if is_done {
            // An item that is added from now on starts another task.
            drop(state.sweep.take().map(AbortOnDropHandle::detach));
        }
        // Unlocks the pool before the items are closed, so that look-ups needn't wait.
        drop(state);
        drop(over);
        if is_done {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn sweep_that_panicked_starts_again() {
        let idle = IdlePool::default();
        idle.put(2, || Some(1), INTERVAL, |_, _| panic!("on purpose"));
        sleep(2 * INTERVAL).await;
        idle.put(2, || Some(2), INTERVAL, |_, _| true);
        sleep(2 * INTERVAL).await;
        assert!(idle.items().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn sweep_goes_on_while_there_are_items() {
        let idle = IdlePool::default();
        for _ in 0..2 {
            let end = Instant::now() + 5 * INTERVAL;
            idle.put(1, || Some(()), INTERVAL, move |(), now| now > end);
            sleep(4 * INTERVAL).await;
            assert_eq!(idle.items().len(), 1);
            sleep(3 * INTERVAL).await;
            assert!(idle.items().is_empty());
        }
    }
}
