use std::io::Write as _;
use std::sync::Arc;

use hickory_proto::op::Edns;
use tempfile::NamedTempFile;

use super::super::tests::support::{TestServer, link};
use crate::model::target_policy::TargetPolicy;
use crate::store::Input;

const NAMES: &str = r#"
    template IN AAAA both.example {
        answer "{{ .Name }} 60 IN AAAA 2001:db8::5"
        answer "{{ .Name }} 60 IN AAAA ::ffff:192.0.2.5"
    }
    template IN AAAA mapped.example {
        answer "{{ .Name }} 60 IN AAAA ::ffff:192.0.2.5"
    }
    template IN AAAA gone.example {
        rcode NXDOMAIN
        authority "example. 60 IN SOA ns.example. root.example. 7 7200 1800 86400 60"
    }
    template IN AAAA soa.example {
        authority "example. 30 IN SOA ns.example. root.example. 7 7200 1800 86400 60"
    }
    template IN AAAA broken.example none.example {
        rcode SERVFAIL
    }
    template IN A none.example {
        rcode NOERROR
    }
    template IN A alias.example {
        answer "{{ .Name }} 300 IN CNAME a.example."
    }
    template IN A denied.example {
        answer "{{ .Name }} 60 IN A 127.0.0.1"
        answer "{{ .Name }} 60 IN A 198.51.100.1"
        answer "{{ .Name }} 60 IN A 203.0.113.1"
    }
    template IN A example {
        answer "{{ .Name }} 900 IN A 192.0.2.1"
    }
    template IN AAAA example {
        rcode NOERROR
    }
    template IN PTR 1.2.0.192.in-addr.arpa {
        answer "{{ .Name }} 50 IN PTR a.example."
    }
    template IN PTR in-addr.arpa {
        rcode NXDOMAIN
        authority "in-addr.arpa. 40 IN SOA ns.example. root.example. 7 7200 1800 86400 60"
    }
    template IN PTR ip6.arpa {
        answer "{{ .Name }} 50 IN PTR v6.example."
    }
"#;
const NIBBLES: &str = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.b.9.f.f.4.6.0.0.ip6.arpa.";

fn server(dns64: &str) -> TestServer {
    TestServer::block(&format!("{dns64}\n{NAMES}")).from("2001:db8::1")
}

#[tokio::test]
async fn names_without_aaaa_get_translated_a_records() {
    let server = server("dns64");
    for (question, expected) in [
        ("a.example. AAAA", "NOERROR aa | a.example. 600 IN AAAA 64:ff9b::c000:201 | |"),
        ("soa.example. AAAA", "NOERROR aa | soa.example. 30 IN AAAA 64:ff9b::c000:201 | |"),
        ("both.example. AAAA", "NOERROR aa | both.example. 60 IN AAAA 2001:db8::5 | |"),
        ("mapped.example. AAAA", "NOERROR aa | mapped.example. 600 IN AAAA 64:ff9b::c000:201 | |"),
        ("broken.example. AAAA", "NOERROR aa | broken.example. 600 IN AAAA 64:ff9b::c000:201 | |"),
        ("none.example. AAAA", "SERVFAIL | | |"),
        (
            "alias.example. AAAA",
            "NOERROR aa | alias.example. 300 IN CNAME a.example., a.example. 600 IN AAAA 64:ff9b::c000:201 | |",
        ),
        ("a.example. A", "NOERROR aa | a.example. 900 IN A 192.0.2.1 | |"),
    ] {
        assert_eq!(server.ask(question).await, expected, "{question}");
    }
    assert!(server.ask("gone.example. AAAA").await.starts_with("NXDOMAIN aa | | example. 60 IN SOA"));
    let counted = "coredns_dns64_requests_translated_total{server=\"dns://:53\"} 5";
    assert_eq!(server.metrics("coredns_dns64"), [counted]);
}

#[tokio::test]
async fn options_extend_translation() {
    let (from_v4, question) = ("10.0.0.1", "both.example. AAAA");
    let original =
        "NOERROR aa | both.example. 60 IN AAAA 2001:db8::5, both.example. 60 IN AAAA ::ffff:192.0.2.5 | |";
    assert_eq!(server("dns64").from(from_v4).ask(question).await, original);
    let all = server("dns64 2001:db8:64::/64 {\ntranslate_all\n}");
    assert_eq!(
        all.ask(question).await,
        "NOERROR aa | both.example. 600 IN AAAA 2001:db8:64:0:c0:2:100:0 | |"
    );
    let any = server("dns64 {\nprefix 2001:db8:64::/96\nallow_ipv4\n}").from(from_v4);
    assert_eq!(
        any.ask("a.example. AAAA").await,
        "NOERROR aa | a.example. 600 IN AAAA 2001:db8:64::c000:201 | |"
    );
}

#[tokio::test]
async fn clients_that_validate_get_no_translated_records() {
    for (dnssec_ok, checking_disabled) in [(true, true), (true, false), (false, true)] {
        let mut server = server("dns64");
        let mut edns = Edns::new();
        edns.set_dnssec_ok(dnssec_ok);
        server.request.edns = Some(edns);
        server.request.metadata.checking_disabled = checking_disabled;
        let is_translated = server.ask("a.example. AAAA").await.contains("64:ff9b::c000:201");
        assert_eq!(is_translated, !(dnssec_ok && checking_disabled));
    }
}

#[tokio::test]
async fn denied_addresses_are_not_translated() {
    let targets = TargetPolicy {
        nets: vec!["10.0.0.0/8".parse().unwrap()],
        denied_nets: vec!["198.51.100.0/24".parse().unwrap()],
        ..TargetPolicy::default()
    };
    let server = TestServer::with_targets(&format!(". {{\ndns64\n{NAMES}}}\n"), targets).from("2001:db8::1");
    let expected = "NOERROR aa | denied.example. 60 IN AAAA 64:ff9b::cb00:7101 | |";
    assert_eq!(server.ask("denied.example. AAAA").await, expected);
}

#[tokio::test]
async fn reverse_names_of_the_prefix_lead_to_those_of_ipv4() {
    let server = server("dns64");
    let alias =
        |digits: &str, ttl, target| format!("{digits}.{NIBBLES} {ttl} IN CNAME {target}.in-addr.arpa.");
    let (known, unknown) = ("1.0.2.0.0.0.0.c", "2.0.2.0.0.0.0.c");
    assert_eq!(
        server.ask(&format!("{known}.{NIBBLES} PTR")).await,
        format!(
            "NOERROR aa | {}, 1.2.0.192.in-addr.arpa. 50 IN PTR a.example. | |",
            alias(known, 50, "1.2.0.192")
        )
    );
    let denial = server.ask(&format!("{unknown}.{NIBBLES} PTR")).await;
    let start = format!("NXDOMAIN aa | {} | in-addr.arpa. 40 IN SOA", alias(unknown, 40, "2.2.0.192"));
    assert!(denial.starts_with(&start), "{denial}");
    for other in
        [format!("c.{NIBBLES} PTR"), format!("{}1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "0.".repeat(20))]
    {
        assert!(server.ask(&other).await.ends_with("50 IN PTR v6.example. | |"), "{other}");
    }
}

#[tokio::test]
async fn names_that_autopath_completes_are_translated() {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"search a.test b.test").unwrap();
    let server = TestServer::block(&format!(
        "dns64
         autopath {}
         template IN A www.v4only.example {{
             answer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"
         }}
         template IN AAAA www.v4only.example {{
             rcode NOERROR
         }}
         template IN ANY {{
             rcode NXDOMAIN
         }}",
        file.path().display()
    ));
    assert_eq!(
        server.from("2001:db8::1").ask("www.v4only.example.a.test. AAAA").await,
        "NOERROR aa | www.v4only.example.a.test. 60 IN CNAME www.v4only.example., \
         www.v4only.example. 60 IN AAAA 64:ff9b::c000:201 | |"
    );
}

#[tokio::test]
async fn links_with_ipv4_addresses_only_are_translated() {
    let corefile = format!("lb.internal {{\ndns64\nlb_linker\n}}\n. {{\n{NAMES}}}\n");
    let server = TestServer::corefile(&corefile).from("2001:db8::1");
    let store = Arc::clone(&server.shared.store);
    store.set_known(Input::Services);
    for (service, target, expected) in [
        ("web", "192.0.2.1", "5 IN AAAA 64:ff9b::c000:201"),
        ("six", "2001:db8::7", "5 IN AAAA 2001:db8::7"),
        ("host", "a.example.", "5 IN CNAME a.example., a.example. 600 IN AAAA 64:ff9b::c000:201"),
        ("dual", "both.example.", "5 IN CNAME both.example., both.example. 60 IN AAAA 2001:db8::5"),
    ] {
        store.apply(link(service, target));
        let name = format!("{service}.default.lb.internal.");
        let found = server.ask(&format!("{name} AAAA")).await;
        assert_eq!(found, format!("NOERROR aa | {name} {expected} | |"));
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let what = "isn't an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits, such as 64:ff9b::/96";
    for (lines, expected) in [
        ("dns64 64:ff9b::", format!("2:7: \"64:ff9b::\" {what}")),
        ("dns64 64:ff9b::/72", format!("2:7: \"64:ff9b::/72\" {what}")),
        ("dns64 192.0.2.0/24", format!("2:7: \"192.0.2.0/24\" {what}")),
        ("dns64 64::/96 x", "2:15: dns64 takes 1 argument at most, and here is \"x\"".to_owned()),
        (
            "dns64 {\nprefix\n}",
            "3:1: prefix needs an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits, such as 64:ff9b::/96"
                .to_owned(),
        ),
        ("dns64 {\nallow_ipv4 x\n}", "3:12: allow_ipv4 takes no arguments, and here is \"x\"".to_owned()),
        (
            "dns64 {\nexclude\n}",
            "3:1: dns64 has no option \"exclude\"; its options are prefix, translate_all, allow_ipv4"
                .to_owned(),
        ),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
    }
}
