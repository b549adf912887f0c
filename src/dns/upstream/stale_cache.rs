//! The last known answers about targets, which are served when no upstream answers (RFC 8767).

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::sharded_cache::ShardedCache;
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::reply::Reply;

const MAX_STALE_AGE: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of answers: A and AAAA of 30,000 targets.
const MAX_ENTRIES: usize = 65_536;
/// The approximate memory limit, in bytes.
const MAX_BYTES: usize = 64 << 20;

const AGE_TOLERANCE: Duration = Duration::from_secs(1);

/// How long an answer isn't replaced by an answer that leads back into a zone of links.
const BACK_TO_ZONE_HOLD_OFF: Duration = Duration::from_secs(5);

/// How long clients don't wait for look-ups after one has failed (RFC 8767 section 5, the failure recheck timer).
const RECHECK: Duration = Duration::from_secs(30);

/// The TTL of a stale answer, in seconds (RFC 8767 section 4).
pub const STALE_TTL: u32 = 30;

/// The caches, keyed by the group of servers with the same blocks and the view of the block. They outlive the blocks.
pub type StaleCaches = Arc<DashMap<String, Arc<StaleCache>>>;

/// The last good answer for each target and type.
#[derive(Debug)]
pub struct StaleCache(ShardedCache<CachedReply>);

#[derive(Clone, Debug)]
struct CachedReply {
    reply: Arc<Reply>,
    since: Instant,
    /// When the last look-up has failed; `None` if it hasn't.
    failed: Arc<Mutex<Option<Instant>>>,
}

/// The last good answer for a target.
#[derive(Clone, Debug)]
pub struct StaleEntry {
    /// The answer with the TTLs that it was stored with; without DNSSEC records if the query doesn't have DO.
    pub reply: Arc<Reply>,
    /// Whether the last look-up has failed, less than 30 s ago: clients don't wait for the next one.
    pub failing: bool,
}

impl Default for StaleCache {
    fn default() -> Self {
        Self(ShardedCache::new(MAX_ENTRIES, MAX_BYTES))
    }
}

impl StaleCache {
    /// Stores an answer about a target. `has_queried_type` is whether the answer has records of the queried type.
    pub fn remember(&self, key: &QueryKey, reply: &Arc<Reply>, has_queried_type: bool) {
        // A target lacks most types: a client that asks for all of them must not evict answers that other clients need.
        let is_worth_it = if has_queried_type { key.is_kept_stale() } else { key.is_address_or_https() };
        // A repeated answer from the plugin `cache` is already stored.
        let is_known =
            |known: &CachedReply| !reply.age.is_zero() && known.since.elapsed() <= reply.age + AGE_TOLERANCE;
        if is_worth_it && !self.0.get(key).is_some_and(|known| is_known(&known)) {
            self.put(key, reply);
        }
    }

    /// Stores an answer that leads from a target back into a zone of links, unless an answer younger than
    /// `BACK_TO_ZONE_HOLD_OFF` is stored. An answer that leads back may have no records of the queried type, because
    /// these are in the zone of links.
    pub fn remember_back_to_zone(&self, key: &QueryKey, reply: &Arc<Reply>) {
        let is_young = |known: &CachedReply| known.since.elapsed() < BACK_TO_ZONE_HOLD_OFF;
        if key.is_kept_stale() && !self.0.get(key).is_some_and(|known| is_young(&known)) {
            self.put(key, reply);
        }
    }

    fn put(&self, key: &QueryKey, reply: &Arc<Reply>) {
        let now = Instant::now();
        let since = now.checked_sub(reply.age).unwrap_or(now);
        let rests_on = reply.rests_on.as_ref().map_or(0, |rests_on| rests_on.memory_size());
        let weight = size_of::<Reply>() + reply.records.memory_size() + rests_on;
        let entry = CachedReply { reply: Arc::clone(reply), since, failed: Arc::default() };
        self.0.put(key.clone(), entry, weight);
    }

    /// Records whether the last look-up of a target has failed.
    pub fn set_failing(&self, question: &UpstreamQuery, failing: bool) {
        for variant in question.variants() {
            if let Some(entry) = self.0.get(&variant.key()) {
                *entry.failed.lock() = failing.then(Instant::now);
            }
        }
    }

    /// Removes the answers about a target that doesn't exist any more, for the queried type and all DNSSEC flags:
    /// NXDOMAIN is a valid answer, too (RFC 8767 section 4).
    pub fn forget(&self, question: &UpstreamQuery) {
        for variant in question.variants() {
            self.0.remove(&variant.key());
        }
    }

    /// Returns the newest good answer that is less than a day old, also if it was for a query with other DNSSEC flags
    /// (DO and CD). But a client without CD doesn't get an unvalidated answer (RFC 4035 section 3.2.2).
    #[must_use]
    pub fn get(&self, question: &UpstreamQuery) -> Option<StaleEntry> {
        let admissible = question.variants().filter(|it| question.checking_disabled || !it.checking_disabled);
        let found = admissible.filter_map(|variant| {
            let entry = self.0.get(&variant.key()).filter(|found| found.since.elapsed() < MAX_STALE_AGE)?;
            Some((entry, variant.dnssec_ok))
        });
        let (entry, has_dnssec) = found.max_by_key(|(entry, _)| entry.since)?;
        let failing = entry.failed.lock().is_some_and(|failed| failed.elapsed() < RECHECK);
        let reply = if has_dnssec && !question.dnssec_ok {
            Arc::new(without_dnssec(&entry.reply))
        } else {
            entry.reply
        };
        Some(StaleEntry { reply, failing })
    }
}

/// Removes DNSSEC records, which a client without DO doesn't get (RFC 4035 section 3.2.1).
fn without_dnssec(reply: &Reply) -> Reply {
    let mut reply = reply.clone();
    for section in reply.records.all_mut() {
        section.retain(|record| {
            !matches!(record.record_type(), RecordType::RRSIG | RecordType::NSEC | RecordType::NSEC3)
        });
    }
    reply
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{MessageType, Metadata, OpCode};
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, Record};
    use tokio::time::advance;

    use super::*;

    fn question(dnssec_ok: bool, checking_disabled: bool) -> UpstreamQuery {
        let plain = UpstreamQuery::recursive(Name::from_ascii("t.example.").unwrap(), RecordType::A);
        UpstreamQuery { dnssec_ok, checking_disabled, ..plain }
    }

    fn address(last: u8) -> Arc<Reply> {
        aged(last, 0)
    }

    fn aged(last: u8, seconds: u64) -> Arc<Reply> {
        let name = Name::from_ascii("t.example.").unwrap();
        let mut reply = Reply::new(Metadata::new(1, MessageType::Response, OpCode::Query), "");
        reply.age = Duration::from_secs(seconds);
        reply.records.answers.push(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, last))));
        Arc::new(reply)
    }

    fn recalled(stale_cache: &StaleCache, question: &UpstreamQuery) -> Option<(Vec<Record>, bool)> {
        stale_cache.get(question).map(|last| (last.reply.records.answers.clone(), last.failing))
    }

    #[tokio::test(start_paused = true)]
    async fn newest_admissible_answer_is_returned_for_a_day() {
        let stale_cache = StaleCache::default();
        let (plain, with_do, with_cd) =
            (question(false, false), question(true, false), question(false, true));
        stale_cache.remember(&with_do.key(), &address(1), true);
        advance(Duration::from_secs(10)).await;
        stale_cache.remember(&plain.key(), &address(2), true);
        advance(Duration::from_secs(10)).await;
        stale_cache.remember(&with_cd.key(), &address(66), true);
        // RFC 4035 section 3.2.2: only queries with CD may get unvalidated answers.
        for (question, last) in [(&plain, 2), (&with_do, 2), (&with_cd, 66)] {
            assert_eq!(
                recalled(&stale_cache, question).unwrap().0,
                address(last).records.answers,
                "{question:?}"
            );
        }
        // An answer from the plugin `cache` has the age of its cache entry.
        stale_cache.remember(&plain.key(), &aged(3, 5), true);
        assert_eq!(recalled(&stale_cache, &plain).unwrap().0, address(3).records.answers);
        advance(MAX_STALE_AGE - Duration::from_secs(5)).await;
        assert_eq!(recalled(&stale_cache, &plain), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_and_removal_apply_to_all_dnssec_flags() {
        let stale_cache = StaleCache::default();
        let (plain, with_do) = (question(false, false), question(true, false));
        stale_cache.remember(&plain.key(), &address(1), true);
        stale_cache.set_failing(&with_do, true);
        assert!(recalled(&stale_cache, &plain).unwrap().1);
        advance(RECHECK).await;
        assert!(!recalled(&stale_cache, &plain).unwrap().1, "the servers may answer again");
        stale_cache.set_failing(&with_do, true);
        stale_cache.set_failing(&with_do, false);
        assert!(!recalled(&stale_cache, &plain).unwrap().1);
        stale_cache.forget(&with_do);
        assert_eq!(recalled(&stale_cache, &plain), None);
    }
}
