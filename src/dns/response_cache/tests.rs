//! Tests that a reused answer equals the answer of the full handler at that moment, byte for byte.

mod model;

use std::net::SocketAddr;
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::advance;

use crate::dns::chain::handler::Handler;
use crate::dns::net::Protocol;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support;
use crate::dns::response_cache::*;
use crate::dns::server::config::first_handler;
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::model::service_key::ServiceKey;
use crate::store::{Input, OnGone, Store};

/// The plugins of the root block: `acl`, `cache`, and templates for names with addresses, aliases that lead back into
/// the zone, and names that don't exist.
const HEADER: &str = "header {\nquery set rd\nresponse clear rd aa\nresponse set ra\n}";
const ROOT_BLOCK: &str = "
    acl {
        allow net 10.0.0.0/8 2001:db8::/32
        block
    }
    cache 30
    template ANY ANY back.example {
        answer \"{{ .Name }} 20 IN CNAME other.default.lb.internal.\"
    }
    template ANY ANY gone.example {
        rcode NXDOMAIN
        authority \"example. 60 IN SOA ns.example. hostmaster.example. 7 7200 1800 86400 60\"
    }
    template IN A example {
        answer \"{{ .Name }} 20 IN A 192.0.2.7\"
        answer \"{{ .Name }} 25 IN A 192.0.2.8\"
        answer \"{{ .Name }} 25 IN A 192.0.2.9\"
    }
    template ANY ANY example {
        authority \"example. 60 IN SOA ns.example. hostmaster.example. 7 7200 1800 86400 60\"
    }";

struct CachedServer {
    store: Arc<Store>,
    handler: Arc<Handler>,
    response_cache: ResponseCache,
    context: ServerContext,
    protocol: Protocol,
}

const CAPACITY: Capacity = Capacity { sets: 256, bytes: 512 << 10 };

impl CachedServer {
    fn new(first: &str, others: &str) -> Self {
        let text =
            format!("lb.internal {{\nprometheus\n{first}\nlb_linker\n}}\n. {{\nprometheus\n{others}\n}}\n");
        Self::of(&text, OnGone::Dropped, &["lb.internal."])
    }

    fn of(text: &str, departed: OnGone, zones: &[&str]) -> Self {
        let zones: Vec<Name> = zones.iter().map(|zone| Name::from_ascii(zone).unwrap()).collect();
        let store = Arc::new(Store::new(departed).with_zones(&zones));
        store.set_known(Input::Services);
        let mut context = ServerContext::silent(Arc::clone(&store)).unwrap();
        context.own_addresses = |_| vec![[192, 0, 2, 53].into()];
        let handler = first_handler(text, &context).unwrap();
        Self {
            store,
            handler,
            response_cache: ResponseCache::new(CAPACITY),
            context,
            protocol: Protocol::Udp,
        }
    }

    /// Returns the answer of the full handler, and caches it if it is reusable.
    async fn fresh_answer(&mut self, question: &[u8], client: SocketAddr) -> Vec<u8> {
        let answer = self.handler.answer(question.to_vec(), client, None, self.protocol, true).await.unwrap();
        let mut key = WireKey::default();
        if let (Some(wire_response), true) = (answer.wire_response, key.read(question, client.is_ipv6())) {
            self.response_cache.insert(key.as_bytes().into(), client.ip(), *wire_response, Instant::now());
        }
        answer.bytes
    }

    /// Returns the answer of the response cache; `None` if it has no valid answer.
    fn cached_answer(&mut self, question: &[u8], client: SocketAddr) -> Option<Vec<u8>> {
        let mut out = [0; 4096];
        let server = self.handler.server.load_full();
        let server = self.handler.number(&server, question, client, None, self.protocol);
        let length =
            self.response_cache.answer(question, client.ip(), server, Instant::now(), &mut out).ok()?;
        Some(out[..length].to_vec())
    }

    /// Returns the metrics of queries, without durations.
    fn counted(&self) -> Vec<String> {
        let page = self.context.metrics.render().unwrap();
        let counts = |line: &&str| line.starts_with("coredns_") && !line.contains("_duration_");
        page.lines().filter(counts).map(str::to_owned).collect()
    }
}

fn client(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().unwrap(), 5353)
}

fn question(id: u16, name: &str, qtype: RecordType, edns: Option<(u16, bool)>, flags: u8) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = flags & 1 == 0;
    message.metadata.checking_disabled = flags & 2 != 0;
    message.metadata.authentic_data = flags & 4 != 0;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype));
    if let Some((payload, dnssec_ok)) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        edns.set_dnssec_ok(dnssec_ok);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

/// Returns a link with records of that TTL; with a TTL, the link also has the wildcard name `*.more`.
fn link(service: &str, target: &str, ttl: Option<u32>) -> ObservedService {
    let hostnames = if ttl.is_some() { vec!["*.more.lb.internal".into()] } else { vec![] };
    let annotations = Annotations { ttl, hostnames: hostnames.into(), ..Annotations::default() };
    ObservedService { annotations, ..support::link(service, target) }
}

const NAMES: [&str; 16] = [
    "web.default.lb.internal.",
    "web-default.lb.internal.",
    "other.default.lb.internal.",
    "default.lb.internal.",
    "lb.internal.",
    "ns.dns.lb.internal.",
    "dns.lb.internal.",
    "x.dns.lb.internal.",
    "nothing.lb.internal.",
    "a.more.lb.internal.",
    "_tcp.web.default.lb.internal.",
    "a.example.",
    "back.example.",
    "gone.example.",
    "edge.example.",
    "elsewhere.test.",
];

const TYPES: [RecordType; 7] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::CNAME,
    RecordType::SOA,
    RecordType::NS,
    RecordType::HTTPS,
    RecordType::ANY,
];

const TARGETS: [&str; 6] =
    ["a.example.", "b.example.", "back.example.", "gone.example.", "192.0.2.1", "2001:db8::1"];

/// Returns the same query with another id, and sometimes with letters in another case.
fn respelled(question: &[u8], id: u16, random: &mut StdRng) -> Vec<u8> {
    let mut question = question.to_vec();
    question[..2].copy_from_slice(&id.to_be_bytes());
    if random.random_bool(0.6) {
        return question;
    }
    let mut at = 12;
    while question[at] != 0 {
        let length = usize::from(question[at]);
        for letter in &mut question[at + 1..=at + length] {
            if random.random_bool(0.5) {
                *letter = letter.to_ascii_uppercase();
            }
        }
        at += length + 1;
    }
    question
}

#[tokio::test(start_paused = true)]
async fn cached_answer_equals_the_answer_of_the_full_handler() {
    let mut given = 0;
    for seed in 0..60 {
        let random = &mut StdRng::seed_from_u64(seed);
        let dns64 = *["", "dns64", "dns64 {\nallow_ipv4\n}"].choose(random).unwrap();
        let first = *["errors", HEADER, dns64].choose(random).unwrap();
        let mut served = CachedServer::new(first, &format!("{dns64}\n{ROOT_BLOCK}"));
        served.protocol = [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
        let mut asked: Vec<(Vec<u8>, SocketAddr)> = Vec::new();
        for step in 0..250 {
            match random.random_range(0..12) {
                0 => {
                    let (service, target) =
                        (["web", "other"].choose(random).unwrap(), TARGETS.choose(random).unwrap());
                    let ttl = [None, Some(7)].choose(random).unwrap();
                    served.store.apply(link(service, target, *ttl));
                }
                1 if random.random_bool(0.3) => {
                    let key = ServiceKey::new("default", ["web", "other"].choose(random).unwrap());
                    served.store.gone(&key, "u", None, std::time::Instant::now());
                }
                2 => advance(Duration::from_millis(random.random_range(0..9000))).await,
                3 if random.random_bool(0.3) => {
                    served.handler.server.load().invalidate(Some(b"\x01a\x07example"))
                }
                _ => {}
            }
            let edns = [None, Some((1232, false)), Some((1232, true)), Some((512, false))];
            let name = NAMES.choose(random).unwrap();
            let flags = if random.random_bool(0.8) { 0 } else { random.random_range(0..8) };
            let plain =
                question(0, name, *TYPES.choose(random).unwrap(), *edns.choose(random).unwrap(), flags);
            let from = client(["10.0.0.1", "10.0.0.2", "192.0.2.66", "2001:db8::9"].choose(random).unwrap());
            // Usually repeats an earlier query.
            let before = if random.random_bool(0.7) { asked.choose(random).cloned() } else { None };
            let (plain, from) = before.unwrap_or((plain, from));
            asked.push((plain.clone(), from));
            let question = respelled(&plain, random.random(), random);
            let again = served.cached_answer(&question, from);
            let full = served.fresh_answer(&question, from).await;
            let context = || format!("seed {seed}, step {step}: {question:02x?}");
            if let Some(again) = again {
                assert_eq!(again, full, "{}", context());
                given += 1;
            }
        }
    }
    assert!(given > 1000, "only {given} answers came from the cache");
}

#[tokio::test(start_paused = true)]
async fn common_queries_are_answered_from_the_cache() {
    let mut served = CachedServer::new(
        &format!("errors\nloadbalance\n{HEADER}"),
        &format!("errors\nloop\nloadbalance\n{ROOT_BLOCK}"),
    );
    served.store.apply(link("web", "a.example.", None));
    served.store.apply(link("other", "192.0.2.1", None));
    let from = client("10.0.0.1");
    for (name, qtype) in [
        ("web.default.lb.internal.", RecordType::CNAME),
        ("web.default.lb.internal.", RecordType::A),
        ("web-default.lb.internal.", RecordType::AAAA),
        ("other.default.lb.internal.", RecordType::A),
        ("other.default.lb.internal.", RecordType::AAAA),
        ("nothing.lb.internal.", RecordType::A),
        ("lb.internal.", RecordType::SOA),
        ("b.example.", RecordType::A),
        ("b.example.", RecordType::AAAA),
        ("gone.example.", RecordType::A),
    ] {
        for edns in [None, Some((1232, false)), Some((4096, true))] {
            let question = question(7, name, qtype, edns, 0);
            // The second time, the data of the plugin `template` comes from the plugin `cache`.
            served.fresh_answer(&question, from).await;
            served.fresh_answer(&question, from).await;
            assert!(served.cached_answer(&question, from).is_some(), "{name} {qtype} {edns:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reused_addresses_are_shuffled_and_their_ttl_counts_down() {
    let mut served = CachedServer::new("loadbalance", &format!("loadbalance\n{ROOT_BLOCK}"));
    served.store.apply(link("web", "a.example.", None));
    let from = client("10.0.0.1");
    let question = question(7, "web.default.lb.internal.", RecordType::A, None, 0);
    served.fresh_answer(&question, from).await;
    let full = Message::from_vec(&served.fresh_answer(&question, from).await).unwrap();
    advance(Duration::from_millis(2500)).await;
    let mut orders = std::collections::HashSet::new();
    for _ in 0..100 {
        let again = Message::from_vec(&served.cached_answer(&question, from).unwrap()).unwrap();
        let ttls: Vec<u32> = again.answers.iter().map(|record| record.ttl).collect();
        assert_eq!(ttls, [5, 18, 18, 18], "the TTL of the CNAME record stays");
        let addresses: Vec<_> = again.answers[1..].iter().map(|record| record.data.clone()).collect();
        let mut sorted = addresses.clone();
        sorted.sort();
        let mut expected: Vec<_> = full.answers[1..].iter().map(|record| record.data.clone()).collect();
        expected.sort();
        assert_eq!(sorted, expected);
        orders.insert(format!("{addresses:?}"));
    }
    assert_eq!(orders.len(), 6);
    advance(Duration::from_secs(18)).await;
    assert_eq!(served.cached_answer(&question, from), None, "it has expired");
}

#[tokio::test(start_paused = true)]
async fn reused_answers_are_counted_like_fresh_answers() {
    for (name, qtype) in [
        ("web.default.lb.internal.", RecordType::A),
        ("web.default.lb.internal.", RecordType::CNAME),
        ("gone.example.", RecordType::AAAA),
    ] {
        let question = question(7, name, qtype, Some((1232, true)), 0);
        for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Tls] {
            let mut pages = Vec::new();
            for repeats in [true, false] {
                let mut served = CachedServer::new("", ROOT_BLOCK);
                served.protocol = protocol;
                served.store.apply(link("web", "a.example.", None));
                for from in ["10.0.0.1", "2001:db8::1"].map(client) {
                    served.fresh_answer(&question, from).await;
                    served.fresh_answer(&question, from).await;
                    for _ in 0..5 {
                        if repeats {
                            served.cached_answer(&question, from).unwrap();
                        } else {
                            served.fresh_answer(&question, from).await;
                        }
                    }
                }
                pages.push(served.counted());
            }
            assert_eq!(pages[0], pages[1], "{name} {qtype} {protocol}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_not_reused_for_denied_clients() {
    let mut served = CachedServer::new("", ROOT_BLOCK);
    let question = question(7, "b.example.", RecordType::A, None, 0);
    let (friend, stranger) = (client("10.0.0.1"), client("192.0.2.66"));
    served.fresh_answer(&question, friend).await;
    served.fresh_answer(&question, friend).await;
    assert!(served.cached_answer(&question, friend).is_some());
    assert!(served.cached_answer(&question, stranger).is_none());
    let refused = Message::from_vec(&served.fresh_answer(&question, stranger).await).unwrap();
    assert_eq!(refused.metadata.response_code, hickory_proto::op::ResponseCode::Refused);
    assert!(served.cached_answer(&question, friend).is_some());
}

#[tokio::test(start_paused = true)]
async fn servers_that_share_a_cache_give_their_own_answers() {
    let [mut one, mut other] = [(53, "192.0.2.1"), (5300, "192.0.2.2")].map(|(port, target)| {
        let text = format!("lb.internal:{port} {{\nlb_linker\n}}\n");
        let served = CachedServer::of(&text, OnGone::Dropped, &["lb.internal."]);
        served.store.apply(link("web", target, None));
        served
    });
    let question = question(7, "web.default.lb.internal.", RecordType::A, None, 0);
    let from = client("10.0.0.1");
    let first = one.fresh_answer(&question, from).await;
    std::mem::swap(&mut one.response_cache, &mut other.response_cache);
    assert_eq!(other.cached_answer(&question, from), None);
    let second = other.fresh_answer(&question, from).await;
    assert_ne!(first, second);
    assert_eq!(other.cached_answer(&question, from), Some(second));
    std::mem::swap(&mut one.response_cache, &mut other.response_cache);
    assert_eq!(one.cached_answer(&question, from), Some(first));
}

#[tokio::test]
async fn answers_from_before_a_reload_are_replaced() {
    for text in ["a.test {\nhosts {\n192.0.2.1 a.test\n}\n}", VIEWS] {
        let from = client("10.1.0.1");
        let questions = [RecordType::A, RecordType::AAAA].map(|qtype| question(7, "a.test.", qtype, None, 0));
        let mut server = CachedServer::of(text, OnGone::Dropped, &[]);
        for _ in 0..10 {
            let response_cache = std::mem::replace(&mut server.response_cache, ResponseCache::new(CAPACITY));
            server = CachedServer { response_cache, ..CachedServer::of(text, OnGone::Dropped, &[]) };
            for question in &questions {
                assert_eq!(server.cached_answer(question, from), None, "it is of the former server");
                let fresh = server.fresh_answer(question, from).await;
                assert_eq!(server.cached_answer(question, from), Some(fresh));
            }
        }
        assert_eq!(server.response_cache.sets.iter().flatten().flatten().count(), questions.len());
    }
}

#[tokio::test(start_paused = true)]
async fn popular_answer_due_for_prefetch_is_not_reused() {
    let mut served =
        CachedServer::new("", &ROOT_BLOCK.replace("cache 30", "cache 30 {\nprefetch 5 1m 50%\n}"));
    let question = question(7, "b.example.", RecordType::A, None, 0);
    let from = client("10.0.0.1");
    served.fresh_answer(&question, from).await;
    served.fresh_answer(&question, from).await;
    // The TTL is 20 s.
    for second in 0..10 {
        assert!(served.cached_answer(&question, from).is_some(), "{second}");
        advance(Duration::from_secs(1)).await;
    }
    assert!(served.cached_answer(&question, from).is_none());
    served.fresh_answer(&question, from).await;
    tokio::task::yield_now().await;
    let fetched = |line: &String| line.starts_with("coredns_cache_prefetch_total") && line.ends_with(" 1");
    assert!(served.counted().iter().any(fetched), "{:#?}", served.counted());
}

#[tokio::test(start_paused = true)]
async fn hits_of_a_replaced_answer_count_for_prefetch() {
    let mut served =
        CachedServer::new("", &ROOT_BLOCK.replace("cache 30", "cache 30 {\nprefetch 5 1m 50%\n}"));
    let question = question(7, "b.example.", RecordType::A, None, 0);
    let from = client("10.0.0.1");
    served.fresh_answer(&question, from).await;
    served.fresh_answer(&question, from).await;
    for _ in 0..5 {
        assert!(served.cached_answer(&question, from).is_some());
    }
    served.fresh_answer(&question, from).await;
    // The TTL is 20 s.
    advance(Duration::from_secs(11)).await;
    assert!(served.cached_answer(&question, from).is_none(), "a prefetch is due");
}

#[tokio::test(start_paused = true)]
async fn flood_of_names_evicts_no_used_answer() {
    let mut served = CachedServer::new("", "");
    served.store.apply(link("web", "192.0.2.1", None));
    let from = client("10.0.0.1");
    let wanted = question(7, "web.default.lb.internal.", RecordType::A, None, 0);
    served.fresh_answer(&wanted, from).await;
    for number in 0..3 * CAPACITY.sets * WAYS {
        let flood = question(7, &format!("x{number}.lb.internal."), RecordType::A, None, 0);
        served.fresh_answer(&flood, from).await;
        assert!(served.cached_answer(&wanted, from).is_some(), "{number}");
    }
    assert!(served.response_cache.bytes <= CAPACITY.bytes);
    let counted: usize =
        served.response_cache.sets.iter().flatten().flatten().map(|entry| entry.weight()).sum();
    assert_eq!(served.response_cache.bytes, counted);
}

#[test]
fn answer_is_kept_from_its_second_query_on() {
    let mut cache = ResponseCache::new(CAPACITY);
    let mut is_kept = |number: usize| {
        let query = question(7, &format!("x{number}.lb.internal."), RecordType::A, None, 0);
        let client = [10, 0, 0, 1].into();
        assert_eq!(cache.answer(&query, client, 1, Instant::now(), &mut []), Err(Miss::NotCached));
        cache.key_to_keep().is_some()
    };
    assert_eq!([0, 0, 0].map(&mut is_kept), [false, true, true]);
    // An eighth of the names that the cache has room for, in turn: hardly any three sets have more names than places.
    let few = CAPACITY.sets * WAYS / 8;
    let kept = (0..2 * few).filter(|number| is_kept(1_000_000 + number % few)).count();
    assert!(kept > few * 90 / 100, "{kept} of {few}");
    // Each name is asked again after as many other names as the cache has room for, ten times over.
    let flood = 10 * CAPACITY.sets * WAYS;
    let kept = (0..2 * flood).filter(|number| is_kept(1 + number % flood)).count();
    assert!(kept < flood / 100, "{kept} of {flood}");
}

#[tokio::test]
async fn new_answers_are_cached_after_a_flood() {
    let mut served = CachedServer::new("", "");
    let from = client("10.0.0.1");
    for number in 0..3 * CAPACITY.sets * WAYS {
        let flood = question(7, &format!("x{number}.lb.internal."), RecordType::A, None, 0);
        served.fresh_answer(&flood, from).await;
    }
    let mut lost = 0;
    for number in 0..100 {
        // After the first change of a link, no answer of the flood is valid.
        served.store.apply(link(&format!("web{number}"), "192.0.2.1", None));
        let wanted = question(7, &format!("web{number}.default.lb.internal."), RecordType::A, None, 0);
        for _ in 0..10 {
            served.fresh_answer(&wanted, from).await;
        }
        lost += u32::from(served.cached_answer(&wanted, from).is_none());
    }
    assert_eq!(lost, 0, "of 100");
}

#[tokio::test]
async fn truncated_answer_is_not_cached_with_loadbalance() {
    let mut served = CachedServer::new("loadbalance", "");
    let addresses = (1..=60).map(|last| [192, 0, 2, last].into()).collect();
    let web = link("web", "192.0.2.1", None);
    served.store.apply(ObservedService { ingress: Ingress { hostnames: vec![], addresses }, ..web });
    let from = client("10.0.0.1");
    for (room, is_again) in [(None, false), (Some((1232, false)), true)] {
        let asked = question(7, "web.default.lb.internal.", RecordType::A, room, 0);
        served.fresh_answer(&asked, from).await;
        assert_eq!(served.cached_answer(&asked, from).is_some(), is_again, "{room:?}");
    }
}

#[tokio::test]
async fn truncated_answer_in_another_order_is_not_cached() {
    let addresses: String =
        (1..=100).map(|last| format!("answer \"{{{{ .Name }}}} 20 IN A 192.0.2.{last}\"\n")).collect();
    for (alias, is_again) in [("", true), ("answer \"{{ .Name }} 20 IN CNAME x.example.\"", false)] {
        let mut served =
            CachedServer::new("", &format!("cache 30\ntemplate IN A example {{\n{addresses}{alias}\n}}"));
        let asked = question(7, "many.example.", RecordType::A, Some((1232, false)), 0);
        for _ in 0..2 {
            served.fresh_answer(&asked, client("10.0.0.1")).await;
        }
        assert_eq!(served.cached_answer(&asked, client("10.0.0.1")).is_some(), is_again, "{alias:?}");
    }
}

/// Blocks of one zone, whose views depend on what the key of a kept answer lacks.
const VIEWS: &str = "
a.test {
    view one {
        expr incidr(client_ip(), '10.1.0.0/16')
    }
    hosts {
        192.0.2.1 a.test
    }
}
a.test {
    view two {
        expr port() == '5353' && id() < 100
    }
    hosts {
        192.0.2.2 a.test
    }
}
a.test {
    view three {
        expr do() && metadata('a/b') == ''
    }
    hosts {
        192.0.2.3 a.test
    }
}
a.test {
    hosts {
        192.0.2.4 a.test
    }
}
";

#[tokio::test]
async fn answers_of_blocks_with_views_are_kept_by_view() {
    let mut server = CachedServer::of(VIEWS, OnGone::Dropped, &[]);
    let mut hits = 0;
    for round in 0..4 {
        for (client, id, edns, expected) in [
            ("10.1.0.1:5353", 7, None, 1),
            ("10.2.0.1:5353", 7, None, 2),
            ("10.2.0.1:5354", 7, None, 4),
            ("10.2.0.1:5353", 100, None, 4),
            ("10.2.0.1:5354", 7, Some((1232, true)), 3),
            ("10.2.0.1:5353", 7, Some((1232, true)), 2),
            ("10.1.0.1:5354", 700, Some((1232, true)), 1),
            ("10.2.0.1:5354", 7, Some((1232, false)), 4),
        ] {
            let (client, question) =
                (client.parse().unwrap(), question(id, "a.test.", RecordType::A, edns, 0));
            let kept = server.cached_answer(&question, client);
            let fresh = server.fresh_answer(&question, client).await;
            let address = fresh.windows(4).any(|bytes| bytes == [192, 0, 2, expected]);
            assert!(address, "{client} {id} {edns:?} in round {round}");
            hits += usize::from(kept.is_some());
            assert!(kept.is_none_or(|kept| kept == fresh), "{client} {id} {edns:?} in round {round}");
        }
    }
    assert_eq!(hits, 3 * 8 + 1, "two clients of the last block have the same query");
}
