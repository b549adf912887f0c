//! Look-ups under way: a question that is asked already isn't asked again.

use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tracing::error;

/// A look-up, for a task that waits for it. What comes out of it is a `T`; nothing after a panic, or if it was given up at
/// the end of the process.
pub(crate) struct Call<T: Send + 'static> {
    since: Instant,
    role: CallRole<T>,
}

/// The task that has started a look-up drives it; further tasks get its result. Nearly always there are none.
enum CallRole<T: Send + 'static> {
    Driver(CallDriver<T>),
    Passenger(CallResult<T>),
}

/// What has come out of a look-up.
type CallResult<T> = Arc<SetOnce<Option<T>>>;

impl<T: Clone + Send + Sync + 'static> Call<T> {
    /// How long it has been under way.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for its end. If the task that has started it gives up before, a new task goes on with it.
    pub(crate) async fn landed(self) -> Option<T> {
        match self.role {
            CallRole::Driver(driver) => driver.await,
            CallRole::Passenger(landing) => landing.wait().await.clone(),
        }
    }
}

/// The task that has started a look-up.
struct CallDriver<T: Send + 'static>(Option<BoxFuture<'static, Option<T>>>);

impl<T: Send + 'static> Future for CallDriver<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(look_up) = &mut self.0 else { return Poll::Ready(None) };
        let landed = ready!(look_up.poll_unpin(context));
        self.0 = None;
        Poll::Ready(landed)
    }
}

impl<T: Send + 'static> Drop for CallDriver<T> {
    fn drop(&mut self) {
        // At the end of the process there is no runtime for it.
        if let Some(look_up) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            // The task ends itself, at the deadline of the look-up at the latest.
            runtime.spawn(look_up);
        }
    }
}

/// All look-ups under way, by what makes two of them one.
#[derive(Debug)]
pub(crate) struct Group<K: Eq + Hash, T> {
    calls: Arc<DashMap<K, CallEntry<T>>>,
}

/// A look-up as others find it.
#[derive(Debug)]
struct CallEntry<T> {
    since: Instant,
    landing: CallResult<T>,
}

impl<T: Send + 'static> CallEntry<T> {
    fn join(&self) -> Call<T> {
        Call { since: self.since, role: CallRole::Passenger(Arc::clone(&self.landing)) }
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
    /// Returns the look-up of that question that is under way.
    pub(crate) fn under_way(&self, key: &K) -> Option<Call<T>> {
        self.calls.get(key).map(|calls| calls.join())
    }

    /// Returns the look-up of that question, or starts one: `look_up` gives the future that it consists
    /// of, unless it can't begin. What comes out of it is shown to `take` first, unless the name was
    /// forgotten meanwhile. The caller that has started it has to wait for it, or drop it: other tasks wait for it, too.
    ///
    /// # Errors
    /// If `look_up` can't begin.
    pub(crate) fn join_or_start<F, E>(
        &self,
        key: &K,
        look_up: impl FnOnce() -> Result<F, E>,
        take: impl FnOnce(&T) + Send + 'static,
    ) -> Result<Call<T>, E>
    where
        F: Future<Output = T> + Send + 'static,
    {
        // Mostly it isn't there, and then the entry is needed anyway.
        let entry = match self.calls.entry(key.clone()) {
            Entry::Occupied(entry) => return Ok(entry.get().join()),
            Entry::Vacant(entry) => entry,
        };
        let look_up = look_up()?;
        let landing = CallResult::default();
        let place = EntryGuard {
            calls: Arc::clone(&self.calls),
            key: key.clone(),
            landing: Some(Arc::clone(&landing)),
        };
        let looking = look_up.map(|landed| {
            place.leave(&landed, take);
            landed
        });
        let driver = AssertUnwindSafe(looking)
            .catch_unwind()
            .map(|landed| landed.inspect_err(|_| error!("a look-up panicked")).ok());
        let since = Instant::now();
        entry.insert(CallEntry { since, landing });
        Ok(Call { since, role: CallRole::Driver(CallDriver(Some(driver.boxed()))) })
    }

    /// Returns which look-ups are under way that others could join.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<K> {
        self.calls.iter().map(|calls| calls.key().clone()).collect()
    }

    /// Lets no further task join these look-ups, nor keep their results.
    pub(crate) fn forget(&self, is_meant: impl Fn(&K) -> bool) {
        self.calls.retain(|key, _| !is_meant(key));
    }
}

/// The place of a look-up among those under way. It is left even in a panic.
struct EntryGuard<K: Eq + Hash, T> {
    calls: Arc<DashMap<K, CallEntry<T>>>,
    key: K,
    /// Nothing once it is left.
    landing: Option<CallResult<T>>,
}

impl<K: Eq + Hash, T> EntryGuard<K, T> {
    /// Leaves it. A concurrent `forget` of the name comes either before `take`, which isn't called
    /// then, or after it.
    fn leave(mut self, landed: &T, take: impl FnOnce(&T))
    where
        T: Clone,
    {
        let Some(landing) = &self.landing else { return };
        self.give_up(landing, || take(landed));
        // Fast path: no task has joined, and none can any more.
        if Arc::strong_count(landing) > 1 {
            let _ = landing.set(Some(landed.clone()));
        }
        self.landing = None;
    }

    /// Removes it from the map, unless it was forgotten and another look-up has taken its place.
    fn give_up(&self, landing: &CallResult<T>, before: impl FnOnce()) {
        self.calls.remove_if(&self.key, |_, calls| {
            let is_ours = Arc::ptr_eq(&calls.landing, landing);
            if is_ours {
                before();
            }
            is_ours
        });
    }
}

impl<K: Eq + Hash, T> Drop for EntryGuard<K, T> {
    fn drop(&mut self) {
        if let Some(landing) = self.landing.take() {
            self.give_up(&landing, || {});
            let _ = landing.set(None);
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
    async fn a_look_up_goes_on_when_nobody_waits_for_it_any_more() {
        let flights = Group::<u8, u8>::default();
        let (end, ended) = oneshot::channel();
        let (taken, took) = oneshot::channel();
        let look_up = || Ok::<_, Infallible>(async move { ended.await.unwrap_or_default() });
        let Ok(flight) = flights.join_or_start(&1, look_up, |landing| _ = taken.send(*landing));
        let joined = flights.under_way(&1).unwrap();
        assert_eq!(joined.landed().now_or_never(), None);
        assert_eq!(flight.landed().now_or_never(), None);
        end.send(7).unwrap();
        assert_eq!(took.await, Ok(7));
        assert_eq!(flights.keys(), [0; 0]);
    }

    #[tokio::test]
    async fn joined_flight_lands_though_its_first_asker_is_gone() {
        let flights = Group::<u8, u8>::default();
        let (end, ended) = oneshot::channel();
        let look_up = || Ok::<_, Infallible>(async move { ended.await.unwrap_or_default() });
        let Ok(started) = flights.join_or_start(&1, look_up, |_| panic!("it was forgotten"));
        let mut joined: Vec<_> = (0..2).map(|_| Box::pin(flights.under_way(&1).unwrap().landed())).collect();
        assert_eq!((&mut joined[0]).now_or_never(), None);
        drop(started);
        flights.forget(|_| true);
        let Ok(_anew) = flights.join_or_start(&1, || Ok::<_, Infallible>(pending()), |_| {});
        end.send(7).unwrap();
        let told = timeout(CALL_TIMEOUT, join_all(joined)).await.expect("nobody waits in vain");
        assert_eq!(told, [Some(7), Some(7)]);
        assert_eq!(flights.keys(), [1], "the new one isn't taken for the one that was forgotten");
    }

    #[tokio::test]
    async fn one_that_panics_has_ended_for_all_who_wait() {
        let flights = Group::<u8, u8>::default();
        let fly = |look_up: fn() -> u8, take: fn(&u8)| {
            let look_up = || Ok::<_, Infallible>(async move { look_up() });
            let Ok(flight) = flights.join_or_start(&1, look_up, take);
            flight.landed()
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
    async fn what_nobody_else_waits_for_isnt_cloned() {
        struct Only;
        impl Clone for Only {
            fn clone(&self) -> Self {
                panic!("nobody needs another one");
            }
        }
        let flights = Group::<u8, Only>::default();
        let Ok(flight) = flights.join_or_start(&1, || Ok::<_, Infallible>(async { Only }), |_| {});
        assert!(flight.landed().await.is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn all_who_join_or_start_at_once_are_told() {
        let flights = Arc::new(Group::<u8, u8>::default());
        let fly = async move |flights: Arc<Group<u8, u8>>| {
            let look_up = async {
                yield_now().await;
                7
            };
            let Ok(flight) = flights.join_or_start(&1, || Ok::<_, Infallible>(look_up), |_| {});
            flight.landed().await
        };
        let all: JoinSet<_> = (0..20_000).map(|_| fly(Arc::clone(&flights))).collect();
        let told = timeout(CALL_TIMEOUT, all.join_all()).await.expect("nobody waits in vain");
        assert!(told.iter().all(|landed| *landed == Some(7)));
        assert_eq!(flights.keys(), [0; 0]);
    }

    #[test]
    fn at_the_end_of_the_process_nobody_waits_in_vain() {
        let flights = Group::<u8, u8>::default();
        let Ok(started) = flights.join_or_start(&1, || Ok::<_, Infallible>(pending()), |_| {});
        let joined = flights.under_way(&1).unwrap();
        drop(started);
        assert_eq!(joined.landed().now_or_never(), Some(None));
    }
}
