//! Singleflight: concurrent look-ups with equal keys share one call.

use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures::future::{BoxFuture, FutureExt};
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tracing::error;

use crate::dns::message::query::QueryKeyHashing;
use crate::dns::net::thread_tasks;

/// A handle of a task that waits for a look-up. The result is a `T`; `None` if the look-up panicked, or was abandoned
/// at the end of the runtime.
pub(crate) struct Call<T: Send + 'static> {
    since: Instant,
    role: CallRole<T>,
}

/// The task that started a look-up polls it; tasks that joined get its result. Usually no task joins.
enum CallRole<T: Send + 'static> {
    Driver(CallDriver<T>),
    Waiter(CallResult<T>),
}

/// The result of a look-up, for tasks that joined.
type CallResult<T> = Arc<SetOnce<Option<T>>>;

impl<T: Clone + Send + Sync + 'static> Call<T> {
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for the result. If the task that started the look-up is dropped before, a new task continues the look-up.
    pub(crate) async fn wait(self) -> Option<T> {
        match self.role {
            CallRole::Driver(driver) => driver.await,
            CallRole::Waiter(result) => Box::pin(result.wait()).await.clone(),
        }
    }
}

/// Polls the look-up in the task that started it.
struct CallDriver<T: Send + 'static>(Option<BoxFuture<'static, Option<T>>>);

impl<T: Send + 'static> Future for CallDriver<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(look_up) = &mut self.0 else { return Poll::Ready(None) };
        let output = ready!(look_up.poll_unpin(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for CallDriver<T> {
    fn drop(&mut self) {
        if let Some(look_up) = self.0.take() {
            // It stays on this thread, to which its timers belong, and ends at its deadline at the latest.
            thread_tasks::spawn(look_up.map(drop));
        }
    }
}

/// All look-ups under way, keyed by `K`, which begins with the key of a query.
#[derive(Debug)]
pub(crate) struct Group<K: Eq + Hash, T> {
    calls: Arc<DashMap<K, CallEntry<T>, QueryKeyHashing>>,
}

/// The entry of a look-up that tasks can join.
#[derive(Debug)]
struct CallEntry<T> {
    since: Instant,
    result: CallResult<T>,
}

impl<T: Send + 'static> CallEntry<T> {
    fn join(&self) -> Call<T> {
        Call { since: self.since, role: CallRole::Waiter(Arc::clone(&self.result)) }
    }
}

impl<K: Eq + Hash, T> Default for Group<K, T> {
    fn default() -> Self {
        Self { calls: Arc::default() }
    }
}

impl<K, T> Group<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(crate) fn in_flight(&self, key: &K) -> Option<Call<T>> {
        self.calls.get(key).map(|calls| calls.join())
    }

    /// Joins the look-up with this key, or starts the future that `look_up` returns. `take` gets the result before all
    /// waiting tasks, unless the key was forgotten meanwhile. A caller that has started the look-up has to await or
    /// drop the handle, because other tasks may wait for the result.
    ///
    /// # Errors
    /// The error of `look_up`.
    pub(crate) fn join_or_start<F, E>(
        &self,
        key: &K,
        look_up: impl FnOnce() -> Result<F, E>,
        take: impl FnOnce(&T) + Send + 'static,
    ) -> Result<Call<T>, E>
    where
        F: Future<Output = T> + Send + 'static,
    {
        // Usually the key has no entry yet, and the entry API avoids a second search.
        let entry = match self.calls.entry(key.clone()) {
            Entry::Occupied(entry) => return Ok(entry.get().join()),
            Entry::Vacant(entry) => entry,
        };
        let look_up = look_up()?;
        let result = CallResult::default();
        let place = EntryGuard {
            calls: Arc::clone(&self.calls),
            key: key.clone(),
            result: Some(Arc::clone(&result)),
        };
        let looking = look_up.map(|output| {
            place.complete(&output, take);
            output
        });
        let driver = AssertUnwindSafe(looking)
            .catch_unwind()
            .map(|output| output.inspect_err(|_| error!("a look-up panicked")).ok());
        let since = Instant::now();
        entry.insert(CallEntry { since, result });
        Ok(Call { since, role: CallRole::Driver(CallDriver(Some(driver.boxed()))) })
    }

    /// Returns the keys of the look-ups that can be joined.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<K> {
        self.calls.iter().map(|calls| calls.key().clone()).collect()
    }

    /// Prevents further tasks from joining the look-ups whose key `is_meant` accepts, and their results from reaching
    /// `take`.
    pub(crate) fn forget(&self, is_meant: impl Fn(&K) -> bool) {
        self.calls.retain(|key, _| !is_meant(key));
    }
}

/// Removes the entry of a look-up when it ends, even by a panic.
struct EntryGuard<K: Eq + Hash, T> {
    calls: Arc<DashMap<K, CallEntry<T>, QueryKeyHashing>>,
    key: K,
    /// `None` after the removal.
    result: Option<CallResult<T>>,
}

impl<K: Eq + Hash, T> EntryGuard<K, T> {
    /// Removes the entry and publishes the result. A concurrent `forget` comes either before `take`, which then isn't
    /// called, or after `take`.
    fn complete(mut self, output: &T, take: impl FnOnce(&T))
    where
        T: Clone,
    {
        let Some(result) = &self.result else { return };
        self.remove_entry(result, || take(output));
        // Without the entry no task can join any more; the result is published only if a task has joined.
        if Arc::strong_count(result) > 1 {
            let _ = result.set(Some(output.clone()));
        }
        self.result = None;
    }

    /// Removes the entry from the map, unless it was forgotten and replaced by the entry of another look-up.
    fn remove_entry(&self, result: &CallResult<T>, before: impl FnOnce()) {
        self.calls.remove_if(&self.key, |_, calls| {
            let is_ours = Arc::ptr_eq(&calls.result, result);
            if is_ours {
                before();
            }
            is_ours
        });
    }
}

impl<K: Eq + Hash, T> Drop for EntryGuard<K, T> {
    fn drop(&mut self) {
        if let Some(result) = self.result.take() {
            self.remove_entry(&result, || {});
            let _ = result.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use futures::future::join_all;
    use tokio::sync::oneshot;
    use tokio::task::{JoinSet, yield_now};
    use tokio::time::timeout;

    use super::*;

    const CALL_TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn look_up_continues_without_waiting_tasks() {
        let lookups_in_flight = Group::<u8, u8>::default();
        let (end, ended) = oneshot::channel();
        let (taken, took) = oneshot::channel();
        let look_up = || Ok::<_, Infallible>(async move { ended.await.unwrap_or_default() });
        let Ok(call) = lookups_in_flight.join_or_start(&1, look_up, |result| _ = taken.send(*result));
        let joined = lookups_in_flight.in_flight(&1).unwrap();
        assert_eq!(joined.wait().now_or_never(), None);
        assert_eq!(call.wait().now_or_never(), None);
        end.send(7).unwrap();
        assert_eq!(took.await, Ok(7));
        assert_eq!(lookups_in_flight.keys(), [0; 0]);
    }

    #[tokio::test]
    async fn joined_look_up_ends_after_its_driver_is_dropped() {
        let lookups_in_flight = Group::<u8, u8>::default();
        let (end, ended) = oneshot::channel();
        let look_up = || Ok::<_, Infallible>(async move { ended.await.unwrap_or_default() });
        let Ok(started) = lookups_in_flight.join_or_start(&1, look_up, |_| panic!("it was forgotten"));
        let mut joined: Vec<_> =
            (0..2).map(|_| Box::pin(lookups_in_flight.in_flight(&1).unwrap().wait())).collect();
        assert_eq!((&mut joined[0]).now_or_never(), None);
        drop(started);
        lookups_in_flight.forget(|_| true);
        let Ok(_anew) = lookups_in_flight.join_or_start(&1, || Ok::<_, Infallible>(pending()), |_| {});
        end.send(7).unwrap();
        let told = timeout(CALL_TIMEOUT, join_all(joined)).await.expect("every waiting task gets the result");
        assert_eq!(told, [Some(7), Some(7)]);
        assert_eq!(
            lookups_in_flight.keys(),
            [1],
            "the end of a forgotten look-up doesn't remove the new one"
        );
    }

    #[tokio::test]
    async fn panic_ends_the_look_up_for_all_waiting_tasks() {
        let lookups_in_flight = Group::<u8, u8>::default();
        let fly = |look_up: fn() -> u8, take: fn(&u8)| {
            let look_up = || Ok::<_, Infallible>(async move { look_up() });
            let Ok(call) = lookups_in_flight.join_or_start(&1, look_up, take);
            call.wait()
        };
        type LookUp = fn() -> u8;
        type Take = fn(&u8);
        let defects: [(LookUp, Take); 2] =
            [(|| panic!("a defect"), |_| {}), (|| 1, |_| panic!("another one"))];
        for (look_up, take) in defects {
            let (one, other) = (fly(look_up, take), fly(|| 1, |_| {}));
            assert_eq!((one.await, other.await), (None, None));
        }
        assert_eq!(fly(|| 2, |_| {}).await, Some(2));
    }

    #[tokio::test]
    async fn result_of_an_unshared_look_up_isnt_cloned() {
        struct Only;
        impl Clone for Only {
            fn clone(&self) -> Self {
                panic!("the result has one receiver");
            }
        }
        let lookups_in_flight = Group::<u8, Only>::default();
        let Ok(call) = lookups_in_flight.join_or_start(&1, || Ok::<_, Infallible>(async { Only }), |_| {});
        assert!(call.wait().await.is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_joins_and_starts_all_get_a_result() {
        let lookups_in_flight = Arc::new(Group::<u8, u8>::default());
        let fly = async move |lookups_in_flight: Arc<Group<u8, u8>>| {
            let look_up = async {
                yield_now().await;
                7
            };
            let Ok(call) = lookups_in_flight.join_or_start(&1, || Ok::<_, Infallible>(look_up), |_| {});
            call.wait().await
        };
        let all: JoinSet<_> = (0..20_000).map(|_| fly(Arc::clone(&lookups_in_flight))).collect();
        let told = timeout(CALL_TIMEOUT, all.join_all()).await.expect("every waiting task gets the result");
        assert!(told.iter().all(|output| *output == Some(7)));
        assert_eq!(lookups_in_flight.keys(), [0; 0]);
    }

    #[test]
    fn waiting_task_gets_none_if_no_runtime_is_left() {
        let lookups_in_flight = Group::<u8, u8>::default();
        let Ok(started) = lookups_in_flight.join_or_start(&1, || Ok::<_, Infallible>(pending()), |_| {});
        let joined = lookups_in_flight.in_flight(&1).unwrap();
        drop(started);
        assert_eq!(joined.wait().now_or_never(), Some(None));
    }
}
