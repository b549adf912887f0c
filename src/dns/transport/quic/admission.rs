//! Which new connections are accepted.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use futures::future::AbortRegistration;
use quinn::Incoming;
use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::dns::net::unmapped;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard, SharedGuard};
use crate::dns::transport::connections::connection_limit::{ConnectionLimiter, ConnectionPermit};

/// The maximum number of connections: with hostile clients each takes up to 200 KiB of memory. A client may have half.
const MAX_CONNECTIONS: usize = 1000;
/// How many times as many connections may not be freed yet: a closed connection stays for some seconds (RFC 9000
/// section 10.2), or for most of a minute if the client wants that.
const PLACES_FACTOR: usize = 2;
/// How many closed connections of a client may stay before the client has only half of the places. Here an IPv6 client
/// is a /64: a client with a whole /64 could take all places.
const MAX_CLOSED_OF_CLIENT: usize = 32;
/// The maximum number of handshakes with addresses that may be forged. Further clients are asked to prove theirs (RFC
/// 9000 section 8.1.2), which takes a round trip.
const MAX_UNVALIDATED: usize = 64;

/// The limits that the connections of all QUIC listeners share.
#[derive(Debug)]
pub struct QuicLimits {
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) places: Arc<ClientQuota>,
    /// Counts the connections that are closed, but not freed.
    closed: Arc<ClientQuota>,
    unvalidated: Arc<Semaphore>,
}

pub(super) struct Admitted {
    pub incoming: Incoming,
    pub permit: ConnectionPermit,
    /// By which an eviction aborts the connection's task.
    pub registration: AbortRegistration,
    pub share: QuotaGuard,
    /// Counts the connection after its end until it is freed.
    pub closed: SharedGuard,
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
            closed: ClientQuota::new(usize::MAX),
            unvalidated: Arc::new(Semaphore::new(MAX_UNVALIDATED)),
        }
    }

    /// Returns a new connection that is accepted. Otherwise it is refused, or its client is asked to prove its address.
    pub(super) fn admit(&self, incoming: Incoming) -> Option<Admitted> {
        let client = incoming.remote_address();
        let ip = unmapped(client).ip();
        let (handshake, share) = if incoming.remote_address_validated() {
            (None, self.share(ip))
        } else {
            // Forged addresses take no place that a proven one needs, and close no idle connection.
            let handshake = Arc::clone(&self.unvalidated).try_acquire_owned().ok();
            let handshake = handshake.filter(|_| self.limiter.has_room_for(client));
            let share = handshake.as_ref().and_then(|_| self.places.acquire_spare(ip, 1));
            if share.is_none() {
                let _ = incoming.retry();
                return None;
            }
            (handshake, share)
        };
        let Some(share) = share else {
            self.limiter.count_refused();
            incoming.refuse();
            return None;
        };
        let Some((permit, registration)) = self.limiter.admit(client) else {
            incoming.refuse();
            return None;
        };
        let closed = SharedGuard::new(self.closed.of(network(ip)));
        Some(Admitted { incoming, permit, registration, share, closed, handshake })
    }

    /// Returns a place for a client, if there is one.
    fn share(&self, ip: IpAddr) -> Option<QuotaGuard> {
        if self.closed.held_by(network(ip)) < MAX_CLOSED_OF_CLIENT {
            self.places.acquire(ip, 1)
        } else {
            self.places.acquire_spare(ip, 1)
        }
    }
}

/// Returns an IPv4 address, or the /64 of an IPv6 address.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        IpAddr::V4(_) => ip,
    }
}

/// Counts a connection as closed when it is dropped.
pub(super) struct CountedAtEnd(pub SharedGuard);

impl Drop for CountedAtEnd {
    fn drop(&mut self) {
        self.0.resize(1);
    }
}

/// The place of a connection until quinn has freed it: quinn keeps this factory as long as the connection.
#[derive(Debug)]
pub(super) struct Place {
    cubic: Arc<CubicConfig>,
    _share: QuotaGuard,
    _kept: SharedGuard,
    _closed: SharedGuard,
}

impl Place {
    pub fn new(share: QuotaGuard, kept: SharedGuard, closed: SharedGuard) -> Self {
        Self { cubic: Arc::default(), _share: share, _kept: kept, _closed: closed }
    }
}

impl ControllerFactory for Place {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Arc::clone(&self.cubic).build(now, current_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn clients_with_closed_connections_leave_places_free() {
        let of_all = Arc::new(ConnectionLimiter::new(Metrics::new().unwrap().group().unwrap()));
        let limits = QuicLimits::new(&of_all);
        let mut held = Vec::new();
        // Each address is of a /64 of 256.
        for client in 0..20 * 256_u128 {
            let ip = Ipv6Addr::from_bits((1 << 124) + ((client / 256) << 64) + client % 256).into();
            while let Some(share) = limits.share(ip) {
                let closed = SharedGuard::new(limits.closed.of(network(ip)));
                drop(CountedAtEnd(closed.clone()));
                held.push((share, closed));
            }
        }
        assert!((1000..1700).contains(&held.len()), "{}", held.len());
        let client = IpAddr::from([192, 0, 2, 1]);
        assert!(limits.share(client).is_some());
        held.truncate(900);
        let open: Vec<_> = std::iter::from_fn(|| limits.share(client)).collect();
        assert_eq!(open.len(), 550);
    }
}
