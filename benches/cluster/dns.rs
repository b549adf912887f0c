//! Questions for the CNAME of a name, by UDP, without a library: their cost is the bench's, not the server's.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// A question that isn't answered by then is lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// The target that the n-th change of all gives to a link: as long as those that clouds give, and nobody else's.
pub fn host(change: u64, link: usize) -> String {
    format!(
        "n{change}.a{:016x}.elb.eu-west-1.example.com",
        (link as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    )
}

/// Which change a target is of.
pub fn change_of(host: &str) -> Option<u64> {
    host.strip_prefix('n')?.split('.').next()?.parse().ok()
}

/// A question for the CNAME of a name, with RD and EDNS.
pub fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 5, 0, 1]);
    // OPT, 1232 bytes.
    bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Which change the target in an answer is of. Nothing if it isn't an alias of ours.
pub fn answered(answer: &[u8]) -> Option<u64> {
    let count = |at: usize| answer.get(at).copied().unwrap_or(0);
    if answer.len() < 12 || count(5) != 1 || count(7) == 0 {
        return None;
    }
    // The question, then the owner: a pointer or the name again; type, class, TTL and length take 10 bytes.
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

/// One who has one question outstanding.
pub struct Asker {
    socket: UdpSocket,
    id: u16,
}

impl Asker {
    pub fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(server).expect("an address");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { socket, id: 0 }
    }

    /// Asks, and returns which change the answer's target is of.
    pub fn ask(&mut self, question: &mut [u8]) -> Option<u64> {
        self.id = self.id.wrapping_add(1);
        question[..2].copy_from_slice(&self.id.to_be_bytes());
        self.socket.send(question).expect("send a question");
        let mut answer = [0; 1232];
        // One that came too late is another's.
        loop {
            let length = self.socket.recv(&mut answer).ok()?;
            if answer[..2] == question[..2] {
                return answered(&answer[..length]);
            }
        }
    }

    /// Asks until the target is the one of this change, and returns when that was.
    pub fn until(&mut self, question: &mut [u8], change: u64, patience: Duration) -> Option<Reached> {
        let begun = Instant::now();
        let mut first = None;
        loop {
            let seen = self.ask(question);
            let at = Instant::now();
            let at_once = first.is_none();
            let first = *first.get_or_insert(at);
            if seen == Some(change) {
                return Some(Reached { at, first: first - begun, at_once });
            }
            if at - begun > patience {
                return None;
            }
        }
    }
}

/// When a change has reached DNS.
pub struct Reached {
    pub at: Instant,
    /// How long the first question took, whatever its answer was.
    pub first: Duration,
    /// Whether that answer was it.
    pub at_once: bool,
}
