//! The kernel's neighbor table (ARP, RFC 826, and neighbor discovery, RFC 4861).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::netlink::{Attributes, Netlink, ip, message, u16_at, u32_at};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_DUMP: u16 = 0x300;
const NDA_DST: u16 = 1;
/// The state of an entry while its link-layer address is being resolved.
pub(super) const INCOMPLETE: u16 = 0x1;
/// The state of an entry after its link-layer address couldn't be resolved.
pub(super) const FAILED: u16 = 0x20;
/// The states of an entry with a link-layer address.
pub(super) const RESOLVED: u16 = 0xde;
/// The size of `struct ndmsg`, in bytes.
const ENTRY: usize = 12;
/// The maximum size of the kernel's answer that is read, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The minimum pause between two readings. The kernel resolves an address for seconds before it reports an error.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// The pause after a reading, as a multiple of its CPU time: forged packets can cause readings.
const CPU_FACTOR: u32 = 50;
/// The pause after a reading, as a multiple of its duration. Up to Linux 6.14 a reading waits for the kernel's lock on
/// all network configuration, and the UDP thread waits with it.
const WAIT_FACTOR: u32 = 2;

/// The neighbor table of this process's network namespace, shared by all sockets.
pub(super) static NEIGHBORS: SharedTable = SharedTable::new();

/// The last reading of the neighbor table, and the time of the next one.
#[derive(Debug)]
pub(super) struct SharedTable {
    last: Mutex<Option<Arc<NeighborTable>>>,
    next_reading: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
pub(super) struct NeighborTable {
    /// The state of each address with an entry. Packets to an address in the state [`INCOMPLETE`] wait in the kernel.
    pub(super) states: HashMap<IpAddr, u16>,
    /// The indices of the interfaces with an address in the state [`INCOMPLETE`].
    pub(super) waiting_interfaces: HashSet<u32>,
    /// Whether the table is complete: a table larger than [`MAX_BYTES`] is truncated.
    pub(super) is_complete: bool,
    pub(super) read_at: Option<Instant>,
}

impl NeighborTable {
    pub(super) fn has(&self, address: IpAddr, states: u16) -> bool {
        self.states.get(&address).is_some_and(|state| state & states != 0)
    }

    pub(super) fn unresolved(&self) -> HashSet<IpAddr> {
        self.states
            .iter()
            .filter(|(_, state)| **state & INCOMPLETE != 0)
            .map(|(address, _)| *address)
            .collect()
    }
}

impl SharedTable {
    const fn new() -> Self {
        Self { last: Mutex::new(None), next_reading: Mutex::new(None) }
    }

    /// Returns the last reading, after a new one if the pause is over.
    pub(super) fn latest(&self) -> Option<Arc<NeighborTable>> {
        self.latest_of(read, || (Instant::now(), cpu_time()))
    }

    fn latest_of(
        &self,
        read: impl FnOnce() -> io::Result<NeighborTable>,
        clocks: impl Fn() -> (Instant, Duration),
    ) -> Option<Arc<NeighborTable>> {
        // While another thread reads the table, the last reading is used.
        if let Some(mut next) = self.next_reading.try_lock() {
            let (begun, cpu) = clocks();
            if next.is_none_or(|next| next <= begun) {
                let table = read().unwrap_or_else(|error| {
                    warn_unreadable(&error);
                    NeighborTable::default()
                });
                *self.last.lock() = Some(Arc::new(NeighborTable { read_at: Some(begun), ..table }));
                let (end, cpu_end) = clocks();
                let pause = (CPU_FACTOR * cpu_end.saturating_sub(cpu)).max(WAIT_FACTOR * (end - begun));
                *next = Some(end + pause.max(MIN_PAUSE));
            }
        }
        self.last.lock().clone()
    }
}

fn warn_unreadable(error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        warn!(
            "the neighbor table can't be read; unreachable clients are found only when the kernel reports them: \
             {error}"
        );
    });
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

fn read() -> io::Result<NeighborTable> {
    let kernel = Netlink::open()?;
    kernel.send(&message(RTM_GETNEIGH, NLM_F_DUMP, &[0; ENTRY]))?;
    let (mut table, mut total) = (NeighborTable::default(), 0);
    while total < MAX_BYTES {
        let part = kernel.receive()?;
        if !table.add(&part) {
            table.is_complete = true;
            break;
        }
        total += part.len();
    }
    Ok(table)
}

impl NeighborTable {
    /// Adds a part of the kernel's answer. Returns whether more follows.
    fn add(&mut self, part: &[u8]) -> bool {
        for (kind, message) in super::netlink::messages(part) {
            if kind != RTM_NEWNEIGH {
                // NLMSG_DONE, or an error.
                return false;
            }
            let Some((interface, address, state)) = entry(message) else { continue };
            // The same address may have entries on two interfaces.
            *self.states.entry(address).or_default() |= state;
            if state & INCOMPLETE != 0 {
                self.waiting_interfaces.insert(interface);
            }
        }
        !part.is_empty()
    }
}

/// Parses a `struct ndmsg` and its attributes.
fn entry(message: &[u8]) -> Option<(u32, IpAddr, u16)> {
    let (interface, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
    let (_, address) = Attributes(message.get(ENTRY..)?).find(|(kind, _)| *kind == NDA_DST)?;
    Some((interface, ip(address)?, state))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_neighbor_table_of_this_machine_is_read() {
        assert!(read().unwrap().is_complete);
    }

    #[test]
    fn readings_take_at_most_2_percent_of_cpu_and_a_third_of_time() {
        let start = Instant::now();
        let millis = Duration::from_millis;
        // The duration and the CPU time of a reading, and the maximum percentage of time that all readings take.
        for (took, cpu_of_one, percent) in [
            (Duration::from_micros(10), Duration::from_micros(10), 2),
            (millis(1), millis(1), 2),
            (millis(30), millis(30), 2),
            (millis(500), millis(1), 34),
        ] {
            let (table, clock, readings) = (SharedTable::new(), Cell::new(start), Cell::new(0));
            let cpu = Cell::new(Duration::ZERO);
            let read = || {
                readings.set(readings.get() + 1);
                clock.set(clock.get() + took);
                cpu.set(cpu.get() + cpu_of_one);
                Ok(NeighborTable::default())
            };
            // 8 sockets, each with 1,000 forged errors per second.
            while clock.get() < start + Duration::from_secs(10) {
                for _ in 0..8 {
                    assert!(table.latest_of(read, || (clock.get(), cpu.get())).is_some());
                }
                clock.set(clock.get() + Duration::from_millis(1));
            }
            let readings = readings.get();
            assert!((2..=500).contains(&readings), "{readings} of {took:?}");
            assert!(readings * took <= millis(100) * percent + took, "{readings} of {took:?}");
        }
    }

    #[test]
    fn each_entry_has_its_address_and_state() {
        let entry = |interface: u32, state: u16, address: &[u8]| {
            let other = super::super::netlink::attribute(7, &[0; 4]);
            let address = super::super::netlink::attribute(NDA_DST, address);
            let fixed = [&[0; 4][..], &interface.to_ne_bytes(), &state.to_ne_bytes(), &[0; 2]].concat();
            message(RTM_NEWNEIGH, 0, &[fixed, other, address].concat())
        };
        let ipv6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap();
        let [incomplete, reachable] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let bytes =
            [entry(3, 1, &[192, 0, 2, 1]), entry(4, 2, &[192, 0, 2, 2]), entry(5, 0x20, &ipv6.octets())]
                .concat();
        let read = |bytes| {
            let mut table = NeighborTable::default();
            table.add(bytes).then_some(table)
        };
        let all = HashMap::from([(incomplete, INCOMPLETE), (reachable, 2), (ipv6.into(), FAILED)]);
        let table = read(&bytes).unwrap();
        assert_eq!((&table.states, &table.waiting_interfaces), (&all, &HashSet::from([3])));
        assert_eq!(table.unresolved(), HashSet::from([incomplete]));
        assert!(table.has(reachable, RESOLVED) && !table.has(incomplete, RESOLVED | FAILED));
        assert!(!table.has(ipv6.into(), RESOLVED | INCOMPLETE));
        for cut in 0..bytes.len() {
            read(&bytes[..cut]);
        }
    }
}
