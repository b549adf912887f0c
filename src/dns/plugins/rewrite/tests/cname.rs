//! Tests of `cname`, and of its look-ups.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::advance;
use tracing::Level;

use super::{NextPlugin, server_with_rules, shown};
use crate::captured_log::CapturedLog;
use crate::dns::chain::server::{MAX_ALIAS_LOOKUPS, Server};

const ZONE: &[(&str, &str)] = &[
    ("abc.example. A", "NOERROR abc.example. 5 CNAME def.example., def.example. 5 A 1.2.3.4"),
    ("abc.example. AAAA", "NOERROR abc.example. 5 CNAME def.example., def.example. 5 AAAA ::1"),
    ("xyz.example. A", "NOERROR xyz.example. 3600 A 3.4.5.6"),
    ("xyz.example. AAAA", "NOERROR xyz.example. 3600 AAAA ::2"),
    (
        "chat.example. A",
        "NOERROR chat.example. 20 CNAME chat.ai.cdn.example., chat.ai.cdn.example. 30 A 23.2.1.2 | example. 9 NS ns.example. | ns.example. 9 A 9.9.9.9",
    ),
    (
        "bard.cdn.example. A",
        "NXDOMAIN bard.cdn.example. 1800 A 9.7.2.1, bard.cdn.example. 1800 A 9.7.2.2 | example. 7 NS other.example.",
    ),
    (
        "chain.example. A",
        "NOERROR chain.example. 200 CNAME one.example., one.example. 200 CNAME two.prod., two.prod. 200 CNAME end.prod.net., end.prod.net. 9 A 1.2.3.4",
    ),
    ("two.staging. A", "NOERROR two.staging. 200 CNAME end.staging., end.staging. 120 A 5.6.7.8"),
    ("cut.example. A", "NOERROR cut.example. 200 CNAME cut.cdn."),
    ("cut.cdn. A", "TC cut.cdn. 120 A 10.1.0.9"),
    ("whole.example. A", "TC whole.example. 200 CNAME whole.cdn."),
    ("whole.cdn. A", "NOERROR whole.cdn. 120 A 10.1.0.9"),
    ("Big.example. A", "NOERROR Big.example. 5 CNAME DEF.example., DEF.example. 5 A 1.2.3.4"),
    ("nobody.example. A", "NOERROR nobody.example. 5 CNAME gone.cdn., gone.cdn. 5 A 1.2.3.4"),
    ("plain.example. A", "NOERROR plain.example. 5 A 1.2.3.4"),
    ("loop.example. A", "NOERROR loop.example. 5 CNAME loop.cdn., loop.cdn. 5 A 1.2.3.4"),
];

#[tokio::test]
async fn target_and_the_records_after_it_are_replaced() {
    for (rule, question, expected) in [
        (
            "def.example XYZ.example",
            "abc.example. A",
            "NOERROR | abc.example. 5 IN CNAME xyz.example., xyz.example. 3600 IN A 3.4.5.6",
        ),
        (
            "exact DEF.example. xyz.example.",
            "abc.example. AAAA",
            "NOERROR | abc.example. 5 IN CNAME xyz.example., xyz.example. 3600 IN AAAA ::2",
        ),
        // The case of the target matters.
        (
            "def.example xyz.example",
            "Big.example. A",
            "NOERROR | Big.example. 5 IN CNAME DEF.example., DEF.example. 5 IN A 1.2.3.4",
        ),
        // The RCODE, the authority section and the additional section stay.
        (
            "prefix chat.ai bard",
            "chat.example. A",
            "NOERROR | chat.example. 20 IN CNAME bard.cdn.example., bard.cdn.example. 1800 IN A 9.7.2.1, \
             bard.cdn.example. 1800 IN A 9.7.2.2 | example. 9 IN NS ns.example. | ns.example. 9 IN A 9.9.9.9",
        ),
        (
            "substring chat.ai bard",
            "chat.example. A",
            "NOERROR | chat.example. 20 IN CNAME bard.cdn.example., bard.cdn.example. 1800 IN A 9.7.2.1, \
             bard.cdn.example. 1800 IN A 9.7.2.2 | example. 9 IN NS ns.example. | ns.example. 9 IN A 9.9.9.9",
        ),
        // TO needs no dot at the end; a `suffix` without the dot doesn't match.
        (
            r"regex (.*)\.EX.*\. xyz.example",
            "abc.example. A",
            "NOERROR | abc.example. 5 IN CNAME xyz.example., xyz.example. 3600 IN A 3.4.5.6",
        ),
        (
            "suffix f.example xyz.example",
            "abc.example. A",
            "NOERROR | abc.example. 5 IN CNAME def.example., def.example. 5 IN A 1.2.3.4",
        ),
        (
            "suffix prod. staging.",
            "chain.example. A",
            "NOERROR | chain.example. 200 IN CNAME one.example., one.example. 200 IN CNAME two.staging., \
             two.staging. 200 IN CNAME end.staging., end.staging. 120 IN A 5.6.7.8",
        ),
        (
            "cut.cdn cut.cdn",
            "cut.example. A",
            "NOERROR tc | cut.example. 200 IN CNAME cut.cdn., cut.cdn. 120 IN A 10.1.0.9",
        ),
        (
            "whole.cdn whole.cdn",
            "whole.example. A",
            "NOERROR | whole.example. 200 IN CNAME whole.cdn., whole.cdn. 120 IN A 10.1.0.9",
        ),
        // A target that can't be resolved has no records.
        ("gone.cdn away.cdn", "nobody.example. A", "NOERROR | nobody.example. 5 IN CNAME away.cdn."),
        // The look-up of the root is dropped, and the CNAME stays unchanged.
        (
            "gone.cdn .",
            "nobody.example. A",
            "NOERROR | nobody.example. 5 IN CNAME gone.cdn., gone.cdn. 5 IN A 1.2.3.4",
        ),
        ("gone.cdn a..b", "nobody.example. A", "SERVFAIL"),
        ("regex . x.", "plain.example. A", "NOERROR | plain.example. 5 IN A 1.2.3.4"),
    ] {
        let context = server_with_rules(&format!("rewrite cname {rule}"), NextPlugin::Zone(ZONE));
        assert_eq!(shown(&context, question).await, expected, "{rule} {question}");
    }
}

#[tokio::test]
async fn target_may_be_changed_again_but_not_its_records() {
    let rules = "rewrite continue cname mid.example xyz.example\n\
        rewrite continue ttl regex . 60\n\
        rewrite cname def.example mid.example";
    // The look-up of mid.example fails; the rules apply to the look-up of xyz.example, too.
    assert_eq!(
        shown(&server_with_rules(rules, NextPlugin::Zone(ZONE)), "abc.example. A").await,
        "NOERROR | abc.example. 60 IN CNAME xyz.example., xyz.example. 60 IN A 3.4.5.6"
    );
    let rules = "rewrite continue cname def.example xyz.example\nrewrite ttl abc.example 60";
    assert_eq!(
        shown(&server_with_rules(rules, NextPlugin::Zone(ZONE)), "abc.example. A").await,
        "NOERROR | abc.example. 60 IN CNAME xyz.example., xyz.example. 3600 IN A 3.4.5.6"
    );
}

#[tokio::test]
async fn look_up_of_a_target_has_the_changed_type() {
    let rules = "rewrite continue type AAAA A\nrewrite cname def.example xyz.example";
    assert_eq!(
        shown(&server_with_rules(rules, NextPlugin::Zone(ZONE)), "abc.example. AAAA").await,
        "NOERROR | abc.example. 5 IN CNAME xyz.example., xyz.example. 3600 IN A 3.4.5.6"
    );
}

#[tokio::test]
async fn loop_of_cname_targets_ends_after_eight_look_ups() {
    let reply = server_with_rules("rewrite cname loop.cdn loop.example", NextPlugin::Zone(ZONE))
        .reply("loop.example. A")
        .await;
    // Eight changed CNAMEs, and the unchanged answer of the eighth look-up: a CNAME and an address.
    let answers = &reply.unwrap().records.answers;
    assert_eq!(answers.len(), 10, "{answers:?}");
    assert_eq!(answers[7].to_string(), "loop.example. 5 IN CNAME loop.example.");
    assert_eq!(answers[8].to_string(), "loop.example. 5 IN CNAME loop.cdn.");
}

#[tokio::test(start_paused = true)]
async fn failed_cname_look_ups_are_logged_once_a_minute() {
    let (log, _logging) = CapturedLog::start(Level::INFO);
    // The look-up of the root is dropped.
    let server = server_with_rules("rewrite cname gone.cdn .", NextPlugin::Zone(ZONE));
    for _ in 0..100 {
        server.reply("nobody.example. A").await.unwrap();
    }
    advance(Duration::from_secs(60)).await;
    server.reply("nobody.example. A").await.unwrap();
    let text = log.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("plugin/rewrite")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].ends_with("since the last such line: 1; the newest: ."), "{text}");
    assert!(lines[1].ends_with("since the last such line: 100; the newest: ."), "{text}");
}

#[tokio::test]
async fn query_causes_a_bounded_number_of_cname_look_ups() {
    // 40 CNAMEs, each rewritten to the queried name: each look-up returns the same 40.
    let aliases: Vec<String> =
        (0..40).map(|number| format!("many.example. 5 CNAME {number}.cdn.example.")).collect();
    let answer: &str = format!("NOERROR {}", aliases.join(", ")).leak();
    let zone: &[(&str, &str)] = vec![("many.example. A", answer)].leak();
    let server =
        server_with_rules(r"rewrite cname regex .*\.cdn\.example\. many.example.", NextPlugin::Zone(zone));
    let mut request = server.request("many.example. A");
    assert!(Server::serve(&mut request).await.is_some());
    let attempts = request.alias_look_up_tries.get().unwrap().load(Ordering::Relaxed);
    // At most 17 answers, the first one and 16 of look-ups, each with one refused try.
    assert!((MAX_ALIAS_LOOKUPS..=2 * MAX_ALIAS_LOOKUPS + 1).contains(&attempts), "{attempts}");
}
