//! UDP sockets to an upstream that wait for their next question.
//!
//! A new one for each question costs more than all else about it. But an attacker that forges answers must not learn the
//! port (RFC 5452 section 9.2): each is used for a few questions, never two at once, and only for a moment. So with
//! little traffic each question has a port of its own, and with much of it any of many, so that knowing
//! the open ports helps little.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use rand::RngExt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::idle::IdlePool;
use super::socket_budget::{SocketBudget, SocketPermit};

/// Questions that are asked from a port. Another one costs more than a question does: with 128 that is little, and an
/// attacker has a second in any case.
const MAX_QUERIES_PER_SOCKET: u8 = 128;
/// The longest datagram that is taken; we ask for less.
const MAX_DATAGRAM: usize = 4096;
/// How long a port is used.
const MAX_SOCKET_AGE: Duration = Duration::from_secs(1);

thread_local! {
    /// The datagram that is being looked at. Another one for each would have to be cleared each time.
    static DATAGRAM: RefCell<[u8; MAX_DATAGRAM]> = const { RefCell::new([0; MAX_DATAGRAM]) };
}

/// A socket that leads to one upstream alone: once it is connected the kernel drops what other addresses send.
#[derive(Debug)]
pub(crate) struct UdpUpstreamSocket {
    /// Registered for reading alone: registered for writing, the task would be woken with each query.
    udp: AsyncFd<UdpSocket>,
    pub(crate) local: Option<SocketAddr>,
    opened: Instant,
    /// Questions that may still be asked.
    left: u8,
    /// Dropped after the socket.
    _permit: SocketPermit,
}

impl UdpUpstreamSocket {
    /// Opens one with a random port.
    pub(crate) fn open(from: Option<SocketAddr>, to: SocketAddr, permit: SocketPermit) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        if let Some(from) = from {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        }
        // That chooses a port, too.
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        let udp = UdpSocket::from(socket);
        let local = udp.local_addr().ok();
        Ok(Self {
            local,
            udp: for_reading(udp)?,
            opened: Instant::now(),
            left: MAX_QUERIES_PER_SOCKET,
            _permit: permit,
        })
    }

    /// Returns the same socket for the look-up that this permit is of.
    pub(crate) fn with(self, permit: SocketPermit) -> Self {
        Self { _permit: permit, ..self }
    }

    /// Sends a question. One that the kernel has no room for is lost, as UDP is.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // What can be read by now isn't the answer.
        self.has_been_read();
        self.send_again(bytes)
    }

    /// Sends a question that was sent from this socket before: what can be read by now may be the answer.
    pub(crate) fn send_again(&self, bytes: &[u8]) -> io::Result<()> {
        match self.udp.get_ref().send(bytes) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for a datagram, and has `look` look at it, which must not receive another one.
    ///
    /// # Errors
    /// If the kernel reports that no server listens (ICMP), or the socket is at fault.
    pub(crate) async fn receive<T>(&self, mut look: impl FnMut(&[u8]) -> T) -> io::Result<T> {
        loop {
            // If no server listens only an error is reported: nothing becomes readable.
            if self.udp.ready(Interest::READABLE | Interest::ERROR).await?.ready().is_error() {
                // What isn't an error after all is looked for again only when there is something new.
                let failed = |udp: &UdpSocket| udp.take_error()?.ok_or(io::ErrorKind::WouldBlock.into());
                if let Ok(error) = self.udp.try_io(Interest::ERROR, failed) {
                    return Err(error);
                }
            }
            let received: io::Result<T> = DATAGRAM.with_borrow_mut(|datagram| {
                let length = self.udp.try_io(Interest::READABLE, |udp| udp.recv(datagram))?;
                Ok(look(&datagram[..length]))
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

    /// Returns whether something has come since its last answer.
    fn is_spoken_to(&self) -> bool {
        self.udp.try_io(Interest::READABLE, |udp| udp.recv(&mut [0])).is_ok()
    }

    /// Has only what comes from now on count as something to read.
    fn has_been_read(&self) {
        let nothing = |_: &UdpSocket| Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.udp.try_io(Interest::READABLE, nothing);
    }
}

/// Has the runtime tell when there is something to read.
#[expect(unsafe_code, reason = "the runtime has no safe way to wait for that alone")]
fn for_reading(udp: UdpSocket) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: the socket has one descriptor, the same each time that it is asked for it, and keeps it open.
    Ok(unsafe { AsyncFd::register_with_interest(udp, Interest::READABLE) }?)
}

/// The idle sockets.
#[derive(Debug)]
pub(crate) struct UdpPool {
    idle: IdlePool<UdpUpstreamSocket>,
    /// How many are kept.
    number: usize,
    budget: Arc<SocketBudget>,
}

impl UdpPool {
    pub(crate) fn new(number: usize, budget: Arc<SocketBudget>) -> Self {
        Self { idle: IdlePool::default(), number, budget }
    }

    /// Takes a random idle socket that is young enough and hasn't received a forged datagram.
    pub(crate) fn take(&self, now: Instant) -> Option<UdpUpstreamSocket> {
        let mut sockets = self.idle.items();
        while !sockets.is_empty() {
            let any = rand::rng().random_range(..sockets.len());
            let socket = sockets.swap_remove(any);
            if socket.is_young(now) && !socket.is_spoken_to() {
                return Some(socket);
            }
        }
        None
    }

    /// Takes one back that was answered.
    pub(crate) fn put(&self, mut socket: UdpUpstreamSocket) {
        socket.left -= 1;
        socket.has_been_read();
        if socket.left == 0 {
            return;
        }
        // After a storm there may be many.
        let is_over = |socket: &mut UdpUpstreamSocket, now| !socket.is_young(now);
        self.idle.put(self.number, || Some(socket.with(self.budget.idle()?)), MAX_SOCKET_AGE, is_over);
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
        let permit = SocketBudget::default().of_checks().take().unwrap();
        UdpUpstreamSocket::open(None, to.local_addr().unwrap(), permit).unwrap()
    }

    fn sockets(number: usize) -> UdpPool {
        UdpPool::new(number, Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_is_used_for_a_few_questions_and_a_moment() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = sockets(2);
        sockets.put(open(&to));
        for _ in 1..MAX_QUERIES_PER_SOCKET {
            let used = sockets.take(Instant::now()).expect("it may be used again");
            assert!(sockets.take(Instant::now()).is_none(), "for one question at a time");
            sockets.put(used);
        }
        assert!(sockets.take(Instant::now()).is_none());
        for _ in 0..3 {
            sockets.put(open(&to));
        }
        assert_eq!(sockets.idle.items().len(), 2, "there is room for so many");
        advance(MAX_SOCKET_AGE).await;
        assert!(sockets.take(Instant::now()).is_none(), "they are too old");
        assert!(sockets.idle.items().is_empty());
    }

    #[tokio::test]
    async fn any_of_them_is_taken() {
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
    async fn one_that_somebody_has_guessed_is_closed() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (sockets, socket) = (sockets(1), open(&to));
        let local = socket.local.unwrap();
        sockets.put(socket);
        to.send_to(b"forged", local).await.unwrap();
        poll_fn(|context| sockets.idle.items()[0].udp.poll_read_ready(context).map_ok(drop)).await.unwrap();
        assert!(sockets.take(Instant::now()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_nobody_needs_any_more_are_closed() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = sockets(1);
        for _ in 0..2 {
            sockets.put(open(&to));
            sleep(MAX_SOCKET_AGE * 2).await;
            assert!(sockets.idle.items().is_empty());
        }
    }
}
