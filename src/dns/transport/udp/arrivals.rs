//! Receives the datagrams of a socket.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::unix::AsyncFd;
use tokio::time::sleep;
use tracing::debug;

use super::batch::{BATCH_SIZE, DatagramBatch};
use super::worker::POLL_INTERVAL;
use crate::dns::net::part_waker::{PartWaker, ThreadWaker};
use crate::dns::net::readable::for_reading;

/// The number of rounds without work under way after which the runtime no longer watches the socket: the kernel does more
/// for each datagram of a socket that is watched.
const MAX_ROUNDS_WITHOUT_WORK: u32 = 1000;

pub(super) struct Arrivals {
    socket: Arc<UdpSocket>,
    /// The socket as the runtime watches it; `None` until the thread first waits for other events, too.
    watched: Option<AsyncFd<Arc<UdpSocket>>>,
    rounds_without_work: u32,
}

impl Arrivals {
    pub(super) fn new(socket: Arc<UdpSocket>) -> Self {
        Self { socket, watched: None, rounds_without_work: 0 }
    }

    /// Receives a batch: with work under way, of the datagrams that are there; else blocks until there is one.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; or an error that the kernel reports for the socket.
    pub(super) async fn receive(&mut self, batch: &mut DatagramBatch, has_work: bool) -> io::Result<usize> {
        if !has_work {
            self.rounds_without_work += 1;
            if self.rounds_without_work >= MAX_ROUNDS_WITHOUT_WORK {
                (self.watched, self.rounds_without_work) = (None, 0);
            }
            return batch.receive(self.socket.as_fd(), true);
        }
        self.rounds_without_work = 0;
        match &self.watched {
            Some(watched) => poll_fn(|context| Poll::Ready(receive_arrived(watched, batch, context))).await,
            None => batch.receive(self.socket.as_fd(), false),
        }
    }

    /// Waits until something wakes the thread: a datagram, the ticker, a task, or a query under way. All but datagrams have
    /// been polled in this round, and have registered their wakers.
    pub(super) async fn event(&mut self, thread: &ThreadWaker, parts: [&PartWaker; 2]) {
        let watched = match self.watched.take().map_or_else(|| for_reading(Arc::clone(&self.socket)), Ok) {
            Ok(watched) => self.watched.insert(watched),
            Err(error) => {
                debug!("UDP: the runtime can't watch the socket: {error}");
                return sleep(POLL_INTERVAL).await;
            }
        };
        thread.event(parts, |context| watched.poll_read_ready(context).map(drop)).await;
    }
}

/// Receives the datagrams that have arrived.
fn receive_arrived(
    arrivals: &AsyncFd<Arc<UdpSocket>>,
    batch: &mut DatagramBatch,
    context: &mut Context<'_>,
) -> io::Result<usize> {
    let Poll::Ready(guard) = arrivals.poll_read_ready(context) else {
        return Err(ErrorKind::WouldBlock.into());
    };
    let mut guard = guard?;
    let received = batch.receive(arrivals.get_ref().as_fd(), false);
    match &received {
        // Less than a batch: another arrival is another event.
        Ok(number) if *number < BATCH_SIZE => guard.clear_ready(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
        _ => {}
    }
    received
}
