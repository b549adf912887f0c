//! Tests of targets' look-ups through the blocks of a listener.

mod policy;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, NULL, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::time::{Duration, Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::dns::chain::request::Request;
use crate::dns::message::ede::{Ede, extended_error};
use crate::dns::message::query::wire_name;
use crate::dns::plugins::lb_linker::LbLinker;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address, error};
use crate::dns::plugins::tests::support::{TestServer, link, record, show};
use crate::model::link::ObservedService;
use crate::model::service_key::ServiceKey;
use crate::store::Input;

const LINKS: &str = "lb.internal {\nlb_linker\n}\n";

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Returns a Service `web` in `default` that has a load balancer with the hostname `t.example`.
fn web() -> ObservedService {
    ObservedService { resource_version: Some(42), ..link("web", "t.example.") }
}

/// Returns a context for each listener of a Corefile, with one link in the store.
fn listeners(text: &str) -> Vec<TestServer> {
    let (context, configuration) = TestServer::configured(text);
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    store.replace(None, vec![web()], vec![], &Default::default());
    store.set_known(Input::Services);
    let metrics = context.shared.metrics.group().unwrap();
    let of_listener = |listener| {
        let server = Arc::new(configuration.server(listener, listener.at, Arc::clone(&metrics)));
        let request = Request { server: Arc::clone(&server), ..context.request.clone() };
        let mut context = context.clone();
        (context.server, context.request) = (server, request);
        context
    };
    configuration.listeners.iter().map(of_listener).collect()
}

fn context(text: &str) -> TestServer {
    listeners(text).remove(0)
}

const ALIAS: &str = "web.default.lb.internal. 5 IN CNAME t.example.";

#[tokio::test]
async fn zone_that_transfer_names_has_its_own_serial() {
    let server = context("lb.internal lab.internal {\nlb_linker\ntransfer lb.internal {\nto *\n}\n}\n");
    let store = &server.shared.store;
    store.last_change().store(1_700_000_000, Ordering::Relaxed);
    let zone = server.server.transferred_zone(&name("LB.internal."), None).unwrap();
    assert_eq!((zone.serial(), zone.soa().unwrap().serial()), (Some(1_700_000_000), Some(1_700_000_000)));
    let mut now = 1_700_000_000;
    for question in ["lb.internal. SOA", "none.lb.internal. A"] {
        let reply = server.reply(question).await.unwrap();
        assert!(show(&reply).contains(&format!(" hostmaster.lb.internal. {now} ")), "{}", show(&reply));
        // An answer that is kept shows the serial of its time.
        let kept = reply.validity.unwrap().serial.unwrap().current;
        now += 5;
        store.last_change().store(now, Ordering::Relaxed);
        assert_eq!(zone.serial().map(u64::from), Some(now));
        assert_eq!(kept.load(Ordering::Relaxed), now);
    }
    assert!(server.server.transferred_zone(&name("lab.internal."), None).is_none());
    assert!(server.ask("lab.internal. SOA").await.contains(" hostmaster.lab.internal. 42 "));
    assert_eq!(store.serial(), 42);
}

#[tokio::test]
async fn listeners_with_different_blocks_share_no_target_records() {
    let text = "lb.internal:53 lb.internal:54 {\nlb_linker\n}\n\
                .:53 {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n}\n\
                .:54 {\ntemplate IN A {\nrcode SERVFAIL\n}\n}\n";
    let listeners = listeners(text);
    let inside = listeners[0].ask("web.default.lb.internal. A").await;
    assert!(inside.contains("192.0.2.1"), "{inside}");
    let outside = listeners[1].ask("web.default.lb.internal. A").await;
    assert_eq!(outside, format!("SERVFAIL aa | {ALIAS} | |"));
}

#[tokio::test]
async fn client_denied_by_acl_gets_the_alias_alone() {
    let text = format!(
        "{LINKS}. {{\nacl example {{\nblock net 192.0.2.7\n}}\n\
         template IN A {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"\n}}\n}}\n"
    );
    let allowed = context(&text);
    let answer = allowed.ask("web.default.lb.internal. A").await;
    assert!(answer.contains("192.0.2.1"), "{answer}");
    let blocked = allowed.clone().from("192.0.2.7");
    assert_eq!(blocked.ask("web.default.lb.internal. A").await, format!("NOERROR aa | {ALIAS} | |"));
    assert_eq!(allowed.metrics("targets_failing"), ["lb_linker_dns_targets_failing 0"]);
}

#[tokio::test]
async fn upstream_records_about_our_zones_are_dropped_from_nxdomain() {
    let upstream = FakeUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::NXDomain);
        let record = |owner: &str, code, data: &[u8]| {
            Record::from_rdata(name(owner), 60, RData::Unknown { code, rdata: NULL::with(data.to_vec()) })
        };
        let soa = SOA::new(name("ns."), name("h."), 1, 2, 3, 4, 60);
        answer.add_authority(Record::from_rdata(Name::root(), 60, RData::SOA(soa)));
        for (owner, code) in [
            ("example.", RecordType::NSEC),
            ("web.default.lb.internal.", RecordType::NSEC),
            ("lb.internal.", RecordType::RRSIG),
            ("x.lb.internal.", RecordType::NSEC3),
        ] {
            answer.add_authority(record(owner, code, b"\x00\x00\x00"));
        }
        Some(answer)
    })
    .await;
    let context = context(&format!("{LINKS}. {{\nforward . {}\n}}\n", upstream.address));
    let reply = context.reply("web.default.lb.internal. A").await.unwrap();
    let owners = reply.records.authorities.iter().map(|record| record.name.to_string());
    assert_eq!(owners.collect::<Vec<_>>(), [".", "example."]);
}

#[tokio::test]
async fn dname_above_our_zones_is_dropped_from_a_chain() {
    let upstream = FakeUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::NoError);
        for text in [
            "internal. 60 DNAME example.",
            "t.internal. 60 CNAME t.example.",
            "example. 60 DNAME example.test.",
            "t.example. 60 CNAME t.example.test.",
            "t.example.test. 60 A 192.0.2.1",
        ] {
            answer.add_answer(record(text));
        }
        Some(answer)
    })
    .await;
    let context = context(&format!("{LINKS}. {{\nforward . {}\n}}\n", upstream.address));
    context.shared.store.apply(link("t", "t.internal."));
    let reply = context.reply("t.default.lb.internal. A").await.unwrap();
    let records = reply.records.answers.iter();
    let shown: Vec<String> =
        records.map(|record| format!("{} {}", record.name, record.record_type())).collect();
    let expected = [
        "t.default.lb.internal. CNAME",
        "t.internal. CNAME",
        "example. DNAME",
        "t.example. CNAME",
        "t.example.test. A",
    ];
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn extended_errors_of_an_upstream_reach_the_client_of_a_link() {
    let filtered = extended_error(17, "blocked by the upstream");
    let option = filtered.clone();
    let upstream = FakeUpstream::start(move |asked, _| {
        let mut answer = address(asked, 7);
        answer.edns.as_mut().unwrap().options_mut().insert(option.clone());
        Some(answer)
    })
    .await;
    for block in ["", "cache\n"] {
        let text = format!("{LINKS}. {{\n{block}forward . {}\n}}\n", upstream.address);
        let context = context(&text).edns(1232);
        for round in ["uncached", "repeated"] {
            let reply = context.reply("web.default.lb.internal. A").await.unwrap();
            assert_eq!(reply.options, std::slice::from_ref(&filtered), "{block}{round}");
        }
        let reply = context.reply("www.example. A").await.unwrap();
        assert_eq!(reply.options, std::slice::from_ref(&filtered), "{block}");
        let reply = context.reply("www.example. A").await.unwrap();
        let plugin = if block.is_empty() { "forward" } else { "cache" };
        assert_eq!((reply.plugin, &reply.options[..]), (plugin, std::slice::from_ref(&filtered)));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_look_up_counts_against_the_client_quota() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let context =
        context(&format!("{LINKS}. {{\nforward . {address} {{\nmax_concurrent 2\nread_timeout 1m\n}}\n}}\n"));
    context.shared.store.replace(None, vec![web(), link("api", "u.example.")], vec![], &Default::default());
    let ask = async |from: &str, question: &str| {
        let reply = context.clone().from(from).reply(question).await.unwrap();
        reply.ede.map(|ede| ede.text)
    };
    let begun = Instant::now();
    assert_eq!(ask("10.0.0.1", "web.default.lb.internal. A").await, Some(Ede::NO_UPSTREAM.text));
    assert_eq!(begun.elapsed().as_millis(), 1800);
    // The look-up is still in flight.
    assert_eq!(ask("10.0.0.1", "api.default.lb.internal. A").await, Some(Ede::BUSY.text));
    // Queries for names other than targets have a separate quota, and so has another client.
    let other =
        timeout(Duration::from_secs(1), context.clone().from("10.0.0.1").reply("www.example. A")).await;
    assert!(other.is_err(), "{other:?}");
    assert_eq!(ask("10.0.0.2", "api.default.lb.internal. A").await, Some(Ede::NO_UPSTREAM.text));
}

/// Looks up the target of the Service `web` as after a change of its link.
async fn prefetch(context: &TestServer) {
    let links = LbLinker::all_of(&context.server).remove(0);
    let (link, query) = (ServiceKey::new("default", "web"), Query::query(name("t.example."), RecordType::A));
    links.prefetch(&context.server, &link, query).await;
}

#[tokio::test]
async fn prefetch_without_a_responsible_block_counts_no_failure() {
    let context = context(LINKS);
    prefetch(&context).await;
    assert_eq!(context.metrics("targets_failing"), ["lb_linker_dns_targets_failing 0"]);
}

#[tokio::test]
async fn prefetch_fills_the_cache_regardless_of_acl() {
    let context = context(&format!(
        "{LINKS}. {{\nacl {{\nallow net 10.0.0.0/8\nblock\n}}\ncache\n\
         template IN A {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"\n}}\n}}\n"
    ));
    let hits = || context.metrics("coredns_cache_hits_total{");
    prefetch(&context).await;
    assert!(hits().iter().all(|line| line.ends_with(" 0")), "{:?}", hits());
    // The acl applies to the client's query.
    let denied = context.clone().from("192.0.2.7").ask("web.default.lb.internal. A").await;
    assert_eq!(denied, format!("NOERROR aa | {ALIAS} | |"));
    assert!(hits().iter().all(|line| line.ends_with(" 0")), "{:?}", hits());
    let answer = context.ask("web.default.lb.internal. A").await;
    assert!(answer.contains("192.0.2.1"), "{answer}");
    assert!(hits().iter().any(|line| line.ends_with(" 1")), "{:?}", hits());
}

#[tokio::test]
async fn answer_that_falls_through_is_not_cached() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = upstream.local_addr().unwrap();
    let _denying = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = upstream.recv_from(&mut buffer).await {
            let mut message = Message::from_vec(&buffer[..length]).unwrap();
            message.metadata.message_type = MessageType::Response;
            message.metadata.response_code = ResponseCode::NXDomain;
            let soa = SOA::new(name("ns.lb.internal."), name("h.lb.internal."), 1, 2, 3, 4, 900);
            message.add_authority(Record::from_rdata(name("lb.internal."), 900, RData::SOA(soa)));
            upstream.send_to(&message.to_vec().unwrap(), client).await.unwrap();
        }
    }));
    let context =
        context(&format!("lb.internal {{\ncache\nlb_linker {{\nfallthrough\n}}\nforward . {address}\n}}\n"));
    let answer = context.ask("new.default.lb.internal. A").await;
    assert_eq!(answer, "NXDOMAIN | | lb.internal. 5 IN SOA ns.lb.internal. h.lb.internal. 1 2 3 4 900 |");
    let new = ObservedService { key: ServiceKey::new("default", "new"), uid: "v".into(), ..web() };
    context.shared.store.apply(new);
    let answer = context.ask("new.default.lb.internal. A").await;
    assert!(answer.contains("CNAME t.example."), "{answer}");
}

#[tokio::test]
async fn alias_only_denial_and_its_rrsig_have_capped_ttls() {
    let context = context(LINKS);
    let records = |covered: RecordType| {
        let alias = RData::CNAME(CNAME(name("denied.example.")));
        let rdata = NULL::with([&u16::from(covered).to_be_bytes()[..], &[0; 16]].concat());
        let signature = RData::Unknown { code: RecordType::RRSIG, rdata };
        [alias, signature].map(|data| Record::from_rdata(name("t.example."), 900, data)).to_vec()
    };
    for (covered, ttl) in [(RecordType::CNAME, 5), (RecordType::DNAME, 5), (RecordType::A, 900)] {
        let mut reply = context.request.reply("");
        reply.records.answers = records(covered);
        super::ChaseState { alias_only_is_nodata: true, ..super::ChaseState::new(5, None) }
            .cap_alias_ttls(&mut reply);
        let ttls: Vec<u32> = reply.records.answers.iter().map(|record| record.ttl).collect();
        assert_eq!(ttls, [ttl; 2], "{covered}");
    }
}

#[tokio::test]
async fn target_with_a_fresh_nodata_answer_is_looked_up_once() {
    let context = context(
        "lb.internal {\nlb_linker {\nttl 0\n}\n}\n. {\nprometheus\n\
         template IN AAAA {\nauthority \"example. 60 IN SOA ns.example. h.example. 1 2 3 4 60\"\n}\n}\n",
    );
    context.ask("web.default.lb.internal. AAAA").await;
    let asked = context.metrics("coredns_dns_requests_total");
    assert!(asked.len() == 1 && asked[0].ends_with(" 1"), "{asked:?}");
}

#[tokio::test]
async fn failing_target_is_not_counted_after_its_plugin_is_dropped() {
    let text = format!("{LINKS}. {{\ntemplate IN A {{\nrcode SERVFAIL\n}}\n}}\n");
    let context = context(&text);
    let answer = show(&context.reply("web.default.lb.internal. A").await.unwrap());
    assert!(answer.starts_with("SERVFAIL"), "{answer}");
    let metrics = Arc::clone(&context.shared.metrics);
    let failing = || {
        let page = metrics.render().unwrap();
        page.lines().find(|line| line.starts_with("lb_linker_dns_targets_failing")).unwrap().to_owned()
    };
    assert_eq!(failing(), "lb_linker_dns_targets_failing 1");
    drop(context);
    assert_eq!(failing(), "lb_linker_dns_targets_failing 0");
}

#[tokio::test]
async fn target_stays_failing_while_another_link_has_it() {
    let context = context(&format!("{LINKS}. {{\ntemplate IN A {{\nrcode SERVFAIL\n}}\n}}\n"));
    let store = &context.shared.store;
    store.apply(link("api", "t.example."));
    context.reply("web.default.lb.internal. A").await.unwrap();
    let invalidated = || {
        context.server.invalidate(Some(&wire_name(&name("t.example."))));
        context.metrics("targets_failing").remove(0)
    };
    for (service, expected) in [("api", 1), ("web", 0)] {
        store
            .apply(ObservedService { resource_version: Some(43), ..link(service, "other.example.") })
            .unwrap();
        assert_eq!(invalidated(), format!("lb_linker_dns_targets_failing {expected}"), "without {service}");
    }
}

#[tokio::test]
async fn target_that_does_not_exist_counts_as_failing() {
    for (template, number) in [
        ("rcode NXDOMAIN", 1),
        // The upstream doesn't know the names in our zones.
        ("rcode NXDOMAIN\nanswer \"{{ .Name }} 60 IN CNAME web2.default.lb.internal.\"", 0),
    ] {
        let context = context(&format!("{LINKS}. {{\ntemplate IN A {{\n{template}\n}}\n}}\n"));
        context.reply("web.default.lb.internal. A").await.unwrap();
        let expected = format!("lb_linker_dns_targets_failing {number}");
        assert_eq!(context.metrics("targets_failing"), [expected], "{template}");
    }
}

#[tokio::test]
async fn ds_query_leaves_the_block_of_the_zone_only_at_its_origin() {
    let context = context(&format!("{LINKS}. {{\nwhoami\n}}\n"));
    for (question, plugin) in [
        ("web.default.lb.internal. DS", "lb_linker"),
        ("none.lb.internal. DS", "lb_linker"),
        ("lb.internal. DS", "whoami"),
        ("lb.internal. SOA", "lb_linker"),
    ] {
        assert_eq!(context.reply(question).await.unwrap().plugin, plugin, "{question}");
    }
}

#[tokio::test]
async fn listeners_of_the_same_blocks_are_one_group() {
    let blocks =
        "lb.internal {\nbind 127.0.0.1 127.0.0.2\nlb_linker\n}\n. {\nbind 127.0.0.1 127.0.0.2\nwhoami\n}\n";
    let listeners = listeners(&format!("{blocks}example:54 {{\nwhoami\n}}\n"));
    let groups: Vec<&str> = listeners.iter().map(|context| &*context.server.group).collect();
    assert_eq!(groups, ["dns://127.0.0.1:53", "dns://127.0.0.1:53", "dns://:54"]);
}
