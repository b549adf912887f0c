//! Clients that the kernel can't reach. Answers to an on-link address without a host wait for ARP or neighbor discovery
//! for seconds, and occupy the send buffer while they wait. Such an address gets only one answer per second.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::neighbors::{NeighborTable, RESOLVED};

/// How long an address is limited after the kernel has reported it as unreachable.
pub(super) const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// How long an address that the kernel is resolving is limited: after three seconds the kernel reports the result.
pub(super) const UNRESOLVED_FOR: Duration = Duration::from_secs(3);
/// The interval between two answers to a limited address.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of limited addresses: Linux's default number of neighbors (`gc_thresh3`).
const MAX_ADDRESSES: usize = 1024;
/// The interval between two removals of expired limits.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Unreachable {
    /// Whether there are any limits: a cheap check for the fast path.
    any: AtomicBool,
    limits: Mutex<AddressLimits>,
}

#[derive(Debug, Default)]
struct AddressLimits {
    addresses: HashMap<IpAddr, AddressLimit>,
    next_sweep: Option<Instant>,
    /// The time of the last reading of the neighbor table that was processed.
    last_reading: Option<Instant>,
    /// The table of known neighbors, while answers to unknown addresses fill the send buffer, and the time until which
    /// it applies.
    neighbors: Option<(Instant, Arc<NeighborTable>)>,
    /// The time of the last check of the neighbor table, and the addresses that the kernel was resolving then.
    last_check: Option<(Instant, HashSet<IpAddr>)>,
}

#[derive(Debug)]
struct AddressLimit {
    until: Instant,
    next_answer: Instant,
}

impl Unreachable {
    /// Limits an address for `duration`, unless it is limited for longer already. Has no effect while [`MAX_ADDRESSES`]
    /// other addresses are limited.
    pub(super) fn limit(&self, address: IpAddr, duration: Duration, now: Instant) {
        let mut limits = self.limits.lock();
        if limits.addresses.len() >= MAX_ADDRESSES && !limits.addresses.contains_key(&address) {
            limits.addresses.retain(|_, limit| limit.until > now);
            if limits.addresses.len() >= MAX_ADDRESSES {
                return;
            }
        }
        let first = AddressLimit { until: now, next_answer: now + ANSWER_INTERVAL };
        let limit = limits.addresses.entry(address).or_insert(first);
        limit.until = limit.until.max(now + duration);
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether a query from an address may be answered now. `has_room` returns whether the send buffer has
    /// room for an answer that may stay in it; it is called only for limited and unknown addresses. `direct_interface`
    /// returns the interface that reaches the address without a router; it is called only for unknown addresses, and
    /// only without room.
    pub(super) fn admits(
        &self,
        address: IpAddr,
        now: Instant,
        has_room: impl FnOnce() -> bool,
        direct_interface: impl FnOnce() -> Option<u32>,
    ) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return true;
        }
        let mut limits = self.limits.lock();
        if limits.next_sweep.is_none_or(|next| next <= now) {
            limits.next_sweep = Some(now + SWEEP_INTERVAL);
            limits.addresses.retain(|_, limit| limit.until > now);
            limits.neighbors.take_if(|(until, _)| *until <= now);
            let any = !limits.addresses.is_empty() || limits.neighbors.is_some();
            self.any.store(any, Ordering::Release);
        }
        let Some(limit) = limits.addresses.get_mut(&address).filter(|limit| limit.until > now) else {
            let unknown_in = |(until, table): &(Instant, Arc<NeighborTable>)| {
                (now < *until && !table.has(address, RESOLVED)).then(|| Arc::clone(table))
            };
            let table = limits.neighbors.as_ref().and_then(unknown_in);
            // Releases the lock, which all receivers take, before asking the kernel.
            drop(limits);
            let Some(table) = table else { return true };
            let is_waiting = |interface| table.waiting_interfaces.contains(&interface);
            return has_room() || !direct_interface().is_some_and(is_waiting);
        };
        let admitted = limit.next_answer <= now && has_room();
        if admitted {
            limit.next_answer = now + ANSWER_INTERVAL;
        }
        admitted
    }

    /// Returns whether this reading of the neighbor table differs from that of the last call.
    pub(super) fn is_new_reading(&self, table: &NeighborTable) -> bool {
        let mut limits = self.limits.lock();
        let is_other = limits.last_reading != table.read_at;
        limits.last_reading = table.read_at;
        is_other
    }

    /// Limits the addresses that the kernel is resolving now and was resolving at the previous check: a reachable host
    /// that is new in the neighbor table is resolved within moments.
    pub(super) fn limit_unresolved_neighbors(&self, addresses: HashSet<IpAddr>, now: Instant) {
        let last = self.limits.lock().last_check.take();
        let known =
            last.filter(|(at, _)| *at + UNRESOLVED_FOR > now).map(|(_, known)| known).unwrap_or_default();
        for address in addresses.intersection(&known) {
            self.limit(*address, UNRESOLVED_FOR, now);
        }
        self.limits.lock().last_check = Some((now, addresses));
    }

    /// Limits all addresses without a link-layer address, on the links where the kernel is resolving addresses: they
    /// get answers only while the send buffer has room for answers that may stay in it. A client on the link is a known
    /// neighbor, since it has resolved the link-layer address of this host.
    pub(super) fn limit_unknown_neighbors(&self, table: Arc<NeighborTable>, now: Instant) {
        self.limits.lock().neighbors = Some((now + UNRESOLVED_FOR, table));
        self.any.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// The interval between two checks of the neighbor table.
    const CHECK_INTERVAL: Duration = Duration::from_millis(20);

    /// Tests of limited addresses must not look up a route.
    fn known() -> Option<u32> {
        panic!("a route is looked up though the address is limited or known")
    }

    /// Returns how many of ten queries per second are answered in each second.
    fn answered(unreachable: &Unreachable, address: IpAddr, from: Instant, seconds: u64) -> Vec<usize> {
        let second = |second| {
            let at = |tenth: u64| from + Duration::from_secs(second) + Duration::from_millis(100 * tenth);
            (0..10).filter(|tenth| unreachable.admits(address, at(*tenth), || true, known)).count()
        };
        (0..seconds).map(second).collect()
    }

    #[test]
    fn limited_address_gets_one_answer_a_second_until_it_expires() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        assert_eq!(answered(&unreachable, DEAD, now, 1), [10]);
        unreachable.limit(DEAD, UNREACHABLE_FOR, now);
        // The address already had its answer of the first second.
        assert_eq!(answered(&unreachable, DEAD, now, 12), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10]);
        assert!(!unreachable.any.load(Ordering::Acquire), "expired limits are removed");
    }

    #[test]
    fn full_send_buffer_stops_only_answers_to_limited_addresses() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        unreachable.limit(DEAD, UNREACHABLE_FOR, now);
        assert_eq!(answered(&unreachable, "192.0.2.2".parse().unwrap(), now, 1), [10]);
        let later = now + 2 * ANSWER_INTERVAL;
        assert!(!unreachable.admits(DEAD, later, || false, known));
        assert!(unreachable.admits(DEAD, later, || true, known), "the answer that had no room isn't counted");
    }

    #[test]
    fn limited_addresses_are_bounded_and_expired_ones_make_room() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        for number in 0..5000 {
            unreachable.limit(address(number), UNRESOLVED_FOR, now);
        }
        assert_eq!(unreachable.limits.lock().addresses.len(), MAX_ADDRESSES);
        unreachable.limit(address(6000), UNREACHABLE_FOR, now + UNRESOLVED_FOR);
        assert_eq!(unreachable.limits.lock().addresses.len(), 1);
    }

    #[test]
    fn address_is_limited_after_two_checks_in_a_row() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let other = IpAddr::from([192, 0, 2, 2]);
        let is_limited = |address, at| !unreachable.admits(address, at, || true, known);
        unreachable.limit_unresolved_neighbors(HashSet::from([DEAD, other]), now);
        assert!(!is_limited(DEAD, now) && !is_limited(other, now), "one check limits no address");
        let next = now + CHECK_INTERVAL;
        unreachable.limit_unresolved_neighbors(HashSet::from([DEAD]), next);
        assert!(is_limited(DEAD, next) && !is_limited(other, next));
        unreachable.limit_unresolved_neighbors(HashSet::from([other]), next + CHECK_INTERVAL);
        let later = next + 2 * UNRESOLVED_FOR;
        unreachable.limit_unresolved_neighbors(HashSet::from([other]), later);
        assert!(!is_limited(other, later), "the previous check was too long ago");
    }

    #[test]
    fn answer_to_unknown_neighbor_needs_room_in_the_send_buffer() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let client = IpAddr::from([192, 0, 2, 2]);
        let table = |resolved| {
            let states = HashMap::from([(resolved, RESOLVED)]);
            Arc::new(NeighborTable {
                states,
                waiting_interfaces: HashSet::from([3]),
                ..NeighborTable::default()
            })
        };
        let admits =
            |address, has_room, interface, at| unreachable.admits(address, at, || has_room, || interface);
        unreachable.limit_unknown_neighbors(table(client), now);
        for has_room in [false, true] {
            assert_eq!(admits(DEAD, has_room, Some(3), now), has_room);
            assert!(admits(client, has_room, Some(3), now));
            // The address is behind a router, or on a link where the kernel isn't resolving an address.
            assert!(admits(DEAD, has_room, None, now) && admits(DEAD, has_room, Some(4), now));
        }
        // The address is resolved, or the send buffer has been empty for a while.
        unreachable.limit_unknown_neighbors(table(DEAD), now);
        assert!(admits(DEAD, false, Some(3), now) && !admits(client, false, Some(3), now));
        assert!(admits(client, false, Some(3), now + UNRESOLVED_FOR));
        assert!(!unreachable.any.load(Ordering::Acquire), "expired limits are removed");
    }

    #[test]
    fn each_reading_of_the_neighbor_table_is_taken_once() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let reading = |at| NeighborTable { read_at: Some(at), ..NeighborTable::default() };
        let (first, second) = (reading(now), reading(now + CHECK_INTERVAL));
        let taken = [&first, &first, &second, &second].map(|table| unreachable.is_new_reading(table));
        assert_eq!(taken, [true, false, true, false]);
    }

    #[test]
    fn shorter_limit_does_not_replace_a_longer_one() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        unreachable.limit(DEAD, UNREACHABLE_FOR, now);
        unreachable.limit(DEAD, UNRESOLVED_FOR, now);
        assert_eq!(answered(&unreachable, DEAD, now + 2 * UNRESOLVED_FOR, 2), [1, 1]);
    }
}
