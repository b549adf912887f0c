//! The connections to an upstream, by TCP or TLS (RFC 7766).
//!
//! Many servers, CoreDNS among them, answer the queries of a connection one after the other: each query would wait for the
//! slowest one before it. So several queries share a connection only after the upstream has answered out of order.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{SentQuery, UpstreamSocket};
use crate::dns::message::upstream_reply::{UpstreamReply, parse_reply};
use crate::dns::upstream::config::PoolConfig;
use crate::dns::upstream::socket_budget::{SocketBudget, SocketPermit, SocketQuota};
use crate::model::tls_error;

/// The number of waiting queries from which on a connection gets no further query.
const MAX_WAITING: usize = 32;
/// The maximum number of queries of one connection, which has an id for each.
const MAX_QUERIES: usize = 10_000;
/// How long a query has to wait before another one is sent over its connection, to learn whether the upstream answers out
/// of order.
const SLOW: Duration = Duration::from_millis(100);
/// The interval of such trials: if the upstream answers in order, the second query waits for the first.
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);
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
}

#[derive(Debug, Default)]
struct Pool {
    open: Vec<Arc<UpstreamSocket>>,
    answers_out_of_order: bool,
    /// When two queries last shared a connection to learn whether the upstream answers out of order.
    tried: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    /// The permit of a look-up, or for an idle connection.
    permit: SocketPermit,
    /// Since when the connection has the permit for an idle connection.
    idle_since: Option<Instant>,
    /// The highest number of a query that was answered.
    newest_answered: usize,
    has_answered_out_of_order: bool,
}

impl Connections {
    pub(crate) fn new(pool_config: PoolConfig, budget: Arc<SocketBudget>) -> Self {
        Self { pool: Arc::default(), pool_config, budget }
    }

    /// Adds a connection, and starts its task. The permit is released when the connection is closed or idle.
    pub(crate) fn add(&self, stream: Stream, permit: SocketPermit) -> Arc<UpstreamSocket> {
        let tcp = match &stream {
            Either::Left(tcp) => tcp,
            Either::Right(tls) => tls.get_ref().0,
        };
        let (idle_since, newest_answered, has_answered_out_of_order) = (None, 0, false);
        let state = ConnectionState { permit, idle_since, newest_answered, has_answered_out_of_order };
        let socket = UpstreamSocket::new(tcp.local_addr().ok(), MAX_QUERIES, Some(state));
        self.pool.lock().open.push(Arc::clone(&socket));
        let (pool, pool_config, budget) =
            (Arc::clone(&self.pool), self.pool_config, Arc::clone(&self.budget));
        tokio::spawn(Task { socket: Arc::clone(&socket), pool, pool_config, budget }.run(stream));
        socket
    }

    /// Sends a query over a connection that other queries use, or over an idle one, which takes a permit of `quota`. Returns
    /// `None` if there is none.
    ///
    /// # Errors
    /// If `quota` has no permit.
    pub(crate) fn ask(
        &self,
        bytes: &[u8],
        quota: &SocketQuota,
        now: Instant,
    ) -> io::Result<Option<SentQuery>> {
        let pool = &mut *self.pool.lock();
        pool.open.retain(|connection| connection.is_usable(now, &self.pool_config));
        let shared = pool.shared(now);
        let connection = match shared {
            Some(_) => shared,
            None => pool.open.iter().filter(|one| one.is_idle()).max_by_key(|one| one.idle_since()),
        };
        let Some(connection) = connection else { return Ok(None) };
        if connection.is_idle() {
            connection.resume(quota.take()?);
        }
        Ok(Some(connection.ask(bytes.to_vec(), now)))
    }

    /// Gives up the connections on which no reply has come since `time`: the other end may be gone.
    pub(crate) fn retire_silent_since(&self, time: Instant) {
        self.pool.lock().open.iter().filter(|one| one.last_sign() <= time).for_each(|one| one.retire());
    }

    #[cfg(test)]
    pub(crate) fn usable(&self) -> usize {
        let now = Instant::now();
        self.pool.lock().open.iter().filter(|one| one.is_usable(now, &self.pool_config)).count()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.pool.lock().open.iter().for_each(|connection| connection.retire());
    }
}

impl Pool {
    /// Returns a connection on which queries wait and that takes another one.
    fn shared(&mut self, now: Instant) -> Option<&Arc<UpstreamSocket>> {
        self.answers_out_of_order |= self.open.iter().any(|one| one.has_answered_out_of_order());
        if self.answers_out_of_order {
            return self.open.iter().find(|one| (1..MAX_WAITING).contains(&one.queries.lock().waiting.len()));
        }
        if self.tried.is_some_and(|tried| now.duration_since(tried) < TRIAL_INTERVAL) {
            return None;
        }
        let slow = self.open.iter().find(|one| one.has_one_slow_query(now));
        self.tried = slow.map(|_| now).or(self.tried);
        slow
    }
}

/// What only connections do.
impl UpstreamSocket {
    fn state<T>(&self, read: impl FnOnce(&ConnectionState) -> T) -> Option<T> {
        self.queries.lock().connection.as_ref().map(read)
    }

    fn idle_since(&self) -> Option<Instant> {
        self.state(|state| state.idle_since).flatten()
    }

    fn has_answered_out_of_order(&self) -> bool {
        self.state(|state| state.has_answered_out_of_order).unwrap_or_default()
    }

    fn is_idle(&self) -> bool {
        self.queries.lock().waiting.is_empty()
    }

    /// Returns whether the connection may be used. If it is too old, or idle for too long, it is given up.
    fn is_usable(&self, now: Instant, limits: &PoolConfig) -> bool {
        let is_old = limits.age.is_some_and(|age| now.duration_since(self.opened) > age);
        if is_old || self.idle_since().is_some_and(|since| now.duration_since(since) >= limits.idle) {
            self.retire();
        }
        !self.queries.lock().is_retired
    }

    fn has_one_slow_query(&self, now: Instant) -> bool {
        let queries = self.queries.lock();
        let mut waiting = queries.waiting.values();
        queries.waiting.len() == 1 && waiting.all(|query| now.duration_since(query.sent) >= SLOW)
    }

    /// Returns when the last reply came; without one, when the connection was opened.
    fn last_sign(&self) -> Instant {
        self.queries.lock().heard.unwrap_or(self.opened)
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
            if let Some(bytes) = queries.waiting.get(&id).map(|query| &query.bytes)
                && let Ok(length) = u16::try_from(bytes.len())
            {
                output.extend(length.to_be_bytes());
                output.extend(bytes);
            }
        }
    }

    /// Takes the whole messages from `input`.
    ///
    /// # Errors
    /// If a message answers no query of this connection.
    fn accept_messages(&self, input: &mut Vec<u8>) -> io::Result<()> {
        let mut rest = &input[..];
        while let Some((length, after)) = rest.split_first_chunk()
            && let Some((message, next)) = after.split_at_checked(u16::from_be_bytes(*length).into())
        {
            self.accept_message(message)?;
            rest = next;
        }
        input.drain(..input.len() - rest.len());
        Ok(())
    }

    /// Gives a message to the query that it answers. The answer to a query that was given up is ignored. After a reply that
    /// isn't accepted the connection gets no further query.
    fn accept_message(&self, message: &[u8]) -> io::Result<()> {
        let queries = &mut *self.queries.lock();
        let id = message.first_chunk().map(|id| u16::from_be_bytes(*id)).filter(|id| queries.has_used(*id));
        let id = id.ok_or_else(|| io::Error::other(MISMATCH))?;
        queries.heard = Some(Instant::now());
        let waiting = queries.waiting.get_mut(&id).filter(|query| query.reply.is_none());
        let (Some(query), Some(state)) = (waiting, &mut queries.connection) else { return Ok(()) };
        state.has_answered_out_of_order |= query.number < state.newest_answered;
        state.newest_answered = state.newest_answered.max(query.number);
        let reply = parse_reply(&query.bytes, message);
        queries.is_retired |= !matches!(reply, UpstreamReply::Answer(_) | UpstreamReply::Truncated(_));
        query.end(Ok(reply));
        Ok(())
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
    /// Sends and receives until the connection fails, or is given up and no query waits any more.
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
                    Ok(())
                }
                read = reader.read_buf(&mut input) => match read {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => socket.accept_messages(&mut input),
                    Err(error) => Err(error),
                },
                sent = async {
                    writer.write_all_buf(&mut output).await?;
                    writer.flush().await
                }, if is_sending => {
                    is_sending = false;
                    sent
                }
                () = &mut idle_end, if socket.is_idle() => {
                    socket.retire();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                return socket.fail(|| copy(&error));
            }
            if socket.is_idle() {
                if !self.rest() {
                    socket.retire();
                }
                idle_end.as_mut().reset(Instant::now() + self.pool_config.idle);
                (input, output) = (Vec::new(), VecDeque::new());
            }
        }
    }

    /// Gives an idle connection a permit for idle connections. Returns whether it may stay open.
    fn rest(&self) -> bool {
        let pool = self.pool.lock();
        let idle = pool.open.iter().filter(|one| one.idle_since().is_some()).count();
        let queries = &mut *self.socket.queries.lock();
        let Some(state) = &mut queries.connection else { return false };
        if !queries.waiting.is_empty() || state.idle_since.is_some() {
            return true;
        }
        let Some(permit) = self.budget.idle().filter(|_| idle < self.pool_config.max_idle_connections) else {
            return false;
        };
        (state.permit, state.idle_since) = (permit, Some(Instant::now()));
        true
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.socket.close();
        self.pool.lock().open.retain(|one| !Arc::ptr_eq(one, &self.socket));
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
