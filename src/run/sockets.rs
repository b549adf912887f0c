//! The sockets that lb-linker listens on.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, UdpSocket};

use super::RunError;
use crate::config::Flags;
use crate::dns::{tcp, udp};

/// How often a port is looked for that is free for UDP and TCP alike.
const PORT_TRIES: usize = 16;

/// Every socket, opened before anything is started: a port in use ends the program at once.
pub(super) struct Sockets {
    /// DNS, by UDP and TCP.
    pub(super) dns: Vec<(SocketAddr, UdpSocket, TcpListener)>,
    /// Metrics, health, ready.
    pub(super) probes: [(SocketAddr, TcpListener); 3],
}

impl Sockets {
    /// Opens them all.
    pub(super) fn open(flags: &Flags) -> Result<Self, RunError> {
        let probe = |flag, address| {
            let failed = |source| RunError::Listen { flag, address, transport: "TCP", source };
            let listener = tcp::bind(address).map_err(failed)?;
            Ok::<_, RunError>((listener.local_addr().map_err(failed)?, listener))
        };
        Ok(Self {
            dns: flags.listen.iter().map(|address| open_pair(*address)).collect::<Result<_, _>>()?,
            probes: [
                probe("metrics-listen", flags.metrics_listen)?,
                probe("health-listen", flags.health_listen)?,
                probe("ready-listen", flags.ready_listen)?,
            ],
        })
    }
}

/// Opens the same port for UDP and TCP; port 0 is any that is free for both.
fn open_pair(address: SocketAddr) -> Result<(SocketAddr, UdpSocket, TcpListener), RunError> {
    let failed =
        |address, transport| move |source| RunError::Listen { flag: "listen", address, transport, source };
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let tcp = tcp::bind(address).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        match udp::bind(bound) {
            Ok(udp) => return Ok((bound, udp, tcp)),
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "UDP")(error)),
        }
    }
}
