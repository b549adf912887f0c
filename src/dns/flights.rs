//! Look-ups under way: a question that is asked already isn't asked again.

use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::error;

/// A look-up that others may wait for, too. What comes out of it is a `T`, or nothing after a panic.
#[derive(Clone, Debug)]
pub(super) struct Flight<T: Clone> {
    number: u64,
    since: Instant,
    landing: Landing<T>,
    /// Whether a task sees to it.
    has_task: Arc<AtomicBool>,
}

type Landing<T> = Shared<BoxFuture<'static, Option<T>>>;

impl<T: Clone + Send + Sync + 'static> Flight<T> {
    /// How long it has been under way.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for its end. Who waits for it works on it; who gives up before leaves that to a task.
    pub(super) fn landed(self) -> impl Future<Output = Option<T>> + Send {
        let mut aboard = Aboard(Some(self));
        async move {
            let landing = match &mut aboard.0 {
                Some(flight) => (&mut flight.landing).await,
                None => None,
            };
            drop(aboard.0.take());
            landing
        }
    }
}

/// Somebody who waits for a look-up.
struct Aboard<T: Clone + Send + Sync + 'static>(Option<Flight<T>>);

impl<T: Clone + Send + Sync + 'static> Drop for Aboard<T> {
    fn drop(&mut self) {
        let Some(Flight { landing, has_task, .. }) = self.0.take() else { return };
        // At the end of the process there is nobody left for it.
        if let Ok(runtime) = Handle::try_current()
            && !has_task.swap(true, Ordering::Relaxed)
        {
            // The task ends itself, at the deadline of the look-up at the latest.
            runtime.spawn(landing);
        }
    }
}

/// All look-ups under way, by what makes two of them one.
#[derive(Debug)]
pub(super) struct Flights<K: Eq + Hash, T: Clone> {
    flying: Arc<DashMap<K, Flight<T>>>,
    number: AtomicU64,
}

impl<K: Eq + Hash, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self { flying: Arc::default(), number: AtomicU64::new(0) }
    }
}

impl<K, T> Flights<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Returns the look-up of that question that is under way.
    pub(super) fn under_way(&self, key: &K) -> Option<Flight<T>> {
        self.flying.get(key).map(|flight| flight.clone())
    }

    /// Returns the look-up of that question, or starts one: `look_up` gives the future that it consists
    /// of, unless it can't begin. What comes out of it is shown to `take` first, unless the name was
    /// forgotten meanwhile. Who has started it has to wait for it; it goes on when nobody waits for it any more.
    ///
    /// # Errors
    /// If `look_up` can't begin.
    pub(super) fn join_or_start<F, E>(
        &self,
        key: &K,
        look_up: impl FnOnce() -> Result<F, E>,
        take: impl FnOnce(&T) + Send + 'static,
    ) -> Result<Flight<T>, E>
    where
        F: Future<Output = T> + Send + 'static,
    {
        // Mostly it isn't there, and then the entry is needed anyway.
        let entry = match self.flying.entry(key.clone()) {
            Entry::Occupied(entry) => return Ok(entry.get().clone()),
            Entry::Vacant(entry) => entry,
        };
        let look_up = look_up()?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let place = Place { flying: Arc::clone(&self.flying), key: Some(key.clone()), number };
        let looking = look_up.map(|landing| {
            place.leave(|| take(&landing));
            landing
        });
        let landing = AssertUnwindSafe(looking)
            .catch_unwind()
            .map(|landing| landing.inspect_err(|_| error!("a look-up panicked")).ok());
        let (landing, has_task) = (landing.boxed().shared(), Arc::default());
        let flight = Flight { number, since: Instant::now(), landing, has_task };
        entry.insert(flight.clone());
        Ok(flight)
    }

    /// Returns the numbers of all look-ups under way, in order.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.flying.iter().map(|flight| flight.number).collect();
        all.sort_unstable();
        all
    }

    /// Has nobody else wait for these look-ups, or keep what comes out of them.
    pub(super) fn forget(&self, is_meant: impl Fn(&K) -> bool) {
        self.flying.retain(|key, _| !is_meant(key));
    }
}

/// The place of a look-up among those under way. It is left even in a panic.
struct Place<K: Eq + Hash, T: Clone> {
    flying: Arc<DashMap<K, Flight<T>>>,
    /// Nothing once it is left.
    key: Option<K>,
    number: u64,
}

impl<K: Eq + Hash, T: Clone> Place<K, T> {
    /// Leaves it. Whoever forgets the name meanwhile does so either before `take`, which isn't called
    /// then, or after it.
    fn leave(mut self, take: impl FnOnce()) {
        let Some(key) = &self.key else { return };
        self.flying.remove_if(key, |_, flight| {
            let is_ours = flight.number == self.number;
            if is_ours {
                take();
            }
            is_ours
        });
        self.key = None;
    }
}

impl<K: Eq + Hash, T: Clone> Drop for Place<K, T> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.flying.remove_if(key, |_, flight| flight.number == self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_look_up_goes_on_when_nobody_waits_for_it_any_more() {
        let flights = Flights::<u8, u8>::default();
        let (end, ended) = oneshot::channel();
        let (taken, took) = oneshot::channel();
        let look_up = || Ok::<_, Infallible>(async move { ended.await.unwrap_or_default() });
        let Ok(flight) = flights.join_or_start(&1, look_up, |landing| _ = taken.send(*landing));
        assert_eq!(flight.clone().landed().now_or_never(), None);
        assert_eq!(flight.landed().now_or_never(), None);
        end.send(7).unwrap();
        assert_eq!(took.await, Ok(7));
        assert_eq!(flights.numbers(), [0; 0]);
    }

    #[tokio::test]
    async fn one_that_panics_has_ended_for_all_who_wait() {
        let flights = Flights::<u8, u8>::default();
        let fly = |look_up: fn() -> u8| {
            let Ok(flight) =
                flights.join_or_start(&1, || Ok::<_, Infallible>(async move { look_up() }), |_| {});
            flight.landed()
        };
        let (one, other) = (fly(|| panic!("a defect")), fly(|| 1));
        assert_eq!((one.await, other.await), (None, None));
        assert_eq!(fly(|| 2).await, Some(2));
    }
}
