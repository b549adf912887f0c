//! UDP sockets to an upstream that wait for their next question.
//!
//! A new one for each question costs more than all else about it. But who forges answers must not get to know the
//! port (RFC 5452 section 9.2): each is used for a few questions, never two at once, and only for a moment. So with
//! little traffic each question has a port of its own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, send, socket,
};
use rand::RngExt;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Questions that are asked from a port.
const QUESTIONS: u8 = 16;
/// How long a port is used.
const AGE: Duration = Duration::from_secs(1);

/// A socket that leads to one upstream alone: once it is connected the kernel drops what other addresses send.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) udp: UdpSocket,
    pub(super) local: Option<SocketAddr>,
    opened: Instant,
    /// Questions that may still be asked.
    left: u8,
}

impl Socket {
    /// Opens one with a random port.
    pub(super) fn open(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        if let Some(from) = from {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        }
        // That chooses a port, too.
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        let udp = UdpSocket::from_std(socket.into())?;
        Ok(Self { local: udp.local_addr().ok(), udp, opened: Instant::now(), left: QUESTIONS })
    }

    /// Sends a question. The runtime may not have heard yet that there is room, so the kernel is asked.
    pub(super) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // What can be read by now belongs to earlier questions: only what comes from now on is worth a look.
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.udp.try_io(Interest::READABLE, nothing);
        match send(self.udp.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => self.udp.send(bytes).await.map(drop),
            outcome => Ok(outcome.map(drop)?),
        }
    }
}

/// The idle sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    idle: Mutex<Vec<Socket>>,
    /// How many are kept.
    number: usize,
}

impl Sockets {
    pub(super) fn new(number: usize) -> Self {
        Self { idle: Mutex::default(), number }
    }

    /// Takes any of them that is young still.
    pub(super) fn take(&self) -> Option<Socket> {
        let now = Instant::now();
        let mut idle = self.idle();
        while !idle.is_empty() {
            let any = rand::rng().random_range(..idle.len());
            let socket = idle.swap_remove(any);
            if now.duration_since(socket.opened) < AGE {
                return Some(socket);
            }
            // After a pause it is most likely all of them.
            idle.retain(|socket| now.duration_since(socket.opened) < AGE);
        }
        None
    }

    /// Takes one back that was answered.
    pub(super) fn put(&self, mut socket: Socket) {
        socket.left -= 1;
        let mut idle = self.idle();
        if socket.left > 0 && idle.len() < self.number {
            idle.push(socket);
        }
    }

    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio::time::advance;

    use super::*;

    fn open(to: &UdpSocket) -> Socket {
        Socket::open(None, to.local_addr().unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_is_used_for_a_few_questions_and_a_moment() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = Sockets::new(2);
        sockets.put(open(&to));
        for _ in 1..QUESTIONS {
            let used = sockets.take().expect("it may be used again");
            assert!(sockets.take().is_none(), "for one question at a time");
            sockets.put(used);
        }
        assert!(sockets.take().is_none());
        for _ in 0..3 {
            sockets.put(open(&to));
        }
        assert_eq!(sockets.idle().len(), 2, "there is room for so many");
        advance(AGE).await;
        assert!(sockets.take().is_none(), "they are too old");
        assert!(sockets.idle().is_empty());
    }

    #[tokio::test]
    async fn any_of_them_is_taken() {
        let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sockets = Sockets::new(2);
        sockets.put(open(&to));
        sockets.put(open(&to));
        let mut ports = HashSet::new();
        while let Some(socket) = sockets.take() {
            ports.insert(socket.local);
            sockets.put(socket);
        }
        assert_eq!(ports.len(), 2);
    }
}
