use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::dns::chain::server::Server;
use crate::dns::plugins::tests::support::TestServer;

/// Returns a server with the plugins *template*, with these arguments and options, and *whoami*.
fn template(head: &str, lines: &str) -> TestServer {
    TestServer::block(&format!("template {head} {{\n{lines}\n}}\nwhoami"))
}

const IP: &str = r#"match (^|[.])ip-10-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$
answer "{{ .Name }} 60 IN A 10.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}""#;

#[tokio::test]
async fn records_are_generated_from_the_query() {
    let context = template("IN A example", &format!("{IP}\nfallthrough"));
    for (question, expected) in [
        ("ip-10-95-12-8.example. A", "NOERROR aa | ip-10-95-12-8.example. 60 IN A 10.95.12.8 | |"),
        ("WWW.ip-10-95-12-8.example. A", "NOERROR aa | www.ip-10-95-12-8.example. 60 IN A 10.95.12.8 | |"),
        // A query of type ANY matches the type of every template.
        ("ip-10-95-12-8.example. ANY", "NOERROR aa | ip-10-95-12-8.example. 60 IN A 10.95.12.8 | |"),
        // The result isn't a record.
        ("ip-10-95-12-256.example. A", "SERVFAIL | | |"),
        ("ip-10-95-12-.example. A", "SERVFAIL | | |"),
    ] {
        assert_eq!(context.ask(question).await, expected, "{question}");
    }
}

#[tokio::test]
async fn template_is_skipped_if_class_type_or_zone_differs() {
    let plugin = async |head: &str, lines: &str, question: &str| {
        template(head, lines).reply(question).await.unwrap().plugin
    };
    let through = format!("{IP}\nfallthrough");
    let elsewhere = format!("{IP}\nfallthrough other.example");
    for (head, lines, question, expected) in [
        ("IN A example", IP, "ip-10-0-0-1.example. AAAA", "whoami"),
        ("CH A example", IP, "ip-10-0-0-1.example. A", "whoami"),
        ("IN A example.org", IP, "ip-10-0-0-1.example. A", "whoami"),
        ("IN ANY example", IP, "ip-10-0-0-1.example. AAAA", "template"),
        ("ANY A example", IP, "ip-10-0-0-1.example. A", "template"),
        ("IN A", IP, "ip-10-0-0-1.example. A", "template"),
        // Names that don't match: SERVFAIL unless they fall through.
        ("IN A example", IP, "other.example. A", ""),
        ("IN A example", &through, "other.example. A", "whoami"),
        ("IN A example", &elsewhere, "other.example. A", "whoami"),
        ("IN A example", &elsewhere, "another.example. A", ""),
    ] {
        assert_eq!(plugin(head, lines, question).await, expected, "{head} {question}");
    }
}

#[tokio::test]
async fn templates_are_tried_in_order() {
    let context = TestServer::block(
        "template IN A example {\nmatch ^a[.]\nanswer \"a. A 192.0.2.1\"\nfallthrough\n}
         template IN TXT\n
         template IN A {\nmatch ^b[.] ^c[.]\nmatch ^d[.]\nanswer \"b A 192.0.2.2\"\n}",
    );
    for (question, expected) in [
        ("a.example. A", "NOERROR aa | a. 3600 IN A 192.0.2.1 | |"),
        ("b.example. A", "NOERROR aa | b. 3600 IN A 192.0.2.2 | |"),
        ("z.example. A", "SERVFAIL | | |"),
        ("z.example. TXT", "NOERROR aa | | |"),
    ] {
        assert_eq!(context.ask(question).await, expected, "{question}");
    }
    let context = TestServer::block(
        "template IN A {\nmatch ^b[.] ^c[.]\nmatch ^d[.]\nanswer \"{{ index .Match 0 }} A 192.0.2.2\"\n}",
    );
    for name in ["b", "c", "d"] {
        let expected = format!("NOERROR aa | {name}. 3600 IN A 192.0.2.2 | |");
        assert_eq!(context.ask(&format!("{name}.example. A")).await, expected);
    }
}

#[tokio::test]
async fn all_sections_rcode_and_extended_error_are_set() {
    let context = template(
        "ANY ANY invalid",
        "rcode NXDOMAIN
         answer \"{{ .Name }} TXT {{ .Type }}\" \"{{ .Name }} {{ .Class }} TXT \\\"two words\\\"\"
         authority \"invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)\"
         additional \"ns.{{ .Zone }} AAAA 2001:db8::1\"
         additional \"ns.{{ .Zone }} A {{ .Remote }}\"
         ederror 21 \"Blocked according to RFC2606\"
         upstream whatever",
    );
    assert_eq!(
        context.ask("a.Invalid. MX").await,
        "NXDOMAIN aa | a.invalid. 3600 IN TXT MX, a.invalid. 3600 IN TXT two words \
         | invalid. 60 IN SOA ns.invalid. hostmaster.invalid. 1 60 60 60 60 \
         | ns.invalid. 3600 IN AAAA 2001:db8::1, ns.invalid. 3600 IN A 10.0.0.1"
    );
    let options = context.reply("a.invalid. MX").await.unwrap().options;
    let told = [&21_u16.to_be_bytes(), &b"Blocked according to RFC2606"[..]].concat();
    assert_eq!(options, [hickory_proto::rr::rdata::opt::EdnsOption::Unknown(15, told)]);
}

#[tokio::test]
async fn servfail_has_no_records_and_rcode_above_15_needs_edns() {
    let context = template("ANY ANY", "rcode SERVFAIL\nanswer \"a. A 192.0.2.1\"\nederror 0");
    let reply = context.reply("a. A").await.unwrap();
    assert!(reply.records.answers.is_empty() && reply.options.is_empty());
    let context = template("ANY ANY", "rcode BADCOOKIE");
    assert_eq!(context.ask("a. A").await, "SERVFAIL | | |");
    assert_eq!(context.edns(1232).ask("a. A").await, "BADCOOKIE aa | | |");
}

#[tokio::test]
async fn cname_target_is_looked_up_for_address_queries() {
    let cname = "template IN ANY foogle.com {\nanswer \"foogle.com 60 IN CNAME target.example\"\n}";
    let target = "template IN A target.example {\nanswer \"target.example 60 A 192.0.2.1\"\n}";
    let context = TestServer::block(&format!("{cname}\n{target}"));
    for (question, expected) in [
        (
            "foogle.com. A",
            "NOERROR aa | foogle.com. 60 IN CNAME target.example., target.example. 60 IN A 192.0.2.1 | |",
        ),
        // No plugin answers this look-up.
        ("foogle.com. AAAA", "NOERROR aa | foogle.com. 60 IN CNAME target.example. | |"),
        ("foogle.com. TXT", "NOERROR aa | foogle.com. 60 IN CNAME target.example. | |"),
    ] {
        assert_eq!(context.ask(question).await, expected, "{question}");
    }
    let circle = template("IN A", "answer \"{{ .Name }} CNAME a\"");
    assert_eq!(circle.reply("a. A").await.unwrap().records.answers.len(), 9);
}

/// The records of an alias's target depend on the client, so `cache` doesn't store them for other clients.
#[tokio::test]
async fn alias_through_cache_is_followed_for_each_client() {
    let alias = "cache 3600\ntemplate IN ANY alias {\nanswer \"{{ .Name }} 60 IN CNAME www.inner.\"\n}\n";
    // This template has a CNAME, too, so that the records of the target come from a third block.
    let inner = "cache 3600\ntemplate IN ANY inner {\nanswer \"{{ .Name }} 60 IN CNAME a.end.\"\n}\n";
    let end = "cache 3600\ntemplate IN A end {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n";
    let retarget = "cache 3600\nrewrite cname exact nowhere. a.end.\n\
                    template IN ANY inner {\nanswer \"{{ .Name }} 60 IN CNAME nowhere.\"\n}\n";
    let (acl, clients) = ("acl {\nblock net 192.0.2.7\n}\n", "clients 10.0.0.0/8\n");
    let drop = "acl {\ndrop net 192.0.2.7\n}\n";
    for (of_inner, of_end, inner) in [
        ("", acl, inner),
        ("", clients, inner),
        (acl, "", inner),
        (clients, "", inner),
        ("", acl, retarget),
        ("", clients, retarget),
        ("", drop, inner),
        ("", drop, retarget),
    ] {
        let context = TestServer::corefile(&format!(
            "alias {{\n{alias}}}\ninner {{\n{of_inner}{inner}}}\nend {{\n{of_end}{end}}}\n"
        ));
        // Alternating clients, in both orders.
        for client in ["10.0.0.1", "192.0.2.7", "192.0.2.7", "10.0.0.1", "192.0.2.7"] {
            let answer = context.clone().from(client).ask("www.alias. A").await;
            let is_allowed = client == "10.0.0.1";
            assert_eq!(answer.contains("192.0.2.1"), is_allowed, "{of_inner} {of_end} {client}: {answer}");
        }
    }
    // If all clients get the same answer, the answer is cached.
    let context =
        TestServer::corefile(&format!("alias {{\n{alias}}}\ninner {{\n{inner}}}\nend {{\n{end}}}\n"));
    assert!(!context.reply("www.alias. A").await.unwrap().records.answers.is_empty());
    assert_eq!(context.reply("www.alias. A").await.unwrap().plugin, "cache");
}

#[tokio::test]
async fn answers_that_depend_on_the_client_are_not_cached() {
    for (text, is_kept) in [
        ("{{ .Name }}", true),
        ("{{ .Message.RecursionDesired }}", true),
        ("{{ .Group.Id }}", true),
        ("{{ .Remote }}", false),
        ("{{ if eq $.Remote `10.0.0.1` }}a{{ end }}.", false),
        ("{{ range .Match }}{{ $.Remote }}{{ end }}", false),
        ("{{ (or . 1).Remote }}", false),
        ("{{ .Message.Id }}", false),
        ("{{ .Message.AuthenticatedData }}", false),
        ("{{ $x := .Message }}{{ $x.Id }}", false),
    ] {
        let lines = format!("match (?P<Id>.*)\nanswer \"{{{{ .Name }}}} 30 IN TXT {text}\"");
        let server = TestServer::block(&format!("cache 30\ntemplate IN TXT x {{\n{lines}\n}}"));
        let first = server.ask("a.x. TXT").await;
        assert!(first.starts_with("NOERROR aa | a.x. 30 IN TXT "), "{text}: {first}");
        let second = server.clone().from("192.0.2.7").reply("a.x. TXT").await.unwrap();
        assert_eq!(second.plugin == "cache", is_kept, "{text}");
        assert_eq!(second.validity.is_some(), is_kept, "{text}");
    }
}

#[tokio::test]
async fn matches_and_failures_are_counted() {
    let context = template(
        "IN ANY example",
        "match ^good[.]\nmatch ^(?P<l>long)[.]\nmatch ^bad[.]\nanswer \"{{- if .Group.l -}} {{ index .Match 2 }} {{- end }}{{ .Name }} TXT {{ .Type }}\"",
    );
    for name in ["good", "good", "long"] {
        let _ = context.ask(&format!("{name}.example. TXT")).await;
    }
    let broken = template("IN ANY example", "additional \"{{ .Name }}\"");
    let mut request = broken.request("a.example. A");
    request.query.set_query_type(RecordType::Unknown(1000));
    let reply = Server::serve(&mut request).await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);

    assert_eq!(
        context.metrics("template_matches_total"),
        [
            "coredns_template_matches_total{class=\"IN\",server=\"dns://:53\",type=\"TXT\",view=\"\",zone=\"example.\"} 3"
        ]
    );
    assert_eq!(
        context.metrics("template_failures_total"),
        ["coredns_template_template_failures_total{class=\"IN\",section=\"answer\",server=\"dns://:53\",\
             template=\"{{if .Group.l}}{{index .Match 2}}{{end}}{{.Name}} TXT {{.Type}}\",type=\"TXT\",view=\"\",zone=\"example.\"} 1"]
    );
    assert_eq!(
        broken.metrics("rr_failures_total"),
        ["coredns_template_rr_failures_total{class=\"IN\",section=\"additional\",server=\"dns://:53\",\
             template=\"{{.Name}}\",type=\"\",view=\"\",zone=\"example.\"} 1"]
    );
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let unknown = "Corefile:3:1: template has no option \"notavailable\"; its options are match, answer, authority, \
                   additional, rcode, ederror, fallthrough, upstream";
    let long = "a".repeat(10_001);
    for (lines, expected) in [
        ("template", "Corefile:2:1: template needs a class and a type, such as IN A, or ANY ANY"),
        ("template ANY", "Corefile:2:1: template needs a class and a type, such as IN A, or ANY ANY"),
        ("template X A", "Corefile:2:10: \"X\" isn't a class such as IN or ANY"),
        ("template ANY X", "Corefile:2:14: \"X\" isn't a type such as A or ANY"),
        ("template ANY A a..b", "Corefile:2:16: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
        ("template ANY ANY {\nnotavailable\n}", unknown),
        ("template ANY ANY {\nmatch\n}", "Corefile:3:1: match needs one or more regular expressions"),
        (
            "template ANY ANY {\nmatch a (?P<x>\n}",
            "Corefile:3:9: \"(?P<x>\" isn't a regular expression: unclosed group",
        ),
        (
            &format!("template ANY ANY {{\nmatch {long}\n}}"),
            "Corefile:3:7: a regular expression has 10000 bytes at most, and this one 10001",
        ),
        ("template ANY ANY {\nanswer\n}", "Corefile:3:1: answer needs one or more records"),
        ("template ANY ANY {\nauthority\n}", "Corefile:3:1: authority needs one or more records"),
        ("template ANY ANY {\nadditional\n}", "Corefile:3:1: additional needs one or more records"),
        (
            "template ANY ANY {\nanswer {{ .Name }} A 192.0.2.1\n}",
            "Corefile:3:8: in the template, at character 1: this {{ isn't closed by }}: is the record in quotes?",
        ),
        (
            "template ANY ANY {\nanswer \"{{ .Grup.d }}\"\n}",
            "Corefile:3:8: in the template, at character 4: the data of templates has no field .Grup here; it has \
             .Zone, .Name, .Class, .Type, .Match, .Group, .Regex, .Message, .Question, .Remote",
        ),
        ("template ANY ANY {\nrcode\n}", "Corefile:3:1: rcode needs a response code such as NXDOMAIN"),
        (
            "template ANY ANY {\nrcode UNDEFINED\n}",
            "Corefile:3:7: \"UNDEFINED\" isn't a response code such as NXDOMAIN",
        ),
        (
            "template ANY ANY {\nrcode NXDOMAIN x\n}",
            "Corefile:3:16: rcode takes 1 argument at most, and here is \"x\"",
        ),
        (
            "template ANY ANY {\nederror\n}",
            "Corefile:3:1: ederror needs the number of an extended error, such as 15, and may have a reason",
        ),
        (
            "template ANY ANY {\nederror invalid x\n}",
            "Corefile:3:9: \"invalid\" isn't the number of an extended error, from 0 to 65535",
        ),
        (
            "template ANY ANY {\nederror too many arguments\n}",
            "Corefile:3:18: ederror takes 2 arguments at most, and here is \"arguments\"",
        ),
        (
            "template ANY ANY {\nfallthrough a..b\n}",
            "Corefile:3:13: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8",
        ),
        ("template ANY ANY {\nrcode NXDOMAIN {\n}\n}", "Corefile:3:1: rcode takes no braces"),
    ] {
        assert_eq!(TestServer::error(lines), expected, "{lines}");
    }
}
