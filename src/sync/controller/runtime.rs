//! What every controller runs on: its queue, the writes under way, and the circuit breakers.
//!
//! A controller adds keys as its inputs change, takes them with [`WorkQueue::next`], decides about each, and makes at
//! most one write for a key at once. [`Runtime::event`] is one arm of its `select!`: it waits for timers, turns, probes and
//! ends of writes.

use std::future::Future;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::controller::circuit_breaker::CircuitBreakers;
use crate::sync::controller::limits::Limits;
use crate::sync::controller::work_queue::{Meanwhile, WorkQueue};
use crate::sync::controller::write_error::WriteError;
use crate::sync::election::Leadership;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::task::supervisor::{SHUTDOWN_TIMEOUT, SyncError};

/// `D` is the desired state of a key, `C` a class of writes that the API server refuses together, `W` what the controller
/// remembers of a write under way, and `R` the answer.
#[derive(Debug)]
pub(crate) struct Runtime<D, C, W, R> {
    pub(crate) queue: WorkQueue<D>,
    pub(crate) breakers: CircuitBreakers<C>,
    /// Open while the API server doesn't answer: then one key at a time probes.
    outage: CircuitBreakers<()>,
    writes: JoinSet<Ended<W, R>>,
    leadership: Leadership,
    /// Until when the controller waits for its writes, while it stops.
    stops_at: Option<Instant>,
}

/// A write that has ended.
#[derive(Debug)]
pub(crate) struct Ended<W, R> {
    pub(crate) key: ServiceKey,
    pub(crate) write: W,
    /// The answer, or why the request wasn't sent or has panicked.
    pub(crate) answer: Result<R, WriteError>,
}

/// How the right to write is proven when a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The lease holds by the clock: the request has a resourceVersion that refuses it after a write of another leader.
    Clock,
    /// The Lease was renewed just before: nothing else protects the request.
    Renewal,
}

/// What a controller has to report about a failed write, which is retried already.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing: the watch shows another version soon, or a line about the API server was logged.
    Unremarkable,
    /// Other writes fail for the same reason.
    Shared { code: u16, message: String },
    /// The write failed for a reason of its own.
    Own { message: String, pause: Duration, is_new: bool },
}

impl<W, T> Ended<W, (u16, Result<T, WriteError>)> {
    /// Returns the HTTP code, 0 without an answer, and the result.
    pub(crate) fn into_result(self) -> (ServiceKey, W, u16, Result<T, WriteError>) {
        let (code, result) = self.answer.unwrap_or_else(|error| (0, Err(error)));
        (self.key, self.write, code, result)
    }
}

impl<D: PartialEq + Clone, C: Eq + Hash, W: Send + 'static, R: Send + 'static> Runtime<D, C, W, R> {
    /// Creates the runtime of a controller. Two writes of a key that aren't urgent are at least `key_interval` apart.
    pub(crate) fn new(limits: Limits, key_interval: Duration, leadership: Leadership) -> Self {
        Self {
            queue: WorkQueue::new(limits, key_interval),
            breakers: CircuitBreakers::default(),
            outage: CircuitBreakers::default(),
            writes: JoinSet::new(),
            leadership,
            stops_at: None,
        }
    }

    /// Waits until keys may be ready, or a write has ended. Cancel safe.
    ///
    /// # Errors
    /// If a write's task was aborted, which should never happen.
    pub(crate) async fn event(&mut self) -> Result<Option<Ended<W, R>>, SyncError> {
        let Self { queue, breakers, outage, writes, .. } = self;
        // A probe is a write: without room for it, the end of a write comes first, and the limit of starts holds.
        let has_room = |key: &ServiceKey| queue.has_retry_room(key.namespace());
        let probe_at = [outage.probe_at(has_room), breakers.probe_at(has_room)].into_iter().flatten().min();
        let probe_at = probe_at.map(|at| at.max(queue.next_start()));
        tokio::select! {
            () = queue.due() => Ok(None),
            () = sleep_until_opt(probe_at) => {
                let has_room = |key: &ServiceKey| queue.has_retry_room(key.namespace());
                let probe = outage.next_probe(has_room).or_else(|| breakers.next_probe(has_room));
                probe.iter().for_each(|key| queue.add(key));
                Ok(None)
            }
            Some(ended) = writes.join_next() => Ok(Some(ended?)),
        }
    }

    /// Waits for the next end of a write while the controller stops; `None` once all have ended, or
    /// [`SHUTDOWN_TIMEOUT`] after the first call.
    ///
    /// # Errors
    /// As for [`Self::event`].
    pub(crate) async fn drained(&mut self) -> Result<Option<Ended<W, R>>, SyncError> {
        let deadline = *self.stops_at.get_or_insert_with(|| Instant::now() + SHUTDOWN_TIMEOUT);
        Ok(timeout_at(deadline, self.writes.join_next()).await.ok().flatten().transpose()?)
    }

    /// Returns whether writes are under way.
    pub(crate) fn is_writing(&self) -> bool {
        !self.writes.is_empty()
    }

    // === writes ===

    /// Returns whether the request of a key may be sent that belongs to all `classes`, perhaps as a probe. Otherwise the
    /// key waits: the API server doesn't answer, or refuses a class. The caller has asked [`WorkQueue::may_start`], and
    /// has to call [`Self::start`] if the answer is true.
    pub(crate) fn may_send(&mut self, key: &ServiceKey, classes: &[C]) -> bool {
        let may_send = self.outage.admit(key, &[()]) && self.breakers.admit(key, classes);
        if !may_send {
            self.outage.probe_ended(key);
        }
        may_send
    }

    /// Sends a request of this term, which [`Self::may_send`] has allowed.
    pub(crate) fn start(
        &mut self,
        key: &ServiceKey,
        write: W,
        is_urgent: bool,
        (term, proof): (u64, Proof),
        request: impl Future<Output = R> + Send + 'static,
    ) {
        self.queue.begin(key, is_urgent);
        let (key, leadership) = (key.clone(), self.leadership.clone());
        self.writes.spawn(async move {
            let request = AssertUnwindSafe(request).catch_unwind();
            let sent = match proof {
                Proof::Clock => leadership.write(term, request).await,
                Proof::Renewal => leadership.write_confirmed(term, request).await,
            };
            let answer = match sent {
                Ok(answer) => answer.map_err(|_| WriteError::panicked()),
                Err(not_leading) => Err(not_leading.into()),
            };
            Ended { key, write, answer }
        });
    }

    /// Records that a write has ended, with its HTTP code; 0 without an answer. Called before [`Self::succeeded`] and
    /// [`Self::failed`]: until then the key can't be queued.
    pub(crate) fn done(&mut self, key: &ServiceKey, code: u16, has_failed: bool) -> Meanwhile {
        self.outage.probe_ended(key);
        self.breakers.probe_ended(key);
        if code != 0 {
            self.answered();
        }
        self.queue.done(key, has_failed)
    }

    /// Records that a request of a key has had no answer: the key waits, and one key at a time probes.
    pub(crate) fn unanswered(&mut self, key: &ServiceKey) {
        self.outage.record_failure((), key, None);
    }

    /// Records that the API server answers: keys that wait for that, or in a pause after a failure that others may
    /// share, are queued.
    pub(crate) fn answered(&mut self) {
        if self.outage.is_open(&()) {
            self.outage.record_success(&()).iter().for_each(|key| self.queue.add(key));
            self.queue.resume();
        }
    }

    /// Forgets a key. A write under way counts as superseded.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.queue.forget(key);
        self.outage.forget(key);
        self.breakers.forget(key);
    }

    /// Records a successful write. If another client seems to revert the writes, returns the pause before the next one.
    pub(crate) fn succeeded(&mut self, key: &ServiceKey, desired: Option<&D>) -> Option<Duration> {
        self.queue.succeeded_and_release(key);
        self.queue.record_write(key, desired?)
    }

    /// Plans the next try after a failed write. `sent` is the version of the object that the write was based on, and
    /// `is_superseded` tells whether the desired state has changed since: then an error of the object is an old one.
    pub(crate) fn failed(
        &mut self,
        key: &ServiceKey,
        error: WriteError,
        sent: &str,
        is_superseded: bool,
    ) -> Failure {
        match error {
            // Another client's write came first: the watch delivers it.
            WriteError::Conflict | WriteError::Gone => {
                self.queue.conflict(key, sent);
                self.queue.add(key);
                Failure::Unremarkable
            }
            // The lease has ended by the clock. The election may report its end a moment later, or renew it.
            WriteError::NotLeading(_) => {
                self.queue.add_rate_limited(key, None);
                Failure::Unremarkable
            }
            WriteError::Unanswered => {
                self.unanswered(key);
                Failure::Unremarkable
            }
            WriteError::WholeClass { code, message, retry_after } => {
                self.queue.add_rate_limited(key, retry_after);
                Failure::Shared { code, message }
            }
            WriteError::Refused { .. } | WriteError::Other { .. } if is_superseded => {
                self.queue.add(key);
                Failure::Unremarkable
            }
            WriteError::Refused { message, .. } => self.refused(key, message, None),
            WriteError::Other { message, retry_after } => self.refused(key, message, retry_after),
        }
    }

    /// Queues a key again after a write that failed for a reason of this key alone.
    pub(crate) fn refused(
        &mut self,
        key: &ServiceKey,
        message: String,
        retry_after: Option<Duration>,
    ) -> Failure {
        let (pause, is_new) = self.queue.add_refused(key, retry_after, &message);
        Failure::Own { message, pause, is_new }
    }
}

/// Queues a key again later, because the decision about it has panicked, and logs that.
pub(crate) fn report_panic<D: PartialEq + Clone>(
    queue: &mut WorkQueue<D>,
    log: &ObjectLog,
    what: &str,
    key: &ServiceKey,
) {
    let pause = queue.add_rate_limited(key, None);
    let line = format_args!(
        "{what} {key}: its reconciliation has panicked, a defect of lb-linker; next try in {pause:.1?}"
    );
    log.error(key, line);
}

/// Runs a decision. Returns whether it has panicked, so that it affects only its key.
pub(crate) fn panics(decide: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(decide)).is_err()
}

/// Causes a panic for one key, for tests of panic isolation.
#[cfg(test)]
pub(crate) mod defect {
    use std::cell::RefCell;

    use crate::model::service_key::ServiceKey;

    thread_local! {
        static KEY: RefCell<Option<ServiceKey>> = const { RefCell::new(None) };
    }

    pub(crate) fn choose(key: ServiceKey) {
        KEY.set(Some(key));
    }

    pub(crate) fn panic_if_injected(key: &ServiceKey) {
        KEY.with_borrow(|chosen| assert_ne!(chosen.as_ref(), Some(key), "a defect on purpose"));
    }
}

#[cfg(test)]
mod tests;
