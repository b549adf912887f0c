//! The thread of a socket: answers queries from the response cache, and all others by the full handler, on a runtime of its
//! own. With nothing under way it blocks in its receive, which takes less time than waiting for events.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, warn};

use super::answer_socket::AnswerSocket;
use super::arrivals::Arrivals;
use super::batch::{BATCH_SIZE, DatagramBatch, OutgoingDatagram, send_all};
use super::pending::{Backlog, InFlightGuard, Peer, PendingQuery, QueryProgress};
use super::{BACKLOG_CAPACITY, DRAIN_TIMEOUT, MAX_DRAIN_QUERIES};
use crate::dns::chain::handler::{EncodedReply, Handler};
use crate::dns::chain::proxy_sources::ProxyStep;
use crate::dns::chain::server::Server;
use crate::dns::message::proxy_header;
use crate::dns::net::late_timer::Ticker;
use crate::dns::net::part_waker::{PartWaker, ThreadWaker};
use crate::dns::net::shared_runtime::set_shared_runtime;
use crate::dns::net::thread_tasks;
use crate::dns::net::{ACCEPT_RETRY_PAUSE, Protocol, is_fatal, is_out_of_resources, unmapped};
use crate::dns::response_cache::wire_response::WireResponse;
use crate::dns::response_cache::{Capacity, Miss, ResponseCache};
use crate::dns::transport::client_quota::ClientQuota;
use crate::dns::transport::metrics::DropReason;

const CACHE_CAPACITY: Capacity = Capacity { sets: 4096, bytes: 8 << 20 };
/// The pause between two reads of a stopped socket, and after a lack of memory.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The number of queries between two checks of the send buffer, and the number while the buffer is filling up.
const CHECK_EVERY: usize = 64;
const CHECK_SOON: usize = 8;
/// The maximum number of queries in a round that the full handler begins, and the number while more datagrams wait than a
/// round receives: a flood of look-ups delays no answer from the response cache.
const MAX_STARTS: usize = BATCH_SIZE;
const MAX_STARTS_IN_A_FLOOD: usize = BATCH_SIZE / 4;

pub(super) struct Worker {
    pub(super) socket: Arc<AnswerSocket>,
    pub(super) handler: Arc<Handler>,
    /// The quota of each client for queries that wait for an upstream.
    pub(super) quota: Arc<ClientQuota>,
    /// The number of the listener's queries that aren't answered yet, in all threads.
    pub(super) pending: Arc<AtomicUsize>,
    pub(super) stop: Arc<AtomicBool>,
    /// The runtime for what outlives the thread.
    pub(super) runtime: Handle,
}

struct WorkerState {
    batch: DatagramBatch,
    response_cache: ResponseCache,
    /// The number of queries until the next check of the send buffer.
    until_check: usize,
    backlog: Backlog,
}

/// The outcome of the full handler for a query.
struct Finished {
    /// `None` if the client gets no reply.
    answer: Option<OutgoingDatagram>,
    /// What the response cache keeps.
    insert: Option<(Box<[u8]>, IpAddr, Box<WireResponse>)>,
}

/// A stopped socket.
struct Drain {
    end: Instant,
    /// The number of datagrams since the stop.
    received: usize,
}

/// Tasks of the thread: sockets to upstreams, and look-ups for which no client waits any more.
type Tasks = FuturesUnordered<BoxFuture<'static, ()>>;

impl Worker {
    /// Answers queries until the stop, then answers the datagrams in the receive buffer and the datagrams that arrive
    /// while answers are pending: a new socket at the port may serve only some of the addresses. Then tells `ended`, and
    /// finishes the look-ups for which no client waits any more. The error is that the socket is broken, or that the thread
    /// couldn't have a runtime until the stop.
    pub(super) fn run(self, ended: oneshot::Sender<io::Result<()>>) {
        let runtime = loop {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => break runtime,
                Err(error) if self.is_stopped() => return drop(ended.send(Err(error))),
                // There are no file descriptors, or there is no memory.
                Err(error) => {
                    warn!("UDP: a thread can't begin: {error}; retrying");
                    thread::sleep(ACCEPT_RETRY_PAUSE);
                }
            }
        };
        set_shared_runtime(self.runtime.clone());
        thread_tasks::begin();
        let mut tasks = Tasks::new();
        let outcome = loop {
            let mut state = WorkerState {
                batch: DatagramBatch::new(),
                response_cache: ResponseCache::new(CACHE_CAPACITY),
                until_check: 0,
                backlog: Backlog::new(BACKLOG_CAPACITY),
            };
            let serving = AssertUnwindSafe(|| runtime.block_on(self.serve(&mut state, &mut tasks)));
            // A panic caused by one message must not end the listener.
            match catch_unwind(serving) {
                Ok(outcome) => break outcome,
                Err(_) => {
                    error!("answering a message by UDP panicked");
                    self.handler.server_metrics.panics.inc();
                    // The look-ups of the queries that were under way.
                    tasks.extend(thread_tasks::take());
                }
            }
        };
        // Closes the socket.
        drop(self);
        // The receiver may be gone.
        let _ = ended.send(outcome);
        // Each look-up has a deadline.
        runtime.block_on(poll_fn(|context| {
            poll_tasks(&mut tasks, context);
            if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// Serves in rounds: receives a batch, answers it from the response cache, runs the tasks of the upstream sockets, which
    /// receive replies, begins queries of the backlog, sends the answers of the full handler that are finished, and runs
    /// the tasks again, which send the new queries. Each step is bounded.
    async fn serve(&self, state: &mut WorkerState, tasks: &mut Tasks) -> io::Result<()> {
        let mut arrivals = Arrivals::new(self.socket.udp());
        let mut ticker = Ticker::new();
        let mut under_way = FuturesUnordered::new();
        let thread_waker = ThreadWaker::default();
        let (task_waker, query_waker) = (thread_waker.part(), thread_waker.part());
        let mut drain: Option<Drain> = None;
        loop {
            if drain.is_none() && self.is_stopped() {
                drain = Some(Drain { end: Instant::now() + DRAIN_TIMEOUT, received: 0 });
            }
            let has_work = !under_way.is_empty() || state.backlog.len() > 0 || !tasks.is_empty();
            let received = match drain {
                Some(_) => state.batch.receive(self.socket.as_fd(), false),
                None => arrivals.receive(&mut state.batch, has_work).await,
            };
            let (number, pause) = match received {
                Ok(number) => (number, None),
                Err(error) if is_fatal(&error) => return if drain.is_some() { Ok(()) } else { Err(error) },
                Err(error) if error.kind() == ErrorKind::WouldBlock => (0, None),
                // An ICMP error about an earlier answer, or a temporary lack of memory. It doesn't mean that the receive
                // buffer is empty.
                Err(error) => {
                    debug!("UDP: {error}");
                    self.socket.read_errors();
                    (0, Some(if is_out_of_resources(&error) { POLL_INTERVAL } else { Duration::ZERO }))
                }
            };
            if number > 0 {
                self.process_batch(state, number);
            }
            task_waker.poll(|context| poll_tasks(tasks, context));
            let starts = if number == BATCH_SIZE { MAX_STARTS_IN_A_FLOOD } else { MAX_STARTS };
            under_way.extend(state.backlog.take(starts).map(|query| self.answer(query)));
            let finished = self.finish(state, &mut under_way, &query_waker);
            // The queries of the look-ups that have begun are sent.
            task_waker.poll(|context| poll_tasks(tasks, context));
            let is_drained = drain.as_mut().is_some_and(|drain| {
                drain.received += number;
                let is_empty = number == 0 && pause.is_none() || drain.received >= MAX_DRAIN_QUERIES;
                is_empty && self.pending.load(Ordering::Acquire) == 0 || Instant::now() > drain.end
            });
            if is_drained {
                return Ok(());
            }
            let is_busy = has_work || !under_way.is_empty();
            if is_busy {
                ticker.tick().await;
            }
            // Also what a poll has interrupted itself goes on only after the runtime has run.
            let can_go_on = task_waker.can_go_on() || query_waker.can_go_on();
            if number == BATCH_SIZE || finished == BATCH_SIZE || state.backlog.len() > 0 || can_go_on {
                yield_now().await;
            } else if let Some(pause) = pause.or(drain.is_some().then_some(POLL_INTERVAL)) {
                // A stopped socket always counts as readable, and the queries of another thread may end meanwhile.
                sleep(pause).await;
            } else if is_busy {
                arrivals.event(&thread_waker, [&task_waker, &query_waker]).await;
            }
        }
    }

    /// Sends the answers that are finished, at most [`BATCH_SIZE`]; returns the number of queries that have ended.
    fn finish(
        &self,
        state: &mut WorkerState,
        under_way: &mut (impl Stream<Item = Finished> + Unpin),
        waker: &Arc<PartWaker>,
    ) -> usize {
        let (mut answers, mut number) = (Vec::new(), 0);
        waker.poll(|context| {
            while number < BATCH_SIZE
                && let Poll::Ready(Some(Finished { answer, insert })) = under_way.poll_next_unpin(context)
            {
                number += 1;
                answers.extend(answer);
                if let Some((key, client, wire_response)) = insert {
                    state.response_cache.insert(key, client, *wire_response, Instant::now());
                }
            }
        });
        send_all(&self.socket, &mut answers);
        number
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Answers the received datagrams, or adds them to the backlog.
    fn process_batch(&self, state: &mut WorkerState, number: usize) {
        let WorkerState { batch, response_cache, until_check, backlog } = state;
        let now = Instant::now();
        let server = self.handler.server.load_full();
        let (mut repeated, mut computed, mut anew) = (0, 0, Duration::ZERO);
        for at in 0..number {
            let Some((peer, header)) = self.peer(batch, at, &server, now) else { continue };
            let is_truncated = batch.is_truncated(at);
            let (datagram, out) = batch.query_and_answer_buffer(at);
            let question = &datagram[header..];
            if is_truncated {
                self.enqueue(backlog, false, QueryProgress::Message(question.to_vec()), peer, None);
                continue;
            }
            let of = self.handler.number(&server, question, peer.client, peer.local, Protocol::Udp);
            let length = match response_cache.answer(question, unmapped(peer.client).ip(), of, now, out) {
                Ok(length) => {
                    repeated += 1;
                    Some(length)
                }
                Err(Miss::Outdated) => {
                    computed += 1;
                    let begun = Instant::now();
                    let length = self.answer_anew(question, peer, response_cache, backlog, out);
                    anew += begun.elapsed();
                    length
                }
                Err(Miss::NotCached) => {
                    computed += 1;
                    let key = response_cache.key_to_keep().map(Box::from);
                    let is_about_own_names = server.asks_about_own_names(question);
                    let message = QueryProgress::Message(question.to_vec());
                    self.enqueue(backlog, is_about_own_names, message, peer, key);
                    None
                }
            };
            if let Some(length) = length {
                batch.answer(at, peer.local, length);
            }
        }
        if computed > 0 {
            self.socket.count_computed(computed);
        }
        if repeated > 0 {
            response_cache.set_hit_duration(now.elapsed().saturating_sub(anew) / repeated);
        }
        batch.send(&self.socket);
        *until_check = until_check.saturating_sub(number);
        if *until_check == 0 {
            *until_check = if self.socket.check_send_buffer(now) { CHECK_SOON } else { CHECK_EVERY };
        }
    }

    /// Returns the sender of a datagram, with the client, and the length of the PROXY header in front of the query; `None`
    /// if the datagram is dropped.
    fn peer(&self, batch: &DatagramBatch, at: usize, server: &Server, now: Instant) -> Option<(Peer, usize)> {
        let peer = batch.peer(at)?;
        self.socket.count_queue_drops(peer.kernel_drops);
        if !self.socket.admits(unmapped(peer.address).ip(), now) {
            return None;
        }
        let Some(proxies) = server.proxies() else { return Some((peer, 0)) };
        let refused = match proxies.step(peer.address, proxy_header::parse_datagram(batch.datagram(at))) {
            ProxyStep::Serve { client, length } => return Some((Peer { client, ..peer }, length)),
            ProxyStep::Wait => "its end is missing",
            ProxyStep::Refuse(why) => why,
        };
        self.socket.count_refused_header(peer.address, refused);
        None
    }

    /// Polls the full handler once. Returns the length of the answer, which the response cache keeps if it may be reused; a
    /// query that has to wait goes to the backlog.
    fn answer_anew(
        &self,
        question: &[u8],
        peer: Peer,
        response_cache: &mut ResponseCache,
        backlog: &mut Backlog,
        out: &mut [u8],
    ) -> Option<usize> {
        let key: Option<Box<[u8]>> = response_cache.key_to_keep().map(Box::from);
        let (handler, message, keep) = (Arc::clone(&self.handler), question.to_vec(), key.is_some());
        let answering =
            async move { handler.answer(message, peer.client, peer.local, Protocol::Udp, keep).await };
        let mut answering = answering.boxed();
        // `now_or_never` registers no waker: the backlog polls the future again.
        let Some(answer) = answering.as_mut().now_or_never() else {
            let is_about_own_names = self.handler.server.load().asks_about_own_names(question);
            self.enqueue(backlog, is_about_own_names, QueryProgress::UnderWay(answering), peer, key);
            return None;
        };
        let EncodedReply { bytes, wire_response, .. } = answer?;
        if let (Some(key), Some(wire_response)) = (key, wire_response) {
            response_cache.insert(key, unmapped(peer.client).ip(), *wire_response, Instant::now());
        }
        let Some(out) = out.get_mut(..bytes.len()) else {
            // The plugin `bufsize` may allow larger answers than the buffer holds.
            send_all(&self.socket, &mut [OutgoingDatagram { peer, bytes }]);
            return None;
        };
        out.copy_from_slice(&bytes);
        Some(bytes.len())
    }

    /// Adds a query to the backlog, if its client has quota.
    fn enqueue(
        &self,
        backlog: &mut Backlog,
        is_about_own_names: bool,
        progress: QueryProgress,
        peer: Peer,
        key: Option<Box<[u8]>>,
    ) {
        let guard = InFlightGuard::new(&self.pending);
        if !backlog.push(is_about_own_names, (progress, peer, key), guard) {
            self.socket.count_dropped(DropReason::Busy, 1);
        }
    }

    /// Answers a query, after waiting for an upstream if necessary.
    fn answer(&self, query: PendingQuery) -> impl Future<Output = Finished> {
        let PendingQuery { progress, peer, key, guard } = query;
        let Peer { client: address, local, .. } = peer;
        let client = unmapped(address).ip();
        // Boxed, because it is large and would be moved several times.
        let mut answering: BoxFuture<'_, _> = match progress {
            QueryProgress::Message(message) => {
                self.handler.answer(message, address, local, Protocol::Udp, key.is_some()).boxed()
            }
            QueryProgress::UnderWay(answering) => answering,
        };
        async move {
            let mut share = None;
            let answer = poll_fn(|context| match answering.as_mut().poll(context) {
                Poll::Pending if share.is_none() => {
                    // Only a query that waits for an upstream needs quota.
                    share = self.quota.acquire(client, 1);
                    if share.is_some() {
                        return Poll::Pending;
                    }
                    self.socket.count_dropped(DropReason::Busy, 1);
                    Poll::Ready(None)
                }
                answer => answer,
            });
            let answer = answer.await;
            drop(guard);
            let Some(EncodedReply { bytes, wire_response, .. }) = answer else {
                return Finished { answer: None, insert: None };
            };
            let insert = key.zip(wire_response).map(|(key, wire_response)| (key, client, wire_response));
            Finished { answer: Some(OutgoingDatagram { peer, bytes }), insert }
        }
    }
}

/// Polls the tasks of this thread that can go on, and the tasks that they start.
fn poll_tasks(tasks: &mut Tasks, context: &mut Context<'_>) {
    loop {
        let new = thread_tasks::take();
        let is_last = new.is_empty();
        tasks.extend(new);
        while let Poll::Ready(Some(())) = tasks.poll_next_unpin(context) {}
        if is_last {
            return;
        }
    }
}
