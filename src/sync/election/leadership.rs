//! The handle that each writer checks before it writes.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::fence::Fence;
use super::lease::Timing;
use crate::boot_clock::{self, BootInstant, Clock};
use crate::sync::election::term::next_term;

/// The term if nothing is written to a cluster.
const ONLY_TERM: u64 = 1;
/// Maximum time that the first lists wait for the first read of the Lease: far longer than the API server takes.
const FIRST_LEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of this process in the election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderStatus {
    /// The current or the last term; 0 for a process that has never been the leader.
    pub(super) term: u64,
    pub(super) held: Option<LeaseWindow>,
}

/// The validity of a lease, unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWindow {
    Until {
        /// No request starts from this time on.
        renewed_by: BootInstant,
        /// Another replica may take the lease from this time on: every request of this process has ended.
        end: BootInstant,
    },
    Always,
}

impl LeaseWindow {
    /// Returns whether a request may start.
    fn is_open(self, now: BootInstant) -> bool {
        match self {
            Self::Until { renewed_by, .. } => now < renewed_by,
            Self::Always => true,
        }
    }
}

/// The lease isn't held, is held in another term, or ended while the request was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this instance doesn't lead")]
pub struct NotLeading;

/// Permission of this process to write. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    leader_status: watch::Receiver<LeaderStatus>,
    /// Whether the first round of requests for the Lease has ended.
    settled: watch::Receiver<bool>,
    mode: ElectionMode,
    clock: Clock,
}

/// Detection of other processes that may lead as well.
#[derive(Clone, Debug)]
enum ElectionMode {
    /// By the Lease.
    Elected(Arc<Fence>),
    /// There is no election. The sender holds the term; a guard may revoke the permission to write.
    Disabled(Arc<watch::Sender<LeaderStatus>>, Arc<Fence>),
}

impl Leadership {
    pub(super) fn new(
        leader_status: watch::Receiver<LeaderStatus>,
        settled: watch::Receiver<bool>,
        fence: Arc<Fence>,
        clock: Clock,
    ) -> Self {
        Self { leader_status, settled, mode: ElectionMode::Elected(fence), clock }
    }

    /// Returns the leadership of a process without an election, with this status.
    fn alone(leader_status: LeaderStatus) -> Self {
        let leader_status = watch::Sender::new(leader_status);
        Self {
            leader_status: leader_status.subscribe(),
            settled: watch::channel(true).1,
            mode: ElectionMode::Disabled(Arc::new(leader_status), Arc::default()),
            clock: boot_clock::now,
        }
    }

    /// Returns the leadership of a process without a cluster, or without writes to it.
    #[must_use]
    pub fn unconditional() -> Self {
        Self::alone(LeaderStatus { term: ONLY_TERM, held: Some(LeaseWindow::Always) })
    }

    /// Returns the leadership of a process that writes to a cluster without an election. `now` is the Unix time in
    /// seconds.
    #[must_use]
    pub fn without_election(now: u64) -> Self {
        Self::alone(LeaderStatus { term: next_term(0, now), held: Some(LeaseWindow::Always) })
    }

    /// Returns the leadership of a process without an election that writes only while [`Self::grant`] is repeated.
    pub(super) fn guarded(settled: watch::Receiver<bool>) -> Self {
        Self { settled, ..Self::alone(LeaderStatus::default()) }
    }

    /// Returns a leadership for a test, and a function that grants it for a term or revokes it.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, impl Fn(Option<u64>)) {
        let (election, receiver) = watch::channel(LeaderStatus::default());
        let lead = move |term: Option<u64>| {
            election.send_modify(|leader_status| {
                leader_status.term = term.unwrap_or(leader_status.term);
                leader_status.held = term.map(|_| LeaseWindow::Always);
            });
        };
        let leadership = Self { leader_status: receiver, ..Self::unconditional() };
        (leadership, lead)
    }

    /// Returns whether the lease is held right now. This reads the clock, as the process may have been stopped since
    /// the last check.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.held().is_some()
    }

    /// Returns the term of the lease if it is held right now, and no higher term has been seen.
    #[must_use]
    pub fn held(&self) -> Option<u64> {
        self.open_window().map(|(term, _)| term)
    }

    /// Returns the term and its validity, if a request may start now.
    fn open_window(&self) -> Option<(u64, LeaseWindow)> {
        let LeaderStatus { term, held } = *self.leader_status.borrow();
        let window = held.filter(|span| span.is_open((self.clock)()) && !self.is_outdated(term))?;
        Some((term, window))
    }

    /// Returns the term if this replica led at the last election result and no higher term has been seen. Doesn't read
    /// the clock, so it is for planning writes only.
    #[must_use]
    pub fn current_term(&self) -> Option<u64> {
        let LeaderStatus { term, held } = *self.leader_status.borrow();
        held.filter(|_| !self.is_outdated(term)).map(|_| term)
    }

    #[must_use]
    pub fn is_without_election(&self) -> bool {
        matches!(self.mode, ElectionMode::Disabled(..))
    }

    /// Returns whether a higher term has been seen, and so perhaps another leader: nothing is written until the
    /// election has read the Lease.
    fn is_outdated(&self, term: u64) -> bool {
        match &self.mode {
            ElectionMode::Elected(fence) => fence.highest_term() > term,
            ElectionMode::Disabled(..) => false,
        }
    }

    /// Records a term from an external target.
    pub fn observe_term(&self, term: u64) {
        let (ElectionMode::Elected(fence) | ElectionMode::Disabled(_, fence)) = &self.mode;
        fence.observe_term(term);
    }

    /// Takes a term above those on external targets, if there is no election and this process may write.
    /// Returns whether it did.
    #[must_use]
    pub fn raise_term(&self) -> bool {
        let ElectionMode::Disabled(leader_status, fence) = &self.mode else { return false };
        leader_status.send_if_modified(|leader_status| {
            let is_raised = leader_status.held.is_some() && fence.highest_term() >= leader_status.term;
            if is_raised {
                leader_status.term = next_term(fence.highest_term(), 0);
            }
            is_raised
        })
    }

    /// Permits writes as a Lease would that was renewed at `sent`; `now` is the Unix time in seconds. Returns the term if
    /// one begins: what was read before may be outdated.
    pub(super) fn grant(&self, sent: BootInstant, now: u64) -> Option<u64> {
        let ElectionMode::Disabled(leader_status, fence) = &self.mode else { return None };
        let held = Some(LeaseWindow::Until {
            renewed_by: sent + Timing::DEFAULT.renew,
            end: sent + Timing::DEFAULT.lease,
        });
        let mut begun = None;
        leader_status.send_if_modified(|leader_status| {
            if !leader_status.held.is_some_and(|window| window.is_open((self.clock)())) {
                leader_status.term = next_term(fence.highest_term().max(leader_status.term), now);
                begun = Some(leader_status.term);
            }
            leader_status.held = held;
            begun.is_some()
        });
        begun
    }

    /// Forbids writes. Returns whether they were permitted.
    pub(super) fn revoke(&self) -> bool {
        let ElectionMode::Disabled(leader_status, _) = &self.mode else { return false };
        leader_status.send_if_modified(|leader_status| leader_status.held.take().is_some())
    }

    /// Returns the current or the last term. Each acquisition of the lease increases it; it is 0 for a process that has
    /// never held the lease.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.leader_status.borrow().term
    }

    /// Waits, for at most `FIRST_LEASE_TIMEOUT`, until the election knows whether this process leads. A new leader
    /// lists all objects again, so earlier lists would be wasted.
    pub async fn settled(&self) {
        let mut settled = self.settled.clone();
        // DNS starts without the Lease if the API server doesn't answer.
        let _ = timeout(FIRST_LEASE_TIMEOUT, settled.wait_for(|settled| *settled)).await;
    }

    /// Waits until the lease is acquired or lost, or its term changes, since the last call.
    pub async fn changed(&mut self) {
        // Without an election, or after its end, nothing changes.
        if self.leader_status.changed().await.is_err() {
            pending().await
        }
    }

    /// Waits until the term differs from `term`.
    pub async fn wait_for_other_term(&self, term: u64) {
        if self.leader_status.clone().wait_for(|leader_status| leader_status.term != term).await.is_err() {
            pending().await
        }
    }

    /// Sends a request if the lease of `term` is held right now, and drops it at the end of the lease. The caller has
    /// to base the request on state that was read in this term: an earlier leader may have changed older state.
    ///
    /// # Errors
    /// If the lease isn't held, in which case nothing is sent, or if it ends before the answer arrives.
    pub async fn write<T>(&self, term: u64, request: impl Future<Output = T>) -> Result<T, NotLeading> {
        let (_, span) = self.open_window().filter(|(held, _)| *held == term).ok_or(NotLeading)?;
        let LeaseWindow::Until { end, .. } = span else { return Ok(request.await) };
        let mut request = pin!(request);
        let mut timer = pin!(sleep(end.saturating_duration_since((self.clock)())));
        poll_fn(|context| {
            // Check the clock before polling the request: after a stop of the process both are ready, and the request
            // may not have been sent yet. The timer stands still during a suspend, the clock doesn't.
            if (self.clock)() >= end || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(NotLeading));
            }
            request.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Sends a request that no resourceVersion protects: a POST, a DELETE, an Event, or a write to an object without a
    /// term. The Lease is renewed first, by a request that is sent after this call: no clock shows that the machine was
    /// paused a moment ago, but the API server's answer does. Concurrent calls share a renewal.
    ///
    /// # Errors
    /// As for [`Leadership::write`], and if the lease is lost before its renewal.
    pub async fn write_confirmed<T>(
        &self,
        term: u64,
        request: impl Future<Output = T>,
    ) -> Result<T, NotLeading> {
        self.confirm(term).await?;
        self.write(term, request).await
    }

    /// Waits until the Lease has been renewed in this term, by a request that is sent after this call.
    async fn confirm(&self, term: u64) -> Result<(), NotLeading> {
        let ElectionMode::Elected(fence) = &self.mode else { return Ok(()) };
        let requested_at = (self.clock)();
        let mut confirmed = fence.confirmed.subscribe();
        let mut leader_status = self.leader_status.clone();
        if self.held() != Some(term) {
            return Err(NotLeading);
        }
        fence.renewal_requested.notify_one();
        loop {
            if confirmed.borrow_and_update().is_some_and(|sent| sent >= requested_at) {
                return Ok(());
            }
            // The election reports the loss of the lease; if the election has ended, no lease is held.
            tokio::select! {
                changed = confirmed.changed() => changed.map_err(|_| NotLeading)?,
                changed = leader_status.changed() => changed.map_err(|_| NotLeading)?,
            }
            if self.held() != Some(term) {
                return Err(NotLeading);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::boot_clock::by_hand;

    fn held(term: u64, seconds: u64) -> LeaderStatus {
        let renewed_by = by_hand::now() + Duration::from_secs(seconds);
        LeaderStatus {
            term,
            held: Some(LeaseWindow::Until { renewed_by, end: renewed_by + Duration::from_secs(5) }),
        }
    }

    /// Returns the leadership of an election that has read the Lease once.
    fn elected(leader_status: watch::Receiver<LeaderStatus>) -> Leadership {
        Leadership::new(leader_status, watch::channel(true).1, Arc::default(), by_hand::now)
    }

    fn fence(leadership: &Leadership) -> Arc<Fence> {
        let ElectionMode::Elected(fence) = &leadership.mode else { panic!("there is an election") };
        Arc::clone(fence)
    }

    #[tokio::test(start_paused = true)]
    async fn clock_ends_a_lease_without_notification() {
        let (_election, receiver) = watch::channel(held(3, 10));
        let leadership = elected(receiver);
        assert_eq!(leadership.held(), Some(3));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!leadership.holds());
        assert_eq!(leadership.write(3, async {}).await, Err(NotLeading));
        assert_eq!(leadership.term(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn write_is_sent_in_its_own_term_only() {
        let (election, receiver) = watch::channel(LeaderStatus::default());
        let leadership = elected(receiver);
        assert_eq!(leadership.term(), 0);
        assert_eq!(leadership.write(0, async {}).await, Err(NotLeading));
        election.send_replace(held(1, 10));
        assert_eq!(leadership.write(1, async { 7 }).await, Ok(7));
        election.send_replace(held(2, 10));
        assert_eq!(leadership.write(1, async { 7 }).await, Err(NotLeading));
    }

    #[tokio::test(start_paused = true)]
    async fn write_is_dropped_at_the_end_of_the_lease() {
        let (_election, receiver) = watch::channel(held(1, 10));
        let leadership = elected(receiver);
        let before = Instant::now();
        assert_eq!(leadership.write(1, pending::<()>()).await, Err(NotLeading));
        assert_eq!(before.elapsed(), Duration::from_secs(15));
    }

    /// Returns a request that fails the test if it is sent, and a sender that completes its connection.
    fn unsent_request() -> (tokio::sync::oneshot::Sender<()>, impl Future<Output = ()>) {
        let (connected, connection) = tokio::sync::oneshot::channel::<()>();
        let request = async {
            let _ = connection.await;
            panic!("the request is sent");
        };
        (connected, request)
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_checked_again_before_a_delayed_request_is_sent() {
        let (_election, receiver) = watch::channel(held(1, 10));
        let leadership = elected(receiver);
        let (connected, request) = unsent_request();
        let mut write = pin!(leadership.write::<()>(1, request));
        assert_eq!(futures::poll!(write.as_mut()), Poll::Pending);
        tokio::time::advance(Duration::from_secs(20)).await;
        connected.send(()).unwrap();
        assert_eq!(write.await, Err(NotLeading));
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_without_election_is_permanent() {
        let mut leadership = Leadership::unconditional();
        assert_eq!(leadership.held(), Some(1));
        assert_eq!(leadership.write(1, async { 7 }).await, Ok(7));
        let never = timeout(Duration::from_secs(3600), leadership.changed()).await;
        assert!(never.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_other_term_returns_in_the_next_term() {
        let (election, receiver) = watch::channel(held(1, 10));
        let leadership = elected(receiver);
        let mut beyond = pin!(leadership.wait_for_other_term(1));
        assert_eq!(futures::poll!(beyond.as_mut()), Poll::Pending);
        election.send_replace(LeaderStatus { term: 1, held: None });
        assert_eq!(futures::poll!(beyond.as_mut()), Poll::Pending, "no other term has begun");
        election.send_replace(held(2, 10));
        beyond.await;
    }

    #[tokio::test(start_paused = true)]
    async fn settled_waits_for_the_first_read_with_a_timeout() {
        let ((_election, leader_status), (looked, settled)) =
            (watch::channel(LeaderStatus::default()), watch::channel(false));
        let (leadership, before) =
            (Leadership::new(leader_status, settled, Arc::default(), by_hand::now), Instant::now());
        leadership.settled().await;
        assert_eq!(before.elapsed(), FIRST_LEASE_TIMEOUT);
        looked.send_replace(true);
        leadership.settled().await;
        Leadership::unconditional().settled().await;
        assert_eq!(before.elapsed(), FIRST_LEASE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn suspend_ends_a_lease_without_a_timer() {
        let (_election, receiver) = watch::channel(held(1, 10));
        let leadership = elected(receiver);
        let (connected, request) = unsent_request();
        let mut write = pin!(leadership.write::<()>(1, request));
        assert_eq!(futures::poll!(write.as_mut()), Poll::Pending);
        let before = Instant::now();
        by_hand::suspend(Duration::from_secs(20));
        connected.send(()).unwrap();
        assert_eq!(write.await, Err(NotLeading));
        assert!(!leadership.holds());
        assert_eq!(before.elapsed(), Duration::ZERO, "no timer was waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn higher_term_on_a_target_stops_all_writes() {
        let (election, receiver) = watch::channel(held(5, 10));
        let leadership = elected(receiver);
        leadership.observe_term(5);
        leadership.observe_term(4);
        assert_eq!(leadership.held(), Some(5));
        leadership.observe_term(6);
        assert_eq!((leadership.held(), leadership.current_term()), (None, None));
        assert_eq!(leadership.write(5, async {}).await, Err(NotLeading));
        election.send_replace(held(7, 10));
        assert_eq!(leadership.write(7, async { 1 }).await, Ok(1));
        let alone = Leadership::without_election(100);
        alone.observe_term(1000);
        assert_eq!(alone.held(), Some(100), "without an election, observed terms don't count");
    }

    #[tokio::test(start_paused = true)]
    async fn term_without_election_is_raised_above_seen_terms() {
        let leadership = Leadership::without_election(100);
        for (seen, term) in [(99, 100), (100, 101), (5000, 5001)] {
            leadership.observe_term(seen);
            assert_eq!(leadership.raise_term(), seen >= 100);
            assert_eq!(leadership.held(), Some(term));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn guarded_process_writes_while_that_is_granted() {
        let leadership = Leadership { clock: by_hand::now, ..Leadership::guarded(watch::channel(true).1) };
        leadership.observe_term(500);
        assert!(!leadership.raise_term());
        assert_eq!((leadership.held(), leadership.term()), (None, 0));
        assert_eq!(leadership.grant(by_hand::now(), 100), Some(501));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!((leadership.held(), leadership.grant(by_hand::now(), 100)), (Some(501), None));
        // The guard gets no answer, or the machine is suspended.
        by_hand::suspend(Duration::from_secs(10));
        assert_eq!(leadership.held(), None);
        assert_eq!(leadership.grant(by_hand::now(), 1000), Some(1000));
        assert!(leadership.revoke() && !leadership.revoke() && !leadership.holds());
        assert_eq!(leadership.grant(by_hand::now(), 1000), Some(1001), "another process may have led");
    }

    #[tokio::test(start_paused = true)]
    async fn unprotected_write_waits_for_a_later_renewal() {
        let (election, receiver) = watch::channel(held(1, 10));
        let leadership = elected(receiver);
        let fence = fence(&leadership);
        // A renewal that was sent before the call proves nothing: the machine may have been paused since.
        fence.confirmed.send_replace(Some(by_hand::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        let mut first = pin!(leadership.write_confirmed(1, async { 1 }));
        let mut second = pin!(leadership.write_confirmed(1, async { 2 }));
        assert_eq!(futures::poll!(first.as_mut()), Poll::Pending);
        assert_eq!(futures::poll!(second.as_mut()), Poll::Pending);
        fence.renewal_requested.notified().await;
        fence.confirmed.send_replace(Some(by_hand::now()));
        assert_eq!((first.await, second.await), (Ok(1), Ok(2)), "both writes share a renewal");
        assert!(futures::poll!(pin!(fence.renewal_requested.notified())).is_pending());
        // Another replica has the Lease.
        tokio::time::advance(Duration::from_millis(1)).await;
        let mut next = pin!(leadership.write_confirmed(1, async { 3 }));
        assert_eq!(futures::poll!(next.as_mut()), Poll::Pending);
        election.send_replace(LeaderStatus { term: 1, held: None });
        assert_eq!(next.await, Err(NotLeading));
        assert_eq!(leadership.write_confirmed(1, async { 4 }).await, Err(NotLeading));
        election.send_replace(held(2, 60));
        let mut last = pin!(leadership.write_confirmed(2, async { 5 }));
        assert_eq!(futures::poll!(last.as_mut()), Poll::Pending);
        drop(election);
        assert_eq!(last.await, Err(NotLeading));
    }
}
