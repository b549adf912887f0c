use std::sync::Arc;

use futures::future::join3;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LookupOrigin, UpstreamGroup};
use crate::dns::chain::query_limiter::QueryLimiter;
use crate::dns::chain::request::{INTERNAL_ADDRESS, Purpose};
use crate::dns::chain::server::Server;
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::validity::Section;
use crate::dns::net::Protocol;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address, error};
use crate::dns::plugins::tests::support::TestServer;
use crate::dns::upstream::config::ForwardOptions;
use crate::dns::upstream::endpoint::{Transport, UpstreamEndpoint};
use crate::dns::upstream::policy::SelectionPolicy;
use crate::held_port::HeldPort;

mod broken;
mod https;
mod tls;

fn plain(name: &str) -> QueryKey {
    UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A).key()
}

fn client(of: &FakeUpstream, options: ForwardOptions) -> UpstreamGroup {
    UpstreamGroup::new(vec![UpstreamEndpoint { address: of.address, transport: Transport::Udp }], options)
}

#[tokio::test]
async fn answers_keep_their_flags_and_the_clients_spelling() {
    let upstream = FakeUpstream::start(|asked, _| {
        assert!(asked.queries[0].name().to_ascii().starts_with("www."), "in lower case");
        let mut answer = address(asked, 1);
        answer.metadata.authoritative = true;
        answer.metadata.authentic_data = true;
        Some(answer)
    })
    .await;
    let mut context = TestServer::block(&format!("forward . {}", upstream.address));
    assert_eq!(context.ask("WwW.example. A").await, "NOERROR aa,ra | WwW.example. 60 IN A 192.0.2.1 | |");
    assert_eq!(
        context.ask("www.example. CH TXT").await,
        "NOERROR aa,ra | www.example. 60 CH A 192.0.2.1 | |",
        "other classes are passed on"
    );
    assert_eq!(context.ask("www.example. AXFR").await, "REFUSED | | |");
    context.request.metadata.authentic_data = true;
    context.request.metadata.checking_disabled = true;
    let answer = context.ask("www.example. A").await;
    assert!(answer.starts_with("NOERROR aa,ra,ad,cd |"), "AD is for queries with AD: {answer}");
    assert_eq!(context.reply("www.example. A").await.unwrap().plugin, "forward");
}

#[tokio::test]
async fn upper_rcode_bits_and_ede_need_edns() {
    let upstream = FakeUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::BADCOOKIE);
        answer.edns.as_mut().unwrap().options_mut().insert(crate::dns::message::ede::Ede::STALE.option());
        Some(answer)
    })
    .await;
    let context = TestServer::block(&format!("forward . {}", upstream.address));
    let reply = context.reply("a.example. A").await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    let reply = context.edns(1232).reply("a.example. A").await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::BADCOOKIE);
    assert_eq!(reply.options, [crate::dns::message::ede::Ede::STALE.option()]);
}

#[tokio::test]
async fn stream_answer_has_to_match_the_query() {
    for rcode in [ResponseCode::NXDomain, ResponseCode::NoError] {
        let without_question = FakeUpstream::start(move |asked, _| {
            let mut answer =
                if rcode == ResponseCode::NoError { address(asked, 66) } else { error(asked, rcode) };
            answer.queries.clear();
            Some(answer)
        })
        .await;
        let good = FakeUpstream::good(1).await;
        let context = TestServer::block(&format!(
            "forward . {} {} {{\nforce_tcp\npolicy sequential\n}}",
            without_question.address, good.address
        ));
        assert_eq!(context.ask("a.example. A").await, "NOERROR ra | a.example. 60 IN A 192.0.2.1 | |");
    }
}

#[tokio::test]
async fn names_in_other_zones_go_to_the_next_plugin() {
    let (one, two) = (FakeUpstream::good(1).await, FakeUpstream::good(2).await);
    let context = TestServer::block(&format!(
        "forward lab.example {} {{\nexcept a.lab.example lab.example\nexcept b.lab.example\n}}\n\
         forward example {}\nwhoami",
        one.address, two.address
    ));
    for (name, last) in [
        ("lab.example.", Some(1)),
        ("c.lab.example.", Some(2)),
        ("x.a.lab.example.", Some(2)),
        ("EXAMPLE.", Some(2)),
        ("test.", None),
    ] {
        let answers = context.reply(&format!("{name} A")).await.unwrap().records.answers.clone();
        let given = answers.first().map(|record| record.data.clone());
        assert_eq!(given, last.map(|last| RData::A(A::new(192, 0, 2, last))), "{name}");
    }
}

#[tokio::test]
async fn next_forward_is_queried_after_nxdomain_or_nodata() {
    let (gone, empty, good) = (
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::erring(ResponseCode::NoError).await,
        FakeUpstream::good(3).await,
    );
    let [a, b, c] = [&gone, &empty, &good].map(|fake| fake.address);
    let context = TestServer::block(&format!(
        "forward . {a} {{\nnext SERVFAIL nxdomain\n}}\nforward . {b} {{\nnext_on_nodata\n}}\nforward . {c}"
    ));
    assert_eq!(context.ask("x. A").await, "NOERROR ra | x. 60 IN A 192.0.2.3 | |");
    let context = TestServer::block(&format!("forward . {a} {{\nnext NXDOMAIN\n}}\nwhoami"));
    assert_eq!(context.ask("x. A").await, "NXDOMAIN ra | | |", "next needs another forward line");
    let context = TestServer::block(&format!("forward . {b}\nforward . {c}"));
    assert_eq!(
        context.ask("x. A").await,
        "NOERROR ra | | |",
        "without next_on_nodata, the first forward line answers"
    );
}

#[tokio::test]
async fn forward_lines_share_the_limit_of_queries_to_an_upstream() {
    let gone = FakeUpstream::erring(ResponseCode::NXDomain).await;
    let line = format!("forward . {} {{\nnext NXDOMAIN\n}}\n", gone.address);
    let context = TestServer::block(&line.repeat(5));
    let mut for_target = context.request("x. A");
    for_target.purpose = Purpose::Target { max_negative_age: Duration::ZERO, may_use_cached: false };
    let mut asking = Box::pin(join3(context.ask("x. A"), context.ask("x. A"), async {
        Server::serve(&mut for_target).await.map(|reply| reply.metadata.response_code)
    }));
    assert!(timeout(Duration::from_millis(300), &mut asking).await.is_err());
    assert_eq!(gone.count(), 8, "4 for the clients, and 4 for the target");
    let gone = "NXDOMAIN ra | | |".to_owned();
    assert_eq!(asking.await, (gone.clone(), gone, Some(ResponseCode::NXDomain)));
}

#[tokio::test]
async fn error_is_an_answer_unless_failover_names_it() {
    let (failing, refusing, good) = (
        FakeUpstream::erring(ResponseCode::ServFail).await,
        FakeUpstream::erring(ResponseCode::Refused).await,
        FakeUpstream::good(1).await,
    );
    let [a, b, c] = [&failing, &refusing, &good].map(|fake| fake.address);
    let ask = async |to: &str, codes: &str| {
        let context = TestServer::block(&format!("forward . {to} {{\npolicy sequential\n{codes}\n}}"));
        context.ask("x. A").await
    };
    assert_eq!(ask(&format!("{a} {c}"), "").await, "SERVFAIL ra | | |");
    let both = "failover SERVFAIL\nfailover REFUSED";
    assert_eq!(ask(&format!("{a} {b} {c}"), both).await, "NOERROR ra | x. 60 IN A 192.0.2.1 | |");
    assert_eq!(ask(&format!("{a} {b}"), both).await, "REFUSED ra | | |", "the last answer");
    assert_eq!(ask(&format!("{a} {b} {c}"), "failover SERVFAIL").await, "REFUSED ra | | |");
}

#[tokio::test]
async fn target_gets_the_best_answer_of_the_upstreams() {
    let (failing, good) = (FakeUpstream::erring(ResponseCode::ServFail).await, FakeUpstream::good(1).await);
    let endpoints = [&failing, &good]
        .map(|fake| UpstreamEndpoint { address: fake.address, transport: Transport::Udp })
        .to_vec();
    let options = ForwardOptions { policy: SelectionPolicy::Sequential, ..ForwardOptions::default() };
    let answer = UpstreamGroup::new(endpoints, options)
        .ask(&plain("x."), LookupOrigin::Target, INTERNAL_ADDRESS, &QueryLimiter::default())
        .await
        .unwrap();
    assert_eq!(answer.count(Section::Answer), 1);
}

#[tokio::test]
async fn transport_is_the_clients_unless_configured() {
    for (options, protocol, by_tcp) in [
        ("", Protocol::Udp, false),
        ("", Protocol::Tcp, true),
        ("", Protocol::Tls, true),
        ("prefer_udp", Protocol::Tcp, false),
        ("force_tcp", Protocol::Udp, true),
        ("force_tcp\nprefer_udp", Protocol::Udp, true),
    ] {
        let upstream = FakeUpstream::good(1).await;
        let mut context = TestServer::block(&format!("forward . {} {{\n{options}\n}}", upstream.address));
        context.request.protocol = protocol;
        assert!(context.ask("x. A").await.starts_with("NOERROR"));
        assert_eq!(upstream.transports(), [by_tcp], "{options} {protocol}");
    }
}

#[tokio::test]
async fn truncated_answer_is_requested_again_by_tcp() {
    let upstream = FakeUpstream::start(|asked, by_tcp| {
        let mut answer = if by_tcp { address(asked, 1) } else { error(asked, ResponseCode::NoError) };
        answer.metadata.truncation = !by_tcp;
        Some(answer)
    })
    .await;
    let context = TestServer::block(&format!("forward . {}", upstream.address));
    assert_eq!(context.ask("x. A").await, "NOERROR ra | x. 60 IN A 192.0.2.1 | |");
    assert_eq!(upstream.transports(), [false, true]);
}

/// Returns an upstream whose answers by UDP are truncated and empty, and that is silent by TCP.
async fn truncating() -> FakeUpstream {
    FakeUpstream::start(|asked, by_tcp| {
        let mut cut = error(asked, ResponseCode::NoError);
        cut.metadata.truncation = true;
        (!by_tcp).then_some(cut)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn truncated_answer_goes_to_udp_clients_without_tcp_upstream() {
    let (upstream, good) = (truncating().await, FakeUpstream::good(1).await);
    for (options, protocol, expected, ede) in [
        ("", Protocol::Udp, "NOERROR tc,ra | | |", None),
        ("", Protocol::Tcp, "SERVFAIL | | |", Some(22)),
        ("prefer_udp", Protocol::Tcp, "SERVFAIL | | |", Some(23)),
        ("prefer_udp", Protocol::Tls, "SERVFAIL | | |", Some(23)),
    ] {
        let mut context = TestServer::block(&format!(
            "cache\nforward . {} {{\nmax_fails 0\n{options}\n}}",
            upstream.address
        ));
        context.request.protocol = protocol;
        for _ in 0..2 {
            let reply = context.reply("x. A").await.unwrap();
            assert_eq!(crate::dns::plugins::tests::support::show(&reply), expected, "{options} {protocol}");
            assert_eq!(reply.ede.map(|ede| ede.code), ede, "{options} {protocol}");
        }
        let entries = context.metrics("coredns_cache_entries");
        assert!(entries.iter().all(|line| !line.contains("success") || line.ends_with(" 0")), "{entries:?}");
    }
    // The failure by TCP, which is cached for a second, isn't for clients that use UDP.
    let mut context =
        TestServer::block(&format!("cache\nforward . {} {{\nmax_fails 0\n}}", upstream.address));
    context.request.protocol = Protocol::Tcp;
    assert_eq!(context.ask("x. A").await, "SERVFAIL | | |");
    let asked = upstream.count();
    assert_eq!(context.ask("x. A").await, "SERVFAIL | | |");
    assert_eq!(upstream.count(), asked, "the failure is cached");
    context.request.protocol = Protocol::Udp;
    assert_eq!(context.ask("x. A").await, "NOERROR tc,ra | | |");
    let (cut, whole) = (upstream.address, good.address);
    for options in ["policy sequential", "policy sequential\nnext_on_nodata"] {
        let context = TestServer::block(&format!("forward . {cut} {whole} {{\n{options}\n}}\nwhoami"));
        assert_eq!(context.ask("x. A").await, "NOERROR ra | x. 60 IN A 192.0.2.1 | |", "the next upstream");
    }
    let context = TestServer::block(&format!("forward . {cut} {{\nnext_on_nodata\n}}\nforward . {whole}"));
    assert_eq!(context.ask("x. A").await, "NOERROR tc,ra | | |", "it isn't NODATA");
}

#[tokio::test]
async fn queries_above_max_concurrent_are_refused_and_counted() {
    let upstream = FakeUpstream::silent().await;
    let context = Arc::new(TestServer::block(&format!(
        "forward . {} {{\nmax_concurrent 1\nread_timeout 1m\n}}",
        upstream.address
    )));
    let asker = Arc::clone(&context);
    let mut asking = JoinSet::new();
    asking.spawn(async move { asker.ask("one. A").await });
    while upstream.count() == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let refused = context.reply("two. A").await.unwrap();
    assert_eq!(refused.metadata.response_code, ResponseCode::Refused);
    assert_eq!(refused.ede.unwrap().text, "too many queries are under way");
    assert_eq!(context.metrics("rejects"), ["coredns_forward_max_concurrent_rejects_total 1"]);
}

#[tokio::test]
async fn error_names_the_silent_upstream_as_in_coredns() {
    let silent = FakeUpstream::silent().await;
    let options = ForwardOptions {
        read_timeout: Duration::from_millis(100),
        max_attempts: Some(2),
        ..ForwardOptions::default()
    };
    for (origin, network) in [(LookupOrigin::Forward, "udp"), (LookupOrigin::ForwardByTcp, "tcp")] {
        let why = client(&silent, options.clone())
            .ask(&plain("x."), origin, INTERNAL_ADDRESS, &QueryLimiter::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(why.starts_with(&format!("read {network} 127.0.0.1:")), "{why}");
        assert!(why.ends_with(&format!("->{}: i/o timeout", silent.address)), "{why}");
    }
    let held = HeldPort::take().unwrap();
    let dead = held.local();
    let endpoint = UpstreamEndpoint { address: dead, transport: Transport::Tcp };
    let why = UpstreamGroup::new(vec![endpoint], options)
        .ask(&plain("x."), LookupOrigin::Forward, INTERNAL_ADDRESS, &QueryLimiter::default())
        .await;
    assert_eq!(why.unwrap_err().to_string(), format!("dial tcp {dead}: connect: connection refused"));
    let context = TestServer::block(&format!("forward . {dead}"));
    let reply = context.reply("x. A").await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(reply.ede.unwrap().code, 22);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_limited_to_two_per_upstream_by_default() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let attempts = async |option: &str| {
        let options = format!("read_timeout 50ms\nmax_fails 0\n{option}");
        let context =
            TestServer::block(&format!("forward . {} {{\n{options}\n}}", silent.local_addr().unwrap()));
        assert!(context.ask("x. A").await.starts_with("SERVFAIL"));
        // From new sockets and from open ones.
        let sockets = ["cache_misses", "cache_hits"].map(|name| context.metrics(name).remove(0));
        sockets.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum::<u32>()
    };
    assert_eq!(attempts("max_connect_attempts 1").await, 1);
    assert_eq!(attempts("").await, 2);
    assert_eq!(attempts("max_connect_attempts 3").await, 3);
    let without_limit = attempts("max_connect_attempts 0").await;
    assert!((16..=20).contains(&without_limit), "for 5 s, at most 4 in a second: {without_limit}");
}

#[tokio::test(start_paused = true)]
async fn health_check_query_is_answered_within_half_a_second() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let context = TestServer::block(&format!("forward . {}", silent.local_addr().unwrap()));
    let begun = Instant::now();
    let reply = context.reply(". NS").await.unwrap();
    assert_eq!((reply.metadata.response_code, reply.ede.unwrap().code), (ResponseCode::ServFail, 22));
    assert!(begun.elapsed() < Duration::from_millis(510), "the look-up itself takes 4 s");
}

#[tokio::test]
async fn upstream_is_down_after_failed_checks() {
    let silent = FakeUpstream::silent().await;
    let options = "max_fails 1\nread_timeout 10ms\nhealth_check 10ms no_rec domain example.org\n\
                   failfast_all_unhealthy_upstreams";
    let context = TestServer::block(&format!("forward . {} {{\n{options}\n}}", silent.address));
    assert!(context.ask("x. A").await.starts_with("SERVFAIL"));
    let broken = "coredns_forward_healthcheck_broken_total 1";
    while context.metrics("broken") != [broken] {
        assert!(context.ask("x. A").await.starts_with("SERVFAIL"));
        sleep(Duration::from_millis(20)).await;
    }
    let failures = context.metrics("healthcheck_failures_total").remove(0);
    let labels = format!("{{proxy_name=\"forward\",to=\"{}\"}}", silent.address);
    assert!(
        failures.starts_with(&format!("coredns_proxy_healthcheck_failures_total{labels} ")),
        "{failures}"
    );
    let asked = silent.asked.lock().unwrap();
    let check = asked.iter().find(|(asked, _)| asked.queries[0].query_type() == RecordType::NS).unwrap();
    assert_eq!(check.0.queries[0].name().to_ascii(), "example.org.");
    assert!(!check.0.metadata.recursion_desired);
}

#[tokio::test]
async fn answers_and_connections_are_counted() {
    let upstream = FakeUpstream::erring(ResponseCode::YXDomain).await;
    let mut context = TestServer::block(&format!("forward . {}", upstream.address));
    context.ask("a. A").await;
    context.request.protocol = Protocol::Tcp;
    context.ask("b. A").await;
    context.ask("c. A").await;
    let to = upstream.address;
    assert_eq!(
        context.metrics("request_duration_seconds_count"),
        [format!(
            "coredns_proxy_request_duration_seconds_count{{proxy_name=\"forward\",rcode=\"YXDOMAIN\",to=\"{to}\"}} 3"
        )]
    );
    assert_eq!(context.metrics("request_duration_seconds_bucket").len(), 17);
    // The values depend on the load of the machine.
    let sockets = |what: &str| -> Vec<String> {
        let lines = context.metrics(&format!("conn_cache_{what}_total{{"));
        lines.iter().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    for what in ["hits", "misses"] {
        let labelled = ["tcp", "udp"].map(|proto| {
            let labels = format!("{{proto=\"{proto}\",proxy_name=\"forward\",to=\"{to}\"}}");
            format!("coredns_proxy_conn_cache_{what}_total{labels}")
        });
        assert_eq!(sockets(what), labelled);
    }
}

#[tokio::test]
async fn upstream_addresses_are_collected_from_files_and_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let file = path(
        "resolv.conf",
        "# nameserver 9.9.9.9\nnameserver 192.0.2.1\n nameserver 2001:db8::9%1\noptions x\n",
    );
    let empty = path("empty", "search example\n");
    let lines = format!(
        "forward . {file} {empty} dns://192.0.2.1 tls://192.0.2.2%a.example:8853 [2001:db8::1]:5353 tls://[::2%a.b]:1"
    );
    let (_, configuration) = TestServer::configured(&format!(". {{\n{lines}\n}}\n"));
    let builder = &configuration.blocks[0].builder;
    let addresses: Vec<String> = builder.upstreams.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(
        addresses,
        [
            "192.0.2.1:53",
            "[2001:db8::9%1]:53",
            "192.0.2.1:53",
            "192.0.2.2:8853",
            "[2001:db8::1]:5353",
            "[::2]:1"
        ]
    );
    assert!(builder.tasks.is_empty());
    assert_eq!(builder.files_read.len(), 2, "a change of these files rebuilds the block");
    let error = TestServer::error(&format!("forward . {empty}"));
    assert_eq!(error, format!("Corefile:2:11: {empty:?} has no line such as: nameserver 192.0.2.1"));
}

#[tokio::test]
async fn upstream_by_name_is_asked_after_its_resolution() {
    let resolver = FakeUpstream::start(|asked, _| {
        let is_ours = asked.queries[0].name().to_ascii() == "dns.example.";
        let mut answer = error(asked, if is_ours { ResponseCode::NoError } else { ResponseCode::NXDomain });
        if asked.queries[0].query_type() == RecordType::A && is_ours {
            let name = asked.queries[0].name().clone();
            answer.add_answer(Record::from_rdata(name, 60, RData::A(A::new(127, 0, 0, 1))));
        }
        Some(answer)
    })
    .await;
    let upstream = FakeUpstream::good(7).await;
    let (port, resolver) = (upstream.address.port(), resolver.address);
    let (context, tasks) =
        TestServer::with_tasks(&format!("forward . dns.example:{port} {{\nresolver {resolver}\n}}"));
    assert!(context.ask("x. A").await.starts_with("SERVFAIL"), "no upstream has an address yet");
    for task in tasks {
        task(Arc::clone(&context.server), CancellationToken::new()).await;
    }
    assert_eq!(context.ask("x. A").await, "NOERROR ra | x. 60 IN A 192.0.2.7 | |");
}

#[tokio::test(start_paused = true)]
async fn truncated_answer_names_an_upstream_without_tcp() {
    for (records, is_resolved) in [(1, true), (0, false)] {
        let resolver = FakeUpstream::start(move |asked, by_tcp| {
            let mut answer = error(asked, ResponseCode::NoError);
            if asked.queries[0].query_type() == RecordType::A {
                let name = asked.queries[0].name();
                let address = Record::from_rdata(name.clone(), 60, RData::A(A::new(127, 0, 0, 1)));
                answer.add_answers(std::iter::repeat_n(address, records));
                answer.metadata.truncation = true;
            }
            (!by_tcp).then_some(answer)
        })
        .await;
        let upstream = FakeUpstream::good(7).await;
        let (port, resolver) = (upstream.address.port(), resolver.address);
        let (context, tasks) =
            TestServer::with_tasks(&format!("forward . dns.example:{port} {{\nresolver {resolver}\n}}"));
        let stop = CancellationToken::new();
        let resolving = async {
            for task in tasks {
                task(Arc::clone(&context.server), stop.clone()).await;
            }
        };
        // It is tried again for ever, if it has no address.
        let ended = timeout(Duration::from_secs(60), resolving).await;
        assert_eq!(ended.is_ok(), is_resolved);
        let answer = context.ask("x. A").await;
        assert_eq!(answer.starts_with("NOERROR"), is_resolved, "{answer}");
    }
}

#[tokio::test]
async fn queries_are_sent_from_the_source_address() {
    let upstream = FakeUpstream::good(1).await;
    let ask = async |source: &str| {
        let line = format!("forward . {} {{\nsource_address {source}\n}}", upstream.address);
        TestServer::block(&line).ask("x. A").await
    };
    assert!(ask("127.0.0.2").await.starts_with("NOERROR"));
    // An address that this machine doesn't have (RFC 5737).
    assert!(ask("192.0.2.1").await.starts_with("SERVFAIL"));
}

#[test]
fn only_a_forward_of_the_root_offers_recursion() {
    for (lines, recurses) in
        [("forward . 192.0.2.1", true), ("forward example 192.0.2.1", false), ("whoami", false)]
    {
        let context = TestServer::block(lines);
        assert_eq!(
            context.server.allows_recursion(
                &Query::query(Name::root(), RecordType::A),
                &context.request("x. A"),
                crate::dns::chain::server::LookUp::Query
            ) == Some(true),
            recurses,
            "{lines}"
        );
    }
}
