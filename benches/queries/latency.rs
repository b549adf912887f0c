//! A load generator that records the latency of every answer, because dnsperf reports only the mean latency.
//!
//! The generator never sleeps: it sends a query when it is due, and polls for answers all the time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::sets::Question;

/// Outstanding queries at saturation, the same number as in dnsperf.
const WINDOW: usize = 200;
/// The delay after which the load skips queries that it hasn't sent: a burst would distort the latencies.
const LATE: Duration = Duration::from_millis(1);
/// The time to wait for late answers.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
const IDS: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// The latency of each answer, in nanoseconds.
    pub each: Vec<u32>,
    /// Queries without an answer.
    pub lost: usize,
}

impl Latencies {
    pub fn extend(&mut self, other: &Self) {
        self.each.extend(&other.each);
        self.lost += other.lost;
    }

    /// Returns the mean latency in microseconds.
    pub fn mean(&self) -> f64 {
        self.each.iter().map(|each| f64::from(*each)).sum::<f64>() / self.each.len().max(1) as f64 / 1e3
    }

    /// Returns the median latency in microseconds.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the latency in microseconds that a share of the answers, from 0 to 1, doesn't exceed.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut each = self.each.clone();
        let at = ((each.len() as f64 * part) as usize).min(each.len().saturating_sub(1));
        if each.is_empty() { f64::NAN } else { f64::from(*each.select_nth_unstable(at).1) / 1e3 }
    }

    /// Returns the share of queries that took more than 1 ms, including lost queries.
    pub fn slow(&self) -> f64 {
        let slow = self.each.iter().filter(|each| **each > 1_000_000).count() + self.lost;
        slow as f64 / (self.each.len() + self.lost).max(1) as f64
    }
}

/// Sends `rate` queries per second at equal intervals.
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

/// Sends the next query as soon as an answer arrives.
pub fn saturated(server: SocketAddr, questions: &[Question], time: Duration) -> io::Result<Latencies> {
    let mut load = Load::new(server, questions)?;
    let end = Instant::now() + time;
    let mut progress = Instant::now();
    while progress < end && progress.elapsed() < REPLY_TIMEOUT {
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
    /// The time at which the query with an id was sent, until its answer arrives.
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

    /// Receives an answer, if one is available; returns whether it has received one.
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
        let end = Instant::now() + REPLY_TIMEOUT;
        while self.under_way > 0 && Instant::now() < end {
            self.receive()?;
        }
        self.latencies.lost += self.under_way;
        Ok(self.latencies)
    }
}
