//! Writes the lines of the plugins `log` and `errors` to standard output, in order and without ever delaying an answer.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::warn;

use crate::metrics::{MetricGroup, Metrics, registered};

/// The maximum number of lines in the queue; further lines are dropped.
const QUEUE_CAPACITY: usize = 16_384;
/// The approximate maximum size of a write, in bytes.
const BATCH_BYTES: usize = 64 << 10;
/// The minimum interval between warnings about lost lines.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long the shutdown waits for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    Text,
    Json,
}

/// The queue that lines are added to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct QueryLog(Arc<LogState>);

#[derive(Debug)]
pub struct LineQueue {
    receiver: Receiver<QueueEntry>,
    shared: Arc<LogState>,
}

/// Writes the lines. A drop still writes the queued lines, but waits for standard output for at most 1 s.
#[derive(Debug)]
pub struct LogWriter {
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    shared: Arc<LogState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

pub type JsonField = (Cow<'static, str>, Value);

#[derive(Debug)]
struct LogState {
    sender: SyncSender<QueueEntry>,
    format: LineFormat,
    dropped: Arc<DroppedLines>,
    /// The time of the last warning about dropped lines.
    last_warning: Mutex<Option<Instant>>,
    closed: AtomicBool,
}

#[derive(Debug)]
enum QueueEntry {
    /// A line with its line break.
    Line(String),
    /// No lines follow; wakes the writer.
    End,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    time: Timestamp,
    level: &'static str,
    #[serde(flatten)]
    parts: Map<String, Value>,
    message: &'a str,
}

#[derive(Debug)]
struct DroppedLines(IntCounter);

impl MetricGroup for DroppedLines {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let dropped = IntCounter::new(
            "lb_linker_dns_log_lines_dropped_total",
            "Lines of the plugins log and errors that were dropped: standard output takes them too slowly, or not at all.",
        );
        Ok(Self(registered(registry, dropped)?))
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

// === impl QueryLog ===

impl QueryLog {
    /// Returns the log and its queue. Nothing is written before [`LineQueue::write_to`].
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new(format: LineFormat, metrics: &Metrics) -> Result<(Self, LineQueue), prometheus::Error> {
        let (sender, receiver) = sync_channel(QUEUE_CAPACITY);
        let dropped = metrics.group()?;
        let (warned_at, closed) = Default::default();
        let shared = Arc::new(LogState { sender, format, dropped, last_warning: warned_at, closed });
        Ok((Self(Arc::clone(&shared)), LineQueue { receiver, shared }))
    }

    /// Queues a line: as CoreDNS writes it, or as a JSON object that also has the line's parts as fields.
    pub fn write(&self, level: Level, text: &str, parts: impl FnOnce() -> Vec<JsonField>) {
        let name = level.name();
        let mut line = format!("[{name}] {text}");
        // Escapes line breaks, so that text from clients can't forge a line.
        if line.contains(['\n', '\r']) {
            line = line.replace('\n', "\\n").replace('\r', "\\r");
        }
        match self.0.format {
            LineFormat::Text => line.push('\n'),
            LineFormat::Json => line = object(name, &line, parts()),
        }
        if self.0.closed.load(Ordering::SeqCst) {
            return self.0.dropped.0.inc();
        }
        match self.0.sender.try_send(QueueEntry::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.0.count_lost(1, "the reader of standard output is too slow"),
            // The lines of this log aren't written.
            Err(TrySendError::Disconnected(_)) => self.0.dropped.0.inc(),
        }
    }
}

fn object(level: &'static str, message: &str, parts: Vec<JsonField>) -> String {
    let parts = parts.into_iter().map(|(name, value)| (name.into_owned(), value)).collect();
    let object = JsonLine { time: Timestamp::now(), level, parts, message };
    // These values always serialize.
    let mut line = serde_json::to_string(&object).unwrap_or_default();
    line.push('\n');
    line
}

// === impl LogState ===

impl LogState {
    fn count_lost(&self, number: u64, why: &str) {
        self.dropped.0.inc_by(number);
        // If the lock is taken, another thread is logging the warning.
        let Some(mut warned_at) = self.last_warning.try_lock() else { return };
        if warned_at.is_none_or(|warned_at| warned_at.elapsed() >= LOG_INTERVAL) {
            *warned_at = Some(Instant::now());
            let total = self.dropped.0.get();
            warn!("lines of the plugins log and errors are lost, {total} since the start: {why}");
        }
    }
}

// === impl LineQueue ===

impl LineQueue {
    /// Starts writing the lines, in a separate thread, because the reader of standard output may be slow.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn write_to(self, out: impl Write + Send + 'static) -> io::Result<LogWriter> {
        let shared = Arc::clone(&self.shared);
        let (alive, ended) = sync_channel(0);
        let thread = thread::Builder::new().name("lines".to_owned()).spawn(move || {
            self.run(out);
            drop(alive);
        })?;
        Ok(LogWriter { thread: Some(thread), ended, shared })
    }

    fn run(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        let mut is_closing = false;
        loop {
            // If the queue was full at the end, `End` isn't in it. A full queue is more than one batch, so that `closed`
            // is read again.
            let first = if is_closing { self.receiver.try_recv().ok() } else { self.receiver.recv().ok() };
            let Some(first) = first else { return };
            // `closed` is read before the queue is drained: lines queued before `closed` was set have to be written,
            // later lines may be lost.
            is_closing |= self.shared.closed.load(Ordering::SeqCst);
            batch.clear();
            let (mut next, mut number) = (Some(first), 0);
            while let Some(entry) = next {
                match entry {
                    QueueEntry::Line(line) => {
                        batch.extend_from_slice(line.as_bytes());
                        number += 1;
                    }
                    // `End` may have been queued after `closed` was read.
                    QueueEntry::End => is_closing = true,
                }
                let has_room = batch.len() < BATCH_BYTES;
                next = if has_room { self.receiver.try_recv().ok() } else { None };
            }
            if let Err(error) = out.write_all(&batch).and_then(|()| out.flush()) {
                self.shared.count_lost(number, &format!("standard output can't be written: {error}"));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn take(&self) -> Vec<String> {
        let lines = self.receiver.try_iter().filter_map(|entry| match entry {
            QueueEntry::Line(line) => Some(line.trim_end_matches('\n').to_owned()),
            QueueEntry::End => None,
        });
        lines.collect()
    }
}

// === impl LogWriter ===

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // If the queue is full, the queued lines wake the writer.
        let _ = self.shared.sender.try_send(QueueEntry::End);
        if self.ended.recv_timeout(FLUSH_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            warn!("the last lines of the plugins log and errors are lost: standard output isn't read");
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn lines(format: LineFormat) -> (QueryLog, LineQueue, Arc<DroppedLines>) {
        let metrics = Metrics::new().unwrap();
        let (lines, queue) = QueryLog::new(format, &metrics).unwrap();
        (lines, queue, metrics.group().unwrap())
    }

    fn write(lines: &QueryLog, text: &str) {
        lines.write(Level::Info, text, Vec::new);
    }

    /// Reports each write, and blocks until the test allows it.
    struct Gate {
        written: mpsc::Sender<String>,
        open: Receiver<()>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap_or_default();
            // If the sender is gone, no further write blocks.
            let _ = self.open.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gate() -> (Gate, Receiver<String>, mpsc::Sender<()>) {
        let ((written, is_written), (key, open)) = (mpsc::channel(), mpsc::channel());
        (Gate { written, open }, is_written, key)
    }

    #[test]
    fn queued_lines_are_written_at_shutdown_in_order() {
        let (lines, queue, dropped) = lines(LineFormat::Text);
        let (gate, written, key) = gate();
        let writer = queue.write_to(gate).unwrap();
        write(&lines, "first");
        assert_eq!(written.recv().unwrap(), "[INFO] first\n");
        // More lines than fit in one batch.
        let all: Vec<String> = (0..10_000).map(|number| format!("number {number}")).collect();
        all.iter().for_each(|text| write(&lines, text));
        drop(key);
        drop(writer);
        let rest: String = written.iter().collect();
        assert!(rest.lines().map(|line| &line[7..]).eq(&all));
        write(&lines, "late");
        assert_eq!(dropped.0.get(), 1);
    }

    #[test]
    fn writer_ends_after_a_full_queue_of_whole_batches() {
        let (lines, queue, dropped) = lines(LineFormat::Text);
        let (gate, written, key) = gate();
        let writer = queue.write_to(gate).unwrap();
        write(&lines, "first");
        written.recv().unwrap();
        // The last line ends a batch of exactly `BATCH_BYTES`, and no `End` fits into the queue.
        let line = "x".repeat(64 - "[INFO] \n".len());
        (0..QUEUE_CAPACITY).for_each(|_| write(&lines, &line));
        assert_eq!((dropped.0.get(), QUEUE_CAPACITY * 64 % BATCH_BYTES), (0, 0));
        let closing = thread::spawn(move || drop(writer));
        while !lines.0.closed.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        drop(key);
        let mut number = 0;
        let end = loop {
            match written.recv_timeout(Duration::from_secs(60)) {
                Ok(text) => number += text.lines().count(),
                Err(end) => break end,
            }
        };
        assert_eq!((end, number), (RecvTimeoutError::Disconnected, QUEUE_CAPACITY));
        closing.join().unwrap();
    }

    #[test]
    fn blocked_output_delays_no_query_and_lost_lines_are_counted() {
        let (lines, queue, dropped) = lines(LineFormat::Text);
        let (gate, written, key) = gate();
        let writer = queue.write_to(gate).unwrap();
        write(&lines, "taken");
        written.recv().unwrap();
        (0..QUEUE_CAPACITY + 3).for_each(|_| write(&lines, "x"));
        assert_eq!(dropped.0.get(), 3);
        // The drop ends in spite of the blocked output.
        drop(writer);
        drop(key);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        struct ClosedOutput;
        impl Write for ClosedOutput {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (lines, queue, dropped) = lines(LineFormat::Text);
        let writer = queue.write_to(ClosedOutput).unwrap();
        write(&lines, "one");
        write(&lines, "two");
        drop(writer);
        assert_eq!(dropped.0.get(), 2);
    }

    #[test]
    fn line_breaks_in_text_are_escaped() {
        let (lines, queue, _) = lines(LineFormat::Text);
        write(&lines, "one\r\n[INFO] two");
        assert_eq!(queue.take(), ["[INFO] one\\r\\n[INFO] two"]);
    }

    #[test]
    fn json_line_has_time_level_fields_and_message() {
        let (lines, queue, _) = lines(LineFormat::Json);
        lines.write(Level::Warning, "a \"line\"", || {
            vec![("id".into(), 7.into()), ("name".into(), "a.".into())]
        });
        let [line] = &queue.take()[..] else { panic!() };
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(object["time"].as_str().unwrap().parse::<Timestamp>().is_ok());
        let rest = line.split_once(',').unwrap().1;
        assert_eq!(rest, r#""level":"WARNING","id":7,"name":"a.","message":"[WARNING] a \"line\""}"#);
    }
}
