//! `cache`: which answers are cached, for how long, and the answers to later clients.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "cache",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache
                forward example.org {$UPSTREAM}
                forward test {$UPSTREAM}
                forward . {$ODD}
            }",
        files: &[],
        questions: "
            a.example.org. A
            a.example.org. A
            a.example.org. A tcp
            a.example.org. A edns
            a.example.org. A edns=4096 do
            a.example.org. A edns=4096 do
            a.example.org. A cd
            a.example.org. A cd
            a.example.org. A ad
            a.example.org. A cd edns do
            a.example.org. A nord
            A.Example.ORG. A case
            nowhere.example.org. A
            nowhere.example.org. A
            nowhere.example.org. A edns do
            nowhere.example.org. A tcp
            NoWhere.Example.ORG. A case
            nowhere.example.org. AAAA
            a.example.org. AAAA
            a.example.org. AAAA
            a.example.org. AAAA edns
            a.example.org. AAAA ad
            chain.example.org. A
            chain.example.org. A
            chain.example.org. A edns do
            dangling.example.org. A
            dangling.example.org. A
            outside.example.org. A
            outside.example.org. A
            example.org. MX
            example.org. MX
            sub.example.org. NS
            sub.example.org. NS
            host.sub.example.org. A
            host.sub.example.org. A
            sub.example.org. DS
            sub.example.org. DS
            example.org. ANY
            example.org. ANY
            example.org. SOA
            example.org. SOA
            svc.example.org. HTTPS
            svc.example.org. HTTPS
            odd.example.org. TYPE65300
            odd.example.org. TYPE65300
            big.example.org. A
            big.example.org. A
            big.example.org. A tcp
            big.example.org. A edns=4096
            big.example.org. A
            huge.example.org. A edns
            huge.example.org. A edns tcp
            huge.example.org. A edns
            giant.example.org. TXT tcp
            giant.example.org. TXT
            x.servfail.test. A
            x.servfail.test. A
            x.servfail.test. A edns
            x.refused.test. A
            x.refused.test. A
            x.notimp.test. A
            x.notimp.test. A
            x.formerr.test. A
            x.formerr.test. A
            x.denied.test. A
            x.denied.test. A
            x.zero.test. A
            x.zero.test. A
            x.one.test. A
            x.one.test. A
            x.long.test. A
            x.long.test. A
            x.mixed.test. A
            x.mixed.test. A
            x.mixed.test. A edns do
            ad.odd. A
            ad.odd. A
            ad.odd. A ad
            ad.odd. A do
            ad.odd. A do
            ad.odd. A cd
            ad.odd. A cd
            aa.odd. A
            aa.odd. A
            cd.odd. A
            cd.odd. A
            nora.odd. A
            nora.odd. A
            LoWer.odd. A case
            LoWer.odd. A case
            lower.ODD. A case
            alias.odd. A
            alias.odd. A
            extra.odd. A
            extra.odd. A
            bare.odd. A
            bare.odd. A
            empty.odd. A
            empty.odd. A
            brief.odd. A
            brief.odd. A
            cut.odd. A
            cut.odd. A
            some.odd. A
            some.odd. A tcp
            some.odd. A
            other.odd. A
            other.odd. A
            rcode-6.odd. A
            rcode-6.odd. A
            a.example.org. A version=1
            a.example.org. A option=65001:00
            a.example.org. A nsid
            a.example.org. A wait=1200
            a.example.org. A tcp
            nowhere.example.org. A
            x.zero.test. A
            x.one.test. A
            aa.odd. A",
    },
    Group {
        name: "cache: capped",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache 10
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A
            a.example.org. A
            a.example.org. A edns do
            nowhere.example.org. A
            nowhere.example.org. A
            example.org. NS
            example.org. NS
            x.denied.test. A
            x.denied.test. A
            x.zero.test. A
            x.zero.test. A
            x.mixed.test. A
            x.mixed.test. A
            x.long.test. A
            x.long.test. A
            x.servfail.test. A
            x.servfail.test. A",
    },
    Group {
        name: "cache: TTLs",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache {
                    success 2048 40 20
                    denial 1024 25 9
                    servfail 1s
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A
            a.example.org. A
            kubernetes.default.svc.cluster.local. A
            kubernetes.default.svc.cluster.local. A
            nowhere.example.org. A
            nowhere.example.org. A
            nowhere.cluster.local. A
            nowhere.cluster.local. A
            a.example.org. AAAA
            a.example.org. AAAA
            x.zero.test. A
            x.zero.test. A
            x.mixed.test. A
            x.mixed.test. A
            x.denied.test. A
            x.denied.test. A
            x.servfail.test. A
            x.servfail.test. A
            x.servfail.test. A wait=1200
            a.example.org. A",
    },
    Group {
        name: "cache: keepttl",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache 30 example.org test {
                    keepttl
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A
            nowhere.example.org. A
            x.mixed.test. A
            a.example.org. A wait=2100
            a.example.org. A edns do
            nowhere.example.org. A
            x.mixed.test. A
            kubernetes.default.svc.cluster.local. A
            kubernetes.default.svc.cluster.local. A",
    },
    Group {
        name: "cache: disable",
        corefile: "
            example.org:{$PORT} {
                bind 127.0.0.1
                cache {
                    disable denial
                    servfail 0
                }
                forward . {$UPSTREAM}
            }
            test:{$PORT} {
                bind 127.0.0.1
                cache {
                    disable success mixed.test
                    disable denial denied.test
                    servfail 0
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A
            nowhere.example.org. A
            a.example.org. AAAA
            x.mixed.test. A
            x.long.test. A
            x.denied.test. A
            x.servfail.test. A
            a.example.org. A wait=2100
            nowhere.example.org. A
            a.example.org. AAAA
            x.mixed.test. A
            x.long.test. A
            x.denied.test. A
            x.servfail.test. A",
    },
    Group {
        name: "cache: stale",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache {
                    success 1024 1 1
                    denial 1024 1 1
                    serve_stale 1h immediate
                }
                forward . {$UPSTREAM}
            }
            verified.test:{$PORT} {
                bind 127.0.0.1
                cache {
                    success 1024 1 1
                    serve_stale 1h verify 0 30s
                }
                template IN A verified.test {
                    answer \"{{ .Name }} 300 IN A 192.0.2.1\"
                }
            }",
        files: &[],
        questions: "
            a.example.org. A
            nowhere.example.org. A
            x.verified.test. A
            a.example.org. A wait=2200
            nowhere.example.org. A
            x.verified.test. A
            a.example.org. A wait=200
            nowhere.example.org. A",
    },
    Group {
        name: "cache: in front of other plugins",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache
                template IN A t.test {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                }
                hosts {
                    192.0.2.9 host.test
                    ttl 77
                    fallthrough
                }
                whoami
            }",
        files: &[],
        questions: "
            x.t.test. A
            x.t.test. A
            x.t.test. A edns do
            x.t.test. AAAA
            x.t.test. AAAA
            host.test. A
            host.test. A
            host.test. AAAA
            host.test. AAAA
            host.test. MX
            9.2.0.192.in-addr.arpa. PTR
            9.2.0.192.in-addr.arpa. PTR
            elsewhere.test. A
            elsewhere.test. A
            elsewhere.test. TXT tcp",
    },
];

#[tokio::test]
async fn cache_answers_as_coredns_does() {
    compare(GROUPS).await;
}
