//! The schedule of attempts for one query: the order in which upstreams are queried, and the times.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::error::{ExchangeError, ExchangeProgress, Operation};
use super::health::Upstream;
use crate::dns::message::wire::WireMessage;

/// How long an upstream may be silent before the next one is queried as well.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long an upstream may be silent before a health check starts. Shorter than [`ATTEMPT_TIMEOUT`], since the answer of
/// the next upstream would end the attempt.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(400);
/// The minimum duration of a round through the upstreams, which matters if all upstreams refuse at once.
const MIN_ROUND_DURATION: Duration = Duration::from_millis(100);

/// The upstreams in the order in which they are queried, repeated as long as attempts are left.
#[derive(Debug)]
pub(crate) struct AttemptSchedule {
    upstreams: SmallVec<[(Arc<Upstream>, AttemptState); 2]>,
    /// The number of the next turn, counted over all rounds. Turn `n` belongs to the upstream with the index
    /// `n % upstreams.len()`.
    turn: usize,
    /// The earliest time of the next attempt.
    next: Instant,
    round: Instant,
    in_flight: SmallVec<[InFlight; 1]>,
    started: usize,
    failed: usize,
    /// The maximum number of failed attempts.
    max_failed: usize,
    error: Option<ExchangeError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptState {
    Free,
    /// A query to the upstream is pending; a second one would be of no use.
    Pending,
    Answered,
}

/// An attempt that is under way and not late.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The number of the attempt, counted over all upstreams.
    pub(crate) number: usize,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) progress: Arc<ExchangeProgress>,
    /// The index of the upstream.
    index: usize,
    /// When a health check starts; `None` once it has started.
    silent_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextAttempt {
    pub(crate) at: Instant,
    turn: usize,
    begins_round: bool,
}

impl AttemptSchedule {
    pub(crate) fn new(
        upstreams: impl IntoIterator<Item = Arc<Upstream>>,
        attempts: usize,
        now: Instant,
    ) -> Self {
        Self {
            upstreams: upstreams.into_iter().map(|upstream| (upstream, AttemptState::Free)).collect(),
            turn: 0,
            next: now,
            round: now,
            in_flight: SmallVec::new(),
            started: 0,
            failed: 0,
            max_failed: attempts,
            error: None,
        }
    }

    /// Returns the next attempt; `None` if no attempt is left, or if a query to the next upstream is still pending.
    pub(crate) fn next(&self) -> Option<NextAttempt> {
        let number = self.upstreams.len();
        if self.failed + self.in_flight.len() >= self.max_failed {
            return None;
        }
        let state = |turn: usize| self.upstreams[turn % number].1;
        let turn = (self.turn..self.turn + number).find(|turn| state(*turn) != AttemptState::Answered)?;
        let begins_round = turn / number > self.turn.saturating_sub(1) / number;
        let at = if begins_round { self.next.max(self.round + MIN_ROUND_DURATION) } else { self.next };
        (state(turn) == AttemptState::Free).then_some(NextAttempt { at, turn, begins_round })
    }

    pub(crate) fn record_start(
        &mut self,
        NextAttempt { turn, begins_round, .. }: NextAttempt,
        now: Instant,
    ) -> &InFlight {
        let index = turn % self.upstreams.len();
        self.turn = turn + 1;
        self.next = now + ATTEMPT_TIMEOUT;
        if begins_round || turn == 0 {
            self.round = now;
        }
        self.started += 1;
        let (upstream, state) = &mut self.upstreams[index];
        *state = AttemptState::Pending;
        let (upstream, progress) = (Arc::clone(upstream), Arc::new(upstream.progress(now)));
        let (number, silent_at) = (self.started, Some(now + SILENT_AFTER));
        self.in_flight.push(InFlight { number, upstream, progress, index, silent_at });
        &self.in_flight[self.in_flight.len() - 1]
    }

    /// Records the outcome of an attempt, and returns the answer if there is one, even if the attempt is late.
    pub(crate) fn record_outcome(
        &mut self,
        number: usize,
        outcome: Result<Arc<WireMessage>, ExchangeError>,
        now: Instant,
    ) -> Option<Arc<WireMessage>> {
        if let Some(at) = self.in_flight.iter().position(|waiting| waiting.number == number) {
            let index = self.in_flight.swap_remove(at).index;
            self.upstreams[index].1 =
                if outcome.is_ok() { AttemptState::Answered } else { AttemptState::Free };
            self.failed += usize::from(outcome.is_err());
            self.next = now;
        }
        // An error of an upstream is more informative than the lack of a socket for another attempt.
        let tells = |failure: &ExchangeError| self.error.is_none() || !failure.is_shortage();
        match outcome {
            Ok(answer) => return Some(answer),
            Err(failure) if tells(&failure) => self.error = Some(failure),
            Err(_) => {}
        }
        None
    }

    /// Returns whether no upstream was queried because there was no socket.
    pub(crate) fn is_out_of_sockets(&self) -> bool {
        self.error.as_ref().is_some_and(ExchangeError::is_shortage)
    }

    /// Returns when the first attempt under way becomes late, or its upstream counts as silent.
    pub(crate) fn due(&self) -> Option<Instant> {
        let times = self.in_flight.iter().map(|waiting| (waiting.due().1, waiting.silent_at));
        times.map(|(late_at, silent_at)| silent_at.map_or(late_at, |at| at.min(late_at))).min()
    }

    /// Starts health checks of silent upstreams, and treats late attempts as failed. Their answers are still accepted while
    /// other attempts are under way.
    pub(crate) fn give_up_on_late(&mut self, now: Instant) {
        for waiting in &mut self.in_flight {
            if waiting.silent_at.take_if(|at| *at <= now).is_some() {
                waiting.upstream.start_health_checks();
            }
        }
        while let Some(at) = self.in_flight.iter().position(|waiting| waiting.due().1 <= now) {
            let late = self.in_flight.swap_remove(at);
            late.upstream.start_health_checks();
            self.upstreams[late.index].1 = AttemptState::Free;
            self.failed += 1;
            self.next = now;
            self.error = Some(late.due().0.late());
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.in_flight.is_empty()
    }

    pub(crate) fn error_text(&self) -> Arc<str> {
        self.error.as_ref().map_or_else(|| "no healthy proxies".into(), |error| error.to_string().into())
    }
}

impl InFlight {
    /// Returns the current operation, and the time at which it is late.
    fn due(&self) -> (Operation, Instant) {
        self.progress.due(self.upstream.reply_timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use hickory_proto::rr::{Name, RecordType};
    use tokio::time::advance;

    use super::*;
    use crate::dns::message::query::UpstreamQuery;
    use crate::dns::upstream::config::ForwardOptions;
    use crate::dns::upstream::endpoint::{Transport, UpstreamEndpoint};

    fn schedule(upstreams: u16, attempts: usize) -> AttemptSchedule {
        let upstream = |port| {
            let endpoint =
                UpstreamEndpoint { address: ([127, 0, 0, 1], port).into(), transport: Transport::Udp };
            Arc::new(Upstream::new(endpoint, &ForwardOptions { max_fails: 0, ..ForwardOptions::default() }))
        };
        AttemptSchedule::new((1..=upstreams).map(upstream), attempts, Instant::now())
    }

    fn answer() -> Arc<WireMessage> {
        let query = UpstreamQuery::recursive(Name::root(), RecordType::NS).key().encode(false);
        Arc::new(WireMessage::new(&query).unwrap())
    }

    fn failure() -> Result<Arc<WireMessage>, ExchangeError> {
        Err(Operation::dial("tcp", ([127, 0, 0, 1], 1).into()).failed(io::ErrorKind::Other.into()))
    }

    /// Begins the next attempt; returns its number, the index of the upstream, and the delay in milliseconds.
    fn begin(schedule: &mut AttemptSchedule) -> (usize, usize, u128) {
        let turn = schedule.next().unwrap();
        let after = turn.at.saturating_duration_since(Instant::now()).as_millis();
        let InFlight { number, index, .. } = schedule.record_start(turn, Instant::now());
        (*number, *index, after)
    }

    #[tokio::test(start_paused = true)]
    async fn upstreams_are_asked_in_turn_up_to_the_attempt_limit() {
        let mut schedule = schedule(2, 4);
        for expected in [(1, 0, 0), (2, 1, 0), (3, 0, 100), (4, 1, 0)] {
            let begun = begin(&mut schedule);
            assert_eq!(begun, expected);
            assert!(schedule.record_outcome(begun.0, failure(), Instant::now()).is_none());
        }
        assert_eq!(schedule.next(), None);
        assert!(!schedule.is_waiting());
    }

    #[tokio::test(start_paused = true)]
    async fn pending_or_answered_upstream_isnt_asked_again() {
        let mut schedule = schedule(2, usize::MAX);
        assert_eq!(begin(&mut schedule), (1, 0, 0));
        assert_eq!(begin(&mut schedule), (2, 1, 500), "the first upstream is silent");
        schedule.record_outcome(2, failure(), Instant::now());
        assert_eq!(schedule.next(), None, "it's the turn of the first upstream, which is pending");
        assert!(schedule.record_outcome(1, Ok(answer()), Instant::now()).is_some());
        assert_eq!(begin(&mut schedule), (3, 1, 100));
        schedule.record_outcome(3, Ok(answer()), Instant::now());
        assert_eq!(schedule.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn late_attempt_fails_but_may_still_answer() {
        let (mut schedule, begun) = (schedule(1, 2), Instant::now());
        begin(&mut schedule);
        schedule.give_up_on_late(Instant::now());
        assert_eq!(schedule.next(), None, "the attempt isn't late yet");
        for (after, is_late) in [(SILENT_AFTER, false), (Duration::from_secs(2), true)] {
            let due = schedule.due().unwrap();
            assert_eq!(due - begun, after);
            advance(due - Instant::now()).await;
            schedule.give_up_on_late(due);
            assert_eq!(!schedule.is_waiting(), is_late);
        }
        assert!(schedule.error_text().ends_with("i/o timeout"), "{}", schedule.error_text());
        assert_eq!(begin(&mut schedule), (2, 0, 0));
        assert!(schedule.record_outcome(1, Ok(answer()), Instant::now()).is_some());
        assert!(schedule.is_waiting(), "the second attempt is under way");
    }
}
