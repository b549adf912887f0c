use std::sync::Arc;

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};

use super::position;
use crate::dns::chain::request::Request;
use crate::dns::corefile::tokenize;
use crate::dns::net::Protocol;
use crate::dns::plugins::tests::support::{TestServer, link};
use crate::store::Input;

/// A server whose only block is for the queries for which an expression is true.
fn server(expression: &str) -> TestServer {
    TestServer::block(&format!("view v {{\nexpr {expression}\n}}\nwhoami"))
}

/// Returns whether a query from 10.0.0.1 is one of the view.
async fn admits(expression: &str, question: &str) -> bool {
    server(expression).ask(question).await.starts_with("NOERROR")
}

#[tokio::test]
async fn expressions_are_evaluated_as_by_coredns() {
    for (expression, expected) in [
        ("true", true),
        ("false", false),
        ("!false", true),
        ("not false", true),
        ("!!true", true),
        ("true && false", false),
        ("true and true", true),
        ("false || true", true),
        ("false or false", false),
        ("true || false && false", true),
        ("(true || false) && false", false),
        ("not true == false", true),
        ("1 == 1", true),
        ("0x10 == 16 && 0b11 == 3 && 0o17 == 15 && 1_000 == 1000", true),
        ("1 != 1", false),
        ("1 < 2 && 2 > 1 && 1 <= 1 && 1 >= 1", true),
        ("2 < 1 || 1 > 2 || 2 <= 1 || 1 >= 2", false),
        ("'a' < 'b' && 'B' < 'a'", true),
        ("true == true", true),
        ("true != true", false),
        ("1 < 2 == true", true),
        ("name() == 'www.example.org.'", true),
        ("name() == 'WWW.example.org.'", false),
        ("type() == 'A' && class() == 'IN'", true),
        ("type() in ['A', 'AAAA']", true),
        ("type() in ['MX', 'AAAA',]", false),
        ("type() in []", false),
        ("type() not in ['MX']", true),
        ("1 in [2, 1]", true),
        ("true in [false, 1 == 1]", true),
        ("name() contains 'example'", true),
        ("name() not contains 'example'", false),
        ("name() startsWith 'www'", true),
        ("name() not startsWith 'www'", false),
        ("name() endsWith '.org.'", true),
        ("name() not endsWith 'com.'", true),
        ("name() matches '^w+\\\\.example'", true),
        ("name() matches 'EXAMPLE'", false),
        ("name() not matches 'org'", false),
        ("client_ip() == '10.0.0.1' && port() == '5353'", true),
        ("proto() == 'udp' && bufsize() == 512 && !do()", true),
        ("opcode() == 0 && id() == 7 && size() == 33", true),
        ("server_ip() == '127.0.0.1' && server_port() == '0'", true),
        ("incidr(client_ip(), '10.0.0.0/8')", true),
        ("incidr(client_ip(), '10.1.0.0/16')", false),
        ("incidr(client_ip(), '10.0.0.77/24')", true),
        ("incidr(client_ip(), '::ffff:10.0.0.0/104')", true),
        ("incidr(client_ip(), '2001:db8::/32')", false),
        ("incidr(server_ip(), '127.0.0.0/8')", true),
        ("incidr('2001:db8::1', '2001:db8::/32')", true),
        ("type() == 'A' ? name() endsWith 'org.' : false", true),
        ("type() == 'MX' ? true : type() == 'A' ? false : true", false),
        ("(do() ? 'x' : 'y') == 'y' && (do() ? 1 : 2) == 2", true),
        ("do() ?: true", true),
        ("incidr(client_ip(), do() ? '::/0' : '10.0.0.0/8')", true),
        ("(\"it's\" == 'it\\'s') && 'a\\\\b' == `a\\b` && `a``b` == 'a\\x60b'", true),
        ("'\\u00e9\\u{e9}\\U000000e9\\351' == 'éééé' && '\\n\\t' != ''", true),
        ("metadata('a/b') == ''", true),
    ] {
        let mut server = server(expression);
        (server.request.metadata.id, server.request.size) = (7, 33);
        let found = server.ask("Www.Example.org. A").await;
        assert_eq!(found.starts_with("NOERROR"), expected, "{expression}: {found}");
    }
}

#[tokio::test]
async fn texts_that_are_no_address_or_network_fail() {
    for (expression, expected) in [
        ("incidr(name(), '10.0.0.0/8')", false),
        ("!incidr(name(), '10.0.0.0/8')", false),
        ("incidr(client_ip(), name())", false),
        ("incidr(name(), '10.0.0.0/8') || type() == 'A'", false),
        ("true || incidr(name(), '10.0.0.0/8')", true),
        ("do() && incidr(name(), '10.0.0.0/8') || type() == 'A'", true),
        ("(incidr(name(), '10.0.0.0/8') ? true : true)", false),
        ("true in [true, incidr(name(), '10.0.0.0/8')]", false),
        ("(true ? 'a' : incidr(name(), '::/0') ? 'b' : 'c') == 'a'", true),
    ] {
        assert_eq!(admits(expression, "www.example.org. A").await, expected, "{expression}");
    }
}

#[tokio::test]
async fn queries_are_told_apart_by_transport_and_edns() {
    let mut server = server("proto() == 'tcp' && bufsize() == 65535 || do() && bufsize() == 1232");
    assert!(server.ask("a. A").await.starts_with("REFUSED"));
    let mut edns = server.clone().edns(1232);
    assert!(edns.ask("a. A").await.starts_with("REFUSED"));
    edns.request.edns.as_mut().unwrap().set_dnssec_ok(true);
    assert!(edns.ask("a. A").await.starts_with("NOERROR"));
    server.request.protocol = Protocol::Https;
    assert!(server.ask("a. A").await.starts_with("NOERROR"));
}

#[test]
fn invalid_expressions_are_rejected_with_their_column() {
    for (expression, column, expected) in [
        ("1 + 1 == 2", 8, "\"+\" isn't supported in an expression; the operators are == != < > <= >="),
        ("-1 < 2", 6, "\"-\" isn't supported"),
        ("id() % 2 == 0", 11, "\"%\" isn't supported"),
        ("1..3 == 2", 6, "a number with a point (an address stands in single quotes) isn't supported"),
        ("size() < 1.5", 15, "a number with a point (an address stands in single quotes) isn't supported"),
        ("true ?? false", 11, "\"??\" isn't supported"),
        ("name()?.x", 12, "\"?.\" isn't supported"),
        ("name().x", 12, "\".\" isn't supported"),
        ("true // x", 11, "a comment isn't supported"),
        ("true /* x */", 11, "a comment isn't supported"),
        ("type() | lower()", 13, "\"|\" isn't supported"),
        ("'a' = 'b'", 10, "\"=\" isn't supported"),
        ("::type() == 'A'", 6, "\":\" isn't supported"),
        ("nil == 'A'", 6, "\"nil\" isn't supported"),
        ("let x = 1; x == 1", 12, "\"=\" isn't supported"),
        ("len(name()) > 3", 6, "there is no function len(); there are bufsize,"),
        ("any(['a'], true)", 6, "there is no function any(); there are bufsize, class,"),
        ("type() == A", 16, "there is no function A(); a string stands in single quotes: 'A'"),
        ("cliend_ip() == 'a'", 6, "there is no function cliend_ip(); is it client_ip?"),
        ("name == 'a.'", 6, "name is a function: write name()"),
        ("name('a') == 'a.'", 6, "name() takes no arguments"),
        (
            "true && incidr(client_ip())",
            14,
            "incidr() needs an address and a network: incidr(client_ip(), '10",
        ),
        ("incidr(client_ip(), '10.0.0.0/33')", 26, "\"10.0.0.0/33\" isn't a network such as 10.0.0.0/8"),
        ("incidr(client_ip(), '10.0.0.1')", 26, "\"10.0.0.1\" isn't a network such as 10.0.0.0/8"),
        ("incidr('10.0.0.0/8', client_ip())", 13, "\"10.0.0.0/8\" isn't an IP address"),
        ("incidr(1, '10.0.0.0/8')", 13, "incidr() needs an address as a string, not a number"),
        ("incidr(client_ip(), true)", 26, "incidr() needs a network as a string, not a boolean"),
        ("metadata(1) == ''", 6, "metadata() needs a label as a string: metadata('kubernetes/client-name"),
        ("name()", 6, "an expression has to be a boolean, and this is a string"),
        ("size()", 6, "an expression has to be a boolean, and this is a number"),
        ("['a']", 6, "an expression has to be a boolean, and this is a list"),
        ("port() == 53", 13, "`==` stands between values of one type, not between a string and a number"),
        ("1 < 'a'", 8, "`<` stands between two numbers or two strings, not between a number and a string"),
        (
            "1 < 2 < 3",
            12,
            "`<` stands between two numbers or two strings, not between a boolean and a number",
        ),
        ("true and 'a'", 11, "`and` stands between booleans, not between a boolean and a string"),
        ("!name()", 6, "! is for booleans, not for a string"),
        ("name() ? true : false", 13, "? is for booleans, not for a string"),
        ("true ? 1 : 'a'", 11, "`?:` needs two booleans, strings or numbers, not a number and a string"),
        ("'a' in 'abc'", 13, "behind `in` has to be a list such as ['A', 'AAAA'], not a string"),
        ("1 in ['a']", 8, "`in` needs a list of the type before it: that is a number, and in the list is a"),
        ("['a'] in ['a']", 12, "before `in` has to be a boolean, a string or a number"),
        ("1 contains '1'", 8, "`contains` stands between strings, not between a number and a string"),
        ("name() matches '('", 21, "\"(\" isn't a regular expression: unclosed group"),
        ("name() matches name()", 21, "behind `matches` has to be a regular expression in quotes"),
        ("name() == 'a", 16, "this string has no ' at its end"),
        ("name() == `a", 16, "this string has no ` at its end"),
        ("name() == 'a\\.'", 18, "this isn't an escape such as \\\\, \\n, \\x41 or \\u00e9; a backslash is"),
        ("name() == '\\u{110000}'", 17, "this isn't an escape"),
        ("99999999999999999999 == 1", 6, "\"99999999999999999999\" isn't a whole number up to"),
        ("1e3 == 1000", 6, "\"1e3\" isn't a whole number"),
        ("(true", 11, "here has to be \")\", not the end"),
        ("true)", 10, "here has to be an operator or the end, not \")\""),
        ("true false", 11, "here has to be an operator or the end, not \"false\""),
        ("true not false", 11, "here has to be an operator or the end, not \"not\""),
        ("&& true", 6, "here has to be a value, not \"&&\""),
        ("in ['a']", 6, "here has to be a value, not \"in\""),
        ("true &&", 13, "here has to be a value, not the end"),
        ("type() in ['A' 'B']", 21, "here has to be \",\" or \"]\", not a string"),
    ] {
        let found = TestServer::error(&format!("view v {{\nexpr {expression}\n}}\nwhoami"));
        let expected = format!("Corefile:3:{column}: {expected}");
        assert!(found.starts_with(&expected), "{expression}\n   found: {found}\nexpected: {expected}");
    }
}

#[test]
fn depth_and_length_of_expressions_are_limited() {
    let wrap = |depth: usize| format!("{}true{}", "(".repeat(depth), ")".repeat(depth));
    server(&wrap(63));
    let levels = "an expression has 64 levels at most";
    let compares = "an expression compares booleans 64 times at most";
    let same = |number: usize| format!("true{}", " == true".repeat(number));
    let long = |length: usize| format!("true || '{}' == ''", "a".repeat(length - 16));
    server(&same(64));
    server(&format!("true {}", "in[true]".repeat(64)));
    server(&long(10_000));
    server(&format!("true{}", " && true".repeat(1000)));
    for (expression, expected) in [
        (wrap(64), levels),
        (wrap(4000), levels),
        ("(".repeat(9999), levels),
        (format!("{}true", "!".repeat(9000)), levels),
        (format!("{}true", "not ".repeat(2000)), levels),
        (format!("{}true", "true?true:".repeat(900)), levels),
        ("[".repeat(9999), levels),
        ("metadata(".repeat(1000), levels),
        (same(65), compares),
        (format!("true {}", "in[]".repeat(65)), compares),
        (format!("true {}", "in[]".repeat(2000)), compares),
        (format!("true {}", "not in[]".repeat(1000)), compares),
        (long(10_001), "an expression has 10000 bytes at most, and this one has 10001"),
    ] {
        let found = TestServer::error(&format!("view v {{\nexpr {expression}\n}}"));
        assert!(found.ends_with(expected), "{found}");
    }
}

#[test]
fn position_of_a_character_is_that_in_its_word() {
    let words = tokenize(&Arc::from(std::path::Path::new("Corefile")), "a \"b\n  c\"\n   d \"ef\"");
    for (at, expected) in
        [(0, (1, 1)), (2, (1, 4)), (6, (2, 3)), (8, (3, 4)), (9, (3, 5)), (10, (3, 7)), (11, (3, 8))]
    {
        let found = position(&words, at).unwrap();
        assert_eq!((found.line, found.column), expected, "{at}");
    }
    assert_eq!(position(&words, 13), None);
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        ("view", "2:1: view needs a name: view NAME"),
        ("view a b", "2:8: view takes 1 argument at most, and here is \"b\""),
        ("view a\nview b", "3:1: view can be there only once in a block, and it is on line 2 already"),
        ("view a {\nexpression true\n}", "3:1: view has no option \"expression\"; its option is expr"),
        ("view a {\nexpr\n}", "3:1: expr needs an expression such as incidr(client_ip(), '10.0.0.0/8')"),
        ("view a {\nexpr true {\nx\n}\n}", "3:1: expr takes no braces"),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
    }
    assert!(TestServer::error("view \"\"").contains("needs a name: view NAME"));
}

/// Blocks for several views. The answers have the extended error of the block.
const VIEWS: &str = "
example.org {
    view one {
        expr incidr(client_ip(), '10.1.0.0/16')
        expr type() != 'MX'
    }
    template IN ANY {
        answer \"{{ .Name }} 5 IN TXT one\"
    }
}
example.org {
    view two {
        expr incidr(client_ip(), '10.0.0.0/8')
        expr name() != 'none.example.org.'
    }
    template IN ANY {
        answer \"{{ .Name }} 5 IN TXT two\"
    }
}
org {
    view three {
        expr client_ip() == '10.9.9.9' || name() == 'none.example.org.'
    }
    template IN ANY {
        answer \"{{ .Name }} 5 IN TXT three\"
    }
}
example.org {
    view all
    template IN ANY {
        answer \"{{ .Name }} 5 IN TXT all\"
    }
}
net {
    view never {
        expr false
    }
    whoami
}
";

#[tokio::test]
async fn first_block_of_the_longest_zone_whose_view_matches_answers() {
    let server = TestServer::corefile(VIEWS);
    for (client, question, expected) in [
        ("10.1.0.1", "a.example.org. TXT", "one"),
        ("10.1.0.1", "a.example.org. MX", "two"),
        ("10.2.0.1", "a.example.org. TXT", "two"),
        ("10.2.0.1", "NONE.example.org. TXT", "all"),
        ("192.0.2.1", "a.example.org. TXT", "all"),
        ("10.9.9.9", "a.org. TXT", "three"),
        ("10.9.9.8", "a.org. TXT", ""),
        ("10.9.9.8", "a.net. TXT", ""),
        // The zone above answers for the DS record, if its view has the query.
        ("10.9.9.9", "example.org. DS", "three"),
        ("10.9.9.8", "example.org. DS", "two"),
    ] {
        let found = server.clone().from(client).ask(question).await;
        let found = found.split(" TXT ").nth(1).unwrap_or_default();
        assert_eq!(found.trim_end_matches([' ', '|']), expected, "{client} {question}");
    }
    let without = VIEWS.replace("    view all\n", "").replace("view never", "view all");
    let server = TestServer::corefile(&without);
    assert!(server.from("192.0.2.1").ask("a.example.org. TXT").await.contains("TXT all"));
}

#[test]
fn blocks_share_a_zone_if_their_views_differ() {
    let block = |lines: &str| format!("a.test {{\n{lines}\nwhoami\n}}\n");
    let (plain, all) = (block(""), block("view all"));
    let [one, two] = ["one", "two"].map(|name| block(&format!("view {name} {{\nexpr do()\n}}")));
    for last in [&plain, &all] {
        assert_eq!(warnings(&format!("{one}{two}{last}")), [""; 0]);
        assert_eq!(
            warnings(&format!("{last}{one}")),
            [
                "Corefile:5:1: no client's query reaches this block: one before it answers all queries for a.test on \
              dns://:53; put that one behind the blocks whose views have expressions"
            ]
        );
    }
}

/// Returns the warnings about a Corefile.
fn warnings(text: &str) -> Vec<String> {
    let configuration = TestServer::configured(text).1;
    let warnings = configuration.blocks.iter().flat_map(|built| &built.builder.warnings);
    warnings.map(ToString::to_string).collect()
}

#[test]
fn links_whose_targets_no_block_resolves_are_warned_of() {
    let text = |view: &str, root: &str| {
        format!("lb.internal {{\n{view}\nlb_linker\n}}\n. {{\nview other\nwhoami\n}}\n{root}")
    };
    let what = |with: &str| {
        let text = "lb_linker: hostnames of load balancers aren't resolved here, because all blocks for . have \
                    another view; add one";
        vec![format!("Corefile:3:1: {text} {with}")]
    };
    assert_eq!(warnings(&text("", "")), what("without a view"));
    assert_eq!(warnings(&text("view v", "")), what("with the view v, or without a view"));
    for (view, root) in [("view v", ". {\nview v\nwhoami\n}"), ("", ". {\nwhoami\n}"), ("view other", "")] {
        let found = warnings(&text(view, root));
        assert!(!found.iter().any(|warning| warning.contains("lb_linker")), "{view} {root}: {found:?}");
    }
    assert_eq!(warnings("lb.internal {\nlb_linker\n}\nb.test {\nview v\nwhoami\n}"), [""; 0]);
}

#[test]
fn response_cache_keeps_answers_by_block() {
    let server = TestServer::corefile(VIEWS);
    let number = |client: &str, question: &str| {
        let server = server.clone().from(client);
        server.server.number_for(&server.request(question))
    };
    let one = number("10.1.0.1", "a.example.org. A");
    assert_eq!(number("10.1.7.7", "b.example.org. A"), one);
    let mut all = vec![server.server.number(), one];
    for (client, question) in
        [("10.1.0.1", "a.example.org. MX"), ("192.0.2.1", "a.example.org. A"), ("10.9.9.9", "a.org. A")]
    {
        let number = number(client, question);
        assert!(!all.contains(&number), "{client} {question}");
        all.push(number);
    }
    assert_eq!(number("192.0.2.1", "a.net. A"), server.server.number(), "no block answers");
    let plain = TestServer::corefile("a.test b.test {\nwhoami\n}\n");
    assert!(!plain.server.has_views() && server.server.has_views());
    assert_eq!(plain.server.number_for(&plain.request("a.test. A")), plain.server.number());
}

#[tokio::test]
async fn metrics_and_labels_have_the_name_of_the_view() {
    let view = "a.test {\nview inside {\nexpr incidr(client_ip(), '10.0.0.0/8')\n}\nmetadata\nprometheus\n\
                log . {/view/name}\ncache\nacl {\nallow type A\nblock\n}\nwhoami\n}\n";
    let server =
        TestServer::corefile(&format!("{view}a.test {{\nmetadata\nlog . {{/view/name}}\nwhoami\n}}\n"));
    server.ask("a.test. A").await;
    assert_eq!(server.lines(), ["[INFO] inside"]);
    server.ask("a.test. MX").await;
    for line in [
        "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"A\",view=\"inside\",zone=\"a.test.\"} 1",
        "coredns_cache_requests_total{server=\"dns://:53\",view=\"inside\",zones=\"a.test.\"} 1",
        "coredns_acl_allowed_requests_total{server=\"dns://:53\",view=\"inside\"} 1",
        "coredns_acl_blocked_requests_total{server=\"dns://:53\",view=\"inside\",zone=\"a.test.\"} 1",
    ] {
        assert_eq!(server.metrics(line), [line]);
    }
    server.lines();
    server.clone().from("192.0.2.1").ask("a.test. A").await;
    assert_eq!(server.lines(), ["[INFO] -"]);
}

#[tokio::test]
async fn labels_of_metadata_decide_before_the_block_answers() {
    let kubernetes = "kubernetes cluster.local";
    let view = "view shop {\nexpr metadata('kubernetes/namespace') == 'shop'\n}\nwhoami";
    let server = TestServer::block(&format!("metadata\n{kubernetes}\n{view}"));
    assert!(server.ask("web.shop.svc.cluster.local. A").await.starts_with("SERVFAIL"), "it has no objects");
    assert!(server.ask("web.other.svc.cluster.local. A").await.starts_with("REFUSED"));
    let warnings = TestServer::builder(view).warnings;
    assert_eq!(
        warnings[0].to_string(),
        "Corefile:3:1: metadata() has no effect here: the block has no metadata"
    );
    let warnings = TestServer::builder("metadata\nlog . {/view/name}\nwhoami").warnings;
    assert_eq!(
        warnings[0].to_string(),
        "Corefile:3:7: {/view/name} has no effect here: the block has no view"
    );
}

/// A zone with a CNAME, and its target in a zone with views.
const ALIAS: &str = "
a.test {
    cache
    template IN A {
        answer \"{{ .Name }} 60 IN CNAME b.test.\"
    }
}
b.test {
    view one {
        expr client_ip() == '10.0.0.1' && name() == 'b.test.'
    }
    template IN A {
        answer \"{{ .Name }} 60 IN A 192.0.2.1\"
    }
}
b.test {
    template IN A {
        answer \"{{ .Name }} 60 IN A 192.0.2.2\"
    }
}
";

#[tokio::test]
async fn target_of_a_cname_is_looked_up_by_view_and_not_kept() {
    let server = TestServer::corefile(ALIAS);
    for (client, expected) in
        [("10.0.0.1", "192.0.2.1"), ("10.0.0.2", "192.0.2.2"), ("10.0.0.1", "192.0.2.1")]
    {
        let found = server.clone().from(client).ask("a.test. A").await;
        assert!(found.contains(expected), "{client}: {found}");
    }
    let reply = server.reply("a.test. A").await.unwrap();
    assert!(!reply.is_cacheable && reply.validity.is_none());
}

/// Links in two views, whose targets other blocks resolve.
const LINKS: &str = "
lb.internal {
    view one {
        expr incidr(client_ip(), '10.0.0.0/8')
    }
    lb_linker
}
lb.internal {
    view two
    lb_linker
}
. {
    view one {
        expr false
    }
    template IN A {
        answer \"{{ .Name }} 60 IN A 192.0.2.1\"
    }
}
. {
    view three
    whoami
}
. {
    template IN A {
        answer \"{{ .Name }} 60 IN A 192.0.2.2\"
    }
}
";

#[tokio::test]
async fn targets_of_links_stay_in_their_view() {
    let server = TestServer::corefile(LINKS);
    let store = &server.shared.store;
    store.set_zones([&Name::from_ascii("lb.internal.").unwrap()]);
    store.replace(None, vec![link("web", "lb.example.com.")], vec![], &Default::default());
    store.set_known(Input::Services);
    for (client, expected) in [("10.0.0.1", "192.0.2.1"), ("192.0.2.9", "192.0.2.2")] {
        let found = server.clone().from(client).ask("web.default.lb.internal. A").await;
        assert!(found.contains(expected), "{client}: {found}");
    }
    // Look-ups of lb-linker itself are in no view.
    let query = Query::query(Name::from_ascii("x.test.").unwrap(), RecordType::A);
    let own = server.server.internal_request(query);
    let in_view = Request { view: Some("one".into()), ..own.clone() };
    let [own, one] = [own, in_view].map(|request| server.server.number_for(&request));
    assert_ne!(own, one);
    let only = TestServer::block("view one {\nexpr false\n}\nwhoami");
    let own = only.server.internal_request(only.request("a. A").query);
    assert_ne!(only.server.number_for(&own), only.server.number(), "all blocks have this view");
}
