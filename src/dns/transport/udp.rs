//! DNS over UDP: a socket and a thread for each core, and behind them the full handler.

mod answer_socket;
mod batch;
mod neighbors;
mod netlink;
pub(crate) mod pending;
mod routes;
mod slow_path;
#[cfg(test)]
mod tests;
mod unreachable;
mod worker;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::{io, thread};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;

use super::client_quota::ClientQuota;
use crate::dns::chain::handler::Handler;
use crate::dns::net::bind_with;
use crate::dns::transport::metrics::TransportMetrics;
use answer_socket::AnswerSocket;
use slow_path::SlowPath;
use unreachable::Unreachable;
use worker::Worker;

/// The kernel's queue in front of us, in bytes: it bridges moments, more would only add delay.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Questions of a listener that wait for an upstream. More than an upstream takes at once: it refuses
/// what is beyond its own bound, so that this one is only for what waits without asking.
const MAX_WAITING: usize = 4096;
/// Questions on their way from a thread to the full handler.
const QUEUE_CAPACITY: usize = 4096;
/// Answers on their way back, which only make the next ones faster.
const CACHE_INSERT_CAPACITY: usize = 1024;
/// How long a socket that ends still answers queries.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Datagrams that are still taken at the end; the kernel's queue holds fewer.
const MAX_DRAIN_QUERIES: usize = 4096;
/// Threads of a listener at most: so many answer more than any network brings.
const MAX_WORKERS: usize = 8;

/// Opens sockets for DNS over UDP at an address, one for each core. They have SO_REUSEPORT: the kernel chooses among
/// them by it, and a listener that ends may still have its sockets at the port. The TCP socket of the same port keeps
/// other programs out. Port 0 is one that no other socket has.
///
/// # Errors
/// If the address can't be had.
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
        // The kernel's limit may be lower; that is no reason not to start.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        answer_socket::set_options(&socket, address.is_ipv6());
        // What it has no room for is to be counted; an old kernel doesn't tell.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        // With SO_REUSEPORT, port 0 could become a port that another socket of this user has, which then loses questions.
        setsockopt(&socket, sockopt::ReusePort, &(address.port() != 0))?;
        socket.bind(&address.into())?;
        setsockopt(&socket, sockopt::ReusePort, &true)?;
        if address.ip().is_unspecified() {
            // Only so can an answer leave from the address that was asked.
            if address.is_ipv6() {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        Ok(socket.into())
    })
}

/// Serves sockets until `stop`; then answers what the kernel has already, and lets the answers under way go out.
///
/// # Errors
/// If one of the sockets is broken.
pub async fn serve(
    sockets: Vec<UdpSocket>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    serve_with(sockets, handler, ClientQuota::new(MAX_WAITING), stop).await
}

async fn serve_with(
    sockets: Vec<UdpSocket>,
    handler: Arc<Handler>,
    shares: Arc<ClientQuota>,
    stop: CancellationToken,
) -> io::Result<()> {
    let metrics = handler.metrics.family::<TransportMetrics>().map_err(io::Error::other)?;
    let mut workers = Workers { sockets: Vec::new(), stop: Arc::default() };
    // Of all of them: while one goes on at the port, so do the others, for the kernel chooses among them.
    let pending = Arc::default();
    // The kernel chooses the socket for each port of a client anew.
    let unreachable = Arc::<Unreachable>::default();
    let mut ends = JoinSet::new();
    let mut fulls = JoinSet::new();
    for socket in sockets {
        let socket = Arc::new(socket);
        workers.sockets.push(Arc::clone(&socket));
        let socket = Arc::new(AnswerSocket::new(socket, Arc::clone(&unreachable), Arc::clone(&metrics)));
        let (questions, asked) = mpsc::channel(QUEUE_CAPACITY);
        let (keep, kept) = sync_channel(CACHE_INSERT_CAPACITY);
        let full = SlowPath {
            socket: Arc::clone(&socket),
            handler: Arc::clone(&handler),
            shares: Arc::clone(&shares),
            keep,
        };
        // It sees to it itself that others have their turn.
        fulls.spawn(unconstrained(full.serve(asked)));
        let worker = Worker {
            socket,
            handler: Arc::clone(&handler),
            questions,
            kept,
            pending: Arc::clone(&pending),
            stop: Arc::clone(&workers.stop),
            runtime: Handle::current(),
        };
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("dns-udp".to_owned()).spawn(move || {
            // The receiver may be gone.
            let _ = end.send(worker.run());
        })?;
        ends.spawn(ended);
    }
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            () = stop.cancelled(), if !workers.is_stopped() => workers.stop(),
            Some(ended) = fulls.join_next(), if !workers.is_stopped() => {
                // It goes on as long as its thread does.
                outcome = Err(ended.map_or_else(io::Error::other, |()| io::Error::other("the handler has ended")));
                workers.stop();
            }
            ended = ends.join_next() => match ended {
                None => break,
                Some(Ok(Ok(Ok(())))) => {}
                Some(how) => {
                    let ended = how.map_err(io::Error::other).and_then(|how| how.map_err(io::Error::other));
                    outcome = ended.flatten();
                    workers.stop();
                }
            },
        }
    }
    while fulls.join_next().await.is_some() {}
    outcome
}

/// The threads at work. They end when this is dropped.
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
            // Wakes the thread that waits for a datagram. The kernel says that the socket isn't connected, and does it all the same.
            let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Read);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}
