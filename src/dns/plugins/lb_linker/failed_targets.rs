//! The targets whose last look-up has failed: for the log, with a rate limit, for the metric and for the views of links.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hickory_proto::rr::{Name, RecordType};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::dns::message::query::{QueryKey, QueryKeyHashing, UpstreamQuery, wire_name};
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
/// While look-ups go on to fail for the same reason, watched views are read again at most this often.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// The gauge of failing targets, and the sets that count in it.
#[derive(Clone, Debug)]
pub struct FailedTargetsGauge {
    gauge: IntGauge,
    /// Grows with each change of a set.
    version: Arc<AtomicU64>,
    log: ObjectLog,
    sets: Arc<Mutex<Vec<Weak<FailedTargets>>>>,
}

/// A type whose last look-up has failed, and why.
type FailedType = (RecordType, Box<str>);

/// The failed types of each target, and the time of the last failure, by the target's name in wire form.
#[derive(Debug, Default)]
pub struct UnresolvedTargets(HashMap<Box<[u8]>, (Timestamp, Vec<FailedType>)>);

/// Why a target can't be resolved.
#[derive(Debug, PartialEq, Eq)]
pub struct TargetFailure {
    /// Whether a look-up of addresses has failed, not only one of HTTPS records.
    pub is_address: bool,
    /// The types and the reasons: `A, AAAA: the upstream answers SERVFAIL`.
    pub why: String,
    /// The time of the last failure.
    pub at: Timestamp,
}

impl UnresolvedTargets {
    /// Returns why a hostname can't be resolved; `None` unless its last look-up has failed.
    #[must_use]
    pub fn of(&self, host: &Name) -> Option<TargetFailure> {
        if self.0.is_empty() {
            return None;
        }
        let (at, failed) = self.0.get(&wire_name(host))?;
        let mut failed: Vec<&FailedType> = failed.iter().collect();
        failed.sort_by_key(|(qtype, _)| u16::from(*qtype));
        failed.dedup_by_key(|(qtype, _)| *qtype);
        let parts = failed.chunk_by(|(_, one), (_, other)| one == other).filter_map(|alike| {
            let types: Vec<String> = alike.iter().map(|(qtype, _)| qtype.to_string()).collect();
            Some(format!("{}: {}", types.join(", "), alike.first()?.1))
        });
        let why = parts.collect::<Vec<_>>().join("; ");
        Some(TargetFailure { is_address: failed.iter().any(|(qtype, _)| qtype.is_ip_addr()), why, at: *at })
    }
}

impl FailedTargetsGauge {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        let log = ObjectLog::with_limits(MAX_LINES_PER_LINK, MAX_LINES_PER_NAMESPACE);
        Self { gauge, version: Arc::default(), log, sets: Arc::default() }
    }

    /// Returns a number that grows with each change of [`Self::unresolved`].
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the targets whose last look-up has failed.
    pub(crate) fn unresolved(&self) -> UnresolvedTargets {
        let mut unresolved = UnresolvedTargets::default();
        for set in self.current_sets() {
            for (key, target) in &set.state.lock().failing {
                let (at, types) = unresolved.0.entry(key.name().into()).or_default();
                *at = target.at.max(*at);
                types.push((key.qtype(), target.why.clone()));
            }
        }
        unresolved
    }

    /// Returns the sets in use, without targets that haven't failed for a while.
    fn current_sets(&self) -> Vec<Arc<FailedTargets>> {
        let (now, mut current) = (Instant::now(), Vec::new());
        self.sets.lock().retain(|set| {
            let Some(set) = set.upgrade() else { return false };
            set.forget_old(&mut set.state.lock(), now);
            current.push(set);
            true
        });
        current
    }

    /// Returns an empty set that counts in this gauge.
    pub(crate) fn new_set(&self) -> Arc<FailedTargets> {
        let state = FailureState { failing: HashMap::default(), last_cleanup: Instant::now(), reported: 0 };
        let (gauge, version, log) = (self.gauge.clone(), Arc::clone(&self.version), self.log.clone());
        let set = Arc::new(FailedTargets { state: Mutex::new(state), gauge, version, log });
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
        drop(self.current_sets());
        self.gauge.collect()
    }
}

#[derive(Debug)]
pub(crate) struct FailedTargets {
    state: Mutex<FailureState>,
    gauge: IntGauge,
    version: Arc<AtomicU64>,
    log: ObjectLog,
}

#[derive(Debug)]
struct FailureState {
    failing: HashMap<QueryKey, FailingTarget, QueryKeyHashing>,
    /// The time of the last search for targets to forget.
    last_cleanup: Instant,
    /// This set's share of the gauge.
    reported: i64,
}

#[derive(Debug)]
struct FailingTarget {
    /// The time of the last failed look-up.
    seen: Instant,
    at: Timestamp,
    /// The reason of that failure.
    why: Box<str>,
    /// When the version last changed for it.
    told: Instant,
    /// Whether there is an answer, and the target policy denies all of it.
    is_denied: bool,
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
    /// Records that the target of a link can't be resolved, and logs its first failure. Ignores queries with DO or CD, and
    /// queries for other types than A, AAAA and HTTPS.
    pub(crate) fn mark_failed(
        &self,
        link: Option<&ServiceKey>,
        key: &QueryKey,
        question: &UpstreamQuery,
        why: impl Display,
    ) {
        self.mark(link, key, question, (&why, false));
    }

    /// As [`Self::mark_failed`], for an answer of which the target policy leaves nothing.
    pub(crate) fn mark_denied(
        &self,
        link: Option<&ServiceKey>,
        key: &QueryKey,
        question: &UpstreamQuery,
        why: &str,
    ) {
        self.mark(link, key, question, (&why, true));
    }

    fn mark(
        &self,
        link: Option<&ServiceKey>,
        key: &QueryKey,
        question: &UpstreamQuery,
        (why, is_denied): (&dyn Display, bool),
    ) {
        if !key.is_plain_address_query() {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(target) = state.failing.get_mut(key) {
            (target.seen, target.at) = (now, Timestamp::now());
            let why = why.to_string();
            if matches!(&target.log, Logged::NotWithin(other) if other.as_ref() != link) {
                target.log = self.log_failure(link, question, &why);
            }
            // The addresses of a denied target may be others in each answer: the first reason stays.
            let is_new = *target.why != *why && !(is_denied && target.is_denied);
            if is_new {
                (target.why, target.is_denied) = (why.into(), is_denied);
            }
            if is_new || now.duration_since(target.told) >= TELL_INTERVAL {
                target.told = now;
                self.version.fetch_add(1, Ordering::Release);
            }
        } else if state.failing.len() < MAX_FAILED_TARGETS {
            let why = why.to_string();
            let log = self.log_failure(link, question, &why);
            let (why, at) = (why.into(), Timestamp::now());
            let target = FailingTarget { seen: now, at, told: now, why, is_denied, log };
            state.failing.insert(key.clone(), target);
            self.count(&mut state);
        }
        self.forget_old(&mut state, now);
    }

    fn log_failure(&self, link: Option<&ServiceKey>, question: &UpstreamQuery, why: &str) -> Logged {
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

    /// Records that a look-up has brought an allowed address: that the answer for the other address family is denied is no
    /// failure any more.
    pub(crate) fn mark_reachable(&self, question: &UpstreamQuery) {
        let other = match question.query.query_type() {
            RecordType::A => RecordType::AAAA,
            RecordType::AAAA => RecordType::A,
            _ => return,
        };
        let mut question = question.clone();
        question.query.set_query_type(other);
        let key = question.key();
        if self.state.lock().failing.get(&key).is_some_and(|target| target.is_denied) {
            self.mark_resolved(&key, &question);
        }
    }

    fn may_log(&self, link: Option<&ServiceKey>) -> bool {
        link.is_none_or(|link| self.log.takes(link))
    }

    /// Returns whether the last look-up of a name has failed for a type.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.state.lock().failing.keys().any(|key| *key.name() == *name)
    }

    /// Removes a name that is no longer a link's target.
    pub(crate) fn forget(&self, name: &[u8]) {
        let mut state = self.state.lock();
        state.failing.retain(|key, _| *key.name() != *name);
        self.count(&mut state);
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
        if state.reported != before {
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for FailedTargets {
    fn drop(&mut self) {
        self.gauge.sub(self.state.lock().reported);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// Formats a query as `a.example.com AAAA`.
fn name_of(question: &UpstreamQuery) -> String {
    format!("{} {}", to_presentation(&question.query.name().to_lowercase()), question.query.query_type())
}

#[cfg(test)]
mod tests {
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
    async fn unresolved_targets_have_types_and_reasons() {
        let failed_targets = FailedTargetsGauge::new(IntGauge::new("failing", "Failing.").unwrap());
        let failing = failed_targets.new_set();
        let host = Name::from_ascii("T.example.").unwrap();
        let question = |qtype| UpstreamQuery::recursive(host.clone(), qtype);
        let mut version = failed_targets.version();
        let mut shown = |failing: &FailedTargets, qtype, why: Option<&str>| {
            match why {
                Some(why) => failing.mark_failed(None, &question(qtype).key(), &question(qtype), why),
                None => failing.mark_resolved(&question(qtype).key(), &question(qtype)),
            }
            assert_ne!(std::mem::replace(&mut version, failed_targets.version()), failed_targets.version());
            failed_targets.unresolved().of(&host).map(|failure| (failure.is_address, failure.why))
        };
        let show = |is_address, why: &str| Some((is_address, why.to_owned()));
        let (aaaa, https) = (RecordType::AAAA, RecordType::HTTPS);
        assert_eq!(shown(&failing, https, Some("x")), show(false, "HTTPS: x"));
        assert_eq!(shown(&failing, aaaa, Some("x")), show(true, "AAAA, HTTPS: x"));
        assert_eq!(shown(&failing, RecordType::A, Some("y")), show(true, "A: y; AAAA, HTTPS: x"));
        assert_eq!(shown(&failing, aaaa, Some("y")), show(true, "A, AAAA: y; HTTPS: x"));
        shown(&failing, aaaa, None);
        assert_eq!(shown(&failing, https, None), show(true, "A: y"));
        assert_eq!(failed_targets.unresolved().of(&Name::root()), None);
        let (first, version) = (failed_targets.unresolved().of(&host).unwrap().at, failed_targets.version());
        let fail_again = || {
            let question = question(RecordType::A);
            failing.mark_failed(None, &question.key(), &question, "y");
        };
        fail_again();
        assert_ne!(failed_targets.unresolved().of(&host).unwrap().at, first);
        assert_eq!(failed_targets.version(), version);
        tokio::time::advance(TELL_INTERVAL).await;
        fail_again();
        assert_ne!(failed_targets.version(), version, "watched views are read again");
        tokio::time::advance(FORGET_AFTER).await;
        assert_eq!(failed_targets.unresolved().of(&host), None, "it isn't looked up any more");
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
