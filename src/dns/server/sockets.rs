//! Opens the sockets of listeners.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpListener;

use super::corefile_source::at;
use crate::dns::corefile::{Position, Scheme};
use crate::dns::plugins::setup::HttpEndpoint;
use crate::dns::server::config::{Configuration, ListenAddress};
use crate::dns::server::error::ServerError;
use crate::dns::transport::{quic, tcp, udp};

/// The maximum number of attempts to find a port that is free for both UDP and TCP. Connections that have ended
/// (TIME_WAIT) may have most TCP ports.
const MAX_PORT_ATTEMPTS: usize = 1000;

/// The flag for the addresses of DNS.
const LISTEN_FLAG: &str = "--listen";

pub(crate) struct ListenerSocket {
    /// The bound address, with the actual port instead of 0.
    pub(crate) bound: ListenAddress,
    /// One socket for each thread; none with TLS, HTTPS or QUIC.
    pub(crate) udp: Vec<UdpSocket>,
    pub(crate) main: MainSocket,
}

/// The socket of a listener for all protocols but UDP.
pub(crate) enum MainSocket {
    Tcp(TcpListener),
    Quic(UdpSocket),
}

/// The main socket of a listener, kept to control whether other sockets may bind the port.
pub(crate) struct PortReservation {
    port: u16,
    socket: Option<OwnedFd>,
}

// === impl PortReservation ===

impl PortReservation {
    /// Returns the reservation of a port. It holds a duplicate of the socket, so the port stays bound until both the
    /// socket and the reservation are dropped.
    pub(crate) fn of(port: u16, socket: BorrowedFd<'_>) -> Self {
        // Without the duplicate the port can't be handed over; nothing else depends on it.
        Self { port, socket: socket.try_clone_to_owned().ok() }
    }

    /// Allows or forbids other sockets to bind the port (SO_REUSEPORT). Returns whether this reservation is for `port`.
    pub(crate) fn share(&self, port: u16, share: bool) -> bool {
        let is_meant = self.port == port && port != 0;
        if is_meant && let Some(socket) = &self.socket {
            // If this fails, binding the other socket fails, too, and reports the error.
            let _ = setsockopt(socket, sockopt::ReusePort, &share);
        }
        is_meant
    }
}

/// Opens the same port for UDP and TCP, a TCP port for TLS, HTTPS or gRPC, or a UDP port for QUIC; port 0 means any
/// free port. `reuse_port` sets SO_REUSEPORT, so that the port can be shared with a listener of this process that is
/// about to stop.
pub(crate) fn open(
    listen: ListenAddress,
    place: &Position,
    reuse_port: bool,
) -> Result<ListenerSocket, ServerError> {
    let ListenAddress { scheme, address } = listen;
    let failed = |address, transport| {
        move |source| ServerError::Listen { place: at(place, LISTEN_FLAG), address, transport, source }
    };
    if scheme == Scheme::Quic {
        let socket = quic::bind(address, reuse_port).map_err(failed(address, "UDP"))?;
        let bound = socket.local_addr().map_err(failed(address, "UDP"))?;
        let bound = ListenAddress { scheme, address: bound };
        return Ok(ListenerSocket { bound, udp: Vec::new(), main: MainSocket::Quic(socket) });
    }
    if scheme != Scheme::Dns || address.port() != 0 {
        // TCP first: its error shows whether another process has the port.
        let tcp = tcp::bind(address, reuse_port).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        let udp = if scheme == Scheme::Dns {
            udp::bind(bound).map_err(failed(address, "UDP"))?
        } else {
            Vec::new()
        };
        let bound = ListenAddress { scheme, address: bound };
        return Ok(ListenerSocket { bound, udp, main: MainSocket::Tcp(tcp) });
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
            Ok(tcp) => {
                let bound = ListenAddress { scheme, address: bound };
                return Ok(ListenerSocket { bound, udp, main: MainSocket::Tcp(tcp) });
            }
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "TCP")(error)),
        }
    }
}

impl ListenerSocket {
    /// Returns a reservation of the port. The sockets for UDP always share the port, so the main socket keeps other
    /// processes out.
    pub(crate) fn port_reservation(&self) -> PortReservation {
        let socket = match &self.main {
            MainSocket::Tcp(listener) => listener.as_fd(),
            MainSocket::Quic(socket) => socket.as_fd(),
        };
        PortReservation::of(self.bound.address.port(), socket)
    }
}

pub(crate) fn open_http(
    endpoint: &HttpEndpoint,
    reuse_port: bool,
) -> Result<(SocketAddr, TcpListener), ServerError> {
    let failed = |source| http_error(endpoint, source);
    let listener = tcp::bind(endpoint.address, reuse_port).map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}

fn http_error(HttpEndpoint { kind, address, position, .. }: &HttpEndpoint, source: io::Error) -> ServerError {
    let place = at(position, kind.flag());
    ServerError::Listen { place, address: *address, transport: "TCP", source }
}

/// Returns the error of the first HTTP port that can't be opened because another port of this configuration has its
/// address.
pub(crate) fn http_conflict(configuration: &Configuration) -> Option<ServerError> {
    let endpoints = || configuration.blocks.iter().flat_map(|built| &built.builder.endpoints);
    let by_tcp = configuration.listeners.iter().filter(|listener| listener.at.scheme.is_over_tcp());
    let of_dns = || by_tcp.clone().map(|listener| listener.at.address);
    let (_, endpoint) = endpoints().enumerate().find(|(number, endpoint)| {
        // Endpoints with the same address share a port.
        let before = endpoints().take(*number).map(|it| it.address).filter(|it| *it != endpoint.address);
        of_dns().chain(before).any(|other| overlap(other, endpoint.address))
    })?;
    Some(http_error(endpoint, Errno::EADDRINUSE.into()))
}

/// Returns whether only one of two addresses can be bound.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let holds = |outer: IpAddr, inner: IpAddr| {
        outer == inner || outer.is_unspecified() && (outer.is_ipv6() || inner.is_ipv4())
    };
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    one.port() == other.port() && one.port() != 0 && (holds(a, b) || holds(b, a))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::dns::corefile::FileSources;
    use crate::dns::plugins::setup::ServerContext;
    use crate::dns::server::config::configure;
    use crate::store::{OnGone, Store};

    fn configuration(text: &str) -> Configuration {
        let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
        configure(Path::new("Corefile"), text, &FileSources::SYSTEM, &context).unwrap()
    }

    #[tokio::test]
    async fn conflict_of_an_http_port_has_the_words_of_its_failed_bind() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        for bind in ["127.0.0.1", "0.0.0.0", "::"] {
            let text =
                format!(".:{port} {{\n    bind {bind}\n    whoami\n    prometheus 127.0.0.1:{port}\n}}\n");
            let configuration = configuration(&text);
            let failed = open_http(&configuration.blocks[0].builder.endpoints[0], false).err().unwrap();
            assert_eq!(http_conflict(&configuration).unwrap().to_string(), failed.to_string(), "{bind}");
        }
    }

    #[test]
    fn http_ports_conflict_if_their_addresses_overlap() {
        for (listen, metrics, ready, is_conflict) in [
            ("127.0.0.1:53", "127.0.0.1:53", "127.0.0.1:1", true),
            ("127.0.0.2:53", "127.0.0.1:53", "127.0.0.1:53", false),
            ("[::1]:53", "0.0.0.0:53", "127.0.0.1:1", false),
            ("127.0.0.1:53", "0.0.0.0:9", "127.0.0.1:9", true),
            ("127.0.0.1:53", "127.0.0.1:9", "127.0.0.1:9", false),
            ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            let listen: SocketAddr = listen.parse().unwrap();
            let (ip, port) = (listen.ip(), listen.port());
            let text =
                format!(".:{port} {{\n    bind {ip}\n    prometheus {metrics}\n    ready {ready}\n}}\n");
            assert_eq!(http_conflict(&configuration(&text)).is_some(), is_conflict, "{text}");
        }
    }
}
