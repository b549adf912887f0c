//! Server blocks: selection by name and address, and construction from snippets, imports and variables.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "blocks: the longest zone wins",
        corefile: "
            example.org:{$PORT} {
                bind 127.0.0.1
                forward . {$UPSTREAM}
            }
            sub.example.org:{$PORT} a.example.org:{$PORT} {
                bind 127.0.0.1
                whoami
            }
            deep.sub.example.org:{$PORT} {
                bind 127.0.0.1
                template IN ANY deep.sub.example.org {
                    answer \"{{ .Name }} 60 IN A 192.0.2.99\"
                }
            }
            Mixed.Example.NET:{$PORT} {
                bind 127.0.0.1
                whoami
            }
            empty.example.net:{$PORT} {
                bind 127.0.0.1
            }",
        files: &[],
        questions: "
            example.org. A each
            b.example.org. A
            a.example.org. A each
            x.a.example.org. A
            aa.example.org. A
            sub.example.org. A
            x.sub.example.org. A
            deep.sub.example.org. A
            x.deep.sub.example.org. A
            xdeep.sub.example.org. A
            sub.example.org. DS each
            a.example.org. DS
            deep.sub.example.org. DS
            x.deep.sub.example.org. DS
            example.org. DS
            mixed.example.net. A
            X.MIXED.example.net. A case
            mixed.example.net. DS
            empty.example.net. A
            empty.example.net. DS
            org. A
            . NS
            elsewhere.net. A each
            elsewhere.net. DS
            a.example.org. A CH
            example.org. A ANY
            elsewhere.net. A HS
            example.org. SOA opcode=5
            example.org. A version=3 tcp
            elsewhere.net. A version=3",
    },
    Group {
        name: "blocks: reverse zones",
        corefile: "
            192.0.2.0/24:{$PORT} {
                bind 127.0.0.1
                forward . {$UPSTREAM}
            }
            10.0.0.0/14:{$PORT} {
                bind 127.0.0.1
                whoami
            }
            172.16.5.0/25:{$PORT} {
                bind 127.0.0.1
                whoami
            }
            2001:db8::/33:{$PORT} 2001:db8:8000::/33:{$PORT} {
                bind 127.0.0.1
                whoami
            }",
        files: &[],
        questions: "
            10.2.0.192.in-addr.arpa. PTR each
            11.2.0.192.in-addr.arpa. PTR
            2.0.192.in-addr.arpa. SOA
            10.3.0.192.in-addr.arpa. PTR
            1.0.0.10.in-addr.arpa. PTR
            1.0.3.10.in-addr.arpa. PTR
            1.0.4.10.in-addr.arpa. PTR
            10.in-addr.arpa. PTR
            1.5.16.172.in-addr.arpa. PTR
            200.5.16.172.in-addr.arpa. PTR
            1.6.16.172.in-addr.arpa. PTR
            5.16.172.in-addr.arpa. PTR
            1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR
            1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.9.b.d.0.1.0.0.2.ip6.arpa. PTR
            8.b.d.0.1.0.0.2.ip6.arpa. DS",
    },
    Group {
        name: "blocks: snippets, files and variables",
        corefile: "
            # A comment.
            (bound) {
                bind 127.0.0.1
            }
            (zone) {
                template IN A {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                    fallthrough
                }
            }
            (nested) {
                import zone
                import bound   # A snippet in a snippet.
            }
            one.test:{$PORT} {
                import bound
                import zone
            }
            two.test:{%PORT%} {
                import nested
            }
            import blocks/*.conf
            {$ZONE}:{$PORT} {
                import plugins.txt
                template IN A {$ZONE} {
                    answer \"{{ .Name }} {$TIME} IN A 192.0.2.4\"
                }
            }
            dns://four.test:{$PORT} five.test:{$PORT},
            six.test:{$PORT} {
                bind 127.0.0.1
                whoami
            }
            dns://.:{$PORT2} {
                bind 127.0.0.1
                template ANY ANY {
                    rcode NXDOMAIN
                }
            }",
        files: &[
            ("blocks/a.conf", "a.conf.test:{$PORT} {\n bind 127.0.0.1\n whoami\n}\n"),
            ("blocks/b.conf", "b.conf.test:{$PORT} {\n import bound\n import zone\n}\n"),
            ("blocks/c.other", "this isn't read"),
            ("plugins.txt", "bind 127.0.0.1\ncache 5\n"),
        ],
        questions: "
            one.test. A each
            two.test. A
            x.two.test. A
            two.test. AAAA
            a.conf.test. A
            b.conf.test. A
            c.conf.test. A
            env.test. A
            env.test. A
            x.env.test. AAAA
            four.test. A
            five.test. A
            six.test. A tcp
            seven.test. A
            one.test. A port2
            anything. A port2 tcp",
    },
    Group {
        name: "blocks: tls:// without the plugin tls",
        corefile: "
            .:{$PORT} tls://.:{$TLS} {
                bind 127.0.0.1
                whoami
            }
            tls://a.test:{$TLS} {
                bind 127.0.0.1
                template IN A . {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                }
            }",
        files: &[],
        questions: "
            b.test. A
            b.test. A port-tls tcp
            x.a.test. A port-tls tcp
            x.a.test. A port-tls tcp edns",
    },
    Group {
        name: "blocks: addresses and ports",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1 127.0.0.5
                template IN A . {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                }
            }
            .:{$PORT} {
                bind 127.0.0.6
                template IN A . {
                    answer \"{{ .Name }} 60 IN A 192.0.2.2\"
                }
            }
            test:{$PORT} test:{$PORT2} example.org:{$PORT2} {
                bind 127.0.0.1
                template IN A . {
                    answer \"{{ .Name }} 60 IN A 192.0.2.3\"
                }
            }
            .:{$PORT3} {
                template IN A . {
                    answer \"{{ .Name }} 60 IN A 192.0.2.4\"
                }
            }",
        files: &[],
        questions: "
            a. A
            a. A to=127.0.0.5
            a. A to=127.0.0.5 tcp
            a. A to=127.0.0.6
            a. A to=127.0.0.6 tcp
            x.test. A
            x.test. A to=127.0.0.5
            x.test. A to=127.0.0.6
            x.test. A port2
            x.example.org. A port2
            x.example.org. A
            a. A port2
            a. A port3
            a. A port3 to=127.0.0.9
            a. A port3 to=127.0.0.9 tcp",
    },
    Group {
        name: "blocks: the plugins' order isn't the Corefile's",
        corefile: "
            .:{$PORT} {
                whoami
                forward . {$UPSTREAM}
                hosts {
                    192.0.2.55 a.example.org
                    fallthrough
                }
                template IN A a.example.org {
                    answer \"{{ .Name }} 60 IN A 192.0.2.66\"
                    fallthrough
                }
                cache 3
                acl {
                    block type TXT
                }
                rewrite name red.test text.example.org
                bind 127.0.0.1
                errors
            }",
        files: &[],
        questions: "
            a.example.org. A
            b.example.org. A
            b.example.org. A
            text.example.org. TXT
            red.test. TXT
            red.test. A",
    },
];

#[tokio::test]
async fn queries_reach_the_same_server_blocks_as_in_coredns() {
    compare(GROUPS).await;
}
