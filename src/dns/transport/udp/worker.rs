//! The thread of a socket: it answers what it has answered before, also where a link has changed since, and passes
//! everything else on.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::sleep;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use tracing::{debug, error};

use super::answer_socket::AnswerSocket;
use super::batch::{self, Batch, send_all};
use super::{Asking, Keep, LINGER, MAX_LAST, Peer, Question, Ticket};
use crate::dns::chain::handler::{Answer, Handler};
use crate::dns::net::{Protocol, REST, is_fatal, is_shortage, unmapped};
use crate::dns::response_cache::{Miss, Packets, Room};
use crate::dns::transport::metrics::DropReason;

/// The answers that a thread keeps.
const ROOM: Room = Room { sets: 4096, bytes: 8 << 20 };
/// How long a thread rests at the end between two looks at its socket.
const GLANCE: Duration = Duration::from_millis(2);
/// Questions between two looks at the send buffer, and while there is much in it.
const CHECK_EVERY: usize = 64;
const CHECK_SOON: usize = 8;

/// What answers on a socket.
pub(super) struct Worker {
    pub(super) socket: Arc<AnswerSocket>,
    pub(super) handler: Arc<Handler>,
    /// To the full handler.
    pub(super) questions: Sender<Question>,
    /// What the full handler has answered, and can be answered here from now on.
    pub(super) kept: Receiver<Keep>,
    /// Questions of the listener that the full handler has.
    pub(super) pending: Arc<AtomicUsize>,
    pub(super) stop: Arc<AtomicBool>,
    /// That of the full handler.
    pub(super) runtime: Handle,
}

/// What a worker has at hand.
struct Desk {
    batch: Batch,
    packets: Packets,
    /// Datagrams that the kernel has dropped so far.
    lost: u32,
    /// Questions until the next look at the send buffer.
    until_check: usize,
}

impl Worker {
    /// Answers until it is told to stop; then what the kernel has already, and what still comes while answers are under
    /// way: another socket at this port may have taken over, but not for every address.
    ///
    /// # Errors
    /// If the socket is broken.
    pub(super) fn run(mut self) -> io::Result<()> {
        let runtime = self.runtime.clone();
        let _context = runtime.enter();
        loop {
            let mut desk = Desk { batch: Batch::new(), packets: Packets::new(ROOM), lost: 0, until_check: 0 };
            let serving = AssertUnwindSafe(|| self.serve(&mut desk));
            // One message that hits a defect of ours must not end the listener.
            match catch_unwind(serving) {
                Ok(ended) => return ended,
                Err(_) => {
                    error!("answering a message by UDP panicked");
                    self.handler.report.panics.inc();
                }
            }
        }
    }

    fn serve(&mut self, desk: &mut Desk) -> io::Result<()> {
        while !self.is_stopped() {
            match desk.batch.receive(self.socket.as_fd(), true) {
                Ok(number) => self.take(desk, number),
                Err(error) if is_fatal(&error) => return Err(error),
                // An earlier answer didn't arrive (ICMP), or memory is short just now.
                Err(error) => {
                    debug!("UDP: {error}");
                    self.socket.read_errors();
                    if is_shortage(&error) {
                        sleep(REST);
                    }
                }
            }
        }
        let mut last = 0;
        let end = Instant::now() + LINGER;
        loop {
            match desk.batch.receive(self.socket.as_fd(), false) {
                Ok(number) => {
                    last += number;
                    self.take(desk, number);
                }
                Err(error) if is_fatal(&error) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.pending.load(Ordering::Acquire) == 0 {
                        return Ok(());
                    }
                    sleep(GLANCE);
                }
                // An ICMP error says nothing about the queue: behind it there may be questions.
                Err(error) => {
                    debug!("UDP: {error}");
                    self.socket.read_errors();
                    if is_shortage(&error) {
                        sleep(GLANCE);
                    }
                }
            }
            let is_late = last >= MAX_LAST && self.pending.load(Ordering::Acquire) == 0;
            if is_late || Instant::now() > end {
                return Ok(());
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Answers so many datagrams, or passes them on.
    fn take(&mut self, desk: &mut Desk, number: usize) {
        let Desk { batch, packets, lost, until_check } = desk;
        let now = Instant::now();
        for Keep { key, client, packet } in self.kept.try_iter() {
            packets.keep(key, client, *packet, now);
        }
        let server = self.handler.server.load().number();
        let (mut repeated, mut anew) = (0, Duration::ZERO);
        for at in 0..number {
            let Some(peer) = batch.peer(at) else { continue };
            if peer.lost != *lost && peer.lost != 0 {
                self.socket.count_dropped(DropReason::Queue, peer.lost.wrapping_sub(*lost));
                *lost = peer.lost;
            }
            if !self.socket.admits(unmapped(peer.address).ip(), now) {
                continue;
            }
            let is_cut = batch.is_cut(at);
            let (question, out) = batch.exchange(at);
            if is_cut {
                self.pass_on(Asking::Message(question.to_vec()), peer, None);
                continue;
            }
            let length = match packets.answer(question, unmapped(peer.address).ip(), server, now, out) {
                Ok(length) => {
                    repeated += 1;
                    Some(length)
                }
                Err(Miss::Outdated) => {
                    let begun = Instant::now();
                    let length = self.answer_anew(question, peer, packets, out);
                    anew += begun.elapsed();
                    length
                }
                Err(Miss::Unknown) => {
                    let key = packets.last_key().map(Box::from);
                    self.pass_on(Asking::Message(question.to_vec()), peer, key);
                    None
                }
            };
            if let Some(length) = length {
                batch.answer(at, peer.asked, length);
            }
        }
        if repeated > 0 {
            packets.set_took(now.elapsed().saturating_sub(anew) / repeated);
        }
        batch.send(&self.socket);
        *until_check = until_check.saturating_sub(number);
        if *until_check == 0 {
            *until_check = if self.socket.check_send_buffer(now) { CHECK_SOON } else { CHECK_EVERY };
        }
    }

    /// Has the full handler answer here and now, which takes less than to wake another thread for it. Returns the length
    /// of the answer, which is kept; or passes on what has to wait for something.
    fn answer_anew(
        &self,
        question: &[u8],
        peer: Peer,
        packets: &mut Packets,
        out: &mut [u8],
    ) -> Option<usize> {
        let key: Option<Box<[u8]>> = packets.last_key().map(Box::from);
        let (handler, message) = (Arc::clone(&self.handler), question.to_vec());
        let answering = async move { handler.answer(message, peer.address, peer.asked, Protocol::Udp).await };
        let mut answering = answering.boxed();
        // The slow path polls it again.
        let Some(answer) = answering.as_mut().now_or_never() else {
            self.pass_on(Asking::UnderWay(answering), peer, key);
            return None;
        };
        let Answer { bytes, packet } = answer?;
        if let (Some(key), Some(packet)) = (key, packet) {
            packets.keep(key, unmapped(peer.address).ip(), *packet, Instant::now());
        }
        let Some(out) = out.get_mut(..bytes.len()) else {
            // The plugin `bufsize` lets clients have more than mostly is given.
            send_all(&self.socket, &mut [batch::Answer { peer, bytes }]);
            return None;
        };
        out.copy_from_slice(&bytes);
        Some(bytes.len())
    }

    /// Has the full handler answer, if it has room for one more.
    fn pass_on(&self, asking: Asking, peer: Peer, key: Option<Box<[u8]>>) {
        let ticket = Ticket::new(&self.pending);
        if self.questions.try_send(Question { asking, peer, key, ticket }).is_err() {
            self.socket.count_dropped(DropReason::Busy, 1);
        }
    }
}
