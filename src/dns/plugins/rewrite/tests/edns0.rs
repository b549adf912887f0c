use std::fmt::Write as _;
use std::net::SocketAddr;

use hickory_proto::op::{Edns, Message};
use hickory_proto::rr::rdata::opt::EdnsOption;

use super::*;
use crate::dns::chain::request::Purpose;
use crate::dns::message::header::disable_empty_subnets;
use crate::dns::message::reply::Reply;
use crate::dns::net::Protocol;
use crate::dns::plugins::tests::fake_upstream::FakeUpstream;

/// Returns options in wire form as `CODE:HEX`, separated by blanks.
fn show(mut wire: &[u8]) -> String {
    let mut text = String::new();
    while let Some(([a, b, c, d], rest)) = wire.split_first_chunk() {
        let (data, rest) = rest.split_at(usize::from(u16::from_be_bytes([*c, *d])));
        let _ = write!(text, " {}:", u16::from_be_bytes([*a, *b]));
        data.iter().for_each(|byte| text += &format!("{byte:02x}"));
        wire = rest;
    }
    text.trim_start().to_owned()
}

/// Sends a query for `a.b. MX` with these EDNS options, and returns the options that the next plugin sees.
async fn options(context: &TestServer, of_client: &[u16]) -> String {
    let (request, _) = served(context, of_client).await;
    show(request.options.as_deref().unwrap_or_default())
}

/// Returns the request after it is answered, and the reply.
async fn served(context: &TestServer, of_client: &[u16]) -> (Request, Reply) {
    let mut request = context.request("a.b. MX");
    if !of_client.is_empty() {
        let mut edns = Edns::new();
        for code in of_client {
            edns.options_mut().insert(EdnsOption::Unknown(*code, vec![0xc1]));
        }
        request.edns = Some(edns);
    }
    let reply = Server::serve(&mut request).await.unwrap();
    (request, reply)
}

fn with_rules(rules: &str) -> TestServer {
    let lines: Vec<String> = rules.split(';').map(|rule| format!("rewrite continue edns0 {rule}")).collect();
    server_with_rules(&lines.join("\n"), NextPlugin::Question)
}

#[tokio::test]
async fn edns0_rules_change_the_options() {
    for (rules, of_client, expected) in [
        ("local set 0xffee abcd", &[][..], "65518:61626364"),
        ("LOCAL SET 0XFFEE 0x6162", &[], "65518:6162"),
        ("local set 65001 \"\"", &[], "65001:"),
        ("local set 65001 a; local set 65001 b revert", &[], "65001:62"),
        ("local append 65001 a; local append 65001 b", &[], "65001:61 65001:62"),
        ("local replace 65001 a", &[], ""),
        ("local replace 65001 a", &[65001], "65001:61"),
        ("local append 65001 a", &[65001], "65001:61"),
        ("local replace 65001 a; local replace 65001 b", &[65001], "65001:62"),
        ("local unset 65001; local replace 65001 a", &[65001], ""),
        ("local append 1 a; local set 1 b; local set 1 c", &[1], "1:63 1:61"),
        ("local set 65001 a; local set 010 b; local unset 65001", &[], "8:62"),
        ("nsid set; nsid set", &[], "3:"),
        ("nsid append; nsid append", &[], "3: 3:"),
        ("nsid replace", &[], ""),
        ("nsid set; nsid unset", &[], ""),
        ("subnet set 24 56", &[], "8:000118000a0000"),
        ("subnet set 12 56", &[], "8:00010c000a00"),
        ("subnet set 0 0; subnet append 24 56", &[], "8:00010000"),
        ("subnet set 32 128; subnet replace 8 8; local set 65001 a", &[], "8:000108000a 65001:61"),
        ("local set 1 {qname}; local set 2 {qtype}", &[], "1:612e622e 2:000f"),
        ("local set 1 {client_ip}; local set 2 {client_port}", &[], "1:0a000001 2:14e9"),
        ("local set 1 {server_ip}; local set 2 {server_port}", &[], "1:c0000235 2:0035"),
        ("local set 1 {protocol}; local append 1 {protocol}", &[], "1:756470"),
        ("local set 1 {some/label}; local set 2 a", &[], "2:61"),
    ] {
        let mut context = with_rules(rules);
        context.request.local = SocketAddr::new([192, 0, 2, 53].into(), 53);
        assert_eq!(options(&context, of_client).await, expected, "{rules}");
    }
    let ipv6 = with_rules("subnet set 24 33; local set 1 {client_ip}").from("2001:db8:ffff::1");
    let expected = "8:0002210020010db880 1:20010db8ffff00000000000000000001";
    assert_eq!(options(&ipv6, &[]).await, expected);
}

#[tokio::test]
async fn options_have_512_bytes_at_most() {
    let data = "x".repeat(250);
    let rules: Vec<String> = (1..=3).map(|code| format!("local append {code} {data}")).collect();
    let context = with_rules(&rules.join(";"));
    let expected = format!("1:{0} 2:{0}", "78".repeat(250));
    assert_eq!(options(&context, &[]).await, expected);
    let replacing = with_rules(&rules.join(";").replace("append 3", "set 2"));
    assert_eq!(options(&replacing, &[]).await, expected, "what is replaced doesn't count");
}

#[tokio::test]
async fn edns0_rule_that_matches_ends_the_search() {
    for (rules, expected) in [
        ("edns0 nsid set", "a.b. IN 15"),
        ("edns0 nsid unset", "a.b. IN 15"),
        ("edns0 nsid replace", "c.d. IN 15"),
        ("edns0 local set 1 {some/label}", "c.d. IN 15"),
        ("continue edns0 nsid set", "c.d. IN 15"),
    ] {
        let rules = format!("rewrite {rules}\nrewrite name a.b c.d");
        assert_eq!(asked(&rules, "a.b. MX").await, expected, "{rules}");
        let context = server_with_rules(&rules, NextPlugin::Question);
        let request = context.request("a.b. MX");
        let block = &context.server.blocks().next().unwrap().1;
        let seen = block.access_rules[0].rewritten(&request, &request.query).unwrap();
        assert_eq!(format!("{} IN 15", seen.name()), expected, "{rules}");
    }
}

#[tokio::test]
async fn clients_options_are_not_in_look_ups_of_targets() {
    let mut context = with_rules("local set 1 a; subnet set 24 56; local replace 65001 b");
    assert_eq!(options(&context, &[65001]).await, "1:61 8:000118000a0000 65001:62");
    context.request.purpose =
        Purpose::Target { max_negative_age: std::time::Duration::ZERO, may_use_cached: true };
    assert_eq!(options(&context, &[65001]).await, "1:61");
}

#[tokio::test]
async fn clients_do_not_decide_which_rules_shared_look_ups_match() {
    let long = "x".repeat(250);
    for (rules, expected) in [
        ("edns0 local set 1 {some/label}", "a.b."),
        ("edns0 local replace 65001 x", "c.d."),
        ("edns0 local append 65001 {qname}", "a.b."),
        (
            &*format!(
                "continue edns0 local set 1 {long}\nrewrite continue edns0 local replace 65001 {long}\nrewrite edns0 \
                 local set 2 xx"
            ),
            "a.b.",
        ),
    ] {
        let mut context =
            server_with_rules(&format!("rewrite {rules}\nrewrite name a.b c.d"), NextPlugin::Question);
        context.request.purpose =
            Purpose::Target { max_negative_age: std::time::Duration::ZERO, may_use_cached: true };
        for of_client in [&[][..], &[65001]] {
            let (request, _) = served(&context, of_client).await;
            assert_eq!(request.query.name().to_string(), expected, "{rules} {of_client:?}");
        }
    }
}

#[tokio::test]
async fn answers_that_depend_on_the_client_are_not_shared() {
    for (rules, is_shared) in [
        ("local set 1 {some/label}", false),
        ("local replace 65001 x", false),
        ("local append 65001 {qname}", false),
        ("local append 65001 a; local set 65001 b", false),
        ("local set 65001 a; local set 65001 b", true),
        ("local unset 65001; local replace 65001 x", true),
        ("local append 65001 x", true),
        ("local set 65001 {qname}", true),
    ] {
        for of_client in [&[][..], &[65001]] {
            let (_, reply) = served(&with_rules(rules), of_client).await;
            assert_eq!(reply.is_cacheable, is_shared, "{rules} {of_client:?}");
        }
    }
}

#[tokio::test]
async fn empty_subnet_of_a_client_is_a_subnet() {
    let mut sent = Message::query();
    let mut edns = Edns::new();
    edns.options_mut().insert(EdnsOption::Unknown(8, vec![0; 4]));
    sent.set_edns(edns);
    let mut sent = sent.to_vec().unwrap();
    disable_empty_subnets(&mut sent);
    let edns = Message::from_vec(&sent).unwrap().edns;
    for (rule, expected) in [("subnet replace 24 56", "8:000118000a0000"), ("local replace 65001 x", "")] {
        let mut request = with_rules(rule).request("a.b. MX");
        request.edns.clone_from(&edns);
        Server::serve(&mut request).await.unwrap();
        assert_eq!(show(request.options.as_deref().unwrap_or_default()), expected, "{rule}");
    }
}

#[tokio::test]
async fn protocol_of_a_query_by_quic_is_udp() {
    let mut context = with_rules("local set 1 {protocol}");
    context.request.protocol = Protocol::Quic;
    assert_eq!(options(&context, &[]).await, "1:756470");
}

#[tokio::test]
async fn upstreams_get_the_options_and_caches_keep_them_apart() {
    let upstream = FakeUpstream::good(1).await;
    let lines = format!("rewrite edns0 subnet set 24 56\ncache\nforward . {}", upstream.address);
    let context = TestServer::block(&lines).edns(1232);
    for (client, queries) in [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.1.1", 2), ("10.0.0.1", 2)] {
        let reply = context.clone().from(client).reply("a.example. A").await.unwrap();
        assert!(reply.options.is_empty() && !reply.is_cacheable && reply.validity.is_none(), "{reply:?}");
        assert_eq!(upstream.count(), queries, "{client}");
    }
    let of_queries: Vec<Edns> =
        upstream.asked.lock().unwrap().iter().filter_map(|(it, _)| it.edns.clone()).collect();
    let subnets: Vec<String> = of_queries
        .iter()
        .flat_map(|edns| edns.options().as_ref())
        .map(|(_, option)| format!("{:02x?}", Vec::<u8>::try_from(option).unwrap()))
        .collect();
    assert_eq!(subnets, ["[00, 01, 18, 00, 0a, 00, 00]", "[00, 01, 18, 00, 0a, 00, 01]"]);
}

#[test]
fn invalid_edns0_rules_are_rejected_with_their_position() {
    let long = format!("local set 1 {}", "x".repeat(257));
    for (rule, error) in [
        ("", "2:9: edns0 needs local, nsid or subnet, and set, append, replace or unset"),
        ("nsid", "2:9: edns0 needs local, nsid or subnet, and set, append, replace or unset"),
        ("nsid put", "2:20: \"put\" isn't set, append, replace or unset"),
        ("cookie set", "2:15: \"cookie\" isn't local, nsid or subnet"),
        ("nsid set x", "2:24: \"x\" is one word too many for edns0"),
        ("nsid unset revert", "2:26: \"revert\" is one word too many for edns0"),
        ("local set 1", "2:15: local needs a code and the data of the option"),
        ("local unset", "2:15: local needs the code of the option"),
        ("local unset 1 2", "2:29: \"2\" is one word too many for edns0"),
        ("local set 65536 a", "2:25: \"65536\" isn't the code of an EDNS option, such as 65001 or 0xffee"),
        ("local set +1 a", "2:25: \"+1\" isn't the code of an EDNS option, such as 65001 or 0xffee"),
        ("local set 1 0x123", "2:27: \"0x123\" isn't data, such as abcd or 0x61626364"),
        ("local set 1 0xgg", "2:27: \"0xgg\" isn't data, such as abcd or 0x61626364"),
        (&long, "2:27: the option has 257 bytes, and at most 256 are allowed"),
        (
            "local set 1 {dest}",
            "2:27: \"{dest}\" isn't {qname}, {qtype}, {client_ip}, {client_port}, {server_ip}, {server_port}, {protocol}, \
             or a label such as {kubernetes/client-namespace}",
        ),
        ("subnet set 24", "2:15: subnet needs the numbers of bits for IPv4 and for IPv6, such as 24 56"),
        ("subnet set 33 56", "2:26: \"33\" isn't a number of bits from 0 to 32"),
        ("subnet set 24 129", "2:29: \"129\" isn't a number of bits from 0 to 128"),
    ] {
        assert_eq!(
            TestServer::error(&format!("rewrite edns0 {rule}")),
            format!("Corefile:{error}"),
            "{rule}"
        );
    }
}

#[test]
fn labels_without_a_value_are_warned_of() {
    for (lines, expected) in [
        (
            "rewrite edns0 local set 1 {some/label}",
            "2:1: {some/label} has no effect here: the block has no metadata",
        ),
        (
            "metadata\nrewrite edns0 local set 1 {geoip/city/name}",
            "3:1: {geoip/city/name} has no effect here: the block has no geoip",
        ),
        (
            "metadata\nrewrite edns0 local set 1 {view/name}",
            "3:1: {view/name} has no effect here: the block has no view",
        ),
    ] {
        let warnings = TestServer::builder(lines).warnings;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("Corefile:{expected}")]);
    }
}
