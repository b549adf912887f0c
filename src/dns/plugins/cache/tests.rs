//! Tests of the cache with a next plugin that returns preset results.

mod refresh;

use std::mem::{replace, take};
use std::time::Duration;

use futures::FutureExt;
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::Name;
use tokio::sync::Notify;
use tokio::time::{advance, sleep};

use crate::dns::chain::plugin::{ChainPlugin, PluginError};
use crate::dns::chain::request::Purpose;
use crate::dns::chain::server::{Server, ServerBlock};
use crate::dns::message::ede::Ede;
use crate::dns::message::encode::encode;
use crate::dns::message::query::wire_name;
use crate::dns::message::validity::Section;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::cache::*;
use crate::dns::plugins::tests::support::{TestServer, record, show};

/// The plugin after the cache.
#[derive(Debug)]
struct Source {
    outcome: Mutex<PluginResult>,
    delay: Mutex<Duration>,
    asked: Mutex<Vec<String>>,
    begun: Notify,
}

/// A server block with a cache and a [`Source`], and a client.
struct CacheFixture {
    context: TestServer,
    source: Arc<Source>,
}

#[async_trait]
impl Plugin for Source {
    fn name(&self) -> &'static str {
        "source"
    }

    async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
        let ad = if request.metadata.authentic_data { " ad" } else { "" };
        let (name, qtype) = (request.query.name(), request.query.query_type());
        let line = format!("{name} {qtype}{ad} {}", request.protocol);
        self.asked.lock().push(line);
        self.begun.notify_one();
        let outcome = self.outcome.lock().clone();
        let delay = *self.delay.lock();
        sleep(delay).await;
        let mut reply = outcome?;
        let metadata = Metadata::response_from_request(&request.metadata);
        let original = replace(&mut reply.metadata, metadata);
        reply.metadata.response_code = original.response_code;
        reply.metadata.authentic_data = original.authentic_data;
        reply.metadata.truncation = original.truncation;
        reply.metadata.recursion_available = true;
        Ok(reply)
    }
}

fn reply(rcode: ResponseCode, answers: &[&str], authorities: &[&str]) -> Reply {
    let mut metadata = Metadata::new(0, MessageType::Response, OpCode::Query);
    metadata.response_code = rcode;
    let mut reply = Reply::new(metadata, "source");
    reply.records.answers = answers.iter().map(|text| record(text)).collect();
    reply.records.authorities = authorities.iter().map(|text| record(text)).collect();
    reply
}

fn address(ttl: u32) -> Reply {
    reply(ResponseCode::NoError, &[&format!("a.example. {ttl} A 192.0.2.1")], &[])
}

fn absence() -> Reply {
    reply(ResponseCode::NXDomain, &[], &["example. 60 SOA ns.example."])
}

fn failure() -> Reply {
    reply(ResponseCode::ServFail, &[], &[])
}

const A_60: &str = "NOERROR aa,ra | a.example. 60 IN A 192.0.2.1 | |";

impl CacheFixture {
    fn new(cache: &str, first: Reply) -> Self {
        let mut context = TestServer::block(&format!("{cache}\nwhoami"));
        let source = Arc::new(Source {
            outcome: Mutex::new(Ok(first)),
            delay: Mutex::default(),
            asked: Mutex::default(),
            begun: Notify::new(),
        });
        let (zone, block) = context.server.blocks().next().unwrap();
        let mut plugins = block.plugins.clone();
        *plugins.last_mut().unwrap() = ChainPlugin::new(Arc::clone(&source) as Arc<dyn Plugin>);
        let block = ServerBlock {
            zones: block.zones.clone(),
            plugins,
            access_rules: block.access_rules.clone(),
            link_zones: ZoneSet::default(),
            cluster_zones: ZoneSet::default(),
            labeled: ZoneSet::default(),
            debug: false,
        };
        let metrics = context.shared.metrics.group().unwrap();
        context.server =
            Arc::new(Server::new("dns://:53".to_owned(), &[(zone.clone(), Arc::new(block))], metrics));
        context.request.server = Arc::clone(&context.server);
        Self { context, source }
    }

    fn say(&self, reply: Reply) {
        *self.source.outcome.lock() = Ok(reply);
    }

    fn fail(&self, rcode: ResponseCode) {
        *self.source.outcome.lock() = Err(PluginError::new(rcode, "why"));
    }

    fn no_upstream(&self) {
        *self.source.outcome.lock() = Err(PluginError::no_upstream("why"));
    }

    fn take(&self, time: Duration) {
        *self.source.delay.lock() = time;
    }

    async fn ask(&self) -> String {
        self.context.ask("a.example. A").await
    }

    async fn target(&self, max_negative_age: u64, may_use_cached: bool) -> String {
        let mut context = self.context.clone();
        context.request.purpose =
            Purpose::Target { max_negative_age: Duration::from_secs(max_negative_age), may_use_cached };
        context.ask("a.example. A").await
    }

    /// Returns how often the source was asked since the last call.
    fn asked(&self) -> usize {
        take(&mut *self.source.asked.lock()).len()
    }

    fn forget(&self, name: &str) {
        self.context.server.invalidate(Some(&wire_name(&Name::from_ascii(name).unwrap())));
    }
}

async fn seconds(number: u64) {
    advance(Duration::from_secs(number)).await;
}

/// Runs the background tasks until each of them has ended or waits for a later timer.
async fn settled() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn cached_answer_has_aa_and_the_case_of_the_query() {
    let bench = CacheFixture::new("cache", address(60));
    assert_eq!(bench.ask().await, A_60.replace("aa,", ""));
    seconds(1).await;
    assert_eq!(bench.context.ask("A.example. A").await, "NOERROR aa,ra | A.example. 59 IN A 192.0.2.1 | |");
    assert_eq!(bench.asked(), 1);
    seconds(59).await;
    bench.say(absence());
    assert_eq!(
        bench.ask().await,
        "NXDOMAIN ra | | example. 60 IN SOA ns.example. ns.example. 1 1 1 1 3600 |"
    );
    seconds(9).await;
    assert_eq!(
        bench.ask().await,
        "NXDOMAIN aa,ra | | example. 51 IN SOA ns.example. ns.example. 1 1 1 1 3600 |"
    );
    assert_eq!(bench.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_records_have_one_ttl_from_the_first_answer_on() {
    let chain = ["a.example. 90 CNAME b.example.", "b.example. 20 A 192.0.2.1"];
    for (lines, ttl) in [
        ("cache", 20),
        ("cache 10", 10),
        ("cache {\nsuccess 1 15\n}", 15),
        ("cache {\nsuccess 1 600 30\n}", 30),
        ("cache {\nsuccess 1 600 30\nservfail 0\n}", 30),
    ] {
        let bench =
            CacheFixture::new(lines, reply(ResponseCode::NoError, &chain, &["example. 300 NS ns.example."]));
        let all = format!(
            "| a.example. {ttl} IN CNAME b.example., b.example. {ttl} IN A 192.0.2.1 | example. {ttl} IN NS ns.example. |"
        );
        assert_eq!(bench.ask().await, format!("NOERROR ra {all}"), "{lines}");
        assert_eq!(bench.ask().await, format!("NOERROR aa,ra {all}"), "{lines}");
    }
    let bench =
        CacheFixture::new("cache", reply(ResponseCode::Refused, &[], &["example. 300 NS ns.example."]));
    for _ in 0..2 {
        assert_eq!(bench.ask().await, "REFUSED ra | | example. 5 IN NS ns.example. |");
    }
    assert_eq!(bench.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn ad_is_cached_and_shown_to_clients_with_ad_or_do() {
    let mut authentic = address(60);
    authentic.metadata.authentic_data = true;
    let bench = CacheFixture::new("cache", authentic);
    let mut with_ad = bench.context.clone();
    with_ad.request.metadata.authentic_data = true;
    assert_eq!(bench.ask().await, A_60.replace("aa,", ""));
    assert_eq!(*bench.source.asked.lock(), ["a.example. A ad udp"]);
    assert_eq!(with_ad.ask("a.example. A").await, A_60.replace("ra", "ra,ad"));
    assert_eq!(bench.ask().await, A_60);
    let mut request = bench.context.request("b.example. A");
    Server::serve(&mut request).await.unwrap();
    assert!(!request.metadata.authentic_data, "the cache restores the flag of the request");
    assert_eq!(bench.asked(), 2);
    // Queries with DO or CD have separate entries.
    let mut with_do = bench.context.clone();
    with_do.request.edns = Some(Edns::new());
    with_do.request.edns.as_mut().unwrap().set_dnssec_ok(true);
    let mut with_cd = bench.context.clone();
    with_cd.request.metadata.checking_disabled = true;
    assert_eq!(with_do.ask("a.example. A").await, A_60.replace("aa,ra", "ra,ad"));
    assert_eq!(with_cd.ask("a.example. A").await, A_60.replace("aa,ra", "ra,cd"));
    assert_eq!(bench.asked(), 2);
    assert_eq!(with_do.ask("a.example. A").await, A_60.replace("ra", "ra,ad"));
    assert_eq!(with_cd.ask("a.example. A").await, A_60.replace("ra", "ra,cd"));
    assert_eq!(bench.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn uncacheable_answers_pass_unchanged() {
    let bench = CacheFixture::new("cache example.org", address(9999));
    let passed = "NOERROR ra | a.example. 9999 IN A 192.0.2.1 | |";
    assert_eq!(bench.ask().await, passed, "another zone");
    assert!(bench.context.metrics("coredns_cache").is_empty());
    let bench = CacheFixture::new("cache", Reply { is_cacheable: false, ..address(9999) });
    for _ in 0..2 {
        assert_eq!(bench.ask().await, passed, "the reply isn't cacheable");
    }
    assert_eq!(bench.asked(), 2);
    let mut cut = address(60);
    cut.metadata.truncation = true;
    bench.say(cut);
    for _ in 0..2 {
        assert_eq!(bench.ask().await, A_60.replace("aa,ra", "tc,ra"));
    }
    assert_eq!(bench.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn cached_answer_is_truncated_for_udp_and_complete_by_tcp() {
    let records: Vec<String> = (0..200).map(|i| format!("a.example. 60 A 192.0.2.{i}")).collect();
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let bench = CacheFixture::new("cache", reply(ResponseCode::NoError, &records, &[]));
    for _ in 0..2 {
        let (given, limit) =
            (bench.context.reply("a.example. A").await.unwrap(), bench.context.request.limit());
        let (bytes, offsets) = encode(&given, &bench.context.request.query, None, limit).unwrap();
        assert!(offsets.sections[0].len() < 100 && Message::from_vec(&bytes).unwrap().metadata.truncation);
    }
    let mut by_tcp = bench.context.clone();
    by_tcp.request.protocol = Protocol::Tcp;
    let given = by_tcp.reply("a.example. A").await.unwrap();
    assert!(given.records.count(Section::Answer) == 200 && !given.metadata.truncation);
    assert_eq!(bench.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_upstream_error_is_cached_for_1_s_but_refused_is_not() {
    let bench = CacheFixture::new("cache", address(60));
    bench.no_upstream();
    assert_eq!(bench.context.reply("a.example. A").await.unwrap().ede, Some(Ede::NO_UPSTREAM));
    let again = bench.context.reply("a.example. A").await.unwrap();
    assert_eq!((&*show(&again), again.ede), ("SERVFAIL | | |", Some(Ede::NO_UPSTREAM)));
    assert_eq!(bench.target(5, true).await, "SERVFAIL | | |");
    assert_eq!(bench.target(5, false).await, "SERVFAIL | | |");
    assert_eq!(bench.asked(), 1);
    seconds(1).await;
    bench.fail(ResponseCode::Refused);
    for _ in 0..2 {
        assert_eq!(bench.ask().await, "REFUSED | | |");
    }
    assert_eq!(bench.asked(), 2);
    let bench = CacheFixture::new("cache {\nservfail 0\n}", failure());
    for outcome in [Ok(failure()), Err(PluginError::no_upstream("why"))] {
        *bench.source.outcome.lock() = outcome;
        bench.ask().await;
        bench.ask().await;
        assert_eq!(bench.asked(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_plugins_are_never_cached() {
    let hosts = TestServer::block("cache\nhosts /dev/null {\n192.0.2.1 here.example\n}").edns(1232);
    let template = TestServer::block("cache\ntemplate IN A {\nmatch ^here\n}").edns(1232);
    let servfail = TestServer::block("cache\ntemplate IN A {\nrcode SERVFAIL\n}").edns(1232);
    let no_record = TestServer::block("cache\ntemplate IN A {\nanswer \"no record\"\n}").edns(1232);
    let nothing_behind = TestServer::block("cache").edns(1232);
    for context in [&hosts, &template, &servfail, &no_record, &nothing_behind] {
        for purpose in [
            Purpose::Client,
            Purpose::Target { max_negative_age: Duration::from_secs(5), may_use_cached: false },
        ] {
            for _ in 0..2 {
                let mut request = context.request("a.example. A");
                request.purpose = purpose.clone();
                let reply = Server::serve(&mut request).await.unwrap();
                assert_eq!((&*show(&reply), reply.ede), ("SERVFAIL | | |", None), "{context:?}");
            }
        }
        assert!(context.metrics("coredns_cache_hits_total").is_empty(), "{context:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn servfail_in_place_of_an_extended_rcode_is_not_cached() {
    // BADCOOKIE needs EDNS, so a client without EDNS gets SERVFAIL; the next client has EDNS.
    let context = TestServer::block("cache\ntemplate IN A {\nrcode BADCOOKIE\n}");
    assert_eq!(context.ask("a.example. A").await, "SERVFAIL | | |");
    assert_eq!(context.edns(1232).ask("a.example. A").await, "BADCOOKIE aa | | |");
}

#[tokio::test(start_paused = true)]
async fn cached_servfail_has_no_extended_error() {
    let bench = CacheFixture::new("cache", failure());
    bench.ask().await;
    let mut request = bench.context.request("a.example. A");
    request.purpose = Purpose::Target { max_negative_age: Duration::from_secs(5), may_use_cached: false };
    let reply = Server::serve(&mut request).await.unwrap();
    assert_eq!((&*show(&reply), reply.ede), ("SERVFAIL aa,ra | | |", None));
    assert_eq!(bench.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn target_look_up_gets_no_stale_or_old_negative_answer() {
    let bench = CacheFixture::new("cache {\nserve_stale\n}", absence());
    assert!(bench.target(5, true).await.starts_with("NXDOMAIN ra"));
    seconds(4).await;
    assert!(bench.target(5, true).await.starts_with("NXDOMAIN aa"));
    assert_eq!(bench.asked(), 1);
    seconds(1).await;
    bench.say(address(60));
    assert!(bench.ask().await.starts_with("NXDOMAIN"), "a client gets the old denial");
    assert_eq!(bench.target(5, true).await, A_60.replace("aa,", ""));
    seconds(10).await;
    let mut request = bench.context.request("a.example. A");
    request.purpose = Purpose::Target { max_negative_age: Duration::from_secs(5), may_use_cached: true };
    let old = Server::serve(&mut request).await.unwrap();
    assert_eq!(old.age, Duration::from_secs(10));
    assert_eq!(bench.asked(), 1);
    assert_eq!(bench.target(5, false).await, A_60.replace("aa,", ""), "fresh, and cached for the next query");
    assert_eq!(bench.ask().await, A_60);
    seconds(60).await;
    bench.no_upstream();
    assert_eq!(bench.target(5, true).await, "SERVFAIL | | |");
    assert_eq!(bench.ask().await, A_60.replace("60", "0"));
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_query_before_invalidation_is_not_stored() {
    let bench = CacheFixture::new("cache", address(60));
    bench.ask().await;
    bench.forget("a.example.");
    bench.ask().await;
    assert_eq!(bench.asked(), 2);
    bench.context.server.invalidate(None);
    bench.take(Duration::from_secs(1));
    for (invalidated, again) in [(Some("a.example."), 2), (Some("b.example."), 1), (None, 2)] {
        // Consume the notification of the previous query.
        let _ = bench.source.begun.notified().now_or_never();
        let context = bench.context.clone();
        let asking = tokio::spawn(async move { context.ask("a.example. A").await });
        bench.source.begun.notified().await;
        match invalidated {
            Some(name) => bench.forget(name),
            None => bench.context.server.invalidate(None),
        }
        assert_eq!(asking.await.unwrap(), A_60.replace("aa,", ""), "the client gets the answer");
        bench.ask().await;
        assert_eq!(bench.asked(), again, "{invalidated:?}");
        bench.context.server.invalidate(None);
    }
}

#[tokio::test(start_paused = true)]
async fn disable_turns_a_part_off_for_zones() {
    for (line, success, denial) in [
        ("disable success", 2, 1),
        ("disable denial", 1, 2),
        ("disable denial EXAMPLE org", 1, 2),
        ("disable denial org", 1, 1),
    ] {
        for (answer, expected) in [(address(60), success), (absence(), denial), (failure(), denial)] {
            let bench = CacheFixture::new(&format!("cache {{\n{line}\n}}"), answer);
            bench.ask().await;
            bench.ask().await;
            assert_eq!(bench.asked(), expected, "{line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keepttl_serves_the_original_ttl_until_expiry() {
    let bench = CacheFixture::new("cache {\nkeepttl\n}", address(60));
    bench.ask().await;
    seconds(59).await;
    assert_eq!(bench.ask().await, A_60);
    seconds(1).await;
    bench.ask().await;
    assert_eq!(bench.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_the_names_and_labels_of_coredns() {
    let bench = CacheFixture::new("cache example org", address(60));
    bench.ask().await;
    bench.ask().await;
    seconds(60).await;
    bench.say(absence());
    bench.ask().await;
    bench.ask().await;
    let labels = r#"server="dns://:53""#;
    let zones = r#"view="",zones="example.,org.""#;
    let mut expected = Vec::new();
    for (metric, part, value) in [
        ("entries", Some("denial"), 1),
        ("entries", Some("success"), 0),
        ("hits_total", Some("denial"), 1),
        ("hits_total", Some("success"), 1),
        ("misses_total", None, 2),
        ("requests_total", None, 4),
    ] {
        let part = part.map(|part| format!(r#"type="{part}","#)).unwrap_or_default();
        expected.push(format!("coredns_cache_{metric}{{{labels},{part}{zones}}} {value}"));
    }
    assert_eq!(bench.context.metrics("coredns_cache"), expected);
    let bench = CacheFixture::new("cache {\nsuccess 1\n}", reply(ResponseCode::NoError, &[], &[]));
    for i in 0..3000 {
        bench.context.ask(&format!("{i}.example. A")).await;
    }
    let value = |metric| -> u64 {
        let line = bench.context.metrics(metric).into_iter().find(|line| line.contains("success")).unwrap();
        line.split(' ').next_back().unwrap().parse().unwrap()
    };
    assert_eq!(value("cache_entries") + value("cache_evictions"), 3000);
    assert!(value("cache_entries") <= 1024);
}
