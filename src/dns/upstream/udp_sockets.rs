//! The UDP sockets to an upstream. Each serves several queries at a time.
//!
//! A socket for each query would cost more than the rest of the query. An attacker that forges a reply has to guess the
//! port and the id of a query (RFC 5452 section 9.2): the kernel chooses a random port for each socket, ids are random and
//! not used twice on a socket, and a socket takes new queries for at most a second. A datagram that answers no query is
//! counted and has no other effect. An ICMP error with the right port ends the queries of the socket; queries that
//! found it open are sent again from another one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrStorage, bind, connect, recvmmsg,
    sendmmsg, socket,
};
use parking_lot::Mutex;
use rand::RngExt;
use thread_local::ThreadLocal;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::metrics::UpstreamCounters;
use super::socket_budget::SocketPermit;
use crate::dns::message::upstream_reply::{UpstreamReply, parse_datagram};
use crate::dns::net::readable::for_reading;
use crate::dns::net::thread_tasks;

/// The number of waiting queries from which on a socket gets no further query, as long as another one may be opened.
const MAX_WAITING: usize = 32;
/// The maximum number of queries from one port. A new socket costs more than a query, but little if 1,000 share it.
const MAX_QUERIES: usize = 1000;
/// How long a socket takes new queries. It is closed after its last query.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The maximum size of an answer in bytes; EDNS advertises less. A larger one is cut, and requested again by TCP.
const MAX_DATAGRAM: usize = 4096;
/// The maximum number of datagrams per system call.
const BATCH_SIZE: usize = 32;
const BATCHES_PER_TURN: u32 = 4;

thread_local! {
    /// Received datagrams, and the structures for the kernel.
    static BATCH: RefCell<Batch> = RefCell::new(Batch {
        datagrams: vec![[0; MAX_DATAGRAM]; BATCH_SIZE],
        headers: MultiHeaders::preallocate(BATCH_SIZE, None),
    });
}

struct Batch {
    datagrams: Vec<[u8; MAX_DATAGRAM]>,
    headers: MultiHeaders<SockaddrStorage>,
}

/// The open sockets to one upstream. Each thread has its own: a reply to a UDP thread wakes no other thread.
#[derive(Debug, Default)]
pub(crate) struct UdpSockets(ThreadLocal<RefCell<Vec<Arc<UdpUpstreamSocket>>>>);

/// A socket connected to one upstream, so that the kernel drops datagrams from other addresses. A task sends its queries
/// and receives the replies.
#[derive(Debug)]
pub(crate) struct UdpUpstreamSocket {
    pub(crate) local: Option<SocketAddr>,
    opened: Instant,
    queries: Mutex<Queries>,
    /// Wakes the task: there is something to send, or the socket may be closed.
    changed: Notify,
}

#[derive(Debug)]
struct Queries {
    waiting: HashMap<u16, WaitingQuery>,
    /// One bit for each id that the socket has used.
    used: Box<[u64; 1024]>,
    /// The number of queries that the socket has had.
    number: usize,
    /// When the last reply came, if any.
    heard: Option<Instant>,
    /// The ids of the queries to send.
    outgoing: Vec<u16>,
    /// The socket gets no further queries, and is closed after the last reply.
    is_retired: bool,
    /// The task has ended.
    is_closed: bool,
}

#[derive(Debug)]
struct WaitingQuery {
    bytes: Vec<u8>,
    reply: Option<io::Result<UpstreamReply>>,
    waker: Option<Waker>,
}

/// A query under way on a socket. Dropping it gives the query up.
#[derive(Debug)]
pub(crate) struct UdpQuery {
    pub(crate) socket: Arc<UdpUpstreamSocket>,
    id: u16,
    pub(crate) sent: Instant,
}

impl UdpSockets {
    /// Returns a random socket of this thread that has room for another query and was opened after `after`.
    pub(crate) fn find(&self, now: Instant, after: Option<Instant>) -> Option<Arc<UdpUpstreamSocket>> {
        self.find_below(MAX_WAITING, now, after)
    }

    /// Returns a random socket of this thread that takes another query, for when no other socket may be opened.
    pub(crate) fn find_crowded(&self, now: Instant) -> Option<Arc<UdpUpstreamSocket>> {
        self.find_below(MAX_QUERIES, now, None)
    }

    fn find_below(
        &self,
        max_waiting: usize,
        now: Instant,
        after: Option<Instant>,
    ) -> Option<Arc<UdpUpstreamSocket>> {
        let mut sockets = self.0.get_or_default().borrow_mut();
        sockets.retain(|socket| !socket.is_over(now));
        let first = rand::rng().random_range(..sockets.len().max(1));
        let mut all = sockets.iter().cycle().skip(first).take(sockets.len());
        let is_new = |socket: &UdpUpstreamSocket| after.is_none_or(|after| socket.opened > after);
        all.find(|socket| is_new(socket) && socket.has_room(max_waiting)).cloned()
    }

    /// Adds a socket that this thread has opened.
    pub(crate) fn add(&self, socket: &Arc<UdpUpstreamSocket>) {
        self.0.get_or_default().borrow_mut().push(Arc::clone(socket));
    }
}

impl UdpUpstreamSocket {
    /// Opens a socket, and starts its task. The permit is released when the socket is closed.
    ///
    /// # Errors
    /// If the kernel refuses the socket or its local address.
    pub(crate) fn open(
        from: Option<SocketAddr>,
        to: SocketAddr,
        permit: SocketPermit,
        metrics: Option<Arc<UpstreamCounters>>,
    ) -> io::Result<Arc<Self>> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        if let Some(from) = from {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        }
        // Without a bound address, the kernel also chooses the local address and port here.
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        let udp = Arc::new(UdpSocket::from(socket));
        let queries = Queries {
            waiting: HashMap::new(),
            used: Box::new([0; 1024]),
            number: 0,
            heard: None,
            outgoing: Vec::new(),
            is_retired: false,
            is_closed: false,
        };
        let socket = Arc::new(Self {
            local: udp.local_addr().ok(),
            opened: Instant::now(),
            queries: Mutex::new(queries),
            changed: Notify::new(),
        });
        let task = Task { socket: Arc::clone(&socket), udp: for_reading(udp)?, metrics, _permit: permit };
        thread_tasks::spawn(task.run());
        Ok(socket)
    }

    /// Sends a query with a new id. The task of the socket sends together what is there at its next turn.
    pub(crate) fn ask(self: &Arc<Self>, mut bytes: Vec<u8>, now: Instant) -> UdpQuery {
        let queries = &mut *self.queries.lock();
        let mut id = rand::random();
        while !queries.use_id(id) {
            id = rand::random();
        }
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        queries.number += 1;
        queries.is_retired |= queries.number == MAX_QUERIES;
        let reply = queries.is_closed.then(|| Err(closed()));
        queries.waiting.insert(id, WaitingQuery { bytes, reply, waker: None });
        self.send(queries, id);
        UdpQuery { socket: Arc::clone(self), id, sent: now }
    }

    fn send(&self, queries: &mut Queries, id: u16) {
        queries.outgoing.push(id);
        if queries.outgoing.len() == 1 {
            self.changed.notify_one();
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let queries = self.queries.lock();
        queries.is_retired || now.duration_since(self.opened) >= MAX_AGE
    }

    fn has_room(&self, max_waiting: usize) -> bool {
        self.queries.lock().waiting.len() < max_waiting
    }

    /// Ends the use of the socket for further queries.
    pub(crate) fn retire(&self) {
        self.queries.lock().is_retired = true;
        self.changed.notify_one();
    }

    /// Gives the datagram to the query that it answers; returns whether there is one.
    fn accept(&self, datagram: &[u8], is_cut: bool, now: Instant) -> bool {
        let Some(id) = datagram.first_chunk() else { return false };
        let mut queries = self.queries.lock();
        let waiting = queries.waiting.get_mut(&u16::from_be_bytes(*id));
        let Some(query) = waiting.filter(|query| query.reply.is_none()) else { return false };
        match parse_datagram(&query.bytes, datagram, is_cut) {
            // It may be forged: the real answer may still come.
            UpstreamReply::Mismatch => false,
            reply => {
                query.end(Ok(reply));
                queries.heard = Some(now);
                true
            }
        }
    }

    fn is_done(&self) -> bool {
        let queries = self.queries.lock();
        queries.is_retired && queries.waiting.is_empty()
    }

    /// Ends all queries with an error.
    pub(super) fn fail(&self, error: impl Fn() -> io::Error) {
        let mut queries = self.queries.lock();
        queries.is_retired = true;
        for query in queries.waiting.values_mut().filter(|query| query.reply.is_none()) {
            query.end(Err(error()));
        }
    }
}

impl Queries {
    /// Returns whether the id wasn't used yet, and marks it as used.
    fn use_id(&mut self, id: u16) -> bool {
        let (word, bit) = (&mut self.used[usize::from(id / 64)], 1 << (id % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl WaitingQuery {
    fn end(&mut self, reply: io::Result<UpstreamReply>) {
        self.reply = Some(reply);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl UdpQuery {
    /// Returns the reply, which is never [`UpstreamReply::Mismatch`], if it has come. Else the task is woken then.
    ///
    /// # Errors
    /// If the kernel reports that the port is closed (ICMP), or the socket is broken or closed.
    pub(crate) fn poll_reply(&self, context: &mut Context<'_>) -> Poll<io::Result<UpstreamReply>> {
        let mut queries = self.socket.queries.lock();
        let Some(query) = queries.waiting.get_mut(&self.id) else { return Poll::Ready(Err(closed())) };
        match (query.reply.take(), &mut query.waker) {
            (Some(reply), _) => return Poll::Ready(reply),
            (None, Some(waker)) => waker.clone_from(context.waker()),
            (None, waker) => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Sends the query again from the same port.
    pub(crate) fn send_again(&self) {
        let queries = &mut *self.socket.queries.lock();
        self.socket.send(queries, self.id);
    }

    /// Ends the use of the socket for further queries if no reply has come since the query was sent: a network may map
    /// its port to a dead server.
    pub(crate) fn retire_if_silent(&self) {
        if self.socket.queries.lock().heard.is_none_or(|heard| heard < self.sent) {
            self.socket.retire();
        }
    }
}

impl Drop for UdpQuery {
    fn drop(&mut self) {
        let mut queries = self.socket.queries.lock();
        queries.waiting.remove(&self.id);
        if queries.is_retired && queries.waiting.is_empty() {
            self.socket.changed.notify_one();
        }
    }
}

/// The task of a socket.
struct Task {
    socket: Arc<UdpUpstreamSocket>,
    udp: AsyncFd<Arc<UdpSocket>>,
    metrics: Option<Arc<UpstreamCounters>>,
    /// Dropped after the socket.
    _permit: SocketPermit,
}

impl Task {
    /// Sends and receives until the socket is too old, or has had its number of queries, and no query waits any more.
    async fn run(self) {
        let socket = &self.socket;
        let mut too_old = pin!(sleep_until(socket.opened + MAX_AGE));
        let (mut is_old, mut batches) = (false, 0_u32);
        while !socket.is_done() {
            let outcome = tokio::select! {
                biased;
                () = socket.changed.notified() => self.send(),
                ready = self.udp.ready(Interest::READABLE | Interest::ERROR) => match ready {
                    Ok(mut ready) if ready.ready().is_error() => {
                        ready.clear_ready_matching(Ready::ERROR);
                        self.udp.get_ref().take_error().and_then(|error| error.map_or(Ok(()), Err))
                    }
                    Ok(_) => {
                        batches += 1;
                        // A flood of datagrams leaves turns for the rest of the thread.
                        if batches.is_multiple_of(BATCHES_PER_TURN) {
                            yield_now().await;
                        }
                        self.receive()
                    }
                    Err(error) => Err(error),
                },
                () = &mut too_old, if !is_old => {
                    is_old = true;
                    socket.retire();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                // An error can't be cloned.
                socket.fail(|| error.raw_os_error().map_or_else(closed, io::Error::from_raw_os_error));
            }
        }
    }

    /// Sends the queries that are to be sent. Those for which the kernel has no room are lost, as can happen with UDP; any
    /// other error ends only the query that it is about.
    ///
    /// # Errors
    /// If the kernel reports that the port is closed (ICMP), which concerns all queries.
    fn send(&self) -> io::Result<()> {
        let Queries { waiting, outgoing, .. } = &mut *self.socket.queries.lock();
        // A query may have been given up meanwhile.
        outgoing.retain(|id| waiting.contains_key(id));
        let mut done = 0;
        while done < outgoing.len() {
            match send_together(self.udp.get_ref(), waiting, &outgoing[done..]) {
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    outgoing.clear();
                    return Err(error);
                }
                Err(error) => {
                    if let Some(query) = waiting.get_mut(&outgoing[done]) {
                        query.end(Err(error));
                    }
                    done += 1;
                }
            }
        }
        outgoing.clear();
        Ok(())
    }

    /// Receives a batch of the datagrams that are there.
    fn receive(&self) -> io::Result<()> {
        let receive = |udp: &Arc<UdpSocket>| {
            let is_full = self.receive_batch(udp)? == BATCH_SIZE;
            // Less than a batch was there: the readiness ends without another system call.
            if is_full { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        };
        match self.udp.try_io(Interest::READABLE, receive) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Receives at most [`BATCH_SIZE`] datagrams; returns their number.
    fn receive_batch(&self, udp: &UdpSocket) -> io::Result<usize> {
        BATCH.with_borrow_mut(|Batch { datagrams, headers }| {
            let mut slices: Vec<_> = datagrams.iter_mut().map(|data| [IoSliceMut::new(data)]).collect();
            let received =
                recvmmsg(udp.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
            let (mut number, now) = (0, Instant::now());
            for datagram in received {
                number += 1;
                let is_cut = datagram.flags.contains(MsgFlags::MSG_TRUNC);
                let bytes = datagram.iovs().next().unwrap_or_default();
                if !self.socket.accept(bytes, is_cut, now) {
                    self.metrics.iter().for_each(|metrics| metrics.record_ignored_reply());
                }
            }
            Ok(number)
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.socket.queries.lock().is_closed = true;
        self.socket.fail(closed);
    }
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// Sends the first of these queries, and as many others as the kernel takes; returns their number.
fn send_together(udp: &UdpSocket, waiting: &HashMap<u16, WaitingQuery>, ids: &[u16]) -> io::Result<usize> {
    let bytes = ids.iter().filter_map(|id| Some(&waiting.get(id)?.bytes[..]));
    if let [_] = ids {
        return bytes.map(|bytes| udp.send(bytes)).next().transpose().map(|_| 1);
    }
    let slices: Vec<[IoSlice<'_>; 1]> = bytes.map(|bytes| [IoSlice::new(bytes)]).collect();
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(slices.len(), None);
    let addresses = vec![None; slices.len()];
    let sent = sendmmsg(udp.as_raw_fd(), &mut headers, &slices, addresses, [], MsgFlags::MSG_DONTWAIT)?;
    Ok(sent.count())
}

#[cfg(test)]
mod tests;
