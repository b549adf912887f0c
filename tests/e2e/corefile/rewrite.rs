//! `rewrite` in all forms except cname.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "rewrite: name",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite name red.test a.example.org
                rewrite name exact blue.test b.example.org
                rewrite name exact absent.test nowhere.example.org
                rewrite name prefix pre- chain.
                rewrite name suffix .suffix.test .example.org
                rewrite name suffix .auto.test .example.org answer auto
                rewrite name substring middle example
                rewrite name regex ^(.*)-at-(.*)\.regex\.test\.$ {1}.{2}.org
                rewrite stop {
                    name regex (.*)\.answer\.test {1}.example.org
                    answer name (.*)\.example\.org {1}.answer.test
                }
                rewrite stop {
                    name suffix .value.test .example.org
                    answer name auto
                    answer value (.*)\.example\.org {1}.value.test
                }
                rewrite stop {
                    name regex (.*)\.arpa\.test {1}.2.0.192.in-addr.arpa
                    answer name (.*)\.2\.0\.192\.in-addr\.arpa {1}.arpa.test
                    answer value (.*)\.example\.org {1}.of.test
                }
                rewrite name regex ^bad\.test\.$ ..
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            red.test. A each
            RED.tEST. A case
            red.test. AAAA
            blue.test. AAAA
            x.red.test. A
            absent.test. A
            absent.test. A edns do
            pre-example.org. A
            pre-example.org. MX
            a.suffix.test. A
            mail.suffix.test. AAAA
            chain.suffix.test. A
            suffix.test. A
            a.auto.test. A each
            chain.auto.test. A
            nowhere.auto.test. A
            dangling.auto.test. A
            _http._tcp.auto.test. SRV
            sub.auto.test. NS
            a.middle.org. A
            middle.org. MX
            a-at-example.regex.test. A
            chain-at-example.regex.test. A
            a.answer.test. A
            chain.answer.test. A
            nowhere.answer.test. A
            a.value.test. A
            chain.value.test. A
            alias.value.test. CNAME
            _http._tcp.value.test. SRV
            nowhere.value.test. A
            sub.value.test. NS
            naptr.value.test. NAPTR
            10.arpa.test. PTR
            11.arpa.test. PTR
            bad.test. A
            a.example.org. A
            A.Value.TEST. A case
            Chain.Auto.Test. A case",
    },
    Group {
        name: "rewrite: order",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite continue name suffix .one.test .two.test answer auto
                rewrite continue name suffix .two.test .three.test answer auto
                rewrite stop name suffix .three.test .example.org answer auto
                rewrite name suffix .example.org .never.test
                rewrite continue {
                    name regex (.*)\.first\.test {1}.second.test
                    answer name (.*)\.second\.test {1}.first.test
                }
                rewrite name suffix .second.test .sub.test
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            a.one.test. A
            chain.one.test. A
            a.two.test. A tcp
            a.three.test. A edns
            a.example.org. A
            nowhere.one.test. A
            x.first.test. A",
    },
    Group {
        name: "rewrite: type and class",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                rewrite type ANY HINFO
                rewrite type MX TXT
                rewrite class CH IN
                chaos v1 author
                forward . {$UPSTREAM}
            }
            other.test:{$PORT} {
                bind 127.0.0.1
                rewrite class IN CH
                chaos v1 author
                whoami
            }",
        files: &[],
        questions: "
            hinfo.example.org. ANY
            hinfo.example.org. HINFO
            a.example.org. ANY
            text.example.org. MX
            text.example.org. TXT edns do
            example.org. MX
            a.example.org. A CH
            a.example.org. A
            x.other.test. A",
    },
    Group {
        name: "rewrite: ttl",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite ttl a.example.org 15
                rewrite ttl exact b.example.org 100-200
                rewrite ttl suffix .test -5
                rewrite ttl prefix chain 400-
                rewrite ttl substring ns 7
                rewrite ttl regex ^mail.*\.org\.$ 30-60
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            a.example.org. A each
            a.example.org. AAAA
            b.example.org. A
            x.mixed.test. A
            x.zero.test. A
            x.long.test. A
            chain.example.org. A
            ns.example.org. A
            mail.example.org. A
            mail2.example.org. AAAA
            text.example.org. TXT
            nowhere.example.org. A",
    },
    Group {
        name: "rewrite: rcode",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite rcode x.servfail.test SERVFAIL NOERROR
                rewrite rcode suffix .refused.test REFUSED NXDOMAIN
                rewrite rcode regex (.*)\.notimp\.test 4 2
                rewrite rcode prefix nowhere NXDOMAIN NOERROR
                rewrite rcode substring wild NOERROR YXDOMAIN
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            x.servfail.test. A each
            y.servfail.test. A
            x.refused.test. A
            x.notimp.test. A
            nowhere.example.org. A
            a.wild.example.org. A
            a.example.org. A",
    },
    Group {
        name: "rewrite: edns0",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite continue edns0 local set 0xffee 0x61626364
                rewrite continue edns0 local append 65001 text
                rewrite continue edns0 local replace 65001 other revert
                rewrite continue edns0 local replace 65002 never
                rewrite continue edns0 nsid set
                rewrite continue edns0 subnet set 24 56
                rewrite continue edns0 local set 65003 {client_ip}
                rewrite continue edns0 local set 65004 {protocol}
                rewrite continue {
                    edns0 local set 65005 {server_ip}
                }
                rewrite continue edns0 local set 65006 {unknown/label}
                rewrite edns0 local set 65007 ""
                rewrite edns0 local set 65008 never
                forward . {$ODD}
            }
            first.test:{$PORT} {
                bind 127.0.0.1
                rewrite edns0 local replace 65001 never
                rewrite edns0 local append 65001 one
                rewrite edns0 local append 65001 never
                forward . {$ODD}
            }
            unset.test:{$PORT} {
                bind 127.0.0.1
                rewrite continue edns0 subnet set 20 56
                rewrite continue edns0 local set 0xfff0 {qname}
                rewrite continue edns0 local append 0xfff0 more
                rewrite continue edns0 local set 0xfff1 stays
                rewrite continue edns0 local unset 0xfff0
                rewrite continue edns0 subnet unset
                rewrite edns0 nsid replace
                forward . {$ODD}
            }
            variable.test:{$PORT} {
                bind 127.0.0.1
                rewrite continue name suffix .variable.test .odd answer auto
                rewrite continue edns0 local append 65001 {qtype}
                rewrite continue edns0 local append 65001 {qname}
                rewrite continue edns0 local append 0xfde9 data
                rewrite continue edns0 local append 65002 {qname}
                rewrite edns0 subnet append 13 56
                forward . {$ODD}
            }
            replace.test:{$PORT} {
                bind 127.0.0.1
                rewrite continue edns0 local replace 65001 replaced
                rewrite edns0 subnet replace 8 8
                forward . {$ODD}
            }"#,
        files: &[],
        questions: "
            options.test. TXT
            options.test. TXT edns
            options.test. TXT tcp
            options.test. TXT edns=4096 do
            options.first.test. TXT
            options.first.test. TXT edns option=65001:ff
            options.unset.test. TXT
            options.unset.test. TXT edns option=65520:ff option=8:000118000a0000
            options.variable.test. TXT
            OPTIONS.variable.test. TXT
            options.variable.test. TXT tcp
            options.replace.test. TXT
            options.replace.test. TXT edns option=65001:ff
            options.replace.test. TXT edns option=8:000118000a0000
            options.replace.test. TXT edns option=65009:ff",
    },
    Group {
        name: "rewrite: with cache",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                rewrite name suffix .test .example.org answer auto
                rewrite continue {
                    ttl regex .* 10-20
                }
                cache
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            a.test. A
            a.test. A
            a.example.org. A
            chain.test. A
            chain.test. A tcp
            nowhere.test. A
            nowhere.test. A",
    },
];

#[tokio::test]
async fn rewrite_answers_as_coredns_does() {
    compare(GROUPS).await;
}
