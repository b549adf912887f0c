//! The log of a unit test.

use std::io;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest, set_default, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// The lines that the thread has logged.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Captures the lines of this level and more severe ones, until the guard is dropped.
    pub(crate) fn start(level: Level) -> (Self, DefaultGuard) {
        // Without it, a line of code that another thread logs for the first time just now would never log here.
        static UNHEARD: Once = Once::new();
        UNHEARD.call_once(|| set_global_default(Unheard).unwrap());
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        (log, set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

/// The subscriber of threads whose log isn't captured. It keeps tracing from deciding for all threads that a line of code
/// is never logged.
struct Unheard;

impl Subscriber for Unheard {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl io::Write for CapturedLog {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
