//! Logs, with a rate limit, when a target begins to fail and when it can be resolved again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::model::hostname::to_presentation;

/// The rate limit of log lines: when all targets fail, the first lines are enough.
const MAX_LINES_PER_MINUTE: u32 = 20;
/// A name that fails and works in turn has a share of the lines.
const MAX_LINES_OF_NAME: u32 = 5;
const LINES_WINDOW: Duration = Duration::from_secs(60);
/// A target whose last failed look-up is older than this is removed, because clients have stopped querying it: when the
/// look-up of any target ends, or at a scrape, but at most once per `FORGET_INTERVAL`.
const FORGET_AFTER: Duration = Duration::from_secs(600);
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
const MAX_FAILED_TARGETS: usize = 10_000;

/// The gauge of failing targets, and the sets that count in it.
#[derive(Clone, Debug)]
pub(crate) struct FailedTargetsGauge {
    gauge: IntGauge,
    sets: Arc<Mutex<Vec<Weak<FailedTargets>>>>,
}

impl FailedTargetsGauge {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        Self { gauge, sets: Arc::default() }
    }

    /// Returns an empty set that counts in this gauge.
    pub(crate) fn new_set(&self) -> Arc<FailedTargets> {
        let set = Arc::new(FailedTargets::new(self.gauge.clone()));
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        sets.push(Arc::downgrade(&set));
        drop(sets);
        set
    }
}

impl Collector for FailedTargetsGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        self.sets.lock().retain(|set| {
            let Some(set) = set.upgrade() else { return false };
            set.forget_old(&mut set.state.lock(), now);
            true
        });
        self.gauge.collect()
    }
}

#[derive(Debug)]
pub(crate) struct FailedTargets {
    state: Mutex<FailureState>,
    gauge: IntGauge,
}

#[derive(Debug)]
struct FailureState {
    /// The failing targets with the time of their last failed look-up.
    failing: HashMap<QueryKey, Instant>,
    /// The time of the last search for targets to forget.
    last_cleanup: Instant,
    /// The start of the rate limit's window, the lines in it, and the number of suppressed lines.
    window_start: Instant,
    lines: u32,
    lines_of_names: HashMap<Box<[u8]>, u32>,
    suppressed: u64,
    /// This set's share of the gauge.
    reported: i64,
}

/// The number of lines that were suppressed since the last line.
struct UnloggedFailures(u64);

impl fmt::Display for UnloggedFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more lines of this kind weren't written)", self.0) }
    }
}

impl FailedTargets {
    /// Returns an empty set that adds its size to `gauge`, which several sets share.
    fn new(gauge: IntGauge) -> Self {
        let state = FailureState {
            failing: HashMap::new(),
            last_cleanup: Instant::now(),
            window_start: Instant::now(),
            lines: 0,
            lines_of_names: HashMap::new(),
            suppressed: 0,
            reported: 0,
        };
        Self { state: Mutex::new(state), gauge }
    }

    /// Records that a target can't be resolved, and logs its first failure. Ignores queries with DO or CD, and queries
    /// for other types than A, AAAA and HTTPS.
    pub(crate) fn mark_failed(&self, key: &QueryKey, question: &UpstreamQuery, why: impl fmt::Display) {
        if !key.is_plain_address_query() {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_known = state.failing.get_mut(key).map(|seen| *seen = now).is_some();
        self.forget_old(&mut state, now);
        if !is_known && state.failing.len() < MAX_FAILED_TARGETS {
            state.failing.insert(key.clone(), now);
            self.count(&mut state);
            if let Some(suffix) = state.take_log_slot(key.name()) {
                warn!("target {}: {why}{suffix}", name_of(question));
            }
        }
    }

    /// Records that a target can be resolved, and logs it if the target was failing.
    pub(crate) fn mark_resolved(&self, key: &QueryKey, question: &UpstreamQuery) {
        let mut state = self.state.lock();
        if state.failing.is_empty() {
            return;
        }
        self.forget_old(&mut state, Instant::now());
        if state.failing.remove(key).is_some() {
            self.count(&mut state);
            if let Some(suffix) = state.take_log_slot(key.name()) {
                info!("target {}: it can be resolved again{suffix}", name_of(question));
            }
        }
    }

    /// Removes a name that may no longer be a link's target.
    pub(crate) fn forget(&self, name: &[u8]) {
        let mut state = self.state.lock();
        if !state.failing.is_empty() {
            state.failing.retain(|key, _| *key.name() != *name);
            self.count(&mut state);
        }
    }

    pub(crate) fn forget_all(&self) {
        let mut state = self.state.lock();
        state.failing.clear();
        self.count(&mut state);
    }

    /// Removes the targets that haven't failed for a while.
    fn forget_old(&self, state: &mut FailureState, now: Instant) {
        if now.duration_since(state.last_cleanup) < FORGET_INTERVAL {
            return;
        }
        state.last_cleanup = now;
        state.failing.retain(|_, seen| now.duration_since(*seen) < FORGET_AFTER);
        self.count(state);
    }

    fn count(&self, state: &mut FailureState) {
        let before =
            std::mem::replace(&mut state.reported, i64::try_from(state.failing.len()).unwrap_or(i64::MAX));
        self.gauge.add(state.reported - before);
    }
}

impl Drop for FailedTargets {
    fn drop(&mut self) {
        self.gauge.sub(self.state.lock().reported);
    }
}

impl FailureState {
    /// Returns the number of suppressed lines if a line may be written.
    fn take_log_slot(&mut self, name: &[u8]) -> Option<UnloggedFailures> {
        if self.window_start.elapsed() >= LINES_WINDOW {
            (self.window_start, self.lines) = (Instant::now(), 0);
            self.lines_of_names.clear();
        }
        let of_name = self.lines_of_names.get(name).copied().unwrap_or_default();
        if self.lines >= MAX_LINES_PER_MINUTE || of_name >= MAX_LINES_OF_NAME {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        self.lines_of_names.insert(name.into(), of_name + 1);
        Some(UnloggedFailures(std::mem::take(&mut self.suppressed)))
    }
}

/// Formats a query as `a.example.com AAAA`.
fn name_of(question: &UpstreamQuery) -> String {
    format!("{} {}", to_presentation(&question.query.name().to_lowercase()), question.query.query_type())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failing_target_is_counted_once_and_logs_are_limited() {
        let number = IntGauge::new("failing", "Failing.").unwrap();
        let gauge = FailedTargetsGauge::new(number.clone());
        let failing = gauge.new_set();
        let question = |i: u32| {
            UpstreamQuery::recursive(Name::from_ascii(format!("t{i}.example.")).unwrap(), RecordType::A)
        };
        for i in 0..30 {
            for _ in 0..2 {
                failing.mark_failed(&question(i).key(), &question(i), "why");
            }
        }
        assert_eq!(number.get(), 30);
        let lines = || {
            let state = failing.state.lock();
            (state.lines, state.suppressed)
        };
        assert_eq!(lines(), (MAX_LINES_PER_MINUTE, 10));
        failing.mark_resolved(&question(1).key(), &question(1));
        failing.mark_resolved(&question(1).key(), &question(1));
        failing.forget(question(2).key().name());
        assert_eq!(number.get(), 28);
        assert_eq!(lines(), (MAX_LINES_PER_MINUTE, 11));
        tokio::time::advance(LINES_WINDOW).await;
        failing.mark_resolved(&question(3).key(), &question(3));
        assert_eq!(lines(), (1, 0));
        for _ in 0..10 {
            failing.mark_failed(&question(3).key(), &question(3), "why");
            failing.mark_resolved(&question(3).key(), &question(3));
        }
        assert_eq!(lines(), (MAX_LINES_OF_NAME, 16), "other targets have the rest");
        // From here on only target 4 is queried.
        tokio::time::advance(FORGET_AFTER / 2).await;
        failing.mark_failed(&question(4).key(), &question(4), "why");
        assert_eq!(number.get(), 27);
        tokio::time::advance(FORGET_AFTER / 2).await;
        failing.mark_failed(&question(4).key(), &question(4), "why");
        assert_eq!(number.get(), 1);
        tokio::time::advance(FORGET_AFTER).await;
        failing.mark_resolved(&question(40).key(), &question(40));
        assert_eq!(number.get(), 0);
        // No target is looked up any more.
        failing.mark_failed(&question(5).key(), &question(5), "why");
        gauge.collect();
        assert_eq!(number.get(), 1);
        tokio::time::advance(FORGET_AFTER).await;
        gauge.collect();
        assert_eq!(number.get(), 0);
        drop(failing);
        gauge.collect();
        assert!(gauge.sets.lock().is_empty());
    }
}
