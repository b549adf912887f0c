//! Which new connections are accepted, and which closed ones stay in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::AbortRegistration;
use parking_lot::Mutex;
use quinn::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::dns::transport::connections::connection_limit::{ConnectionLimiter, ConnectionPermit};

/// The maximum number of connections: with hostile clients each takes up to 200 KiB of memory. A client may have half.
/// As many closed ones may stay: quinn keeps each for some seconds (RFC 9000 section 10.2), or for most of a minute if
/// the client wants that.
const MAX_CONNECTIONS: usize = 1000;
/// The maximum number of handshakes with addresses that may be forged. Further clients are asked to prove theirs (RFC
/// 9000 section 8.1.2), which takes a round trip.
pub(super) const MAX_UNVALIDATED: usize = 64;

/// The limits that the connections of all QUIC listeners share.
#[derive(Debug)]
pub struct QuicLimits {
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) unvalidated: Arc<Semaphore>,
    /// quinn's tasks of the connections that were closed last.
    pub(super) closed: Mutex<VecDeque<AbortHandle>>,
    max_closed: usize,
}

pub(super) struct Admitted {
    pub incoming: Incoming,
    pub permit: ConnectionPermit,
    /// By which an eviction aborts the connection's task.
    pub registration: AbortRegistration,
    /// The share of the handshakes with addresses that may be forged, if the address is one of them.
    pub handshake: Option<OwnedSemaphorePermit>,
}

impl QuicLimits {
    /// Returns the limits of all QUIC listeners, within the limits of all connections.
    #[must_use]
    pub fn new(of_all: &Arc<ConnectionLimiter>) -> Self {
        Self::with(of_all, MAX_CONNECTIONS)
    }

    pub(super) fn with(of_all: &Arc<ConnectionLimiter>, max_connections: usize) -> Self {
        let limiter = of_all.of_listener("QUIC");
        limiter.limited_to(max_connections, true);
        let unvalidated = Arc::new(Semaphore::new(MAX_UNVALIDATED));
        Self { limiter, unvalidated, closed: Mutex::default(), max_closed: max_connections }
    }

    /// Returns a new connection that is accepted. Otherwise it is refused, or its client is asked to prove its address.
    pub(super) fn admit(&self, incoming: Incoming) -> Option<Admitted> {
        let client = incoming.remote_address();
        let mut handshake = None;
        if !incoming.remote_address_validated() {
            // Forged addresses take no place that a proven one needs, and close no idle connection.
            let free = Arc::clone(&self.unvalidated).try_acquire_owned().ok();
            handshake = free.filter(|_| self.limiter.has_room_for(client));
            if handshake.is_none() {
                let _ = incoming.retry();
                return None;
            }
        }
        let Some((permit, registration)) = self.limiter.admit(client) else {
            incoming.refuse();
            return None;
        };
        Some(Admitted { incoming, permit, registration, handshake })
    }

    fn closed(&self, task: AbortHandle) {
        let mut closed = self.closed.lock();
        closed.push_back(task);
        if closed.len() > self.max_closed
            && let Some(first) = closed.pop_front()
        {
            // quinn then frees the connection. Packets of its client get a stateless reset (RFC 9000 section 10.3).
            first.abort();
        }
    }
}

/// Counts a connection as closed when it is dropped.
pub(super) struct ClosedAtEnd {
    pub limits: Arc<QuicLimits>,
    /// quinn's task of the connection.
    pub task: AbortHandle,
}

impl Drop for ClosedAtEnd {
    fn drop(&mut self) {
        self.limits.closed(self.task.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn connection_that_was_closed_first_is_freed_first() {
        let of_all = Arc::new(ConnectionLimiter::new(Metrics::new().unwrap().group().unwrap()));
        let limits = Arc::new(QuicLimits::with(&of_all, 2));
        let mut tasks: Vec<_> = (0..5).map(|_| tokio::spawn(pending::<()>())).collect();
        for task in &tasks {
            drop(ClosedAtEnd { limits: Arc::clone(&limits), task: task.abort_handle() });
        }
        let last = tasks.split_off(3);
        for task in tasks {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert!(last.iter().all(|task| !task.is_finished()));
    }
}
