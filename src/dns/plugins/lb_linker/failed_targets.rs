//! Which targets can't be resolved: said when it begins and when it ends, and not in a flood.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::dns::message::query::{Key, Question};
use crate::model::hostname::to_presentation;

/// Lines in a minute: when all targets fail, the first ones say enough.
const LINES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// How long a target counts that is no longer asked for.
const STALE: Duration = Duration::from_secs(600);
/// Targets that are known to fail, at most.
const MAX_FAILING: usize = 10_000;

/// The targets that can't be resolved.
#[derive(Debug)]
pub(crate) struct Failing {
    state: Mutex<State>,
    number: IntGauge,
}

#[derive(Debug)]
struct State {
    /// And when that was last seen: it may be asked for no longer.
    failing: HashMap<Key, Instant>,
    /// Since when lines are counted, how many there were, and what wasn't said.
    since: Instant,
    lines: u32,
    unsaid: u64,
    /// How many of the number are these.
    counted: i64,
}

/// What wasn't said since the last line.
struct Unsaid(u64);

impl fmt::Display for Unsaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more lines of this kind weren't written)", self.0) }
    }
}

impl Failing {
    /// Counts them in `number`, beside others that do so.
    pub(crate) fn new(number: IntGauge) -> Self {
        let state = State { failing: HashMap::new(), since: Instant::now(), lines: 0, unsaid: 0, counted: 0 };
        Self { state: Mutex::new(state), number }
    }

    /// Takes in that a target can't be resolved.
    pub(crate) fn failed(&self, key: &Key, question: &Question, why: impl fmt::Display) {
        if !key.is_ordinary() {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(seen) = state.failing.get_mut(key) {
            *seen = now;
            return;
        }
        state.failing.retain(|_, seen| now.duration_since(*seen) < STALE);
        if state.failing.len() < MAX_FAILING {
            state.failing.insert(key.clone(), now);
            self.count(&mut state);
            if let Some(unsaid) = state.say() {
                warn!("target {}: {why}{unsaid}", name_of(question));
            }
        }
    }

    /// Takes in that a target can be resolved.
    pub(crate) fn well(&self, key: &Key, question: &Question) {
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

    fn count(&self, state: &mut State) {
        let before =
            std::mem::replace(&mut state.counted, i64::try_from(state.failing.len()).unwrap_or(i64::MAX));
        self.number.add(state.counted - before);
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.number.sub(self.state.lock().counted);
    }
}

impl State {
    /// Returns whether a line may be written, and how many weren't.
    fn say(&mut self) -> Option<Unsaid> {
        if self.since.elapsed() >= MINUTE {
            (self.since, self.lines) = (Instant::now(), 0);
        }
        if self.lines >= LINES {
            self.unsaid += 1;
            return None;
        }
        self.lines += 1;
        Some(Unsaid(std::mem::take(&mut self.unsaid)))
    }
}

/// `a.example.com AAAA`
fn name_of(question: &Question) -> String {
    format!("{} {}", to_presentation(&question.query.name().to_lowercase()), question.query.query_type())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_target_is_counted_once_and_lines_are_rare() {
        let number = IntGauge::new("failing", "Failing.").unwrap();
        let failing = Failing::new(number.clone());
        let question =
            |i: u32| Question::plain(Name::from_ascii(format!("t{i}.example.")).unwrap(), RecordType::A);
        for i in 0..30 {
            for _ in 0..2 {
                failing.failed(&question(i).key(), &question(i), "why");
            }
        }
        assert_eq!(number.get(), 30);
        let lines = || {
            let state = failing.state.lock();
            (state.lines, state.unsaid)
        };
        assert_eq!(lines(), (LINES, 10));
        failing.well(&question(1).key(), &question(1));
        failing.well(&question(1).key(), &question(1));
        failing.forget(question(2).key().name());
        assert_eq!(number.get(), 28);
        assert_eq!(lines(), (LINES, 11));
        tokio::time::advance(MINUTE).await;
        failing.well(&question(3).key(), &question(3));
        assert_eq!(lines(), (1, 0));
    }
}
