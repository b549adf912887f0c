//! Queries that a thread can't answer from its response cache.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;

use crate::dns::chain::handler::EncodedReply;
use crate::dns::net::unmapped;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};

/// The sender of a query, and the local address that it sent the query to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// The address that gets the answer.
    pub(super) address: SocketAddr,
    /// The client: the sender, unless a PROXY header names another address.
    pub(super) client: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// The number of datagrams that the kernel has dropped since the socket was opened because the receive buffer was
    /// full.
    pub(super) kernel_drops: u32,
}

/// A query for the full handler.
pub(super) struct PendingQuery {
    pub(super) progress: QueryProgress,
    pub(super) peer: Peer,
    /// The key of the response cache, if the answer may be cached.
    pub(super) key: Option<Box<[u8]>>,
    pub(super) guard: InFlightGuard,
}

/// The state of a query.
pub(super) enum QueryProgress {
    /// The query as received.
    Message(Vec<u8>),
    /// The full handler has begun to answer the query, and is pending.
    UnderWay(BoxFuture<'static, Option<EncodedReply>>),
}

/// Queries that wait for their turn: those about names of links and of the cluster, and all others, so that a flood of
/// look-ups delays no answer about the former. One client can't fill it.
pub(super) struct Backlog {
    own: Part,
    others: Part,
}

struct Part {
    /// Each with its client's share of the capacity.
    queries: VecDeque<(PendingQuery, QuotaGuard)>,
    capacity: Arc<ClientQuota>,
}

impl Backlog {
    /// Returns a backlog with this capacity for each of both kinds.
    pub(super) fn new(capacity: usize) -> Self {
        let part = || Part { queries: VecDeque::new(), capacity: ClientQuota::new(capacity) };
        Self { own: part(), others: part() }
    }

    /// Adds a query, if its client has quota; returns whether it has.
    pub(super) fn push(
        &mut self,
        is_about_own_names: bool,
        (progress, peer, key): (QueryProgress, Peer, Option<Box<[u8]>>),
        guard: InFlightGuard,
    ) -> bool {
        let part = if is_about_own_names { &mut self.own } else { &mut self.others };
        let Some(share) = part.capacity.acquire(unmapped(peer.client).ip(), 1) else { return false };
        part.queries.push_back((PendingQuery { progress, peer, key, guard }, share));
        true
    }

    /// Removes at most `number` queries, those about own names first; at least `number / 8` are others, if there are as many.
    /// They use no share of the capacity any more.
    pub(super) fn take(&mut self, number: usize) -> impl Iterator<Item = PendingQuery> {
        let others = self.others.queries.len().min(number / 8);
        let own = self.own.queries.len().min(number - others);
        let others = self.others.queries.len().min(number - own);
        self.own.queries.drain(..own).chain(self.others.queries.drain(..others)).map(|(query, _)| query)
    }

    pub(super) fn len(&self) -> usize {
        self.own.queries.len() + self.others.queries.len()
    }
}

/// Counts a query as pending until the guard is dropped.
pub(super) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightGuard {
    pub(super) fn new(pending: &Arc<AtomicUsize>) -> Self {
        pending.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(pending))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
