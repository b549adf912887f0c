//! Queries and complete answers, over UDP and TCP, with a real CoreDNS as the upstream.

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::dns::{
    CoreDns, FaultyUpstream, IN_CLIENT_TIMEOUT, IN_TIME, address, ask_repeatedly, ask_tcp, ask_udp,
    ask_within, data, ede, error, framed, query, read_message, send_udp, short, show, without_foreign_ttls,
};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, once_of_five, replace_file};

/// An lb-linker that reads manifests.
pub(crate) struct Fixture {
    pub(crate) linker: Linker,
    pub(crate) directory: tempfile::TempDir,
}

impl Fixture {
    /// Replaces the links by these, given by name and ingress entries.
    pub(crate) fn set(&self, links: &[(&str, &str)]) {
        self.write(&manifests(links));
    }

    /// Replaces the manifests atomically: a partial file would contain other load balancers.
    pub(crate) fn write(&self, manifests: &str) {
        replace_file(&self.directory.path().join("services.yaml"), manifests);
    }
}

/// Starts lb-linker with manifests of these Services in `default`, given by name and ingress entries.
pub(crate) async fn start_with_links(links: &[(&str, &str)], args: &[&str]) -> Fixture {
    start_with_manifests(&manifests(links), args, &[]).await
}

pub(crate) fn manifests(links: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, ingress) in links {
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{type: LoadBalancer}}\nstatus: {{loadBalancer: {{ingress: [{ingress}]}}}}"
        );
    }
    text
}

/// Starts lb-linker with these manifests, arguments and environment variables.
pub(crate) async fn start_with_manifests(
    manifests: &str,
    args: &[&str],
    variables: &[(&str, &str)],
) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("services.yaml"), manifests).unwrap();
    let all = [&["--manifests", directory.path().to_str().unwrap()], args].concat();
    let linker = Linker::start_with(variables, all);
    linker.ready().await;
    Fixture { linker, directory }
}

pub(crate) async fn with_upstream(links: &[(&str, &str)], upstream: SocketAddr) -> Fixture {
    start_with_links(links, &["--upstream", &upstream.to_string()]).await
}

const LINKS: [(&str, &str); 12] = [
    ("web", "{hostname: a.example.com}"),
    ("both", "{hostname: b.example.com}"),
    ("chain", "{hostname: chain.example.com}"),
    ("missing", "{hostname: missing.example.com}"),
    ("broken", "{hostname: broken.example.com}"),
    ("refused", "{hostname: refused.example.com}"),
    ("many", "{hostname: many.example.com}"),
    ("inside", "{hostname: web.default.lb.internal}"),
    ("egg", "{hostname: hen.default.lb.internal}"),
    ("hen", "{hostname: egg.default.lb.internal}"),
    ("ips", "{ip: 192.0.2.1}, {ip: '2001:db8::1'}, {ip: 192.0.2.2}"),
    ("pending", ""),
];

/// Replaces the serial of each SOA record of lb.internal, which depends on the clock, by `SERIAL`.
pub(crate) fn without_serial(answer: &str) -> String {
    let parts: Vec<&str> = answer.split(" hostmaster.lb.internal. ").collect();
    parts
        .iter()
        .enumerate()
        .map(|(i, part)| if i == 0 { *part } else { part.split_once(' ').unwrap().1 })
        .collect::<Vec<_>>()
        .join(" hostmaster.lb.internal. SERIAL ")
}

pub(crate) const SOA: &str =
    "lb.internal. 5 IN SOA ns.dns.lb.internal. hostmaster.lb.internal. SERIAL 7200 1800 86400 5";
const CLOUD_SOA: &str = "example.com. TTL IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600";

#[tokio::test]
async fn queries_are_answered_by_udp_and_tcp() {
    let upstream = CoreDns::cloud().await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let nodata = format!("No Error aa rd ra |  | {SOA} | ");
    let nxdomain = format!("Non-Existent Domain aa rd ra |  | {SOA} | ");
    let table: Vec<(&str, String)> = vec![
        // RFC 1034 section 3.6.2: an alias and its target's records.
        ("web-default.lb.internal. CNAME", "No Error aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | ".into()),
        (
            "web.default.lb.internal. A",
            "No Error aa rd ra | a.example.com. TTL IN A 192.0.2.10, web.default.lb.internal. 5 IN CNAME a.example.com. |  | ".into(),
        ),
        (
            "both-default.lb.internal. AAAA",
            "No Error aa rd ra | b.example.com. TTL IN AAAA 2001:db8::20, both-default.lb.internal. 5 IN CNAME b.example.com. |  | ".into(),
        ),
        // RFC 4343: names are compared regardless of case, and their case is preserved.
        (
            "WEB-Default.LB.internal. CNAME",
            "No Error aa rd ra | WEB-Default.LB.internal. 5 IN CNAME a.example.com. |  | ".into(),
        ),
        (
            "chain-default.lb.internal. A",
            "No Error aa rd ra | a.example.com. TTL IN A 192.0.2.10, chain-default.lb.internal. 5 IN CNAME \
             chain.example.com., chain.example.com. TTL IN CNAME a.example.com. |  | ".into(),
        ),
        // RFC 2308 section 2.2: the target has no records of this type, so the answer has the SOA of its zone.
        (
            "web-default.lb.internal. AAAA",
            format!("No Error aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. | {CLOUD_SOA} | "),
        ),
        // RFC 6604 section 3: the rcode for the last name of the chain is the rcode of the answer.
        (
            "missing-default.lb.internal. A",
            format!("Non-Existent Domain aa rd ra | missing-default.lb.internal. 5 IN CNAME missing.example.com. | {CLOUD_SOA} | "),
        ),
        (
            "broken-default.lb.internal. A",
            "Server Failure aa rd ra | broken-default.lb.internal. 5 IN CNAME broken.example.com. |  | ".into(),
        ),
        (
            "refused-default.lb.internal. A",
            "No Error aa rd ra | refused-default.lb.internal. 5 IN CNAME refused.example.com. |  | ".into(),
        ),
        // A target in our own zone.
        (
            "inside-default.lb.internal. A",
            "No Error aa rd ra | a.example.com. TTL IN A 192.0.2.10, inside-default.lb.internal. 5 IN CNAME \
             web.default.lb.internal., web.default.lb.internal. 5 IN CNAME a.example.com. |  | ".into(),
        ),
        // Address targets.
        (
            "ips-default.lb.internal. A",
            "No Error aa rd ra | ips-default.lb.internal. 5 IN A 192.0.2.1, ips-default.lb.internal. 5 IN A 192.0.2.2 |  | ".into(),
        ),
        ("ips.default.lb.internal. AAAA", "No Error aa rd ra | ips.default.lb.internal. 5 IN AAAA 2001:db8::1 |  | ".into()),
        ("ips.default.lb.internal. CNAME", nodata.clone()),
        ("ips.default.lb.internal. MX", nodata.clone()),
        ("pending-default.lb.internal. A", nodata.clone()),
        // RFC 8020: a name above an existing name exists.
        ("default.lb.internal. A", nodata.clone()),
        ("nothing-default.lb.internal. A", nxdomain.clone()),
        ("below.web-default.lb.internal. A", nxdomain.clone()),
        ("deleted.lb.internal. A", nxdomain),
        ("lb.internal. A", nodata),
        ("lb.internal. SOA", format!("No Error aa rd ra | {SOA} |  | ")),
        (
            "lb.internal. NS",
            "No Error aa rd ra | lb.internal. 5 IN NS ns.dns.lb.internal. |  | ns.dns.lb.internal. 5 IN A 127.0.0.1".into(),
        ),
        ("ns.dns.lb.internal. A", "No Error aa rd ra | ns.dns.lb.internal. 5 IN A 127.0.0.1 |  | ".into()),
        // RFC 8482 section 4.1: an answer to ANY may leave out records.
        ("web-default.lb.internal. ANY", "No Error aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | ".into()),
        // Zone transfers aren't offered.
        ("lb.internal. AXFR", "Query Refused rd |  |  | ".into()),
    ];
    for (question, expected) in table {
        // The other answers may come from a cache.
        let first = ask_within(IN_TIME, fixture.linker.dns, &query(question)).await;
        let others = ask_repeatedly(fixture.linker.dns, &query(question)).await;
        for answer in [first].into_iter().chain(others) {
            assert_eq!(without_foreign_ttls(&without_serial(&show(&answer))), expected, "{question}");
            assert_eq!(answer.queries, query(question).queries, "the question is repeated");
            assert!(answer.edns.is_some(), "RFC 6891 section 6.1.1: OPT for OPT");
        }
    }
}

#[tokio::test]
async fn names_outside_the_zone_are_forwarded_unchanged() {
    let upstream = CoreDns::cloud().await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    // A cached answer has AA set, and decreasing TTLs.
    let records = |answer: &Message| without_foreign_ttls(&show(answer)).replacen(" aa", "", 1);
    for question in [
        "a.example.com. A",
        "b.example.com. AAAA",
        "chain.example.com. A",
        "nope.example.com. A",
        "broken.example.com. A",
    ] {
        let direct = ask_udp(upstream.address, &query(question)).await;
        for answer in ask_repeatedly(fixture.linker.dns, &query(question)).await {
            assert_eq!(records(&answer), records(&direct), "{question}");
        }
    }
}

#[tokio::test]
async fn only_links_are_answered_without_an_upstream() {
    let fixture = start_with_links(&LINKS, &["--upstream", "none"]).await;
    let answer = ask_udp(fixture.linker.dns, &query("a.example.com. A")).await;
    assert_eq!(show(&answer), "Query Refused rd |  |  | ");
    let answer = ask_udp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(show(&answer), "No Error aa rd | web-default.lb.internal. 5 IN CNAME a.example.com. |  | ");
}

#[tokio::test]
async fn query_without_rd_gets_only_the_alias() {
    let upstream = CoreDns::cloud().await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let mut asked = query("web-default.lb.internal. A");
    asked.metadata.recursion_desired = false;
    let answer = ask_udp(fixture.linker.dns, &asked).await;
    assert_eq!(show(&answer), "No Error aa ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | ");
}

#[tokio::test]
async fn circular_targets_give_servfail_with_an_extended_error() {
    let fixture = start_with_links(&LINKS, &["--upstream", "none"]).await;
    let answer = ask_udp(fixture.linker.dns, &query("egg-default.lb.internal. A")).await;
    assert!(show(&answer).starts_with("Server Failure aa rd | "), "{}", show(&answer));
    assert_eq!(ede(&answer), Some(0));
}

#[tokio::test]
async fn long_answer_is_truncated_by_udp_and_complete_by_tcp() {
    let upstream = CoreDns::cloud().await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let question = query("many-default.lb.internal. A");
    let answer = ask_within(IN_TIME, fixture.linker.dns, &question).await;
    assert!(answer.metadata.truncation);
    assert!(answer.edns.is_some(), "the truncated answer has an OPT record");
    assert!(answer.answers.len() > 60 && answer.answers.len() < 101, "{}", answer.answers.len());
    let whole = ask_tcp(fixture.linker.dns, &question).await;
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 101);

    // RFC 1035 section 4.2.1: without EDNS an answer has at most 512 bytes.
    let mut plain = question.clone();
    plain.edns = None;
    let bytes = send_udp(fixture.linker.dns, &plain.to_vec().unwrap(), EVENT_TIMEOUT / 4).await.unwrap();
    assert!(bytes.len() <= 512, "{}", bytes.len());
    assert!(Message::from_vec(&bytes).unwrap().metadata.truncation);
}

#[tokio::test]
async fn unsupported_messages_are_refused_or_ignored() {
    let fixture = start_with_links(&LINKS, &["--upstream", "none"]).await;
    let server = fixture.linker.dns;
    let expect = |bytes: Vec<u8>, expected: &'static str| async move {
        let answer = send_udp(server, &bytes, EVENT_TIMEOUT / 4).await.expect(expected);
        assert_eq!(show(&Message::from_vec(&answer).unwrap()), expected);
    };
    // RFC 6891 section 6.1.3: an unsupported EDNS version gets BADVERS (16).
    let mut version = query("web-default.lb.internal. A");
    version.edns.as_mut().unwrap().set_version(1);
    let answer = ask_udp(server, &version).await;
    assert_eq!(u16::from(answer.metadata.response_code), 16);

    let mut notify = query("lb.internal. SOA");
    notify.metadata.op_code = OpCode::Notify;
    expect(notify.to_vec().unwrap(), "Not Implemented rd |  |  | ").await;

    // OPT, TKEY and TSIG records belong to a message, not to a name.
    for qtype in [41, 249, 250] {
        let mut odd = query("web-default.lb.internal. A");
        odd.queries[0].set_query_type(RecordType::from(qtype));
        expect(odd.to_vec().unwrap(), "Not Implemented rd |  |  | ").await;
    }

    let mut two = query("web-default.lb.internal. A");
    two.add_query(two.queries[0].clone());
    expect(two.to_vec().unwrap(), "Form Error rd |  |  | ").await;

    let whole = query("web-default.lb.internal. A").to_vec().unwrap();
    expect(whole[..whole.len() - 5].to_vec(), "Form Error rd |  |  | ").await;

    let mut chaos = query("version.bind. TXT");
    chaos.queries[0].set_query_class(DNSClass::CH);
    expect(chaos.to_vec().unwrap(), "Query Refused rd |  |  | ").await;

    // The server ignores responses, and messages that are shorter than a header. It answers the next query.
    let mut answer = whole.clone();
    answer[2] |= 0x80;
    assert_eq!(send_udp(server, &answer, Duration::from_millis(200)).await, None);
    assert_eq!(send_udp(server, &whole[..11], Duration::from_millis(200)).await, None);
    assert_eq!(short(server, "web-default.lb.internal. CNAME").await, "a.example.com.");
}

#[tokio::test]
async fn slow_answer_delays_no_other_query_on_the_connection() {
    // An upstream that never answers.
    let upstream = FaultyUpstream::start(|_, _| vec![]).await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let mut stream = TcpStream::connect(fixture.linker.dns).await.unwrap();
    let slow = query("slow.example. A");
    let quick = query("web-default.lb.internal. CNAME");
    let messages = [&slow, &quick].map(|message| framed(&message.to_vec().unwrap()));
    stream.write_all(&messages.concat()).await.unwrap();
    let first = Message::from_vec(&read_message(&mut stream).await.unwrap()).unwrap();
    let second = Message::from_vec(&read_message(&mut stream).await.unwrap()).unwrap();
    assert_eq!(first.metadata.id, quick.metadata.id, "RFC 7766 section 6.2.1.1: out of order");
    assert_eq!(second.metadata.id, slow.metadata.id);
    assert_eq!(show(&second), "Server Failure rd |  |  | ");
}

#[tokio::test]
async fn silent_upstream_gives_servfail_with_the_alias() {
    let upstream = FaultyUpstream::start(|_, _| vec![]).await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let answer = ask_udp(fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(
        show(&answer),
        "Server Failure aa rd ra | web-default.lb.internal. 5 IN CNAME a.example.com. |  | "
    );
    assert_eq!(ede(&answer), Some(22));
    // RFC 8914 section 2: no extended error for clients without EDNS.
    let mut plain = query("web-default.lb.internal. A");
    plain.edns = None;
    assert!(ask_udp(fixture.linker.dns, &plain).await.edns.is_none());
}

#[tokio::test]
async fn mismatched_responses_are_ignored() {
    let upstream = FaultyUpstream::start(|asked, _| {
        let mut wrong_id = address(asked, 1, 60);
        wrong_id.metadata.id = asked.metadata.id.wrapping_add(1);
        let mut wrong_name = address(asked, 2, 60);
        wrong_name.queries = vec![Query::query(Name::from_ascii("other.example.").unwrap(), RecordType::A)];
        let mut wrong_type = address(asked, 3, 60);
        wrong_type.queries[0].set_query_type(RecordType::AAAA);
        vec![wrong_id, wrong_name, wrong_type, asked.clone(), address(asked, 4, 60)]
    })
    .await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    let answer = ask_within(IN_TIME, fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(data(&answer), "a.example.com. 192.0.2.4");
}

#[tokio::test]
async fn truncated_upstream_answer_is_retried_by_tcp() {
    let upstream = FaultyUpstream::start(|asked, tcp| {
        let mut answer = address(asked, if tcp { 2 } else { 1 }, 60);
        answer.metadata.truncation = !tcp;
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&LINKS, upstream.address).await;
    for (question, expected) in
        [("web-default.lb.internal. A", "a.example.com. 192.0.2.2"), ("other.example. A", "192.0.2.2")]
    {
        let answer = ask_within(IN_TIME, fixture.linker.dns, &query(question)).await;
        assert_eq!(data(&answer), expected);
    }
}

#[tokio::test]
async fn failing_upstream_causes_failover() {
    let silent = FaultyUpstream::start(|_, _| vec![]).await;
    let failing = FaultyUpstream::start(|asked, _| vec![error(asked, ResponseCode::ServFail)]).await;
    let refusing = FaultyUpstream::start(|asked, _| vec![error(asked, ResponseCode::Refused)]).await;
    let good = FaultyUpstream::start(|asked, _| vec![address(asked, 9, 60)]).await;
    let question = query("web-default.lb.internal. A");
    for bad in [silent.address, failing.address, refusing.address] {
        let upstreams = format!("{bad},{}", good.address);
        once_of_five(async || {
            let fixture = start_with_links(&LINKS, &["--upstream", &upstreams]).await;
            // The first upstream is chosen at random.
            for _ in 0..8 {
                let begun = Instant::now();
                let answer = ask_udp(fixture.linker.dns, &question).await;
                if begun.elapsed() >= IN_CLIENT_TIMEOUT {
                    return Err(format!("{:?}: {}", begun.elapsed(), show(&answer)));
                }
                assert_eq!(data(&answer), "a.example.com. 192.0.2.9");
            }
            Ok(())
        })
        .await;
    }
    // SERVFAIL takes precedence over REFUSED.
    let upstreams = format!("{},{}", failing.address, refusing.address);
    let fixture = start_with_links(&LINKS, &["--upstream", &upstreams]).await;
    for _ in 0..8 {
        let answer = ask_udp(fixture.linker.dns, &question).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    }
}

#[tokio::test]
async fn late_good_answer_wins_over_an_early_error() {
    let failing = FaultyUpstream::start(|asked, _| vec![error(asked, ResponseCode::ServFail)]).await;
    let slow =
        FaultyUpstream::start_with_delay(Duration::from_millis(700), |asked, _| vec![address(asked, 9, 60)])
            .await;
    let upstreams = format!("{},{}", failing.address, slow.address);
    let fixture = start_with_links(&LINKS, &["--upstream", &upstreams]).await;
    for _ in 0..4 {
        let question = query("web-default.lb.internal. A");
        let answer = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &question).await;
        assert_eq!(data(&answer), "a.example.com. 192.0.2.9");
    }
}

#[tokio::test]
async fn upstream_without_edns_is_retried_without_edns() {
    let old = FaultyUpstream::start(|asked, _| {
        if asked.edns.is_some() {
            vec![error(asked, ResponseCode::FormErr)]
        } else {
            vec![address(asked, 9, 60)]
        }
    })
    .await;
    let fixture = with_upstream(&LINKS, old.address).await;
    for (question, expected) in
        [("web-default.lb.internal. A", "a.example.com. 192.0.2.9"), ("other.example. A", "192.0.2.9")]
    {
        let answer = ask_within(IN_TIME, fixture.linker.dns, &query(question)).await;
        assert_eq!(data(&answer), expected);
    }
}

#[tokio::test]
async fn upstream_error_without_a_question_is_accepted() {
    let terse = FaultyUpstream::start(|asked, _| {
        vec![Message::error_msg(asked.metadata.id, OpCode::Query, ResponseCode::ServFail)]
    })
    .await;
    let fixture = with_upstream(&LINKS, terse.address).await;
    let answer = ask_within(IN_TIME, fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(ede(&answer), Some(0), "the upstream has answered: {}", show(&answer));
}

#[tokio::test]
async fn only_records_of_the_chain_are_taken_from_an_upstream() {
    let liar = FaultyUpstream::start(|asked, _| {
        let mut answer = address(asked, 9, 60);
        for name in ["web-default.lb.internal.", "www.bank.example."] {
            let lie = RData::A(A::new(192, 0, 2, 66));
            answer.add_answer(Record::from_rdata(Name::from_ascii(name).unwrap(), 60, lie.clone()));
            answer.add_authority(Record::from_rdata(Name::from_ascii(name).unwrap(), 60, lie));
        }
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&LINKS, liar.address).await;
    let answer = ask_within(IN_TIME, fixture.linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(
        without_foreign_ttls(&show(&answer)),
        "No Error aa rd ra | a.example.com. TTL IN A 192.0.2.9, web-default.lb.internal. 5 IN CNAME a.example.com. |  | "
    );
}

#[tokio::test]
async fn chain_back_into_the_zone_is_answered_from_the_zone() {
    let upstream = CoreDns::cloud().await;
    let fixture = with_upstream(
        &[("home", "{hostname: back.example.com}"), ("web", "{hostname: a.example.com}")],
        upstream.address,
    )
    .await;
    let answer = ask_within(IN_TIME, fixture.linker.dns, &query("home-default.lb.internal. A")).await;
    assert_eq!(
        without_foreign_ttls(&show(&answer)),
        "No Error aa rd ra | a.example.com. TTL IN A 192.0.2.10, back.example.com. TTL IN CNAME web-default.lb.internal., \
         home-default.lb.internal. 5 IN CNAME back.example.com., web-default.lb.internal. 5 IN CNAME a.example.com. |  | "
    );
}

#[tokio::test]
async fn extended_rcode_is_preserved() {
    let cookie = FaultyUpstream::start(|asked, _| {
        let mut answer = error(asked, ResponseCode::BADCOOKIE);
        answer.edns = Some(hickory_proto::op::Edns::new());
        vec![answer]
    })
    .await;
    let fixture = with_upstream(&LINKS, cookie.address).await;
    let answer = ask_within(IN_TIME, fixture.linker.dns, &query("other.example. A")).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::BADCOOKIE);
    let mut plain = query("other.example. A");
    plain.edns = None;
    let answer = ask_udp(fixture.linker.dns, &plain).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}
