//! Queries on their way from a worker thread to the full handler, and answers on their way back to the response cache
//! of the worker.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;

use crate::dns::chain::handler::EncodedReply;
use crate::dns::response_cache::wire_response::WireResponse;
use crate::dns::transport::client_quota::QuotaGuard;

/// The client, and the local address that it sent the query to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
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
    /// The client's share of the queue, until the full handler begins.
    pub(super) queue_share: QuotaGuard,
}

/// The state of a query.
pub(super) enum QueryProgress {
    /// The query as received.
    Message(Vec<u8>),
    /// The full handler has begun to answer the query, and is pending.
    UnderWay(BoxFuture<'static, Option<EncodedReply>>),
}

/// An answer for the response cache of the worker.
pub(super) struct CacheInsert {
    pub(super) key: Box<[u8]>,
    pub(super) client: IpAddr,
    pub(super) wire_response: Box<WireResponse>,
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
