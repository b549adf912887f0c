//! Clients that the kernel can't reach. Answers to an on-link address without a host wait for ARP or neighbor discovery
//! for seconds, and hold the send buffer while they wait. Such an address gets one answer a second.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long an address is limited after the kernel has reported it unreachable.
pub(super) const REPORTED: Duration = Duration::from_secs(10);
/// How long an address is limited that the kernel is looking for: after three seconds it reports what came of it.
pub(super) const UNRESOLVED: Duration = Duration::from_secs(3);
/// Between two answers to a limited address.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// Limited addresses at most: as many neighbors as Linux has by default (`gc_thresh3`).
const MAX_ADDRESSES: usize = 1024;
/// Between two removals of what has expired, and between two looks at the neighbor table.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The unreachable addresses of a listener.
#[derive(Debug, Default)]
pub(super) struct Unreachable {
    /// Whether there are any, for the query path.
    any: AtomicBool,
    limits: Mutex<Limits>,
}

#[derive(Debug, Default)]
struct Limits {
    addresses: HashMap<IpAddr, Limit>,
    next_sweep: Option<Instant>,
    next_look: Option<Instant>,
    /// Which addresses have hosts, while answers to addresses without one fill the send buffer.
    neighbors: Option<Neighbors>,
    /// When the neighbor table was last read, and which addresses the kernel was looking for.
    last_look: Option<(Instant, HashSet<IpAddr>)>,
}

/// The hosts on the links.
#[derive(Debug)]
struct Neighbors {
    until: Instant,
    /// The addresses that the kernel has link-layer addresses for.
    resolved: HashSet<IpAddr>,
    /// The networks of the links, and when they were read.
    nets: Vec<IpNet>,
    nets_read: Instant,
}

#[derive(Debug)]
struct Limit {
    until: Instant,
    next_answer: Instant,
}

impl Unreachable {
    /// Limits an address for that long, or for longer if it is limited already. Has no effect while there are
    /// [`MAX_ADDRESSES`] others.
    pub(super) fn limit(&self, address: IpAddr, duration: Duration, now: Instant) {
        let mut limits = self.limits();
        if limits.addresses.len() >= MAX_ADDRESSES && !limits.addresses.contains_key(&address) {
            limits.addresses.retain(|_, limit| limit.until > now);
            if limits.addresses.len() >= MAX_ADDRESSES {
                return;
            }
        }
        let first = Limit { until: now, next_answer: now + ANSWER_INTERVAL };
        let limit = limits.addresses.entry(address).or_insert(first);
        limit.until = limit.until.max(now + duration);
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether a question from that address may be answered now. `has_room` tells whether the send buffer has
    /// room for an answer that may stay there; it is asked for limited and for unknown addresses only.
    pub(super) fn admits(&self, address: IpAddr, now: Instant, has_room: impl FnOnce() -> bool) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return true;
        }
        let mut limits = self.limits();
        if limits.next_sweep.is_none_or(|next| next <= now) {
            limits.next_sweep = Some(now + SWEEP_INTERVAL);
            limits.addresses.retain(|_, limit| limit.until > now);
            limits.neighbors.take_if(|neighbors| neighbors.until <= now);
            let any = !limits.addresses.is_empty() || limits.neighbors.is_some();
            self.any.store(any, Ordering::Release);
        }
        let is_unknown = limits.neighbors.as_ref().is_some_and(|neighbors| neighbors.lack(address, now));
        let Some(limit) = limits.addresses.get_mut(&address).filter(|limit| limit.until > now) else {
            return !is_unknown || has_room();
        };
        let admitted = limit.next_answer <= now && has_room();
        if admitted {
            limit.next_answer = now + ANSWER_INTERVAL;
        }
        admitted
    }

    /// Returns whether the neighbor table may be read now: it may be long.
    pub(super) fn takes_look(&self, now: Instant) -> bool {
        let mut limits = self.limits();
        let due = limits.next_look.is_none_or(|next| next <= now);
        if due {
            limits.next_look = Some(now + LOOK_INTERVAL);
        }
        due
    }

    /// Limits the addresses that the kernel is looking for now, and was at the look before: a living host that is new
    /// in the neighbor table is found within moments.
    pub(super) fn limit_unresolved(&self, addresses: HashSet<IpAddr>, now: Instant) {
        let last = self.limits().last_look.take();
        let known = last.filter(|(at, _)| *at + UNRESOLVED > now).map(|(_, known)| known).unwrap_or_default();
        for address in addresses.intersection(&known) {
            self.limit(*address, UNRESOLVED, now);
        }
        self.limits().last_look = Some((now, addresses));
    }

    /// Limits all addresses on the links that the kernel has no link-layer address for: each has an answer only while the
    /// send buffer has room for one that may stay there. A client on the link is known, since it has asked for the
    /// link-layer address of this host. `nets` returns the networks of the links.
    pub(super) fn limit_unknown(
        &self,
        resolved: HashSet<IpAddr>,
        nets: impl FnOnce() -> Vec<IpNet>,
        now: Instant,
    ) {
        let last = self.limits().neighbors.take().filter(|last| last.nets_read + SWEEP_INTERVAL > now);
        // The kernel may take its time to tell the networks: without the lock, which all receivers take.
        let (nets, nets_read) = last.map_or_else(|| (nets(), now), |last| (last.nets, last.nets_read));
        self.limits().neighbors = Some(Neighbors { until: now + UNRESOLVED, resolved, nets, nets_read });
        self.any.store(true, Ordering::Release);
    }

    /// A panic leaves nothing half done in it.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock()
    }
}

impl Neighbors {
    /// Returns whether an address is on a link, and no host is known there.
    fn lack(&self, address: IpAddr, now: Instant) -> bool {
        now < self.until
            && !self.resolved.contains(&address)
            && self.nets.iter().any(|net| net.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// Returns how many of ten questions a second are answered in each second.
    fn answered(unreachable: &Unreachable, address: IpAddr, from: Instant, seconds: u64) -> Vec<usize> {
        let second = |second| {
            let at = |tenth: u64| from + Duration::from_secs(second) + Duration::from_millis(100 * tenth);
            (0..10).filter(|tenth| unreachable.admits(address, at(*tenth), || true)).count()
        };
        (0..seconds).map(second).collect()
    }

    #[test]
    fn a_limited_address_gets_one_answer_a_second_for_its_time() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        assert_eq!(answered(&unreachable, DEAD, now, 1), [10]);
        unreachable.limit(DEAD, REPORTED, now);
        // It had its answer of the first second.
        assert_eq!(answered(&unreachable, DEAD, now, 12), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10]);
        assert!(!unreachable.any.load(Ordering::Acquire), "what has expired is gone");
    }

    #[test]
    fn full_send_buffer_stops_answers_to_limited_addresses_alone() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        unreachable.limit(DEAD, REPORTED, now);
        assert_eq!(answered(&unreachable, "192.0.2.2".parse().unwrap(), now, 1), [10]);
        let later = now + 2 * ANSWER_INTERVAL;
        assert!(!unreachable.admits(DEAD, later, || false));
        assert!(unreachable.admits(DEAD, later, || true), "the answer that had no room isn't counted");
    }

    #[test]
    fn limited_addresses_are_bounded_and_expired_ones_make_room() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        for number in 0..5000 {
            unreachable.limit(address(number), UNRESOLVED, now);
        }
        assert_eq!(unreachable.limits().addresses.len(), MAX_ADDRESSES);
        unreachable.limit(address(6000), REPORTED, now + UNRESOLVED);
        assert_eq!(unreachable.limits().addresses.len(), 1);
    }

    #[test]
    fn address_is_limited_when_two_looks_in_a_row_find_it() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let other = IpAddr::from([192, 0, 2, 2]);
        let is_limited = |address, at| !unreachable.admits(address, at, || true);
        unreachable.limit_unresolved(HashSet::from([DEAD, other]), now);
        assert!(!is_limited(DEAD, now) && !is_limited(other, now), "it may be about to be found");
        let next = now + LOOK_INTERVAL;
        unreachable.limit_unresolved(HashSet::from([DEAD]), next);
        assert!(is_limited(DEAD, next) && !is_limited(other, next));
        unreachable.limit_unresolved(HashSet::from([other]), next + LOOK_INTERVAL);
        let later = next + 2 * UNRESOLVED;
        unreachable.limit_unresolved(HashSet::from([other]), later);
        assert!(!is_limited(other, later), "the look before was too long ago");
    }

    #[test]
    fn unknown_address_on_the_link_needs_room_in_the_send_buffer() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        let known = IpAddr::from([192, 0, 2, 2]);
        let behind_a_router = IpAddr::from([198, 51, 100, 1]);
        let admits = |address, has_room, at| unreachable.admits(address, at, || has_room);
        let nets = || vec!["192.0.2.0/24".parse().unwrap()];
        unreachable.limit_unknown(HashSet::from([known]), nets, now);
        for has_room in [false, true] {
            assert_eq!(admits(DEAD, has_room, now), has_room);
            assert!(admits(known, has_room, now) && admits(behind_a_router, has_room, now));
        }
        // It is found to have a host, or the send buffer has been empty for a while.
        unreachable.limit_unknown(HashSet::from([DEAD]), || panic!("they were read just now"), now);
        assert!(admits(DEAD, false, now) && !admits(known, false, now));
        assert!(admits(known, false, now + UNRESOLVED));
        assert!(!unreachable.any.load(Ordering::Acquire), "what has expired is gone");
    }

    #[test]
    fn a_shorter_limit_leaves_a_longer_one() {
        let (unreachable, now) = (Unreachable::default(), Instant::now());
        unreachable.limit(DEAD, REPORTED, now);
        unreachable.limit(DEAD, UNRESOLVED, now);
        assert_eq!(answered(&unreachable, DEAD, now + 2 * UNRESOLVED, 2), [1, 1]);
    }
}
