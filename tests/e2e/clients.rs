//! Access by client: links for every client, names outside the zones for the clients in `--client-nets`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::svcb::SVCB;
use hickory_proto::rr::rdata::{HTTPS, MX};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::answers::{Fixture, start_with_links};
use crate::harness::dns::{FaultyUpstream, address, ask_repeatedly_from, ede, error, query, show};
use crate::harness::eventually;
use crate::harness::linker::run_to_end;

const LISTED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const WEB: [(&str, &str); 1] = [("web", "{hostname: a.example.com}")];

/// Starts an upstream that answers for every name: A, AAAA, HTTPS and SVCB with a record of that type, other types with
/// an MX record.
async fn upstream() -> FaultyUpstream {
    FaultyUpstream::start(|asked, _| {
        let name = asked.queries[0].name().clone();
        let root = Name::root;
        let data = match asked.queries[0].query_type() {
            RecordType::A | RecordType::AAAA => return vec![address(asked, 10, 60)],
            RecordType::HTTPS => RData::HTTPS(HTTPS(SVCB::new(1, root(), vec![]))),
            RecordType::SVCB => RData::SVCB(SVCB::new(1, root(), vec![])),
            _ => RData::MX(MX::new(10, root())),
        };
        let mut answer = error(asked, ResponseCode::NoError);
        answer.add_answer(Record::from_rdata(name, 60, data));
        vec![answer]
    })
    .await
}

/// Sends a query from an address, by UDP and TCP, several times each, and again if an answer says that the upstream is
/// late.
async fn ask_from(source: IpAddr, server: SocketAddr, question: &str) -> Vec<Message> {
    let look = || async {
        let answers = ask_repeatedly_from(source, server, &query(question)).await;
        answers.iter().all(|answer| ede(answer) != Some(22)).then_some(answers)
    };
    eventually(question, look).await
}

async fn start(upstream: &FaultyUpstream, args: &[&str]) -> Fixture {
    let upstream = upstream.address.to_string();
    start_with_links(&WEB, &[&["--upstream", &upstream, "--client-nets", "127.0.0.2"], args].concat()).await
}

fn is_prohibited(answer: &Message) -> bool {
    answer.metadata.response_code == ResponseCode::Refused
        && answer.answers.is_empty()
        && ede(answer) == Some(18)
        && !answer.metadata.recursion_available
}

#[tokio::test]
async fn unlisted_client_gets_addresses_but_no_mx_of_a_target() {
    let upstream = upstream().await;
    let fixture = start(&upstream, &[]).await;
    // A cached answer for one client is never given to a client with other permissions.
    for source in [OTHER, LISTED, OTHER, LISTED] {
        for qtype in ["A", "AAAA", "HTTPS", "SVCB"] {
            for answer in
                ask_from(source, fixture.linker.dns, &format!("web.default.lb.internal. {qtype}")).await
            {
                assert_eq!((answer.answers.len(), ede(&answer)), (2, None), "{source} {}", show(&answer));
                assert_eq!(
                    answer.metadata.recursion_available,
                    source == LISTED,
                    "{source} {}",
                    show(&answer)
                );
            }
        }
        let expected = if source == LISTED { (2, None) } else { (1, Some(18)) };
        for answer in ask_from(source, fixture.linker.dns, "web.default.lb.internal. MX").await {
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            assert_eq!((answer.answers.len(), ede(&answer)), expected, "{source} {}", show(&answer));
        }
    }
}

#[tokio::test]
async fn names_outside_the_zones_are_for_listed_clients() {
    let upstream = upstream().await;
    let fixture = start(&upstream, &[]).await;
    let linker = &fixture.linker;
    for source in [OTHER, LISTED, OTHER, LISTED] {
        // `--client-nets` also applies to a query for the name of a link's target.
        for question in ["other.example. A", "a.example.com. A", "lb.internal. DS", ". NS"] {
            for answer in ask_from(source, linker.dns, question).await {
                let is_listed = source == LISTED;
                assert_eq!(is_prohibited(&answer), !is_listed, "{source} {question}: {}", show(&answer));
                assert_eq!(
                    answer.answers.len(),
                    usize::from(is_listed),
                    "{source} {question}: {}",
                    show(&answer)
                );
            }
        }
    }
    let counted = format!("lb_linker_dns_prohibited_requests_total{{server=\"dns://{}\"}}", linker.dns);
    linker.counts(&counted, 48.0).await;
    linker.line("refused a query of client 127.0.0.1 for a name outside the zones: its").await;
    assert_eq!(linker.logged("--client-nets"), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn ipv4_mapped_addresses_are_unmapped_before_the_check() {
    let upstream = upstream().await;
    let fixture = start(&upstream, &["--listen", "[::]:0"]).await;
    // The harness's own --listen precedes this test's in the log.
    let of_line = |line: String| line.split_once("DNS on ")?.1.split_once(',')?.0.parse::<SocketAddr>().ok();
    let port = fixture.linker.log().into_iter().filter_map(of_line).next_back().unwrap().port();
    let mut sources = vec![(OTHER, false), (LISTED, true)];
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        sources.push((Ipv6Addr::LOCALHOST.into(), false));
    }
    for (source, is_listed) in sources {
        let at = if source.is_ipv4() { source } else { Ipv6Addr::LOCALHOST.into() };
        for answer in ask_from(source, SocketAddr::new(at, port), "other.example. A").await {
            assert_eq!(is_prohibited(&answer), !is_listed, "{source} {}", show(&answer));
        }
        for answer in ask_from(source, SocketAddr::new(at, port), "web.default.lb.internal. A").await {
            assert_eq!(answer.answers.len(), 2, "{source} {}", show(&answer));
        }
    }
}

#[tokio::test]
async fn client_nets_any_allows_every_client() {
    let upstream = upstream().await;
    let address = upstream.address.to_string();
    let fixture = start_with_links(&WEB, &["--upstream", &address, "--client-nets", "any"]).await;
    for answer in ask_from(OTHER, fixture.linker.dns, "other.example. A").await {
        assert_eq!(answer.answers.len(), 1, "{}", show(&answer));
    }
}

#[test]
fn client_nets_are_checked_and_printed() {
    let directory = tempfile::tempdir().unwrap();
    let check = |nets: &[&str]| {
        let args = ["check", "--upstream", "192.0.2.1", "--manifests", directory.path().to_str().unwrap()];
        let output = run_to_end([&args[..], nets].concat());
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.code(), text)
    };
    let (code, text) = check(&[]);
    let default = "    clients 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 198.18.0.0/15 169.254.0.0/16 127.0.0.0/8 \
                   fc00::/7 fe80::/10 ::1/128\n";
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(default), "{text}");
    let deployed = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/corefile/configmap.yaml");
    assert!(std::fs::read_to_string(deployed).unwrap().contains(default), "the same as the default");
    let (code, text) = check(&["--client-nets", "2001:db8::1/32,240.0.0.0/4,192.0.2.7"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("    clients 2001:db8::/32 240.0.0.0/4 192.0.2.7/32\n"), "{text}");
    for (nets, error) in [
        ("10.0.0.0/8,any", "--client-nets any can't be combined with networks"),
        ("10.0.0/8", "not a network such as 192.0.2.0/24 or 2001:db8::/32, nor \"any\""),
    ] {
        let (code, text) = check(&["--client-nets", nets]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(error), "{text}");
    }
}
