//! What the requests and answers of a connection for HTTPS, gRPC or QUIC do, for its limits and timeouts. The requests
//! of HTTP/2 are tasks of their own.

pub(in crate::dns::transport) mod query;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::body::Bytes;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

use super::connection_limit::ConnectionPermit;
use super::{Connection, ConnectionLimits};
use crate::dns::chain::handler::Handler;
use crate::dns::net::Protocol;
use crate::dns::transport::client_quota::{QuotaGuard, SharedGuard};

/// The memory in bytes that a stream needs, in addition to its answer, until the client has read the answer.
const STREAM_BYTES: usize = 2048;
/// The number of unread bytes of a connection up to which answers need no quota.
const FREE_UNREAD_BYTES: usize = 8192;
/// How many bytes of HTTP/2 or QUIC a client may send in addition to [`REQUEST_BYTES`] for each request.
const MAX_EXTRA_BYTES: usize = 128 << 10;
/// The size of a large request.
const REQUEST_BYTES: usize = 4096;
/// The size of the frames that one HTTP/2 connection may keep in memory: each of the 120 fields or so in its table of
/// header fields (RFC 7541 section 2.3.2) can keep a frame of maximum size.
const MAX_KEPT_BYTES: usize = 2 << 20;
/// The step in which memory for frames is reserved; the first bytes need none.
const KEPT_STEP: usize = 128 << 10;
/// How long a connection that is about to end waits for further requests: the client may have sent them before it
/// learns of the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, as its requests share it.
pub(in crate::dns::transport) struct Activity {
    pub client: SocketAddr,
    /// The local address of the connection, if known.
    pub local: Option<IpAddr>,
    pub limits: ConnectionLimits,
    pub handler: Arc<Handler>,
    /// DNS over HTTPS, gRPC or QUIC.
    pub protocol: Protocol,
    pub is_http2: bool,
    state: Mutex<State>,
}

struct State {
    permit: ConnectionPermit,
    /// The requests without an answer, and those of them that wait for an upstream or for their body.
    requests: usize,
    waiting: usize,
    /// The requests that wait for an upstream: only they protect the connection from eviction.
    asking: usize,
    /// The answers that the client hasn't read yet, and their bytes.
    unread: usize,
    unread_bytes: usize,
    /// Since when the client has been expected to read an answer.
    unread_since: Option<Instant>,
    /// When the first byte of an incomplete request was read; always `None` with HTTP/2.
    partial_since: Option<Instant>,
    /// When the last request was answered, and the answer was read.
    last_finished_at: Instant,
    /// The number of queries that the client may still send.
    remaining_queries: u64,
    /// When the connection ends, if it is about to end and is idle.
    closes_at: Option<Instant>,
    /// The bytes of HTTP/2 or QUIC received so far, and those of them that are more than the requests need.
    received_bytes: usize,
    extra_bytes: usize,
    /// The bytes sent by QUIC so far.
    sent_bytes: usize,
    /// The share of the memory for frames, or for unfinished streams. They are counted in two ways: the table of header
    /// fields of HTTP/2 keeps frames of requests that are long answered, so that all received bytes count; quinn frees
    /// the packets of a finished stream, so that only unfinished streams count.
    kept: SharedGuard,
    /// The streams of QUIC whose query isn't complete: quinn keeps the packets of their bytes.
    unfinished: usize,
    /// Why the connection has to end at once.
    failure: Option<&'static str>,
}

/// What a connection has to do.
#[derive(Debug)]
pub(in crate::dns::transport) enum Step {
    /// To wait for an event, at most until a time.
    Wait(Instant),
    /// To tell the client that no further request is taken.
    Close,
    End,
    Fail(io::Error),
}

/// Why a connection reaches its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overdue {
    /// It has been idle too long.
    Idle,
    /// It was about to end, and is idle.
    Closed,
    /// The client hasn't finished a request, or read an answer.
    Late,
}

/// A request without an answer. Dropping it ends the request.
pub(in crate::dns::transport) struct OpenRequest {
    activity: Arc<Activity>,
    is_waiting: bool,
    is_asking: bool,
}

/// An answer that the client hasn't read yet.
struct UnreadAnswer {
    bytes: Vec<u8>,
    /// The size that is counted.
    size: usize,
    activity: Arc<Activity>,
    _held: QuotaGuard,
}

impl Activity {
    pub fn new(connection: Connection, protocol: Protocol, is_http2: bool) -> Arc<Self> {
        let Connection { client, local, limits, handler, permit, .. } = connection;
        let kept = SharedGuard::new(permit.limiter().frames(client));
        let state = State {
            permit,
            requests: 0,
            waiting: 0,
            asking: 0,
            unread: 0,
            unread_bytes: 0,
            unread_since: None,
            partial_since: None,
            last_finished_at: Instant::now(),
            remaining_queries: limits.queries,
            closes_at: None,
            received_bytes: 0,
            extra_bytes: 0,
            sent_bytes: 0,
            kept,
            unfinished: 0,
            failure: None,
        };
        Arc::new(Self { client, local, limits, handler, protocol, is_http2, state: Mutex::new(state) })
    }

    /// Notes bytes from the client.
    pub fn received(&self, length: usize) {
        let mut state = self.state.lock();
        if !self.is_http2 {
            state.partial_since.get_or_insert_with(Instant::now);
            return;
        }
        state.received_bytes = state.received_bytes.saturating_add(length);
        state.add_extra(length);
        let kept = state.received_bytes.min(MAX_KEPT_BYTES);
        if !state.kept.resize(in_steps(kept)) {
            // A new connection begins with an empty table.
            state.remaining_queries = 0;
        }
    }

    /// Notes the numbers of bytes that were received and sent by QUIC so far. The client has to acknowledge what it
    /// receives, with fewer bytes than that.
    pub fn transferred(&self, received: usize, sent: usize) {
        let mut state = self.state.lock();
        let more = received.saturating_sub(state.received_bytes);
        let acknowledged = sent.saturating_sub(state.sent_bytes);
        state.received_bytes += more;
        state.sent_bytes += acknowledged;
        state.add_extra(more.saturating_sub(acknowledged));
        state.keep_unfinished();
    }

    /// Notes that the query of a stream isn't complete yet. It stays noted if the connection ends before: quinn frees
    /// the packets later.
    pub fn stream_unfinished(&self) {
        let mut state = self.state.lock();
        state.unfinished += 1;
        state.keep_unfinished();
    }

    /// Notes that nothing more of a stream is in memory.
    pub fn stream_finished(&self) {
        let mut state = self.state.lock();
        state.unfinished = state.unfinished.saturating_sub(1);
        state.keep_unfinished();
    }

    /// Returns the share of the memory for frames or unfinished streams.
    pub fn kept(&self) -> SharedGuard {
        self.state.lock().kept.clone()
    }

    /// Notes a request that ends before it is complete: it costs as much as two large requests, so that a client can't
    /// begin and end requests without end.
    pub fn request_aborted(&self) {
        self.state.lock().add_extra(2 * REQUEST_BYTES);
    }

    /// Begins a request; `None` if the connection doesn't take any more.
    pub fn begin(self: &Arc<Self>) -> Option<OpenRequest> {
        let mut state = self.state.lock();
        if state.closes_at.is_some_and(|closes_at| closes_at <= Instant::now()) {
            return None;
        }
        state.requests += 1;
        state.partial_since = None;
        if state.remaining_queries > 0 {
            state.extra_bytes = state.extra_bytes.saturating_sub(REQUEST_BYTES);
        }
        state.remaining_queries = state.remaining_queries.saturating_sub(1);
        Some(OpenRequest { activity: Arc::clone(self), is_waiting: false, is_asking: false })
    }

    /// Counts an answer until the client has read it.
    ///
    /// # Errors
    /// If too many bytes are unread; the connection then has to end.
    pub fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> io::Result<Bytes> {
        let mut state = self.state.lock();
        let size = bytes.len() + STREAM_BYTES;
        let mut held = state.permit.limiter().unread(self.client);
        if state.unread_bytes + size > FREE_UNREAD_BYTES && !held.resize(size) {
            state.failure = Some("too many answers that aren't read");
            return Err(state.permit.limiter().too_many_unread_bytes());
        }
        state.unread += 1;
        state.unread_bytes += size;
        state.unread_since.get_or_insert_with(Instant::now);
        drop(state);
        let answer = UnreadAnswer { bytes, size, activity: Arc::clone(self), _held: held };
        Ok(Bytes::from_owner(answer))
    }

    /// Returns an empty share of the memory for the body of a request.
    pub fn body_share(&self) -> QuotaGuard {
        self.state.lock().permit.limiter().unread(self.client)
    }

    /// Returns whether the client has sent its last allowed query.
    pub fn is_used_up(&self) -> bool {
        self.state.lock().remaining_queries == 0
    }

    /// Notes that no further request is taken.
    pub fn use_up(&self) {
        self.state.lock().remaining_queries = 0;
    }

    /// Returns what the connection has to do. `is_stopped` means that the listener has stopped. Later events that set
    /// an earlier deadline also wake the connection.
    pub fn next_step(&self, is_stopped: bool) -> Step {
        let mut state = self.state.lock();
        if let Some(failure) = state.failure {
            return Step::Fail(io::Error::other(failure));
        }
        let now = Instant::now();
        let most = state.closes_at.map(|closes_at| closes_at + self.limits.read + self.limits.write);
        if most.is_some_and(|most| most <= now) {
            return Step::Fail(io::ErrorKind::TimedOut.into());
        }
        let deadline = state.deadline(&self.limits);
        let overdue = deadline.filter(|(deadline, _)| *deadline <= now).map(|(_, why)| why);
        match overdue {
            Some(Overdue::Late) => return Step::Fail(io::ErrorKind::TimedOut.into()),
            Some(Overdue::Closed) => return Step::End,
            Some(Overdue::Idle) | None => {}
        }
        let closes = is_stopped || state.remaining_queries == 0 || overdue.is_some();
        if closes && state.closes_at.is_none() {
            state.closes_at = Some(now + CLOSE_TIMEOUT);
            return Step::Close;
        }
        let deadline = deadline.map(|(deadline, _)| deadline);
        Step::Wait([deadline, most].into_iter().flatten().min().unwrap_or(now + self.limits.idle))
    }
}

impl State {
    fn add_extra(&mut self, length: usize) {
        self.extra_bytes = self.extra_bytes.saturating_add(length);
        if self.extra_bytes > MAX_EXTRA_BYTES {
            self.failure = Some("too many bytes for its requests");
        }
    }

    fn keep_unfinished(&mut self) {
        let size = self.unfinished * REQUEST_BYTES + self.extra_bytes;
        if !self.kept.resize(in_steps(size)) {
            self.failure = Some("too little memory for its streams");
        }
    }

    fn deadline(&self, limits: &ConnectionLimits) -> Option<(Instant, Overdue)> {
        let is_idle = self.requests == 0 && self.unread == 0;
        if let Some(closes_at) = self.closes_at.filter(|_| is_idle) {
            return Some((closes_at, Overdue::Closed));
        }
        let partial = self.partial_since.filter(|_| is_idle);
        let rested = is_idle.then(|| match partial {
            None => (self.last_finished_at + limits.idle, Overdue::Idle),
            // As by TCP, a partial request extends the idle timeout once.
            Some(since) => {
                ((since + limits.read).min(self.last_finished_at + limits.idle + limits.read), Overdue::Late)
            }
        });
        let unread = self.unread_since.map(|since| (since + limits.write, Overdue::Late));
        [rested, unread].into_iter().flatten().min_by_key(|(deadline, _)| *deadline)
    }

    fn finished(&mut self) {
        self.partial_since = None;
        self.last_finished_at = Instant::now();
    }
}

fn in_steps(size: usize) -> usize {
    size - size % KEPT_STEP
}

impl OpenRequest {
    /// Returns whether the request may wait for an upstream.
    pub fn may_ask(&mut self) -> bool {
        if !self.may_wait() {
            return false;
        }
        let mut state = self.activity.state.lock();
        state.permit.set_busy();
        state.asking += 1;
        self.is_asking = true;
        true
    }

    /// Returns whether the request may wait for its body.
    pub fn may_wait(&mut self) -> bool {
        if self.is_waiting {
            return true;
        }
        let mut state = self.activity.state.lock();
        let waiting = state.waiting;
        if !state.permit.reserve(waiting) {
            state.permit.limiter().count_busy();
            return false;
        }
        state.waiting += 1;
        self.is_waiting = true;
        true
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.requests -= 1;
        state.waiting -= usize::from(self.is_waiting);
        state.finished();
        state.asking -= usize::from(self.is_asking);
        if state.asking == 0 {
            state.permit.set_idle();
        }
        let waiting = state.waiting.saturating_sub(1);
        state.permit.reserve(waiting);
    }
}

impl AsRef<[u8]> for UnreadAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.unread -= 1;
        state.unread_bytes -= self.size;
        // The next answer has the whole timeout: a client that reads steadily gets all.
        state.unread_since = (state.unread > 0).then(Instant::now);
        state.finished();
    }
}

#[cfg(test)]
mod tests;
