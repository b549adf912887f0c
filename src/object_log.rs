//! Log lines about single objects, such as Services, whatever causes them. An object and a namespace have a share of the
//! lines of each minute; lines above a share are counted, and the number is logged at the end of the minute.

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

/// Logs lines about single objects. All clones share the limits.
#[derive(Clone, Debug, Default)]
pub struct ObjectLog(Arc<Mutex<LineShares>>);

/// The lines of the present window.
#[derive(Debug, Default)]
struct LineShares {
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
}

impl ObjectLog {
    /// Logs a line about an object, unless a share is used up. The line names the object.
    pub fn info(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::INFO) && self.takes(key) {
            info!("{line}");
        }
    }

    /// As [`Self::info`].
    pub fn warn(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::WARN) && self.takes(key) {
            warn!("{line}");
        }
    }

    /// As [`Self::info`].
    pub fn error(&self, key: &ServiceKey, line: impl Display) {
        if enabled!(Level::ERROR) && self.takes(key) {
            error!("{line}");
        }
    }

    /// Returns whether a line about the object may be written now. If it may, it counts as written, else as left out.
    pub(crate) fn takes(&self, key: &ServiceKey) -> bool {
        let mut shares = self.0.lock();
        let is_taken = shares.take(key, Instant::now());
        if !is_taken
            && !shares.is_awaited
            && let (Some(since), Ok(runtime)) = (shares.since, Handle::try_current())
        {
            shares.is_awaited = true;
            runtime.spawn(end_window(Arc::downgrade(&self.0), since + WINDOW));
        }
        is_taken
    }
}

async fn end_window(shares: Weak<Mutex<LineShares>>, end: Instant) {
    tokio::time::sleep_until(end).await;
    if let Some(shares) = shares.upgrade() {
        let mut shares = shares.lock();
        shares.is_awaited = false;
        shares.begin_window(end);
    }
}

impl LineShares {
    fn take(&mut self, key: &ServiceKey, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            self.begin_window(now);
        }
        let (namespace, name) = key.parts();
        let lines = self.namespaces.entry(namespace.into()).or_default();
        let of_object = lines.objects.get(name).copied().unwrap_or_default();
        if lines.written >= MAX_LINES_PER_NAMESPACE || of_object >= MAX_LINES_PER_OBJECT {
            lines.left_out += 1;
            return false;
        }
        lines.written += 1;
        lines.objects.insert(name.into(), of_object + 1);
        true
    }

    /// Ends the present window, and logs the numbers of lines that were left out in it.
    fn begin_window(&mut self, now: Instant) {
        self.since = Some(now);
        for (namespace, lines) in std::mem::take(&mut self.namespaces) {
            if lines.left_out > 0 {
                warn!(
                    "{} further lines about objects of namespace {namespace} in the last minute weren't written: a \
                     minute has at most {MAX_LINES_PER_OBJECT} about an object, and {MAX_LINES_PER_NAMESPACE} about a \
                     namespace",
                    lines.left_out
                );
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
        let (mut shares, now) = (LineShares::default(), Instant::now());
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
        assert_eq!(log.0.lock().namespaces["shop"].left_out, 1004 - MAX_LINES_PER_OBJECT);
        let is_awaited = || log.0.lock().is_awaited;
        while is_awaited() {
            tokio::time::sleep(WINDOW).await;
        }
        assert!(log.0.lock().namespaces.is_empty(), "the number is logged without a further line");
        assert!(log.takes(&key));
    }
}
