//! The queues from a worker thread to the slow path: one for zones of links, and one for all other names, so that a
//! flood of look-ups delays no answer about a link.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::pending::PendingQuery;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};

/// The sending end of a queue, and the quota of each client: one client can't fill the queue.
#[derive(Debug)]
struct QuerySender {
    queries: Sender<PendingQuery>,
    quota: Arc<ClientQuota>,
}

/// The sending ends of both queues.
#[derive(Debug)]
pub(super) struct QueueSenders {
    links: QuerySender,
    other: QuerySender,
}

/// The receiving ends of both queues.
#[derive(Debug)]
pub(super) struct QueueReceivers {
    pub(super) links: Receiver<PendingQuery>,
    pub(super) other: Receiver<PendingQuery>,
}

/// Returns the ends of two queues with this capacity each.
pub(super) fn queues(capacity: usize) -> (QueueSenders, QueueReceivers) {
    let queue = || {
        let (queries, receiver) = channel(capacity);
        (QuerySender { queries, quota: ClientQuota::new(capacity) }, receiver)
    };
    let ((links, link_receiver), (other, other_receiver)) = (queue(), queue());
    (QueueSenders { links, other }, QueueReceivers { links: link_receiver, other: other_receiver })
}

impl QueueSenders {
    /// Passes a query of a client to the queue for links or for other names. `query` returns the query with the
    /// client's share of the queue. Returns whether there was room.
    pub(super) fn send(
        &self,
        is_about_links: bool,
        client: IpAddr,
        query: impl FnOnce(QuotaGuard) -> PendingQuery,
    ) -> bool {
        let queue = if is_about_links { &self.links } else { &self.other };
        queue.quota.acquire(client, 1).is_some_and(|share| queue.queries.try_send(query(share)).is_ok())
    }
}
