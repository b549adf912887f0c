//! Which targets can't be resolved: said when it begins and when it ends, and not in a flood.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::model::hostname::to_presentation;

/// Lines in a minute: when all targets fail, the first ones say enough.
const MAX_LINES_PER_MINUTE: u32 = 20;
const LINES_WINDOW: Duration = Duration::from_secs(60);
/// How long a target counts that is no longer asked for.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Targets that are known to fail, at most.
const MAX_FAILED_TARGETS: usize = 10_000;

/// The targets that can't be resolved.
#[derive(Debug)]
pub(crate) struct FailedTargets {
    state: Mutex<FailureState>,
    number: IntGauge,
}

#[derive(Debug)]
struct FailureState {
    /// And when that was last seen: it may be asked for no longer.
    failing: HashMap<QueryKey, Instant>,
    /// Since when lines are counted, how many there were, and what wasn't said.
    since: Instant,
    lines: u32,
    unsaid: u64,
    /// How many of the number are these.
    counted: i64,
}

/// What wasn't said since the last line.
struct UnloggedFailures(u64);

impl fmt::Display for UnloggedFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more lines of this kind weren't written)", self.0) }
    }
}

impl FailedTargets {
    /// Counts them in `number`, beside others that do so.
    pub(crate) fn new(number: IntGauge) -> Self {
        let state =
            FailureState { failing: HashMap::new(), since: Instant::now(), lines: 0, unsaid: 0, counted: 0 };
        Self { state: Mutex::new(state), number }
    }

    /// Takes in that a target can't be resolved.
    pub(crate) fn mark_failed(&self, key: &QueryKey, question: &UpstreamQuery, why: impl fmt::Display) {
        if !key.is_ordinary() {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(seen) = state.failing.get_mut(key) {
            *seen = now;
            return;
        }
        state.failing.retain(|_, seen| now.duration_since(*seen) < FORGET_AFTER);
        if state.failing.len() < MAX_FAILED_TARGETS {
            state.failing.insert(key.clone(), now);
            self.count(&mut state);
            if let Some(unsaid) = state.say() {
                warn!("target {}: {why}{unsaid}", name_of(question));
            }
        }
    }

    /// Takes in that a target can be resolved.
    pub(crate) fn mark_resolved(&self, key: &QueryKey, question: &UpstreamQuery) {
        let mut state = self.state.lock();
        if state.failing.remove(key).is_some() {
            self.count(&mut state);
            if let Some(unsaid) = state.say() {
                info!("target {}: it can be resolved again{unsaid}", name_of(question));
            }
        }
    }

    /// Forgets a name that may be no link's target any more.
    pub(crate) fn forget(&self, name: &[u8]) {
        let mut state = self.state.lock();
        if !state.failing.is_empty() {
            state.failing.retain(|key, _| *key.name() != *name);
            self.count(&mut state);
        }
    }

    /// Forgets all names.
    pub(crate) fn forget_all(&self) {
        let mut state = self.state.lock();
        state.failing.clear();
        self.count(&mut state);
    }

    fn count(&self, state: &mut FailureState) {
        let before =
            std::mem::replace(&mut state.counted, i64::try_from(state.failing.len()).unwrap_or(i64::MAX));
        self.number.add(state.counted - before);
    }
}

impl Drop for FailedTargets {
    fn drop(&mut self) {
        self.number.sub(self.state.lock().counted);
    }
}

impl FailureState {
    /// Returns whether a line may be written, and how many weren't.
    fn say(&mut self) -> Option<UnloggedFailures> {
        if self.since.elapsed() >= LINES_WINDOW {
            (self.since, self.lines) = (Instant::now(), 0);
        }
        if self.lines >= MAX_LINES_PER_MINUTE {
            self.unsaid += 1;
            return None;
        }
        self.lines += 1;
        Some(UnloggedFailures(std::mem::take(&mut self.unsaid)))
    }
}

/// `a.example.com AAAA`
fn name_of(question: &UpstreamQuery) -> String {
    format!("{} {}", to_presentation(&question.query.name().to_lowercase()), question.query.query_type())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_target_is_counted_once_and_lines_are_rare() {
        let number = IntGauge::new("failing", "Failing.").unwrap();
        let failing = FailedTargets::new(number.clone());
        let question =
            |i: u32| UpstreamQuery::plain(Name::from_ascii(format!("t{i}.example.")).unwrap(), RecordType::A);
        for i in 0..30 {
            for _ in 0..2 {
                failing.mark_failed(&question(i).key(), &question(i), "why");
            }
        }
        assert_eq!(number.get(), 30);
        let lines = || {
            let state = failing.state.lock();
            (state.lines, state.unsaid)
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
    }
}
