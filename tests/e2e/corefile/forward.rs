//! `forward` without other plugins.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "forward",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            b.example.org. AAAA each
            chain.example.org. A each
            nowhere.example.org. A each
            a.example.org. AAAA each
            big.example.org. A each
            huge.example.org. A each
            giant.example.org. TXT each
            x.servfail.test. A each
            x.refused.test. A each
            example.org. SOA
            example.org. NS
            example.org. MX
            example.org. TXT
            example.org. CAA
            example.org. ANY
            example.org. ANY tcp
            example.org. ANY edns=4096 do
            alias.example.org. A
            alias.example.org. CNAME
            alias.example.org. AAAA
            chain.example.org. MX
            dangling.example.org. A
            outside.example.org. A
            round.example.org. A
            x.wild.example.org. A
            x.y.wild.example.org. TXT
            wild.example.org. A
            er.still.example.org. A
            still.example.org. TXT
            deep.er.still.example.org. A
            text.example.org. TXT
            empty.example.org. TXT
            _http._tcp.example.org. SRV
            sub.example.org. NS
            sub.example.org. DS
            sub.example.org. A
            host.sub.example.org. A
            host.sub.example.org. DS
            naptr.example.org. NAPTR
            sshfp.example.org. SSHFP
            _443._tcp.example.org. TLSA
            svc.example.org. HTTPS
            svc.example.org. SVCB
            hinfo.example.org. HINFO
            odd.example.org. TYPE65300
            odd.example.org. TYPE65301
            mixed.example.org. A
            MIXED.eXample.ORG. A case
            MIXED.eXample.ORG. AAAA case
            MIXED.NoWhere.ORG. AAAA case
            10.2.0.192.in-addr.arpa. PTR
            11.2.0.192.in-addr.arpa. PTR
            kubernetes.default.svc.cluster.local. A
            x.notimp.test. A
            x.formerr.test. A
            x.denied.test. A
            x.zero.test. A
            x.long.test. A
            x.mixed.test. A
            x.mixed.test. AAAA
            unknown.invalid. A
            . NS
            . SOA
            a.example.org. A nord
            a.example.org. A nord tcp
            nowhere.example.org. A nord edns do
            a.example.org. A cd ad
            a.example.org. A cd ad edns do
            a.example.org. A edns=100
            a.example.org. A edns=0
            big.example.org. A edns=600
            big.example.org. A edns=511
            big.example.org. A edns=65535
            huge.example.org. A edns=4096
            huge.example.org. A edns=65535
            giant.example.org. TXT edns=4096
            giant.example.org. TXT edns=65535 tcp
            a.example.org. A option=10:0102030405060708     ; a cookie
            a.example.org. A option=8:000118000a0000        ; a client's subnet
            a.example.org. A option=8:00000000              ; an empty subnet
            a.example.org. A option=12:00000000 tcp         ; padding
            a.example.org. A option=65001:01 option=65002:02
            a.example.org. A version=255
            a.example.org. A version=1 do
            version.bind. TXT CH
            version.bind. TXT CH tcp
            a.example.org. A CH
            a.example.org. A HS
            a.example.org. A ANY
            a.example.org. A CLASS7
            a.example.org. A opcode=1
            a.example.org. A opcode=2
            example.org. SOA opcode=5
            a.example.org. A opcode=6
            example.org. AXFR
            example.org. AXFR tcp
            example.org. TYPE251 tcp                          ; IXFR
            example.org. TYPE41
            example.org. TYPE250
            example.org. TYPE0",
    },
    Group {
        name: "forward: odd answers",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward . {$ODD}
            }",
        files: &[],
        questions: "
            plain.odd. A
            ad.odd. A
            ad.odd. A ad
            ad.odd. A do
            ad.odd. A cd
            aa.odd. A
            cd.odd. A
            cd.odd. A cd
            nora.odd. A
            nord.odd. A
            LoWer.odd. A
            LoWer.odd. A case
            alias.odd. A
            extra.odd. A
            bare.odd. A
            empty.odd. A
            brief.odd. A
            cut.odd. A
            cut.odd. A tcp
            deaf.odd. A
            deaf.odd. A edns=4096
            large.odd. A
            large.odd. A edns=4096
            large.odd. A tcp
            some.odd. A
            some.odd. A tcp
            some.odd. A edns=4096
            other.odd. A
            rcode-4.odd. A
            rcode-6.odd. A
            rcode-9.odd. A
            rcode-10.odd. A",
    },
    Group {
        name: "forward: HTTPS",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward a.example.org https://{$HTTPS} {
                    tls {$CA}
                    doh_method GET
                    health_check 1s no_rec domain example.org
                }
                forward b.example.org https://{$DEAD} https://{$HTTPS} {
                    tls {$CA}
                    policy sequential
                    doh_method POST
                }
                forward . https://{$HTTPS} {
                    tls {$CA}
                    tls_servername dns.example
                    expire 1s
                    max_idle_conns 2
                    max_concurrent 100
                }
            }",
        files: &[],
        questions: "
            a.example.org. A each
            b.example.org. AAAA each
            nowhere.example.org. A each
            a.example.org. AAAA each
            big.example.org. A tcp
            giant.example.org. TXT tcp
            x.servfail.test. A each
            example.org. SOA
            example.org. MX
            svc.example.org. HTTPS
            a.example.org. A nord
            a.example.org. A cd ad edns do
            big.example.org. A edns=65535",
    },
    Group {
        name: "grpc",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                grpc . {$DEAD} {$GRPC} {
                    policy sequential
                    except b.example.org
                    fallthrough wild.example.org org
                }
                whoami
            }",
        files: &[],
        questions: "
            a.example.org. A each
            big.example.org. A tcp
            giant.example.org. TXT tcp
            x.servfail.test. A each
            example.org. SOA
            example.org. MX
            a.example.org. AAAA
            svc.example.org. HTTPS
            a.example.org. A nord
            a.example.org. A cd ad edns do
            big.example.org. A edns=65535",
    },
    Group {
        name: "forward: except and several",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward example.org {$UPSTREAM} {
                    except sub.example.org a.example.org
                    force_tcp
                }
                forward cluster.local {$DEAD} {$UPSTREAM} {
                    policy sequential
                    max_fails 0
                }
                forward odd {$ODD} {
                    prefer_udp
                    expire 1s
                    max_idle_conns 2
                    max_concurrent 100
                    policy round_robin
                    health_check 5s no_rec domain odd
                }
            }",
        files: &[],
        questions: "
            example.org. A
            b.example.org. A each
            big.example.org. A
            huge.example.org. A edns
            a.example.org. A
            x.a.example.org. A
            sub.example.org. NS
            x.sub.example.org. A
            kubernetes.default.svc.cluster.local. A
            kubernetes.default.svc.cluster.local. A tcp
            nothing.cluster.local. A
            plain.odd. A
            plain.odd. A tcp
            cut.odd. A
            cut.odd. A tcp
            some.odd. A tcp
            www.invalid. A
            www.invalid. A tcp
            . NS",
    },
    Group {
        name: "forward: next and failover",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward servfail.test {$UPSTREAM} {$ODD} {
                    policy sequential
                    failover SERVFAIL
                }
                forward refused.test {$UPSTREAM} {$ODD} {
                    policy sequential
                    failover REFUSED SERVFAIL
                }
                forward . {$UPSTREAM} {
                    next NXDOMAIN REFUSED
                }
                forward . {$ODD}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            a.example.org. AAAA
            nowhere.example.org. A
            nowhere.example.org. A tcp
            nowhere.example.org. AAAA
            x.servfail.test. A
            x.servfail.test. A tcp
            x.refused.test. A
            x.refused.test. AAAA edns do
            x.denied.test. A
            x.notimp.test. A
            rcode-3.odd. A
            unknown.invalid. A",
    },
    Group {
        name: "forward: no upstream there",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                forward . {$DEAD}
            }
            first.test:{$PORT} {
                bind 127.0.0.1
                forward . {$DEAD} {$UPSTREAM} {
                    policy sequential
                }
            }
            fast.test:{$PORT} {
                bind 127.0.0.1
                forward . {$DEAD} {
                    failfast_all_unhealthy_upstreams
                    max_connect_attempts 1
                }
            }",
        files: &[],
        questions: "
            a.example.org. A
            a.example.org. A tcp
            a.example.org. A edns do cd
            x.first.test. A
            x.first.test. A tcp
            x.fast.test. A
            x.fast.test. A tcp",
    },
];

#[tokio::test]
async fn forward_answers_as_coredns_does() {
    compare(GROUPS).await;
}
