//! The limits that all connections share.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use std::{io, mem};

use futures::future::{AbortHandle, AbortRegistration};
use parking_lot::Mutex;
use tracing::warn;

use crate::dns::message::encode::MessageSequence;
use crate::dns::net::{percent_of_file_limit, unmapped};
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};
use crate::dns::transport::metrics::TransportMetrics;
use crate::model::line_limit::LineLimit;

const MAX_CONNECTIONS: usize = 10_000;
/// The maximum number of connections in percent of the limit of open files. The smaller maximum applies.
const MAX_PERCENT_OF_FILES: usize = 30;
/// The maximum number of connections of one client address, but never more than a quarter of all. NodeLocal DNSCache is
/// one client, and needs a connection for each pending query.
///
/// An IPv6 client is a whole address, not a /64: in a cluster a /64 is a subnet full of nodes, or all Pods of a node. A
/// client with a whole /64 can close other clients' idle connections. At the maximum, new connections of other clients
/// are refused only while no connection is idle.
const MAX_CONNECTIONS_OF_CLIENT: usize = 1000;
/// The maximum number of pending queries, not counting the first of each connection. Exceeds the `max_concurrent` of
/// the built-in Corefile.
const MAX_EXTRA_PENDING_QUERIES: usize = 4096;
/// The maximum number of unread bytes, not counting answers from the response cache: these are sent only while few
/// bytes of the connection are unread.
const MAX_UNREAD_BYTES: usize = 32 << 20;
/// The maximum number of bytes of received HTTP/2 frames, and of QUIC's unfinished streams, that may be in memory.
const MAX_FRAME_BYTES: usize = 64 << 20;
/// The maximum size in bytes of an answer that may be sent without quota.
const SMALL_REPLY_BYTES: usize = 4096;

/// The limits that the connections of all listeners share.
#[derive(Debug)]
pub struct ConnectionLimiter {
    /// The protocol in the log.
    protocol: &'static str,
    /// The limiter of all listeners, if this is the one of a single listener.
    of_all: Option<Arc<Self>>,
    metrics: Arc<TransportMetrics>,
    state: Mutex<LimiterState>,
    /// Pending queries, not counting the first of each connection.
    waiting: Arc<ClientQuota>,
    unread: Arc<ClientQuota>,
    pub(in crate::dns::transport) frames: Arc<ClientQuota>,
}

#[derive(Debug, Default)]
struct LimiterState {
    max_connections: usize,
    max_of_a_client: usize,
    open: usize,
    /// The number of connections of each client that has any.
    clients: HashMap<IpAddr, usize>,
    /// The idle connections, keyed by the order in which they became idle.
    idle: BTreeMap<u64, IdleConnection>,
    next_idle_number: u64,
    /// The numbers of refused and evicted connections since the last warning.
    refused: u64,
    evicted: u64,
    warnings: LineLimit,
}

#[derive(Debug)]
struct IdleConnection {
    client: IpAddr,
    connection: AbortHandle,
}

impl ConnectionLimiter {
    /// Returns the limits of a process, according to its current limit of open files.
    #[must_use]
    pub fn new(metrics: Arc<TransportMetrics>) -> Self {
        Self::with(metrics, MAX_CONNECTIONS.min(percent_of_file_limit(MAX_PERCENT_OF_FILES)))
    }

    pub(in crate::dns::transport) fn with(metrics: Arc<TransportMetrics>, max_connections: usize) -> Self {
        let max_of_a_client = (max_connections / 4).clamp(1, MAX_CONNECTIONS_OF_CLIENT);
        Self {
            protocol: "TCP",
            of_all: None,
            metrics,
            state: Mutex::new(LimiterState { max_connections, max_of_a_client, ..Default::default() }),
            waiting: ClientQuota::new(MAX_EXTRA_PENDING_QUERIES),
            unread: ClientQuota::new(MAX_UNREAD_BYTES),
            frames: ClientQuota::new(MAX_FRAME_BYTES),
        }
    }

    /// Returns the limiter of a listener for HTTPS or gRPC, or of all listeners for QUIC: its own maximum applies in
    /// addition to these limits.
    pub(in crate::dns::transport) fn of_listener(self: &Arc<Self>, protocol: &'static str) -> Arc<Self> {
        Arc::new(Self {
            protocol,
            of_all: Some(Arc::clone(self)),
            metrics: Arc::clone(&self.metrics),
            state: Mutex::default(),
            waiting: Arc::clone(&self.waiting),
            unread: Arc::clone(&self.unread),
            frames: Arc::clone(&self.frames),
        })
    }

    /// Sets the maximum of a listener. A client may have half of it. Where clients aren't known there is no such limit:
    /// without TLS they are assumed to be behind a proxy, and without PROXY headers all have its address.
    pub(in crate::dns::transport) fn limited_to(
        self: &Arc<Self>,
        max_connections: usize,
        clients_are_known: bool,
    ) -> &Arc<Self> {
        let max_of_a_client = if clients_are_known { max_connections.div_ceil(2) } else { usize::MAX };
        let mut state = self.state.lock();
        (state.max_connections, state.max_of_a_client) = (max_connections, max_of_a_client);
        drop(state);
        self
    }

    /// Returns an empty share of the memory for what a client hasn't read yet, or hasn't sent in full.
    pub(in crate::dns::transport) fn unread(&self, client: SocketAddr) -> QuotaGuard {
        self.unread.of(unmapped(client).ip())
    }

    /// Returns an empty share of the memory for the frames or unfinished streams of a connection.
    pub(in crate::dns::transport) fn frames(&self, client: SocketAddr) -> QuotaGuard {
        self.frames.of(unmapped(client).ip())
    }

    pub(in crate::dns::transport) fn count_refused_header(&self, sender: SocketAddr, why: &io::Error) {
        self.metrics.refused_header(sender, why);
    }

    pub(in crate::dns::transport) fn count_busy(&self) {
        self.metrics.connections_busy.inc();
    }

    /// Returns a permit for a new connection, and the registration by which an eviction aborts its task. If there are
    /// too many connections, the connection that has been idle longest is evicted (RFC 7766 section 6.2.3). Returns
    /// `None` if the client has too many connections, or if there are too many and none is idle.
    ///
    /// A connection counts as idle while it has no pending query, even if it has a partial query or an unread answer,
    /// or is in a handshake.
    #[must_use]
    pub fn admit(self: &Arc<Self>, client: SocketAddr) -> Option<(ConnectionPermit, AbortRegistration)> {
        let client = unmapped(client).ip();
        let (connection, registration) = AbortHandle::new_pair();
        let mut permit = self.permit(client, &connection)?;
        // Last, so that a connection that the listener refuses evicts none of another listener.
        if let Some(limiter) = &self.of_all {
            permit.of_all = Some(Box::new(limiter.permit(client, &connection)?));
        }
        Some((permit, registration))
    }

    /// Returns whether another connection closes none, and leaves the client three quarters of its maximum.
    pub(in crate::dns::transport) fn has_room_for(&self, client: SocketAddr) -> bool {
        let state = self.state.lock();
        let own = state.clients.get(&unmapped(client).ip()).copied().unwrap_or_default();
        let has_room = state.open < state.max_connections && own < state.max_of_a_client.div_ceil(4);
        drop(state);
        has_room && self.of_all.as_ref().is_none_or(|of_all| of_all.has_room_for(client))
    }

    fn permit(self: &Arc<Self>, client: IpAddr, connection: &AbortHandle) -> Option<ConnectionPermit> {
        let mut state = self.state.lock();
        let full = state.open >= state.max_connections;
        let refused = state.clients.get(&client).is_some_and(|has| *has >= state.max_of_a_client)
            || full && state.idle.is_empty();
        if refused {
            self.metrics.connections_refused.inc();
            state.refused += 1;
        } else {
            // More than one if a reload has lowered the maximum.
            while state.open >= state.max_connections
                && let Some((_, longest)) = state.idle.pop_first()
            {
                self.metrics.connections_evicted.inc();
                state.evicted += 1;
                state.leave(longest.client);
                longest.connection.abort();
            }
            state.open += 1;
            *state.clients.entry(client).or_default() += 1;
        }
        let warns = (refused || full) && state.warnings.take(Instant::now()).is_some();
        let counts = warns.then(|| (mem::take(&mut state.refused), mem::take(&mut state.evicted)));
        drop(state);
        if let Some((refused, evicted)) = counts {
            warn!(
                "{}: too many connections: {refused} refused and {evicted} idle ones closed since the \
                 last such warning; the newest connection is of {client}",
                self.protocol
            );
        }
        if refused {
            return None;
        }
        let (limiter, extra) = (Arc::clone(self), self.waiting.of(client));
        let (connection, position) = (connection.clone(), IdleQueuePosition::Working);
        let mut permit = ConnectionPermit { limiter, client, connection, position, extra, of_all: None };
        permit.set_idle();
        Some(permit)
    }

    /// Reserves memory for an answer until the client has read it. If too many bytes are unread, returns a small answer
    /// without quota.
    ///
    /// # Errors
    /// If too many bytes are unread, and the answer isn't small.
    pub fn hold(&self, client: SocketAddr, bytes: Vec<u8>) -> io::Result<BufferedReply> {
        let held = self.unread.acquire(unmapped(client).ip(), bytes.len());
        if held.is_none() && bytes.len() > SMALL_REPLY_BYTES {
            return Err(self.too_many_unread_bytes());
        }
        Ok(BufferedReply { bytes, held, following: None })
    }

    /// Counts a connection that is closed, and returns the error for it.
    pub(in crate::dns::transport) fn too_many_unread_bytes(&self) -> io::Error {
        self.metrics.connections_unread.inc();
        io::Error::other("too many answers that aren't read")
    }
}

impl LimiterState {
    fn leave(&mut self, client: IpAddr) {
        self.open -= 1;
        if let Entry::Occupied(mut connections) = self.clients.entry(client) {
            *connections.get_mut() -= 1;
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }
}

/// The permit of a connection; dropping it lets another connection in.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: IpAddr,
    connection: AbortHandle,
    position: IdleQueuePosition,
    /// The pending queries, not counting the first.
    extra: QuotaGuard,
    /// The permit of the limiter of all listeners, if this is the one of a single listener.
    of_all: Option<Box<Self>>,
}

/// The position of a connection in the queue of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleQueuePosition {
    Idle(u64),
    Working,
    Evicted,
}

impl ConnectionPermit {
    #[must_use]
    pub fn limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.limiter
    }

    pub fn set_idle(&mut self) {
        if let Some(of_all) = &mut self.of_all {
            of_all.set_idle();
        }
        let limiter = Arc::clone(&self.limiter);
        let mut state = limiter.state.lock();
        self.leave_idle_queue(&mut state);
        if self.position == IdleQueuePosition::Evicted {
            return;
        }
        self.extra.resize(0);
        let position = state.next_idle_number;
        state.next_idle_number += 1;
        state
            .idle
            .insert(position, IdleConnection { client: self.client, connection: self.connection.clone() });
        self.position = IdleQueuePosition::Idle(position);
    }

    pub fn set_busy(&mut self) {
        if let Some(of_all) = &mut self.of_all {
            of_all.set_busy();
        }
        if matches!(self.position, IdleQueuePosition::Idle(_)) {
            let limiter = Arc::clone(&self.limiter);
            self.leave_idle_queue(&mut limiter.state.lock());
        }
    }

    /// Reserves or releases quota, so that this many queries may be pending in addition to the first; returns whether
    /// the client may have that many.
    pub fn reserve(&mut self, extra: usize) -> bool {
        self.extra.resize(extra)
    }

    fn leave_idle_queue(&mut self, state: &mut LimiterState) {
        if let IdleQueuePosition::Idle(position) = self.position {
            self.position = if state.idle.remove(&position).is_some() {
                IdleQueuePosition::Working
            } else {
                IdleQueuePosition::Evicted
            };
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let limiter = Arc::clone(&self.limiter);
        let mut state = limiter.state.lock();
        self.leave_idle_queue(&mut state);
        if self.position == IdleQueuePosition::Working {
            state.leave(self.client);
        }
    }
}

#[derive(Debug)]
pub struct BufferedReply {
    pub bytes: Vec<u8>,
    /// The quota that the unread bytes take. Without it, the answer may be sent only while few bytes of the connection
    /// are unread.
    pub held: Option<QuotaGuard>,
    /// The messages after this one, which aren't encoded yet.
    pub following: Option<Box<MessageSequence>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn limiter(max_connections: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter::with(Metrics::new().unwrap().group().unwrap(), max_connections))
    }

    fn client(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 5353))
    }

    #[test]
    fn longest_idle_connection_is_evicted_but_no_busy_one() {
        let limiter = limiter(3);
        let mut all: Vec<ConnectionPermit> =
            (1..=3).map(|last| limiter.admit(client(last)).unwrap().0).collect();
        // The first client has become idle again, and the second client's query is pending.
        all[0].set_idle();
        all[1].set_busy();
        let (newcomer, _) = limiter.admit(client(4)).unwrap();
        let gone = |all: &[ConnectionPermit]| -> Vec<bool> {
            all.iter().map(|p| p.connection.is_aborted()).collect()
        };
        assert_eq!(gone(&all), [false, false, true]);
        let (_newest, _) = limiter.admit(client(5)).unwrap();
        assert_eq!(gone(&all), [true, false, true]);
        assert_eq!(limiter.metrics.connections_evicted.get(), 2);
        // The permit of an evicted connection was released at the eviction: later changes of its state, and its drop,
        // have no effect.
        all[0].set_idle();
        all[2].set_busy();
        drop(all.remove(2));
        drop(all.remove(0));
        assert_eq!(limiter.state.lock().open, 3);
        drop(newcomer);
        assert_eq!(limiter.state.lock().open, 2);
    }

    #[test]
    fn listener_has_a_maximum_of_its_own_within_that_of_all() {
        let all = limiter(100);
        let listener = all.of_listener("HTTPS");
        let admit = |last| listener.limited_to(4, true).admit(client(last));
        let mut own: Vec<_> = [1, 1, 2].map(|last| admit(last).unwrap().0).into();
        assert!(admit(1).is_none(), "half of the maximum");
        own.push(admit(2).unwrap().0);
        own[1..].iter_mut().for_each(ConnectionPermit::set_busy);
        own.push(admit(3).unwrap().0);
        assert!(own.remove(0).connection.is_aborted());
        own[3].set_busy();
        assert!(admit(4).is_none(), "none is idle");
        let by_tcp = all.admit(client(1)).unwrap();
        assert_eq!((listener.state.lock().open, all.state.lock().open), (4, 5));
        // A reload has lowered the maximum.
        own.iter_mut().for_each(ConnectionPermit::set_idle);
        let newest = listener.limited_to(2, false).admit(client(5)).unwrap();
        assert_eq!(
            own.iter().map(|permit| permit.connection.is_aborted()).collect::<Vec<_>>(),
            [true, true, true, false]
        );
        drop((own, newest, by_tcp));
        // A connection that the listener refuses evicts none of another listener.
        let mut own = listener.limited_to(1, false).admit(client(1)).unwrap().0;
        own.set_busy();
        let by_tcp: Vec<_> = (0..99).map(|last| all.admit(client(last)).unwrap().0).collect();
        assert!(listener.admit(client(2)).is_none());
        assert!(by_tcp.iter().all(|permit| !permit.connection.is_aborted()));
        drop((own, by_tcp));
        assert_eq!((listener.state.lock().open, all.state.lock().open), (0, 0));
        assert!(all.state.lock().clients.is_empty());
    }

    #[test]
    fn connection_is_refused_only_if_all_others_are_busy() {
        let limiter = limiter(2);
        let mut all: Vec<ConnectionPermit> =
            (1..=2).map(|last| limiter.admit(client(last)).unwrap().0).collect();
        all.iter_mut().for_each(ConnectionPermit::set_busy);
        assert!(limiter.admit(client(3)).is_none());
        assert_eq!(limiter.metrics.connections_refused.get(), 1);
        all[1].set_idle();
        assert!(limiter.admit(client(3)).is_some());
    }

    #[test]
    fn client_has_one_limit_by_ipv4_and_mapped_address() {
        // With a small maximum, the limit of a client is a quarter of it.
        for (max, limit) in [(10 * MAX_CONNECTIONS_OF_CLIENT, MAX_CONNECTIONS_OF_CLIENT), (128, 32)] {
            let limiter = limiter(max);
            let mapped: SocketAddr = "[::ffff:10.0.0.1]:5353".parse().unwrap();
            let all: Vec<_> =
                (0..limit).map(|i| limiter.admit([client(1), mapped][i % 2]).unwrap()).collect();
            assert!(limiter.admit(client(1)).is_none());
            assert!(limiter.admit(mapped).is_none());
            assert!(limiter.admit(client(2)).is_some());
            drop(all);
            assert!(limiter.state.lock().clients.is_empty());
            assert!(limiter.admit(client(1)).is_some());
        }
    }

    #[test]
    fn connections_of_a_client_share_the_pending_query_quota() {
        let limiter = limiter(100);
        let most =
            |permit: &mut ConnectionPermit| (0..).take_while(|extra| permit.reserve(*extra)).count() - 1;
        let [mut first, mut second, mut other] = [1, 1, 2].map(|last| limiter.admit(client(last)).unwrap().0);
        assert_eq!(most(&mut first), MAX_EXTRA_PENDING_QUERIES / 2);
        assert_eq!(most(&mut second), 0);
        assert_eq!(most(&mut other), MAX_EXTRA_PENDING_QUERIES / 4);
        first.set_idle();
        assert!(most(&mut second) > 0);
    }

    #[test]
    fn unread_answers_leave_room_for_other_clients() {
        let limiter = limiter(1);
        let big = || vec![0; usize::from(u16::MAX)];
        let hold_all = |last| -> Vec<BufferedReply> {
            std::iter::from_fn(|| limiter.hold(client(last), big()).ok()).collect()
        };
        let most = MAX_UNREAD_BYTES / usize::from(u16::MAX);
        let held: Vec<Vec<BufferedReply>> = (1..=3).map(hold_all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [most / 2, most / 4, most / 8]);
        assert_eq!(limiter.metrics.connections_unread.get(), 3);
        assert!(limiter.hold(client(1), vec![0; SMALL_REPLY_BYTES]).is_ok());
        drop(held);
        assert!(limiter.hold(client(1), big()).is_ok());
        let small = |last| limiter.hold(client(last), vec![0; 100]).unwrap().held;
        let hold_all = |last| -> Vec<QuotaGuard> { std::iter::from_fn(|| small(last)).collect() };
        let held: Vec<Vec<QuotaGuard>> = (1..=30).map(hold_all).collect();
        assert_eq!(held[0].len(), MAX_UNREAD_BYTES / 2 / 100);
        // The quota is used up. Small answers don't need it.
        assert!(small(31).is_none());
        assert!(limiter.hold(client(31), vec![0; SMALL_REPLY_BYTES]).is_ok());
        assert!(limiter.hold(client(31), vec![0; SMALL_REPLY_BYTES + 1]).is_err());
    }
}
