use crate::dns::plugins::rewrite::parse::*;
use crate::dns::plugins::tests::support::TestServer;

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let long = "a".repeat(MAX_REGEX + 1);
    let too_long = format!("regex {long} b");
    for (line, error) in [
        (
            "",
            "2:1: rewrite needs a rule, which begins with one of name, type, class, ttl, rcode, cname, edns0",
        ),
        (
            " stop",
            "2:1: rewrite needs a rule, which begins with one of name, type, class, ttl, rcode, cname, edns0",
        ),
        (
            " continue {\n}",
            "2:1: rewrite needs a rule, which begins with one of name, type, class, ttl, rcode, cname, edns0",
        ),
        (" foo a b", "2:9: rewrite has no rule \"foo\"; it has name, type, class, ttl, rcode, cname, edns0"),
        (
            " stop foo",
            "2:14: rewrite has no rule \"foo\"; it has name, type, class, ttl, rcode, cname, edns0",
        ),
        (" name a b {\n}", "2:1: braces can follow rewrite, rewrite continue and rewrite stop, nothing else"),
        (" {\n name a b {\n}\n}", "3:2: name takes no braces"),
        (
            " stop {\n answer name bar foo\n name regex foo bar\n}",
            "3:2: answer has to follow a name rule: name regex FROM TO answer name FROM TO",
        ),
        (" name", "2:9: name needs FROM and TO"),
        (" name a.com", "2:9: name needs FROM and TO"),
        (
            " name a.com b.com c.com",
            "2:14: \"a.com\" isn't exact, prefix, suffix, substring or regex; with this number of words, the first has to be one of these",
        ),
        (
            " name substring a.com b.com c.com",
            "2:36: only answer can follow FROM and TO, and here is \"c.com\"; each rule has a line or braces of its own",
        ),
        (
            " {\n name exact a b\n ttl a 5\n}",
            "4:2: only answer can follow FROM and TO, and here is \"ttl\"; each rule has a line or braces of its own",
        ),
        (" name regex ([a]\\.com x", "2:20: \"([a]\\\\.com\" isn't a regular expression: unclosed group"),
        (
            " name regex \\Qa\\E x",
            "2:20: \"\\\\Qa\\\\E\" isn't a regular expression: unrecognized escape sequence",
        ),
        (
            " name regex (.*).a {1}.{2}.b",
            "2:27: \"{1}.{2}.b\" uses 2 groups, and the regular expression \"(.*).a\" has 1",
        ),
        (" name regex a {0}", "2:22: \"{0}\" uses 1 group, and the regular expression \"a\" has 0"),
        // RE2 accepts these, this regex crate doesn't: see the manual.
        (" name regex a{ x", "2:20: \"a{\" isn't a regular expression: unclosed counted repetition"),
        (" name regex [[] x", "2:20: \"[[]\" isn't a regular expression: unclosed character class"),
        (" name regex a\\C x", "2:20: \"a\\\\C\" isn't a regular expression: unrecognized escape sequence"),
        (" name suffix a b answer", "2:25: answer needs auto, name FROM TO or value FROM TO"),
        (" name suffix a b answer name", "2:32: answer name needs FROM and TO"),
        (" name suffix a b answer value a", "2:32: answer value needs FROM and TO"),
        (
            " name suffix a b answer other",
            "2:32: \"other\" isn't auto, name or value, which can follow answer",
        ),
        (
            " name suffix a b Answer auto",
            "2:25: only answer can follow FROM and TO, and here is \"Answer\"; each rule has a line or braces of its own",
        ),
        (
            " name regex a b answer name (.) {1}.{2}",
            "2:40: \"{1}.{2}\" uses 2 groups, and the regular expression \"(.)\" has 1",
        ),
        (
            " name regex a b answer value [ c",
            "2:37: \"[\" isn't a regular expression: unclosed character class",
        ),
        (" name regex a b answer name a b name c", "2:40: answer name needs FROM and TO"),
        (
            " name regex a b answer name a b c d",
            "2:40: \"c\" isn't auto, name or value, which can follow answer",
        ),
        (
            " stop {\n name regex foo bar\n answer name bar foo\n name baz\n}",
            "5:2: answer name needs FROM and TO",
        ),
        (" name regex a b answer name a b auto", "2:40: answer auto and answer name exclude each other"),
        (
            " name a b answer auto",
            "2:14: \"a\" isn't exact, prefix, suffix, substring or regex; with this number of words, the first has to be one of these",
        ),
        (" type a", "2:9: type needs FROM and TO"),
        (
            " type any a a",
            "2:20: \"a\" is one word too many for type: each rule has a line or braces of its own",
        ),
        (" type ANY WV", "2:18: \"WV\" isn't a type such as A, AAAA or ANY"),
        (" type TYPE65 A", "2:14: \"TYPE65\" isn't a type such as A, AAAA or ANY"),
        (" class IN", "2:9: class needs FROM and TO"),
        (" class XY IN", "2:15: \"XY\" isn't a class: IN, CS, CH, HS, NONE or ANY"),
        (
            " class ch in in",
            "2:21: \"in\" is one word too many for class: each rule has a line or braces of its own",
        ),
        (" ttl a.b", "2:9: ttl needs a name and a TTL"),
        (
            " ttl exact a.b 5 6",
            "2:25: \"6\" is one word too many for ttl: each rule has a line or braces of its own",
        ),
        (
            " {\n ttl exact a.b 5\n ttl exact c.d 6\n}",
            "4:2: \"ttl\" is one word too many for ttl: each rule has a line or braces of its own",
        ),
        (
            " ttl from a.b 5",
            "2:13: \"from\" isn't exact, prefix, suffix, substring or regex; with this number of words, the first has to be one of these",
        ),
        (" ttl regex [ 5", "2:19: \"[\" isn't a regular expression: unclosed character class"),
        (
            " ttl a.b c.d",
            "2:17: \"c.d\" isn't a TTL in seconds such as 30, or a range such as 30-300, 30- or -300",
        ),
        (" rcode a.b 2", "2:9: rcode needs a name and two RCODEs"),
        (
            " rcode exact a.b 2 1 0",
            "2:29: \"0\" is one word too many for rcode: each rule has a line or braces of its own",
        ),
        (
            " rcode a.b random nothing",
            "2:19: \"random\" isn't an RCODE: a number from 0 to 23, or a name such as NOERROR or SERVFAIL",
        ),
        (
            " rcode a.b 2 24",
            "2:21: \"24\" isn't an RCODE: a number from 0 to 23, or a name such as NOERROR or SERVFAIL",
        ),
        (
            " rcode exact a.b 2",
            "2:21: \"a.b\" isn't an RCODE: a number from 0 to 23, or a name such as NOERROR or SERVFAIL",
        ),
        (" rcode regex ( 2 0", "2:21: \"(\" isn't a regular expression: unclosed group"),
        (" cname a", "2:9: cname needs FROM and TO"),
        (
            " cname from a b",
            "2:15: \"from\" isn't exact, prefix, suffix, substring or regex; with this number of words, the first has to be one of these",
        ),
        (
            " cname exact a b c",
            "2:25: \"c\" is one word too many for cname: each rule has a line or braces of its own",
        ),
        (" cname regex a) b", "2:21: \"a)\" isn't a regular expression: unopened group"),
        (" cname prefix \"\" b", "2:22: \"\" isn't a name, or a part of one; maybe a variable isn't set"),
    ] {
        assert_eq!(
            TestServer::error(&format!("rewrite{line}")),
            format!("Corefile:{error}"),
            "rewrite{line}"
        );
    }
    for rule in [
        "name regex L b",
        "name regex a b answer name L c",
        "ttl regex L 5",
        "rcode regex L 0 1",
        "cname regex L b",
    ] {
        let error = TestServer::error(&format!("rewrite {}", rule.replace('L', &long)));
        assert!(
            error.ends_with("a regular expression has 10000 bytes at most, and this one has 10001"),
            "{error}"
        );
    }
    assert!(TestServer::error(&format!("rewrite cname {too_long}")).contains("10001"));
}

#[test]
fn lines_that_coredns_accepts_are_accepted() {
    for rule in [
        "name a.com b.com",
        "NAME a.com b.com",
        "stop name Regex foo bar answer name bar foo",
        "stop {\n name regex foo bar\n answer name bar foo\n}",
        "name {\n exact a.com\n b.com\n}",
        "name suffix a. b. answer value (.*).b {1}.a value (.*).b {1}.a",
        "name suffix a. b. answer value (.*).b {1}.a name (.*).b {1}.a answer name c d",
        // An example of CoreDNS's README, which CoreDNS parses as `answer name` with FROM `auto` and TO `answer`.
        "name suffix .arpa .arpa answer name auto answer value (.*)\\.c\\. {1}.d.",
        "name exact a b answer name c d",
        // Only the number of used groups is checked.
        "name regex (.*).a {7}.b",
        "name regex \\141\\.b c",
        "type any a",
        "type NSAP-PTR AMTRELAY",
        "type DLV uri",
        "class ch cs",
        "class NONE ANY",
        "ttl a.b 0",
        "ttl suffix a 4294967295",
        "rcode a.b notimpl DSOTYPENI",
        "rcode a.b 15 23",
        "cname prefix a b",
    ] {
        TestServer::block(&format!("rewrite {rule}"));
    }
}

#[test]
fn invalid_ttls_are_rejected() {
    for ttl in [
        "12345678901234567890",
        "4294967296",
        "",
        "-",
        "2-1",
        "5-10-20",
        "+5",
        "0x5",
        "5s",
        "2147483648-",
        "1.5",
    ] {
        let error = TestServer::error(&format!("rewrite ttl a.b \"{ttl}\""));
        assert!(error.contains(&format!("{ttl:?} isn't a TTL in seconds")), "{error}");
    }
}
