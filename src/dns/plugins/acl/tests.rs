use hickory_proto::op::ResponseCode;

use crate::dns::chain::server::Server;
use crate::dns::plugins::tests::support::TestServer;

const WHOAMI: &str = "NOERROR aa | | | ";

async fn ask(lines: &str, client: &str, question: &str) -> String {
    let context = TestServer::block(&format!("acl {lines}\nwhoami")).from(client);
    let answer = context.ask(question).await;
    if answer.starts_with(WHOAMI) { "allowed".to_owned() } else { answer }
}

#[tokio::test]
async fn first_matching_rule_decides() {
    let rules = "{\nallow net 192.0.2.0/24\nBLOCK type A\nfilter type AAAA MX net 198.51.100.1 2001:db8::/32\n\
                 drop net *\n}";
    for (client, question, expected) in [
        ("192.0.2.1", "example.org. A", "allowed"),
        ("192.0.3.1", "example.org. A", "REFUSED | | |"),
        ("198.51.100.1", "example.org. AAAA", "NOERROR | | |"),
        ("198.51.100.1", "example.org. MX", "NOERROR | | |"),
        ("2001:db8::7", "example.org. MX", "NOERROR | | |"),
        ("198.51.100.2", "example.org. MX", "silence"),
        ("198.51.100.1", "example.org. TXT", "silence"),
    ] {
        assert_eq!(ask(rules, client, question).await, expected, "{client} {question}");
    }
}

#[tokio::test]
async fn internal_query_is_not_denied() {
    let context =
        TestServer::block("acl {\nallow net 10.0.0.0/8\nblock\n}\ntemplate IN ANY {\nrcode NOERROR\n}");
    let question = context.request("a. HINFO").query;
    let reply = Server::serve(&mut context.server.internal_request(question)).await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
    assert_eq!(context.from("127.0.0.1").ask("a. HINFO").await, "REFUSED | | |");
}

#[tokio::test]
async fn types_and_networks_are_parsed_in_all_forms() {
    for (rule, client, question, expected) in [
        ("block", "10.0.0.1", "a. A", "REFUSED | | |"),
        ("block net * type *", "10.0.0.1", "a. A", "REFUSED | | |"),
        ("block net 10.0.0.1", "10.0.0.1", "a. A", "REFUSED | | |"),
        ("block net 10.0.0.1", "10.0.0.2", "a. A", "allowed"),
        ("block net 10.0.0.77/24", "10.0.0.2", "a. A", "REFUSED | | |"),
        ("block net 0.0.0.0/0", "2001:db8::1", "a. A", "allowed"),
        ("block net ::/0", "10.0.0.1", "a. A", "allowed"),
        ("block net 2001:db8::1", "2001:db8::1", "a. A", "REFUSED | | |"),
        ("block net ::ffff:10.0.0.0/104", "10.9.0.1", "a. A", "REFUSED | | |"),
        ("block net 10.0.0.0/24 10.0.0.0/8 192.0.2.1", "10.9.0.1", "a. A", "REFUSED | | |"),
        ("block Type A NET 10.0.0.1 type MX", "10.0.0.1", "a. MX", "REFUSED | | |"),
        ("block Type A NET 10.0.0.1 type MX", "10.0.0.1", "a. A", "REFUSED | | |"),
        ("block Type A NET 10.0.0.1 type MX", "10.0.0.1", "a. TXT", "allowed"),
        ("block type A net 192.0.2.1 net *", "10.0.0.1", "a. A", "REFUSED | | |"),
        ("block type ANY", "10.0.0.1", "a. A", "allowed"),
    ] {
        let found = ask(&format!("{{\n{rule}\n}}"), client, question).await;
        assert_eq!(found, expected, "{rule}: {client} {question}");
    }
    assert_eq!(ask("", "10.0.0.1", "a. A").await, "allowed", "no rule at all");
}

#[tokio::test]
async fn acl_lines_apply_to_their_zones_in_order() {
    let context = TestServer::corefile(
        "example.org {\nacl A.example.org b.example.org {\nallow type MX\nblock net 10.0.0.1\n}\n\
         acl {\ndrop type TXT MX\n}\nwhoami\n}\n",
    );
    for (question, expected) in [
        ("x.a.Example.org. A", "REFUSED"),
        ("b.example.org. TXT", "REFUSED"),
        ("b.example.org. MX", "NOERROR"),
        ("example.org. A", "NOERROR"),
        ("example.org. TXT", "silence"),
        ("ba.example.org. MX", "silence"),
    ] {
        let answer = context.ask(question).await;
        assert_eq!(answer.split(' ').next(), Some(expected), "{question}");
    }
    assert_eq!(
        context.metrics("coredns_acl"),
        [
            "coredns_acl_allowed_requests_total{server=\"dns://:53\",view=\"\"} 2",
            "coredns_acl_blocked_requests_total{server=\"dns://:53\",view=\"\",zone=\"a.example.org.\"} 1",
            "coredns_acl_blocked_requests_total{server=\"dns://:53\",view=\"\",zone=\"b.example.org.\"} 1",
            "coredns_acl_dropped_requests_total{server=\"dns://:53\",view=\"\",zone=\"example.org.\"} 2",
        ]
    );
}

#[tokio::test]
async fn denied_client_with_edns_gets_an_extended_error() {
    let context = TestServer::block("acl {\nblock type A\nfilter\n}\nwhoami").edns(1232);
    for (question, code) in [("a. A", 15), ("a. MX", 17)] {
        let ede = context.reply(question).await.unwrap().ede.unwrap();
        assert_eq!((ede.code, ede.text), (code, ""));
    }
    assert_eq!(
        context.metrics("filtered"),
        ["coredns_acl_filtered_requests_total{server=\"dns://:53\",view=\"\",zone=\".\"} 1"]
    );
}

#[test]
fn denied_client_is_offered_no_recursion() {
    let stops = |lines: &str, client: &str| {
        let context = TestServer::block(&format!("acl {lines}\nwhoami")).from(client);
        let request = context.request("www.example. A");
        let (_, block) = context.server.blocks().next().unwrap();
        block.access_rules[0].allows_recursion(&request, &request.query)
    };
    let private = "{\nallow net 10.0.0.0/8\nblock\n}";
    assert_eq!(stops(private, "10.0.0.1"), None);
    assert_eq!(stops(private, "192.0.2.1"), Some(false));
    for (lines, expected) in [
        ("{\nfilter\n}", Some(false)),
        ("{\ndrop type A\n}", Some(false)),
        ("{\nblock type MX\n}", None),
        ("www.example {\nblock\n}", Some(false)),
        ("example.org {\nblock\n}", None),
    ] {
        assert_eq!(stops(lines, "10.0.0.1"), expected, "{lines}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        (
            "acl {\ndeny\n}",
            "Corefile:3:1: acl has no option \"deny\"; its options are allow, block, filter, drop",
        ),
        ("acl {\nallow 10.0.0.0/8\n}", "Corefile:3:7: \"10.0.0.0/8\" isn't type or net"),
        ("acl {\nallow type net *\n}", "Corefile:3:7: type needs record types such as A, or *"),
        (
            "acl {\nallow type A net\n}",
            "Corefile:3:14: net needs addresses, networks such as 10.0.0.0/8, or *",
        ),
        ("acl {\nallow type a\n}", "Corefile:3:12: \"a\" isn't a record type, in capitals, such as AAAA"),
        (
            "acl {\nallow type None\n}",
            "Corefile:3:12: \"None\" isn't a record type, in capitals, such as AAAA",
        ),
        (
            "acl {\nallow net 10.0.0.0/33\n}",
            "Corefile:3:11: \"10.0.0.0/33\" isn't an address, or a network such as 10.0.0.0/8",
        ),
        (
            "acl {\nallow net * 10.0.0\n}",
            "Corefile:3:13: \"10.0.0\" isn't an address, or a network such as 10.0.0.0/8",
        ),
        ("acl {\nallow {\nx\n}\n}", "Corefile:3:1: allow takes no braces"),
        ("acl a..b", "Corefile:2:5: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
    ] {
        assert_eq!(TestServer::error(lines), expected);
    }
}
