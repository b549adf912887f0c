//! Which new connections are accepted.

use std::sync::Arc;
use std::time::Instant;

use futures::future::AbortRegistration;
use quinn::Incoming;
use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::dns::net::unmapped;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};
use crate::dns::transport::tcp::connection_limit::{ConnectionLimiter, ConnectionPermit};

/// The maximum number of connections: with hostile clients each takes up to 200 KiB of memory. A client may have half.
const MAX_CONNECTIONS: usize = 1000;
/// How many times as many connections may not be freed yet: a closed connection stays for some seconds (RFC 9000
/// section 10.2).
const PLACES_FACTOR: usize = 2;
/// The maximum number of handshakes with addresses that may be forged. Further clients are asked to prove theirs (RFC
/// 9000 section 8.1.2), which takes a round trip.
const MAX_UNVALIDATED: usize = 64;

/// The limits that the connections of all QUIC listeners share.
#[derive(Debug)]
pub struct QuicLimits {
    limiter: Arc<ConnectionLimiter>,
    pub(super) places: Arc<ClientQuota>,
    unvalidated: Arc<Semaphore>,
}

pub(super) struct Admitted {
    pub incoming: Incoming,
    pub permit: ConnectionPermit,
    /// By which an eviction aborts the connection's task.
    pub registration: AbortRegistration,
    pub place: Place,
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
        Self {
            limiter,
            places: ClientQuota::new(PLACES_FACTOR * max_connections),
            unvalidated: Arc::new(Semaphore::new(MAX_UNVALIDATED)),
        }
    }

    /// Returns a new connection that is accepted. Otherwise it is refused, or its client is asked to prove its address.
    pub(super) fn admit(&self, incoming: Incoming) -> Option<Admitted> {
        let client = incoming.remote_address();
        let ip = unmapped(client).ip();
        let (handshake, place) = if incoming.remote_address_validated() {
            (None, self.places.acquire(ip, 1))
        } else {
            // Forged addresses take no place that a proven one needs, and close no idle connection.
            let handshake = Arc::clone(&self.unvalidated).try_acquire_owned().ok();
            let place = handshake.as_ref().and_then(|_| self.places.acquire_spare(ip, 1));
            if place.is_none() {
                let _ = incoming.retry();
                return None;
            }
            (handshake, place)
        };
        let Some(place) = place.map(Place::new) else {
            self.limiter.count_refused();
            incoming.refuse();
            return None;
        };
        let Some((permit, registration)) = self.limiter.admit(client) else {
            incoming.refuse();
            return None;
        };
        Some(Admitted { incoming, permit, registration, place, handshake })
    }
}

/// The place of a connection until quinn has freed it: quinn keeps this factory as long as the connection.
#[derive(Debug)]
pub(super) struct Place {
    cubic: Arc<CubicConfig>,
    _share: QuotaGuard,
}

impl Place {
    fn new(share: QuotaGuard) -> Self {
        Self { cubic: Arc::default(), _share: share }
    }
}

impl ControllerFactory for Place {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Arc::clone(&self.cubic).build(now, current_mtu)
    }
}
