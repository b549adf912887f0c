//! Logs errors of the API server: one sentence each, at a limited rate.

mod availability;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::client::legacy::Error as ClientError;
use kube::client::AuthError;
use tower::timeout::error::Elapsed;
use tower_http::timeout::TimeoutError;
use tracing::{debug, info, warn};

use super::forbidden::LastingRefusal;
use super::timeouts::{READ_TIMEOUT, REQUEST_TIMEOUT};
use super::watch::item::{Event, WatchError};
use crate::model::excerpt;
use crate::model::object_texts::ObjectTexts;
use crate::model::service_key::ServiceKey;
use crate::model::tls_error;
use crate::object_log::ObjectLog;

pub use availability::{ApiAvailability, Outage};
pub(crate) use availability::{SETTLED_AFTER, UNACCEPTED};

/// Minimum time between two log lines about the same error.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Returns one sentence about a failed request. `doing` completes "can't …"; `hint` names the manifest that grants
/// lb-linker's ServiceAccount the permission.
#[must_use]
pub fn describe(error: &kube::Error, doing: &str, hint: &str) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let hint = match hint {
                "" => String::new(),
                _ if status.message.contains(" is forbidden: User \"system:anonymous\"") => {
                    "; the request had no credentials: give the user of the kubeconfig a token or a client certificate"
                        .to_owned()
                }
                // The API server's message names the user and the permission.
                _ if is_refused_to_a_user(&status.message) => {
                    "; the user of the kubeconfig lacks this permission".to_owned()
                }
                hint => format!("; {hint}"),
            };
            format!("can't {doing}: the API server forbids it ({}){hint}", excerpt::sentence(&status.message))
        }
        kube::Error::Api(status) if status.code == 401 => {
            format!("can't {doing}: {}", availability::unaccepted(status))
        }
        kube::Error::Api(status) if is_asked_by_http(error) => format!(
            "can't {doing}: the server is asked by HTTP and answers only HTTPS: its URL has to begin with https:// ({} {})",
            status.code,
            excerpt::sentence(status.message.trim())
        ),
        kube::Error::Api(status) => {
            format!(
                "can't {doing}: the API server answered {} {}",
                status.code,
                excerpt::sentence(&status.message)
            )
        }
        error => format!("can't {doing}: {}", root_cause(error)),
    }
}

/// Returns whether a request by HTTP has reached a port for HTTPS. The text is that of Go's server.
#[must_use]
pub fn is_asked_by_http(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 400 && status.message.contains("HTTP request to an HTTPS server"))
}

/// Returns whether an authorizer has refused something to a user that isn't a ServiceAccount: no manifest of `deploy/`
/// grants it a permission.
fn is_refused_to_a_user(message: &str) -> bool {
    let user = message.split_once(" is forbidden: User \"").map(|(_, user)| user);
    user.is_some_and(|user| !user.starts_with("system:serviceaccount:"))
}

/// The longest requested pause that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Returns the pause that the API server requests, at most five minutes. Its Status objects repeat the header
/// Retry-After (RFC 9110 section 10.2.3) in `details`.
#[must_use]
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
}

/// Returns a sentence about a program of the kubeconfig's `auth-provider` that should have returned credentials. kube's
/// sentence repeats its arguments and its output, which may be secret. `None` for other errors.
#[must_use]
pub fn credential_failure(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(AuthError::AuthExecRun { out, .. }) = error.downcast_ref() {
            return Some(format!("the program for the credentials failed: {}", out.status));
        }
        cause = error.source();
    }
    None
}

/// Returns the innermost error, which is the most specific one: "Connection refused", for example.
#[must_use]
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(failure) = credential_failure(error) {
        return failure;
    }
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if cause.is::<Elapsed>() {
        return no_answer(REQUEST_TIMEOUT);
    }
    if cause.is::<TimeoutError>() {
        return format!("no data within {READ_TIMEOUT:?}");
    }
    cause.downcast_ref().and_then(tls_error::explain).unwrap_or_else(|| cause.to_string())
}

/// Returns what is said of a request without an answer in time.
pub(crate) fn no_answer(within: Duration) -> String {
    format!("no answer within {within:?}")
}

/// Returns one sentence about a failed watch of `what`.
pub(crate) fn explain_watch(error: &WatchError, what: &str, hint: &str) -> String {
    match error {
        WatchError::List(error) => describe(error, &format!("list {what}"), hint),
        WatchError::Watch(error) => describe(error, &format!("watch {what}"), hint),
        // Usually 410: the resourceVersion is too old, and a new list follows.
        WatchError::Ended(status) => {
            format!(
                "the watch of {what} was ended by the API server: {} {}",
                status.code,
                excerpt::sentence(&status.message)
            )
        }
        WatchError::Unidentified => {
            format!(
                "the watch of {what} sent an event without a name or a resourceVersion; everything is listed again"
            )
        }
    }
}

/// Errors of single objects of a kind: each is logged when it appears or changes, not at every event.
#[derive(Debug)]
pub struct ObjectErrors {
    kind: &'static str,
    logged: ObjectTexts,
    log: ObjectLog,
}

impl Default for ObjectErrors {
    fn default() -> Self {
        Self::of_kind("Service", ObjectLog::default())
    }
}

impl ObjectErrors {
    /// Returns an empty set of errors for objects of this kind.
    #[must_use]
    pub fn of_kind(kind: &'static str, log: ObjectLog) -> Self {
        Self { kind, logged: ObjectTexts::default(), log: log.about(kind) }
    }

    /// As [`Self::of_kind`], and keeps the errors in `shown`, for users. Removes what an earlier run has left there.
    #[must_use]
    pub fn shown_in(shown: &ObjectTexts, kind: &'static str, log: ObjectLog) -> Self {
        shown.retain(|_| false);
        Self { kind, logged: shown.clone(), log: log.about(kind) }
    }

    /// Sets or clears the error of an object. Logs a new error, at a limited rate. Returns whether the error is new.
    pub fn set(&mut self, key: &ServiceKey, error_text: Option<String>) -> bool {
        let is_new = self.logged.set(key, error_text.as_deref());
        let Some(error_text) = error_text.filter(|_| is_new) else { return false };
        self.log.warn(key, format_args!("{} {key}: {error_text}", self.kind));
        true
    }

    /// Sets the parts of the error of an object; none clears it. Logs the new parts, at a limited rate, and returns them.
    pub fn set_parts<'a, T: fmt::Display>(&mut self, key: &ServiceKey, parts: &'a [T]) -> Vec<&'a T> {
        let before = self.of(key).map(|before| format!("; {before}; "));
        let is_new =
            |part: &&T| before.as_ref().is_none_or(|before| !before.contains(&format!("; {part}; ")));
        let new: Vec<&T> = parts.iter().filter(is_new).collect();
        self.logged.set(key, (!parts.is_empty()).then(|| sentences(parts)).as_deref());
        if !new.is_empty() {
            self.log.warn(key, format_args!("{} {key}: {}", self.kind, sentences(&new)));
        }
        new
    }

    #[must_use]
    pub fn of(&self, key: &ServiceKey) -> Option<Arc<str>> {
        self.logged.get(key)
    }

    /// Forgets the objects for which `known` is false.
    pub fn retain(&mut self, known: impl Fn(&ServiceKey) -> bool) {
        self.logged.retain(known);
    }
}

fn sentences<T: fmt::Display>(parts: &[T]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Maximum number of log lines in [`LOG_INTERVAL`] about an error that comes and goes.
const MAX_LINES_PER_INTERVAL: u32 = 5;

/// Logs errors when they begin, at most once a minute per HTTP code while they last, and when they end. An error that
/// comes and goes is logged at most five times a minute.
#[derive(Debug, Default)]
pub struct ThrottledLog {
    /// By HTTP code: different errors may alternate.
    logged: HashMap<u16, LoggedError>,
    /// Whether failed requests aren't retried.
    asks_once: bool,
}

#[derive(Debug)]
struct LoggedError {
    at: Instant,
    suppressed: u64,
    /// Whether the end of the error hasn't been logged yet.
    is_unresolved: bool,
    /// The start of the present interval, and the number of lines in it.
    lines_in_interval: (Instant, u32),
}

impl LoggedError {
    fn is_quiet(&self) -> bool {
        let (since, times) = self.lines_in_interval;
        if self.is_unresolved {
            self.at.elapsed() < LOG_INTERVAL
        } else {
            times >= MAX_LINES_PER_INTERVAL && since.elapsed() < LOG_INTERVAL
        }
    }
}

impl ThrottledLog {
    /// Logs `sentence` and that the request is retried, unless the limit for this HTTP code is reached (see
    /// [`ThrottledLog`]). A 401 is a debug line: [`ApiAvailability`] logs it once for all requests.
    pub fn report(&mut self, code: u16, sentence: &str) {
        if self.asks_once {
            return self.refused(code, sentence);
        }
        if code == 401 {
            return debug!("{sentence}; retrying");
        }
        match self.suppressed(code) {
            None => {}
            Some(0) => warn!("{sentence}; retrying"),
            Some(suppressed) => {
                warn!("{sentence}; retrying; {suppressed} more failures since the last such line")
            }
        }
    }

    /// As [`Self::report`], about a request that isn't retried.
    pub fn refused(&mut self, code: u16, sentence: &str) {
        if code == 401 {
            return debug!("{sentence}");
        }
        match self.suppressed(code) {
            None => {}
            Some(0) => warn!("{sentence}"),
            Some(suppressed) => warn!("{sentence}; {suppressed} more failures since the last such line"),
        }
    }

    /// Logs `sentence` about a pending condition, at most once a minute until [`Self::recovered`] is called. Returns
    /// whether it was logged.
    pub fn remind(&mut self, sentence: &str) -> bool {
        let is_due = self.suppressed(0).is_some();
        if is_due {
            warn!("{sentence}");
        }
        is_due
    }

    /// Returns the number of suppressed lines if a line may be logged now, else `None`.
    fn suppressed(&mut self, code: u16) -> Option<u64> {
        let now = Instant::now();
        let (suppressed, (since, times)) = match self.logged.get_mut(&code) {
            Some(logged) if logged.is_quiet() => {
                logged.suppressed += 1;
                return None;
            }
            Some(logged) if logged.lines_in_interval.0.elapsed() < LOG_INTERVAL => {
                (logged.suppressed, logged.lines_in_interval)
            }
            Some(logged) => (logged.suppressed, (now, 0)),
            None => (0, (now, 0)),
        };
        self.logged.insert(
            code,
            LoggedError {
                at: now,
                suppressed: 0,
                is_unresolved: true,
                lines_in_interval: (since, times + 1),
            },
        );
        Some(suppressed)
    }

    /// Logs `sentence` if the end of a logged error hasn't been logged yet. Returns whether `sentence` was logged.
    pub fn recovered(&mut self, sentence: &str) -> bool {
        let lasts = self.logged.values().any(|logged| logged.is_unresolved);
        if lasts {
            info!("{sentence}");
        }
        // Failures after the last line of an error count for the next line, unless the end of that error is logged.
        for logged in self.logged.values_mut().filter(|logged| logged.is_unresolved) {
            (logged.is_unresolved, logged.suppressed) = (false, 0);
        }
        lasts
    }
}

/// Added to the HTTP code while other work waits for the list, so that this is logged at once, even if the same code
/// was logged just before.
const WAITING_CODE_OFFSET: u16 = 1000;

/// How long a watch, or a Lease, has to be forbidden before a warning: an API server that has just started forbids
/// everything until it has read the roles.
pub(crate) const WARN_OF_REFUSAL_AFTER: Duration = Duration::from_secs(1);

/// Logs the failures of a watch and their end, with the work that waits for the next list.
#[derive(Debug)]
pub struct WatchLog {
    availability: ApiAvailability,
    error_log: ThrottledLog,
    what: String,
    hint: &'static str,
    /// A note on the work that waits for the next list, if any.
    waiting: Option<String>,
    /// Whether the watch has failed since its last event. Events of an old connection don't tell whether the API server
    /// accepts new ones.
    has_failed: bool,
    /// The refusals (403) since the last other answer.
    refusal: LastingRefusal,
}

impl WatchLog {
    /// Hint about the permission to read load balancers.
    pub const READING: &'static str = "lb-linker needs the permissions of deploy/ there";
    /// Hint of a process that is the cluster's DNS: one folder has all permissions.
    pub const CLUSTER_DNS: &'static str = "deploy/cluster-dns/ grants the permission";

    /// Returns whether failed requests aren't retried, because a command reads the cluster once.
    pub(crate) fn asks_once(&self) -> bool {
        self.error_log.asks_once
    }

    /// Returns how a missing permission is granted.
    pub(crate) fn hint(&self) -> &'static str {
        self.hint
    }

    /// Returns the log for a watch of `what`; `hint` tells how to grant a missing permission.
    #[must_use]
    pub fn new(availability: ApiAvailability, what: String, hint: &'static str) -> Self {
        Self {
            error_log: availability.error_log(),
            availability,
            what,
            hint,
            waiting: None,
            has_failed: false,
            refusal: LastingRefusal::default(),
        }
    }

    /// Returns the name of the watched objects for the log.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns whether an answer with this HTTP code is a refusal that hasn't lasted long enough for a warning.
    pub(crate) fn is_new_refusal(&self, code: u16) -> bool {
        code == 403 && !self.refusal.has_lasted(WARN_OF_REFUSAL_AFTER)
    }

    /// Sets the clause that the log adds about work that waits for the next list; `None` if no work waits.
    pub fn set_waiting(&mut self, waiting: Option<String>) {
        self.waiting = waiting;
    }

    /// Returns the event. If the watch has failed, logs the error and returns `None`.
    pub fn log_failure<T>(&mut self, item: Result<Event<T>, WatchError>) -> Option<Event<T>> {
        match item {
            Ok(Event::ListBegins) => Some(Event::ListBegins),
            Ok(event) => {
                self.refusal.note(false);
                if std::mem::take(&mut self.has_failed) {
                    self.availability.report_available();
                }
                self.error_log.recovered(&format!("the {} can be followed again", self.what));
                Some(event)
            }
            Err(error) => {
                self.has_failed = true;
                self.refusal.note(error.code() == 403);
                match (&error, error.code()) {
                    (WatchError::Unidentified, _) => {
                        self.error_log.report(0, &explain_watch(&error, &self.what, self.hint));
                    }
                    (error, 0) => self.availability.report(&root_cause(error)),
                    // After a restart of the API server each watch is told to list again, which nothing has to be done
                    // about.
                    (error, 410) if self.waiting.is_none() => {
                        self.availability.report_available();
                        debug!("{}", explain_watch(error, &self.what, self.hint));
                    }
                    (error, code) if self.is_new_refusal(code) => {
                        self.availability.report_available();
                        debug!("{}", explain_watch(error, &self.what, self.hint));
                    }
                    (error, code) => {
                        error.status().iter().for_each(|status| self.availability.report_status(status));
                        let sentence = explain_watch(error, &self.what, self.hint);
                        match &self.waiting {
                            Some(waiting) if code != 401 => self.error_log.report(
                                code.saturating_add(WAITING_CODE_OFFSET),
                                &format!("{sentence}; {waiting}"),
                            ),
                            _ => self.error_log.report(code, &sentence),
                        }
                    }
                }
                None
            }
        }
    }
}

/// Returns whether no connection could be made, because nothing listens at the address, or a load balancer there closes
/// the connection at once. New attempts burden no API server.
#[must_use]
pub fn is_unreachable(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut connecting = false;
    while let Some(error) = cause {
        connecting |= error.downcast_ref().is_some_and(ClientError::is_connect);
        cause = error.source();
    }
    connecting && has_io_error(error, is_closed)
}

/// Returns whether a connection has broken because the network carries nothing, rather than by its other end.
pub(super) fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    has_io_error(error, |kind| matches!(kind, HostUnreachable | NetworkUnreachable | TimedOut))
}

fn has_io_error(error: &(dyn std::error::Error + 'static), is_one: impl Fn(io::ErrorKind) -> bool) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let mut io_error: Option<&io::Error> = error.downcast_ref();
        // `source` of an I/O error returns the source of the wrapped error, and skips the wrapped error itself.
        while let Some(error) = io_error {
            if is_one(error.kind()) {
                return true;
            }
            io_error = error.get_ref().and_then(|inner| inner.downcast_ref());
        }
        cause = error.source();
    }
    false
}

fn is_closed(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
        UnexpectedEof,
    };
    matches!(
        kind,
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | UnexpectedEof
    )
}

/// Returns whether the write failed because the object of this name has another uid, which is immutable.
#[must_use]
pub fn is_uid_mismatch(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.into_iter().any(|cause| cause.field == "metadata.uid")
}

#[derive(Debug, thiserror::Error)]
#[error("can't list {what}: {source}")]
pub struct ListError {
    /// The name of the listed objects for the log.
    pub what: String,
    pub source: Box<kube::Error>,
}

impl ListError {
    /// Returns the HTTP code; 0 if there was no answer.
    #[must_use]
    pub fn code(&self) -> u16 {
        match &*self.source {
            kube::Error::Api(status) => status.code,
            _ => 0,
        }
    }

    /// Returns one sentence; `hint` names the manifest that grants a missing permission.
    #[must_use]
    pub fn explain(&self, hint: &str) -> String {
        describe(&self.source, &format!("list {}", self.what), hint)
    }
}

/// Returns the scopes of the watches: these namespaces, or all (`None`) if there are none.
pub fn watch_scopes(namespaces: &BTreeSet<String>) -> impl Iterator<Item = Option<&str>> {
    let everywhere = namespaces.is_empty().then_some(None);
    everywhere.into_iter().chain(namespaces.iter().map(|namespace| Some(&**namespace)))
}

/// Returns "… in namespace shop" or "… in all namespaces".
#[must_use]
pub fn in_place(what: &str, place: Option<&str>) -> String {
    match place {
        Some(namespace) => format!("{what} in namespace {namespace}"),
        None => format!("{what} in all namespaces"),
    }
}

#[cfg(test)]
mod tests;
