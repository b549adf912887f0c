//! A load of our own that notes the latency of every answer, of which dnsperf tells only the mean.
//!
//! It never sleeps: it sends when a question is due, and looks for answers all the time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::sets::Question;

/// Questions under way at saturation, as many as dnsperf has.
const WINDOW: usize = 200;
/// How far the load may be behind its time before it leaves out what it hasn't sent: a burst would measure itself.
const LATE: Duration = Duration::from_millis(1);
/// How long answers are waited for that are late.
const PATIENCE: Duration = Duration::from_secs(1);
/// Ids of questions.
const IDS: usize = 1 << 16;

/// What came of one run.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// In nanoseconds, one for each answer.
    pub each: Vec<u32>,
    /// Questions without an answer.
    pub lost: usize,
}

impl Latencies {
    pub fn extend(&mut self, other: &Self) {
        self.each.extend(&other.each);
        self.lost += other.lost;
    }

    /// Mean, in microseconds.
    pub fn mean(&self) -> f64 {
        self.each.iter().map(|each| f64::from(*each)).sum::<f64>() / self.each.len().max(1) as f64 / 1e3
    }

    /// The median, in microseconds.
    pub fn median(&self) -> f64 {
        let mut each = self.each.clone();
        let middle = each.len() / 2;
        if each.is_empty() { f64::NAN } else { f64::from(*each.select_nth_unstable(middle).1) / 1e3 }
    }

    /// The share of answers that took more than a millisecond. One that never came did.
    pub fn slow(&self) -> f64 {
        let slow = self.each.iter().filter(|each| **each > 1_000_000).count() + self.lost;
        slow as f64 / (self.each.len() + self.lost).max(1) as f64
    }
}

/// Sends so many questions a second, evenly.
pub fn paced(server: SocketAddr, questions: &[Question], rate: u32, time: Duration) -> io::Result<Latencies> {
    let mut load = Load::new(server, questions)?;
    let interval = Duration::from_secs(1) / rate;
    let end = Instant::now() + time;
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if now >= end {
            return load.finish();
        }
        if now >= due {
            load.send()?;
            due = if now > due + LATE { now } else { due } + interval;
        }
        while load.receive()? {}
    }
}

/// Sends the next question as soon as there is an answer.
pub fn saturated(server: SocketAddr, questions: &[Question], time: Duration) -> io::Result<Latencies> {
    let mut load = Load::new(server, questions)?;
    let end = Instant::now() + time;
    let mut progress = Instant::now();
    while progress < end && progress.elapsed() < PATIENCE {
        while load.under_way < WINDOW {
            load.send()?;
        }
        while load.receive()? {
            progress = Instant::now();
        }
    }
    load.finish()
}

struct Load<'a> {
    socket: UdpSocket,
    questions: &'a [Question],
    sent: usize,
    /// When the question with an id was sent, if its answer isn't there.
    times: Vec<Option<Instant>>,
    under_way: usize,
    latencies: Latencies,
}

impl<'a> Load<'a> {
    fn new(server: SocketAddr, questions: &'a [Question]) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        let times = vec![None; IDS];
        Ok(Self { socket, questions, sent: 0, times, under_way: 0, latencies: Latencies::default() })
    }

    fn send(&mut self) -> io::Result<()> {
        let id = self.sent % IDS;
        let question = &self.questions[self.sent % self.questions.len()].bytes;
        let mut bytes = [0; 512];
        let message = &mut bytes[..question.len()];
        message.copy_from_slice(question);
        message[..2].copy_from_slice(&(id as u16).to_be_bytes());
        self.sent += 1;
        self.under_way += 1;
        if self.times[id].replace(Instant::now()).is_some() {
            self.under_way -= 1;
            self.latencies.lost += 1;
        }
        self.socket.send(message).map(drop)
    }

    /// Takes an answer, if there is one.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
        if let Some(sent) = self.times[id].take() {
            self.under_way -= 1;
            self.latencies.each.push(sent.elapsed().as_nanos().try_into().unwrap_or(u32::MAX));
        }
        Ok(true)
    }

    fn finish(mut self) -> io::Result<Latencies> {
        let end = Instant::now() + PATIENCE;
        while self.under_way > 0 && Instant::now() < end {
            self.receive()?;
        }
        self.latencies.lost += self.under_way;
        Ok(self.latencies)
    }
}
