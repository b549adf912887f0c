//! How long changes take to be seen by who asks for nothing else.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::dns::answered;
use crate::figures::{Spread, millis};

/// Changes that are asked for at once, one question each.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(2);

/// A change that has been made.
pub struct Made {
    pub at: Instant,
    /// Its number: who has seen a later one has seen it.
    pub change: u64,
    pub question: Vec<u8>,
}

/// Somebody who asks for each change until it is seen.
pub struct Follower(JoinHandle<Followed>);

/// What came of it.
pub struct Followed {
    /// From a change to its answer, in milliseconds.
    pub seen: Spread,
    /// Answers that it took.
    pub answers: u64,
    /// Changes that nobody ever saw.
    pub never: usize,
}

impl Follower {
    /// Follows the changes until there are no more to come.
    pub fn start(server: SocketAddr, made: Receiver<Made>) -> Self {
        let follow = move || follow(server, &made);
        Self(Builder::new().name("bench-follow".to_owned()).spawn(follow).expect("a thread"))
    }

    /// Waits until all have been seen.
    pub fn finish(self) -> Followed {
        self.0.join().expect("it doesn't panic")
    }
}

fn follow(server: SocketAddr, made: &Receiver<Made>) -> Followed {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(server).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut open, mut times, mut answers, mut never): (Vec<Made>, Vec<f64>, u64, usize) = Default::default();
    loop {
        if open.is_empty() {
            match made.recv_timeout(PATIENCE) {
                Ok(made) => open.push(made),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        open.extend(made.try_iter());
        let asked = open.len().min(AT_ONCE);
        for (id, made) in open[..asked].iter_mut().enumerate() {
            made.question[..2].copy_from_slice(&(id as u16).to_be_bytes());
            socket.send(&made.question).expect("send a question");
        }
        let mut done = vec![false; asked];
        let mut buffer = [0; 1232];
        for _ in 0..asked {
            let Ok(length) = socket.recv(&mut buffer) else { break };
            answers += 1;
            let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
            let Some(made) = open[..asked].get(id) else { continue };
            if answered(&buffer[..length]).is_some_and(|change| change >= made.change) {
                times.push(millis(made.at, Instant::now()));
                done[id] = true;
            } else if made.at.elapsed() > PATIENCE {
                never += 1;
                done[id] = true;
            }
        }
        let mut at = 0;
        open.retain(|_| {
            at += 1;
            !done.get(at - 1).copied().unwrap_or(false)
        });
    }
    Followed { seen: Spread::of(times), answers, never }
}
