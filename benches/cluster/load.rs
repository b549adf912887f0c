//! Questions at a steady rate, whether they are answered or not.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;
use socket2::{Domain, Socket, Type};

use crate::figures::Spread;

/// How long an answer is waited for at the end.
const LAST: Duration = Duration::from_millis(200);
/// Between two looks: then it sends what is due and takes what has come. To wake for each question and each answer
/// would take as much of the processor as the server does, and the API server needs it.
const STEP: Duration = Duration::from_micros(200);
/// The kernel's queue in front of us, in bytes: what doesn't fit would look like an answer that never came.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Somebody who asks.
pub struct Load {
    over: Arc<AtomicBool>,
    asking: JoinHandle<Outcome>,
}

/// What came of it.
pub struct Outcome {
    pub sent: u64,
    pub answered: u64,
    pub seconds: f64,
    /// Of the answers, in milliseconds.
    pub latency: Spread,
}

impl Load {
    /// Asks these questions in turn, so many times a second, in steps. Steps that were slept through are made up for
    /// at once.
    pub fn start(server: SocketAddr, rate: u32, questions: Vec<Vec<u8>>) -> Self {
        let socket = Socket::new(Domain::for_address(server), Type::DGRAM, None).expect("a socket");
        // The kernel's limit may be lower.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        socket.connect(&server.into()).expect("an address");
        socket.set_nonblocking(true).expect("a socket that doesn't wait");
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let ask = move || Asking::new(socket.into(), questions).run(rate, &until);
        Self { over, asking: Builder::new().name("bench-ask".to_owned()).spawn(ask).expect("a thread") }
    }

    /// Stops asking.
    pub fn stop(self) -> Outcome {
        self.over.store(true, Ordering::Relaxed);
        self.asking.join().expect("it doesn't panic")
    }
}

struct Asking {
    socket: UdpSocket,
    questions: Vec<Vec<u8>>,
    since: Instant,
    /// When each question was sent, by its id.
    moments: Vec<Instant>,
    sent: u64,
    latency: Vec<f64>,
}

impl Asking {
    fn new(socket: UdpSocket, questions: Vec<Vec<u8>>) -> Self {
        let since = Instant::now();
        let moments = vec![since; 1 << 16];
        Self { socket, questions, since, moments, sent: 0, latency: Vec::new() }
    }

    fn run(mut self, rate: u32, over: &AtomicBool) -> Outcome {
        // Without this, a sleep takes 50 µs longer than asked for.
        let _ = set_timerslack(1);
        while !over.load(Ordering::Relaxed) {
            let due = (self.since.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            while self.sent < due {
                self.send();
            }
            thread::sleep(STEP);
            self.receive();
        }
        let (seconds, end) = (self.since.elapsed().as_secs_f64(), Instant::now() + LAST);
        while Instant::now() < end {
            thread::sleep(STEP);
            self.receive();
        }
        let answered = self.latency.len() as u64;
        Outcome { sent: self.sent, answered, seconds, latency: Spread::of(self.latency) }
    }

    fn send(&mut self) {
        let (id, count) = (self.sent as u16, self.questions.len() as u64);
        let question = &mut self.questions[(self.sent % count) as usize];
        question[..2].copy_from_slice(&id.to_be_bytes());
        self.moments[usize::from(id)] = Instant::now();
        // A full queue is a lost question.
        let _ = self.socket.send(question);
        self.sent += 1;
    }

    fn receive(&mut self) {
        let mut answer = [0; 1232];
        while self.socket.recv(&mut answer).is_ok() {
            let id = u16::from_be_bytes([answer[0], answer[1]]);
            self.latency.push(self.moments[usize::from(id)].elapsed().as_secs_f64() * 1e3);
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, answered, seconds, latency } = self;
        let rate = *answered as f64 / seconds;
        let lost = sent.saturating_sub(*answered);
        let [p50, p99] = [0.5, 0.99].map(|share| latency.at(share));
        write!(f, "{rate:.0} answers/s, {lost} of {sent} lost, p50 {p50:.2} ms, p99 {p99:.2} ms")
    }
}
