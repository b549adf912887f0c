use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RecordType};

use super::*;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, error};
use crate::dns::plugins::tests::support::{TestServer, link, record};
use crate::model::link::IpFamily;
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::store::Input;

const LINKS: &str = "lb.internal {\nlb_linker\n}\n";
/// Longer than an upstream on loopback takes.
const TIMEOUT: Duration = Duration::from_secs(20);

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Returns an answer with the records of the queried type, and the CNAME records.
fn answer(asked: &Message, records: &[&str]) -> Message {
    let mut answer = error(asked, ResponseCode::NoError);
    let qtype = asked.queries[0].query_type();
    let records = records.iter().map(|text| record(text));
    let is_part =
        |record: &hickory_proto::rr::Record| [qtype, RecordType::CNAME].contains(&record.record_type());
    records.filter(is_part).for_each(|record| {
        answer.add_answer(record);
    });
    answer
}

async fn with(records: &'static [&'static str]) -> FakeUpstream {
    FakeUpstream::start(move |asked, _| Some(answer(asked, records))).await
}

/// Starts an upstream whose answers are truncated after these records; by TCP it is silent.
async fn without_tcp(records: &'static [&'static str]) -> FakeUpstream {
    FakeUpstream::start(move |asked, by_tcp| {
        let mut answer = answer(asked, records);
        answer.metadata.truncation = true;
        (!by_tcp).then_some(answer)
    })
    .await
}

fn checker(server: Arc<Server>) -> (TargetChecker, watch::Sender<Servers>) {
    let (servers, current) = watch::channel(Servers::from([server]));
    (TargetChecker::new(current, Handle::current()), servers)
}

/// Returns the checker of a Corefile with links, and the Corefile's server.
fn checker_of(block: &str) -> (TargetChecker, TestServer) {
    let context = TestServer::corefile(&format!("{LINKS}. {{\n{block}\n}}\n"));
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    let links = vec![
        link("web", "t.example."),
        link("fixed", "192.0.2.9"),
        link("missing", "other.example."),
        link("back", "web.default.lb.internal."),
    ];
    store.replace(None, links, vec![], &Default::default());
    store.set_known(Input::Services);
    (checker(Arc::clone(&context.server)).0, context)
}

fn forward(upstreams: &[&FakeUpstream]) -> String {
    let all: Vec<String> = upstreams.iter().map(|upstream| upstream.address.to_string()).collect();
    format!("forward . {}", all.join(" "))
}

/// Checks a hostname. Returns each result as a text: the upstream's number in `upstreams`, or `-`, and the outcome.
async fn check_within(
    checker: &TargetChecker,
    host: &str,
    upstreams: &[&FakeUpstream],
    timeout: Duration,
) -> Vec<String> {
    let results = checker.check(&name(host), "default", timeout).await.upstreams;
    let mut texts: Vec<String> = results.iter().map(|result| text(result, upstreams)).collect();
    texts.sort();
    texts
}

async fn check(checker: &TargetChecker, host: &str, upstreams: &[&FakeUpstream]) -> Vec<String> {
    check_within(checker, host, upstreams, TIMEOUT).await
}

fn text(UpstreamResult { upstream, outcome }: &UpstreamResult, upstreams: &[&FakeUpstream]) -> String {
    let number = |address| upstreams.iter().position(|fake| fake.address == address).unwrap();
    let upstream = upstream.map_or_else(|| "-".to_owned(), |address| number(address).to_string());
    match outcome {
        TargetOutcome::Resolved(_) => format!("{upstream} resolved"),
        TargetOutcome::Failed(why) => format!("{upstream} failed: {why}"),
        TargetOutcome::NoAnswer(why) => format!("{upstream} no answer: {why}"),
        TargetOutcome::Inconclusive(why) => format!("{upstream} not asked: {why}"),
    }
}

#[tokio::test]
async fn each_upstream_has_its_own_result() {
    let good = FakeUpstream::good(1).await;
    let missing = FakeUpstream::erring(ResponseCode::NXDomain).await;
    let empty = FakeUpstream::erring(ResponseCode::NoError).await;
    let failing = FakeUpstream::erring(ResponseCode::ServFail).await;
    let refusing = FakeUpstream::erring(ResponseCode::Refused).await;
    let silent = FakeUpstream::silent().await;
    let truncating = FakeUpstream::start(|asked, by_tcp| {
        let mut answer =
            if by_tcp { answer(asked, &["t.example. 60 AAAA 2001:db8::1"]) } else { answer(asked, &[]) };
        answer.metadata.truncation = !by_tcp;
        Some(answer)
    })
    .await;
    let first = &["t.example. 60 A 192.0.2.1", "t.example. 60 AAAA 2001:db8::1"];
    let denied = &["t.example. 60 A 127.0.0.1", "t.example. 60 AAAA ::1"];
    let (cut_to_nothing, cut, cut_denied) =
        (without_tcp(&[]).await, without_tcp(first).await, without_tcp(denied).await);
    let all = [
        &good,
        &missing,
        &empty,
        &failing,
        &refusing,
        &silent,
        &truncating,
        &cut_to_nothing,
        &cut,
        &cut_denied,
    ];
    let (checker, _context) = checker_of(&forward(&all));
    assert_eq!(
        check_within(&checker, "t.example.", &all, Duration::from_secs(3)).await,
        [
            "0 resolved",
            "1 failed: NXDOMAIN",
            "2 failed: no addresses",
            "3 no answer: SERVFAIL",
            "4 no answer: REFUSED",
            "5 no answer: no reply within 3s",
            "6 resolved",
            "7 no answer: the answer is a referral, truncated, or a CNAME loop",
            "8 no answer: the answer is a referral, truncated, or a CNAME loop",
            "9 no answer: the answer is a referral, truncated, or a CNAME loop",
        ]
    );
    assert_eq!(good.count(), 2, "A and AAAA, once each");
    let desired = good.asked.lock().unwrap().iter().all(|(asked, _)| asked.metadata.recursion_desired);
    assert!(desired);
}

#[tokio::test]
async fn outcomes_of_both_families_are_merged() {
    let by_type = async |v4: Option<ResponseCode>, v6: Option<ResponseCode>| {
        FakeUpstream::start(move |asked, _| {
            let is_v4 = asked.queries[0].query_type() == RecordType::A;
            Some(match if is_v4 { v4 } else { v6 } {
                Some(rcode) => error(asked, rcode),
                None => answer(asked, &["t.example. 60 A 192.0.2.1", "t.example. 60 AAAA 2001:db8::1"]),
            })
        })
        .await
    };
    let (ok, servfail, nxdomain) = (ResponseCode::NoError, ResponseCode::ServFail, ResponseCode::NXDomain);
    let all = [
        by_type(None, Some(servfail)).await,
        by_type(Some(nxdomain), None).await,
        by_type(Some(ok), Some(servfail)).await,
        by_type(Some(servfail), Some(nxdomain)).await,
        by_type(Some(nxdomain), Some(servfail)).await,
    ];
    let all: Vec<&FakeUpstream> = all.iter().collect();
    let (checker, _context) = checker_of(&forward(&all));
    assert_eq!(
        check(&checker, "t.example.", &all).await,
        ["0 resolved", "1 resolved", "2 no answer: SERVFAIL", "3 no answer: SERVFAIL", "4 failed: NXDOMAIN",]
    );
}

#[tokio::test]
async fn check_neither_reads_nor_writes_the_cache() {
    let is_gone = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_gone);
    let upstream = FakeUpstream::start(move |asked, _| {
        let rcode = if seen.load(Ordering::Relaxed) { ResponseCode::NXDomain } else { ResponseCode::NoError };
        let mut reply = answer(asked, &["t.example. 60 A 192.0.2.1"]);
        reply.metadata.response_code = rcode;
        if rcode == ResponseCode::NXDomain {
            reply.answers.clear();
            reply.add_authority(record("example. 60 SOA ns.example."));
        }
        Some(reply)
    })
    .await;
    let (checker, context) = checker_of(&format!("cache 60\nlog\nprometheus\n{}", forward(&[&upstream])));
    let known = "NOERROR ra | t.example. 60 IN A 192.0.2.1 | |";
    assert_eq!(context.ask("t.example. A").await, known);
    context.lines();
    is_gone.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(check(&checker, "t.example.", &[&upstream]).await, ["0 failed: NXDOMAIN"]);
    }
    assert_eq!(upstream.count(), 1 + 2 * 2);
    let cached = context.ask("t.example. A").await;
    assert!(cached.contains("192.0.2.1"), "{cached}");
    assert_eq!(context.lines().len(), 1, "checks aren't logged");
    for (metric, value) in [("coredns_dns_requests_total", " 2"), ("coredns_cache_misses_total", " 1")] {
        let lines = context.metrics(metric);
        assert!(lines.len() == 1 && lines[0].ends_with(value), "{lines:?}");
    }
}

#[tokio::test]
async fn denied_addresses_and_names_fail() {
    let (loopback, mixed, inside) = (
        with(&["t.example. 60 A 127.0.0.1", "t.example. 60 AAAA ::1"]).await,
        with(&["t.example. 60 A 127.0.0.1", "t.example. 60 A 192.0.2.1"]).await,
        with(&["t.example. 60 CNAME a.cluster.local.", "a.cluster.local. 60 A 192.0.2.1"]).await,
    );
    let all = [&loopback, &mixed, &inside];
    let policy = TargetPolicy { cluster_domain: name("cluster.local."), ..TargetPolicy::default() };
    let context = TestServer::with_targets(&format!("{LINKS}. {{\n{}\n}}\n", forward(&all)), policy);
    let (checker, _servers) = checker(Arc::clone(&context.server));
    let results = check(&checker, "t.example.", &all).await;
    assert_eq!(
        results,
        [
            "0 failed: only denied addresses: ::1",
            "1 resolved",
            "2 failed: leads to a.cluster.local: it lies in the cluster's own domain cluster.local",
        ]
    );
    let results = check(&checker, "localhost.", &all).await;
    assert_eq!(results, ["- failed: leads to localhost: localhost would be the client's own host"]);
}

#[tokio::test]
async fn messages_have_at_most_200_characters() {
    let upstream = FakeUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::NoError);
        for last in 0..100 {
            answer.add_answer(record(&format!("t.example. 60 A 127.0.0.{last}")));
        }
        Some(answer)
    })
    .await;
    let (checker, _context) = checker_of(&forward(&[&upstream]));
    let results = checker.check(&name("t.example."), "default", TIMEOUT).await.upstreams;
    let [UpstreamResult { outcome: TargetOutcome::Failed(why), .. }] = &results[..] else {
        panic!("{results:?}")
    };
    assert!(why.starts_with("only denied addresses: 127.0.0.0, ") && why.ends_with('…'), "{why}");
    assert_eq!(why.chars().count(), 200);
}

#[tokio::test]
async fn cname_chains_are_followed_to_their_addresses() {
    let (chain, dangling, around, ours, away) = (
        with(&["t.example. 60 CNAME a.example.", "a.example. 60 A 192.0.2.1"]).await,
        with(&["t.example. 60 CNAME a.example."]).await,
        with(&["t.example. 60 CNAME a.example.", "a.example. 60 CNAME t.example."]).await,
        with(&["t.example. 60 CNAME fixed.default.lb.internal."]).await,
        FakeUpstream::start(|asked, _| {
            Some(match asked.queries[0].name().to_ascii().as_str() {
                "t.example." => answer(asked, &["t.example. 60 CNAME missing.default.lb.internal."]),
                _ => error(asked, ResponseCode::NXDomain),
            })
        })
        .await,
    );
    let all = [&chain, &dangling, &around, &ours, &away];
    let (checker, _context) = checker_of(&forward(&all));
    assert_eq!(
        check(&checker, "t.example.", &all).await,
        [
            "0 resolved",
            "1 failed: no addresses",
            "2 no answer: the answer is a referral, truncated, or a CNAME loop",
            "3 resolved",
            "4 failed: NXDOMAIN",
        ]
    );
}

#[tokio::test]
async fn hostname_in_our_zone_is_answered_by_its_link() {
    let (good, gone) = (FakeUpstream::good(1).await, FakeUpstream::erring(ResponseCode::NXDomain).await);
    let all = [&good, &gone];
    let (checker, context) = checker_of(&format!("cache\n{}", forward(&all)));
    assert_eq!(check(&checker, "fixed.default.lb.internal.", &all).await, ["- resolved"]);
    assert_eq!(check(&checker, "nothing.default.lb.internal.", &all).await, ["- failed: NXDOMAIN"]);
    assert_eq!(good.count() + gone.count(), 0);
    assert_eq!(
        check(&checker, "web.default.lb.internal.", &all).await,
        ["0 resolved", "1 failed: NXDOMAIN"],
        "the link's target is asked for at each upstream"
    );
    assert_eq!(context.metrics("targets_failing"), ["lb_linker_dns_targets_failing 0"]);
}

#[tokio::test]
async fn check_follows_as_many_names_as_dns() {
    for (last, passes) in [(7, true), (8, false)] {
        let (checker, context) = checker_of("whoami");
        let target = |number| match number {
            _ if number == last => "192.0.2.9".to_owned(),
            _ => format!("n{}.default.lb.internal.", number + 1),
        };
        let links: Vec<_> = (0..=last).map(|number| link(&format!("n{number}"), &target(number))).collect();
        context.shared.store.replace(None, links, vec![], &Default::default());
        let reply = context.ask("n0.default.lb.internal. A").await;
        assert_eq!(reply.contains("192.0.2.9"), passes, "{reply}");
        let results = check(&checker, "n1.default.lb.internal.", &[]).await;
        assert_eq!(results == ["- resolved"], passes, "{results:?}");
    }
}

#[tokio::test]
async fn answers_before_forward_have_no_upstream() {
    let upstream = FakeUpstream::erring(ResponseCode::NXDomain).await;
    let template = "template IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}";
    let (checker, _context) = checker_of(&format!("{template}\ntemplate IN AAAA {{\nrcode NOERROR\n}}"));
    assert_eq!(check(&checker, "t.example.", &[]).await, ["- resolved"]);
    let (checker, _context) = checker_of(&format!("{template}\n{}", forward(&[&upstream])));
    assert_eq!(
        check(&checker, "t.example.", &[&upstream]).await,
        ["0 resolved"],
        "the upstream is only asked for AAAA"
    );
    let (checker, _context) = checker_of("whoami");
    assert_eq!(check(&checker, "t.example.", &[]).await, ["- failed: no addresses"]);
    let (checker, _context) = checker_of("cache");
    assert_eq!(check(&checker, "t.example.", &[]).await, ["- failed: SERVFAIL"]);
}

#[tokio::test]
async fn failure_without_upstream_doesnt_change_upstream_results() {
    let (silent, failing, gone, good) = (
        FakeUpstream::silent().await,
        FakeUpstream::erring(ResponseCode::ServFail).await,
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::good(1).await,
    );
    let all = [&silent, &failing, &gone, &good];
    for template in ["rcode NXDOMAIN", "rcode SERVFAIL", "rcode NOERROR"] {
        let block = format!("template IN AAAA {{\n{template}\n}}\n{}", forward(&all));
        let (checker, _context) = checker_of(&block);
        assert_eq!(
            check_within(&checker, "t.example.", &all, Duration::from_secs(1)).await,
            ["0 no answer: no reply within 1s", "1 no answer: SERVFAIL", "2 failed: NXDOMAIN", "3 resolved"],
            "{template}"
        );
    }
}

/// Returns the checker of two listeners: one has only the block of the links, the other one also has `block`.
fn checker_of_views(block: &str) -> (TargetChecker, watch::Sender<Servers>) {
    let with_block = TestServer::corefile(&format!("{LINKS}. {{\n{block}\n}}\n"));
    let without = links_alone();
    let (servers, current) = watch::channel(Servers::from([without.server, with_block.server]));
    (TargetChecker::new(current, Handle::current()), servers)
}

/// Returns a server with the block of the links alone.
fn links_alone() -> TestServer {
    let context = TestServer::corefile(&LINKS.replace(" {", ":5353 {"));
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    store.replace(None, vec![link("web", "t.example.")], vec![], &Default::default());
    store.set_known(Input::Services);
    context
}

#[tokio::test]
async fn view_without_recursion_does_not_decide_the_outcome() {
    let (only_links, _servers) = checker(links_alone().server);
    for host in ["t.example.", "web.default.lb.internal."] {
        let results = check(&only_links, host, &[]).await;
        assert_eq!(results, ["- not asked: no server block resolves the hostname"], "{host}");
    }
    let upstream = FakeUpstream::good(1).await;
    let (checker, _servers) = checker_of_views(&forward(&[&upstream]));
    assert_eq!(check(&checker, "t.example.", &[&upstream]).await, ["0 resolved"]);
    let (checker, _servers) = checker_of_views("whoami");
    assert_eq!(check(&checker, "t.example.", &[]).await, ["- failed: no addresses"]);
}

#[tokio::test]
async fn aborted_check_counts_as_not_asked() {
    let dns = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let handle = dns.handle().clone();
    dns.shutdown_background();
    let (_servers, current) = watch::channel(Servers::from([TestServer::corefile(LINKS).server]));
    let results = check(&TargetChecker::new(current, handle), "t.example.", &[]).await;
    assert_eq!(results, ["- not asked: the check was aborted"]);
}

#[tokio::test]
async fn first_four_allowed_addresses_are_returned() {
    let (mixed, many, v6) = (
        with(&["t.example. 60 AAAA 2001:db8::1", "t.example. 60 A 192.0.2.2", "t.example. 60 A 192.0.2.1"])
            .await,
        with(&[
            "t.example. 60 A 192.0.2.5",
            "t.example. 60 A 127.0.0.1",
            "t.example. 60 A 192.0.2.4",
            "t.example. 60 A 192.0.2.3",
            "t.example. 60 A 192.0.2.2",
            "t.example. 60 A 192.0.2.1",
            "t.example. 60 AAAA 2001:db8::1",
        ])
        .await,
        with(&["t.example. 60 AAAA 2001:db8::2", "t.example. 60 AAAA 2001:db8::1"]).await,
    );
    let all = [&mixed, &many, &v6];
    let (checker, _context) = checker_of(&forward(&all));
    let results = checker.check(&name("t.example."), "default", TIMEOUT).await.upstreams;
    for (fake, expected) in [
        (&mixed, &["192.0.2.2", "192.0.2.1", "2001:db8::1"][..]),
        (&many, &["192.0.2.5", "192.0.2.4", "192.0.2.3", "192.0.2.2"]),
        (&v6, &["2001:db8::2", "2001:db8::1"]),
    ] {
        let result = results.iter().find(|result| result.upstream == Some(fake.address)).unwrap();
        let addresses = expected.iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(result.outcome, TargetOutcome::Resolved(addresses));
    }
    let template =
        |qtype, ip| format!("template IN {qtype} {{\nanswer \"{{{{ .Name }}}} 60 IN {qtype} {ip}\"\n}}");
    let block = format!("{}\n{}", template("AAAA", "2001:db8::9"), forward(&[&mixed]));
    let (checker, _context) = checker_of(&block);
    let results = checker.check(&name("t.example."), "default", TIMEOUT).await.upstreams;
    let [UpstreamResult { outcome: TargetOutcome::Resolved(addresses), .. }] = &results[..] else {
        panic!("{results:?}")
    };
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.2", "192.0.2.1", "2001:db8::9"]);
}

#[tokio::test]
async fn links_in_the_cname_chain_are_returned() {
    let (back, indirect, good) = (
        with(&["t.example. 60 CNAME WEB.default.lb.internal.", "WEB.default.lb.internal. 60 A 192.0.2.1"])
            .await,
        with(&["t.example. 60 CNAME back.default.lb.internal."]).await,
        FakeUpstream::good(1).await,
    );
    let all = [&back, &indirect, &good];
    let (web, behind) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "back"));
    for (upstreams, host, expected) in [
        (&all[2..], "t.example.", vec![]),
        (&all[..1], "t.example.", vec![&web]),
        (&all[1..2], "t.example.", vec![&behind, &web]),
        (&all[1..], "t.example.", vec![&behind, &web]),
        (&all[2..], "web.default.lb.internal.", vec![&web]),
        (&all[2..], "back.default.lb.internal.", vec![&behind, &web]),
    ] {
        let (checker, _context) = checker_of(&forward(upstreams));
        let found = checker.check(&name(host), "default", TIMEOUT).await.links;
        assert_eq!(found, expected.into_iter().cloned().collect(), "{host}");
    }
}

#[tokio::test]
async fn alias_of_a_link_resolves_and_returns_the_link() {
    let upstream = FakeUpstream::start(|asked, _| {
        let is_alias = asked.queries[0].name().to_string() == "alias.example.";
        let records: &[&str] = match is_alias {
            true => &["alias.example. 60 CNAME web.default.lb.internal."],
            false => &["t.example. 60 A 192.0.2.1"],
        };
        Some(answer(asked, records))
    })
    .await;
    let (checker, _context) = checker_of(&forward(&[&upstream]));
    let results = checker.check(&name("alias.example."), "default", TIMEOUT).await;
    assert_eq!(text(&results.upstreams[0], &[&upstream]), "0 resolved");
    assert_eq!(results.links, [ServiceKey::new("default", "web")].into());
}

#[tokio::test]
async fn chain_to_a_link_passes_for_allowed_namespaces_only() {
    let upstream = FakeUpstream::start(|asked, _| {
        let records: &[&str] = match asked.queries[0].name().to_string().as_str() {
            "alias.example." => &["alias.example. 60 CNAME open.default.lb.internal."],
            "apex.example." => &["apex.example. 60 CNAME ns.dns.lb.internal."],
            _ => &["t.example. 60 A 192.0.2.1", "t.example. 60 AAAA 2001:db8::1"],
        };
        Some(answer(asked, records))
    })
    .await;
    let (checker, context) = checker_of(&forward(&[&upstream]));
    let mut open = link("open", "t.example.");
    open.annotations.allow_from = ["shop".into()].into();
    context.shared.store.replace(None, vec![open], vec![], &Default::default());
    let check = async |host: &str, namespace: &str| {
        let results = checker.check(&name(host), namespace, TIMEOUT).await;
        results.upstreams.iter().map(|result| text(result, &[&upstream])).collect::<Vec<_>>().join(", ")
    };
    for namespace in ["default", "shop"] {
        assert_eq!(check("alias.example.", namespace).await, "0 resolved", "{namespace}");
        assert_eq!(check("open.default.lb.internal.", namespace).await, "0 resolved", "{namespace}");
    }
    let why = "leads to open.default.lb.internal: it lies in lb-linker's own zone and belongs to Service \
               default/open, whose annotation linker.hsj.com/allow-from doesn't list namespace other";
    assert_eq!(check("alias.example.", "other").await, format!("0 failed: {why}"));
    assert_eq!(check("open.default.lb.internal.", "other").await, format!("- failed: {why}"));
    let why = "leads to ns.dns.lb.internal: it belongs to the zone itself";
    assert_eq!(check("apex.example.", "default").await, format!("0 failed: {why}"));
}

#[tokio::test]
async fn acl_that_denies_every_client_fails_the_check() {
    let upstream = FakeUpstream::start(|asked, _| {
        let records: &[&str] = match asked.queries[0].name().to_string().as_str() {
            "t.example." => &["t.example. 60 CNAME a.example.", "a.example. 60 A 192.0.2.1"],
            _ => &["alias.example. 60 CNAME fixed.default.lb.internal."],
        };
        Some(answer(asked, records))
    })
    .await;
    let denied = |name: &str| format!("leads to {name}: an acl denies it to all clients");
    for (acl, expected) in [
        ("a.example {\nblock\n}", format!("0 failed: {}", denied("a.example"))),
        ("t.example {\nblock\n}", format!("- failed: {}", denied("t.example"))),
        ("{\nfilter type A net 0.0.0.0/1 128.0.0.0/1 ::/0\n}", format!("0 failed: {}", denied("t.example"))),
        ("a.example {\nblock type AAAA\n}", "0 resolved".to_owned()),
        ("a.example {\nblock net 10.0.0.0/8\n}", "0 resolved".to_owned()),
        ("a.example {\nallow net 10.0.0.0/8\nblock\n}", "0 resolved".to_owned()),
        (
            "a.example {\nblock net 10.0.0.0/7\nallow net 10.0.0.0/8\ndrop\n}",
            format!("0 failed: {}", denied("a.example")),
        ),
    ] {
        let (checker, _context) = checker_of(&format!("acl {acl}\n{}", forward(&[&upstream])));
        assert_eq!(check(&checker, "t.example.", &[&upstream]).await, [expected], "{acl}");
    }
    let links = "lb.internal {\nacl {\nblock\n}\nlb_linker\n}\n";
    let context = TestServer::corefile(&format!("{links}. {{\n{}\n}}\n", forward(&[&upstream])));
    let (checker, _servers) = checker(Arc::clone(&context.server));
    let results = check(&checker, "alias.example.", &[&upstream]).await;
    assert_eq!(results, [format!("0 failed: {}", denied("fixed.default.lb.internal"))]);
}

#[tokio::test]
async fn refused_target_of_a_link_counts_as_no_answer() {
    let refusing = FakeUpstream::erring(ResponseCode::Refused).await;
    let (checker, _context) = checker_of(&forward(&[&refusing]));
    let results = check(&checker, "web.default.lb.internal.", &[&refusing]).await;
    assert_eq!(results, ["0 no answer: REFUSED"]);
}

#[tokio::test]
async fn link_name_before_the_first_list_counts_as_not_asked() {
    let upstream = with(&["t.example. 60 CNAME web.default.lb.internal."]).await;
    let context = TestServer::corefile(&format!("{LINKS}. {{\n{}\n}}\n", forward(&[&upstream])));
    let (checker, _servers) = checker(Arc::clone(&context.server));
    let why = "not asked: waiting for the first list of load balancers";
    let results = check(&checker, "web.default.lb.internal.", &[]).await;
    assert_eq!(results, [format!("- {why}")]);
    let results = check(&checker, "t.example.", &[&upstream]).await;
    assert_eq!(results, [format!("0 {why}")]);
}

#[tokio::test]
async fn failure_of_other_upstreams_counts_as_not_asked() {
    let upstream = with(&["t.example. 60 CNAME missing.default.lb.internal."]).await;
    let cut = FakeUpstream::start(|asked, _| {
        let mut answer = answer(asked, &["other.example. 60 A 192.0.2.1"]);
        answer.metadata.truncation = true;
        Some(answer)
    })
    .await;
    let around = with(&["other.example. 60 CNAME a.example.", "a.example. 60 CNAME other.example."]).await;
    let (silent, failing, refusing, good) = (
        FakeUpstream::silent().await,
        FakeUpstream::erring(ResponseCode::ServFail).await,
        FakeUpstream::erring(ResponseCode::Refused).await,
        FakeUpstream::good(1).await,
    );
    let why = "0 not asked: its CNAME leads to other upstreams:";
    let unusable = format!("{why} the answer is a referral, truncated, or a CNAME loop");
    for (other, expected) in [
        (&silent, format!("{why} no reply within 1s")),
        (&failing, format!("{why} SERVFAIL")),
        (&refusing, format!("{why} REFUSED")),
        (&cut, unusable.clone()),
        (&around, unusable),
        (&good, "0 resolved".to_owned()),
    ] {
        let block = format!("{}\n}}\nother.example {{\n{}", forward(&[&upstream]), forward(&[other]));
        let (checker, _context) = checker_of(&block);
        let results = check_within(&checker, "t.example.", &[&upstream], Duration::from_secs(1)).await;
        assert_eq!(results, [expected]);
    }
}

#[tokio::test]
async fn checks_leave_max_concurrent_to_client_look_ups() {
    let upstream = FakeUpstream::start(|asked, _| {
        let is_checked = asked.queries[0].name().to_ascii() == "t.example.";
        (!is_checked).then(|| answer(asked, &["other.example. 60 A 192.0.2.1"]))
    })
    .await;
    let block = format!("prometheus\n{} {{\nmax_concurrent 1\n}}", forward(&[&upstream]));
    let (checker, context) = checker_of(&block);
    let all = [&upstream];
    let checking = check_within(&checker, "t.example.", &all, Duration::from_secs(2));
    let asking = async {
        while upstream.count() == 0 {
            tokio::task::yield_now().await;
        }
        context.ask("missing.default.lb.internal. A").await
    };
    let (results, answered) = tokio::join!(checking, asking);
    assert!(answered.contains("192.0.2.1"), "{answered}");
    assert_eq!(results, ["0 not asked: too many checks of the upstream are under way"]);
    for metric in ["max_concurrent_rejects_total", "lookups_refused_total"] {
        assert!(context.metrics(metric).iter().all(|line| line.ends_with(" 0")), "{metric}");
    }
}

#[tokio::test]
async fn look_ups_of_clients_do_not_stop_checks() {
    let upstream = FakeUpstream::start(|asked, _| {
        let is_checked = asked.queries[0].name().to_ascii() == "t.example.";
        is_checked.then(|| answer(asked, &["t.example. 60 AAAA 2001:db8::1"]))
    })
    .await;
    let (checker, context) = checker_of(&format!("{} {{\nmax_concurrent 1\n}}", forward(&[&upstream])));
    let asking = context.ask("missing.default.lb.internal. A");
    let checking = async {
        while upstream.count() == 0 {
            tokio::task::yield_now().await;
        }
        check(&checker, "t.example.", &[&upstream]).await
    };
    let (_, results) = tokio::join!(asking, checking);
    assert_eq!(results, ["0 resolved"], "the look-up for AAAA waits for the one for A");
}

#[tokio::test]
async fn checks_are_not_counted_as_queries_of_clients() {
    let upstream = with(&["t.example. 60 A 127.0.0.1"]).await;
    let (checker, context) = checker_of(&forward(&[&upstream]));
    let results = check(&checker, "web.default.lb.internal.", &[&upstream]).await;
    assert_eq!(results, ["0 failed: only denied addresses: 127.0.0.1"]);
    let denied = context.metrics("targets_denied_total");
    assert!(denied.iter().all(|line| line.ends_with(" 0")), "{denied:?}");
    let link = context.shared.store.get(&ServiceKey::new("default", "web")).unwrap();
    for family in [IpFamily::V4, IpFamily::V6] {
        assert!(!link.last_queried.is_recent(family, Duration::from_secs(60)));
    }
}

#[tokio::test]
async fn upstreams_of_the_next_line_are_asked_once() {
    let (one, other, next) = (
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::good(1).await,
    );
    let all = [&one, &other, &next];
    let block = format!("{} {{\nnext NXDOMAIN\n}}\n{}", forward(&[&one, &other]), forward(&[&next]));
    let (checker, _context) = checker_of(&block);
    assert_eq!(check(&checker, "t.example.", &all).await, ["2 resolved"]);
    assert_eq!(next.count(), 2, "A and AAAA");
}

#[tokio::test]
async fn upstream_not_asked_for_a_family_does_not_fail() {
    let first = FakeUpstream::start(|asked, _| {
        let is_v4 = asked.queries[0].query_type() == RecordType::A;
        Some(error(asked, if is_v4 { ResponseCode::ServFail } else { ResponseCode::NoError }))
    })
    .await;
    let empty = FakeUpstream::erring(ResponseCode::NoError).await;
    let all = [&first, &empty];
    let block = format!("{} {{\nnext_on_nodata\n}}\n{}", forward(&[&first]), forward(&[&empty]));
    let (checker, _context) = checker_of(&block);
    assert_eq!(
        check(&checker, "t.example.", &all).await,
        ["0 no answer: SERVFAIL", "1 not asked: another upstream: SERVFAIL"]
    );
}

#[tokio::test]
async fn check_takes_the_forward_line_of_the_hostname() {
    let (other, missing, next, silent) = (
        FakeUpstream::good(1).await,
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::good(2).await,
        FakeUpstream::erring(ResponseCode::ServFail).await,
    );
    let all = [&other, &missing, &next, &silent];
    let line = |zone: &str, upstreams: &[&FakeUpstream]| forward(upstreams).replacen('.', zone, 1);
    let block = format!(
        "{}\n{} {{\nnext NXDOMAIN\n}}\n{}",
        line("other.example", &[&other]),
        line("example", &[&missing, &silent]),
        line(".", &[&next, &missing])
    );
    let (checker, _context) = checker_of(&block);
    assert_eq!(
        check(&checker, "t.example.", &all).await,
        ["1 failed: NXDOMAIN", "2 resolved", "3 no answer: SERVFAIL"],
        "the upstreams of the next line are asked as well"
    );
    assert_eq!(check(&checker, "a.other.example.", &all).await, ["0 resolved"]);
}

#[tokio::test]
async fn upstream_that_is_down_is_asked() {
    let is_down = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&is_down);
    let (down, up) = (
        FakeUpstream::start(move |asked, _| {
            let is_check = asked.queries[0].query_type() == RecordType::NS;
            let is_silent = is_check || seen.load(Ordering::Relaxed);
            (!is_silent).then(|| answer(asked, &["t.example. 60 A 192.0.2.1"]))
        })
        .await,
        FakeUpstream::good(1).await,
    );
    let all = [&down, &up];
    let (checker, context) = checker_of(&format!("{} {{\nmax_fails 1\n}}", forward(&all)));
    let within = Duration::from_secs(2);
    assert_eq!(
        check_within(&checker, "t.example.", &all, within).await,
        ["0 no answer: no reply within 2s", "1 resolved"]
    );
    let failures = || -> usize {
        let line = context.metrics("healthcheck_failures_total").join("");
        line.split(' ').next_back().and_then(|number| number.parse().ok()).unwrap_or_default()
    };
    while failures() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_down.store(false, Ordering::Relaxed);
    assert_eq!(check(&checker, "t.example.", &all).await, ["0 resolved", "1 resolved"]);
}

#[tokio::test]
async fn exceeded_check_limit_counts_as_not_asked() {
    let silent = FakeUpstream::silent().await;
    let (checker, _context) = checker_of(&format!("{} {{\nmax_concurrent 1\n}}", forward(&[&silent])));
    let results = check_within(&checker, "t.example.", &[&silent], Duration::from_secs(1)).await;
    assert_eq!(results, ["0 not asked: too many checks of the upstream are under way"]);
}

#[tokio::test]
async fn check_uses_the_servers_of_the_last_reload() {
    let (old, new) = (FakeUpstream::good(1).await, FakeUpstream::erring(ResponseCode::NXDomain).await);
    let server = |fake: &FakeUpstream| {
        TestServer::corefile(&format!("{LINKS}. {{\n{}\n}}\n", forward(&[fake]))).server
    };
    let (checker, servers) = checker(server(&old));
    assert_eq!(check(&checker, "t.example.", &[&old]).await, ["0 resolved"]);
    servers.send_replace(Servers::from([server(&new)]));
    assert_eq!(check(&checker, "t.example.", &[&new]).await, ["0 failed: NXDOMAIN"]);
    servers.send_replace(Servers::from([TestServer::block("whoami").server]));
    let results = check(&checker, "t.example.", &[]).await;
    assert_eq!(results, ["- not asked: no server block has lb_linker"]);
}

#[tokio::test]
async fn probe_asks_one_upstream_for_another_name() {
    let (answering, failing, silent, unused) = (
        FakeUpstream::erring(ResponseCode::NXDomain).await,
        FakeUpstream::erring(ResponseCode::ServFail).await,
        FakeUpstream::silent().await,
        FakeUpstream::good(1).await,
    );
    let block = format!(
        "cache\nforward other.example {}\n{}",
        unused.address,
        forward(&[&answering, &failing, &silent])
    );
    let (checker, _context) = checker_of(&block);
    let probe = async |upstream: &FakeUpstream, timeout| {
        checker.is_answering(&name("t.example."), upstream.address, &name("probe.test."), timeout).await
    };
    assert!(probe(&answering, TIMEOUT).await);
    for rcode in [ResponseCode::Refused, ResponseCode::FormErr, ResponseCode::NotImp, ResponseCode::YXDomain]
    {
        let upstream = FakeUpstream::erring(rcode).await;
        let (checker, _context) = checker_of(&forward(&[&upstream]));
        let is_answering =
            checker.is_answering(&name("t.example."), upstream.address, &name("probe.test."), TIMEOUT).await;
        assert_eq!(is_answering, rcode == ResponseCode::YXDomain, "{rcode}");
    }
    assert!(!probe(&failing, TIMEOUT).await);
    assert!(!probe(&silent, Duration::from_secs(1)).await);
    assert!(!probe(&unused, TIMEOUT).await, "the upstream belongs to the line of other.example");
    assert_eq!(unused.count(), 0);
    let asked = answering.asked.lock().unwrap();
    let [(asked, _)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(asked.queries[0].name(), &name("probe.test."));
    assert!(asked.metadata.recursion_desired);
}
