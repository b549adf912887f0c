//! The UDP sockets to an upstream. Each serves several queries at a time.
//!
//! A socket for each query would cost more than the rest of the query. An attacker that forges a reply has to guess the
//! port and the id of a query (RFC 5452 section 9.2): the kernel chooses a random port for each socket, ids are random and
//! not used twice on a socket, and a socket takes new queries for at most a second. A datagram that answers no query is
//! counted, and ends no query. An ICMP error with the right port ends the queries of the socket; queries that
//! found it open are sent again from another one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrStorage, bind, connect, recvmmsg,
    sendmmsg, socket,
};
use rand::RngExt;
use thread_local::ThreadLocal;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::{Queries, UpstreamSocket, WaitingQuery, closed};
use crate::dns::message::upstream_reply::{UpstreamReply, parse_datagram};
use crate::dns::net::readable::for_reading;
use crate::dns::net::thread_tasks;
use crate::dns::upstream::metrics::UpstreamCounters;
use crate::dns::upstream::socket_budget::SocketPermit;

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
/// The number of full batches after which the other tasks of the thread go on.
const BATCHES_BEFORE_YIELD: u32 = 4;

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
pub(crate) struct UdpSockets(ThreadLocal<RefCell<Vec<Arc<UpstreamSocket>>>>);

impl UdpSockets {
    /// Returns a random socket of this thread that has room for another query and was opened after `after`.
    pub(crate) fn find(&self, now: Instant, after: Option<Instant>) -> Option<Arc<UpstreamSocket>> {
        self.find_below(MAX_WAITING, now, after)
    }

    /// Returns a random socket of this thread that takes another query, for when no other socket may be opened.
    pub(crate) fn find_crowded(&self, now: Instant) -> Option<Arc<UpstreamSocket>> {
        self.find_below(MAX_QUERIES, now, None)
    }

    fn find_below(
        &self,
        max_waiting: usize,
        now: Instant,
        after: Option<Instant>,
    ) -> Option<Arc<UpstreamSocket>> {
        let sockets = self.0.get_or_default().borrow();
        let (before, from) = sockets.split_at(rand::rng().random_range(..sockets.len().max(1)));
        let is_new = |socket: &UpstreamSocket| after.is_none_or(|after| socket.opened > after);
        from.iter().chain(before).find(|socket| is_new(socket) && socket.has_room(max_waiting, now)).cloned()
    }

    /// Adds a socket that this thread has opened, and removes the sockets that are over.
    pub(crate) fn add(&self, socket: &Arc<UpstreamSocket>) {
        let mut sockets = self.0.get_or_default().borrow_mut();
        sockets.retain(|known| known.has_room(usize::MAX, socket.opened));
        sockets.push(Arc::clone(socket));
    }
}

impl UpstreamSocket {
    /// Opens a UDP socket, connected to the upstream, so that the kernel drops datagrams from other addresses, and starts
    /// its task. The permit is released when the socket is closed.
    ///
    /// # Errors
    /// If the kernel refuses the socket or its local address.
    pub(crate) fn open_udp(
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
        let socket = Self::new(udp.local_addr().ok(), MAX_QUERIES, None);
        let task = Task { socket: Arc::clone(&socket), udp: for_reading(udp)?, metrics, _permit: permit };
        thread_tasks::spawn(task.run());
        Ok(socket)
    }

    /// Returns whether the socket takes another query while fewer than `max_waiting` wait.
    fn has_room(&self, max_waiting: usize, now: Instant) -> bool {
        let queries = self.queries.lock();
        !queries.is_retired && now.duration_since(self.opened) < MAX_AGE && queries.by_id.len() < max_waiting
    }

    /// Gives the datagram to the query that it answers; returns whether there is one.
    ///
    /// Replies have to repeat the question (RFC 5452 section 9.1), but a server that doesn't know EDNS may answer FORMERR
    /// without it (RFC 6891 section 7). Such an error fits every query that waits on the socket: an attacker that knows the
    /// port needs no name, and with 32 ids that fit, or more without free sockets, a 32nd of the guesses. So it is accepted
    /// only as long as no guess was wrong; after that the socket gets no further queries, and the query is repeated from
    /// another port, if a socket is free.
    fn accept(&self, datagram: &[u8], is_cut: bool, now: Instant) -> bool {
        let Some(id) = datagram.first_chunk().map(|id| u16::from_be_bytes(*id)) else { return false };
        let queries = &mut *self.queries.lock();
        queries.is_attacked |= !queries.has_used(id);
        let waiting = queries.by_id.get_mut(&id);
        let Some(query) = waiting.filter(|query| query.reply.is_none()) else { return false };
        let has_question = datagram.get(4..6) != Some(&[0, 0]);
        match parse_datagram(&query.bytes, datagram, is_cut) {
            // It may be forged: the real answer may still come.
            UpstreamReply::Mismatch => {
                queries.is_attacked = true;
                false
            }
            _ if queries.is_attacked && !has_question => {
                queries.is_retired = true;
                false
            }
            reply => {
                query.end(Ok(reply));
                queries.unanswered -= 1;
                queries.heard = Some(now);
                true
            }
        }
    }
}

/// The task of a socket.
struct Task {
    socket: Arc<UpstreamSocket>,
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
        let (mut is_old, mut full_batches) = (false, 0);
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
                        // A flood of datagrams leaves time for the rest of the thread.
                        if full_batches == BATCHES_BEFORE_YIELD {
                            full_batches = 0;
                            yield_now().await;
                        }
                        self.receive().map(|is_full| full_batches += u32::from(is_full))
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
        let Queries { by_id: waiting, outgoing, unanswered, .. } = &mut *self.socket.queries.lock();
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
                        *unanswered -= usize::from(query.end(Err(error)));
                    }
                    done += 1;
                }
            }
        }
        outgoing.clear();
        Ok(())
    }

    /// Receives a batch of the datagrams that are there; returns whether it is full.
    fn receive(&self) -> io::Result<bool> {
        let receive = |udp: &Arc<UdpSocket>| {
            let is_full = self.receive_batch(udp)? == BATCH_SIZE;
            // Less than a batch was there: the readiness ends without another system call.
            if is_full { Ok(true) } else { Err(io::ErrorKind::WouldBlock.into()) }
        };
        match self.udp.try_io(Interest::READABLE, receive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            outcome => outcome,
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
        self.socket.close();
    }
}

/// Sends the first of these queries, and as many others as the kernel takes; returns their number.
fn send_together(udp: &UdpSocket, waiting: &BTreeMap<u16, WaitingQuery>, ids: &[u16]) -> io::Result<usize> {
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
