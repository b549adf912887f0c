//! What clients share, and who gets how much of it: nobody may take so much that there is nothing
//! left for others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// A number of things that all clients share.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Mostly a few: one of them is found sooner than its address is hashed.
    clients: BTreeMap<IpAddr, usize>,
}

impl Shares {
    /// Returns so many things, all of them free.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// Returns a share without anything in it yet. The client's address is one that is
    /// [unmapped](super::unmapped).
    #[must_use]
    pub fn of(self: &Arc<Self>, client: IpAddr) -> Share {
        Share { shares: Arc::clone(self), client, size: 0 }
    }

    /// Returns a share of this size, if the client may have it: see [`Share::resize`].
    #[must_use]
    pub fn take(self: &Arc<Self>, client: IpAddr, size: usize) -> Option<Share> {
        let mut share = self.of(client);
        share.resize(size).then_some(share)
    }
}

/// A client's share, until this is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    client: IpAddr,
    size: usize,
}

impl Share {
    /// Makes the share so large; returns `false`, and leaves it as it is, if that would be too much.
    ///
    /// A client may have as much as is left for the others: one takes half, the next half of the
    /// rest, and whoever comes after them still finds some.
    pub fn resize(&mut self, size: usize) -> bool {
        if size == self.size {
            return true;
        }
        let mut taken = self.shares.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Taken { all, clients } = &mut *taken;
        let entry = clients.entry(self.client);
        let own = if let Entry::Occupied(own) = &entry { *own.get() } else { 0 };
        let more = size.saturating_sub(self.size);
        if more > 0 && own + *all + 2 * more > self.shares.limit {
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

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
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
        let shares = Shares::new(1024);
        let take_all = |last| -> Vec<Share> { std::iter::from_fn(|| shares.take(client(last), 1)).collect() };
        let mut all: Vec<Vec<Share>> = (1..=3).map(take_all).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [512, 256, 128]);
        assert!(take_all(1).is_empty(), "it has its share");
        all.remove(0);
        assert!(take_all(4).len() >= 256, "what is given back is there for others");
        drop(all);
        let taken = shares.taken.lock().unwrap();
        assert_eq!((taken.all, taken.clients.len()), (0, 0));
    }

    #[test]
    fn a_share_grows_as_far_as_it_may_and_shrinks() {
        let shares = Shares::new(100);
        let mut share = shares.take(client(1), 40).unwrap();
        assert!(share.resize(50));
        assert!(!share.resize(51));
        assert!(shares.take(client(2), 26).is_none());
        assert!(share.resize(10));
        assert!(shares.take(client(2), 45).is_some());
    }
}
