//! The kernel's neighbor table (ARP, RFC 826, and neighbor discovery, RFC 4861), read by rtnetlink(7). No right is
//! needed for it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// NLM_F_REQUEST | NLM_F_DUMP
const FLAGS: u16 = 0x1 | 0x300;
const NDA_DST: u16 = 1;
/// An entry whose link-layer address is being looked for, for the first time or again.
pub(super) const INCOMPLETE: u16 = 0x1;
/// An entry whose link-layer address wasn't found.
pub(super) const FAILED: u16 = 0x20;
/// The states of an entry with a link-layer address: all but these two, and none.
pub(super) const RESOLVED: u16 = 0xde;
/// Bytes of `struct nlmsghdr`, `struct ndmsg` and `struct rtattr`.
const HEADER: usize = 16;
const ENTRY: usize = 12;
const ATTRIBUTE: usize = 4;
/// Bytes of the kernel's answer that are read at once, and in all.
const BUFFER: usize = 32 << 10;
const MAX_BYTES: usize = 1 << 20;

/// What was read of the neighbor table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The addresses with an entry, and its state. Packets to an address in [`INCOMPLETE`] wait in the kernel.
    pub(super) states: HashMap<IpAddr, u16>,
    /// Whether that is all: a table above [`MAX_BYTES`] is cut.
    pub(super) is_whole: bool,
}

/// Reads the neighbor table.
///
/// # Errors
/// If the kernel doesn't tell.
pub(super) fn table() -> io::Result<Table> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let kernel = socket(AddressFamily::Netlink, SockType::Raw, flags, Some(SockProtocol::NetlinkRoute))?;
    let mut request = Vec::with_capacity(HEADER + ENTRY);
    // struct nlmsghdr: length, type, flags, number, sender. Then an empty struct ndmsg.
    request.extend((HEADER as u32 + ENTRY as u32).to_ne_bytes());
    request.extend([RTM_GETNEIGH.to_ne_bytes(), FLAGS.to_ne_bytes()].concat());
    request.resize(HEADER + ENTRY, 0);
    sendto(kernel.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let (mut states, mut buffer, mut total) = (HashMap::new(), vec![0; BUFFER], 0);
    while total < MAX_BYTES {
        // The kernel writes the answer while it is read: there is nothing to wait for.
        let length = recv(kernel.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
        if !read_messages(&buffer[..length.min(BUFFER)], &mut states) {
            return Ok(Table { states, is_whole: true });
        }
        total += length;
    }
    Ok(Table { states, is_whole: false })
}

/// Collects the addresses and their states from a part of the answer. Returns whether more follows.
fn read_messages(mut bytes: &[u8], found: &mut HashMap<IpAddr, u16>) -> bool {
    loop {
        let Some((length, kind)) = u32_at(bytes, 0).zip(u16_at(bytes, 4)) else { return !bytes.is_empty() };
        let Some(message) = bytes.get(HEADER..length as usize) else { return false };
        if kind != RTM_NEWNEIGH {
            // NLMSG_DONE or an error.
            return false;
        }
        if let Some((address, state)) = entry(message) {
            // The same address may be looked for on two links.
            *found.entry(address).or_default() |= state;
        }
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
        if bytes.is_empty() {
            return true;
        }
    }
}

/// Reads a `struct ndmsg` and its attributes.
fn entry(message: &[u8]) -> Option<(IpAddr, u16)> {
    let state = u16_at(message, 8)?;
    let mut attributes = message.get(ENTRY..)?;
    loop {
        let (length, kind) = (usize::from(u16_at(attributes, 0)?), u16_at(attributes, 2)?);
        let value = attributes.get(ATTRIBUTE..length)?;
        if kind == NDA_DST {
            let ipv4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            let address = ipv4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()?;
            return Some((address, state));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbor_table_of_this_machine_is_read() {
        table().unwrap();
    }

    #[test]
    fn each_entry_has_its_address_and_state() {
        let entry = |state: u16, address: &[u8]| {
            let attribute = [&8_u16.to_ne_bytes()[..], &7_u16.to_ne_bytes(), &[0; 4]].concat();
            let length = u16::try_from(ATTRIBUTE + address.len()).unwrap();
            let attribute = [&attribute, &length.to_ne_bytes()[..], &NDA_DST.to_ne_bytes(), address].concat();
            let message = [&[0; 8][..], &state.to_ne_bytes(), &[0; 2], &attribute].concat();
            let length = u32::try_from(HEADER + message.len()).unwrap();
            [&length.to_ne_bytes()[..], &RTM_NEWNEIGH.to_ne_bytes(), &[0; 10], &message].concat()
        };
        let ipv6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap();
        let [incomplete, reachable] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let bytes =
            [entry(1, &[192, 0, 2, 1]), entry(2, &[192, 0, 2, 2]), entry(0x20, &ipv6.octets())].concat();
        let read = |bytes| {
            let mut found = HashMap::new();
            read_messages(bytes, &mut found).then_some(found)
        };
        let all = HashMap::from([(incomplete, INCOMPLETE), (reachable, 2), (ipv6.into(), FAILED)]);
        assert_eq!(read(&bytes), Some(all));
        assert_eq!([INCOMPLETE, 2, FAILED].map(|state| state & RESOLVED != 0), [false, true, false]);
        for cut in 0..bytes.len() {
            read(&bytes[..cut]);
        }
    }
}
