//! The floor: the cost of the kernel's UDP path, which every DNS server pays.
//!
//! The floor receives batches with recvmmsg, looks up each query in a map of prepared answers, and sends batches with
//! sendmmsg. It blocks in the kernel until datagrams arrive, and parses no DNS.

#![expect(unsafe_code, reason = "calls libc directly, without the cost of a wrapper")]

use std::collections::HashMap;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use nix::libc::{
    self, c_int, c_void, in6_pktinfo, iovec, mmsghdr, recvmmsg, sendmmsg, setsockopt, sockaddr_in6, socklen_t,
};
use socket2::{Domain, Socket, Type};

/// The maximum number of datagrams per system call.
const BATCH: usize = 64;
/// The maximum size of a query or an answer, in bytes.
const SIZE: usize = 4096;
/// The size of the socket's receive buffer in bytes, the same as lb-linker's.
const RECEIVE_BUFFER: c_int = 1 << 20;
/// The size of the control message with the destination address: an in6_pktinfo, or the smaller in_pktinfo.
const CONTROL: usize = 40;
/// The size of the id at the start of a message.
const ID: usize = 2;

/// Answers by query, both without ids.
type Answers = HashMap<Box<[u8]>, Box<[u8]>>;

/// Answers queries at an address until the process is killed.
pub fn serve(address: SocketAddr, answers: &Path) -> io::Result<()> {
    let answers = read(answers)?;
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    // The benchmark holds a socket on the port to reserve it.
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    let socket = UdpSocket::from(socket);
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
    let wildcard = address.ip().is_unspecified();
    if wildcard && address.is_ipv6() {
        option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    } else if wildcard {
        option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    }
    eprintln!("floor: {} answers on {}", answers.len(), socket.local_addr()?);
    Batch::new(wildcard).answer_all(socket.as_raw_fd(), &answers)
}

/// Reads lines with a query and its answer in hexadecimal.
fn read(path: &Path) -> io::Result<Answers> {
    let text = std::fs::read_to_string(path)?;
    let pairs = text.lines().map(|line| {
        let (question, answer) = line.split_once(' ')?;
        Some((bytes(question)?, bytes(answer)?))
    });
    pairs.collect::<Option<_>>().ok_or_else(|| io::Error::other("a line isn't a question and an answer"))
}

fn bytes(hexadecimal: &str) -> Option<Box<[u8]>> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn option(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer refers to a c_int, and the length argument is its size.
    let code = unsafe {
        setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The buffers that the kernel writes and reads. The headers point into the other boxes, which never move.
struct Batch {
    wildcard: bool,
    /// The number of entries at the front that the last batch has used.
    used: usize,
    headers: Box<[mmsghdr; BATCH]>,
    parts: Box<[iovec; BATCH]>,
    peers: Box<[sockaddr_in6; BATCH]>,
    controls: Box<[Control; BATCH]>,
    buffers: Box<[[u8; SIZE]; BATCH]>,
}

/// Control messages need the alignment of a cmsghdr.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

impl Batch {
    fn new(wildcard: bool) -> Self {
        const { assert!(size_of::<libc::cmsghdr>() + size_of::<in6_pktinfo>() <= CONTROL) };
        Self {
            wildcard,
            used: BATCH,
            // SAFETY: these are C structures of numbers and pointers, for which zeros are valid.
            headers: Box::new(unsafe { zeroed() }),
            parts: Box::new(unsafe { zeroed() }),
            peers: Box::new(unsafe { zeroed() }),
            controls: Box::new([Control([0; CONTROL]); BATCH]),
            buffers: vec![[0; SIZE]; BATCH].try_into().expect("BATCH buffers"),
        }
    }

    fn answer_all(&mut self, socket: RawFd, answers: &Answers) -> io::Result<()> {
        loop {
            let received = self.receive(socket)?;
            let ready = self.look_up(received, answers);
            self.send(socket, ready)?;
        }
    }

    /// Waits for a datagram, and receives all that are available.
    fn receive(&mut self, socket: RawFd) -> io::Result<usize> {
        for i in 0..self.used {
            self.parts[i] = iovec { iov_base: self.buffers[i].as_mut_ptr().cast(), iov_len: SIZE };
            let header = &mut self.headers[i].msg_hdr;
            header.msg_name = (&raw mut self.peers[i]).cast();
            header.msg_namelen = size_of::<sockaddr_in6>() as socklen_t;
            header.msg_iov = &raw mut self.parts[i];
            header.msg_iovlen = 1;
            if self.wildcard {
                header.msg_control = (&raw mut self.controls[i]).cast();
                header.msg_controllen = CONTROL;
            }
        }
        let flags = libc::MSG_WAITFORONE;
        // SAFETY: there are BATCH headers; their pointers are valid for as long as `self` lives and for the lengths
        // in the headers.
        let received =
            unsafe { recvmmsg(socket, self.headers.as_mut_ptr(), BATCH as u32, flags, std::ptr::null_mut()) };
        self.used = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.used)
    }

    /// Replaces each query that has an answer by the answer, and moves its header to the front. The header keeps the
    /// destination address, from which the answer is sent. Returns the number of answers.
    fn look_up(&mut self, received: usize, answers: &Answers) -> usize {
        let mut ready = 0;
        for i in 0..received {
            let length = self.headers[i].msg_len as usize;
            let Some(answer) = self.buffers[i].get(ID..length).and_then(|question| answers.get(question))
            else {
                continue;
            };
            self.buffers[i][ID..ID + answer.len()].copy_from_slice(answer);
            self.parts[i].iov_len = ID + answer.len();
            self.headers.swap(ready, i);
            ready += 1;
        }
        ready
    }

    fn send(&mut self, socket: RawFd, ready: usize) -> io::Result<()> {
        let mut sent = 0;
        while sent < ready {
            let rest = &mut self.headers[sent..ready];
            // SAFETY: as in `receive`; the kernel has set the lengths of names and controls to what it wrote.
            let code = unsafe { sendmmsg(socket, rest.as_mut_ptr(), rest.len() as u32, 0) };
            sent += usize::try_from(code).map_err(|_| io::Error::last_os_error())?;
        }
        Ok(())
    }
}
