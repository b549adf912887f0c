//! The sockets that lb-linker listens on.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpListener;

use super::RunError;
use super::corefile::at;
use crate::dns::configuration::ListenAt;
use crate::dns::corefile::{Place, Scheme};
use crate::dns::{tcp, udp};

/// How often a port is looked for that is free for UDP and TCP alike.
const PORT_TRIES: usize = 16;

/// The sockets of a listener.
pub(super) struct Socket {
    /// Where it is bound to: port 0 has become another.
    pub(super) bound: ListenAt,
    /// One for each thread; none with TLS.
    pub(super) udp: Vec<UdpSocket>,
    pub(super) tcp: TcpListener,
}

/// The sockets that are listened on at a port, to let others in beside them.
pub(super) struct Holders {
    port: u16,
    sockets: Vec<OwnedFd>,
}

// === impl Holders ===

impl Holders {
    /// Returns another handle on them. Whoever holds it keeps the port.
    pub(super) fn of(port: u16, sockets: &[BorrowedFd<'_>]) -> Self {
        // Without it a port can't be taken over, and nothing else is lost.
        let sockets = sockets.iter().filter_map(|socket| socket.try_clone_to_owned().ok()).collect();
        Self { port, sockets }
    }

    /// Lets others in, or not any more. Returns whether it is about that port.
    pub(super) fn share(&self, port: u16, share: bool) -> bool {
        let is_meant = self.port == port && port != 0;
        if is_meant {
            for socket in &self.sockets {
                // Where that can't be, opening the other one says so.
                let _ = setsockopt(socket, sockopt::ReusePort, &share);
            }
        }
        is_meant
    }
}

/// Opens the same port for UDP and TCP, or for TLS; port 0 is any that is free. `beside` listeners of ours that are
/// about to end, if there are any at that port.
pub(super) fn open(listen: ListenAt, place: &Place, beside: bool) -> Result<Socket, RunError> {
    let ListenAt { scheme, address } = listen;
    let failed =
        |address, transport| move |source| RunError::Listen { place: at(place), address, transport, source };
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let tcp = tcp::bind(address, beside).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        let bound_at = ListenAt { scheme, address: bound };
        if scheme == Scheme::Tls {
            return Ok(Socket { bound: bound_at, udp: Vec::new(), tcp });
        }
        match udp::bind(bound, beside) {
            Ok(udp) => return Ok(Socket { bound: bound_at, udp, tcp }),
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "UDP")(error)),
        }
    }
}

impl Socket {
    /// Returns another handle on the port.
    pub(super) fn holders(&self) -> Holders {
        // Those that share the port among themselves go on to do so: TCP keeps others out.
        let udp = self.udp.iter().filter(|_| !udp::is_shared(&self.udp)).map(UdpSocket::as_fd);
        let all: Vec<BorrowedFd<'_>> = udp.chain([self.tcp.as_fd()]).collect();
        Holders::of(self.bound.address.port(), &all)
    }
}

/// Opens a port for HTTP.
pub(super) fn open_http(
    address: SocketAddr,
    place: &Place,
    beside: bool,
) -> Result<(SocketAddr, TcpListener), RunError> {
    let failed = |source| RunError::Listen { place: at(place), address, transport: "TCP", source };
    let listener = tcp::bind(address, beside).map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}
