//! CNAME queries over UDP without a DNS library, which would add its own cost to the measured latencies.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

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

/// Returns a CNAME query with RD and EDNS.
pub fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 5, 0, 1]);
    // OPT with a UDP payload size of 1,232 bytes.
    bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Returns the number of the change that set the CNAME target in an answer, or `None` if the answer has no target of
/// [`host`].
pub fn answered(answer: &[u8]) -> Option<u64> {
    let count = |at: usize| answer.get(at).copied().unwrap_or(0);
    if answer.len() < 12 || count(5) != 1 || count(7) == 0 {
        return None;
    }
    // The question is followed by the owner, which is a pointer or the full name. Type, class, TTL and length take 10
    // bytes.
    let target = name_end(answer, name_end(answer, 12)? + 4)? + 10;
    let length = usize::from(*answer.get(target)?);
    let label = std::str::from_utf8(answer.get(target + 1..target + 1 + length)?).ok()?;
    change_of(label)
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
