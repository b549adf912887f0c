//! The queue of the messages to one sink. Adding to it never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::{IntCounter, Registry};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::message::Frame;
use crate::metrics::{MetricGroup, registered};

/// The maximum number of messages for each unit of *queue*, as in CoreDNS, and their maximum size in bytes.
const MESSAGES: usize = 10_000;
const BYTES: usize = 16 << 20;
/// How often dropped messages are logged, as in CoreDNS.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct DroppedMessages(IntCounter);

impl MetricGroup for DroppedMessages {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let dropped = IntCounter::new(
            "lb_linker_dns_dnstap_messages_dropped_total",
            "Messages of the plugin dnstap that were dropped: a sink takes them too slowly, or not at all.",
        );
        Ok(Self(registered(registry, dropped)?))
    }
}

/// The messages of one line of *dnstap* that were dropped.
#[derive(Debug)]
pub(super) struct Lost {
    total: Arc<DroppedMessages>,
    /// The number since the last line of the log.
    unlogged: AtomicU64,
}

/// The end of the queue that messages are added to.
#[derive(Clone, Debug)]
pub(super) struct FrameQueue {
    sender: Sender<Frame>,
    bytes: Arc<AtomicUsize>,
    max_bytes: usize,
}

/// The other end of the queue.
#[derive(Debug)]
pub(super) struct Frames {
    receiver: Receiver<Frame>,
    bytes: Arc<AtomicUsize>,
}

/// Returns a queue for `multiple` times the default number of messages.
pub(super) fn queue(multiple: usize) -> (FrameQueue, Frames) {
    let (sender, receiver) = channel(multiple * MESSAGES);
    let bytes = Arc::<AtomicUsize>::default();
    (
        FrameQueue { sender, bytes: Arc::clone(&bytes), max_bytes: multiple * BYTES },
        Frames { receiver, bytes },
    )
}

// === impl Lost ===

impl Lost {
    pub fn new(total: Arc<DroppedMessages>) -> Self {
        Self { total, unlogged: AtomicU64::new(0) }
    }

    pub fn add(&self, number: u64) {
        self.total.0.inc_by(number);
        self.unlogged.fetch_add(number, Ordering::Relaxed);
    }

    /// Logs how many messages were dropped, until `stop` is cancelled.
    pub async fn report(&self, sink: &str, stop: &CancellationToken) {
        let mut ticks = interval_at(Instant::now() + LOG_INTERVAL, LOG_INTERVAL);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.log(sink);
        }
    }

    pub fn log(&self, sink: &str) {
        let number = self.unlogged.swap(0, Ordering::Relaxed);
        if number > 0 {
            warn!(
                "plugin/dnstap: Dropped dnstap messages: {number} for {sink}, which doesn't take them in time"
            );
        }
    }
}

// === impl FrameQueue ===

impl FrameQueue {
    /// Adds a message; returns whether there was room.
    pub fn push(&self, frame: &Frame) -> bool {
        let length = frame.len();
        let held = self.bytes.fetch_add(length, Ordering::Relaxed);
        let is_added = held + length <= self.max_bytes && self.sender.try_send(Arc::clone(frame)).is_ok();
        if !is_added {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        is_added
    }

    /// Returns whether both are the same queue.
    pub fn is_same(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

// === impl Frames ===

impl Frames {
    pub async fn next(&mut self) -> Option<Frame> {
        let next = self.receiver.recv().await;
        self.taken(next)
    }

    /// Returns the next message if there is one already.
    pub fn try_next(&mut self) -> Option<Frame> {
        let next = self.receiver.try_recv().ok();
        self.taken(next)
    }

    /// Returns the number of messages that wait.
    pub fn waiting(&self) -> u64 {
        self.receiver.len() as u64
    }

    fn taken(&self, frame: Option<Frame>) -> Option<Frame> {
        let frame = frame?;
        self.bytes.fetch_sub(frame.len(), Ordering::Relaxed);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queues_are_limited_by_number_and_by_size() {
        let (queue, mut frames) = queue(1);
        let short: Frame = [1].into();
        assert!((0..MESSAGES).all(|_| queue.push(&short)));
        assert!(!queue.push(&short));
        assert_eq!(frames.next().await, Some(short.clone()));
        assert!(queue.push(&short));
        while frames.try_next().is_some() {}
        let half: Frame = vec![0; BYTES / 2].into();
        assert!(queue.push(&half) && queue.push(&half));
        assert!(!queue.push(&short), "the size is reached");
        assert_eq!((frames.next().await.map(|frame| frame.len()), frames.waiting()), (Some(BYTES / 2), 1));
        assert!(queue.push(&short));
    }
}
