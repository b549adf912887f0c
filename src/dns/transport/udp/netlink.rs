//! Requests to the kernel by rtnetlink(7), which need no privileges.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const NLM_F_REQUEST: u16 = 0x1;
/// The sizes of `struct nlmsghdr` and `struct rtattr`, in bytes.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// The maximum number of bytes per read.
const BUFFER: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let protocol = Some(SockProtocol::NetlinkRoute);
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?))
    }

    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let kernel = NetlinkAddr::new(0, 0);
        Ok(sendto(self.0.as_raw_fd(), message, &kernel, MsgFlags::empty()).map(|_| ())?)
    }

    /// Returns the next part of the answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub(super) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; BUFFER];
        // The kernel writes the answer during the send or the read, so there is nothing to wait for.
        let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Returns a message: `struct nlmsghdr` (length, type, flags, sequence number, sender) and its content.
pub(super) fn message(kind: u16, flags: u16, content: &[u8]) -> Vec<u8> {
    let length = (HEADER + content.len()) as u32;
    let kind = [kind, NLM_F_REQUEST | flags].map(u16::to_ne_bytes).concat();
    [&length.to_ne_bytes()[..], &kind, &[0; 8], content].concat()
}

/// Returns an attribute. The length of the value must be a multiple of four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE + value.len()) as u16;
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
}

/// Returns the types and contents of the complete messages in a part of an answer.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (u32_at(bytes, 0)? as usize, u16_at(bytes, 4)?);
        let content = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

/// Iterates over the types and values of the complete attributes.
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, kind) = (usize::from(u16_at(self.0, 0)?), u16_at(self.0, 2)?);
        let value = self.0.get(ATTRIBUTE..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    ipv4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
