//! Whether the API server can be reached, and accepts the credentials.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::core::Status;
use parking_lot::{Mutex, MutexGuard};

use super::{ThrottledLog, root_cause};
use crate::model::excerpt;

/// Whether the API server can be reached and accepts the credentials, and the log about it, shared by all its clients.
#[derive(Clone, Debug, Default)]
pub struct ApiAvailability(Arc<Mutex<Reachability>>);

#[derive(Debug, Default)]
struct Reachability {
    log: ThrottledLog,
    refusal_log: ThrottledLog,
    /// `None` if the API server can be reached.
    outage: Option<Outage>,
    /// Whether a later request had an answer.
    is_answered: bool,
    /// `None` if no request was refused with 401 since the last accepted one.
    refusal: Option<Outage>,
    server: Option<ServerUrl>,
}

/// A time in which requests have no answer, or are refused with 401.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// One clause.
    pub reason: &'static str,
    /// The time of the first such request.
    begun: tokio::time::Instant,
    /// The time of the last such request.
    last: tokio::time::Instant,
}

impl Outage {
    fn begin(reason: &'static str) -> Self {
        let now = tokio::time::Instant::now();
        Self { reason, begun: now, last: now }
    }

    /// Returns the time since the first such request.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.begun.elapsed()
    }
}

pub(crate) const UNREACHABLE: &str = "the API server can't be reached";
pub(crate) const UNACCEPTED: &str = "the API server doesn't accept lb-linker's credentials";

/// Returns a clause about an answer 401.
pub(super) fn unaccepted(status: &Status) -> String {
    format!("{UNACCEPTED} (401 {})", excerpt::sentence(&status.message))
}

impl Reachability {
    fn outage(&mut self) -> Option<Outage> {
        let is_answered = self.is_answered;
        self.outage.take_if(|outage| is_answered && outage.last.elapsed() >= SETTLED_AFTER);
        self.outage
    }

    /// Returns the end of a sentence, which names the API server.
    fn place(&self) -> String {
        let url = self.server.as_ref().map(|server| format!(": {}", excerpt::sentence(&server.0())));
        url.unwrap_or_default()
    }
}

/// How long no request may have failed before an answer ends an outage: an API server that shuts down goes on answering
/// on connections that it has, and refuses new ones, which a watch tries again within 2 s.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Returns the URL of the API server, which may change.
struct ServerUrl(Box<dyn Fn() -> String + Send>);

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0())
    }
}

impl ApiAvailability {
    /// Returns the availability of the API server with this URL.
    #[must_use]
    pub fn of(url: impl Fn() -> String + Send + 'static) -> Self {
        let server = Some(ServerUrl(Box::new(url)));
        Self(Arc::new(Mutex::new(Reachability { server, ..Reachability::default() })))
    }

    /// Lets the log say of no request that it is retried: a command that reads a cluster once ends before.
    pub fn ask_once(&self) {
        let mut reachability = self.lock();
        (reachability.log.asks_once, reachability.refusal_log.asks_once) = (true, true);
    }

    /// Returns a log for other errors of the API server.
    pub(super) fn error_log(&self) -> ThrottledLog {
        ThrottledLog { asks_once: self.lock().log.asks_once, ..ThrottledLog::default() }
    }

    /// Returns the host of the API server, with its port.
    #[must_use]
    pub(crate) fn host(&self) -> String {
        let url = self.lock().server.as_ref().map(|server| server.0()).unwrap_or_default();
        let authority = url.split_once("://").map_or(&*url, |(_, rest)| rest);
        authority.split('/').next().unwrap_or_default().to_owned()
    }

    /// Logs that a request had no answer.
    pub fn report(&self, cause: &str) {
        let mut reachability = self.lock();
        let known = reachability.outage().unwrap_or_else(|| Outage::begin(UNREACHABLE));
        let outage = Outage { last: tokio::time::Instant::now(), ..known };
        (reachability.outage, reachability.is_answered) = (Some(outage), false);
        let sentence = format!("{UNREACHABLE}{}: {cause}", reachability.place());
        reachability.log.report(0, &sentence);
    }

    /// Records that a request was accepted. Logs the end of a refusal of the credentials, and that the API server answers
    /// again, if the last logged line said that it can't be reached, no request has failed for `SETTLED_AFTER`, and the
    /// credentials are accepted.
    pub fn report_available(&self) {
        let mut reachability = self.lock();
        reachability.refusal = None;
        reachability.refusal_log.recovered("the API server accepts lb-linker's credentials again");
        drop(reachability);
        self.report_alive();
    }

    /// As [`Self::report_available`], on a connection that was accepted earlier: the API server ends no watch whose
    /// credentials become invalid.
    pub fn report_alive(&self) {
        let mut reachability = self.lock();
        reachability.is_answered = true;
        if reachability.outage().is_none() && reachability.refusal.is_none() {
            reachability.log.recovered("the API server answers again");
        }
    }

    /// Records the error of a request. Logs that it had no answer, or that the credentials weren't accepted.
    pub fn report_error(&self, error: &kube::Error) {
        match error {
            kube::Error::Api(status) => self.report_status(status),
            error => self.report(&root_cause(error)),
        }
    }

    /// Records an answer that is an error. Logs that the credentials weren't accepted (401). With 429 or 503 an API server
    /// starts or shuts down.
    pub fn report_status(&self, status: &Status) {
        match status.code {
            401 => {
                let mut reachability = self.lock();
                reachability.refusal.get_or_insert_with(|| Outage::begin(UNACCEPTED));
                let sentence = format!("{}{}", unaccepted(status), reachability.place());
                reachability.refusal_log.report(0, &sentence);
                drop(reachability);
                self.report_alive();
            }
            429 | 503 => {}
            _ => self.report_available(),
        }
    }

    /// Returns the present outage; `None` if there was an answer, and no request has failed for `SETTLED_AFTER`.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        self.lock().outage()
    }

    /// Returns since when the API server doesn't accept the credentials; `None` if it accepted the last request.
    #[must_use]
    pub fn refusal(&self) -> Option<Outage> {
        self.lock().refusal
    }

    fn lock(&self) -> MutexGuard<'_, Reachability> {
        self.0.lock()
    }
}
