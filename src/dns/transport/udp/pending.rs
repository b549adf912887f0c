//! Queries on their way from a worker thread to the handler, and answers on their way back to its cache.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;

use crate::dns::chain::handler::EncodedReply;
use crate::dns::response_cache::wire_response::WireResponse;

/// The client, and the address that it asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// Datagrams that the socket had no room for before this one.
    pub(super) lost: u32,
}

/// A question for the full handler.
pub(super) struct PendingQuery {
    pub(super) asking: QueryProgress,
    pub(super) peer: Peer,
    /// What makes it the same as another, if its answer may be one to keep.
    pub(super) key: Option<Box<[u8]>>,
    pub(super) ticket: InFlightGuard,
}

/// How far a question has come.
pub(super) enum QueryProgress {
    /// It is as it came.
    Message(Vec<u8>),
    /// The full handler has begun to answer it, and waits for something.
    UnderWay(BoxFuture<'static, Option<EncodedReply>>),
}

/// An answer to keep.
pub(super) struct CacheInsert {
    pub(super) key: Box<[u8]>,
    pub(super) client: IpAddr,
    pub(super) wire_response: Box<WireResponse>,
}

/// Counts a question as under way until this is dropped.
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
