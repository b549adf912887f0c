use hickory_proto::op::{MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::time::advance;

use crate::dns::message::query::UpstreamQuery;
use crate::dns::message::records::Records;
use crate::dns::message::sections::Sections;
use crate::dns::message::validity::{OutdatedFlag, RestsOn, Section};
use crate::dns::plugins::cache::store::*;
use crate::dns::plugins::tests::support::record;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(qname: &str, qtype: RecordType) -> UpstreamQuery {
    UpstreamQuery::recursive(name(qname), qtype)
}

fn answer(rcode: ResponseCode, answers: Vec<Record>, authorities: Vec<Record>) -> CachedAnswer {
    let mut metadata = Metadata::new(1, MessageType::Response, OpCode::Query);
    metadata.response_code = rcode;
    let records = Records::from(Sections { answers, authorities, additionals: Vec::new() });
    let query = Query::query(name("a.example."), RecordType::A);
    CachedAnswer { metadata, message: records.to_wire(&metadata, &query, &[]).unwrap(), rests_on: None }
}

fn message(rcode: ResponseCode, answers: &[&str], authorities: &[&str]) -> CachedAnswer {
    let records = |texts: &[&str]| texts.iter().map(|text| record(text)).collect();
    answer(rcode, records(answers), records(authorities))
}

fn address(ttl: u32) -> CachedAnswer {
    message(ResponseCode::NoError, &[&format!("a.example. {ttl} A 192.0.2.1")], &[])
}

fn nxdomain() -> CachedAnswer {
    message(ResponseCode::NXDomain, &[], &["example. 900 SOA ns.example."])
}

fn failure() -> CachedAnswer {
    message(ResponseCode::ServFail, &[], &[])
}

fn put(cache: &CacheStore, key: &QueryKey, message: &CachedAnswer) -> usize {
    let cacheability = cache.classify(message, false);
    if is_storable(key, message, cacheability) { cache.put(key, message, cacheability) } else { 0 }
}

const OK: ResponseCode = ResponseCode::NoError;
const NX: ResponseCode = ResponseCode::NXDomain;

#[tokio::test(start_paused = true)]
async fn answers_are_kept_for_their_ttl_within_bounds() {
    let key = question("a.example.", RecordType::A).key();
    type Case<'a> = (ResponseCode, &'a [&'a str], &'a [&'a str], Option<(ResponseKind, u32)>);
    let cases: &[Case<'_>] = &[
        (OK, &["a.example. 20 A 192.0.2.1"], &[], Some((ResponseKind::Success, 20))),
        // The lowest TTL counts for the message as a whole.
        (
            OK,
            &["a.example. 20 CNAME b.example.", "b.example. 10 A 192.0.2.1"],
            &["example. 8 NS ns.example."],
            Some((ResponseKind::Success, 8)),
        ),
        (OK, &["a.example. 0 A 192.0.2.1"], &[], Some((ResponseKind::Success, 5))),
        (OK, &["a.example. 3600 A 192.0.2.1"], &[], Some((ResponseKind::Success, 30))),
        // RFC 2181 section 8.
        (OK, &["a.example. 4294967295 A 192.0.2.1"], &[], Some((ResponseKind::Success, 5))),
        (OK, &[], &["example. 900 SOA ns.example."], Some((ResponseKind::Denial, 30))),
        // RFC 2308 section 2.2: no data at the end of the chain.
        (
            OK,
            &["a.example. 20 CNAME b.example."],
            &["example. 900 SOA ns.example."],
            Some((ResponseKind::Denial, 20)),
        ),
        (NX, &[], &["example. 6 SOA ns.example."], Some((ResponseKind::Denial, 6))),
        // RFC 2308 section 5: the lesser of the SOA's TTL and its MINIMUM.
        (NX, &[], &["example. 1800 SOA ns. root. 1 1 1 1 20"], Some((ResponseKind::Denial, 20))),
        (OK, &[], &["example. 1800 SOA ns. root. 1 1 1 1 20"], Some((ResponseKind::Denial, 20))),
        (OK, &[], &["example. 10 SOA ns. root. 1 1 1 1 20"], Some((ResponseKind::Denial, 10))),
        (
            OK,
            &["a.example. 25 CNAME b.example."],
            &["example. 1800 SOA ns. root. 1 1 1 1 20"],
            Some((ResponseKind::Denial, 20)),
        ),
        (NX, &[], &["example. 1800 SOA ns. root. 1 1 1 1 0"], Some((ResponseKind::Denial, 5))),
        (NX, &[], &["example. 1800 SOA ns. root. 1 1 1 1 4294967295"], Some((ResponseKind::Denial, 5))),
        // MINIMUM doesn't count for data.
        (
            OK,
            &["a.example. 25 A 192.0.2.1"],
            &["example. 1800 SOA ns. root. 1 1 1 1 20"],
            Some((ResponseKind::Success, 25)),
        ),
        // A referral, and an empty answer.
        (OK, &[], &["example. 900 NS ns.example."], Some((ResponseKind::Success, 5))),
        (OK, &[], &[], Some((ResponseKind::Success, 5))),
        (ResponseCode::ServFail, &[], &[], Some((ResponseKind::Failure, 5))),
        (ResponseCode::NotImp, &[], &[], Some((ResponseKind::Failure, 5))),
        // RFC 2308 section 5: without an SOA there is no negative TTL.
        (NX, &[], &[], None),
        (OK, &["a.example. 20 CNAME b.example."], &[], None),
        // As in CoreDNS, NXDOMAIN with an alias isn't cached.
        (NX, &["a.example. 7 CNAME b.example."], &["example. 9 SOA ns.example."], None),
        // RFC 2181 section 10.1: an alias with two targets.
        (
            OK,
            &[
                "a.example. 20 CNAME b.example.",
                "a.example. 20 CNAME c.example.",
                "b.example. 20 A 192.0.2.1",
            ],
            &[],
            None,
        ),
        // A CNAME loop.
        (OK, &["a.example. 20 CNAME b.example.", "b.example. 20 CNAME a.example."], &[], None),
        (ResponseCode::Refused, &[], &[], None),
        (ResponseCode::FormErr, &[], &[], None),
    ];
    for (rcode, answers, authorities, expected) in cases {
        let cache = CacheStore::new(CacheOptions::capped(30));
        put(&cache, &key, &message(*rcode, answers, authorities));
        let found = cache.get(&key).map(|found| (found.kind, found.ttl));
        assert_eq!(found, *expected, "{rcode} {answers:?} {authorities:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn axfr_non_recursive_and_truncated_answers_are_not_cached() {
    let cache = CacheStore::new(CacheOptions::default());
    let key = question("a.example.", RecordType::A).key();
    let mut cut = address(60);
    cut.metadata.truncation = true;
    put(&cache, &key, &cut);
    let without_recursion =
        UpstreamQuery { recursion_desired: false, ..question("a.example.", RecordType::A) };
    for key in [question("a.example.", RecordType::AXFR).key(), without_recursion.key()] {
        put(&cache, &key, &address(60));
        assert!(cache.get(&key).is_none());
    }
    assert_eq!(cache.len(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn ttls_count_down_until_the_entry_expires() {
    let cache = CacheStore::new(CacheOptions::default());
    let key = question("A.example.", RecordType::A).key();
    put(&cache, &key, &address(60));
    for (after, left) in [(0, Some(60)), (1, Some(59)), (58, Some(1)), (1, None)] {
        advance(Duration::from_secs(after)).await;
        assert_eq!(cache.get(&key).map(|found| found.ttl), left);
    }
}

#[tokio::test(start_paused = true)]
async fn queries_with_do_or_cd_have_separate_entries() {
    let cache = CacheStore::new(CacheOptions::default());
    let plain = question("a.example.", RecordType::A);
    put(&cache, &plain.key(), &address(60));
    let with_do = UpstreamQuery { dnssec_ok: true, ..plain.clone() };
    let with_cd = UpstreamQuery { checking_disabled: true, ..plain.clone() };
    let with_ad = UpstreamQuery { authentic_data: true, ..plain };
    assert!(cache.get(&with_do.key()).is_none());
    assert!(cache.get(&with_cd.key()).is_none());
    assert!(cache.get(&with_ad.key()).is_some());
}

#[tokio::test(start_paused = true)]
async fn newest_answer_wins_but_a_failure_never_hides_a_good_answer() {
    let cache = CacheStore::new(CacheOptions::default());
    let key = question("a.example.", RecordType::A).key();
    let kind = || cache.get(&key).map(|found| found.kind);
    put(&cache, &key, &failure());
    assert_eq!(kind(), Some(ResponseKind::Failure));
    put(&cache, &key, &address(60));
    assert_eq!(kind(), Some(ResponseKind::Success));
    put(&cache, &key, &failure());
    assert_eq!(kind(), Some(ResponseKind::Success));
    put(&cache, &key, &nxdomain());
    assert_eq!(kind(), Some(ResponseKind::Denial));
    put(&cache, &key, &address(60));
    assert_eq!(kind(), Some(ResponseKind::Success));
}

#[tokio::test(start_paused = true)]
async fn failure_of_all_upstreams_is_cached_for_one_second() {
    let cache = CacheStore::new(CacheOptions::default());
    let asked = question("a.example.", RecordType::A);
    cache.put_no_answer(&asked.key());
    assert_eq!(
        cache.get(&asked.key()).map(|found| (found.kind, found.ttl)),
        Some((ResponseKind::NoAnswer, 1))
    );
    advance(Duration::from_secs(1)).await;
    assert!(cache.get(&asked.key()).is_none());
    let cache = CacheStore::new(CacheOptions { servfail: Duration::ZERO, ..CacheOptions::default() });
    cache.put_no_answer(&asked.key());
    put(&cache, &asked.key(), &failure());
    assert!(cache.get(&asked.key()).is_none());
}

#[tokio::test(start_paused = true)]
async fn popular_answer_is_prefetched_before_it_expires() {
    let prefetch = Prefetch { min_hits: 3, window: Duration::from_secs(60), ttl_percent: 10 };
    let cache = CacheStore::new(CacheOptions { prefetch: Some(prefetch), ..CacheOptions::default() });
    let key = question("a.example.", RecordType::A).key();
    let freshness = || cache.get(&key).map(|found| found.freshness);
    put(&cache, &key, &address(100));
    assert_eq!(freshness(), Some(Freshness::Fresh));
    advance(Duration::from_secs(50)).await;
    assert_eq!(freshness(), Some(Freshness::Fresh));
    advance(Duration::from_secs(40)).await;
    assert_eq!(freshness(), Some(Freshness::Due), "the third time, in the last tenth");
    // The new answer is as popular as the old answer, until a minute has passed without a query.
    let refresh = cache.get(&key).unwrap().begin_refresh().unwrap();
    put(&cache, &key, &address(300));
    refresh.succeed();
    advance(Duration::from_secs(50)).await;
    assert_eq!(freshness(), Some(Freshness::Fresh), "popular, and far from its end");
    advance(Duration::from_secs(230)).await;
    assert_eq!(freshness(), Some(Freshness::Fresh), "the first time after a long gap");
    assert_eq!(freshness(), Some(Freshness::Fresh));
    assert_eq!(freshness(), Some(Freshness::Due));
}

#[tokio::test(start_paused = true)]
async fn expired_answer_is_served_for_a_while_but_a_failure_never() {
    for verify_timeout in [None, Some(Duration::from_millis(100))] {
        let stale = ServeStale { max_stale: Duration::from_secs(3600), verify_timeout, ttl: 30 };
        let cache = CacheStore::new(CacheOptions { serve_stale: Some(stale), ..CacheOptions::default() });
        let [a, aaaa] = [RecordType::A, RecordType::AAAA].map(|qtype| question("a.example.", qtype).key());
        put(&cache, &a, &address(60));
        put(&cache, &aaaa, &failure());
        advance(Duration::from_secs(60)).await;
        let found = |key| cache.get(key).map(|found| (found.ttl, found.freshness));
        assert_eq!(found(&a), Some((30, Freshness::Stale(verify_timeout))));
        assert_eq!(found(&aaaa), None);
        advance(Duration::from_secs(3599)).await;
        assert!(found(&a).is_some());
        advance(Duration::from_secs(1)).await;
        assert_eq!(found(&a), None);
    }
}

#[tokio::test(start_paused = true)]
async fn first_answer_has_the_ttl_of_the_cached_answer() {
    type Case<'a> = (ResponseCode, &'a [&'a str], &'a [&'a str], u32);
    let cases: &[Case<'_>] = &[
        (OK, &["a.example. 7200 A 192.0.2.1"], &[], 3600),
        (OK, &[], &["example. 7200 SOA ns.example."], 1800),
        // Without an SOA the upper bound of denials counts.
        (NX, &[], &["example. 7200 NS ns.example."], 1800),
        (OK, &["a.example. 20 CNAME b.example."], &[], 20),
        // The records' TTLs are ignored.
        (OK, &[], &["example. 900 NS ns.example."], 5),
        (NX, &["a.example. 900 CNAME b.example."], &["example. 900 SOA ns.example."], 5),
        (ResponseCode::Refused, &[], &["example. 900 SOA ns.example."], 5),
        (ResponseCode::ServFail, &[], &["example. 900 SOA ns.example."], 7),
    ];
    let cache = CacheStore::new(CacheOptions { servfail: Duration::from_secs(7), ..CacheOptions::default() });
    for (rcode, answers, authorities, ttl) in cases {
        let cacheability = cache.classify(&message(*rcode, answers, authorities), true);
        assert_eq!(cacheability.ttl, *ttl, "{rcode} {answers:?} {authorities:?}");
    }
}

#[test]
fn answer_with_an_invalid_signature_is_not_cached_with_do() {
    const NOW: u32 = 100;
    let signed = |inception: u32, expiration: u32| {
        let mut rdata = vec![0, 1, 8, 2, 0, 0, 0, 60];
        rdata.extend(expiration.to_be_bytes());
        rdata.extend(inception.to_be_bytes());
        rdata.extend([0; 8]);
        let data = RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(rdata) };
        let signature = Record::from_rdata(name("a.example."), 60, data);
        answer(OK, vec![record("a.example. 60 A 192.0.2.1"), signature], vec![])
    };
    for (inception, expiration, expired) in [
        (NOW, NOW, false),
        (NOW + 1, NOW + 9, true),
        (NOW - 9, NOW - 1, true),
        // RFC 1982: serial number arithmetic wraps around.
        (u32::MAX, NOW + 1, false),
        (u32::MAX - 9, u32::MAX, true),
    ] {
        let signed = signed(inception, expiration);
        assert_eq!(signed.message.has_invalid_signature(Section::Additional, NOW), expired, "{inception}");
    }
    let data = RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(vec![0, 1, 8, 2]) };
    let cut = Record::from_rdata(name("a.example."), 60, data);
    let cut = answer(OK, vec![record("a.example. 60 A 192.0.2.1")], vec![cut]);
    let mut records = Records::of_wire(Arc::clone(&cut.message), &name("a.example."));
    assert!(
        cut.message.has_invalid_signature(Section::Additional, NOW) && records.has_invalid_signature(NOW)
    );
    records.remove_authority_and_additional();
    assert!(!records.has_invalid_signature(NOW));
    let cache = CacheStore::new(CacheOptions::default());
    let old = signed(1, 2);
    assert_eq!(cache.classify(&old, true), Cacheability { kind: ResponseKind::Other, ttl: 5 });
    assert_eq!(cache.classify(&old, false), Cacheability { kind: ResponseKind::Success, ttl: 60 });
}

#[tokio::test(start_paused = true)]
async fn failure_does_not_replace_an_unexpired_denial() {
    let cache = CacheStore::new(CacheOptions::capped(30));
    let key = question("a.example.", RecordType::A).key();
    put(&cache, &key, &nxdomain());
    put(&cache, &key, &failure());
    cache.put_no_answer(&key);
    assert_eq!(cache.get(&key).map(|found| found.kind), Some(ResponseKind::Denial));
    advance(Duration::from_secs(30)).await;
    put(&cache, &key, &failure());
    assert_eq!(cache.get(&key).map(|found| found.kind), Some(ResponseKind::Failure));
}

#[tokio::test(start_paused = true)]
async fn failure_replaces_an_outdated_denial() {
    let cache = CacheStore::new(CacheOptions::capped(30));
    let key = question("a.example.", RecordType::A).key();
    let flag = OutdatedFlag::default();
    let rests_on = Arc::new(RestsOn { flags: vec![flag.clone()], ..RestsOn::default() });
    let denial = CachedAnswer { rests_on: Some(rests_on), ..nxdomain() };
    assert!(denial.memory_size() > nxdomain().memory_size());
    put(&cache, &key, &denial);
    assert_eq!(cache.get(&key).map(|found| found.kind), Some(ResponseKind::Denial));
    flag.set();
    cache.put_no_answer(&key);
    assert_eq!(cache.get(&key).map(|found| found.kind), Some(ResponseKind::NoAnswer));
}

fn stale(recheck: u64) -> CacheOptions {
    let stale = ServeStale { max_stale: Duration::from_secs(3600), verify_timeout: None, ttl: 0 };
    CacheOptions {
        serve_stale: Some(stale),
        failure_recheck: Duration::from_secs(recheck),
        ..CacheOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn entry_has_one_refresh_at_a_time_and_none_after_a_failure() {
    let cache = CacheStore::new(stale(30));
    let key = question("a.example.", RecordType::A).key();
    put(&cache, &key, &address(60));
    advance(Duration::from_secs(60)).await;
    let begin = || cache.get(&key).unwrap().begin_refresh();
    let first = begin().unwrap();
    assert!(begin().is_none());
    drop(first);
    assert!(begin().is_none(), "the first refresh has failed");
    advance(Duration::from_secs(30)).await;
    begin().unwrap().succeed();
    assert!(begin().is_some());
}

#[tokio::test(start_paused = true)]
async fn prefer_positive_keeps_answers_with_data() {
    let cache = CacheStore::new(CacheOptions { prefer_positive: true, ..stale(0) });
    let key = question("a.example.", RecordType::A).key();
    let found = || cache.get(&key).map(|found| (found.kind, found.answer.message.count(Section::Answer)));
    put(&cache, &key, &nxdomain());
    assert_eq!(found(), Some((ResponseKind::Denial, 0)));
    put(&cache, &key, &address(60));
    let nothing = message(OK, &[], &[]);
    for other in [nxdomain(), failure(), nothing.clone(), nothing, nxdomain()] {
        put(&cache, &key, &other);
        advance(Duration::from_secs(60)).await;
        assert_eq!(found(), Some((ResponseKind::Success, 1)), "{other:?}");
    }
    advance(Duration::from_secs(3600)).await;
    put(&cache, &key, &nxdomain());
    assert_eq!(found(), Some((ResponseKind::Denial, 0)), "the positive answer expired too long ago");
}

#[tokio::test(start_paused = true)]
async fn empty_answer_replaces_a_denial_with_prefer_positive() {
    let cache = CacheStore::new(CacheOptions { prefer_positive: true, ..stale(0) });
    let key = question("a.example.", RecordType::A).key();
    put(&cache, &key, &nxdomain());
    advance(Duration::from_secs(900)).await;
    put(&cache, &key, &message(OK, &[], &[]));
    let found = cache.get(&key).map(|found| (found.kind, found.freshness));
    assert_eq!(found, Some((ResponseKind::Success, Freshness::Fresh)));
}

#[tokio::test(start_paused = true)]
async fn keepttl_yields_only_to_a_nonzero_stale_ttl() {
    for (own, later) in [(0, 60), (30, 30)] {
        let stale = ServeStale { max_stale: Duration::from_secs(3600), verify_timeout: None, ttl: own };
        let options = CacheOptions { keep_ttl: true, serve_stale: Some(stale), ..CacheOptions::default() };
        let cache = CacheStore::new(options);
        let key = question("a.example.", RecordType::A).key();
        put(&cache, &key, &address(60));
        advance(Duration::from_secs(59)).await;
        assert_eq!(cache.get(&key).map(|found| found.ttl), Some(60));
        advance(Duration::from_secs(9)).await;
        assert_eq!(cache.get(&key).map(|found| found.ttl), Some(later));
    }
}

#[test]
fn capacity_bounds_both_parts() {
    let bounds = CacheLimits { capacity: 100, ttls: TtlRange { min: 5, max: 30 } };
    let cache = CacheStore::new(CacheOptions { success: bounds, denial: bounds, ..CacheOptions::default() });
    for i in 0..1000 {
        let key = question(&format!("{i}.example."), RecordType::A).key();
        put(&cache, &key, &address(60));
        let key = question(&format!("no{i}.example."), RecordType::A).key();
        put(&cache, &key, &nxdomain());
    }
    let (success, denial) = cache.len();
    assert!((30..=100).contains(&success) && (30..=100).contains(&denial), "{success} {denial}");
}

#[test]
fn size_of_the_answers_bounds_both_parts() {
    const SIZE: usize = 60_000;
    let large = || Record::from_rdata(name("a.example."), 60, RData::NULL(NULL::with(vec![0; SIZE])));
    let positive = answer(OK, vec![record("a.example. 60 A 192.0.2.1"), large()], Vec::new());
    let denial = answer(NX, Vec::new(), vec![record("example. 900 SOA ns.example."), large()]);
    let cache = CacheStore::new(CacheOptions::default());
    for i in 0..2000 {
        put(&cache, &question(&format!("{i}.example."), RecordType::A).key(), &positive);
        put(&cache, &question(&format!("no{i}.example."), RecordType::A).key(), &denial);
    }
    let (positives, denials) = cache.len();
    let range = MAX_BYTES / 4..=MAX_BYTES;
    assert!(
        range.contains(&(positives * SIZE)) && range.contains(&(denials * SIZE)),
        "{positives} {denials}"
    );
}
