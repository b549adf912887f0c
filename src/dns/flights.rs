//! Look-ups under way: a question that is asked already isn't asked again.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::time::Instant;
use tracing::error;

/// A look-up that others may wait for, too. What comes out of it is a `T`, or nothing after a panic.
#[derive(Clone, Debug)]
pub(super) struct Flight<T: Clone> {
    number: u64,
    since: Instant,
    landing: Shared<BoxFuture<'static, Option<T>>>,
}

impl<T: Clone> Flight<T> {
    /// How long it has been under way.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for its end.
    pub(super) async fn landed(self) -> Option<T> {
        self.landing.await
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
    /// forgotten meanwhile. It goes on when nobody waits for it any more.
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
        let place = Place { flying: Arc::clone(&self.flying), key: key.clone(), number };
        let task = tokio::spawn(async move {
            let landing = look_up.await;
            place.leave(|| take(&landing));
            landing
        });
        // The task ends itself, at the deadline of the look-up at the latest; dropping the handle at the
        // end of the process ends it, too.
        let landing =
            async move { task.await.inspect_err(|panic| error!("a look-up panicked: {panic}")).ok() };
        let flight = Flight { number, since: Instant::now(), landing: landing.boxed().shared() };
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
    key: K,
    number: u64,
}

impl<K: Clone + Eq + Hash, T: Clone> Place<K, T> {
    /// Leaves it. Whoever forgets the name meanwhile does so either before `take`, which isn't called
    /// then, or after it.
    fn leave(self, take: impl FnOnce()) {
        if let Entry::Occupied(entry) = self.flying.entry(self.key.clone())
            && entry.get().number == self.number
        {
            take();
            entry.remove();
        }
    }
}

impl<K: Eq + Hash, T: Clone> Drop for Place<K, T> {
    fn drop(&mut self) {
        self.flying.remove_if(&self.key, |_, flight| flight.number == self.number);
    }
}
