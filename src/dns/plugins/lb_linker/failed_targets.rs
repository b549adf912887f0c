//! Logs, with a rate limit, when a target begins to fail and when it can be resolved again.

use std::collections::HashMap;
use std::fmt::Display;
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
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;

/// Maximum numbers of lines per minute about the targets of a link and of a namespace: when all targets fail, the first
/// lines are enough.
const MAX_LINES_PER_LINK: usize = 5;
const MAX_LINES_PER_NAMESPACE: usize = 20;
/// A target whose last failed look-up is older than this is removed, because clients have stopped querying it: when the
/// look-up of any target ends, or at a scrape, but at most once per `FORGET_INTERVAL`.
const FORGET_AFTER: Duration = Duration::from_secs(600);
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
const MAX_FAILED_TARGETS: usize = 10_000;

/// The gauge of failing targets, and the sets that count in it.
#[derive(Clone, Debug)]
pub(crate) struct FailedTargetsGauge {
    gauge: IntGauge,
    log: ObjectLog,
    sets: Arc<Mutex<Vec<Weak<FailedTargets>>>>,
}

impl FailedTargetsGauge {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        let log = ObjectLog::with_limits(MAX_LINES_PER_LINK, MAX_LINES_PER_NAMESPACE);
        Self { gauge, log, sets: Arc::default() }
    }

    /// Returns an empty set that counts in this gauge.
    pub(crate) fn new_set(&self) -> Arc<FailedTargets> {
        let set = Arc::new(FailedTargets::new(self.gauge.clone(), self.log.clone()));
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
    log: ObjectLog,
}

#[derive(Debug)]
struct FailureState {
    failing: HashMap<QueryKey, FailingTarget>,
    /// The time of the last search for targets to forget.
    last_cleanup: Instant,
    /// This set's share of the gauge.
    reported: i64,
}

#[derive(Debug)]
struct FailingTarget {
    /// The time of the last failed look-up.
    seen: Instant,
    log: Logged,
}

/// Whether a failing target is in the log. Several links may have the target; a link whose share is used up doesn't keep
/// the line out of the log if the target fails for another link.
#[derive(Debug)]
enum Logged {
    /// Yes, in the share of this link.
    Within(Option<ServiceKey>),
    /// No; this link's share was used up.
    NotWithin(Option<ServiceKey>),
}

impl FailedTargets {
    /// Returns an empty set that adds its size to `gauge`. Several sets share the gauge and the log.
    fn new(gauge: IntGauge, log: ObjectLog) -> Self {
        let state = FailureState { failing: HashMap::new(), last_cleanup: Instant::now(), reported: 0 };
        Self { state: Mutex::new(state), gauge, log }
    }

    /// Records that the target of a link can't be resolved, and logs its first failure. Ignores queries with DO or CD, and
    /// queries for other types than A, AAAA and HTTPS.
    pub(crate) fn mark_failed(
        &self,
        link: Option<&ServiceKey>,
        key: &QueryKey,
        question: &UpstreamQuery,
        why: impl Display,
    ) {
        if !key.is_plain_address_query() {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(target) = state.failing.get_mut(key) {
            target.seen = now;
            if matches!(&target.log, Logged::NotWithin(other) if other.as_ref() != link) {
                target.log = self.log_failure(link, question, why);
            }
        } else if state.failing.len() < MAX_FAILED_TARGETS {
            let log = self.log_failure(link, question, why);
            state.failing.insert(key.clone(), FailingTarget { seen: now, log });
            self.count(&mut state);
        }
        self.forget_old(&mut state, now);
    }

    fn log_failure(&self, link: Option<&ServiceKey>, question: &UpstreamQuery, why: impl Display) -> Logged {
        if !self.may_log(link) {
            return Logged::NotWithin(link.cloned());
        }
        warn!("target {}: {why}", name_of(question));
        Logged::Within(link.cloned())
    }

    /// Records that a target can be resolved, and logs it if its failure is in the log.
    pub(crate) fn mark_resolved(&self, key: &QueryKey, question: &UpstreamQuery) {
        let mut state = self.state.lock();
        if state.failing.is_empty() {
            return;
        }
        self.forget_old(&mut state, Instant::now());
        let Some(target) = state.failing.remove(key) else { return };
        self.count(&mut state);
        if let Logged::Within(link) = target.log
            && self.may_log(link.as_ref())
        {
            info!("target {}: it can be resolved again", name_of(question));
        }
    }

    fn may_log(&self, link: Option<&ServiceKey>) -> bool {
        link.is_none_or(|link| self.log.takes(link))
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
        state.failing.retain(|_, target| now.duration_since(target.seen) < FORGET_AFTER);
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

/// Formats a query as `a.example.com AAAA`.
fn name_of(question: &UpstreamQuery) -> String {
    format!("{} {}", to_presentation(&question.query.name().to_lowercase()), question.query.query_type())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failing_target_is_counted_once_and_lines_are_shared() {
        let number = IntGauge::new("failing", "Failing.").unwrap();
        let gauge = FailedTargetsGauge::new(number.clone());
        let failing = gauge.new_set();
        let question = |i: u32| {
            UpstreamQuery::recursive(Name::from_ascii(format!("t{i}.example.")).unwrap(), RecordType::A)
        };
        let link = |i: u32| ServiceKey::new("shop", &i.to_string());
        let fail = |i: u32| failing.mark_failed(Some(&link(i)), &question(i).key(), &question(i), "why");
        let resolve = |i: u32| failing.mark_resolved(&question(i).key(), &question(i));
        let lines_left = |namespace: &str| {
            let objects = (0..100).map(|i| ServiceKey::new(namespace, &format!("other-{i}")));
            objects.filter(|key| failing.log.takes(key)).count()
        };
        for i in 0..8 {
            (0..2).for_each(|_| fail(i));
        }
        assert_eq!(lines_left("shop"), MAX_LINES_PER_NAMESPACE - 8, "each failure has one line");
        for i in 8..30 {
            fail(i);
        }
        assert_eq!(number.get(), 30);
        assert_eq!(lines_left("games"), MAX_LINES_PER_NAMESPACE, "another namespace has its own lines");
        (0..2).for_each(|_| resolve(1));
        failing.forget(question(2).key().name());
        assert_eq!(number.get(), 28);
        tokio::time::advance(Duration::from_secs(60)).await;
        resolve(3);
        for _ in 0..10 {
            fail(3);
            resolve(3);
        }
        let left = MAX_LINES_PER_NAMESPACE - MAX_LINES_PER_LINK;
        assert_eq!(lines_left("shop"), left, "other targets have the rest");
        // From here on only target 4 is queried.
        tokio::time::advance(FORGET_AFTER / 2).await;
        fail(4);
        assert_eq!(number.get(), 27);
        tokio::time::advance(FORGET_AFTER / 2).await;
        fail(4);
        assert_eq!(number.get(), 1);
        tokio::time::advance(FORGET_AFTER).await;
        resolve(40);
        assert_eq!(number.get(), 0);
        // No target is looked up any more.
        fail(5);
        gauge.collect();
        assert_eq!(number.get(), 1);
        tokio::time::advance(FORGET_AFTER).await;
        gauge.collect();
        assert_eq!(number.get(), 0);
        drop(failing);
        gauge.collect();
        assert!(gauge.sets.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn used_up_share_of_a_link_hides_no_failure_from_another() {
        let failing = FailedTargetsGauge::new(IntGauge::new("failing", "Failing.").unwrap()).new_set();
        let [tenant, other] = ["tenant", "shop"].map(|namespace| ServiceKey::new(namespace, "web"));
        let question = UpstreamQuery::recursive(Name::from_ascii("t.example.").unwrap(), RecordType::A);
        let lines_left = |link| (0..100).filter(|_| failing.log.takes(link)).count();
        assert_eq!(lines_left(&tenant), MAX_LINES_PER_LINK);
        for link in [&tenant, &tenant, &other, &other] {
            failing.mark_failed(Some(link), &question.key(), &question, "why");
        }
        failing.mark_resolved(&question.key(), &question);
        assert_eq!(lines_left(&other), MAX_LINES_PER_LINK - 2);
    }
}
