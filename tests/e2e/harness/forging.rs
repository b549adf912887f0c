//! Packets with a forged source or content, sent by raw sockets (raw(7)). Only for use in an isolated network, see
//! [`super::network`].

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use socket2::{Domain, Protocol, Socket, Type};

/// The raw sockets of the forging host, for IPv4 and IPv6.
#[derive(Debug)]
pub struct Forger(Socket, Socket);

impl Forger {
    /// Opens the sockets.
    ///
    /// # Panics
    /// Without the permission to open raw sockets.
    pub fn new() -> Self {
        // IPPROTO_RAW: each packet includes its header.
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)));
        let raw6 = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(255)));
        Self(raw.expect("a raw socket can be opened"), raw6.expect("a raw socket can be opened"))
    }

    /// Sends an IPv6 datagram from any address.
    pub fn udp6(&self, from: SocketAddrV6, to: SocketAddrV6, data: &[u8]) {
        self.ip6(17, *from.ip(), *to.ip(), &udp6(from, to, data));
    }

    /// Sends ICMPv6 "address unreachable" (RFC 4443 section 3.1) about a datagram from `server` to `client`, with
    /// `server` itself as the source.
    pub fn address_unreachable(&self, server: SocketAddrV6, client: SocketAddrV6) {
        let quoted = udp6(server, client, &[]);
        let quoted = [ip6(17, *server.ip(), *client.ip(), quoted.len()), quoted].concat();
        let mut message = [&[1, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
        let sum = checksum6(58, *server.ip(), *server.ip(), &message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        self.ip6(58, *server.ip(), *server.ip(), &message);
    }

    /// Sends ICMPv6 "packet too big" (RFC 4443 section 3.2) about a datagram from `server` to `client`, with `client`
    /// as the source and this MTU in bytes. Linux accepts no value below 1,280.
    pub fn packet_too_big(&self, server: SocketAddrV6, client: SocketAddrV6, mtu: u32) {
        // RFC 4443 section 2.4 (c): as much of the packet as fits into 1,280 bytes.
        let quoted = udp6(server, client, &[0; 1184]);
        let quoted = [ip6(17, *server.ip(), *client.ip(), 1400), quoted].concat();
        let mut message = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), &quoted].concat();
        let sum = checksum6(58, *client.ip(), *server.ip(), &message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        self.ip6(58, *client.ip(), *server.ip(), &message);
    }

    fn ip6(&self, protocol: u8, from: Ipv6Addr, to: Ipv6Addr, payload: &[u8]) {
        let packet = [&ip6(protocol, from, to, payload.len()), payload].concat();
        self.1.send_to(&packet, &SocketAddrV6::new(to, 0, 0, 0).into()).expect("a raw packet can be sent");
    }

    /// Sends a datagram from any address.
    pub fn udp(&self, from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) {
        self.ip(17, *from.ip(), *to.ip(), &udp(from, to, data));
    }

    /// Sends ICMP "fragmentation needed" (RFC 792, RFC 1191) about a datagram from `server` to `client`, with `client`
    /// as the source and this MTU in bytes.
    pub fn fragmentation_needed(&self, server: SocketAddrV4, client: SocketAddrV4, mtu: u16) {
        self.icmp_unreachable(4, server, client, mtu);
    }

    /// Sends ICMP "host unreachable" about a datagram from `server` to `client`.
    pub fn host_unreachable(&self, server: SocketAddrV4, client: SocketAddrV4) {
        self.icmp_unreachable(1, server, client, 0);
    }

    fn icmp_unreachable(&self, code: u8, server: SocketAddrV4, client: SocketAddrV4, mtu: u16) {
        let quoted = [ip(17, *server.ip(), *client.ip(), 1200), udp(server, client, &[])].concat();
        let mut message = [&[3, code, 0, 0, 0, 0][..], &mtu.to_be_bytes(), &quoted].concat();
        let sum = checksum(&message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        self.ip(1, *client.ip(), *server.ip(), &message);
    }

    fn ip(&self, protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) {
        let packet = [&ip(protocol, from, to, payload.len()), payload].concat();
        self.0.send_to(&packet, &SocketAddrV4::new(to, 0).into()).expect("a raw packet can be sent");
    }
}

/// Returns an IPv4 header (RFC 791).
fn ip(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> Vec<u8> {
    let length = u16::try_from(20 + payload).expect("packets are short").to_be_bytes();
    let start = [0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    let mut header = [&start[..], &from.octets(), &to.octets()].concat();
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

/// Returns a UDP datagram (RFC 768) without a checksum.
fn udp(from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).expect("datagrams are short");
    let header = [from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
    [&header, data].concat()
}

/// Returns an IPv6 header (RFC 8200 section 3).
fn ip6(protocol: u8, from: Ipv6Addr, to: Ipv6Addr, payload: usize) -> Vec<u8> {
    let length = u16::try_from(payload).expect("packets are short").to_be_bytes();
    let start = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
    [&start[..], &from.octets(), &to.octets()].concat()
}

/// Returns a UDP datagram with the checksum that IPv6 requires.
fn udp6(from: SocketAddrV6, to: SocketAddrV6, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).expect("datagrams are short");
    let mut datagram = [&[from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat(), data].concat();
    let sum = checksum6(17, *from.ip(), *to.ip(), &datagram).to_be_bytes();
    datagram[6..8].copy_from_slice(&sum);
    datagram
}

/// Returns the checksum with the pseudo-header of IPv6 (RFC 8200 section 8.1).
fn checksum6(protocol: u8, from: Ipv6Addr, to: Ipv6Addr, payload: &[u8]) -> u16 {
    let length = u32::try_from(payload.len()).expect("packets are short").to_be_bytes();
    checksum(&[&from.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol], payload].concat())
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from_be_bytes([0, 0, word[0], *word.get(1).unwrap_or(&0)]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the carries are folded")
}
