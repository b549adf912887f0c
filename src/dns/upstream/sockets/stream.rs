//! The connections to an upstream, by TCP or TLS (RFC 7766), and by HTTPS ([`http2`]).
//!
//! Many servers, CoreDNS among them, answer the queries of a connection one after the other: each query would wait for the
//! slowest one before it. So several queries share a connection only after the upstream has answered out of order, which a
//! trial shows: a second query over the connection of a slow one. By HTTP/2 they share it from the start.

mod http2;

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{Queries, SentQuery, UpstreamSocket, WaitingQuery};
use crate::dns::message::upstream_reply::{UpstreamReply, parse_reply};
use crate::dns::upstream::config::PoolConfig;
use crate::dns::upstream::http::HttpRequests;
use crate::dns::upstream::socket_budget::{SocketBudget, SocketPermit};
use crate::model::tls_error;

/// The number of queries that may share a connection: PowerDNS's resolver works on 10 at a time, BIND on 23.
const MAX_SHARING: usize = 8;
/// The number of connections that are candidates for sharing.
const MAX_CANDIDATES: usize = 8;
/// The maximum number of queries of one connection, which has an id for each.
const MAX_QUERIES: usize = 10_000;
/// How long a query has to wait before another one is sent over its connection, to learn whether the upstream answers out
/// of order. A shared connection gets no further query while one has waited for so long without any reply.
const SLOW: Duration = Duration::from_millis(100);
/// The least time between two trials: if the upstream answers in order, the second query waits for the first.
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);
/// How long a reused connection may be silent, or another query may take to open one, before a new one is tried: the
/// other end may be gone.
pub(crate) const POOLED_STREAM_TIMEOUT: Duration = Duration::from_millis(300);
/// The number of connections of HTTP/2 that are opened at a time when the first one takes too long.
const MAX_OPENING: usize = 3;
/// The free space of the buffer for replies, in bytes.
const READ_SIZE: usize = 4096;
pub(crate) const MISMATCH: &str = "the reply doesn't match the query";

/// A TCP stream, with or without TLS.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The open connections to one upstream. Dropping it closes each as soon as no query waits.
#[derive(Debug)]
pub(crate) struct Connections {
    pool: Arc<Mutex<Pool>>,
    pool_config: PoolConfig,
    budget: Arc<SocketBudget>,
    /// `None` without HTTP.
    requests: Option<Arc<HttpRequests>>,
    /// A permit is held while a connection of HTTP/2 is opened.
    opening: Semaphore,
    /// For connections that are opened while another one takes too long.
    opening_more: Semaphore,
}

#[derive(Debug, Default)]
struct Pool {
    /// The connection used last is at the end: the upstream is least likely to have closed it.
    idle: Vec<Arc<UpstreamSocket>>,
    /// The connections that were opened or left `idle` last, at most [`MAX_CANDIDATES`]. Only these may be shared, while
    /// they aren't idle again.
    candidates: VecDeque<Arc<UpstreamSocket>>,
    answers_out_of_order: bool,
    /// When two queries last shared a connection to learn whether the upstream answers out of order.
    tried: Option<Instant>,
    /// The upstream isn't used any more.
    is_closed: bool,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    /// The permit of a look-up, or for an idle connection.
    permit: SocketPermit,
    /// Since when the connection has been in the pool as an idle one.
    idle_since: Option<Instant>,
    /// The highest number of a query that was answered.
    newest_answered: usize,
    has_answered_out_of_order: bool,
    /// The number of queries that were given up, and to which no reply has come; by HTTP/2 always 0.
    given_up: usize,
    /// The number of queries that may share the connection once the upstream has answered out of order.
    max_sharing: usize,
    is_http2: bool,
}

impl Connections {
    pub(crate) fn new(
        pool_config: PoolConfig,
        budget: Arc<SocketBudget>,
        requests: Option<HttpRequests>,
    ) -> Self {
        let pool = Pool { answers_out_of_order: requests.is_some(), ..Pool::default() };
        let (pool, requests) = (Arc::new(pool.into()), requests.map(Arc::new));
        let (opening, opening_more) = (Semaphore::new(1), Semaphore::new(MAX_OPENING - 1));
        Self { pool, pool_config, budget, requests, opening, opening_more }
    }

    /// Sends a query over a new connection, which starts a task. The permit is released when the connection is closed or
    /// idle. With `is_alone` the connection gets no further query.
    pub(crate) fn ask_over(
        &self,
        stream: Stream,
        permit: SocketPermit,
        bytes: &[u8],
        is_alone: bool,
    ) -> SentQuery {
        let tcp = match &stream {
            Either::Left(tcp) => tcp,
            Either::Right(tls) => tls.get_ref().0,
        };
        let is_http2 = self.requests.is_some();
        let state = ConnectionState {
            permit,
            idle_since: None,
            newest_answered: 0,
            has_answered_out_of_order: is_http2,
            given_up: 0,
            max_sharing: if is_http2 { http2::MAX_STREAMS } else { MAX_SHARING },
            is_http2,
        };
        let socket = UpstreamSocket::new(tcp.local_addr().ok(), MAX_QUERIES, Some(state));
        let query = socket.ask(bytes.to_vec(), Instant::now());
        if is_alone {
            socket.retire();
        } else {
            self.pool.lock().add_candidate(&socket);
        }
        let (pool, pool_config, budget) =
            (Arc::clone(&self.pool), self.pool_config, Arc::clone(&self.budget));
        let task = Task { socket, pool, pool_config, budget };
        match &self.requests {
            None => drop(tokio::spawn(task.run(stream))),
            Some(requests) => drop(tokio::spawn(task.run_http2(stream, Arc::clone(requests)))),
        }
        query
    }

    /// Sends a query over a connection that other queries use, or over an idle one, for which it takes a permit; with
    /// `since` only over one that was opened or has had a reply since then. Returns the query, and whether the connection
    /// is shared; `None` if there is no connection.
    ///
    /// # Errors
    /// If there is no permit.
    pub(crate) fn ask(
        &self,
        bytes: &[u8],
        take_permit: impl FnOnce() -> io::Result<SocketPermit>,
        now: Instant,
        since: Option<Instant>,
    ) -> io::Result<Option<(SentQuery, bool)>> {
        let pool = &mut *self.pool.lock();
        if let Some(shared) = pool.shared(now, since, &self.pool_config) {
            return Ok(Some((shared.ask(bytes.to_vec(), now), true)));
        }
        pool.idle.retain(|connection| connection.stays_usable(now, &self.pool_config));
        if !pool.idle.last().is_some_and(|idle| idle.is_newer(since)) {
            return Ok(None);
        }
        let permit = take_permit()?;
        let Some(connection) = pool.idle.pop() else { return Ok(None) };
        connection.resume(permit);
        pool.add_candidate(&connection);
        Ok(Some((connection.ask(bytes.to_vec(), now), false)))
    }

    /// By HTTP/2 waits until no other query opens a connection, because this query may share it; after
    /// [`POOLED_STREAM_TIMEOUT`] until fewer than [`MAX_OPENING`] do. Then the permit is held until this query has opened
    /// one.
    pub(crate) async fn wait_to_open(&self) -> Option<SemaphorePermit<'_>> {
        self.requests.as_ref()?;
        let mut first = pin!(self.opening.acquire());
        let permit = match timeout(POOLED_STREAM_TIMEOUT, &mut first).await {
            Ok(permit) => permit,
            Err(_) => select(first, pin!(self.opening_more.acquire())).await.factor_first().0,
        };
        // The semaphores are never closed.
        permit.ok()
    }

    /// Closes the connections that are idle, and on which no reply has come since `time`: the other end may be gone.
    pub(crate) fn close_idle_since(&self, time: Instant) {
        let close = |connection: &mut Arc<UpstreamSocket>| connection.last_sign() <= time;
        self.pool.lock().idle.extract_if(.., close).for_each(|connection| connection.retire());
    }

    /// Returns whether a query that has waited for long since `sent` may still wait: by HTTP/2 a reply since then shows that
    /// the connection works. By TCP and TLS, if the query shares the connection, ends the sharing of connections: if no
    /// reply has come since, or none was ever out of order, the upstream may answer in order by now.
    pub(crate) fn doubt(&self, connection: &UpstreamSocket, sent: Instant, is_shared: bool) -> bool {
        let pool = &mut *self.pool.lock();
        let queries = connection.queries.lock();
        let has_reply = queries.has_reply_since(sent);
        if self.requests.is_some() {
            return has_reply;
        }
        if !is_shared {
            return false;
        }
        let is_proven = queries.connection.as_ref().is_some_and(|state| state.has_answered_out_of_order);
        if !is_proven || !has_reply {
            (pool.answers_out_of_order, pool.tried) = (false, Some(Instant::now()));
        }
        false
    }

    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.pool.lock().idle.len()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let Pool { idle, candidates, is_closed, .. } = &mut *self.pool.lock();
        *is_closed = true;
        idle.drain(..).chain(candidates.drain(..)).for_each(|connection| connection.retire());
    }
}

impl Pool {
    /// Returns a connection on which queries wait and that takes another one; with `since` only one that was opened or has
    /// had a reply since then.
    fn shared(
        &mut self,
        now: Instant,
        since: Option<Instant>,
        limits: &PoolConfig,
    ) -> Option<Arc<UpstreamSocket>> {
        let mut candidates = self
            .candidates
            .iter()
            .filter(|connection| !connection.is_old(now, limits) && connection.is_newer(since));
        if self.answers_out_of_order {
            return candidates.find(|connection| connection.takes_another(now)).cloned();
        }
        if self.tried.is_some_and(|tried| now.duration_since(tried) < TRIAL_INTERVAL) {
            return None;
        }
        let slow = candidates.find(|connection| connection.has_one_slow_query(now)).cloned();
        if slow.is_some() {
            self.tried = Some(now);
        }
        slow
    }

    fn add_candidate(&mut self, connection: &Arc<UpstreamSocket>) {
        self.remove_candidate(connection);
        self.candidates.push_back(Arc::clone(connection));
        if self.candidates.len() > MAX_CANDIDATES {
            self.candidates.pop_front();
        }
    }

    fn remove_candidate(&mut self, connection: &Arc<UpstreamSocket>) {
        self.candidates.retain(|other| !Arc::ptr_eq(other, connection));
    }

    fn remove_idle(&mut self, connection: &Arc<UpstreamSocket>) {
        self.idle.retain(|other| !Arc::ptr_eq(other, connection));
    }
}

impl ConnectionState {
    /// Records that a query is given up; `is_silent` is whether no reply has come since it was sent. Returns whether the
    /// connection is of no use: if the upstream answers in order, the next query would wait for this one; and after many
    /// such queries it could hardly be shared. By HTTP/2 the stream of the query ends.
    pub(super) fn gives_up(&mut self, is_silent: bool) -> bool {
        if self.is_http2 {
            return is_silent;
        }
        self.given_up += 1;
        is_silent || !self.has_answered_out_of_order || self.given_up == MAX_SHARING - 1
    }
}

/// What only connections do.
impl UpstreamSocket {
    fn idle_since(&self) -> Option<Instant> {
        self.queries.lock().connection.as_ref().and_then(|state| state.idle_since)
    }

    fn is_old(&self, now: Instant, limits: &PoolConfig) -> bool {
        limits.age.is_some_and(|age| now.duration_since(self.opened) > age)
    }

    /// Retires an idle connection that is too old, or was idle for too long. Returns whether it may be used.
    fn stays_usable(&self, now: Instant, limits: &PoolConfig) -> bool {
        let is_over = self.idle_since().is_some_and(|since| now.duration_since(since) >= limits.idle);
        if is_over || self.is_old(now, limits) {
            self.retire();
        }
        !self.queries.lock().is_retired
    }

    /// Returns whether queries wait on the connection, fewer than may share it, and none of them for long without any reply.
    fn takes_another(&self, now: Instant) -> bool {
        let queries = &*self.queries.lock();
        let Some(ConnectionState { given_up, max_sharing, .. }) = &queries.connection else { return false };
        let is_lively = |query: &WaitingQuery| {
            now.duration_since(query.sent) < SLOW || queries.has_reply_since(query.sent)
        };
        !queries.is_retired
            && queries.unanswered > 0
            && queries.unanswered + given_up < *max_sharing
            && queries.by_id.values().filter(|query| query.reply.is_none()).all(is_lively)
    }

    fn has_one_slow_query(&self, now: Instant) -> bool {
        let queries = self.queries.lock();
        let mut waiting = queries.by_id.values();
        let is_slow = |query: &WaitingQuery| now.duration_since(query.sent) >= SLOW;
        !queries.is_retired
            && queries.unanswered == 1
            && waiting.any(|query| query.reply.is_none() && is_slow(query))
    }

    /// Returns when the last reply came; without one, when the connection was opened.
    fn last_sign(&self) -> Instant {
        self.queries.lock().heard.unwrap_or(self.opened)
    }

    /// Returns whether the connection was opened or has had a reply since then, if that matters.
    fn is_newer(&self, since: Option<Instant>) -> bool {
        since.is_none_or(|since| self.last_sign() > since)
    }

    /// Gives an idle connection the permit of a look-up.
    fn resume(&self, permit: SocketPermit) {
        if let Some(state) = &mut self.queries.lock().connection {
            (state.permit, state.idle_since) = (permit, None);
        }
    }

    /// Adds the queries to send to `output`, each with its length before it (RFC 1035 section 4.2.2).
    fn take_outgoing(&self, output: &mut VecDeque<u8>) {
        let queries = &mut *self.queries.lock();
        for id in queries.outgoing.drain(..) {
            // A query may have been given up meanwhile.
            if let Some(bytes) = queries.by_id.get(&id).map(|query| &query.bytes)
                && let Ok(length) = u16::try_from(bytes.len())
            {
                output.extend(length.to_be_bytes());
                output.extend(bytes);
            }
        }
    }

    /// Takes the whole messages from `input`. Returns whether one of them was out of order.
    ///
    /// # Errors
    /// If a message answers no query of this connection.
    fn accept_messages(&self, input: &mut Vec<u8>) -> io::Result<bool> {
        let (mut rest, mut is_out_of_order) = (&input[..], false);
        while let Some((length, after)) = rest.split_first_chunk()
            && let Some((message, next)) = after.split_at_checked(u16::from_be_bytes(*length).into())
        {
            is_out_of_order |= self.accept_message(message)?;
            rest = next;
        }
        input.drain(..input.len() - rest.len());
        Ok(is_out_of_order)
    }

    /// Gives a message to the query that it answers; returns whether it was out of order. The answer to a query that was
    /// given up is ignored. After a reply that isn't accepted the connection gets no further query.
    fn accept_message(&self, message: &[u8]) -> io::Result<bool> {
        let id = message.first_chunk().map(|id| u16::from_be_bytes(*id));
        let sent = {
            let queries = &mut *self.queries.lock();
            let id = id.filter(|id| queries.has_used(*id)).ok_or_else(|| io::Error::other(MISMATCH))?;
            queries.heard = Some(Instant::now());
            match queries.by_id.get(&id) {
                Some(query) => query.bytes.clone(),
                None => {
                    let given_up = queries.connection.as_mut().map(|state| &mut state.given_up);
                    given_up.into_iter().for_each(|number| *number = number.saturating_sub(1));
                    return Ok(false);
                }
            }
        };
        // Without the lock, because the message may be large.
        let reply = parse_reply(&sent, message);
        let is_accepted = matches!(reply, UpstreamReply::Answer(_) | UpstreamReply::Truncated(_));
        let queries = &mut *self.queries.lock();
        queries.is_retired |= !is_accepted;
        Ok(id.is_some_and(|id| queries.end(id, Ok(reply))))
    }
}

impl Queries {
    /// Ends a query of a connection; returns whether it was out of order.
    fn end(&mut self, id: u16, reply: io::Result<UpstreamReply>) -> bool {
        let (Some(query), Some(state)) = (self.by_id.get_mut(&id), &mut self.connection) else {
            return false;
        };
        if !query.end(reply) {
            return false;
        }
        self.unanswered -= 1;
        let is_out_of_order = query.number < state.newest_answered;
        state.newest_answered = state.newest_answered.max(query.number);
        state.has_answered_out_of_order |= is_out_of_order;
        is_out_of_order
    }
}

/// The task of a connection.
struct Task {
    socket: Arc<UpstreamSocket>,
    pool: Arc<Mutex<Pool>>,
    pool_config: PoolConfig,
    budget: Arc<SocketBudget>,
}

impl Task {
    /// Sends and receives until the connection fails, or is retired and has no unanswered query.
    async fn run(self, stream: Stream) {
        let socket = &self.socket;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (mut input, mut output, mut is_sending) = (Vec::new(), VecDeque::new(), false);
        let mut idle_end = pin!(sleep(self.pool_config.idle));
        while !socket.is_done() {
            input.reserve(READ_SIZE);
            let outcome = tokio::select! {
                biased;
                () = socket.changed.notified() => {
                    socket.take_outgoing(&mut output);
                    is_sending = true;
                    Ok(false)
                }
                sent = async {
                    writer.write_all_buf(&mut output).await?;
                    writer.flush().await
                }, if is_sending => {
                    is_sending = false;
                    sent.map(|()| false)
                }
                read = reader.read_buf(&mut input) => match read {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => socket.accept_messages(&mut input),
                    Err(error) => Err(error),
                },
                () = &mut idle_end, if socket.idle_since().is_some() => {
                    self.close_if_idle();
                    Ok(false)
                }
            };
            match outcome {
                Ok(true) => self.pool.lock().answers_out_of_order = true,
                Ok(false) => {}
                Err(error) => return socket.fail(|| copy(&error)),
            }
            if self.rest() {
                idle_end.set(sleep(self.pool_config.idle));
                // What is there of a late reply belongs to the next message.
                if input.is_empty() && !is_sending {
                    (input, output) = (Vec::new(), VecDeque::new());
                }
            }
        }
    }

    /// Adds the connection to the idle ones if no query waits any more, with a permit for idle connections; retires it
    /// without one. Returns whether it was added.
    fn rest(&self) -> bool {
        if self.socket.queries.lock().unanswered > 0 {
            return false;
        }
        let pool = &mut *self.pool.lock();
        let queries = &mut *self.socket.queries.lock();
        let Some(state) = &mut queries.connection else { return false };
        if queries.unanswered > 0 || queries.is_retired || state.idle_since.is_some() {
            return false;
        }
        let may_rest = !pool.is_closed && pool.idle.len() < self.pool_config.max_idle_connections;
        let Some(permit) = may_rest.then(|| self.budget.idle()).flatten() else {
            queries.is_retired = true;
            return false;
        };
        (state.permit, state.idle_since) = (permit, Some(Instant::now()));
        pool.idle.push(Arc::clone(&self.socket));
        true
    }

    fn close_if_idle(&self) {
        let pool = &mut *self.pool.lock();
        // A query may have taken it meanwhile.
        if self.socket.idle_since().is_some() {
            self.socket.retire();
            pool.remove_idle(&self.socket);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.socket.close();
        let pool = &mut *self.pool.lock();
        pool.remove_idle(&self.socket);
        pool.remove_candidate(&self.socket);
    }
}

/// Returns an error with the same text, for another query.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), tls_error::explain(error).unwrap_or_else(|| error.to_string())),
    }
}

#[cfg(test)]
mod tests;
