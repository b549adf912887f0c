//! `rewrite` in all forms except edns0 and cname.

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
