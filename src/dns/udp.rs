//! DNS over UDP.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use hickory_server::net::xfer::Protocol;
use nix::cmsg_space;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
    sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::handler::Handler;
use super::shares::Shares;
use super::{REST, bind_with, is_fatal, is_shortage, unmapped};
use crate::metrics::Dropped;

/// The kernel's queue in front of us, in bytes: it bridges moments, more would only add delay.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Questions of a socket that wait for an upstream. More than an upstream takes at once: it refuses
/// what is beyond its own bound, so that this one is only for what waits without asking.
const MAX_WAITING: usize = 4096;
/// How long a socket that ends still answers who comes.
const LINGER: Duration = Duration::from_secs(5);
/// Datagrams that are still taken at the end; the kernel's queue holds fewer.
const MAX_LAST: usize = 4096;

/// Opens a socket for DNS over UDP; `beside` another one of ours that is about to end, if there is one at that port.
///
/// # Errors
/// If the address can't be had.
pub fn bind(address: SocketAddr, beside: bool) -> io::Result<UdpSocket> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        // The kernel's limit may be lower; that is no reason not to start.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        // What it has no room for is to be counted; an old kernel doesn't tell.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        setsockopt(&socket, sockopt::ReusePort, &beside)?;
        socket.bind(&address.into())?;
        if address.ip().is_unspecified() {
            // Only so can an answer leave from the address that was asked.
            if address.is_ipv6() {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        UdpSocket::from_std(socket.into())
    })
}

/// Serves a socket until `stop`; then answers what the kernel has already, and lets the answers under
/// way go out.
///
/// # Errors
/// If the socket is broken.
pub async fn serve(socket: UdpSocket, handler: Arc<Handler>, stop: CancellationToken) -> io::Result<()> {
    Server::new(socket, handler, MAX_WAITING).serve(stop).await
}

struct Server {
    socket: Arc<UdpSocket>,
    handler: Arc<Handler>,
    /// Questions that wait for an upstream, and whose they are.
    waiting: JoinSet<()>,
    shares: Arc<Shares>,
    /// Datagrams that the kernel has dropped so far.
    lost: u32,
}

impl Server {
    fn new(socket: UdpSocket, handler: Arc<Handler>, max_waiting: usize) -> Self {
        let (socket, shares) = (Arc::new(socket), Shares::new(max_waiting));
        Self { socket, handler, waiting: JoinSet::new(), shares, lost: 0 }
    }

    async fn serve(mut self, stop: CancellationToken) -> io::Result<()> {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let received = tokio::select! {
                received = receive(&self.socket, &mut buffer) => received,
                () = stop.cancelled() => break,
            };
            match received {
                Ok((length, peer)) => self.take(&buffer[..length], peer),
                Err(error) if is_fatal(&error) => return Err(error),
                // An earlier answer of ours found nobody (ICMP), or memory is short just now.
                Err(error) => {
                    debug!("UDP: {error}");
                    if is_shortage(&error) {
                        tokio::time::sleep(REST).await;
                    }
                }
            }
        }
        for _ in 0..MAX_LAST {
            match receive_now(&self.socket, &mut buffer) {
                Ok(Some((length, peer))) => self.take(&buffer[..length], peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_fatal(&error) => break,
                Ok(None) | Err(_) => {}
            }
        }
        self.linger(&mut buffer).await;
        Ok(())
    }

    /// Lets the answers under way go out, and answers who still comes here meanwhile: another socket at this port may
    /// have taken over already, but not for every address.
    async fn linger(&mut self, buffer: &mut [u8]) {
        let end = Instant::now() + LINGER;
        while !self.waiting.is_empty() {
            tokio::select! {
                Some(_) = self.waiting.join_next() => {}
                Ok((length, peer)) = receive(&self.socket, buffer), if Instant::now() < end => {
                    self.take(&buffer[..length], peer);
                }
            }
        }
    }

    /// Answers a message now, or later if it has to wait for an upstream.
    fn take(&mut self, message: &[u8], peer: Peer) {
        if peer.lost != self.lost {
            self.handler.metrics.dropped(Dropped::Queue, peer.lost.wrapping_sub(self.lost));
            self.lost = peer.lost;
        }
        while self.waiting.try_join_next().is_some() {}
        let reply = Reply { socket: Arc::clone(&self.socket), peer };
        let mut answering = Box::pin(answer(Arc::clone(&self.handler), message.to_vec(), reply));
        // What we know is answered here and now; only who waits for an upstream gets a task.
        if (&mut answering).now_or_never().is_some() {
            return;
        }
        let Some(share) = self.shares.take(unmapped(peer.address).ip(), 1) else {
            self.handler.metrics.dropped(Dropped::Busy, 1);
            return;
        };
        self.waiting.spawn(async move {
            answering.await;
            drop(share);
        });
    }
}

async fn answer(handler: Arc<Handler>, message: Vec<u8>, reply: Reply) {
    let Peer { address, asked, .. } = reply.peer;
    if let Some(bytes) = handler.answer(message, address, asked, Protocol::Udp).await {
        reply.send(&bytes);
    }
}

/// Who asked, and which address of ours.
#[derive(Clone, Copy, Debug)]
struct Peer {
    address: SocketAddr,
    asked: Option<IpAddr>,
    /// Datagrams that the socket had no room for before this one.
    lost: u32,
}

async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
    loop {
        let received = socket.async_io(Interest::READABLE, || receive_now(socket, buffer)).await?;
        if let Some(received) = received {
            return Ok(received);
        }
    }
}

fn receive_now(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<(usize, Peer)>> {
    let mut control = cmsg_space!(libc::in6_pktinfo, u32);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let (mut asked, mut lost) = (None, 0);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                asked = Some(IpAddr::from(u32::from_be(info.ipi_addr.s_addr).to_be_bytes()));
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                asked = Some(IpAddr::from(info.ipi6_addr.s6_addr));
            }
            ControlMessageOwned::RxqOvfl(number) => lost = number,
            _ => {}
        }
    }
    let address = message.address.and_then(|address| {
        let ipv4 = address.as_sockaddr_in().map(|address| SocketAddr::V4(SocketAddrV4::from(*address)));
        ipv4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6(SocketAddrV6::from(*address))))
    });
    // Nobody can be answered at port 0.
    let address = address.filter(|address| address.port() != 0);
    Ok(address.map(|address| (message.bytes, Peer { address, asked, lost })))
}

/// Sends the answer back to who asked.
#[derive(Clone, Debug)]
struct Reply {
    socket: Arc<UdpSocket>,
    peer: Peer,
}

impl Reply {
    /// An answer that can't be sent is lost, as UDP is: the client asks again.
    fn send(&self, bytes: &[u8]) {
        if let Err(error) = self.socket.try_io(Interest::WRITABLE, || self.send_now(bytes)) {
            debug!("UDP: the answer to {} is lost: {error}", self.peer.address);
        }
    }

    fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        let parts = [IoSlice::new(bytes)];
        let flags = MsgFlags::MSG_DONTWAIT;
        // The interface is left to the routes, but for link-local peers: those name their own.
        let ipv4 = |asked: std::net::Ipv4Addr| libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from(asked).to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let ipv6 = |asked: std::net::Ipv6Addr| libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr { s6_addr: asked.octets() },
            ipi6_ifindex: 0,
        };
        match (self.peer.address, self.peer.asked) {
            (SocketAddr::V4(to), Some(IpAddr::V4(asked))) => {
                let info = ipv4(asked);
                let control = [ControlMessage::Ipv4PacketInfo(&info)];
                sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn::from(to)))?
            }
            (SocketAddr::V6(to), Some(IpAddr::V6(asked))) => {
                let info = ipv6(asked);
                let control = [ControlMessage::Ipv6PacketInfo(&info)];
                sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn6::from(to)))?
            }
            (SocketAddr::V4(to), _) => sendmsg(fd, &parts, &[], flags, Some(&SockaddrIn::from(to)))?,
            (SocketAddr::V6(to), _) => sendmsg(fd, &parts, &[], flags, Some(&SockaddrIn6::from(to)))?,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::op::{Message, Query};
    use hickory_proto::rr::{Name, RecordType};
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::dns::configuration::first_handler;
    use crate::dns::plugins::setup::Site;
    use crate::store::{Departed, Store};

    const KNOWN: &str = "web.lb.internal.";
    const SLOW: &str = "slow.example.";

    /// What answers, with an upstream that doesn't.
    async fn handler() -> (Arc<Handler>, UdpSocket) {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let site = Site::silent(Arc::new(Store::new(Departed::Kept))).unwrap();
        let upstream = silent.local_addr().unwrap();
        let text = format!("lb.internal {{\nlb_linker\n}}\n. {{\nforward . {upstream}\n}}\n");
        (first_handler(&text, &site).unwrap(), silent)
    }

    async fn client(last: u8, server: SocketAddr) -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        socket
    }

    async fn ask(socket: &UdpSocket, name: &str) {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        socket.send(&message.to_vec().unwrap()).await.unwrap();
    }

    async fn answered(socket: &UdpSocket) {
        let answer = timeout(Duration::from_secs(60), socket.recv(&mut [0; 1232])).await;
        answer.expect("an answer").unwrap();
    }

    fn busy(handler: &Handler) -> f64 {
        let page = handler.metrics.render(&Arc::new(Store::new(Departed::Kept))).unwrap();
        let value =
            |line: &str| line.strip_prefix("lb_linker_dns_udp_dropped_total{reason=\"busy\"} ")?.parse().ok();
        page.lines().find_map(value).unwrap()
    }

    #[tokio::test]
    async fn a_client_whose_questions_wait_leaves_room_for_those_of_others() {
        let (handler, _silent) = handler().await;
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = socket.local_addr().unwrap();
        let server = Server::new(socket, Arc::clone(&handler), 16);
        let _serving = AbortOnDropHandle::new(tokio::spawn(server.serve(CancellationToken::new())));
        let (greedy, modest) = (client(1, address).await, client(2, address).await);
        for _ in 0..20 {
            ask(&greedy, SLOW).await;
        }
        // Questions are taken in their order.
        ask(&greedy, KNOWN).await;
        answered(&greedy).await;
        assert_eq!(busy(&handler), 12.0, "it has half");
        for _ in 0..4 {
            ask(&modest, SLOW).await;
        }
        ask(&modest, KNOWN).await;
        answered(&modest).await;
        assert_eq!(busy(&handler), 12.0);
    }

    #[tokio::test]
    async fn what_had_come_when_told_to_stop_is_answered() {
        let (handler, _silent) = handler().await;
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let client = client(1, socket.local_addr().unwrap()).await;
        for _ in 0..50 {
            ask(&client, KNOWN).await;
        }
        let stop = CancellationToken::new();
        stop.cancel();
        serve(socket, handler, stop).await.unwrap();
        for _ in 0..50 {
            answered(&client).await;
        }
    }

    #[tokio::test]
    async fn a_crowd_of_questions_lets_other_tasks_have_their_turn() {
        const CROWD: usize = 200;
        let (handler, _silent) = handler().await;
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let client = client(1, socket.local_addr().unwrap()).await;
        for _ in 0..CROWD {
            ask(&client, KNOWN).await;
        }
        let stop = CancellationToken::new();
        let _serving = AbortOnDropHandle::new(tokio::spawn(serve(socket, handler, stop)));
        // One thread: by the time it is this task's turn again, what has been answered was answered in one go.
        let at_once = || std::iter::from_fn(|| client.try_recv(&mut [0; 1232]).ok()).count();
        let mut most = 0;
        let all = async {
            let mut all = 0;
            while all < CROWD {
                tokio::task::yield_now().await;
                let answered = at_once();
                (most, all) = (most.max(answered), all + answered);
            }
        };
        timeout(Duration::from_secs(60), all).await.expect("all answers");
        assert!(most <= 128, "{most} at once");
    }
}
