//! How long changes take to be seen by who asks for nothing else.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::dns::answered;
use crate::figures::{Spread, millis};

/// Changes that are asked for at once, one question each.
const AT_ONCE: usize = 32;
/// After that a question is taken for lost, and asked again.
const LOST: Duration = Duration::from_millis(20);
/// After that a change is never seen.
const PATIENCE: Duration = Duration::from_secs(5);

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

struct Open {
    made: Made,
    id: u16,
    asked: Instant,
}

fn follow(server: SocketAddr, made: &Receiver<Made>) -> Followed {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(server).expect("an address");
    socket.set_read_timeout(Some(LOST / 4)).expect("a timeout");
    let (mut open, mut times, mut answers, mut never): (Vec<Open>, Vec<f64>, u64, usize) = Default::default();
    let mut id = 0_u16;
    let mut ask = |mut made: Made| {
        id = id.wrapping_add(1);
        made.question[..2].copy_from_slice(&id.to_be_bytes());
        socket.send(&made.question).expect("send a question");
        Open { made, id, asked: Instant::now() }
    };
    let mut buffer = [0; 1232];
    loop {
        if open.is_empty() {
            match made.recv() {
                Ok(made) => open.push(ask(made)),
                Err(RecvError) => break,
            }
        }
        while open.len() < AT_ONCE
            && let Ok(made) = made.try_recv()
        {
            open.push(ask(made));
        }
        let answer = socket.recv(&mut buffer);
        let now = Instant::now();
        if let Ok(length) = answer {
            answers += 1;
            let id = u16::from_be_bytes([buffer[0], buffer[1]]);
            // One that was taken for lost answers nobody.
            if let Some(at) = open.iter().position(|open| open.id == id) {
                let Open { made, .. } = open.swap_remove(at);
                if answered(&buffer[..length]).is_some_and(|change| change >= made.change) {
                    times.push(millis(made.at, now));
                } else {
                    open.push(ask(made));
                }
            }
        }
        for at in (0..open.len()).rev() {
            if now.saturating_duration_since(open[at].made.at) > PATIENCE {
                open.swap_remove(at);
                never += 1;
            } else if now.saturating_duration_since(open[at].asked) > LOST {
                let Open { made, .. } = open.swap_remove(at);
                open.push(ask(made));
            }
        }
    }
    Followed { seen: Spread::of(times), answers, never }
}
