//! CNAME and A queries over UDP without a DNS library, which would add its own cost to the measured latencies.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const A: u8 = 1;
const CNAME: u8 = 5;
/// The first octet of the addresses of [`endpoint`].
const CHANGED: u8 = 11;
/// The time after which a query counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a link's target after change number `change`: unique, and as long as the hostnames of clouds.
pub fn host(change: u64, link: usize) -> String {
    format!(
        "n{change}.a{:016x}.elb.eu-west-1.example.com",
        (link as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    )
}

/// Returns the number of the change that set a target of [`host`].
pub fn change_of(host: &str) -> Option<u64> {
    host.strip_prefix('n')?.split('.').next()?.parse().ok()
}

/// Returns the address that change number `change`, below 2^24, gives an endpoint.
pub fn endpoint(change: u64) -> Ipv4Addr {
    let number = u32::try_from(change).expect("a small number") & 0xff_ffff;
    Ipv4Addr::from(u32::from_be_bytes([CHANGED, 0, 0, 0]) | number)
}

/// Returns a CNAME query with RD and EDNS.
pub fn question(name: &str) -> Vec<u8> {
    question_of(name, CNAME)
}

/// Like [`question`], for the type A.
pub fn address_question(name: &str) -> Vec<u8> {
    question_of(name, A)
}

fn question_of(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, kind, 0, 1]);
    // OPT with a UDP payload size of 1,232 bytes.
    bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Returns the number of the last change that set the CNAME target or an address in an answer, or `None` if the answer
/// has no target of [`host`] and no address of [`endpoint`].
pub fn answered(answer: &[u8]) -> Option<u64> {
    let count = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at + 1)?]));
    if count(4)? != 1 {
        return None;
    }
    let (mut at, mut last) = (name_end(answer, 12)? + 4, None);
    for _ in 0..count(6)? {
        // The owner is a pointer or the full name. Type, class, TTL and length take 10 bytes.
        let kind = name_end(answer, at)?;
        let data = kind + 10;
        let end = data + usize::from(count(kind + 8)?);
        last = last.max(change_in(*answer.get(kind + 1)?, answer.get(data..end)?));
        at = end;
    }
    last
}

fn change_in(kind: u8, data: &[u8]) -> Option<u64> {
    match (kind, data) {
        (A, [CHANGED, number @ ..]) => Some(number.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet))),
        (CNAME, [length, name @ ..]) => {
            change_of(std::str::from_utf8(name.get(..usize::from(*length))?).ok()?)
        }
        _ => None,
    }
}

fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            pointer if pointer >= 0xc0 => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}

/// A client with one outstanding query.
pub struct SerialClient {
    socket: UdpSocket,
    id: u16,
}

impl SerialClient {
    pub fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(server).expect("an address");
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a timeout");
        Self { socket, id: 0 }
    }

    /// Sends a query, and returns the number of the change that set the answer's target, or `None` without an answer.
    pub fn ask(&mut self, question: &mut [u8]) -> Option<u64> {
        self.id = self.id.wrapping_add(1);
        question[..2].copy_from_slice(&self.id.to_be_bytes());
        self.socket.send(question).expect("send a question");
        let mut answer = [0; 1232];
        // Skip late answers to earlier queries.
        loop {
            let length = self.socket.recv(&mut answer).ok()?;
            if answer[..2] == question[..2] {
                return answered(&answer[..length]);
            }
        }
    }

    /// Repeats a query until the answer has the target that `change` set. Returns the time of that answer, or `None`
    /// after the timeout.
    pub fn until(&mut self, question: &mut [u8], change: u64, timeout: Duration) -> Option<Instant> {
        let begun = Instant::now();
        while begun.elapsed() <= timeout {
            if self.ask(question) == Some(change) {
                return Some(Instant::now());
            }
        }
        None
    }
}
