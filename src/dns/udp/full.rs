//! The full handler's side of a socket: what no thread can answer by itself.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use futures::FutureExt;
use hickory_server::net::xfer::Protocol;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, SockaddrIn6, sendmsg};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tracing::debug;

use super::{Keep, Peer, Question};
use crate::dns::handler::Handler;
use crate::dns::shares::Shares;
use crate::dns::unmapped;
use crate::metrics::Dropped;

/// Questions that are answered in one go, before others have their turn.
const TURN: usize = 64;

pub(super) struct Full {
    socket: Arc<UdpSocket>,
    handler: Arc<Handler>,
    shares: Arc<Shares>,
    keep: SyncSender<Keep>,
    /// Questions that wait for an upstream, and whose they are.
    waiting: JoinSet<()>,
}

impl Full {
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        handler: Arc<Handler>,
        shares: Arc<Shares>,
        keep: SyncSender<Keep>,
    ) -> Self {
        Self { socket, handler, shares, keep, waiting: JoinSet::new() }
    }

    /// Answers all questions, until there are no more.
    pub(super) async fn serve(mut self, mut questions: Receiver<Question>) {
        let mut asked = Vec::with_capacity(TURN);
        while questions.recv_many(&mut asked, TURN).await > 0 {
            asked.drain(..).for_each(|question| self.take(question));
            tokio::task::yield_now().await;
        }
        while self.waiting.join_next().await.is_some() {}
    }

    /// Answers a question now, or later if it has to wait for an upstream.
    fn take(&mut self, question: Question) {
        while self.waiting.try_join_next().is_some() {}
        let client = unmapped(question.peer.address).ip();
        let reply = Reply { socket: Arc::clone(&self.socket), peer: question.peer };
        let mut answering = Box::pin(answer(Arc::clone(&self.handler), question, reply, self.keep.clone()));
        // What we know is answered here and now; only who waits for an upstream gets a task.
        if (&mut answering).now_or_never().is_some() {
            return;
        }
        let Some(share) = self.shares.take(client, 1) else {
            self.handler.metrics.dropped(Dropped::Busy, 1);
            return;
        };
        self.waiting.spawn(async move {
            answering.await;
            drop(share);
        });
    }
}

async fn answer(handler: Arc<Handler>, question: Question, reply: Reply, keep: SyncSender<Keep>) {
    let Question { message, peer: Peer { address, asked, .. }, key, ticket } = question;
    if let Some(answer) = handler.answer(message, address, asked, Protocol::Udp).await {
        reply.send(&answer.bytes);
        if let (Some(key), Some(packet)) = (key, answer.packet) {
            // The next one of the kind will be kept where there is no room for this one.
            let _ = keep.try_send(Keep { key, client: unmapped(address).ip(), packet });
        }
    }
    drop(ticket);
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
        if let Err(error) = self.send_now(bytes) {
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
