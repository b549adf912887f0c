//! Quotas of resources that all clients share: no client can take so much that nothing is left for the other clients.
//!
//! A client is an address. An IPv4-mapped IPv6 address has to be [unmapped](crate::dns::net::unmapped) first. An IPv6
//! client is a whole address, not its /64: in a cluster a /64 holds all Pods of a node, or a subnet full of nodes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// A resource with a limited number of units that all clients share.
#[derive(Debug)]
pub struct ClientQuota {
    limit: usize,
    quota_state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    all: usize,
    /// A tree, because usually there are few clients: the search is then faster than hashing an address.
    clients: BTreeMap<IpAddr, usize>,
}

impl ClientQuota {
    /// Returns a resource of `limit` units, all of them free.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, quota_state: Mutex::default() })
    }

    /// Returns an empty share for a client. The address must be [unmapped](crate::dns::net::unmapped).
    #[must_use]
    pub fn of(self: &Arc<Self>, client: IpAddr) -> QuotaGuard {
        QuotaGuard { quota: Arc::clone(self), client, size: 0 }
    }

    /// Returns a share of `size` units, if the client may have them: see [`QuotaGuard::resize`].
    #[must_use]
    pub fn acquire(self: &Arc<Self>, client: IpAddr, size: usize) -> Option<QuotaGuard> {
        let mut share = self.of(client);
        share.resize(size).then_some(share)
    }

    /// Acts like [`ClientQuota::acquire`] with half of the limit: for optional work of a client.
    #[must_use]
    pub fn acquire_spare(self: &Arc<Self>, client: IpAddr, size: usize) -> Option<QuotaGuard> {
        let mut share = self.of(client);
        share.resize_within(size, self.limit / 2).then_some(share)
    }

    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    #[must_use]
    pub fn held_by(&self, client: IpAddr) -> usize {
        let quota_state = self.quota_state.lock();
        quota_state.clients.get(&client).copied().unwrap_or_default()
    }
}

/// The share of a client; dropping it releases the units.
#[derive(Debug)]
pub struct QuotaGuard {
    quota: Arc<ClientQuota>,
    client: IpAddr,
    size: usize,
}

impl QuotaGuard {
    /// Resizes the share; returns `false`, and leaves it unchanged, if the client may not have that much.
    ///
    /// A client may have as many units as stay free for other clients: the first client can take half of all, the next
    /// one half of the rest. The last unit goes to a client that has none.
    pub fn resize(&mut self, size: usize) -> bool {
        let limit = self.quota.limit;
        self.resize_within(size, limit)
    }

    fn resize_within(&mut self, size: usize, limit: usize) -> bool {
        if size == self.size {
            return true;
        }
        let mut quota_state = self.quota.quota_state.lock();
        let QuotaState { all, clients } = &mut *quota_state;
        let entry = clients.entry(self.client);
        let own = if let Entry::Occupied(own) = &entry { *own.get() } else { 0 };
        let more = size.saturating_sub(self.size);
        let fits = own + *all + 2 * more <= limit || own == 0 && more == 1 && *all < limit;
        if more > 0 && !fits {
            return false;
        }
        *all = *all - self.size + size;
        match (own - self.size + size, entry) {
            (0, Entry::Occupied(own)) => drop(own.remove()),
            (0, Entry::Vacant(_)) => {}
            (own, entry) => drop(entry.insert_entry(own)),
        }
        self.size = size;
        true
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// A share that is released when the last of its owners is dropped.
#[derive(Clone, Debug)]
pub struct SharedGuard(Arc<Mutex<QuotaGuard>>);

impl SharedGuard {
    #[must_use]
    pub fn new(share: QuotaGuard) -> Self {
        Self(Arc::new(Mutex::new(share)))
    }

    /// Acts like [`QuotaGuard::resize`].
    pub fn resize(&self, size: usize) -> bool {
        self.0.lock().resize(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn greedy_clients_leave_room_for_the_next() {
        let quota = ClientQuota::new(1024);
        let take_all =
            |last| -> Vec<QuotaGuard> { std::iter::from_fn(|| quota.acquire(client(last), 1)).collect() };
        let mut all: Vec<Vec<QuotaGuard>> = (1..=3).map(take_all).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [512, 256, 128]);
        assert!(take_all(1).is_empty(), "the first client already has its share");
        all.remove(0);
        assert!(take_all(4).len() >= 256, "released units are free for other clients");
        drop(all);
        let quota_state = quota.quota_state.lock();
        assert_eq!((quota_state.all, quota_state.clients.len()), (0, 0));
    }

    #[test]
    fn last_unit_goes_to_a_client_without_any() {
        let quota = ClientQuota::new(3);
        let all: Vec<QuotaGuard> = (1..=3).map(|last| quota.acquire(client(last), 1).unwrap()).collect();
        assert!(quota.acquire(client(4), 1).is_none());
        drop(all);
        let _one = quota.acquire(client(1), 1).unwrap();
        assert!(quota.acquire(client(1), 1).is_none(), "two units would be more than half");
        assert_eq!((quota.held_by(client(1)), quota.held_by(client(2))), (1, 0));
    }

    #[test]
    fn spare_shares_are_limited_to_half_of_all_units() {
        let shares = ClientQuota::new(100);
        let spare: Vec<QuotaGuard> = std::iter::from_fn(|| shares.acquire_spare(client(1), 1)).collect();
        assert_eq!(spare.len(), 25);
        let rest: Vec<QuotaGuard> = std::iter::from_fn(|| shares.acquire(client(1), 1)).collect();
        assert_eq!(rest.len(), 25);
        assert!(shares.acquire_spare(client(2), 1).is_none());
        assert!(shares.acquire(client(2), 25).is_some());
    }

    #[test]
    fn share_grows_up_to_its_limit_and_shrinks() {
        let shares = ClientQuota::new(100);
        let mut share = shares.acquire(client(1), 40).unwrap();
        assert!(share.resize(50));
        assert!(!share.resize(51));
        assert!(shares.acquire(client(2), 26).is_none());
        assert!(share.resize(10));
        assert!(shares.acquire(client(2), 45).is_some());
    }
}
