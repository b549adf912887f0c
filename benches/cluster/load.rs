//! Queries at a constant rate, whether they are answered or not; some of the queries look for changes.

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

/// The time to wait for the last answers.
const LAST: Duration = Duration::from_millis(200);
/// The interval between two steps; each step sends the due queries and receives the available answers. A wake-up for
/// each query and each answer would use as much CPU time as the server does, and the API server needs that time.
const STEP: Duration = Duration::from_micros(200);
/// The size of the socket's receive buffer in bytes. Answers that don't fit would count as lost.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The time after which a query for a change counts as lost and is repeated.
const LOST: Duration = Duration::from_millis(20);
/// The time after which a change counts as never seen.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// A change that was made and must become visible in answers.
pub struct Change {
    pub at: Instant,
    /// The number of the change: an answer with a later change shows this change, too.
    pub change: u64,
    pub question: Vec<u8>,
}

pub struct Load {
    over: Arc<AtomicBool>,
    asking: JoinHandle<Outcome>,
}

pub struct Outcome {
    pub sent: u64,
    pub answered: u64,
    pub seconds: f64,
    /// The latencies of the answers, in milliseconds.
    pub latency: Spread,
    /// The times from a change to the first answer with this change, in milliseconds.
    pub seen: Spread,
    /// The number of changes that no answer showed.
    pub never: usize,
}

impl Load {
    /// Sends these queries in turn, `rate` per second. After a delay, overdue queries are sent at once.
    pub fn start(server: SocketAddr, rate: u32, questions: Vec<Vec<u8>>) -> Self {
        Self::following(server, rate, questions, channel().1)
    }

    /// Like [`Self::start`], and looks for changes: the first due queries of a step ask for the changes that haven't
    /// been seen, one query for each change. These queries count in `rate`, so the number of queries, and of queries
    /// per step, is the same with and without changes.
    pub fn following(server: SocketAddr, rate: u32, questions: Vec<Vec<u8>>, made: Receiver<Change>) -> Self {
        let socket = Socket::new(Domain::for_address(server), Type::DGRAM, None).expect("a socket");
        // The kernel may limit the size.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        socket.connect(&server.into()).expect("an address");
        socket.set_nonblocking(true).expect("a socket that doesn't wait");
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let ask = move || Client::new(socket.into(), questions, made).run(rate, &until);
        Self { over, asking: Builder::new().name("bench-ask".to_owned()).spawn(ask).expect("a thread") }
    }

    pub fn stop(self) -> Outcome {
        self.over.store(true, Ordering::Relaxed);
        self.asking.join().expect("the client doesn't panic")
    }
}

struct Client {
    socket: UdpSocket,
    questions: Vec<Vec<u8>>,
    made: Receiver<Change>,
    since: Instant,
    /// The time at which each query was sent, by id.
    moments: Vec<Instant>,
    sent: u64,
    latency: Vec<f64>,
    /// Changes that haven't been seen, in the order of the changes.
    open: Vec<PendingChange>,
    seen: Vec<f64>,
    never: usize,
}

struct PendingChange {
    made: Change,
    /// The id of the outstanding query, and when it was sent.
    asked: Option<(u16, Instant)>,
}

impl Client {
    fn new(socket: UdpSocket, questions: Vec<Vec<u8>>, made: Receiver<Change>) -> Self {
        let since = Instant::now();
        let moments = vec![since; 1 << 16];
        let (sent, latency, open, seen, never) = Default::default();
        Self { socket, questions, made, since, moments, sent, latency, open, seen, never }
    }

    fn run(mut self, rate: u32, over: &AtomicBool) -> Outcome {
        // The default timer slack makes a sleep 50 µs longer.
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
        // The last changes came too late for the loop above.
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
        self.open.extend(self.made.try_iter().map(|made| PendingChange { made, asked: None }));
        self.give_up();
    }

    fn give_up(&mut self) {
        let before = self.open.len();
        self.open.retain(|open| open.made.at.elapsed() < EVENT_TIMEOUT);
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

    /// Sends a query for a change that has no outstanding query; returns whether there was such a change.
    fn ask_for_a_change(&mut self) -> bool {
        let waits = |asked: Instant| asked.elapsed() < LOST;
        let idle = |open: &PendingChange| open.asked.is_none_or(|(_, asked)| !waits(asked));
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
        // A full send buffer counts as a lost query.
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
            // A repeated query has a new id: a late answer to the first query matches no change.
            let is_asked = |open: &PendingChange| open.asked.is_some_and(|(asked, _)| asked == id);
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
