//! The sockets that lb-linker listens on.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpListener;

use super::corefile_source::at;
use crate::dns::corefile::{Position, Scheme};
use crate::dns::server::config::ListenAt;
use crate::dns::server::error::ServerError;
use crate::dns::transport::{tcp, udp};

/// How often a port is looked for that is free for UDP and TCP alike.
const MAX_PORT_ATTEMPTS: usize = 16;

/// The sockets of a listener.
pub(crate) struct ListenerSocket {
    /// Where it is bound to: port 0 has become another.
    pub(crate) bound: ListenAt,
    /// One for each thread; none with TLS.
    pub(crate) udp: Vec<UdpSocket>,
    pub(crate) tcp: TcpListener,
}

/// The TCP socket of a listener, to let another listener have its port, too.
pub(crate) struct PortReservation {
    port: u16,
    socket: Option<OwnedFd>,
}

// === impl Holders ===

impl PortReservation {
    /// Returns another handle on the socket. The port stays taken until this is dropped, too.
    pub(crate) fn of(port: u16, socket: BorrowedFd<'_>) -> Self {
        // Without it a port can't be taken over, and nothing else is lost.
        Self { port, socket: socket.try_clone_to_owned().ok() }
    }

    /// Lets others in, or not any more. Returns whether it is about that port.
    pub(crate) fn share(&self, port: u16, share: bool) -> bool {
        let is_meant = self.port == port && port != 0;
        if is_meant && let Some(socket) = &self.socket {
            // Where that can't be, opening the other one says so.
            let _ = setsockopt(socket, sockopt::ReusePort, &share);
        }
        is_meant
    }
}

/// Opens the same port for UDP and TCP, or for TLS; port 0 is any that is free. `beside` listeners of ours that are
/// about to end, if there are any at that port.
pub(crate) fn open(listen: ListenAt, place: &Position, beside: bool) -> Result<ListenerSocket, ServerError> {
    let ListenAt { scheme, address } = listen;
    let failed = |address, transport| {
        move |source| ServerError::Listen { place: at(place), address, transport, source }
    };
    if scheme == Scheme::Tls || address.port() != 0 {
        // TCP first: it tells whether another program has the port.
        let tcp = tcp::bind(address, beside).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        let udp = if scheme == Scheme::Tls {
            Vec::new()
        } else {
            udp::bind(bound).map_err(failed(address, "UDP"))?
        };
        return Ok(ListenerSocket { bound: ListenAt { scheme, address: bound }, udp, tcp });
    }
    let mut tries = MAX_PORT_ATTEMPTS;
    loop {
        tries -= 1;
        // UDP first: the kernel chooses a port that no other UDP socket has.
        let udp = udp::bind(address).map_err(failed(address, "UDP"))?;
        let Some(first) = udp.first() else {
            return Err(failed(address, "UDP")(io::ErrorKind::NotFound.into()));
        };
        let bound = first.local_addr().map_err(failed(address, "UDP"))?;
        match tcp::bind(bound, false) {
            Ok(tcp) => return Ok(ListenerSocket { bound: ListenAt { scheme, address: bound }, udp, tcp }),
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "TCP")(error)),
        }
    }
}

impl ListenerSocket {
    /// Returns another handle on the port. UDP shares it anyway: TCP keeps other programs out.
    pub(crate) fn holders(&self) -> PortReservation {
        PortReservation::of(self.bound.address.port(), self.tcp.as_fd())
    }
}

/// Opens a port for HTTP.
pub(crate) fn open_http(
    address: SocketAddr,
    place: &Position,
    beside: bool,
) -> Result<(SocketAddr, TcpListener), ServerError> {
    let failed = |source| ServerError::Listen { place: at(place), address, transport: "TCP", source };
    let listener = tcp::bind(address, beside).map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}
