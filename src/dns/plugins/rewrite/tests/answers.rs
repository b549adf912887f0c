//! Tests of rules for answers.

use super::{NextPlugin, record, server_with_rules, shown};

/// Returns `RCODE flags | answers | authorities | additionals` for a query, with these rules.
async fn ask(rules: &str, zone: &'static [(&'static str, &'static str)], question: &str) -> String {
    shown(&server_with_rules(rules, NextPlugin::Zone(zone)), question).await
}

const ADDRESSES: &[(&str, &str)] = &[
    ("b.org. A", "NOERROR b.org. 5 A 10.0.0.1, b.org. 5 A 10.0.0.2, ab.org. 5 A 10.0.0.3"),
    (
        "x.b.org. A",
        "NOERROR x.b.org. 5 CNAME y.b.org., y.b.org. 5 A 10.0.0.1 | b.org. 5 NS ns.b.org. | ns.b.org. 5 A 10.0.0.2",
    ),
    ("xb.org. A", "NOERROR xb.org. 5 A 10.0.0.1"),
];

#[tokio::test]
async fn names_change_back_only_with_exact_or_answer() {
    for (rule, question, expected) in [
        (
            "A.org b.org",
            "a.ORG. A",
            "NOERROR | a.org. 5 IN A 10.0.0.1, a.org. 5 IN A 10.0.0.2, ab.org. 5 IN A 10.0.0.3",
        ),
        (
            "exact a.org b.org answer auto",
            "a.org. A",
            "NOERROR | a.org. 5 IN A 10.0.0.1, a.org. 5 IN A 10.0.0.2, ab.org. 5 IN A 10.0.0.3",
        ),
        (
            "a.org x.b.org",
            "a.org. A",
            "NOERROR | a.org. 5 IN CNAME y.b.org., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        (
            "prefix z x",
            "z.b.org. A",
            "NOERROR | x.b.org. 5 IN CNAME y.b.org., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        (
            "prefix z x answer auto",
            "Z.b.org. A",
            "NOERROR | z.b.org. 5 IN CNAME y.b.org., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        // `suffix` changes all names back that end with the new suffix.
        (
            "suffix .com .b.org answer auto",
            "x.com. A",
            "NOERROR | x.com. 5 IN CNAME y.com., y.com. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.com. | \
             ns.com. 5 IN A 10.0.0.2",
        ),
        ("suffix .in.com b.org answer auto", "x.in.com. A", "NOERROR | x.in.com. 5 IN A 10.0.0.1"),
        ("suffix .in.com b.org", "x.in.com. A", "NOERROR | xb.org. 5 IN A 10.0.0.1"),
        (
            "substring com x.b answer auto",
            "com.org. A",
            "NOERROR | com.org. 5 IN CNAME y.b.org., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        (
            r"regex (.)\.com {1}.b.org answer auto",
            "x.com. A",
            "NOERROR | x.com. 5 IN CNAME y.b.org., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        (
            r"regex (.)\.com {1}.b.org answer name (.*)\.b\.org {1}.Net",
            "x.com. A",
            "NOERROR | x.net. 5 IN CNAME y.b.org., y.net. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.b.org. | \
             ns.net. 5 IN A 10.0.0.2",
        ),
        (
            r"regex (.)\.com {1}.b.org answer value (.*)\.b\.org {1}.net",
            "x.com. A",
            "NOERROR | x.b.org. 5 IN CNAME y.net., y.b.org. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.net. | \
             ns.b.org. 5 IN A 10.0.0.2",
        ),
        // The last `answer` first, and then `auto`.
        (
            r"suffix .com .b.org answer auto value y\.b\.org y.net answer value y\.net never.net",
            "x.com. A",
            "NOERROR | x.com. 5 IN CNAME y.net., y.com. 5 IN A 10.0.0.1 | b.org. 5 IN NS ns.com. | \
             ns.com. 5 IN A 10.0.0.2",
        ),
    ] {
        assert_eq!(ask(&format!("rewrite name {rule}"), ADDRESSES, question).await, expected, "{rule}");
    }
}

const VALUES: &[(&str, &str)] = &[
    (
        "my.cluster.local. SRV",
        "NOERROR my.cluster.local. 5 SRV 0 100 100 a.my.cluster.local. | | a.my.cluster.local. 5 A 10.0.0.1",
    ),
    ("my.cluster.local. CNAME", "NOERROR my.cluster.local. 5 CNAME a.cluster.local."),
    ("my.cluster.local. DNAME", "NOERROR my.cluster.local. 5 DNAME a.cluster.local."),
    ("my.cluster.local. MX", "NOERROR my.cluster.local. 5 MX 1 a.cluster.local."),
    ("my.cluster.local. NS", "NOERROR my.cluster.local. 5 NS a.cluster.local."),
    ("my.cluster.local. PTR", "NOERROR my.cluster.local. 5 PTR a.cluster.local."),
    (
        "my.cluster.local. SOA",
        "NXDOMAIN | my.cluster.local. 5 SOA a.cluster.local. b.cluster.local. 1 2 3 4 5",
    ),
    (
        "my.cluster.local. NAPTR",
        "NOERROR my.cluster.local. 5 NAPTR 1 2 \"S\" \"SIP+D2U\" \"\" a.cluster.local.",
    ),
    ("my.cluster.local. TXT", "NOERROR my.cluster.local. 5 TXT a.cluster.local."),
];

#[tokio::test]
async fn names_in_record_data_are_changed_except_in_txt() {
    for rules in [
        r"rewrite name regex (.*)\.domain\.uk {1}.cluster.local answer name (.*)\.cluster\.local {1}.domain.uk answer value (.*)\.cluster\.local {1}.domain.uk",
        r"rewrite continue {
            name regex (.*)\.domain\.uk {1}.cluster.local
            answer name (.*)\.cluster\.local {1}.domain.uk
            value (.*)\.cluster\.local {1}.domain.uk
        }",
        r"rewrite name suffix .domain.uk .cluster.local answer auto answer value (.*)\.cluster\.local {1}.domain.uk",
        "rewrite continue name suffix .domain.uk .domain.us answer auto\nrewrite name suffix .domain.us .cluster.local answer auto",
    ] {
        for (qtype, expected) in [
            (
                "SRV",
                "NOERROR | my.domain.uk. 5 IN SRV 0 100 100 a.my.domain.uk. | | a.my.domain.uk. 5 IN A 10.0.0.1",
            ),
            ("CNAME", "NOERROR | my.domain.uk. 5 IN CNAME a.domain.uk."),
            ("MX", "NOERROR | my.domain.uk. 5 IN MX 1 a.domain.uk."),
            ("NS", "NOERROR | my.domain.uk. 5 IN NS a.domain.uk."),
            ("PTR", "NOERROR | my.domain.uk. 5 IN PTR a.domain.uk."),
            ("SOA", "NXDOMAIN | | my.domain.uk. 5 IN SOA a.domain.uk. b.cluster.local. 1 2 3 4 5"),
            ("NAPTR", "NOERROR | my.domain.uk. 5 IN NAPTR 1 2 \"S\" \"SIP+D2U\" \"\" a.domain.uk."),
            ("TXT", "NOERROR | my.domain.uk. 5 IN TXT a.cluster.local."),
        ] {
            assert_eq!(ask(rules, VALUES, &format!("My.domain.uk. {qtype}")).await, expected, "{rules}");
        }
        let reply =
            server_with_rules(rules, NextPlugin::Zone(VALUES)).reply("my.domain.uk. DNAME").await.unwrap();
        assert_eq!(reply.records.answers, [record("my.domain.uk. 5 DNAME a.domain.uk.")], "{rules}");
    }
}

#[tokio::test]
async fn invalid_name_in_an_answer_is_an_error() {
    let long = "x".repeat(64);
    for to in ["{1}..b", &long] {
        let rules = format!(r"rewrite name regex (.)\.com {{1}}.b.org answer value (.*)\.b\.org\. {to}");
        assert_eq!(ask(&rules, ADDRESSES, "x.com. A").await, "SERVFAIL");
    }
}

const TTLS: &[(&str, &str)] = &[
    (
        "s5.a.b. A",
        "NOERROR s5.a.b. 5 A 10.0.0.1, s5.a.b. 6 A 10.0.0.2 | a.b. 7 NS ns.a.b. | ns.a.b. 8 A 10.0.0.3",
    ),
    ("t50.a.b. A", "NOERROR t50.a.b. 50 A 10.0.0.1"),
    ("t500.a.b. A", "NXDOMAIN | a.b. 500 SOA a. b. 1 2 3 4 5"),
];

#[tokio::test]
async fn ttls_are_limited_in_all_sections() {
    for (rule, question, ttls) in [
        ("S5.a.b 1", "s5.A.b. A", "1 1 1 1"),
        ("exact s5.a.b. 15", "s5.a.b. A", "15 15 15 15"),
        ("prefix s5 30", "s5.a.b. A", "30 30 30 30"),
        ("prefix s 30", "s5.a.b. A", "5 6 7 8"),
        ("suffix 5.a.b 45", "s5.a.b. A", "45 45 45 45"),
        ("substring 5.a 50", "s5.a.b. A", "50 50 50 50"),
        ("substring 5.A 50", "s5.a.b. A", "50 50 50 50"),
        (r"regex (s.)\.(a)\.(b) 10", "s5.a.b. A", "10 10 10 10"),
        ("regex S5 10", "s5.a.b. A", "5 6 7 8"),
        ("regex . 30-300", "s5.a.b. A", "30 30 30 30"),
        ("regex . 30-300", "t50.a.b. A", "50"),
        ("regex . 30-300", "t500.a.b. A", "300"),
        ("regex . -6", "s5.a.b. A", "5 6 6 6"),
        ("regex . 6-", "s5.a.b. A", "6 6 7 8"),
        ("regex . 6-6", "s5.a.b. A", "6 6 6 6"),
        ("regex . 4294967295", "t50.a.b. A", "4294967295"),
    ] {
        let context = server_with_rules(&format!("rewrite ttl {rule}"), NextPlugin::Zone(TTLS));
        let mut reply = context.reply(question).await.unwrap();
        let records = reply.records.all_mut().into_iter().flat_map(std::mem::take);
        let found: Vec<String> = records.map(|record| record.ttl.to_string()).collect();
        assert_eq!(found.join(" "), ttls, "{rule}");
    }
    // The last rule is applied first.
    let rules = "rewrite continue ttl regex . 30-\nrewrite ttl regex . 3-20";
    assert_eq!(ask(rules, TTLS, "t50.a.b. A").await, "NOERROR | t50.a.b. 30 IN A 10.0.0.1");
}

const RCODES: &[(&str, &str)] = &[
    ("a.b. A", "NOERROR a.b. 5 A 10.0.0.1"),
    ("n.b. A", "NXDOMAIN"),
    ("s.b. A", "NXDOMAIN | b. 5 SOA a. b. 1 2 3 4 5"),
    ("two.b. A", "NXDOMAIN two.b. 5 A 10.0.0.1, two.b. 5 A 10.0.0.2"),
];

#[tokio::test]
async fn rcode_rule_applies_with_and_without_records() {
    for (rules, question, expected) in [
        ("rewrite rcode a.b NOERROR refused", "A.b. A", "REFUSED | a.b. 5 IN A 10.0.0.1"),
        ("rewrite rcode a.b 0 3", "a.b. A", "NXDOMAIN | a.b. 5 IN A 10.0.0.1"),
        ("rewrite rcode a.b SERVFAIL NOTIMPL", "a.b. A", "NOERROR | a.b. 5 IN A 10.0.0.1"),
        ("rewrite rcode exact n.b NXDOMAIN NOERROR", "n.b. A", "NOERROR"),
        ("rewrite rcode prefix n nxdomain NOERROR", "n.b. A", "NOERROR"),
        ("rewrite rcode suffix b NXDOMAIN YXRRSET", "s.b. A", "YXRRSET | | b. 5 IN SOA a. b. 1 2 3 4 5"),
        ("rewrite rcode substring . NXDOMAIN FORMERR", "n.b. A", "FORMERR"),
        (r"rewrite rcode regex ^(.*)\.b\.$ SERVFAIL NOERROR", "fails.b. A", "NOERROR"),
        ("rewrite continue rcode regex . 2 5", "fails.b. A", "REFUSED"),
        ("rewrite rcode regex . SERVFAIL NOERROR", ". A", "silence"),
        ("rewrite rcode other.b NXDOMAIN NOERROR", "n.b. A", "NXDOMAIN"),
        // The last rule is applied first, for each record separately.
        ("rewrite continue rcode regex . 3 0\nrewrite rcode regex . 0 5", "n.b. A", "NOERROR"),
        ("rewrite continue rcode regex . 0 5\nrewrite rcode regex . 3 0", "n.b. A", "REFUSED"),
        (
            "rewrite continue rcode regex . 3 0\nrewrite rcode regex . 0 5",
            "two.b. A",
            "REFUSED | two.b. 5 IN A 10.0.0.1, two.b. 5 IN A 10.0.0.2",
        ),
    ] {
        assert_eq!(ask(rules, RCODES, question).await, expected, "{rules} {question}");
    }
}

#[tokio::test]
async fn rcode_above_15_needs_edns() {
    let server = server_with_rules("rewrite rcode regex . NXDOMAIN BADCOOKIE", NextPlugin::Zone(RCODES));
    assert_eq!(shown(&server, "n.b. A").await, "SERVFAIL");
    assert_eq!(shown(&server, "a.b. A").await, "NOERROR | a.b. 5 IN A 10.0.0.1");
    assert_eq!(shown(&server.edns(1232), "n.b. A").await, "BADCOOKIE");
    let server = server_with_rules("rewrite rcode regex . SERVFAIL 16", NextPlugin::Zone(RCODES));
    assert_eq!(shown(&server, "fails.b. A").await, "SERVFAIL");
    assert_eq!(shown(&server.edns(1232), "fails.b. A").await, "BADSIG");
}
