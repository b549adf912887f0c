//! DNS over UDP: a socket and a thread for each core.

mod answer_socket;
mod arrivals;
mod batch;
mod neighbors;
mod netlink;
pub(crate) mod pending;
mod routes;
#[cfg(test)]
mod tests;
mod unreachable;
mod worker;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, thread};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::client_quota::ClientQuota;
use crate::dns::chain::handler::Handler;
use crate::dns::net::bind_with;
use crate::dns::transport::metrics::TransportMetrics;
use answer_socket::AnswerSocket;
use unreachable::Unreachable;
use worker::Worker;

/// The receive buffer of a socket in bytes: enough for short bursts; a larger one would only add delay.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The maximum number of queries of a listener that wait for an upstream. Exceeds the `max_concurrent` of the built-in
/// Corefile, so that with this Corefile it limits only queries that share a look-up.
const MAX_PENDING_QUERIES: usize = 4096;
/// The maximum number of queries of each kind that wait in the backlog of a thread.
const BACKLOG_CAPACITY: usize = 4096;
/// How long a stopped socket still answers queries.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of datagrams after which a stopped socket ends although more arrive, if no query is pending. The receive
/// buffer holds fewer.
const MAX_DRAIN_QUERIES: usize = 4096;
/// The maximum number of threads of a listener: eight threads answer more queries than a host usually receives.
const MAX_WORKERS: usize = 8;

/// Opens sockets for DNS over UDP at an address, one for each core, at most `MAX_WORKERS`. SO_REUSEPORT lets the kernel
/// distribute datagrams among them, and lets a listener that stops keep its sockets at the port for a while. The TCP
/// socket at the same port keeps other processes out. For port 0, the kernel chooses a port that no other socket has.
///
/// # Errors
/// If the address can't be bound.
pub fn bind(address: SocketAddr) -> io::Result<Vec<UdpSocket>> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
    let first = bind_one(address)?;
    let address = first.local_addr()?;
    let others = (1..workers).map(|_| bind_one(address));
    [Ok(first)].into_iter().chain(others).collect()
}

fn bind_one(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // The kernel may limit the size; this must not prevent the start.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        answer_socket::set_options(&socket, address.is_ipv6());
        // Reports the number of datagrams dropped for lack of room; old kernels don't support this option.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        // With SO_REUSEPORT, port 0 could become the port of another socket of this user, which would then lose
        // queries.
        setsockopt(&socket, sockopt::ReusePort, &(address.port() != 0))?;
        socket.bind(&address.into())?;
        setsockopt(&socket, sockopt::ReusePort, &true)?;
        if address.ip().is_unspecified() {
            // The kernel then reports the local address of each datagram: the source address of the answer.
            if address.is_ipv6() {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        Ok(socket.into())
    })
}

/// Serves sockets until `stop`, then answers the datagrams in the receive buffers and sends pending answers.
///
/// # Errors
/// If a socket is broken.
pub async fn serve(
    sockets: Vec<UdpSocket>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    serve_with(sockets, handler, ClientQuota::new(MAX_PENDING_QUERIES), stop).await
}

async fn serve_with(
    sockets: Vec<UdpSocket>,
    handler: Arc<Handler>,
    quota: Arc<ClientQuota>,
    stop: CancellationToken,
) -> io::Result<()> {
    let metrics = handler.metrics.group::<TransportMetrics>().map_err(io::Error::other)?;
    let mut workers = Workers { sockets: Vec::new(), stop: Arc::default() };
    // Shared by all sockets: while one socket is bound to the port, all sockets must be read, because the kernel
    // distributes datagrams among them.
    let pending = Arc::default();
    // Shared, because the kernel chooses another socket for each port of a client.
    let unreachable = Arc::<Unreachable>::default();
    let mut ends = JoinSet::new();
    for socket in sockets {
        let socket = Arc::new(socket);
        workers.sockets.push(Arc::clone(&socket));
        let worker = Worker {
            socket: Arc::new(AnswerSocket::new(socket, Arc::clone(&unreachable), Arc::clone(&metrics))),
            handler: Arc::clone(&handler),
            quota: Arc::clone(&quota),
            pending: Arc::clone(&pending),
            stop: Arc::clone(&workers.stop),
            runtime: Handle::current(),
        };
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("dns-udp".to_owned()).spawn(move || worker.run(end))?;
        ends.spawn(ended);
    }
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            () = stop.cancelled(), if !workers.is_stopped() => workers.stop(),
            ended = ends.join_next() => match ended {
                None => return outcome,
                Some(Ok(Ok(Ok(())))) => {}
                Some(how) => {
                    let ended = how.map_err(io::Error::other).and_then(|how| how.map_err(io::Error::other));
                    outcome = ended.flatten();
                    workers.stop();
                }
            },
        }
    }
}

/// The running threads. Dropping this value stops them.
struct Workers {
    sockets: Vec<Arc<UdpSocket>>,
    stop: Arc<AtomicBool>,
}

impl Workers {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for socket in &self.sockets {
            // Wakes the thread that waits for a datagram. The kernel returns ENOTCONN for an unconnected socket, but
            // still wakes the thread.
            let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Read);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}
