//! The sockets that lb-linker listens on.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, UdpSocket};

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
    /// Not with TLS.
    pub(super) udp: Option<UdpSocket>,
    pub(super) tcp: TcpListener,
}

/// Opens the same port for UDP and TCP, or for TLS; port 0 is any that is free.
pub(super) fn open(listen: ListenAt, place: &Place) -> Result<Socket, RunError> {
    let ListenAt { scheme, address } = listen;
    let failed =
        |address, transport| move |source| RunError::Listen { place: at(place), address, transport, source };
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let tcp = tcp::bind(address).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        let bound_at = ListenAt { scheme, address: bound };
        if scheme == Scheme::Tls {
            return Ok(Socket { bound: bound_at, udp: None, tcp });
        }
        match udp::bind(bound) {
            Ok(udp) => return Ok(Socket { bound: bound_at, udp: Some(udp), tcp }),
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "UDP")(error)),
        }
    }
}

/// Opens a port for HTTP.
pub(super) fn open_http(address: SocketAddr, place: &Place) -> Result<(SocketAddr, TcpListener), RunError> {
    let failed = |source| RunError::Listen { place: at(place), address, transport: "TCP", source };
    let listener = tcp::bind(address).map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}
