//! Look-ups under way: a question that is asked already isn't asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures::future::{BoxFuture, FutureExt, Shared};
use hickory_proto::op::Message;
use tokio::time::Instant;
use tracing::error;

use super::forward::ForwardError;
use super::question::Key;

/// What has become of a look-up.
pub(super) type Landing = Result<Arc<Message>, ForwardError>;

/// A look-up that others may wait for, too.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    number: u64,
    since: Instant,
    landing: Shared<BoxFuture<'static, Landing>>,
}

impl Flight {
    /// How long it has been under way.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for its end.
    pub(super) async fn landed(self) -> Landing {
        self.landing.await
    }
}

/// All look-ups under way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flying: Arc<DashMap<Key, Flight>>,
    number: AtomicU64,
}

impl Flights {
    /// Returns the look-up of that question, or starts one: `look_up` gives the future that it consists
    /// of, unless it can't begin. What comes out of it is shown to `take` first, unless the name was
    /// forgotten meanwhile. It goes on when nobody waits for it any more.
    ///
    /// # Errors
    /// If `look_up` can't begin.
    pub(super) fn join_or_start<F>(
        &self,
        key: &Key,
        look_up: impl FnOnce() -> Result<F, ForwardError>,
        take: impl FnOnce(&Landing) + Send + 'static,
    ) -> Result<Flight, ForwardError>
    where
        F: Future<Output = Landing> + Send + 'static,
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
        let landing = async move {
            task.await.unwrap_or_else(|panic| {
                error!("a look-up panicked: {panic}");
                Err(ForwardError::NoAnswer)
            })
        };
        let flight = Flight { number, since: Instant::now(), landing: landing.boxed().shared() };
        entry.insert(flight.clone());
        Ok(flight)
    }

    /// Has nobody else wait for the look-ups of a name, or keep what comes out of them.
    pub(super) fn forget_name(&self, name: &[u8]) {
        self.flying.retain(|key, _| *key.name != *name);
    }

    /// Has nobody else wait for any look-up, or keep what comes out of it.
    pub(super) fn forget_all(&self) {
        self.flying.clear();
    }
}

/// The place of a look-up among those under way. It is left even in a panic.
struct Place {
    flying: Arc<DashMap<Key, Flight>>,
    key: Key,
    number: u64,
}

impl Place {
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

impl Drop for Place {
    fn drop(&mut self) {
        self.flying.remove_if(&self.key, |_, flight| flight.number == self.number);
    }
}
