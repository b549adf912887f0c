//! The thread of a socket: answers queries from the response cache, answers queries about a changed link by polling the
//! full handler once, and passes all other queries to the slow path.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::sleep;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{debug, error};

use super::answer_socket::AnswerSocket;
use super::batch::{self, DatagramBatch, send_all};
use super::pending::{CacheInsert, InFlightGuard, Peer, PendingQuery, QueryProgress};
use super::queues::QueueSenders;
use super::{DRAIN_TIMEOUT, MAX_DRAIN_QUERIES};
use crate::dns::chain::handler::{EncodedReply, Handler};
use crate::dns::net::{ACCEPT_RETRY_PAUSE, Protocol, is_fatal, is_out_of_resources, unmapped};
use crate::dns::response_cache::{Capacity, Miss, ResponseCache};
use crate::dns::transport::metrics::DropReason;

const CACHE_CAPACITY: Capacity = Capacity { sets: 4096, bytes: 8 << 20 };
/// The pause between two reads of a stopped socket.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The number of queries between two checks of the send buffer, and the number while the buffer is filling up.
const CHECK_EVERY: usize = 64;
const CHECK_SOON: usize = 8;

pub(super) struct Worker {
    pub(super) socket: Arc<AnswerSocket>,
    pub(super) handler: Arc<Handler>,
    /// To the slow path.
    pub(super) queues: QueueSenders,
    /// Answers of the slow path for the response cache.
    pub(super) inserts: Receiver<CacheInsert>,
    /// The number of the listener's queries in the slow path.
    pub(super) pending: Arc<AtomicUsize>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) runtime: Handle,
}

struct WorkerState {
    batch: DatagramBatch,
    response_cache: ResponseCache,
    /// The number of queries until the next check of the send buffer.
    until_check: usize,
}

impl Worker {
    /// Answers queries until the stop, then answers the datagrams in the receive buffer and the datagrams that arrive
    /// while answers are pending: a new socket at the port may serve only some of the addresses.
    ///
    /// # Errors
    /// If the socket is broken.
    pub(super) fn run(mut self) -> io::Result<()> {
        let runtime = self.runtime.clone();
        let _context = runtime.enter();
        loop {
            let mut state = WorkerState {
                batch: DatagramBatch::new(),
                response_cache: ResponseCache::new(CACHE_CAPACITY),
                until_check: 0,
            };
            let serving = AssertUnwindSafe(|| self.serve(&mut state));
            // A panic caused by one message must not end the listener.
            match catch_unwind(serving) {
                Ok(ended) => return ended,
                Err(_) => {
                    error!("answering a message by UDP panicked");
                    self.handler.server_metrics.panics.inc();
                }
            }
        }
    }

    fn serve(&mut self, state: &mut WorkerState) -> io::Result<()> {
        while !self.is_stopped() {
            match state.batch.receive(self.socket.as_fd(), true) {
                Ok(number) => self.process_batch(state, number),
                Err(error) if is_fatal(&error) => return Err(error),
                // An ICMP error about an earlier answer, or a temporary lack of memory.
                Err(error) => {
                    debug!("UDP: {error}");
                    self.socket.read_errors();
                    if is_out_of_resources(&error) {
                        sleep(ACCEPT_RETRY_PAUSE);
                    }
                }
            }
        }
        let mut last = 0;
        let end = Instant::now() + DRAIN_TIMEOUT;
        loop {
            match state.batch.receive(self.socket.as_fd(), false) {
                Ok(number) => {
                    last += number;
                    self.process_batch(state, number);
                }
                Err(error) if is_fatal(&error) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.pending.load(Ordering::Acquire) == 0 {
                        return Ok(());
                    }
                    sleep(DRAIN_POLL_INTERVAL);
                }
                // An ICMP error doesn't mean that the receive buffer is empty.
                Err(error) => {
                    debug!("UDP: {error}");
                    self.socket.read_errors();
                    if is_out_of_resources(&error) {
                        sleep(DRAIN_POLL_INTERVAL);
                    }
                }
            }
            let is_late = last >= MAX_DRAIN_QUERIES && self.pending.load(Ordering::Acquire) == 0;
            if is_late || Instant::now() > end {
                return Ok(());
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Answers the received datagrams, or passes them to the slow path.
    fn process_batch(&mut self, state: &mut WorkerState, number: usize) {
        let WorkerState { batch, response_cache, until_check } = state;
        let now = Instant::now();
        for CacheInsert { key, client, wire_response } in self.inserts.try_iter() {
            response_cache.insert(key, client, *wire_response, now);
        }
        let server = self.handler.server.load_full();
        let (mut repeated, mut computed, mut anew) = (0, 0, Duration::ZERO);
        for at in 0..number {
            let Some(peer) = batch.peer(at) else { continue };
            self.socket.count_queue_drops(peer.kernel_drops);
            if !self.socket.admits(unmapped(peer.address).ip(), now) {
                continue;
            }
            let is_truncated = batch.is_truncated(at);
            let (question, out) = batch.query_and_answer_buffer(at);
            if is_truncated {
                self.enqueue(false, QueryProgress::Message(question.to_vec()), peer, None);
                continue;
            }
            let length =
                match response_cache.answer(question, unmapped(peer.address).ip(), server.number(), now, out)
                {
                    Ok(length) => {
                        repeated += 1;
                        Some(length)
                    }
                    Err(Miss::Outdated) => {
                        computed += 1;
                        let begun = Instant::now();
                        let length = self.answer_anew(question, peer, response_cache, out);
                        anew += begun.elapsed();
                        length
                    }
                    Err(Miss::NotCached) => {
                        computed += 1;
                        let key = response_cache.last_key().map(Box::from);
                        let is_about_links = server.asks_about_links(question);
                        self.enqueue(is_about_links, QueryProgress::Message(question.to_vec()), peer, key);
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

    /// Polls the full handler once on this thread, which takes less time than waking another thread. Returns the length
    /// of the answer, which is also cached; a query that has to wait goes to the slow path.
    fn answer_anew(
        &self,
        question: &[u8],
        peer: Peer,
        response_cache: &mut ResponseCache,
        out: &mut [u8],
    ) -> Option<usize> {
        let key: Option<Box<[u8]>> = response_cache.last_key().map(Box::from);
        let (handler, message) = (Arc::clone(&self.handler), question.to_vec());
        let answering = async move { handler.answer(message, peer.address, peer.local, Protocol::Udp).await };
        let mut answering = answering.boxed();
        // The slow path polls the future again.
        let Some(answer) = answering.as_mut().now_or_never() else {
            let is_about_links = self.handler.server.load().asks_about_links(question);
            self.enqueue(is_about_links, QueryProgress::UnderWay(answering), peer, key);
            return None;
        };
        let EncodedReply { bytes, wire_response } = answer?;
        if let (Some(key), Some(wire_response)) = (key, wire_response) {
            response_cache.insert(key, unmapped(peer.address).ip(), *wire_response, Instant::now());
        }
        let Some(out) = out.get_mut(..bytes.len()) else {
            // The plugin `bufsize` may allow larger answers than the buffer holds.
            send_all(&self.socket, &mut [batch::OutgoingDatagram { peer, bytes }]);
            return None;
        };
        out.copy_from_slice(&bytes);
        Some(bytes.len())
    }

    /// Passes a query to the slow path, if the client has quota and the queue has room.
    pub(super) fn enqueue(
        &self,
        is_about_links: bool,
        progress: QueryProgress,
        peer: Peer,
        key: Option<Box<[u8]>>,
    ) {
        let query = |queue_share| {
            let guard = InFlightGuard::new(&self.pending);
            PendingQuery { progress, peer, key, guard, queue_share }
        };
        if !self.queues.send(is_about_links, unmapped(peer.address).ip(), query) {
            self.socket.count_dropped(DropReason::Busy, 1);
        }
    }
}
