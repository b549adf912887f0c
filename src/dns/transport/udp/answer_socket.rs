//! A socket that answers are sent from: its options, the kernel's errors about answers, and the level of its send
//! buffer.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::libc::{self, c_int as Int};
use nix::sys::socket::sockopt::{self, SetStruct};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, getsockopt, recvmsg, setsockopt};
use nix::{setsockopt_impl, sockopt_impl};
use parking_lot::Mutex;
use socket2::Socket;
use tokio::time::Instant;

use super::batch::queued_bytes;
use super::neighbors::{FAILED, INCOMPLETE, NEIGHBORS};
use super::netlink::Netlink;
use super::routes::direct_interface;
use super::unreachable::{UNREACHABLE_FOR, Unreachable};
use crate::dns::net::unmapped;
use crate::dns::transport::metrics::{DropReason, TransportMetrics};

/// The size of the send buffer in bytes. It holds the answers to unreachable addresses, which wait in the kernel for
/// seconds.
const SEND_BUFFER: usize = 4 << 20;
/// The minimum MTU of IPv6 in bytes (RFC 8200 section 5).
const IPV6_MIN_MTU: Int = 1280;
/// The maximum number of entries of the error queue that one call reads. The kernel reports the remaining ones again.
const MAX_ERRORS: usize = 256;
/// The maximum number of senders of ICMP errors that are checked within [`SENDERS_KEPT`].
const MAX_SENDERS: usize = 64;
const SENDERS_KEPT: Duration = Duration::from_secs(1);

sockopt_impl!(MtuDiscover, SetOnly, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, Int, SetStruct<Int>);
sockopt_impl!(Ipv6MtuDiscover, SetOnly, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, Int, SetStruct<Int>);
sockopt_impl!(Ipv6Mtu, SetOnly, libc::IPPROTO_IPV6, libc::IPV6_MTU, Int, SetStruct<Int>);

/// Sets the options for answers. An old kernel that lacks an option must not prevent the start.
pub(super) fn set_options(socket: &Socket, is_ipv6: bool) {
    // With CAP_NET_ADMIN the limit net.core.wmem_max doesn't apply.
    if setsockopt(socket, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
        let _ = setsockopt(socket, sockopt::SndBuf, &SEND_BUFFER);
    }
    // ICMP "fragmentation needed" can be forged, and would make answers fragment for ten minutes (RFC 9715 section
    // 3.1). An IPv6 socket needs the IPv4 options for its IPv4 clients.
    let _ = setsockopt(socket, MtuDiscover, &libc::IP_PMTUDISC_OMIT);
    let _ = setsockopt(socket, sockopt::Ipv4RecvErr, &true);
    if is_ipv6 {
        let _ = setsockopt(socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_OMIT);
        // Routers don't fragment IPv6, so longer packets have to leave in fragments that pass every link.
        let _ = setsockopt(socket, Ipv6Mtu, &IPV6_MIN_MTU);
        let _ = setsockopt(socket, sockopt::Ipv6RecvErr, &true);
    }
}

/// A socket with the state of its clients' reachability.
pub(super) struct AnswerSocket {
    socket: Arc<UdpSocket>,
    unreachable: Arc<Unreachable>,
    metrics: Arc<TransportMetrics>,
    /// The size of the send buffer, in bytes as the kernel counts them.
    send_buffer: usize,
    /// The number of datagrams that the kernel had dropped when it was last counted.
    queue_drops: AtomicU32,
    icmp_senders: Mutex<IcmpSenders>,
    /// The socket for route look-ups, opened at the first one.
    routes: Mutex<Option<Netlink>>,
}

/// Whether each sender of ICMP errors is this host itself, as found within the last second.
#[derive(Default)]
struct IcmpSenders {
    since: Option<Instant>,
    own: HashMap<IpAddr, bool>,
}

impl AnswerSocket {
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        unreachable: Arc<Unreachable>,
        metrics: Arc<TransportMetrics>,
    ) -> Self {
        let send_buffer = getsockopt(&socket, sockopt::SndBuf).unwrap_or(SEND_BUFFER);
        let (icmp_senders, routes) = (Mutex::default(), Mutex::default());
        let queue_drops = AtomicU32::default();
        Self { socket, unreachable, metrics, send_buffer, queue_drops, icmp_senders, routes }
    }

    pub(super) fn udp(&self) -> Arc<UdpSocket> {
        Arc::clone(&self.socket)
    }

    /// Counts queries for which no kept answer was current.
    pub(super) fn count_computed(&self, number: u64) {
        self.metrics.udp_computed.inc_by(number);
    }

    pub(super) fn count_refused_header(&self, sender: SocketAddr, why: &str) {
        self.metrics.refused_header(sender, why);
    }

    pub(super) fn count_dropped(&self, reason: DropReason, number: u32) {
        self.metrics.dropped(reason, number);
    }

    /// Counts the datagrams that the kernel has dropped since the last call.
    ///
    /// `total` is the number since the socket was opened, modulo 2³² (`SO_RXQ_OVFL` in socket(7)); 0 where the kernel
    /// doesn't tell it.
    pub(super) fn count_queue_drops(&self, total: u32) {
        if total == 0 {
            return;
        }
        let before = self.queue_drops.swap(total, Ordering::Relaxed);
        if total != before {
            self.metrics.dropped(DropReason::Queue, total.wrapping_sub(before));
        }
    }

    pub(super) fn count_refused(&self, number: u32) {
        if number > 0 {
            self.metrics.dropped(DropReason::Send, number);
        }
    }

    /// Returns whether a query from this address may be answered now, and counts it as dropped if not.
    pub(super) fn admits(&self, address: IpAddr, now: Instant) -> bool {
        let has_room = || self.queued() < self.send_buffer / 4;
        let admitted = self.unreachable.admits(address, now, has_room, || self.direct_interface(address));
        if !admitted {
            self.metrics.dropped(DropReason::Unreachable, 1);
        }
        admitted
    }

    /// Checks the level of the send buffer. If at least one eighth is in use, limits the addresses that the kernel is
    /// resolving by ARP or NDP, because answers to these addresses fill the buffer. All unknown addresses of the same
    /// network interfaces are limited, too. Returns whether the next check should be soon.
    pub(super) fn check_send_buffer(&self, now: Instant) -> bool {
        let queued = self.queued();
        if queued >= self.send_buffer / 8
            && let Some(table) = NEIGHBORS.latest()
            && self.unreachable.is_new_reading(&table)
        {
            let unresolved = table.unresolved();
            // If no address is unresolved, the answers wait for the network. An incomplete table lacks some reachable
            // clients.
            if !unresolved.is_empty() && table.is_complete {
                self.unreachable.limit_unknown_neighbors(table, now);
            }
            self.unreachable.limit_unresolved_neighbors(unresolved, now);
        }
        queued >= self.send_buffer / 32
    }

    /// Reads the socket's error queue (ip(7), IP_RECVERR). Called after the kernel reported an error: unread errors
    /// take room in the receive buffer.
    pub(super) fn read_errors(&self) {
        let now = Instant::now();
        let mut control = nix::cmsg_space!([u8; 256]);
        for _ in 0..MAX_ERRORS {
            let mut data = [0; 1];
            let mut data = [IoSliceMut::new(&mut data)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let message =
                recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut data, Some(&mut control), flags);
            let Ok(message) = message else { return };
            let client = message.address.as_ref().and_then(ip);
            let sender = message.cmsgs().ok().and_then(|mut all| all.find_map(icmp_unreachable_source));
            if let Some((client, sender)) = client.zip(sender)
                && self.is_own(sender, now)
                && (client.is_ipv4() || is_dead(client))
            {
                self.unreachable.limit(client, UNREACHABLE_FOR, now);
            }
        }
    }

    /// Returns whether an ICMP error is from this host itself. Errors from other hosts limit no client: they may be
    /// forged, and an answer to a client behind a router doesn't wait for ARP in this host.
    fn is_own(&self, sender: SocketAddr, now: Instant) -> bool {
        let mut senders = self.icmp_senders.lock();
        if senders.since.is_none_or(|since| since + SENDERS_KEPT <= now) {
            *senders = IcmpSenders { since: Some(now), own: HashMap::new() };
        }
        if let Some(own) = senders.own.get(&sender.ip()) {
            return *own;
        }
        if senders.own.len() >= MAX_SENDERS {
            return false;
        }
        let own = is_local(sender).unwrap_or(false);
        senders.own.insert(sender.ip(), own);
        own
    }

    /// Returns the interface by which the kernel reaches an address without a router.
    fn direct_interface(&self, address: IpAddr) -> Option<u32> {
        let mut routes = self.routes.lock();
        let kernel = routes.take().or_else(|| Netlink::open().ok())?;
        let interface = direct_interface(&kernel, address).ok()?;
        // Keeps the socket only after success: after an error its next answer could belong to an earlier request.
        *routes = Some(kernel);
        interface
    }

    /// Returns the number of bytes in the send buffer.
    fn queued(&self) -> usize {
        queued_bytes(self.socket.as_fd())
    }
}

impl AsFd for AnswerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns whether the neighbor table says that a client is unreachable. An ICMP error for an IPv6 client counts only
/// then: unlike with IPv4, the kernel accepts an error from another host even if its source is an address of this host.
fn is_dead(client: IpAddr) -> bool {
    NEIGHBORS.latest().is_some_and(|table| table.has(client, INCOMPLETE | FAILED))
}

/// Returns the sender of an ICMP error, if the error is that a host is unreachable.
fn icmp_unreachable_source(control: ControlMessageOwned) -> Option<SocketAddr> {
    let (error, sender) = match control {
        ControlMessageOwned::Ipv4RecvErr(error, sender) => {
            let address = |sender: libc::sockaddr_in| Ipv4Addr::from(u32::from_be(sender.sin_addr.s_addr));
            (error, sender.map(|sender| SocketAddr::from((address(sender), 0))))
        }
        ControlMessageOwned::Ipv6RecvErr(error, sender) => {
            let address = |sender: libc::sockaddr_in6| {
                let ip = Ipv6Addr::from(sender.sin6_addr.s6_addr);
                std::net::SocketAddrV6::new(ip, 0, 0, sender.sin6_scope_id).into()
            };
            (error, sender.map(address))
        }
        _ => return None,
    };
    let is_icmp = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&error.ee_origin);
    let is_host = i32::try_from(error.ee_errno).is_ok_and(|errno| errno == libc::EHOSTUNREACH);
    sender.filter(|_| is_icmp && is_host).map(unmapped)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let ipv4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    let address = ipv4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))?;
    Some(address.to_canonical())
}

/// Returns whether an ICMP error with this source address comes from the kernel of this host. To an address of this
/// host the kernel sends packets from the same address, which the connected socket shows.
fn is_local(address: SocketAddr) -> io::Result<bool> {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let mut there = address;
    // Connecting a UDP socket sends nothing; any port except 0 works.
    there.set_port(9);
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_recognized() {
        let is_local =
            |address: &str| is_local(SocketAddr::new(address.parse().unwrap(), 0)).unwrap_or(false);
        assert!(is_local("127.0.0.1"));
        assert!(!is_local("192.0.2.1") && !is_local("2001:db8::1"));
    }
}
