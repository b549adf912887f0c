//! Questions at a steady rate, whether they are answered or not, and among them those that look for changes.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;
use socket2::{Domain, Socket, Type};

use crate::dns::answered;
use crate::figures::{Spread, millis};

/// How long an answer is waited for at the end.
const LAST: Duration = Duration::from_millis(200);
/// Between two looks: then it sends what is due and takes what has come. To wake for each question and each answer
/// would take as much of the processor as the server does, and the API server needs it.
const STEP: Duration = Duration::from_micros(200);
/// The kernel's queue in front of us, in bytes: what doesn't fit would look like an answer that never came.
const RECEIVE_BUFFER: usize = 1 << 20;
/// After that a question for a change is taken for lost, and asked again.
const LOST: Duration = Duration::from_millis(20);
/// After that a change is never seen.
const PATIENCE: Duration = Duration::from_secs(5);

/// A change that has been made, and that somebody looks for.
pub struct Made {
    pub at: Instant,
    /// Its number: who has seen a later one has seen it.
    pub change: u64,
    pub question: Vec<u8>,
}

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
    /// From a change to the first answer that shows it, in milliseconds.
    pub seen: Spread,
    /// Changes that nobody ever saw.
    pub never: usize,
}

impl Load {
    /// Asks these questions in turn, so many times a second, in steps. Steps that were slept through are made up for
    /// at once.
    pub fn start(server: SocketAddr, rate: u32, questions: Vec<Vec<u8>>) -> Self {
        Self::following(server, rate, questions, channel().1)
    }

    /// Does so, and looks for changes: of the questions that are due the first are about those that haven't been seen,
    /// one about each. As many are asked, and as many at a time, whether there are changes or not.
    pub fn following(server: SocketAddr, rate: u32, questions: Vec<Vec<u8>>, made: Receiver<Made>) -> Self {
        let socket = Socket::new(Domain::for_address(server), Type::DGRAM, None).expect("a socket");
        // The kernel's limit may be lower.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        socket.connect(&server.into()).expect("an address");
        socket.set_nonblocking(true).expect("a socket that doesn't wait");
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let ask = move || Asking::new(socket.into(), questions, made).run(rate, &until);
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
    made: Receiver<Made>,
    since: Instant,
    /// When each question was sent, by its id.
    moments: Vec<Instant>,
    sent: u64,
    latency: Vec<f64>,
    /// Changes that haven't been seen, in the order in which they were made.
    open: Vec<Open>,
    seen: Vec<f64>,
    never: usize,
}

struct Open {
    made: Made,
    /// The id of the question that is under way, and when it was sent.
    asked: Option<(u16, Instant)>,
}

impl Asking {
    fn new(socket: UdpSocket, questions: Vec<Vec<u8>>, made: Receiver<Made>) -> Self {
        let since = Instant::now();
        let moments = vec![since; 1 << 16];
        let (sent, latency, open, seen, never) = Default::default();
        Self { socket, questions, made, since, moments, sent, latency, open, seen, never }
    }

    fn run(mut self, rate: u32, over: &AtomicBool) -> Outcome {
        // Without this, a sleep takes 50 µs longer than asked for.
        let _ = set_timerslack(1);
        while !over.load(Ordering::Relaxed) {
            self.take_changes();
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
        let (sent, answered) = (self.sent, self.latency.len() as u64);
        // The last changes were made too late for that.
        self.take_changes();
        while !self.open.is_empty() {
            while self.ask_for_a_change() {}
            thread::sleep(STEP);
            self.receive();
            self.give_up();
        }
        let (latency, seen) = (Spread::of(self.latency), Spread::of(self.seen));
        Outcome { sent, answered, seconds, latency, seen, never: self.never }
    }

    fn take_changes(&mut self) {
        self.open.extend(self.made.try_iter().map(|made| Open { made, asked: None }));
        self.give_up();
    }

    fn give_up(&mut self) {
        let before = self.open.len();
        self.open.retain(|open| open.made.at.elapsed() < PATIENCE);
        self.never += before - self.open.len();
    }

    fn send(&mut self) {
        if !self.ask_for_a_change() {
            let count = self.questions.len() as u64;
            let at = (self.sent % count) as usize;
            let mut question = std::mem::take(&mut self.questions[at]);
            self.ask(&mut question);
            self.questions[at] = question;
        }
    }

    /// Asks for a change that nobody has asked for since the last look; returns whether there is one.
    fn ask_for_a_change(&mut self) -> bool {
        let waits = |asked: Instant| asked.elapsed() < LOST;
        let idle = |open: &Open| open.asked.is_none_or(|(_, asked)| !waits(asked));
        let Some(at) = self.open.iter().position(idle) else { return false };
        let mut question = std::mem::take(&mut self.open[at].made.question);
        self.open[at].asked = Some((self.ask(&mut question), Instant::now()));
        self.open[at].made.question = question;
        true
    }

    fn ask(&mut self, question: &mut [u8]) -> u16 {
        let id = self.sent as u16;
        question[..2].copy_from_slice(&id.to_be_bytes());
        self.moments[usize::from(id)] = Instant::now();
        // A full queue is a lost question.
        let _ = self.socket.send(question);
        self.sent += 1;
        id
    }

    fn receive(&mut self) {
        let mut answer = [0; 1232];
        while let Ok(length) = self.socket.recv(&mut answer) {
            let now = Instant::now();
            let id = u16::from_be_bytes([answer[0], answer[1]]);
            self.latency.push(millis(self.moments[usize::from(id)], now));
            // One that was taken for lost answers nobody.
            let is_asked = |open: &Open| open.asked.is_some_and(|(asked, _)| asked == id);
            let Some(at) = self.open.iter().position(is_asked) else { continue };
            if answered(&answer[..length]).is_some_and(|change| change >= self.open[at].made.change) {
                self.seen.push(millis(self.open[at].made.at, now));
                self.open.remove(at);
            } else {
                self.open[at].asked = None;
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, answered, seconds, latency, .. } = self;
        let rate = *answered as f64 / seconds;
        let lost = sent.saturating_sub(*answered);
        let [p50, p99] = [0.5, 0.99].map(|share| latency.at(share));
        write!(f, "{rate:.0} answers/s, {lost} of {sent} lost, p50 {p50:.2} ms, p99 {p99:.2} ms")
    }
}
