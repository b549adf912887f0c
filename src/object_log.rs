//! Log lines about single objects, such as Services, whatever causes them. An object and a namespace have a share of the
//! lines of each minute. The newest line about an object that is above a share is logged in a later minute; the other
//! ones are counted, and the number is logged at the end of the minute. The lines of `ObjectLog::takes` are only counted.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Level, enabled, error, info, warn};

use crate::model::service_key::ServiceKey;

/// Maximum numbers of lines about an object, and about all objects of a namespace, in [`WINDOW`].
const MAX_LINES_PER_OBJECT: usize = 20;
const MAX_LINES_PER_NAMESPACE: usize = 200;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of lines of a namespace that wait for a later window.
const MAX_LATE_LINES: usize = MAX_LINES_PER_NAMESPACE;

/// Logs lines about single objects of a kind. All clones share the limits.
#[derive(Clone, Debug)]
pub struct ObjectLog {
    shares: Arc<Mutex<LineShares>>,
    kind: &'static str,
}

/// The lines of the present window.
#[derive(Debug)]
struct LineShares {
    max_per_object: usize,
    max_per_namespace: usize,
    since: Option<Instant>,
    namespaces: HashMap<Box<str>, NamespaceLines>,
    /// Whether a task waits for the end of the window.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct NamespaceLines {
    written: usize,
    left_out: usize,
    /// The numbers of written lines, by the name of the object.
    objects: HashMap<Box<str>, usize>,
    /// The newest line about an object that waits for a later window. A conflict, for example, is logged only once.
    late: HashMap<ServiceKey, LateLine>,
}

#[derive(Debug)]
struct LateLine {
    kind: &'static str,
    level: Level,
    text: String,
}

impl Default for ObjectLog {
    fn default() -> Self {
        Self::with_limits(MAX_LINES_PER_OBJECT, MAX_LINES_PER_NAMESPACE)
    }
}

impl ObjectLog {
    /// Returns a log about Services with these maximum numbers of lines per minute.
    pub(crate) fn with_limits(max_per_object: usize, max_per_namespace: usize) -> Self {
        let (since, namespaces, is_awaited) = Default::default();
        let shares = LineShares { max_per_object, max_per_namespace, since, namespaces, is_awaited };
        Self { shares: Arc::new(Mutex::new(shares)), kind: "Service" }
    }

    /// Returns this log for objects of another kind.
    #[must_use]
    pub fn about(&self, kind: &'static str) -> Self {
        Self { kind, ..self.clone() }
    }

    /// Logs a line about an object, now or in a later minute. The line names the object.
    pub fn info(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::INFO) {
            self.log(key, Level::INFO, &line);
        }
    }

    /// As [`Self::info`].
    pub fn warn(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::WARN) {
            self.log(key, Level::WARN, &line);
        }
    }

    /// As [`Self::info`].
    pub fn error(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::ERROR) {
            self.log(key, Level::ERROR, &line);
        }
    }

    fn log(&self, key: &ServiceKey, level: Level, line: &dyn Display) {
        let mut shares = self.shares.lock();
        if shares.take(key, Instant::now()) {
            self.write(key, level, line);
        } else {
            shares.add_late(key, LateLine { kind: self.kind, level, text: line.to_string() });
            self.await_end(&mut shares);
        }
    }

    /// Logs a line about an object without a limit.
    pub(crate) fn write(&self, key: &ServiceKey, level: Level, line: &dyn Display) {
        write(self.kind, key, level, line);
    }

    /// Returns whether a line about the object may be written now. If it may, it counts as written, else as left out.
    pub(crate) fn takes(&self, key: &ServiceKey) -> bool {
        let mut shares = self.shares.lock();
        let is_taken = shares.take(key, Instant::now());
        if !is_taken {
            shares.of_namespace(key).left_out += 1;
            self.await_end(&mut shares);
        }
        is_taken
    }

    /// Starts a task that ends the present window, so that its late lines and the number of lines left out are logged
    /// although no other line follows.
    fn await_end(&self, shares: &mut LineShares) {
        if !shares.is_awaited
            && let (Some(since), Ok(runtime)) = (shares.since, Handle::try_current())
        {
            shares.is_awaited = true;
            runtime.spawn(end_windows(Arc::downgrade(&self.shares), since + WINDOW));
        }
    }
}

/// Ends windows until no line is late or left out.
async fn end_windows(shares: Weak<Mutex<LineShares>>, mut end: Instant) {
    loop {
        tokio::time::sleep_until(end).await;
        let Some(shares) = shares.upgrade() else { return };
        let mut shares = shares.lock();
        end = shares.advance(Instant::now()) + WINDOW;
        shares.is_awaited =
            shares.namespaces.values().any(|lines| lines.left_out > 0 || !lines.late.is_empty());
        if !shares.is_awaited {
            return;
        }
    }
}

/// Logs a line about an object of a kind, without a limit. The log as text leaves out fields that begin with `log.`, as
/// those of the crate *log*; the log in JSON has the object in fields of its own.
pub(crate) fn write(kind: &'static str, key: &ServiceKey, level: Level, line: &dyn Display) {
    let (namespace, name) = key.parts();
    match level {
        Level::ERROR => error!(log.kind = kind, log.namespace = namespace, log.name = name, "{line}"),
        Level::WARN => warn!(log.kind = kind, log.namespace = namespace, log.name = name, "{line}"),
        _ => info!(log.kind = kind, log.namespace = namespace, log.name = name, "{line}"),
    }
}

impl LineShares {
    fn of_namespace(&mut self, key: &ServiceKey) -> &mut NamespaceLines {
        self.namespaces.entry(key.namespace().into()).or_default()
    }

    /// Returns whether a line may be written now, and counts it then.
    fn take(&mut self, key: &ServiceKey, now: Instant) -> bool {
        self.advance(now);
        let (max_per_object, max_per_namespace) = (self.max_per_object, self.max_per_namespace);
        let lines = self.of_namespace(key);
        let of_object = lines.objects.get(key.name()).copied().unwrap_or_default();
        let is_taken = lines.written < max_per_namespace && of_object < max_per_object;
        if is_taken {
            lines.written += 1;
            lines.objects.insert(key.name().into(), of_object + 1);
        }
        is_taken
    }

    /// Keeps a line for a later window in place of an earlier one about the object.
    fn add_late(&mut self, key: &ServiceKey, line: LateLine) {
        let lines = self.of_namespace(key);
        let has_room = lines.late.len() < MAX_LATE_LINES || lines.late.contains_key(key);
        let lost = if has_room { lines.late.insert(key.clone(), line) } else { Some(line) };
        lines.left_out += usize::from(lost.is_some());
    }

    /// Begins a new window if the present one has ended. Returns the start of the window.
    fn advance(&mut self, now: Instant) -> Instant {
        match self.since.filter(|since| now.duration_since(*since) < WINDOW) {
            Some(since) => since,
            None => {
                self.begin_window(now);
                now
            }
        }
    }

    /// Ends the present window: logs the numbers of lines that were left out in it, and the late lines, as far as the
    /// new window has room.
    fn begin_window(&mut self, now: Instant) {
        self.since = Some(now);
        for (namespace, lines) in std::mem::take(&mut self.namespaces) {
            if lines.left_out > 0 {
                warn!(
                    "{} further lines about objects of namespace {namespace} in the last minute weren't written: a \
                     minute has at most {} about an object, and {} about a namespace",
                    lines.left_out, self.max_per_object, self.max_per_namespace
                );
            }
            for (key, line) in lines.late {
                if self.take(&key, now) {
                    write(line.kind, &key, line.level, &format_args!("{} (logged late)", line.text));
                } else {
                    self.add_late(&key, line);
                }
            }
        }
    }
}

impl Drop for LineShares {
    fn drop(&mut self) {
        self.begin_window(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_object_and_per_namespace_are_limited() {
        let (log, now) = (ObjectLog::default(), Instant::now());
        let mut shares = log.shares.lock();
        let mut lines = |namespace: &str, name: &str, after: Duration| {
            let key = ServiceKey::new(namespace, name);
            (0..1000).filter(|_| shares.take(&key, now + after)).count()
        };
        assert_eq!(lines("a", "web", Duration::ZERO), MAX_LINES_PER_OBJECT);
        let all: usize = (0..1000).map(|i| lines("tenant", &i.to_string(), Duration::ZERO)).sum();
        assert_eq!(all, MAX_LINES_PER_NAMESPACE);
        assert_eq!(lines("a", "other", WINDOW / 2), MAX_LINES_PER_OBJECT);
        assert_eq!(lines("a", "web", WINDOW), MAX_LINES_PER_OBJECT, "a new minute");
        assert_eq!(shares.namespaces.len(), 1, "what was counted before is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn lines_left_out_are_counted_and_said() {
        let (log, key) = (ObjectLog::default(), ServiceKey::new("shop", "web"));
        let taken = (0..1004).filter(|_| log.takes(&key)).count();
        assert_eq!(taken, MAX_LINES_PER_OBJECT);
        assert_eq!(log.shares.lock().namespaces["shop"].left_out, 1004 - MAX_LINES_PER_OBJECT);
        let is_awaited = || log.shares.lock().is_awaited;
        while is_awaited() {
            tokio::time::sleep(WINDOW).await;
        }
        assert!(log.shares.lock().namespaces.is_empty(), "the number is logged without a further line");
        assert!(log.takes(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn newest_line_above_a_share_is_logged_later() {
        let (log, [web, other]) =
            (ObjectLog::with_limits(1, 2), ["web", "other"].map(|name| ServiceKey::new("shop", name)));
        let late = || {
            let shares = log.shares.lock();
            let lines = shares.namespaces.values().flat_map(|lines| lines.late.values());
            lines.map(|line| line.text.clone()).collect::<Vec<_>>()
        };
        let left_out = || log.shares.lock().namespaces["shop"].left_out;
        // The test has no subscriber, so no level is enabled.
        let add = |key: &ServiceKey, line: &str| log.log(key, Level::WARN, &line);
        let minute = WINDOW + Duration::from_secs(1);
        for line in ["first", "conflict", "free again"] {
            add(&web, line);
        }
        assert_eq!((late(), left_out()), (vec!["free again".to_owned()], 1));
        add(&other, "conflict");
        add(&other, "held");
        let third = ServiceKey::new("shop", "third");
        add(&third, "refused");
        assert_eq!((late().len(), left_out()), (3, 1));
        tokio::time::sleep(minute).await;
        assert_eq!(late().len(), 1, "the new minute has room for two");
        tokio::time::sleep(minute).await;
        assert!(late().is_empty() && !log.shares.lock().is_awaited);
        tokio::time::sleep(minute).await;
        add(&web, "first");
        add(&web, "second");
        tokio::time::sleep(minute * 3).await;
        assert!(late().is_empty(), "another task ends the next window");
        for number in 0..MAX_LATE_LINES + 10 {
            add(&ServiceKey::new("shop", &number.to_string()), "conflict");
        }
        assert_eq!((late().len(), left_out()), (MAX_LATE_LINES, 8));
    }
}
