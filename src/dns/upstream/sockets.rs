//! The sockets to an upstream. Each serves several queries at a time; a task sends them and receives the replies.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::dns::message::upstream_reply::UpstreamReply;

pub(crate) mod stream;
pub(crate) mod udp;

/// A socket or a connection to one upstream.
#[derive(Debug)]
pub(crate) struct UpstreamSocket {
    pub(crate) local: Option<SocketAddr>,
    opened: Instant,
    queries: Mutex<Queries>,
    /// Wakes the task: there is something to send, or the socket may be closed.
    changed: Notify,
}

#[derive(Debug)]
struct Queries {
    /// By id. A tree, because usually there are few queries: the search is then faster than hashing an id.
    by_id: BTreeMap<u16, WaitingQuery>,
    /// One bit for each id that the socket has used.
    used: Box<[u64; 1024]>,
    /// The number of queries that the socket has had.
    number: usize,
    /// The number of queries after which the socket is retired.
    max_number: usize,
    /// The number of waiting queries without a reply.
    unanswered: usize,
    /// When the last reply came, if any.
    heard: Option<Instant>,
    /// Whether a datagram has come that is probably forged: with an id that the socket hasn't used, or one that doesn't
    /// match its query.
    is_attacked: bool,
    /// The ids of the queries to send.
    outgoing: Vec<u16>,
    /// The socket gets no further queries, and is closed after the last reply.
    is_retired: bool,
    /// The task has ended.
    is_closed: bool,
    /// What only connections have; `None` for UDP.
    connection: Option<stream::ConnectionState>,
}

#[derive(Debug)]
struct WaitingQuery {
    bytes: Vec<u8>,
    /// Its number among the queries of the socket.
    number: usize,
    sent: Instant,
    reply: Option<io::Result<UpstreamReply>>,
    waker: Option<Waker>,
    /// Dropped with the query, which ends its stream of HTTP/2.
    stream: Option<oneshot::Sender<()>>,
}

/// A query under way on a socket. Dropping it gives the query up.
#[derive(Debug)]
pub(crate) struct SentQuery {
    pub(crate) socket: Arc<UpstreamSocket>,
    id: u16,
    pub(crate) sent: Instant,
}

impl UpstreamSocket {
    fn new(
        local: Option<SocketAddr>,
        max_number: usize,
        connection: Option<stream::ConnectionState>,
    ) -> Arc<Self> {
        let queries = Queries {
            by_id: BTreeMap::new(),
            used: Box::new([0; 1024]),
            number: 0,
            max_number,
            unanswered: 0,
            heard: None,
            is_attacked: false,
            outgoing: Vec::new(),
            is_retired: false,
            is_closed: false,
            connection,
        };
        let (opened, queries, changed) = (Instant::now(), Mutex::new(queries), Notify::new());
        Arc::new(Self { local, opened, queries, changed })
    }

    /// Queues a query with a new id. The task of the socket sends all queued queries together.
    pub(crate) fn ask(self: &Arc<Self>, mut bytes: Vec<u8>, now: Instant) -> SentQuery {
        let queries = &mut *self.queries.lock();
        let mut id = rand::random();
        while !queries.use_id(id) {
            id = rand::random();
        }
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        queries.number += 1;
        queries.is_retired |= queries.number == queries.max_number;
        let reply = queries.is_closed.then(|| Err(closed()));
        queries.unanswered += usize::from(reply.is_none());
        let query =
            WaitingQuery { bytes, number: queries.number, sent: now, reply, waker: None, stream: None };
        queries.by_id.insert(id, query);
        self.queue(queries, id);
        SentQuery { socket: Arc::clone(self), id, sent: now }
    }

    fn queue(&self, queries: &mut Queries, id: u16) {
        queries.outgoing.push(id);
        if queries.outgoing.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Ends the use of the socket for further queries.
    pub(crate) fn retire(&self) {
        self.queries.lock().is_retired = true;
        self.changed.notify_one();
    }

    fn is_done(&self) -> bool {
        let queries = self.queries.lock();
        queries.is_retired && queries.unanswered == 0
    }

    /// Retires the socket, and ends all its queries with an error.
    pub(super) fn fail(&self, error: impl Fn() -> io::Error) {
        self.queries.lock().fail(error);
    }

    /// Ends all queries, because the task has ended.
    fn close(&self) {
        let queries = &mut *self.queries.lock();
        queries.is_closed = true;
        // Releases the permit.
        queries.connection = None;
        queries.fail(closed);
    }
}

impl Queries {
    fn fail(&mut self, error: impl Fn() -> io::Error) {
        (self.is_retired, self.unanswered) = (true, 0);
        for query in self.by_id.values_mut().filter(|query| query.reply.is_none()) {
            query.end(Err(error()));
        }
    }

    fn has_reply_since(&self, time: Instant) -> bool {
        self.heard.is_some_and(|heard| heard >= time)
    }

    fn has_used(&self, id: u16) -> bool {
        self.used[usize::from(id / 64)] & 1 << (id % 64) != 0
    }

    /// Returns whether the id wasn't used yet, and marks it as used.
    fn use_id(&mut self, id: u16) -> bool {
        let (word, bit) = (&mut self.used[usize::from(id / 64)], 1 << (id % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl WaitingQuery {
    /// Sets the reply, unless there is one already; returns whether it was set.
    fn end(&mut self, reply: io::Result<UpstreamReply>) -> bool {
        if self.reply.is_some() {
            return false;
        }
        self.reply = Some(reply);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        true
    }
}

impl SentQuery {
    /// Returns the reply if it has come; else registers the caller's waker.
    ///
    /// # Errors
    /// If the socket is broken or closed, or the kernel reports that the UDP port is closed (ICMP).
    pub(crate) fn poll_reply(&self, context: &mut Context<'_>) -> Poll<io::Result<UpstreamReply>> {
        let waiting = &mut self.socket.queries.lock().by_id;
        let Entry::Occupied(mut query) = waiting.entry(self.id) else { return Poll::Ready(Err(closed())) };
        if let Some(reply) = query.get_mut().reply.take() {
            query.remove();
            return Poll::Ready(reply);
        }
        match &mut query.get_mut().waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Queues the query again on the same socket.
    pub(crate) fn send_again(&self) {
        let queries = &mut *self.socket.queries.lock();
        self.socket.queue(queries, self.id);
    }

    /// Ends the use of the socket for further queries if no reply has come since the query was sent: a network may map
    /// its port to a dead server.
    pub(crate) fn retire_if_silent(&self) {
        if !self.socket.queries.lock().has_reply_since(self.sent) {
            self.socket.retire();
        }
    }
}

impl Drop for SentQuery {
    fn drop(&mut self) {
        let queries = &mut *self.socket.queries.lock();
        if queries.by_id.remove(&self.id).is_none_or(|query| query.reply.is_some()) {
            return;
        }
        queries.unanswered -= 1;
        let is_silent = !queries.has_reply_since(self.sent);
        if let Some(connection) = &mut queries.connection {
            queries.is_retired |= connection.gives_up(is_silent);
        }
        if queries.unanswered == 0 && (queries.is_retired || queries.connection.is_some()) {
            self.socket.changed.notify_one();
        }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
