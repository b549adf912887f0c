//! A constant load of queries, each answer of which is judged.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::history::{History, Seen};
use crate::harness::dns::query;

/// The interval between two steps; each step sends the due queries and receives the available answers.
const STEP: Duration = Duration::from_millis(1);
/// The time after which a query counts as lost.
const LOST: Duration = Duration::from_secs(10);
const RECEIVE_BUFFER: usize = 1 << 21;
/// The maximum number of wrong answers that are printed, and also of queries without an answer.
const PRINTED: usize = 100;

/// A Service or a StableName whose names are queried.
pub struct QueriedObject {
    /// The number in the [`History`].
    pub number: usize,
    /// Fully qualified names.
    pub names: Vec<String>,
}

/// What the load and the rest of the test share.
#[derive(Default)]
pub struct Shared {
    pub history: Mutex<History>,
    /// The address of each replica; `None` while the load sends it no queries.
    pub replicas: Mutex<[Option<SocketAddr>; 2]>,
    /// The address of a server that asks replica 0 by HTTPS; every tenth query is sent to it.
    pub by_https: Mutex<Option<SocketAddr>>,
    pub asked: AtomicUsize,
    pub judged: AtomicUsize,
    pub wrong: AtomicUsize,
    pub lost: AtomicUsize,
    /// Answers for names of Services that lack an address although the upstream answers.
    pub unresolved: AtomicUsize,
    pub stop: AtomicBool,
}

impl Shared {
    /// Runs `what` with the history.
    pub fn with<T>(&self, what: impl FnOnce(&mut History) -> T) -> T {
        what(&mut self.history.lock().unwrap())
    }

    pub fn count(&self, counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct Question {
    subject: usize,
    name: String,
    qtype: RecordType,
    bytes: Vec<u8>,
}

/// An answer that hasn't been judged yet.
struct Answer {
    question: usize,
    replica: usize,
    sent: Instant,
    received: Instant,
    seen: Seen,
    lacks_address: bool,
}

struct Socket {
    server: SocketAddr,
    /// The number of the replica whose answers it receives.
    replica: usize,
    socket: UdpSocket,
    /// The question and the time of each query without an answer, by id.
    open: Vec<Option<(usize, Instant)>>,
    /// The ids in the order of the queries.
    order: VecDeque<(u16, Instant)>,
    next: u16,
}

impl Socket {
    fn to(server: SocketAddr, replica: usize) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The kernel may limit the size.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER);
        Self { server, replica, socket, open: vec![None; 1 << 16], order: VecDeque::new(), next: 0 }
    }
}

/// Starts the load: `rate` queries per second, in turn to each replica with an address.
pub fn start(shared: &Arc<Shared>, subjects: &[QueriedObject], rate: u32, seed: u64) -> JoinHandle<()> {
    let types = [RecordType::A, RecordType::A, RecordType::AAAA, RecordType::CNAME];
    let mut questions = Vec::new();
    for subject in subjects {
        for name in &subject.names {
            for qtype in types {
                let bytes = query(&format!("{name} {qtype}")).to_vec().unwrap();
                questions.push(Question { subject: subject.number, name: name.clone(), qtype, bytes });
            }
        }
    }
    let shared = Arc::clone(shared);
    let load = Load { shared, questions, sockets: [None, None, None], answers: VecDeque::new() };
    Builder::new().name("load".to_owned()).spawn(move || load.run(rate, seed)).unwrap()
}

struct Load {
    shared: Arc<Shared>,
    questions: Vec<Question>,
    /// To each replica, and to the server that asks replica 0 by HTTPS.
    sockets: [Option<Socket>; 3],
    answers: VecDeque<Answer>,
}

impl Load {
    fn run(mut self, rate: u32, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let (begun, mut sent) = (Instant::now(), 0);
        let burst = u64::from(rate / 50).max(20);
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.connect();
            let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            // A thread that was delayed sends no burst that sockets can't hold.
            for number in sent.max(due.saturating_sub(burst))..due {
                let question = random.random_range(0..self.questions.len());
                self.ask(if number % 10 == 0 { 2 } else { (number % 2) as usize }, question);
            }
            sent = due;
            thread::sleep(STEP);
            self.receive();
            self.judge();
        }
        // Wait until each open query is answered or counts as lost.
        while self.sockets.iter().flatten().any(|socket| !socket.order.is_empty()) {
            thread::sleep(STEP);
            self.receive();
        }
        self.judge();
    }

    /// Replaces the socket of a replica when the address of the replica has changed.
    fn connect(&mut self) {
        let [a, b] = *self.shared.replicas.lock().unwrap();
        let by_https = *self.shared.by_https.lock().unwrap();
        for (socket, (server, replica)) in self.sockets.iter_mut().zip([(a, 0), (b, 1), (by_https, 0)]) {
            if socket.as_ref().map(|socket| socket.server) != server {
                *socket = server.map(|server| Socket::to(server, replica));
            }
        }
    }

    fn ask(&mut self, which: usize, question: usize) {
        // A replica takes the place of a server that is away.
        let Some(which) = [which, 0, 1].into_iter().find(|which| self.sockets[*which].is_some()) else {
            return;
        };
        let Some(socket) = &mut self.sockets[which] else { return };
        let id = socket.next;
        socket.next = id.wrapping_add(1);
        let bytes = &mut self.questions[question].bytes;
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        let now = Instant::now();
        socket.open[usize::from(id)] = Some((question, now));
        socket.order.push_back((id, now));
        let _ = socket.socket.send(bytes);
        self.shared.count(&self.shared.asked);
    }

    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        for socket in self.sockets.iter_mut().flatten() {
            let replica = socket.replica;
            while let Ok(length) = socket.socket.recv(&mut buffer) {
                let received = Instant::now();
                let answer = Message::from_vec(&buffer[..length]).expect("a DNS message");
                let Some((question, sent)) = socket.open[usize::from(answer.metadata.id)].take() else {
                    continue;
                };
                let (seen, lacks_address) = Seen::of(&answer, self.questions[question].qtype);
                self.answers.push_back(Answer { question, replica, sent, received, seen, lacks_address });
            }
            while let Some((id, sent)) = socket.order.front().copied() {
                let open = &mut socket.open[usize::from(id)];
                let is_open = open.is_some_and(|(_, of)| of == sent);
                if is_open && sent.elapsed() < LOST {
                    break;
                }
                if is_open {
                    let (question, _) = open.take().expect("it is open");
                    let Question { name, qtype, .. } = &self.questions[question];
                    if self.shared.lost.fetch_add(1, Ordering::Relaxed) < PRINTED {
                        println!("soak: no answer of replica {replica}: {name} {qtype}");
                    }
                }
                socket.order.pop_front();
            }
        }
    }

    /// Judges the answers that were received before [`History::known_until`].
    fn judge(&mut self) {
        let shared = &self.shared;
        let history = shared.history.lock().unwrap();
        let known_until = history.known_until();
        while self.answers.front().is_some_and(|answer| answer.received < known_until) {
            let Some(Answer { question, replica, sent, received, seen, lacks_address }) =
                self.answers.pop_front()
            else {
                return;
            };
            shared.count(&shared.judged);
            let Question { subject, name, qtype, .. } = &self.questions[question];
            if lacks_address && !name.starts_with("sn-") && !history.is_outage(sent) {
                shared.count(&shared.unresolved);
            }
            if history.allows(*subject, &seen, *qtype, replica, (sent, received)) {
                continue;
            }
            if shared.wrong.fetch_add(1, Ordering::Relaxed) < PRINTED {
                let states = history.explain(*subject);
                println!(
                    "soak: WRONG answer of replica {replica}: {name} {qtype}: {seen:?}, asked {:.1?} ago; {states}",
                    sent.elapsed()
                );
            }
        }
    }
}
