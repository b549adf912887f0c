//! Upstreams: caching, stale answers, health checks, and handling of upstream failures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::rdata::{A, CNAME, NS};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use lb_linker::dns::chain::handler::Handler;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::store::{OnGone, Store};
use tokio::time::timeout;

use crate::answers::{manifests, start_with_links, start_with_manifests, with_upstream};
use crate::harness::dns::{
    CoreDns, FaultyUpstream, IN_CLIENT_TIMEOUT, absence, address, answers, ask_tcp, ask_udp, ask_within,
    data, ede, error, query, short, show,
};
use crate::harness::linker::Linker;
use crate::harness::programs::go_programs;
use crate::harness::{EVENT_TIMEOUT, eventually, once_of_five};
use crate::tls::Certificates;

const WEB: [(&str, &str); 1] = [("web", "{hostname: a.example.com}")];

/// The current behavior of an upstream, which a test can change.
#[derive(Clone, Default)]
struct UpstreamBehavior(Arc<AtomicU8>);

const GOOD: u8 = 0;
const SILENT: u8 = 1;
const FAILING: u8 = 2;
const EMPTY: u8 = 3;
const MISSING: u8 = 4;
const REFUSING: u8 = 5;
const NODATA_WITHOUT_SOA: u8 = 6;
const LOOPBACK_ADDRESS: u8 = 7;
/// As `GOOD`, without AAAA records.
const WITHOUT_AAAA: u8 = 8;

impl UpstreamBehavior {
    fn set(&self, behavior: u8) {
        self.0.store(behavior, Ordering::SeqCst);
    }

    /// Starts an upstream with this behavior and the TTL `ttl` in its answers.
    async fn upstream(&self, ttl: u32) -> FaultyUpstream {
        let behavior = self.clone();
        FaultyUpstream::start(move |asked, _| match behavior.0.load(Ordering::SeqCst) {
            SILENT => vec![],
            FAILING => vec![error(asked, ResponseCode::ServFail)],
            EMPTY => vec![absence(asked, ResponseCode::NoError)],
            WITHOUT_AAAA if asked.queries[0].query_type() == RecordType::AAAA => {
                vec![absence(asked, ResponseCode::NoError)]
            }
            MISSING => vec![absence(asked, ResponseCode::NXDomain)],
            REFUSING => vec![error(asked, ResponseCode::Refused)],
            NODATA_WITHOUT_SOA => {
                let mut answer = error(asked, ResponseCode::NoError);
                answer.add_additional(address(asked, 66, 60).answers.remove(0));
                vec![answer]
            }
            LOOPBACK_ADDRESS => {
                let mut answer = error(asked, ResponseCode::NoError);
                let name = asked.queries[0].name().clone();
                answer.add_answer(Record::from_rdata(name, 60, RData::A(A::new(127, 0, 0, 1))));
                vec![answer]
            }
            _ => vec![address(asked, 10, ttl)],
        })
        .await
    }
}

fn ttl(answer: &Message) -> u32 {
    answer.answers.last().unwrap().ttl
}

#[tokio::test]
async fn equal_queries_are_sent_once_unless_do_or_cd_differ() {
    let upstream =
        FaultyUpstream::start_with_delay(Duration::from_millis(300), |asked, _| vec![address(asked, 9, 60)])
            .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let plain = query("other.example. A");
    let (mut with_do, mut with_cd) = (plain.clone(), plain.clone());
    with_do.edns.as_mut().unwrap().set_dnssec_ok(true);
    with_cd.metadata.checking_disabled = true;
    let asking = [&plain, &with_do, &with_cd].into_iter().flat_map(|message| vec![message; 20]);
    for answer in join_all(asking.map(|message| ask_udp(fixture.linker.dns, message))).await {
        assert_eq!(answer.answers.len(), 1, "{}", show(&answer));
    }
    let mut asked: Vec<(bool, bool)> = upstream
        .asked("other.example. A")
        .iter()
        .map(|asked| (asked.edns.as_ref().unwrap().flags().dnssec_ok, asked.metadata.checking_disabled))
        .collect();
    // On a busy machine lb-linker may repeat a query.
    assert!(asked.len() < 20, "{} for 60 clients", asked.len());
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, [(false, false), (false, true), (true, false)]);
}

#[tokio::test]
async fn positive_negative_and_failed_answers_are_cached() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(60).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    for (current, name) in [
        (GOOD, "good.example."),
        (EMPTY, "x.example.com."),
        (MISSING, "y.example.com."),
        (FAILING, "z.example."),
    ] {
        behavior.set(current);
        let question = format!("{name} A");
        let first = ask_udp(fixture.linker.dns, &query(&question)).await;
        let second = ask_tcp(fixture.linker.dns, &query(&question)).await;
        assert_eq!(first.metadata.response_code, second.metadata.response_code, "{name}");
        assert_eq!(first.answers.len(), second.answers.len(), "{name}");
        assert!(second.metadata.authoritative, "as CoreDNS's cache does");
        for _ in 0..10 {
            ask_udp(fixture.linker.dns, &query(&question)).await;
        }
        assert!(upstream.asked(&question).len() < 6, "{name}");
    }
    let first = ask_udp(fixture.linker.dns, &query("good.example. A")).await;
    assert!((25..=30).contains(&ttl(&first)), "{}", show(&first));
    eventually("a lower TTL", || async {
        let later = ask_udp(fixture.linker.dns, &query("good.example. A")).await;
        (ttl(&later) < ttl(&first)).then_some(())
    })
    .await;
    // A cached answer has the spelling of the name in the current query.
    let other = ask_udp(fixture.linker.dns, &query("GOOD.Example. A")).await;
    assert!(show(&other).contains("GOOD.Example. "), "{}", show(&other));
    assert!(upstream.asked("good.example. A").len() < 6);
}

#[tokio::test]
async fn answers_without_the_question_are_ignored() {
    // RFC 5452 section 9.1: an answer must match the question section of its query.
    let upstream = FaultyUpstream::start(|asked, _| {
        let without_question = |mut answer: Message| {
            answer.queries.clear();
            answer
        };
        let nxdomain = without_question(absence(asked, ResponseCode::NXDomain));
        let nodata = without_question(absence(asked, ResponseCode::NoError));
        let forged = without_question(address(asked, 66, 60));
        let mut other_class = address(asked, 67, 60);
        other_class.queries[0].set_query_class(DNSClass::CH);
        let mut two_questions = address(asked, 68, 60);
        two_questions.add_query(asked.queries[0].clone());
        vec![nxdomain, nodata, forged, other_class, two_questions, address(asked, 10, 60)]
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "other.example. A", "192.0.2.10").await;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
}

#[tokio::test]
async fn error_without_a_question_is_used_without_its_records() {
    let upstream = FaultyUpstream::start(|asked, _| {
        let mut error = error(asked, ResponseCode::Refused);
        error.queries.clear();
        error.add_answers(address(asked, 66, 60).answers);
        error.add_authorities(absence(asked, ResponseCode::NXDomain).authorities);
        vec![error]
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    for answer in [
        ask_udp(fixture.linker.dns, &query("other.example. A")).await,
        ask_tcp(fixture.linker.dns, &query("other.example. A")).await,
    ] {
        assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        assert_eq!((answer.answers.len(), answer.authorities.len()), (0, 0), "{}", show(&answer));
    }
}

#[tokio::test]
async fn negative_ttl_of_a_target_is_capped_at_the_zones_ttl() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(60).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    behavior.set(MISSING);
    let since = Instant::now();
    let answer =
        ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(
        show(&answer),
        "Non-Existent Domain aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. | example.com. 5 IN SOA \
         ns.example.com. root.example.com. 1 7200 1800 86400 3600 | "
    );
    assert_eq!(short(fixture.linker.dns, "a.example.com. A").await, "Non-Existent Domain");
    behavior.set(GOOD);
    answers(fixture.linker.dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    // The negative answer is cached, so the upstream isn't queried for each client query.
    assert!(since.elapsed() > Duration::from_secs(3), "{:?}", since.elapsed());
    assert!(upstream.asked("a.example.com. A").len() < 10);
}

#[tokio::test]
async fn stale_target_is_answered_while_upstreams_fail() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(0).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    let ask = async |question: &str| ask_udp(dns, &query(question)).await;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    // A repeated query for A may still be under way.
    behavior.set(WITHOUT_AAAA);
    let nodata = ask_within(IN_CLIENT_TIMEOUT, dns, &query("web-default.lb.internal. AAAA")).await;
    let nodata = show(&nodata);
    assert!(nodata.starts_with("No Error"), "{nodata}");

    for bad in [SILENT, FAILING] {
        behavior.set(bad);
        eventually("the remembered addresses", || async {
            let answer = ask("web-default.lb.internal. A").await;
            (ede(&answer) == Some(3)).then(|| {
                assert_eq!(
                    show(&answer),
                    "No Error aa rd ra | a.example.com. 30 IN A 192.0.2.10, web-default.lb.internal. 5 IN CNAME \
                     a.example.com. |  | "
                );
            })
        })
        .await;
        eventually("the remembered absence", || async {
            let answer = ask("web-default.lb.internal. AAAA").await;
            (ede(&answer) == Some(3)).then(|| assert_eq!(show(&answer), nodata))
        })
        .await;
    }

    // A query for the target's own name gets no stale answer.
    let other = ask("a.example.com. A").await;
    assert_eq!(other.metadata.response_code, ResponseCode::ServFail, "{}", show(&other));
    // There is no stale answer for a new target.
    behavior.set(SILENT);
    fixture.set(&[("web", "{hostname: b.example.com}")]);
    answers(dns, "web-default.lb.internal. CNAME", "b.example.com.").await;
    let answer = ask("web-default.lb.internal. A").await;
    assert_eq!(
        show(&answer),
        "Server Failure aa rd ra | web-default.lb.internal. 5 IN CNAME b.example.com. |  | "
    );
    behavior.set(GOOD);
    answers(dns, "web-default.lb.internal. A", "b.example.com. 192.0.2.10").await;
}

#[tokio::test]
async fn late_answer_is_cached_for_the_next_query() {
    once_of_five(late_answer_is_used).await;
}

async fn late_answer_is_used() -> Result<(), String> {
    let upstream =
        FaultyUpstream::start_with_delay(Duration::from_millis(2500), |asked, _| vec![address(asked, 9, 60)])
            .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    let (link, other) = (query("web-default.lb.internal. A"), query("other.example. A"));
    let since = Instant::now();
    let (late, waited) = tokio::join!(
        async { (ask_udp(dns, &link).await, since.elapsed()) },
        // A query for a name outside of the zone may wait longer, as in CoreDNS.
        ask_udp(dns, &other),
    );
    let (late, after) = late;
    assert_eq!(late.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(ede(&late), Some(22));
    if after >= Duration::from_millis(3500) {
        return Err(format!("{after:?}: the answer is sent before the deadline of 5 s"));
    }
    if since.elapsed() >= Duration::from_millis(3900) {
        return Err(format!("{:?} for an answer after 2.5 s", since.elapsed()));
    }
    assert_eq!(waited.answers.len(), 1, "{}", show(&waited));
    let since = Instant::now();
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.9").await;
    let waited = since.elapsed();
    let message = || format!("the look-up was already in flight: {waited:?}");
    (waited < Duration::from_secs(4)).then_some(()).ok_or_else(message)
}

#[tokio::test]
async fn refused_and_overload_are_answered_with_stale_records() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(0).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    behavior.set(REFUSING);
    eventually("the remembered addresses", || async {
        let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
        assert_eq!(answer.answers.len(), 2, "{}", show(&answer));
        (ede(&answer) == Some(3)).then_some(())
    })
    .await;
    assert!(fixture.linker.metric("lb_linker_dns_stale_answers_total").unwrap() >= 1.0);
    fixture.linker.line("target a.example.com A: the upstream answers REFUSED").await;
    assert_eq!(fixture.linker.metric("lb_linker_dns_targets_failing"), Some(1.0));

    // Queries of one client for 1,200 unknown types don't delay the answers with addresses.
    behavior.set(SILENT);
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(dns).await.unwrap();
    for qtype in 2000..3200_u16 {
        let mut odd = query("web-default.lb.internal. A");
        odd.queries[0].set_query_type(RecordType::from(qtype));
        socket.send(&odd.to_vec().unwrap()).await.unwrap();
    }
    let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
    assert_eq!((answer.answers.len(), ede(&answer)), (2, Some(3)), "{}", show(&answer));
    behavior.set(GOOD);
    eventually("a fresh answer", || async {
        let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
        (ede(&answer).is_none() && answer.answers.len() == 2).then_some(())
    })
    .await;
    fixture.linker.line("target a.example.com A: it can be resolved again").await;
}

#[tokio::test]
async fn failing_target_is_answered_stale_at_once() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(0).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    behavior.set(SILENT);
    let question = query("web-default.lb.internal. A");
    eventually("the remembered addresses", || async {
        (ede(&ask_udp(dns, &question).await) == Some(3)).then_some(())
    })
    .await;
    once_of_five(async || {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(7) {
            let asked = Instant::now();
            assert_eq!(ede(&ask_udp(dns, &question).await), Some(3));
            let waited = asked.elapsed();
            if waited >= Duration::from_millis(1600) {
                return Err(format!("{waited:?} of waiting"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    })
    .await;
    let mut with_do = question.clone();
    with_do.edns.as_mut().unwrap().set_dnssec_ok(true);
    let answer = ask_udp(dns, &with_do).await;
    assert_eq!((answer.answers.len(), ede(&answer)), (2, Some(3)), "{}", show(&answer));
}

#[tokio::test]
async fn stale_answer_repeats_the_last_answer_of_the_upstream() {
    let last = Arc::new(AtomicU8::new(1));
    let known = Arc::clone(&last);
    let upstream = FaultyUpstream::start(move |asked, _| match known.load(Ordering::SeqCst) {
        0 => vec![],
        last => vec![address(asked, last, 0)],
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.1").await;
    // A query for the target's own name refreshes the cache entry that the next query for the load balancer uses.
    last.store(2, Ordering::SeqCst);
    answers(dns, "a.example.com. A", "192.0.2.2").await;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.2").await;
    last.store(0, Ordering::SeqCst);
    eventually("a remembered address", || async {
        let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
        assert!(show(&answer).contains("192.0.2.2"), "{}", show(&answer));
        (ede(&answer) == Some(3)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn retry_over_udp_uses_another_id() {
    let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let upstream = FaultyUpstream::start(move |asked, _| {
        let mut seen = seen.lock().unwrap();
        seen.push(asked.metadata.id);
        if seen.len() == 1 { vec![] } else { vec![address(asked, 9, 60)] }
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    assert_eq!(short(fixture.linker.dns, "other.example. A").await, "192.0.2.9");
    let ids = ids.lock().unwrap();
    assert!(ids.len() >= 2 && ids[0] != ids[1], "{ids:?}");
}

#[tokio::test]
async fn truncated_answer_without_records_is_retried_over_tcp() {
    let cut = |asked: &Message| {
        let mut cut = error(asked, ResponseCode::NoError);
        cut.metadata.truncation = true;
        vec![cut]
    };
    let whole = move |asked: &Message, tcp| if tcp { vec![address(asked, 9, 60)] } else { cut(asked) };
    // The answers over UDP and over TCP take 600 ms each.
    let slow = FaultyUpstream::start_with_delay(Duration::from_millis(600), whole).await;
    let fixture = with_upstream(&WEB, slow.address).await;
    answers(fixture.linker.dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.9").await;
    let nothing = move |asked: &Message, tcp| if tcp { vec![] } else { cut(asked) };
    let never = FaultyUpstream::start(nothing).await;
    let fixture = with_upstream(&WEB, never.address).await;
    let answer = ask_tcp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{}", show(&answer));
    assert_eq!((answer.metadata.truncation, ede(&answer)), (false, Some(23)));
    // A client that uses UDP may know another way.
    let answer = ask_udp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(
        show(&answer),
        "No Error aa tc rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | "
    );
    let answer = ask_udp(fixture.linker.dns, &query("other.example. A")).await;
    assert!(show(&answer).starts_with("No Error tc rd"), "{}", show(&answer));
}

/// Returns an answer with 401 addresses, of 6.4 KB.
fn many_addresses(asked: &Message) -> Message {
    let mut answer = error(asked, ResponseCode::NoError);
    let name = asked.queries[0].name();
    let data = |number: u16| RData::A(A::new(198, 51, (number >> 8) as u8, number as u8));
    answer.add_answers((0..401).map(|number| Record::from_rdata(name.clone(), 60, data(number))));
    answer
}

#[tokio::test]
async fn answer_larger_than_the_buffer_is_whole_by_tcp() {
    // This upstream ignores the size that the query advertises.
    let upstream = FaultyUpstream::start(|asked, _| vec![many_addresses(asked)]).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    for (question, records) in [("other.example. A", 401), ("web-default.lb.internal. A", 402)] {
        let by_udp = ask_udp(dns, &query(question)).await;
        assert_eq!(by_udp.metadata.response_code, ResponseCode::NoError, "{}", show(&by_udp));
        assert!(by_udp.metadata.truncation && by_udp.answers.len() > 20, "{}", show(&by_udp));
        let by_tcp = ask_tcp(dns, &query(question)).await;
        assert_eq!((by_tcp.answers.len(), by_tcp.metadata.truncation), (records, false));
    }
}

#[tokio::test]
async fn answer_larger_than_the_buffer_is_cut_without_tcp() {
    let upstream =
        FaultyUpstream::start(|asked, tcp| if tcp { vec![] } else { vec![many_addresses(asked)] }).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    for question in ["other.example. A", "web-default.lb.internal. A"] {
        let by_udp = ask_udp(dns, &query(question)).await;
        assert!(by_udp.metadata.truncation && by_udp.answers.len() > 20, "{}", show(&by_udp));
        let by_tcp = ask_tcp(dns, &query(question)).await;
        assert_eq!(by_tcp.metadata.response_code, ResponseCode::ServFail, "{}", show(&by_tcp));
        assert!(matches!(ede(&by_tcp), Some(22 | 23)), "{}", show(&by_tcp));
    }
}

#[tokio::test]
async fn nxdomain_of_a_target_ends_its_stale_answers() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(0).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    behavior.set(MISSING);
    eventually("absence", || async {
        let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
        (answer.metadata.response_code == ResponseCode::NXDomain).then_some(())
    })
    .await;
    behavior.set(FAILING);
    eventually("failure", || async {
        let answer = ask_udp(dns, &query("web-default.lb.internal. A")).await;
        assert_eq!(answer.answers.len(), 1, "RFC 8767 section 4: {}", show(&answer));
        (answer.metadata.response_code == ResponseCode::ServFail).then_some(())
    })
    .await;
}

#[tokio::test]
async fn slow_chain_fails_before_a_resolvers_timeout() {
    let upstream = FaultyUpstream::start_with_delay(Duration::from_millis(1300), |asked, _| {
        let name = asked.queries[0].name().to_ascii();
        if name.starts_with("one.") {
            let mut answer = error(asked, ResponseCode::NoError);
            let two = Name::from_ascii("two.default.lb.internal.").unwrap();
            answer.add_answer(Record::from_rdata(
                asked.queries[0].name().clone(),
                60,
                RData::CNAME(CNAME(two)),
            ));
            return vec![answer];
        }
        vec![address(asked, 9, 60)]
    })
    .await;
    let links = [("one", "{hostname: one.example.com}"), ("two", "{hostname: two.example.com}")];
    let question = query("one-default.lb.internal. A");
    once_of_five(async || {
        let fixture = with_upstream(&links, upstream.address).await;
        let since = Instant::now();
        let answer = ask_udp(fixture.linker.dns, &question).await;
        let is_in_time = since.elapsed() < Duration::from_secs(4);
        let is_failure = answer.metadata.response_code == ResponseCode::ServFail;
        (is_in_time && is_failure)
            .then_some(())
            .ok_or_else(|| format!("{:?}: {}", since.elapsed(), show(&answer)))
    })
    .await;
}

#[tokio::test]
async fn nodata_without_soa_and_denied_addresses_expire_soon() {
    for bad in [NODATA_WITHOUT_SOA, LOOPBACK_ADDRESS] {
        let behavior = UpstreamBehavior::default();
        let upstream = behavior.upstream(60).await;
        let links = [("web", "{hostname: a.example.com}")];
        let fixture = with_upstream(&links, upstream.address).await;
        behavior.set(bad);
        let answer = ask_udp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
        assert_eq!(answer.answers.len(), 1, "{}", show(&answer));
        behavior.set(GOOD);
        let since = Instant::now();
        answers(fixture.linker.dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
        assert!(since.elapsed() < Duration::from_secs(25), "5 s: {:?}", since.elapsed());
    }
}

#[tokio::test]
async fn failed_upstream_is_skipped_until_it_answers_again() {
    let behavior = UpstreamBehavior::default();
    let (flaky, good) = (behavior.upstream(60).await, UpstreamBehavior::default().upstream(60).await);
    let upstreams = format!("{},{}", flaky.address, good.address);
    let fixture = start_with_links(&WEB, &["--upstream", &upstreams]).await;
    behavior.set(SILENT);
    let dns = fixture.linker.dns;
    let ask = |i: usize| async move { short(dns, &format!("n{i}.example. A")).await };
    let down = format!("upstream {} fails health checks: read udp", flaky.address);
    let (mut asked, mut answered) = (0, 0);
    // lb-linker sends some queries to the silent upstream first; 0.5 s later the other upstream answers them, unless the
    // machine is too busy for that.
    while fixture.linker.logged(&down) == 0 {
        asked += 1;
        assert!(asked < 500, "{:#?}", fixture.linker.log());
        answered += usize::from(ask(asked).await == "192.0.2.10");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(answered * 10 >= asked * 9, "{answered} of {asked}");
    for i in 1000..1050 {
        assert_eq!(ask(i).await, "192.0.2.10");
        assert!(
            flaky.asked(&format!("n{i}.example. A")).is_empty(),
            "an upstream that is down gets no queries"
        );
    }
    assert!(!flaky.asked(". NS").is_empty(), "the upstream gets health checks");
    behavior.set(GOOD);
    fixture.linker.line(&format!("upstream {} answers again", flaky.address)).await;
    let mut i = 2000;
    while flaky.asked(&format!("n{i}.example. A")).is_empty() {
        i += 1;
        assert!(i < 2100, "the recovered upstream gets no queries");
        assert_eq!(ask(i).await, "192.0.2.10");
    }
    assert_eq!(fixture.linker.logged(&down), 1);
}

#[tokio::test]
async fn failed_upstreams_are_queried_if_all_have_failed() {
    // An upstream that fails health checks may still answer queries.
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = Arc::clone(&is_silent);
    let upstream = FaultyUpstream::start(move |asked, _| {
        let is_check = asked.queries[0].name().is_root();
        if is_check || silent.load(Ordering::SeqCst) { vec![] } else { vec![address(asked, 10, 60)] }
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    assert_eq!(short(fixture.linker.dns, "one.example. A").await, "Server Failure");
    fixture.linker.line("fails health checks").await;
    is_silent.store(false, Ordering::SeqCst);
    answers(fixture.linker.dns, "two.example. A", "192.0.2.10").await;
}

#[tokio::test]
async fn health_check_is_answered_while_upstreams_are_silent() {
    let upstream = FaultyUpstream::start(|_, _| vec![]).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    // CoreDNS's `forward` sends this query as its health check, and accepts any response.
    let mut check = query(". NS");
    check.edns = None;
    let answer = ask_within(Duration::from_secs(4), fixture.linker.dns, &check).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn do_cd_and_ad_are_forwarded_but_not_hop_by_hop_options() {
    let upstream = FaultyUpstream::start(|asked, _| {
        let mut answer = address(asked, 9, 60);
        answer.metadata.authentic_data = true;
        answer.edns = asked.edns.clone();
        answer.edns.as_mut().unwrap().options_mut().insert(EdnsOption::Unknown(10, vec![1; 16]));
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let mut asked = query("other.example. A");
    let edns = asked.edns.as_mut().unwrap();
    edns.set_dnssec_ok(true);
    // COOKIE, edns-tcp-keepalive and padding (RFC 7873, 7828, 7830).
    for code in [10, 11, 12] {
        edns.options_mut().insert(EdnsOption::Unknown(code, vec![0; 8]));
    }
    asked.metadata.checking_disabled = true;
    let answer = ask_udp(fixture.linker.dns, &asked).await;
    assert!(answer.metadata.authentic_data && answer.metadata.checking_disabled);
    let edns = answer.edns.as_ref().unwrap();
    assert!(edns.flags().dnssec_ok && edns.options().as_ref().is_empty(), "{edns:?}");
    let passed_on = upstream.asked("other.example. A").pop().unwrap();
    let edns = passed_on.edns.as_ref().unwrap();
    assert!(edns.flags().dnssec_ok && passed_on.metadata.checking_disabled);
    for code in [10, 11, 12] {
        assert!(edns.option(EdnsCode::from(code)).is_none());
    }

    // RFC 6840 sections 5.7 and 5.8: AD is set only in answers to queries with AD or DO.
    let mut plain = query("third.example. A");
    assert!(!ask_udp(fixture.linker.dns, &plain).await.metadata.authentic_data);
    plain.metadata.authentic_data = true;
    assert!(ask_udp(fixture.linker.dns, &plain).await.metadata.authentic_data);
    // AD covers the whole answer, and the CNAME from lb-linker's own zone isn't validated.
    let mut chased = query("web-default.lb.internal. A");
    chased.metadata.authentic_data = true;
    chased.edns.as_mut().unwrap().set_dnssec_ok(true);
    let answer = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &chased).await;
    assert_eq!(answer.answers.len(), 2);
    assert!(!answer.metadata.authentic_data);
}

#[tokio::test]
async fn flood_of_slow_names_is_refused_and_the_zone_answers() {
    let upstream = FaultyUpstream::start(|asked, _| {
        let is_target = asked.queries[0].name().to_ascii().ends_with("example.com.");
        if is_target { vec![address(asked, 9, 60)] } else { vec![] }
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    let mut flood = tokio::net::TcpStream::connect(dns).await.unwrap();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(dns).await.unwrap();
    // REFUSED, as CoreDNS's `forward` answers at max_concurrent. The other queries wait for the silent upstream for
    // some seconds.
    let refusal = async {
        let mut buffer = [0; 1232];
        loop {
            let length = socket.recv(&mut buffer).await.unwrap();
            let answer = Message::from_vec(&buffer[..length]).unwrap();
            // On a very busy machine the first look-ups may have ended before.
            match answer.metadata.response_code {
                ResponseCode::Refused => break,
                rcode => assert_eq!(rcode, ResponseCode::ServFail, "{}", show(&answer)),
            }
        }
    };
    let flooding = async {
        for i in 0.. {
            socket.send(&query(&format!("slow{i}.example. A")).to_vec().unwrap()).await.unwrap();
            match i % 1200 {
                1199 => tokio::time::sleep(Duration::from_secs(2)).await,
                i if i % 50 == 0 => tokio::task::yield_now().await,
                _ => {}
            }
        }
    };
    let refused = async {
        tokio::select! { () = refusal => {}, () = flooding => {} }
    };
    timeout(EVENT_TIMEOUT, refused).await.expect("a refusal");
    let answer = ask_within(IN_CLIENT_TIMEOUT, dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(data(&answer), "a.example.com. 192.0.2.9");
    crate::harness::dns::write_message(&mut flood, &query("web-default.lb.internal. A").to_vec().unwrap())
        .await;
    assert!(crate::harness::dns::read_message(&mut flood).await.is_some());
}

#[tokio::test]
async fn new_target_is_prefetched_past_the_cache() {
    let behavior = UpstreamBehavior::default();
    let upstream = behavior.upstream(60).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let dns = fixture.linker.dns;
    // A client has queried the new target before it existed, so NXDOMAIN is cached.
    behavior.set(MISSING);
    answers(dns, "b.example.com. A", "Non-Existent Domain").await;
    behavior.set(GOOD);
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    let before = upstream.asked("b.example.com. A").len();
    fixture.set(&[("web", "{hostname: b.example.com}")]);
    eventually("a look-up without a client", || async {
        (upstream.asked("b.example.com. A").len() > before).then_some(())
    })
    .await;
    assert!(upstream.asked("b.example.com. AAAA").is_empty(), "no client has queried AAAA");
    let answer = ask_within(IN_CLIENT_TIMEOUT, dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(data(&answer), "b.example.com. 192.0.2.10");
    // The old target isn't answered from the cache either.
    let before = upstream.asked("a.example.com. A").len();
    answers(dns, "a.example.com. A", "192.0.2.10").await;
    assert!(upstream.asked("a.example.com. A").len() > before);
}

#[tokio::test]
async fn cname_loop_of_an_upstream_is_answered_with_servfail() {
    let upstream = FaultyUpstream::start(|asked, _| {
        // The queried name and a longer name are aliases of each other.
        let name = asked.queries[0].name().clone();
        let next = Name::from_ascii("x").unwrap().append_domain(&name).unwrap();
        let mut answer = error(asked, ResponseCode::NoError);
        answer.add_answer(Record::from_rdata(name.clone(), 60, RData::CNAME(CNAME(next.clone()))));
        answer.add_answer(Record::from_rdata(next, 60, RData::CNAME(CNAME(name))));
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let answer = ask_udp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{}", show(&answer));
}

#[tokio::test]
async fn cname_targets_are_resolved_for_every_type() {
    let db = "$ORIGIN example.com.
@ 3600 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600
a 60 IN A 192.0.2.10
a 60 IN AAAA 2001:db8::10
a 60 IN TXT \"text\"
a 60 IN MX 10 mail.example.com.
a 60 IN HTTPS 1 . alpn=h2
a 60 IN CAA 0 issue \"ca.example.net\"
a 60 IN SRV 0 0 443 a.example.com.
";
    let upstream = CoreDns::start("file db example.com", db).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    for qtype in ["A", "AAAA", "TXT", "MX", "HTTPS", "CAA", "SRV"] {
        let wanted: RecordType = qtype.parse().unwrap();
        let question = query(&format!("web-default.lb.internal. {qtype}"));
        let answer = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &question).await;
        let types: Vec<_> = answer.answers.iter().map(Record::record_type).collect();
        assert_eq!(types, [RecordType::CNAME, wanted], "{}", show(&answer));
    }
    let answer =
        ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &query("web-default.lb.internal. NAPTR")).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert_eq!((answer.answers.len(), answer.authorities.len()), (1, 1), "NODATA: {}", show(&answer));
}

#[tokio::test]
async fn referral_is_answered_with_servfail() {
    // A lame server answers with a referral: unlike NODATA, it has NS records and no SOA (RFC 2308 section 2.2).
    let lame = FaultyUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::NoError);
        let ns = RData::NS(NS(Name::from_ascii("ns.example.net.").unwrap()));
        answer.add_authority(Record::from_rdata(Name::from_ascii("com.").unwrap(), 3600, ns));
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&WEB, lame.address).await;
    let answer =
        ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(
        show(&answer),
        "Server Failure aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | "
    );
    assert_eq!(ede(&answer), Some(0));
}

/// Returns a handler that answers for all names with these plugins.
fn resolver(lines: &str) -> Arc<Handler> {
    let site = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    first_handler(&format!(". {{\n{lines}\n}}\n"), &site).unwrap()
}

async fn ask_handler(handler: &Handler, question: &str) -> Message {
    ask_handler_by(Protocol::Udp, handler, question).await
}

async fn ask_handler_by(protocol: Protocol, handler: &Handler, question: &str) -> Message {
    let asked = query(question).to_vec().unwrap();
    let client = "127.0.0.1:5353".parse().unwrap();
    let answer = handler.answer(asked, client, None, protocol, true).await.unwrap();
    Message::from_vec(&answer.bytes).unwrap()
}

#[tokio::test]
async fn truncated_answer_never_reaches_a_client_by_tcp() {
    // This upstream truncates its answers by TCP, too.
    let upstream = FaultyUpstream::start(|asked, _| {
        let mut cut = address(asked, 9, 60);
        cut.metadata.truncation = true;
        vec![cut]
    })
    .await;
    // A client by TCP or TLS has no other transport for the whole answer.
    let caching = resolver(&format!("cache\nforward . {} {{\nprefer_udp\n}}", upstream.address));
    for (protocol, expected) in [
        (Protocol::Udp, "No Error tc rd | a.example. 60 IN A 192.0.2.9 |  | "),
        (Protocol::Tcp, "Server Failure rd | "),
        (Protocol::Tls, "Server Failure rd | "),
    ] {
        let answer = show(&ask_handler_by(protocol, &caching, "a.example. A").await);
        assert!(answer.starts_with(expected), "{protocol:?}: {answer}");
    }
    // The upstream is asked by TCP alone, but the client uses UDP.
    let forced = resolver(&format!("forward . {} {{\nforce_tcp\n}}", upstream.address));
    let answer = show(&ask_handler(&forced, "a.example. A").await);
    assert!(answer.starts_with("No Error tc rd"), "this client can ask again by TCP: {answer}");
    // The same for the target of a link.
    let fixture = with_upstream(&WEB, upstream.address).await;
    let asked = query("web-default.lb.internal. A");
    let by_udp = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &asked).await;
    assert!(by_udp.metadata.truncation, "{}", show(&by_udp));
    let by_tcp = ask_tcp(fixture.linker.dns, &asked).await;
    assert_eq!((by_tcp.metadata.truncation, by_tcp.metadata.response_code), (false, ResponseCode::ServFail));
}

#[tokio::test]
async fn popular_name_is_prefetched_before_expiry() {
    let upstream = UpstreamBehavior::default().upstream(60).await;
    let cache = "cache {\nsuccess 100 2 1\nprefetch 2 1m 90%\n}";
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let text = format!(". {{\n{cache}\nforward . {}\n}}\n", upstream.address);
    let (resolver, metrics) = (first_handler(&text, &context).unwrap(), Arc::clone(&context.metrics));
    let is_prefetched = || {
        let page = metrics.render().unwrap();
        page.lines().any(|line| line.starts_with("coredns_cache_prefetch_total{") && !line.ends_with(" 0"))
    };
    eventually("a query that no client waits for", || async {
        let answer = ask_handler(&resolver, "popular.example. A").await;
        assert_eq!(answer.answers.len(), 1);
        (is_prefetched() && upstream.asked("popular.example. A").len() > 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn serve_stale_answers_at_once_or_after_its_timeout() {
    for how in ["immediate", "verify"] {
        let behavior = UpstreamBehavior::default();
        let upstream = behavior.upstream(60).await;
        let cache = format!("cache {{\nsuccess 100 1 1\nserve_stale 1h {how}\n}}");
        let resolver = resolver(&format!("{cache}\nforward . {}", upstream.address));
        let ttl = async || ttl(&ask_handler(&resolver, "old.example. A").await);
        assert_eq!(ttl().await, 1);
        behavior.set(FAILING);
        eventually("a stale answer", async || (ttl().await == 0).then_some(())).await;
        behavior.set(GOOD);
        eventually("a fresh answer", async || (ttl().await == 1).then_some(())).await;
        behavior.set(SILENT);
        eventually("a stale answer", async || (ttl().await == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn upstreams_are_queried_in_the_order_of_the_policy() {
    let upstreams = [1, 2, 3].map(|_| FaultyUpstream::start(|asked, _| vec![address(asked, 9, 60)]));
    let upstreams = join_all(upstreams).await;
    let addresses: Vec<String> = upstreams.iter().map(|upstream| upstream.address.to_string()).collect();
    // On a busy machine lb-linker may query the next upstream, too, because the first one is slow.
    for (policy, at_least) in [("sequential", [9, 0, 0]), ("round_robin", [3, 3, 3])] {
        let resolver = resolver(&format!("forward . {} {{\npolicy {policy}\n}}", addresses.join(" ")));
        let question = format!("{}.example. A", policy.replace('_', "-"));
        for _ in 0..9 {
            ask_handler(&resolver, &question).await;
        }
        let asked: Vec<usize> = upstreams.iter().map(|upstream| upstream.asked(&question).len()).collect();
        assert!(asked.iter().zip(at_least).all(|(asked, least)| *asked >= least), "{policy} {asked:?}");
        assert!(asked.iter().sum::<usize>() < 15, "{policy} {asked:?}");
    }
}

/// Starts a real CoreDNS that serves DNS over TLS with a self-signed certificate for `dns.example.net` in `cert.pem`.
async fn coredns_by_tls(directory: &tempfile::TempDir) -> CoreDns {
    let made = rcgen::generate_simple_self_signed(vec!["dns.example.net".to_owned()]).unwrap();
    std::fs::write(directory.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let path = |file| directory.path().join(file).display().to_string();
    let plugins = format!("tls {} {}\nfile db example.com", path("cert.pem"), path("key.pem"));
    let db = "$ORIGIN example.com.
@ 3600 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600
a 60 IN A 192.0.2.10
*.w 60 IN A 192.0.2.11
";
    CoreDns::start_with_scheme("tls://", &plugins, db).await
}

#[tokio::test]
async fn tls_upstream_is_used_if_its_certificate_matches() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = coredns_by_tls(&directory).await;
    let authority = directory.path().join("cert.pem").display().to_string();
    let (port, ip) = (upstream.address.port(), upstream.address.ip());
    let start = async |name: &str| {
        let upstream = format!("tls://{ip}%{name}:{port}");
        start_with_manifests(&manifests(&WEB), &["--upstream", &upstream], &[("SSL_CERT_FILE", &authority)])
            .await
    };
    let fixture = start("dns.example.net").await;
    let dns = fixture.linker.dns;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.10").await;
    // Many queries at once on new connections, then again on open connections.
    for _ in 0..2 {
        let asking = (0..50).map(|i| async move { short(dns, &format!("n{i}.w.example.com. A")).await });
        assert!(join_all(asking).await.iter().all(|answer| answer == "192.0.2.11"));
    }
    once_of_five(async || {
        let fixture = start("other.example.net").await;
        assert_eq!(short(fixture.linker.dns, "a.example.com. A").await, "Server Failure");
        let fails = format!("upstream tls://{} (other.example.net) fails", upstream.address);
        let line = fixture.linker.line(&fails).await;
        // On a busy machine the handshake isn't done in time.
        let expected = "tls: its certificate is valid for \"dns.example.net\", and not for other.example.net";
        let is_right = line.contains(expected);
        is_right.then_some(()).ok_or(line)
    })
    .await;
}

/// A Go program with the DNS library miekg/dns is both the upstream and the client, and compares the messages of both.
///
/// `LB_LINKER_RECORDS_SEED=7` runs other messages.
#[tokio::test]
async fn random_records_pass_by_udp_tcp_and_tls() {
    const MESSAGES: u32 = 300;
    let seed = std::env::var("LB_LINKER_RECORDS_SEED").unwrap_or_else(|_| "1".to_owned());
    // If the test fails, the program ends, because its standard input is closed or lb-linker has stopped.
    let mut program = Command::new(&go_programs().roundtrip)
        .args(["-seed", &seed, "-messages", &MESSAGES.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let upstream = line.trim().strip_prefix("UPSTREAM=").unwrap();

    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make();
    let [certificate, key, ca] =
        ["tls.crt", "tls.key", "ca.crt"].map(|name| certificates.file(name).display().to_string());
    let plugins = format!("bind 127.0.0.1\nprometheus 127.0.0.1:0\ncache\nforward . {upstream}\n");
    let corefile = format!(
        ".:0 {{\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n{plugins}}}\n\
         tls://.:0 {{\ntls {certificate} {key}\n{plugins}}}\n"
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
    linker.ready().await;
    let by_tls = linker.line(", by TLS").await;
    let tls = by_tls.split_once("DNS on ").unwrap().1.strip_suffix(", by TLS").unwrap();
    writeln!(input, "{} {tls} {ca}", linker.dns).unwrap();

    let mut report = String::new();
    output.read_to_string(&mut report).unwrap();
    let status = program.wait().unwrap();
    assert!(status.success(), "LB_LINKER_RECORDS_SEED={seed}: {status}: {report}");
    // The client repeats the query for each message twice, and many of these queries are answered from the cache.
    for server in [format!("dns://{}", linker.dns), format!("tls://{tls}")] {
        let hits =
            format!(r#"coredns_cache_hits_total{{server="{server}",type="success",view="",zones="."}}"#);
        assert!(linker.metric(&hits).unwrap_or_default() > MESSAGES.into(), "{hits}");
    }
}

#[tokio::test]
async fn caching_coredns_sees_late_and_new_targets_in_10_and_5_s() {
    once_of_five(caching_coredns_sees_targets).await;
}

async fn caching_coredns_sees_targets() -> Result<(), String> {
    let behavior = UpstreamBehavior::default();
    behavior.set(MISSING);
    let upstream = behavior.upstream(60).await;
    let fixture = with_upstream(&WEB, upstream.address).await;
    let front = CoreDns::start(&format!("forward . {}\ncache 30", fixture.linker.dns), "").await;
    let question = "web-default.lb.internal. A";
    // Clients repeat the query for 10 s while the target doesn't exist.
    let asked_in_vain = Instant::now();
    while asked_in_vain.elapsed() < Duration::from_secs(10) {
        assert_eq!(short(front.address, question).await, "a.example.com.", "with NXDOMAIN");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    behavior.set(GOOD);
    let took = time_until_answer(front.address, question, "a.example.com. 192.0.2.10").await;
    eprintln!("behind a CoreDNS with cache 30: a target that begins to exist is seen after {took:?}");
    if took >= Duration::from_secs(12) {
        return Err(format!("5 s in each of two caches: {took:?}"));
    }

    fixture.set(&[("web", "{hostname: b.example.com}")]);
    answers(fixture.linker.dns, "web-default.lb.internal. CNAME", "b.example.com.").await;
    let took = time_until_answer(front.address, question, "b.example.com. 192.0.2.10").await;
    eprintln!("behind a CoreDNS with cache 30: a new target is seen after {took:?}");
    let is_late = took >= Duration::from_secs(7);
    if is_late { Err(format!("5 s in one cache: {took:?}")) } else { Ok(()) }
}

/// Waits until the answer is `expected`, and returns the elapsed time.
async fn time_until_answer(server: SocketAddr, question: &str, expected: &str) -> Duration {
    let since = Instant::now();
    answers(server, question, expected).await;
    since.elapsed()
}
