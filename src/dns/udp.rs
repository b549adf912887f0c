//! DNS over UDP.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::Arc;

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
use super::{REST, bind_with, is_fatal, is_shortage};
use crate::metrics::Dropped;

/// The kernel's queue in front of us, in bytes: it bridges moments, more would only add delay.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Questions of a socket that wait for an upstream. More than an upstream takes at once: it refuses
/// what is beyond its own bound, so that this one is only for what waits without asking.
const MAX_WAITING: usize = 4096;

/// Opens a socket for DNS over UDP.
///
/// # Errors
/// If the address can't be had.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
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

/// Serves a socket until `stop`; then lets the answers under way go out.
///
/// # Errors
/// If the socket is broken.
pub async fn serve(socket: UdpSocket, handler: Arc<Handler>, stop: CancellationToken) -> io::Result<()> {
    let socket = Arc::new(socket);
    let mut waiting = JoinSet::new();
    let mut lost = 0;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let (length, peer) = tokio::select! {
            received = receive(&socket, &mut buffer) => match received {
                Ok(received) => received,
                Err(error) if is_fatal(&error) => return Err(error),
                // An earlier answer of ours found nobody (ICMP), or memory is short just now.
                Err(error) => {
                    debug!("UDP: {error}");
                    if is_shortage(&error) {
                        tokio::time::sleep(REST).await;
                    }
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        // The kernel tells how many it has dropped so far.
        if peer.lost != lost {
            handler.metrics.dropped(Dropped::Queue, peer.lost.wrapping_sub(lost));
            lost = peer.lost;
        }
        while waiting.try_join_next().is_some() {}
        let reply = Reply { socket: Arc::clone(&socket), peer };
        let message = buffer[..length].to_vec();
        let mut answering = Box::pin(answer(Arc::clone(&handler), message, reply));
        // What we know is answered here and now; only who waits for an upstream gets a task.
        if futures::poll!(&mut answering).is_pending() {
            if waiting.len() < MAX_WAITING {
                waiting.spawn(answering);
            } else {
                handler.metrics.dropped(Dropped::Busy, 1);
            }
        }
    }
    while waiting.join_next().await.is_some() {}
    Ok(())
}

async fn answer(handler: Arc<Handler>, message: Vec<u8>, reply: Reply) {
    if let Some(bytes) = handler.answer(message, reply.peer.address, Protocol::Udp).await {
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
