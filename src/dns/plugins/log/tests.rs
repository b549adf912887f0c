use std::time::Duration;

use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record};
use serde_json::json;

use crate::dns::message::ede::Ede;
use crate::dns::net::Protocol;
use crate::dns::plugins::kubernetes::tests::{list, server};
use crate::dns::plugins::log::*;
use crate::dns::plugins::tests::support::TestServer;

/// Sends a query with the ID and the size of CoreDNS's example, and returns the log lines.
async fn logged(context: &TestServer, question: &str) -> Vec<String> {
    let mut context = context.clone();
    (context.request.metadata.id, context.request.size) = (1234, 41);
    context.ask(question).await;
    context.lines()
}

#[tokio::test(start_paused = true)]
async fn line_has_the_format_of_coredns() {
    let context = TestServer::block("log\nwhoami");
    let expected =
        "[INFO] 10.0.0.1:5353 - 1234 \"A IN example.org. udp 41 false 4096\" NOERROR qr,aa,rd 91 0s";
    assert_eq!(logged(&context.clone().edns(4096), "Example.ORG. A").await, [expected]);
    let mut context = context.from("::1").edns(100);
    context.request.metadata.checking_disabled = true;
    context.request.metadata.recursion_desired = false;
    context.request.edns.as_mut().unwrap().set_dnssec_ok(true);
    let expected = "[INFO] [::1]:5353 - 1234 \"TXT IN a. udp 41 true 512\" NOERROR qr,aa,cd 73 0s";
    assert_eq!(logged(&context, "a. TXT").await, [expected]);
    context.request.protocol = Protocol::Tls;
    let expected = "[INFO] [::1]:5353 - 1234 \"TXT IN a. tcp 41 true 65535\" NOERROR qr,aa,cd 73 0s";
    assert_eq!(logged(&context, "a. TXT").await, [expected]);
}

#[tokio::test(start_paused = true)]
async fn failure_is_logged_with_its_rcode() {
    let expected = "[INFO] 10.0.0.1:5353 - 1234 \"A IN example.org. udp 41 false 512\" SERVFAIL qr,rd 29 0s";
    assert_eq!(logged(&TestServer::block("log"), "example.org. A").await, [expected]);
}

#[tokio::test(start_paused = true)]
async fn placeholders_of_a_format_are_replaced() {
    for (format, expected) in [
        ("{combined}", "10.0.0.1:5353 - 1234 \"A IN a. udp 41 false 512\" NOERROR qr,aa,rd 61 0s \"0\""),
        ("\"{proto} Request: {name} {type} {>id}\"", "udp Request: a. A 1234"),
        ("\"{local} {nothing}\"", "127.0.0.1 {nothing}"),
    ] {
        let context = TestServer::block(&format!("log . {format}\nwhoami"));
        assert_eq!(logged(&context, "a. A").await, [format!("[INFO] {expected}")]);
    }
}

#[tokio::test]
async fn first_line_with_a_matching_name_counts() {
    let context = TestServer::block(
        "log example.org B.example \"1 {name}\" {\nclass error\n}\nlog example \"2 {name}\"\nwhoami",
    );
    for (question, expected) in [
        ("www.example.org. A", vec![]),
        ("b.example. A", vec![]),
        ("a.example. A", vec!["[INFO] 2 a.example."]),
        ("example.com. A", vec![]),
    ] {
        assert_eq!(logged(&context, question).await, expected, "{question}");
    }
}

#[tokio::test]
async fn answers_without_a_log_line_are_kept() {
    const PLUGINS: &str =
        "chaos\nany\ntemplate ANY ANY a.test {\nrcode NXDOMAIN\n}\nhosts /dev/null {\nfallthrough\n}";
    for (log, is_kept) in [
        ("", true),
        ("log . {\nclass error\n}", true),
        ("log b.test", true),
        ("log . {\nclass success\n}", false),
        ("log", false),
    ] {
        let (server, cluster) = server(&format!("{log}\n{PLUGINS}\nkubernetes cluster.local"));
        list(&cluster);
        let reply = server.reply("web.a.svc.cluster.local. A").await.unwrap();
        assert_eq!(reply.validity.is_some(), is_kept, "{log}");
    }
}

#[tokio::test]
async fn only_the_given_classes_are_logged() {
    for (classes, success, error) in [
        ("class success", 1, 0),
        ("class denial", 0, 0),
        ("class denial error", 0, 1),
        ("class denial\nclass success", 1, 0),
        ("class error all", 1, 1),
        ("", 1, 1),
    ] {
        for (plugin, expected) in [("whoami", success), ("", error)] {
            let context = TestServer::block(&format!("log . {{\n{classes}\n}}\n{plugin}"));
            assert_eq!(logged(&context, "a. A").await.len(), expected, "{classes:?} {plugin}");
        }
    }
}

fn shown(request: &Request, reply: Option<&Reply>, format: &str) -> String {
    let duration = Duration::from_nanos(307_024);
    Format::parse(format).text(&LogEntry { request, name: "a.", reply, duration: Some(duration) })
}

#[test]
fn dropped_query_has_neither_rcode_nor_flags() {
    let request = TestServer::block("whoami").request("a. A");
    assert_eq!(shown(&request, None, "{rcode} {>rflags} {rsize} {duration}"), "- - 0 0.000307024s");
}

#[test]
fn rsize_is_of_the_whole_answer_and_flags_show_truncation() {
    let context = TestServer::block("whoami");
    let format = "{>rflags} {rsize}";
    let (plain, large) = (context.request("a. A"), context.clone().edns(1232).request("a. A"));
    let address =
        |last| Record::from_rdata(Name::from_ascii("a.").unwrap(), 5, RData::A(A::new(10, 0, 0, last)));
    let mut reply = plain.reply("");
    // The query has 19 bytes; an address record has 17 bytes, or 16 bytes with a compressed name.
    reply.records.answers = (0..30).map(address).collect();
    assert_eq!(shown(&plain, Some(&reply), format), "qr,rd 529", "499 bytes are sent");
    reply.records.answers = (0..40).map(address).collect();
    assert_eq!(shown(&plain, Some(&reply), format), "qr,tc,rd 699");
    assert_eq!(shown(&large, Some(&reply), format), "qr,rd 699");
    // 19 bytes for the query, 11 for OPT, 6 for the extended error without its text, 16 for each address.
    reply.ede = Some(Ede::STALE);
    for (limit, flags) in [(676, "qr,rd"), (675, "qr,tc,rd")] {
        let request = context.clone().edns(limit).request("a. A");
        assert_eq!(shown(&request, Some(&reply), format), format!("{flags} 699"), "{limit}");
    }
}

#[test]
fn internal_look_up_has_the_size_of_its_wire_form() {
    let mut request = TestServer::block("whoami").edns(1232).request("a. A");
    (request.depth, request.size) = (1, 41);
    assert_eq!(shown(&request, None, "{size}"), "30");
}

#[test]
fn json_has_numbers_and_booleans() {
    let mut request = TestServer::block("whoami").from("::1").request("a. A");
    (request.metadata.id, request.size) = (7, 19);
    let reply = request.reply("");
    let seen = LogEntry {
        request: &request,
        name: "a.",
        reply: Some(&reply),
        duration: Some(Duration::from_millis(5)),
    };
    let parts = |seen: &LogEntry<'_>, format| -> serde_json::Map<_, _> {
        let parts = Format::parse(format).parts(seen);
        parts.into_iter().map(|(name, value)| (name.into_owned(), value)).collect()
    };
    assert_eq!(
        serde_json::Value::from(parts(&seen, "{combined}")),
        json!({
            "remote": "::1", "port": 5353, "id": 7, "type": "A", "class": "IN", "name": "a.", "proto": "udp",
            "size": 19, "do": false, "bufsize": 512, "rcode": "NOERROR", "rflags": "qr,rd", "rsize": 19,
            "duration": 0.005, "opcode": 0,
        })
    );
    assert_eq!(
        serde_json::Value::from(parts(&LogEntry { reply: None, ..seen }, "{rcode} {name}")),
        json!({"rcode": null, "name": "a."})
    );
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, error) in [
        ("log \"{name}\"", "2:5: a format needs a name before it: log . \"{name}\"".to_owned()),
        ("log a..b", "2:5: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8".to_owned()),
        ("log {\nclasses error\n}", "3:1: log has no option \"classes\"; is it class?".to_owned()),
        ("log {\nclass\n}", "3:1: class needs one or more of success, denial, error, all".to_owned()),
        ("log {\nclass good\n}", "3:7: \"good\" isn't one of success, denial, error, all".to_owned()),
        ("log {\nclass all {\n}\n}", "3:1: class takes no braces".to_owned()),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
    }
}
