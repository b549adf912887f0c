//! The pool of idle UDP sockets to an upstream.
//!
//! A new socket for each query would cost more than the rest of the query. But an attacker that forges answers must not
//! learn the port (RFC 5452 section 9.2): a socket serves only a limited number of queries, never two at once, and only
//! for 1 s. So with little traffic each query has a port of its own. With much traffic each query has a random one of
//! many ports, so that knowing the open ports helps an attacker little.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, recv, socket,
};
use rand::RngExt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::idle::IdlePool;
use super::socket_budget::{SocketBudget, SocketPermit};

/// The maximum number of queries from one port. A new socket costs more than a query, but its cost is small if 128
/// queries share it. The maximum age of a socket limits an attacker to one second anyway.
const MAX_QUERIES_PER_SOCKET: u8 = 128;
/// The maximum size of an answer in bytes; EDNS advertises less. A larger one is cut, and requested again by TCP.
const MAX_DATAGRAM: usize = 4096;
const MAX_SOCKET_AGE: Duration = Duration::from_secs(1);

thread_local! {
    /// The received datagram. A buffer for each call would have to be cleared each time.
    static DATAGRAM: RefCell<[u8; MAX_DATAGRAM]> = const { RefCell::new([0; MAX_DATAGRAM]) };
}

/// A socket connected to one upstream, so that the kernel drops datagrams from other addresses.
#[derive(Debug)]
pub(crate) struct UdpUpstreamSocket {
    /// Registered only for reading: with write interest, each query would wake the task.
    udp: AsyncFd<UdpSocket>,
    pub(crate) local: Option<SocketAddr>,
    opened: Instant,
    /// The number of queries that the socket may still send.
    remaining: u8,
    /// Dropped after the socket.
    _permit: SocketPermit,
}

impl UdpUpstreamSocket {
    pub(crate) fn open(from: Option<SocketAddr>, to: SocketAddr, permit: SocketPermit) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        if let Some(from) = from {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        }
        // Without a bound address, the kernel also chooses the local address and port here.
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        let udp = UdpSocket::from(socket);
        let local = udp.local_addr().ok();
        Ok(Self {
            local,
            udp: for_reading(udp)?,
            opened: Instant::now(),
            remaining: MAX_QUERIES_PER_SOCKET,
            _permit: permit,
        })
    }

    /// Returns the socket with another permit.
    pub(crate) fn with(self, permit: SocketPermit) -> Self {
        Self { _permit: permit, ..self }
    }

    /// Sends a query. If the kernel has no room, the query is lost, as can happen with UDP.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // Data received by now isn't the answer.
        self.clear_readiness();
        self.send_again(bytes)
    }

    /// Sends a query again from the socket that sent it before: data received by now may be the answer.
    pub(crate) fn send_again(&self, bytes: &[u8]) -> io::Result<()> {
        match self.udp.get_ref().send(bytes) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for a datagram, and returns the result of `look` for it, and for whether it was larger than the buffer and is
    /// cut. `look` must not receive datagrams, because all sockets of a thread share a buffer.
    ///
    /// # Errors
    /// If the kernel reports that the port is closed (ICMP), or the socket is broken.
    pub(crate) async fn receive<T>(&self, mut look: impl FnMut(&[u8], bool) -> T) -> io::Result<T> {
        loop {
            // A closed port causes only an error event: the socket doesn't become readable.
            if self.udp.ready(Interest::READABLE | Interest::ERROR).await?.ready().is_error() {
                // After a spurious event, the socket is checked again only at the next event.
                let failed = |udp: &UdpSocket| udp.take_error()?.ok_or(io::ErrorKind::WouldBlock.into());
                if let Ok(error) = self.udp.try_io(Interest::ERROR, failed) {
                    return Err(error);
                }
            }
            let received: io::Result<T> = DATAGRAM.with_borrow_mut(|datagram| {
                // With MSG_TRUNC the kernel returns the whole length.
                let receive = |udp: &UdpSocket| Ok(recv(udp.as_raw_fd(), datagram, MsgFlags::MSG_TRUNC)?);
                let length = self.udp.try_io(Interest::READABLE, receive)?;
                Ok(look(&datagram[..length.min(MAX_DATAGRAM)], length > MAX_DATAGRAM))
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn fail_to_send(&self) {
        socket2::SockRef::from(self.udp.get_ref()).shutdown(std::net::Shutdown::Write).unwrap();
    }

    fn is_young(&self, now: Instant) -> bool {
        now.duration_since(self.opened) < MAX_SOCKET_AGE
    }

    /// Returns whether anything was received since the last answer.
    fn has_unsolicited_data(&self) -> bool {
        self.udp.try_io(Interest::READABLE, |udp| udp.recv(&mut [0])).is_ok()
    }

    /// Clears the readiness, so that only data received from now on counts.
    fn clear_readiness(&self) {
        let nothing = |_: &UdpSocket| Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.udp.try_io(Interest::READABLE, nothing);
    }
}

/// Registers the socket with the runtime for reading.
#[expect(unsafe_code, reason = "tokio has deprecated the safe functions that register a socket")]
fn for_reading(udp: UdpSocket) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: the socket always returns the same descriptor, and keeps it open.
    Ok(unsafe { AsyncFd::register_with_interest(udp, Interest::READABLE) }?)
}

#[derive(Debug)]
pub(crate) struct UdpPool {
    idle: IdlePool<UdpUpstreamSocket>,
    max_idle: usize,
    budget: Arc<SocketBudget>,
}

impl UdpPool {
    pub(crate) fn new(max_idle: usize, budget: Arc<SocketBudget>) -> Self {
        Self { idle: IdlePool::default(), max_idle, budget }
    }

    /// Takes a random idle socket that is young enough and hasn't received a forged datagram.
    pub(crate) fn take(&self, now: Instant) -> Option<UdpUpstreamSocket> {
        let mut sockets = self.idle.items();
        while !sockets.is_empty() {
            let any = rand::rng().random_range(..sockets.len());
            let socket = sockets.swap_remove(any);
            if socket.is_young(now) && !socket.has_unsolicited_data() {
                return Some(socket);
            }
        }
        None
    }

    pub(crate) fn put(&self, mut socket: UdpUpstreamSocket) {
        socket.remaining -= 1;
        socket.clear_readiness();
        if socket.remaining == 0 {
            return;
        }
        // Closes the sockets that stay unused after a burst of queries.
        let is_over = |socket: &mut UdpUpstreamSocket, now| !socket.is_young(now);
        self.idle.put(self.max_idle, || Some(socket.with(self.budget.idle()?)), MAX_SOCKET_AGE, is_over);
    }

    pub(crate) fn clear(&self) {
        self.idle.items().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::poll_fn;

    use tokio::net::UdpSocket;
    use tokio::time::{advance, sleep};

    use super::*;

    fn open(to: &UdpSocket) -> UdpUpstreamSocket {
        let permit = SocketBudget::default().check_quota().take().unwrap();
        UdpUpstreamSocket::open(None, to.local_addr().unwrap(), permit).unwrap()
    }

    fn sockets(number: usize) -> UdpPool {
        UdpPool::new(number, Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn port_is_used_for_a_limited_time_and_number_of_queries() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = sockets(2);
        sockets.put(open(&to));
        for _ in 1..MAX_QUERIES_PER_SOCKET {
            let used = sockets.take(Instant::now()).expect("the socket may be used again");
            assert!(sockets.take(Instant::now()).is_none(), "a socket serves one query at a time");
            sockets.put(used);
        }
        assert!(sockets.take(Instant::now()).is_none());
        for _ in 0..3 {
            sockets.put(open(&to));
        }
        assert_eq!(sockets.idle.items().len(), 2, "the pool keeps two idle sockets");
        advance(MAX_SOCKET_AGE).await;
        assert!(sockets.take(Instant::now()).is_none(), "the sockets are too old");
        assert!(sockets.idle.items().is_empty());
    }

    #[tokio::test]
    async fn random_idle_socket_is_taken() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = sockets(2);
        sockets.put(open(&to));
        sockets.put(open(&to));
        let mut ports = HashSet::new();
        while let Some(socket) = sockets.take(Instant::now()) {
            ports.insert(socket.local);
            sockets.put(socket);
        }
        assert_eq!(ports.len(), 2);
    }

    #[tokio::test]
    async fn socket_with_a_forged_datagram_is_closed() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (sockets, socket) = (sockets(1), open(&to));
        let local = socket.local.unwrap();
        sockets.put(socket);
        to.send_to(b"forged", local).await.unwrap();
        poll_fn(|context| sockets.idle.items()[0].udp.poll_read_ready(context).map_ok(drop)).await.unwrap();
        assert!(sockets.take(Instant::now()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unused_sockets_are_closed() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = sockets(1);
        for _ in 0..2 {
            sockets.put(open(&to));
            sleep(MAX_SOCKET_AGE * 2).await;
            assert!(sockets.idle.items().is_empty());
        }
    }
}
