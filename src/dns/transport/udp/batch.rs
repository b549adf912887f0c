//! Receives and sends many datagrams with one system call: recvmmsg(2), sendmmsg(2).
//!
//! No crate offers both with a control message for each datagram, so this module fills in the kernel's structures
//! itself.
#![expect(unsafe_code, reason = "the kernel is given pointers into the buffers of a batch")]

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use nix::libc;
use socket2::SockAddr;
use tracing::debug;

use super::answer_socket::AnswerSocket;
use super::pending::Peer;
use crate::dns::message::header::MAX_UDP;
use crate::dns::net::is_out_of_resources;

/// The maximum number of datagrams per system call.
pub(super) const BATCH_SIZE: usize = 64;
/// The maximum size of a query in bytes. EDNS nevertheless advertises [`MAX_UDP`].
const MAX_REQUEST_BYTES: usize = 4096;
/// The size of the control messages in bytes: the local address, and the number of dropped datagrams.
const CONTROL_BYTES: usize = 64;
/// The maximum number of repeated attempts to send an answer after errors that concern earlier answers.
const MAX_SEND_RETRIES: usize = 4;

/// Buffers for received datagrams and their answers.
pub(super) struct DatagramBatch {
    requests: Box<[[u8; MAX_REQUEST_BYTES]]>,
    peers: Box<[libc::sockaddr_storage]>,
    incoming: Headers,
    answers: Box<[[u8; MAX_UDP as usize]]>,
    outgoing: Headers,
    received: usize,
    answered: usize,
}

/// The structures for the kernel. All pointers lead to boxes in the same batch, which never move.
struct Headers {
    controls: Box<[ControlBuffer]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

#[derive(Clone, Copy)]
#[repr(align(8))]
struct ControlBuffer([u8; CONTROL_BYTES]);

impl Headers {
    fn new<const LENGTH: usize>(buffers: &mut [[u8; LENGTH]], peers: &mut [libc::sockaddr_storage]) -> Self {
        let mut controls = vec![ControlBuffer([0; CONTROL_BYTES]); BATCH_SIZE].into_boxed_slice();
        let mut vectors: Box<[libc::iovec]> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: LENGTH })
            .collect();
        let headers = vectors.iter_mut().zip(peers).zip(&mut controls).map(|((vector, peer), control)| {
            // SAFETY: zero is a valid value of every field; on some systems the struct has padding.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_name = ptr::from_mut(peer).cast();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header
        });
        let headers = headers.collect();
        Self { controls, vectors, headers }
    }
}

impl DatagramBatch {
    pub(super) fn new() -> Self {
        let mut requests = vec![[0; MAX_REQUEST_BYTES]; BATCH_SIZE].into_boxed_slice();
        let mut answers = vec![[0; MAX_UDP as usize]; BATCH_SIZE].into_boxed_slice();
        // SAFETY: zero is a valid value of every field.
        let mut peers =
            vec![unsafe { mem::zeroed::<libc::sockaddr_storage>() }; BATCH_SIZE].into_boxed_slice();
        let incoming = Headers::new(&mut requests, &mut peers);
        let outgoing = Headers::new(&mut answers, &mut peers);
        let mut batch =
            Self { requests, peers, incoming, answers, outgoing, received: BATCH_SIZE, answered: 0 };
        batch.clear();
        batch
    }

    /// Receives the datagrams in the receive buffer; with `wait`, waits for the first one. Returns their number.
    ///
    /// # Errors
    /// If there is no datagram, or the kernel reports an error of the socket.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, wait: bool) -> io::Result<usize> {
        self.clear();
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: the headers point to buffers of this batch, with correct lengths; no other reference to them exists
        // now.
        let received = unsafe {
            #[allow(clippy::cast_possible_truncation, reason = "it is a small constant")]
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.incoming.headers.as_mut_ptr(),
                BATCH_SIZE as libc::c_uint,
                flags as _,
                ptr::null_mut(),
            )
        };
        self.received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.received)
    }

    /// Resets the headers to the full sizes of the buffers.
    fn clear(&mut self) {
        #[allow(clippy::cast_possible_truncation, reason = "they are small constants")]
        for header in &mut self.incoming.headers[..self.received] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            header.msg_hdr.msg_flags = 0;
        }
        (self.received, self.answered) = (0, 0);
    }

    pub(super) fn query_and_answer_buffer(&mut self, at: usize) -> (&[u8], &mut [u8]) {
        let length = self.length(at);
        (&self.requests[at][..length], &mut self.answers[self.answered])
    }

    pub(super) fn datagram(&self, at: usize) -> &[u8] {
        &self.requests[at][..self.length(at)]
    }

    fn length(&self, at: usize) -> usize {
        (self.incoming.headers[at].msg_len as usize).min(MAX_REQUEST_BYTES)
    }

    /// Returns whether a datagram was longer than its buffer.
    pub(super) fn is_truncated(&self, at: usize) -> bool {
        self.incoming.headers[at].msg_hdr.msg_flags & libc::MSG_TRUNC != 0
    }

    /// Returns the sender of a datagram; `None` if the address can't be answered.
    pub(super) fn peer(&self, at: usize) -> Option<Peer> {
        let header = &self.incoming.headers[at].msg_hdr;
        let address = address(&self.peers[at], header.msg_namelen)?;
        let (mut local_address, mut kernel_drops) = (None, 0);
        // SAFETY: the kernel has filled in the control messages and their length. Their data may be unaligned.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(header);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        let info = ptr::read_unaligned(data.cast::<libc::in_pktinfo>());
                        local_address = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info = ptr::read_unaligned(data.cast::<libc::in6_pktinfo>());
                        local_address = Some(IpAddr::from(info.ipi6_addr.s6_addr));
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        kernel_drops = ptr::read_unaligned(data.cast::<u32>())
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(header, control);
            }
        }
        Some(Peer { address, client: address, local: local_address, kernel_drops })
    }

    /// Queues `length` bytes of the answer buffer for the sender of a datagram, to be sent from the address
    /// `local_address`.
    pub(super) fn answer(&mut self, at: usize, local_address: Option<IpAddr>, length: usize) {
        let outgoing = &mut self.outgoing;
        outgoing.vectors[self.answered].iov_len = length;
        let name = &raw mut self.peers[at];
        let header = &mut outgoing.headers[self.answered].msg_hdr;
        header.msg_name = name.cast();
        header.msg_namelen = self.incoming.headers[at].msg_hdr.msg_namelen;
        header.msg_control = outgoing.controls[self.answered].0.as_mut_ptr().cast();
        // SAFETY: the buffer has room for either control message.
        header.msg_controllen = unsafe { write_source_address(header, local_address) };
        self.answered += 1;
    }

    /// Sends the answers. An answer that the kernel refuses is counted and not repeated, because the client retries.
    pub(super) fn send(&mut self, socket: &AnswerSocket) {
        // SAFETY: the headers point to buffers of this batch; the kernel has filled in the addresses.
        unsafe { send(socket, &mut self.outgoing.headers[..self.answered]) };
        self.answered = 0;
    }
}

/// An answer that isn't in the buffers of a [`DatagramBatch`].
pub(super) struct OutgoingDatagram {
    pub(super) peer: Peer,
    pub(super) bytes: Vec<u8>,
}

/// Sends answers that aren't in a [`DatagramBatch`], at most [`BATCH_SIZE`] per system call, and counts answers that
/// the kernel refuses.
pub(super) fn send_all(socket: &AnswerSocket, answers: &mut [OutgoingDatagram]) {
    for answers in answers.chunks_mut(BATCH_SIZE) {
        let names: Vec<SockAddr> = answers.iter().map(|answer| answer.peer.address.into()).collect();
        let mut controls = vec![ControlBuffer([0; CONTROL_BYTES]); answers.len()];
        let mut vectors: Vec<libc::iovec> = answers
            .iter_mut()
            .map(|OutgoingDatagram { bytes, .. }| libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            })
            .collect();
        let parts = answers.iter().zip(&names).zip(&mut vectors).zip(&mut controls);
        let headers = parts.map(|(((answer, name), vector), control)| {
            // SAFETY: zero is a valid value of every field, and the buffer has room for either control message.
            unsafe {
                let mut header: libc::mmsghdr = mem::zeroed();
                header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = name.len();
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = write_source_address(&mut header.msg_hdr, answer.peer.local);
                header
            }
        });
        let mut headers: Vec<libc::mmsghdr> = headers.collect();
        // SAFETY: the headers point to the buffers above, with correct lengths; the kernel only reads the buffers.
        unsafe { send(socket, &mut headers) };
    }
}

/// Sends datagrams, and counts datagrams that the kernel refuses.
///
/// # Safety
/// The headers must point to valid buffers of the lengths that they contain.
unsafe fn send(socket: &AnswerSocket, headers: &mut [libc::mmsghdr]) {
    let (mut done, mut refused, mut retries) = (0, 0, 0);
    while done < headers.len() {
        let left = &mut headers[done..];
        // SAFETY: the caller guarantees valid headers.
        let sent = unsafe {
            #[allow(clippy::cast_possible_truncation, reason = "there are no more than a batch has")]
            let number = left.len() as libc::c_uint;
            libc::sendmmsg(socket.as_fd().as_raw_fd(), left.as_mut_ptr(), number, libc::MSG_DONTWAIT as _)
        };
        if let Ok(sent) = usize::try_from(sent) {
            (done, retries) = (done + sent, 0);
            continue;
        }
        let error = io::Error::last_os_error();
        // The error may concern an earlier answer (ICMP): the kernel reports it once, and has sent nothing.
        if retries < MAX_SEND_RETRIES && !is_full(&error) {
            retries += 1;
            socket.read_errors();
            continue;
        }
        debug!("UDP: an answer is lost: {error}");
        (done, refused, retries) = (done + 1, refused + 1, 0);
    }
    socket.count_refused(refused);
}

/// Returns whether the send buffer or the queue of the interface is full.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || is_out_of_resources(error)
}

/// Returns the number of bytes in a socket's send buffer (SIOCOUTQ of udp(7)).
pub(super) fn queued_bytes(socket: BorrowedFd<'_>) -> usize {
    let mut queued: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `queued`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
    if result == 0 { usize::try_from(queued).unwrap_or(0) } else { 0 }
}

/// Returns the address, if it can be answered: its port must not be 0.
fn address(peer: &libc::sockaddr_storage, length: libc::socklen_t) -> Option<SocketAddr> {
    let (peer, length) = (ptr::from_ref(peer), length as usize);
    // SAFETY: the family determines the type, and the length is checked; a storage is aligned for all families.
    let address = unsafe {
        match libc::c_int::from((*peer).ss_family) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let peer = &*peer.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(peer.sin_addr.s_addr.to_ne_bytes());
                SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(peer.sin_port)))
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let peer = &*peer.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(peer.sin6_addr.s6_addr);
                let (flow, scope) = (peer.sin6_flowinfo, peer.sin6_scope_id);
                SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(peer.sin6_port), flow, scope))
            }
            _ => return None,
        }
    };
    (address.port() != 0).then_some(address)
}

/// Writes the source address of an answer into the control message of a header, and returns the message's length. The
/// routes determine the interface, except for link-local peers: their addresses contain the interface.
///
/// # Safety
/// The control buffer of the header must have room for [`CONTROL_BYTES`] bytes.
unsafe fn write_source_address(header: &mut libc::msghdr, local_address: Option<IpAddr>) -> ControlLength {
    unsafe fn write<T>(
        header: &mut libc::msghdr,
        level: libc::c_int,
        kind: libc::c_int,
        data: T,
    ) -> ControlLength {
        const { assert!(size_of::<T>() <= CONTROL_BYTES / 2) };
        #[allow(clippy::cast_possible_truncation, reason = "it is no longer than the buffer")]
        let (length, space) =
            unsafe { (libc::CMSG_LEN(size_of::<T>() as _), libc::CMSG_SPACE(size_of::<T>() as _)) };
        header.msg_controllen = space as ControlLength;
        unsafe {
            let control = libc::CMSG_FIRSTHDR(header);
            (*control).cmsg_level = level;
            (*control).cmsg_type = kind;
            (*control).cmsg_len = length as _;
            ptr::write_unaligned(libc::CMSG_DATA(control).cast::<T>(), data);
        }
        space as ControlLength
    }
    match local_address {
        None => 0,
        Some(IpAddr::V4(ip)) => {
            let nowhere = libc::in_addr { s_addr: 0 };
            let from = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: nowhere };
            unsafe { write(header, libc::IPPROTO_IP, libc::IP_PKTINFO, info) }
        }
        Some(IpAddr::V6(ip)) => {
            let from = libc::in6_addr { s6_addr: ip.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: from, ipi6_ifindex: 0 };
            unsafe { write(header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info) }
        }
    }
}

/// The type of `msg_controllen` depends on the C library.
#[cfg(target_env = "musl")]
type ControlLength = libc::socklen_t;
#[cfg(not(target_env = "musl"))]
type ControlLength = usize;
