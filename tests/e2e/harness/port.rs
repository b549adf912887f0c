//! Port numbers for programs and tests that need a port number before they listen.
//!
//! The library's unit tests use this file, too.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use socket2::{Domain, Socket, Type};

/// A port that is reserved for TCP and UDP, on every address, until this is dropped.
///
/// The kernel assigns the number to no connection and to no socket that is bound to port 0. A program can listen on it
/// if it sets SO_REUSEADDR or SO_REUSEPORT for TCP, and SO_REUSEPORT for UDP: lb-linker and CoreDNS do, kube-apiserver
/// does with `--permit-port-sharing`. While no program listens, connections are refused and datagrams are answered by
/// ICMP "port unreachable".
#[derive(Debug)]
pub struct HeldPort {
    number: u16,
    /// A socket that is bound and doesn't listen.
    _tcp: Socket,
    /// Bound to an interface that doesn't exist, so that it receives nothing.
    _udp: Socket,
}

impl HeldPort {
    /// Reserves a port that is free for TCP and UDP.
    ///
    /// # Errors
    /// If the system has no free port or no more sockets.
    pub fn take() -> io::Result<Self> {
        loop {
            let tcp = exclusive(Type::STREAM, 0)?;
            let number = tcp.local_addr()?.as_socket().map_or(0, |address| address.port());
            let udp = match exclusive(Type::DGRAM, number) {
                Ok(udp) => udp,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                Err(error) => return Err(error),
            };
            // These options are set after both sockets are bound: before, no other socket can bind the port, whatever
            // its options.
            for socket in [&tcp, &udp] {
                socket.set_reuse_address(true)?;
                socket.set_reuse_port(true)?;
            }
            return Ok(Self { number, _tcp: tcp, _udp: udp });
        }
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the address of the port on 127.0.0.1.
    pub fn local(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// Returns a socket that is bound on every address and shares the port with no other socket.
fn exclusive(kind: Type, port: u16) -> io::Result<Socket> {
    let (socket, everywhere) = match Socket::new(Domain::IPV6, kind, None) {
        Ok(socket) => {
            socket.set_only_v6(false)?;
            (socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        }
        // The kernel has no IPv6.
        Err(_) => (Socket::new(Domain::IPV4, kind, None)?, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
    };
    if kind == Type::DGRAM {
        // Interface indices count up from 1: the highest one doesn't exist.
        socket.bind_device_by_index_v6(NonZeroU32::new(i32::MAX.unsigned_abs()))?;
    }
    socket.bind(&everywhere.into())?;
    Ok(socket)
}
