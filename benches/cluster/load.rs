//! Questions at a steady rate, whether they are answered or not.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;

use crate::figures::Spread;

/// How long an answer is waited for at the end.
const LAST: Duration = Duration::from_millis(200);

/// Somebody who asks.
pub struct Load {
    over: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Vec<f64>>,
    since: Instant,
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
    /// Asks these questions in turn, so many times a second, each at its own moment. Moments that were slept
    /// through are made up for at once.
    pub fn start(server: SocketAddr, rate: u32, mut questions: Vec<Vec<u8>>) -> Self {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        socket.connect(server).expect("an address");
        socket.set_read_timeout(Some(LAST)).expect("a timeout");
        let over = Arc::new(AtomicBool::new(false));
        // When each question was sent, by its id, in nanoseconds.
        let moments: Arc<Vec<AtomicU64>> = Arc::new((0..=u16::MAX).map(|_| AtomicU64::new(0)).collect());
        let since = Instant::now();
        let sender = {
            let (socket, over, moments) = (Arc::clone(&socket), Arc::clone(&over), Arc::clone(&moments));
            let send = move || {
                // Without this, a sleep takes 50 µs longer than asked for.
                let _ = set_timerslack(1);
                let (mut sent, count) = (0, questions.len() as u64);
                while !over.load(Ordering::Relaxed) {
                    let due = Duration::from_nanos(sent * 1_000_000_000 / u64::from(rate));
                    let now = since.elapsed();
                    if due > now {
                        thread::sleep(due - now);
                        continue;
                    }
                    let question = &mut questions[(sent % count) as usize];
                    let id = sent as u16;
                    question[..2].copy_from_slice(&id.to_be_bytes());
                    moments[usize::from(id)].store(now.as_nanos() as u64, Ordering::Relaxed);
                    // A full queue is a lost question.
                    let _ = socket.send(question);
                    sent += 1;
                }
                sent
            };
            Builder::new().name("bench-ask".to_owned()).spawn(send).expect("a thread")
        };
        let receiver = {
            let over = Arc::clone(&over);
            let receive = move || {
                let (mut latency, mut answer) = (Vec::new(), [0; 1232]);
                loop {
                    match socket.recv(&mut answer) {
                        Ok(_) => {
                            let id = u16::from_be_bytes([answer[0], answer[1]]);
                            let sent = moments[usize::from(id)].load(Ordering::Relaxed);
                            latency.push((since.elapsed().as_nanos() as f64 - sent as f64) / 1e6);
                        }
                        Err(_) if over.load(Ordering::Relaxed) => return latency,
                        Err(_) => {}
                    }
                }
            };
            Builder::new().name("bench-hear".to_owned()).spawn(receive).expect("a thread")
        };
        Self { over, sender, receiver, since }
    }

    /// Stops asking.
    pub fn stop(self) -> Outcome {
        let seconds = self.since.elapsed().as_secs_f64();
        self.over.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("the sender doesn't panic");
        let latency = self.receiver.join().expect("the receiver doesn't panic");
        Outcome { sent, answered: latency.len() as u64, seconds, latency: Spread::of(latency) }
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
