//! `hosts`: inline entries, files, reverse lookups, and fallthrough.

use super::compare::{Group, compare};

const HOSTS: &str = "# A file like /etc/hosts.
192.0.2.1   one.test  first.one.test   One.Test
192.0.2.2   two.test  # and a comment
192.0.2.3   two.test
2001:db8::1 one.test six.test
2001:db8::2 six.test
::ffff:192.0.2.4 mapped.test
fe80::1%lo  zoned.test
192.0.2.300 wrong.test
192.0.2.7
10.0.0.1    one.example.org  alias.example.org
192.0.2.8   *.star.test
192.0.2.9   a.star.test
127.0.0.1   localhost
192.0.2.10  dot.test.
";

pub const GROUPS: &[Group] = &[
    Group {
        name: "hosts: file",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                hosts hosts.txt
            }",
        files: &[("hosts.txt", HOSTS)],
        questions: "
            one.test. A each
            two.test. A
            two.test. AAAA
            six.test. A
            six.test. AAAA
            one.test. MX
            one.test. ANY
            one.test. SOA
            one.test. CNAME
            one.test. HTTPS
            first.one.test. A
            ONE.tEST. A case
            mapped.test. A
            mapped.test. AAAA
            zoned.test. AAAA
            wrong.test. A
            dot.test. A
            x.star.test. A
            x.star.test. AAAA
            x.y.star.test. A
            a.star.test. A
            star.test. A
            *.star.test. A
            test. A
            nowhere.test. A
            nowhere.test. AAAA
            nowhere.test. TXT
            localhost. A
            1.2.0.192.in-addr.arpa. PTR
            3.2.0.192.in-addr.arpa. PTR
            8.2.0.192.in-addr.arpa. PTR
            99.2.0.192.in-addr.arpa. PTR
            1.2.0.192.in-addr.arpa. A
            1.2.0.192.in-addr.arpa. TXT
            2.0.192.in-addr.arpa. PTR
            1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR
            2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR
            one.test. PTR
            one.test. DS
            . A
            . NS",
    },
    Group {
        name: "hosts: inline",
        corefile: "
            example.org:{$PORT} test:{$PORT} 0.0.10.in-addr.arpa:{$PORT} {
                bind 127.0.0.1
                hosts hosts.txt {
                    10.0.0.2 two.example.org two
                    10.0.0.3 one.example.org
                    2001:db8::10 two.example.org
                    ttl 42
                    no_reverse
                    reload 0
                }
            }",
        files: &[("hosts.txt", HOSTS)],
        questions: "
            one.example.org. A
            alias.example.org. A
            two.example.org. A
            two.example.org. AAAA
            two. A
            example.org. A
            nowhere.example.org. A
            1.0.0.10.in-addr.arpa. PTR
            2.0.0.10.in-addr.arpa. PTR
            3.0.0.10.in-addr.arpa. PTR",
    },
    Group {
        name: "hosts: fallthrough",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                hosts hosts.txt example.org test in-addr.arpa {
                    10.0.0.2 two.example.org
                    192.0.2.99 a.example.org
                    fallthrough example.org in-addr.arpa
                }
                forward . {$UPSTREAM}
            }",
        files: &[("hosts.txt", HOSTS)],
        questions: "
            one.example.org. A each
            a.example.org. A
            a.example.org. AAAA
            a.example.org. TXT
            b.example.org. A
            example.org. MX
            nowhere.example.org. A
            nowhere.test. A
            one.test. TXT
            x.mixed.test. A
            10.2.0.192.in-addr.arpa. PTR
            1.2.0.192.in-addr.arpa. PTR
            kubernetes.default.svc.cluster.local. A",
    },
    Group {
        name: "hosts: unsupported types fall through",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                hosts hosts.txt {
                    192.0.2.99 a.example.org
                    192.0.2.98 text.example.org
                    fallthrough
                    fallthrough_unsupported
                }
                forward . {$UPSTREAM}
            }",
        files: &[("hosts.txt", HOSTS)],
        questions: "
            a.example.org. A
            a.example.org. AAAA
            text.example.org. TXT
            text.example.org. A
            text.example.org. AAAA
            one.test. TXT",
    },
    Group {
        name: "hosts: behind cache",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                cache
                hosts hosts.txt
            }",
        files: &[("hosts.txt", HOSTS)],
        questions: "
            nowhere.test. A edns
            nowhere.test. A edns
            nowhere.test. A edns tcp
            one.test. A edns
            one.test. A edns",
    },
    Group {
        name: "hosts: no file",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                root files
                hosts missing.txt {
                    10.0.0.2 two.example.org
                }
            }
            test:{$PORT} {
                bind 127.0.0.1
                root files
                hosts deep.txt
            }",
        files: &[("files/deep.txt", HOSTS)],
        questions: "
            two.example.org. A
            two.example.org. AAAA
            one.example.org. A
            one.test. A
            nowhere.test. A",
    },
];

#[tokio::test]
async fn hosts_answers_as_coredns_does() {
    compare(GROUPS).await;
}
