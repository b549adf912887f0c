//! What everybody who writes holds and asks.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// The term of who always leads.
const ONLY_TERM: u64 = 1;
/// How long the first lists wait for the first look at the lease: far longer than the API server takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether this process leads, as the election says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// The number of this term or the last one; 0 for who has never led.
    pub(super) term: u64,
    pub(super) held: Option<Span>,
}

/// How long a lease lasts unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Until {
        /// Nothing is begun from here on.
        renewed_by: Instant,
        /// Others may take it from here on: whatever was begun has ended.
        end: Instant,
    },
    Always,
}

impl Span {
    /// Whether something may be begun.
    fn is_open(self) -> bool {
        match self {
            Self::Until { renewed_by, .. } => Instant::now() < renewed_by,
            Self::Always => true,
        }
    }
}

/// The lease, held at the moment of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its term.
    pub term: u64,
    /// The moment up to which it holds unless it is renewed; nothing for who always leads.
    pub until: Option<Instant>,
}

/// The lease isn't held, or not in the term that was asked for, or ended while the request was under
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this instance doesn't lead")]
pub struct NotLeading;

/// Whether this process may write. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    standing: watch::Receiver<Standing>,
    /// Whether the first look at the lease has led to something.
    settled: watch::Receiver<bool>,
}

impl Leadership {
    pub(super) fn new(standing: watch::Receiver<Standing>, settled: watch::Receiver<bool>) -> Self {
        Self { standing, settled }
    }

    /// Returns the leadership of somebody who doesn't wait for the first look.
    fn of(standing: watch::Receiver<Standing>) -> Self {
        Self::new(standing, watch::channel(true).1)
    }

    /// Returns the leadership of somebody who has no rivals.
    #[must_use]
    pub fn always() -> Self {
        Self::of(watch::channel(Standing { term: ONLY_TERM, held: Some(Span::Always) }).1)
    }

    /// Returns a leadership for a test, and what gives it for a term or takes it.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, impl Fn(Option<u64>)) {
        let (election, receiver) = watch::channel(Standing::default());
        let lead = move |term: Option<u64>| {
            election.send_modify(|standing| {
                standing.term = term.unwrap_or(standing.term);
                standing.held = term.map(|_| Span::Always);
            });
        };
        (Self::of(receiver), lead)
    }

    /// Returns whether the lease is held right now: by the clock, for the process may have been
    /// stopped since somebody looked at it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.held().is_some()
    }

    /// Returns the lease if it is held right now.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        let standing = *self.standing.borrow();
        let span = standing.held.filter(|span| span.is_open())?;
        let until = match span {
            Span::Until { renewed_by, .. } => Some(renewed_by),
            Span::Always => None,
        };
        Some(Held { term: standing.term, until })
    }

    /// Returns the term as the election has said last, without a look at the clock: for who decides
    /// on writes, not for who makes them.
    #[must_use]
    pub fn current_term(&self) -> Option<u64> {
        let standing = *self.standing.borrow();
        standing.held.map(|_| standing.term)
    }

    /// Returns the number of this term or the last one. It grows with each time that the lease is
    /// got, and is 0 for who has never had it.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.standing.borrow().term
    }

    /// Waits, for a while, until it is known for the first time whether the lease is to be had. Who gets it has
    /// to list everything from then on: what was listed before would be in vain.
    pub async fn settled(&self) {
        let mut settled = self.settled.clone();
        // Where the API server says nothing about the lease, DNS does without.
        let _ = timeout(PATIENCE, settled.wait_for(|settled| *settled)).await;
    }

    /// Waits until the lease has been got or lost since the last call.
    pub async fn changed(&mut self) {
        // Without an election nothing changes; with one that has ended neither.
        if self.standing.changed().await.is_err() {
            pending().await
        }
    }

    /// Waits for another term than this.
    pub async fn beyond(&self, term: u64) {
        if self.standing.clone().wait_for(|standing| standing.term != term).await.is_err() {
            pending().await
        }
    }

    /// Makes a request if the lease of `term` is held right now, and not past the lease's end. What
    /// it is about has to have been read before: another leader may have changed it since.
    ///
    /// # Errors
    /// If the lease isn't held, in which case nothing was sent, or ends before the answer is there.
    pub async fn write<T>(&self, term: u64, request: impl Future<Output = T>) -> Result<T, NotLeading> {
        let standing = *self.standing.borrow();
        let span = standing.held.filter(|span| standing.term == term && span.is_open()).ok_or(NotLeading)?;
        let Span::Until { end, .. } = span else { return Ok(request.await) };
        let mut request = pin!(request);
        let mut timer = pin!(sleep_until(end));
        poll_fn(|context| {
            // The clock before the request: after a stop of the process both are ready, and the
            // request may not have been sent yet.
            if Instant::now() >= end || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(NotLeading));
            }
            request.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(term: u64, seconds: u64) -> Standing {
        let renewed_by = Instant::now() + Duration::from_secs(seconds);
        Standing { term, held: Some(Span::Until { renewed_by, end: renewed_by + Duration::from_secs(5) }) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_ends_a_lease_also_when_nobody_says_so() {
        let (_election, receiver) = watch::channel(held(3, 10));
        let leadership = Leadership::of(receiver);
        assert_eq!(leadership.held().map(|held| held.term), Some(3));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!leadership.holds());
        assert_eq!(leadership.write(3, async {}).await, Err(NotLeading));
        assert_eq!(leadership.term(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_sent_in_its_own_term_only() {
        let (election, receiver) = watch::channel(Standing::default());
        let leadership = Leadership::of(receiver);
        assert_eq!(leadership.term(), 0);
        assert_eq!(leadership.write(0, async {}).await, Err(NotLeading));
        election.send_replace(held(1, 10));
        assert_eq!(leadership.write(1, async { 7 }).await, Ok(7));
        election.send_replace(held(2, 10));
        assert_eq!(leadership.write(1, async { 7 }).await, Err(NotLeading));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_never_reaches_past_the_end_of_the_lease() {
        let (_election, receiver) = watch::channel(held(1, 10));
        let leadership = Leadership::of(receiver);
        let before = Instant::now();
        assert_eq!(leadership.write(1, pending::<()>()).await, Err(NotLeading));
        assert_eq!(before.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_stop_of_the_process_the_clock_counts_before_the_request_goes_on() {
        let (_election, receiver) = watch::channel(held(1, 10));
        let leadership = Leadership::of(receiver);
        let (connected, connection) = tokio::sync::oneshot::channel::<()>();
        let request = async {
            let _ = connection.await;
            panic!("it is sent");
        };
        let mut write = pin!(leadership.write::<()>(1, request));
        assert_eq!(futures::poll!(write.as_mut()), Poll::Pending);
        tokio::time::advance(Duration::from_secs(20)).await;
        connected.send(()).unwrap();
        assert_eq!(write.await, Err(NotLeading));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_no_rivals_always_leads() {
        let mut leadership = Leadership::always();
        assert_eq!(leadership.held(), Some(Held { term: 1, until: None }));
        assert_eq!(leadership.write(1, async { 7 }).await, Ok(7));
        let never = timeout(Duration::from_secs(3600), leadership.changed()).await;
        assert!(never.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_hears_of_the_next_term() {
        let (election, receiver) = watch::channel(held(1, 10));
        let leadership = Leadership::of(receiver);
        let mut beyond = pin!(leadership.beyond(1));
        assert_eq!(futures::poll!(beyond.as_mut()), Poll::Pending);
        election.send_replace(Standing { term: 1, held: None });
        assert_eq!(futures::poll!(beyond.as_mut()), Poll::Pending, "the term is over, no other has begun");
        election.send_replace(held(2, 10));
        beyond.await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_look_at_the_lease_is_waited_for_and_not_for_ever() {
        let ((_election, standing), (looked, settled)) =
            (watch::channel(Standing::default()), watch::channel(false));
        let (leadership, before) = (Leadership::new(standing, settled), Instant::now());
        leadership.settled().await;
        assert_eq!(before.elapsed(), PATIENCE);
        looked.send_replace(true);
        leadership.settled().await;
        Leadership::always().settled().await;
        assert_eq!(before.elapsed(), PATIENCE);
    }
}
